"""Joint optimisation of algebra and placement: rules that add equal operators to a graph, and the
search over both.
"""
