"""Translates NumPy functions into graphs."""
