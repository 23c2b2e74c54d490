"""This package keeps overlapped plans: placements, a schedule of computation beside communication, a bound."""
