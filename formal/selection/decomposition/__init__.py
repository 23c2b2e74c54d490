"""Repeated structure: colour refinement, symmetric solutions, column generation, coarsening and
interfaces.
"""
