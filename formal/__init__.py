"""This package decides: search, encodings for other solvers, explanations.  Nothing here is believed."""
