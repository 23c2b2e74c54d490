"""This package checks plans with views."""
