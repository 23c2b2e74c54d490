"""Checks overlapped plans."""
