"""Scalar functions of compiled loops, written so that LLVM computes several elements at a time.

    exp x    =  2^k (1 + r + r^2/2! + .. + r^13/13!),   k = round(x / ln 2),  r = x - k ln 2 in two parts, |r| <= 0.347
    tanh x   =  sign(x) (-u) / (2 + u),   u = exp(-2 |x|) - 1 without cancellation: 2^k (p - 1) + (2^k - 1)

Nothing branches: libm's functions do, and are called element by element.  Products and sums inside may contract to one
rounding.  Within 1.5 units of the last place for exp, 3 for tanh (`tests/test_compiled.py`).

    add_freely    x + y, in whatever order a loop adds up (lanes);   largest, smallest: NaN is handed on, as NumPy does
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_ROUNDING = 1.5 * 2.0**52
_ROUNDING_BITS = int(np.float64(_ROUNDING).view(np.int64))
_CONTRACT = njit(fastmath={"contract"}, error_model="numpy")


@intrinsic
def _double_of_bits(_: Any, bits: Any) -> tuple[Any, Callable[..., Any]]:
    """The float64 with these bits."""
    return types.float64(types.int64), lambda context, builder, sig, args: builder.bitcast(args[0], ir.DoubleType())


@intrinsic
def _bits_of_double(_: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
    """The bits of a float64."""
    return types.int64(types.float64), lambda context, builder, sig, args: builder.bitcast(args[0], ir.IntType(64))


@intrinsic
def add_freely(_: Any, x: Any, y: Any) -> tuple[Any, Callable[..., Any]]:
    """x + y, which a loop may reorder."""
    return x(x, x), lambda context, builder, sig, args: builder.fadd(*args, flags=("reassoc", "nsz"))


def _ordered(name: str) -> Any:
    @intrinsic
    def of_two(_: Any, x: Any, y: Any) -> tuple[Any, Callable[..., Any]]:
        def write(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = args[0].type
            module = builder.module
            function = module.declare_intrinsic(f"llvm.{name}", [kind], ir.FunctionType(kind, [kind, kind]))
            return builder.call(function, args)

        return x(x, x), write

    return of_two


largest = _ordered("maximum")
smallest = _ordered("minimum")


@_CONTRACT
def _series(r: float) -> float:
    """exp(r) - 1 for |r| <= 0.347: pairs of terms, of which a processor computes several at a time."""
    r2 = r * r
    r4 = r2 * r2
    low = (r * 1.6666666666666666e-01 + 0.5) + r2 * (r * 8.333333333333333e-03 + 4.1666666666666664e-02)
    middle = (r * 1.984126984126984e-04 + 1.388888888888889e-03) + r2 * (
        r * 2.7557319223985893e-06 + 2.48015873015873e-05
    )
    high = (r * 2.505210838544172e-08 + 2.755731922398589e-07) + r2 * (
        r * 1.6059043836821613e-10 + 2.08767569878681e-09
    )
    return r2 * (low + r4 * (middle + r4 * high)) + r


@_CONTRACT
def _parts(y: float) -> tuple[float, int]:
    """(r, k) of the module docstring.  A number this large has no digits behind the point: adding it rounds, and its
    last bits are k."""
    shifted = y * 1.4426950408889634 + _ROUNDING
    k = shifted - _ROUNDING
    return (y - k * 0.693145751953125) - k * 1.42860682030941723212e-6, _bits_of_double(shifted) - _ROUNDING_BITS


@_CONTRACT
def exp(x: float) -> float:
    """e to the x; 0 and infinity beyond the range, NaN of NaN."""
    r, k = _parts(largest(smallest(x, 710.0), -746.0))
    half = k >> 1
    found: float = (_series(r) + 1.0) * _double_of_bits((half + 1023) << 52) * _double_of_bits((k - half + 1023) << 52)
    return found


@_CONTRACT
def tanh(x: float) -> float:
    """The hyperbolic tangent."""
    r, k = _parts(largest(-2.0 * abs(x), -60.0))
    scale = _double_of_bits((k + 1023) << 52)
    u = scale * _series(r) + (scale - 1.0)
    return math.copysign(u / (2.0 + u), x)
