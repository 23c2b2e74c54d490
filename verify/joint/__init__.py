"""Checks joint plans: what operators mean, derivations, and the problem over all equal graphs."""
