"""Checks rewrite rules: judgements about equations of index expressions, derivations, libraries."""
