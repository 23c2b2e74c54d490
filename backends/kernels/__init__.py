"""Kernels: what an operator computes on a box, for any array module with NumPy's interface."""

from .blocks import (
    Array,
    Block,
    Box,
    KernelError,
    StatisticsReducer,
    execution_dtype,
    full_box,
    neutral,
)
from .dispatch import execute
from .half import combine_arrays, is_half, round_to, stored_type, widen
from .stored import execute_stored, execute_unrounded

__all__ = [
    "Array",
    "Block",
    "Box",
    "KernelError",
    "StatisticsReducer",
    "combine_arrays",
    "execute",
    "execute_stored",
    "execute_unrounded",
    "execution_dtype",
    "full_box",
    "is_half",
    "neutral",
    "round_to",
    "stored_type",
    "widen",
]
