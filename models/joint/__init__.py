"""Graphs that compute the same, held together: e-graphs of programs, and the selection problem over
all of them.
"""
