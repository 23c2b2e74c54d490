"""Checker of several plans of one job, of which one is taken."""
