"""Checks plans with submeshes."""
