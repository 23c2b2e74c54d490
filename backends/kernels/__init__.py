"""This package holds kernels: what an operator computes on a box, for any array module with NumPy's interface."""

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
from .half import combine_arrays, is_half, narrowed, stored_type, widened
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
    "narrowed",
    "neutral",
    "stored_type",
    "widened",
]
