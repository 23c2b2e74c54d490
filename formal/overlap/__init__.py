"""This package plans with communication beside computation."""
