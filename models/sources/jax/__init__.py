"""Translates JAX functions, lowered to StableHLO by JAX itself and read operator by operator."""
