"""Runs generated kernels on a GPU: the same text through CuPy's RawModule, on CuPy's current stream.

A kernel that wants aligned vectors gets aligned pointers or is refused (`KernelTextError`); CuPy's allocator aligns to
512 bytes, so only views can be off.  Compiled modules are kept per text and device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

from ..kernels import Array
from .kernel import Kernel
from .shim import check_arguments


def is_device(xp: ModuleType) -> bool:
    """Whether arrays of `xp` live on a GPU.

    >>> import numpy
    >>> is_device(numpy)
    False
    """
    return xp.__name__ == "cupy"


@lru_cache(maxsize=4096)
def _function(text: str, name: str, device: int) -> Any:
    import cupy

    return cupy.RawModule(code=text, options=("--std=c++17",)).get_function(name)


def launch(kernel: Kernel, arrays: Sequence[Array]) -> None:
    """One launch on the current device and stream; results are written in place.  Raises `KernelTextError` for
    misaligned arrays.
    """
    import cupy

    check_arguments(kernel, [a.data.ptr for a in arrays])  # type: ignore[attr-defined]
    _function(kernel.text, kernel.name, int(cupy.cuda.runtime.getDevice()))(
        (*kernel.grid, 1), (kernel.block, 1, 1), tuple(arrays)
    )
