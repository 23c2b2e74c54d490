"""What is decided: search, encodings for other solvers, explanations.  Nothing here is believed."""
