"""Decides what is believed: one small checker per kind of file, which knows nothing of the search."""
