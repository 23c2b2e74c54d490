"""Synthesises collective programs over the state graph."""
