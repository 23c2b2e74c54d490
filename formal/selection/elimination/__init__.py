"""Exact variable elimination, known as bucket elimination, on factored and on dense tables."""
