"""Writes shardings in the words of other frameworks, and reads them back: DTensor, JAX's PartitionSpec,
Shardy's text.
"""
