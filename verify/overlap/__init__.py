"""This package checks overlapped plans."""
