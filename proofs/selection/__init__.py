"""Certificates of selection problems: the records of a proof tree, and their file."""
