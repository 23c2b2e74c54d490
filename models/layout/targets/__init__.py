"""Shardings in the words of other frameworks, and read back: DTensor, JAX's PartitionSpec, Shardy's text."""
