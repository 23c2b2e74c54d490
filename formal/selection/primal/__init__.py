"""This package holds solutions: the incumbent, descent, repair under resource rows, and local search."""
