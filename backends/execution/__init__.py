"""Runs the programs of all ranks and compares the result with one process."""
