"""This package translates NumPy functions into graphs."""
