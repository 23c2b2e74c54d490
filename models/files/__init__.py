"""Reads and writes bytes: paths that are safe to replace, strict JSON, streams, hashes."""
