"""Describes e-graphs: classes of equal terms, from which one term of least cost is taken."""
