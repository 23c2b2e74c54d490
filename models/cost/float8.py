"""Counts what a cast of a 16-bit operand to float8 moves: reads by how its scale is found, copies by who reads it.

    scaling     delayed   by what was largest in steps before: read once
                current   by what is largest now: read twice, for that and to cast
                blocks    by what is largest in every 32 elements (MXFP8): read once, a byte of scale a block
    copies      one for the products that sum its last axis; another for the gradient of a weight, which sums its rows,
                where that is computed and the device's products read float8 in one order alone, or blocks lie in one

Sources: NVIDIA Transformer Engine, Low precision training (FP8 Current Scaling, FP8 Delayed Scaling, MXFP8, Performance
considerations: "handling transposes"); that Hopper multiplies float8 summed along the last axis alone and Blackwell in
any order: its pull request 2514 (`cublaslt_gemm.cu`).  Torchao's float8, as torchtitan has it, scales by what is
largest now.  Left out: that norms may write float8 themselves.
"""

from __future__ import annotations

from math import ceil
from typing import Final, Literal

Scaling = Literal["delayed", "current", "blocks"]
"""How the scale of an operand is found."""

ANY_ORDER: Final = frozenset({"b200", "gb200"})
"""Device classes whose products read float8 operands along either axis."""

BLOCK: Final = 32
"""Elements under one scale of MXFP8, a byte."""


def cast_bytes(size: int, scaling: Scaling, device: str, learns: bool) -> int:
    """Bytes moved to cast an operand of `size` bytes on a device class; `learns`: a gradient of a weight reads it too.

    >>> [cast_bytes(64, s, "h100", True) for s in ("delayed", "current", "blocks")]
    [128, 192, 130]
    >>> cast_bytes(64, "current", "gb200", True), cast_bytes(64, "delayed", "h100", False)
    (160, 96)
    """
    copies = 2 if learns and (scaling == "blocks" or device not in ANY_ORDER) else 1
    elements = size // 2
    scales = ceil(elements / BLOCK) if scaling == "blocks" else 0
    return size * reads(scaling) + copies * (elements + scales)


def reads(scaling: Scaling) -> int:
    """How often the operand is read, a kernel each time.

    >>> reads("current"), reads("blocks")
    (2, 1)
    """
    return 2 if scaling == "current" else 1
