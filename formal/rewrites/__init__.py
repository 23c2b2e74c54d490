"""Generates rewrite rules, proves them, refutes them, and derives one from others."""
