"""Writes a plan, or the difference of two, as one page to look at."""
