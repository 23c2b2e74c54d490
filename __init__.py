"""Shardproof: certified parallelization plans."""
