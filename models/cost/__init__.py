"""Turns a program and a machine into numbers: times of operators and reshardings, bytes of memory,
and the tables of the selection problem.
"""
