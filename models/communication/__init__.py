"""This package derives the transfers between two layouts of a tensor, the choices that a redistribution has, and
their loads on links.
"""
