"""Writes plans in the words of other frameworks."""
