"""Checks plans with views."""
