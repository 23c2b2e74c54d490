"""This package holds derivations: why every added operator computes the tensor that it writes."""
