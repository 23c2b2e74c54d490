"""Checks extractions from e-graphs against the user's file: chosen nodes, and the tree of dual bounds."""
