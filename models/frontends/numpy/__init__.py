"""NumPy functions as graphs."""
