"""Reads PyTorch programs as they run on ranks, under process groups that send nothing."""
