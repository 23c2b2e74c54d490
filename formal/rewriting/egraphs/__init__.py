"""Extracts terms of least DAG cost from e-graphs, by linear programs, landmarks, and branch and bound."""
