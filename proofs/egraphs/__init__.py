"""Extractions from e-graphs: the nodes chosen, and the proof that no choice is cheaper."""
