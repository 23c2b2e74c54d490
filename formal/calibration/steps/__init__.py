"""Computes times of whole training steps by formulas with few constants, fitted on measured steps of one
machine and software.

Floats guide: no claim of a certificate rests on these formulas; constants leave as exact fractions of four digits.
"""
