"""This package recognises named compositions of operators after import."""
