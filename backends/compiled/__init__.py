"""Computes chains of operators as loops that numba compiles (`--backend numba`)."""
