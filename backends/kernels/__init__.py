"""Kernels: what an operator computes on a box, for any array module with NumPy's interface."""

from .blocks import (
    Array,
    Block,
    Box,
    KernelError,
    StatisticsReducer,
    combine_arrays,
    execution_dtype,
    full_box,
    neutral,
)
from .dispatch import execute

__all__ = [
    "Array",
    "Block",
    "Box",
    "KernelError",
    "StatisticsReducer",
    "combine_arrays",
    "execute",
    "execution_dtype",
    "full_box",
    "neutral",
]
