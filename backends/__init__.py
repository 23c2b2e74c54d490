"""Runs plans: programs per rank, kernels, transport, the run itself."""
