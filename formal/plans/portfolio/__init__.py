"""Searches of several kinds for one job, and the best of what they find."""
