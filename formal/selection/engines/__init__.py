"""This package holds other solvers that are asked for solutions (ILP, SMT); nothing that they say is believed."""
