"""Asks other solvers (ILP, SMT) for solutions, and for proofs; nothing that they say is believed."""
