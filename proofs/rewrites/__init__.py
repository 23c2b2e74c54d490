"""This package holds libraries of rewrite rules with their judgements and derivations, and the library that ships."""
