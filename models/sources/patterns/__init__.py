"""Recognises named compositions of operators after import."""
