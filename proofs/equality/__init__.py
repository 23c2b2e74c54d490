"""Keeps questions of equality as files."""
