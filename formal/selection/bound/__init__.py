"""Lower bounds: messages (TRW-S), multipliers of resource rows (subgradient ascent), cuts and their
exact value in integers.
"""
