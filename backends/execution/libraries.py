"""Finds whose arrays hold the blocks of a run, and who computes the operators of a program, by name."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

import numpy as np

from ...models.text import InputError
from ..kernels.library import OURS, Library


def check_library(name: str) -> None:
    """Raises `InputError` where the library is not installed; imports nothing."""
    if name == "torch" and find_spec("torch") is None:
        raise InputError(
            "PyTorch is not installed here: pip install 'shardproof[torch]', or use --backend numpy (the default)"
        )


def library_of(name: str) -> Library:
    """The library of a program: `numpy` (on a GPU the same kernels on CuPy's arrays), `numba` or `torch`.

    >>> sorted(library_of("numpy").functions)[:2]
    ['abs', 'abs_gradient']
    """
    check_library(name)
    if name == "torch":
        from ..torch.library import TORCH

        return TORCH
    if name == "numba":
        from ..compiled.recipes import NUMBA

        return NUMBA
    return OURS


def array_module(backend: str) -> ModuleType:
    """Whose arrays hold blocks: PyTorch and numba compute on NumPy's.  Raises `InputError` where a GPU is asked for
    and none answers.

    >>> array_module("torch").__name__
    'numpy'
    """
    if backend in ("numpy", "numba", "torch"):
        return np
    try:
        import cupy
    except ImportError:
        cupy = None
    available = cupy is not None and bool(cupy.is_available())
    if backend == "cupy" and not available:
        raise InputError(
            "CuPy finds no GPU here: pip install 'shardproof[gpu]' on a machine with one, or use --backend numpy"
        )
    return cupy if available else np
