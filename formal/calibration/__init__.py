"""Measures links and devices, and fits the constants of a machine file."""
