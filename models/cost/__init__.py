"""This package turns a program and a machine into numbers: times of operators and redistributions, bytes of memory,
and the tables of the selection problem.
"""
