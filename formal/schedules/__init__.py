"""Finds schedules and lower bounds: published ones, list scheduling both ways, edge finding, branching."""
