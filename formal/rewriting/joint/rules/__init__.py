"""Where rules apply: one module per family, functions from an e-graph and an operator of it to
additions.
"""
