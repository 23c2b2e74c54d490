"""Translates `torch.export` programs into graphs."""
