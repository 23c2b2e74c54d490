"""Certificates of collective programs and of placements."""
