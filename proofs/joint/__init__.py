"""Derivations: why every added operator computes the tensor that it writes."""
