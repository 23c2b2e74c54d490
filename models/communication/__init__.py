"""Derives the transfers between two layouts of a tensor, the choices that a resharding has, and
their loads on links.
"""
