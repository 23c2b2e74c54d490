"""This package holds certificates of collective programs and of placements."""
