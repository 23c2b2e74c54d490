"""Compiles texts of loops with numba, once per text and process."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numba import njit

from ..kernels import Array
from . import scalar

Kernel = Callable[..., None]
"""`kernel(g, arrays.., results..)` of `nest.write`."""


@lru_cache(maxsize=4096)
def function_of(text: str, real: str) -> Kernel:
    """The function of a text; it is compiled at its first call, which takes half a second, and holds no lock of the
    interpreter.
    """
    room = {
        "math": math,
        "np": np,
        "real": getattr(np, real),
        **{name: getattr(scalar, name) for name in ("add_freely", "exp", "largest", "smallest", "tanh")},
    }
    exec(compile(text, f"<loop of {real}>", "exec"), room)  # noqa: S102  what `nest.write` made, of numbers and our names
    kernel: Kernel = njit(nogil=True, error_model="numpy")(room["kernel"])
    return kernel


def flat(array: Array) -> Array:
    """The memory that an array walks over as a vector of its own elements, from its first on."""
    if array.flags.c_contiguous:
        return array.reshape(-1)
    extent = 1 + sum((n - 1) * (s // array.itemsize) for n, s in zip(array.shape, array.strides, strict=True))
    return np.lib.stride_tricks.as_strided(array, (extent,), (array.itemsize,))


def walks_forward(array: Array) -> bool:
    """Whether no stride is negative, or no multiple of an element."""
    return all(s >= 0 and s % array.itemsize == 0 for s in array.strides)
