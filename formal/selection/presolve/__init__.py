"""Exact reductions of a problem before the search, known as presolve, with a log that a checker
replays.
"""
