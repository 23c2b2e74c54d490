"""Checks schedules: every start against its problem, every lower bound by integer arguments."""
