"""Solutions: the incumbent, descent and repair under resource rows, and local search."""
