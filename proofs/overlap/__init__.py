"""Overlapped plans: placements, a schedule of computation beside communication, a bound."""
