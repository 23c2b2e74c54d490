"""Asks other solvers for schedules (ILP, SMT, CP-SAT); nothing that they say is believed."""
