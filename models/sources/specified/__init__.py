"""Reads operators that a user specifies in index notation, and writes them as operators of graphs."""
