"""A generated kernel: CUDA text with everything static written into it, and how to launch it.

Shapes, strides and attributes are constants of the text: the compiler turns divisions by them into multiplications, and
equal boxes (all inner ranks of a plan) share one kernel.  Reals are float or double; masks are `bool` (one byte, as in
NumPy).

    vector   consecutive elements per memory access (16 bytes); every pointer must then be a multiple of 16
    fibers   whether threads of a block talk to each other (shared memory, shuffles): the host shim then needs one fiber
             per thread
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isinf, isnan, prod
from typing import Final

REALS: Final = {"float32": "float", "float64": "double"}
"""NumPy's name -> CUDA's."""

C_TYPES: Final = {**REALS, "bool": "bool"}
"""Element types an operand may have."""

VECTORS: Final = {"float": ("float4", 4), "double": ("double2", 2)}
"""16-byte vector type and its length."""

LANES: Final = "xyzw"

MOST_BLOCKS: Final = 65_535
"""Blocks of a grid-stride loop: more bring nothing, and this many are allowed in every dimension."""


class KernelTextError(ValueError):
    """Something that has no generated text; the caller then computes it operator by operator."""


@dataclass(frozen=True)
class Operand:
    """An array read by a kernel: element type and strides in elements, one per iteration dimension (0: broadcast)."""

    dtype: str
    strides: tuple[int, ...]

    @property
    def c_type(self) -> str:
        """Its CUDA type; `KernelTextError` if it has none."""
        if self.dtype not in C_TYPES:
            raise KernelTextError(f"elements of type {self.dtype} have no generated kernel")
        return C_TYPES[self.dtype]


@dataclass(frozen=True)
class Kernel:
    """`text` defines one `extern "C"` function `name`; `arguments`: C types of its pointers, inputs first."""

    name: str
    text: str
    arguments: tuple[str, ...]
    grid: tuple[int, int]
    block: int
    vector: int = 1
    fibers: bool = False


def unique_name(kind: str, text: str) -> tuple[str, str]:
    """A name that no other text has, and the text with NAME replaced by it.

    >>> unique_name("softmax", "void NAME() {}")[0].startswith("softmax_")
    True
    """
    name = f"{kind}_{sha256(text.encode()).hexdigest()[:12]}"
    return name, text.replace("NAME", name)


def literal(value: float, real: str) -> str:
    """A number as the compiler reads it back exactly.

    >>> literal(0.1, "float"), literal(2, "double"), literal(float("-inf"), "float")
    ('0.1f', '2.0', '(-__int_as_float(0x7f800000))')
    """
    if isnan(value):
        raise KernelTextError(f"{value} cannot be written as a literal")
    if isinf(value):  # what masks put where nothing is to be seen
        return infinity(real, "-" if value < 0 else "")
    return repr(float(value)) + ("f" if real == "float" else "")


def infinity(real: str, sign: str = "") -> str:
    """+inf or -inf without a header (NVRTC has none)."""
    return (
        f"({sign}__int_as_float(0x7f800000))"
        if real == "float"
        else f"({sign}__longlong_as_double(0x7ff0000000000000LL))"
    )


def merge_dimensions(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The same iteration with as few dimensions as possible: neighbours that every operand walks as one become one.

    >>> merge_dimensions((2, 3, 4), [(12, 4, 1), (0, 4, 1)])
    ((2, 12), [(12, 1), (0, 1)])
    """
    kept = [k for k, n in enumerate(shape) if n != 1]
    sizes = [shape[k] for k in kept]
    walks = [[s[k] for k in kept] for s in strides]
    k = 0
    while k + 1 < len(sizes):
        if all(w[k] == w[k + 1] * sizes[k + 1] for w in walks):
            sizes[k : k + 2] = [sizes[k] * sizes[k + 1]]
            for w in walks:
                del w[k]
        else:
            k += 1
    if not sizes:
        return (1,), [(0,) for _ in walks]
    return tuple(sizes), [tuple(w) for w in walks]


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of C order, in elements.

    >>> dense((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[k + 1 :]) for k in range(len(shape)))


def index_type(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> str:
    """`int` where every index and offset fits, else `long long`: 32-bit arithmetic is several times faster on a GPU."""
    reach = [sum((n - 1) * abs(s) for n, s in zip(shape, w, strict=True)) for w in strides]
    return "int" if max([prod(shape), *reach]) < 1 << 30 else "long long"
