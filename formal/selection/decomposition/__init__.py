"""This package holds repeated structure: colour refinement, symmetric solutions, column generation, coarsening and
interfaces.
"""
