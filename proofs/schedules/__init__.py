"""Schedules: the problem, the start of every task, and why none is shorter."""
