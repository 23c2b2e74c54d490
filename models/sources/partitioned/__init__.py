"""Reads StableHLO programs of many devices (JAX's `shard_map`, `jit` with shardings), one program per rank."""
