"""Keeps integers what PyTorch has: operators compute in the element type of their result, and wrap around
where it ends.

    int64 -> int8            a cast, but where the numbers are shown to fit (positions, masks, counts: `intervals`)
    int32 -> int64           nothing; an operator that reads it in int64 has a cast, but where its result fits int32
    float32 -> int8          a cast to int64 and a cast, as PyTorch has it; one where the numbers are shown to fit
    int64 compared to float  a cast, where the floating-point type does not hold them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ...program.graph import Role
from ...program.index import Access, Axis, access
from ...program.operators import FUNCTIONS, NodeKind, Operator, Value
from ..building.builder import Builder
from ..building.exact import INTEGERS
from ..building.intervals import Interval, inside, interval, result_interval

Constant = npt.NDArray[np.generic]

_MOVED = frozenset({"cast", "argsort", "top_k_mask", "embedding", "copy", "update"})
"""Functions that compute no number, or none of the numbers that they read."""
_TRUTH = {"mask_fill": (1,), "where": (0,)}
"""Operands that are truth values."""


def wider_operands(
    g: Builder,
    function: str,
    axes: Sequence[Axis],
    inputs: Sequence[Access],
    attributes: Mapping[str, Value],
    dtype: str,
    given: Mapping[str, Interval],
) -> tuple[int, ...]:
    """The operands of an integer operator that must be in the element type `dtype` of its result before it computes:
    none where the type that they have holds every number of it, or is shown to hold those that come out.
    """
    spec = FUNCTIONS[function]
    if dtype not in INTEGERS or spec.logical or (function in _MOVED and function != "update") or not inputs:
        return ()
    apart = _TRUTH.get(function, (len(inputs) - 1,) if spec.kind in (NodeKind.SCATTER, NodeKind.GROUPED) else ())
    data = [k for k in range(len(inputs)) if k not in apart]
    types = {k: g.tensors[inputs[k].tensor].dtype for k in data}
    if any(t not in INTEGERS and t != "bool" for t in types.values()):
        return ()
    own = types[0] if function == "update" else str(np.result_type(*types.values()))
    counts = function == "cumulative_sum" and own == "bool"  # truth values are counted in the type of the result
    if counts or (own in INTEGERS and inside(INTEGERS[dtype], own)):
        return ()
    numbers = [v for v in attributes.values() if isinstance(v, (int, float))]
    if own in INTEGERS and all(inside((v, v), own) for v in numbers):
        op = Operator("", function, tuple(axes), tuple(inputs), access("", *()), tuple(attributes.items()))
        if inside(result_interval(op, [interval(g.operators, g.tensors, a.tensor, given) for a in inputs]), own):
            return ()
    return tuple(k for k in data if types[k] != dtype)


def common_type(g: Builder, inputs: Sequence[Access]) -> str | None:
    """The element type of integers that are put side by side; None of others."""
    types = {g.tensors[a.tensor].dtype for a in inputs}
    if len(types) < 2 or any(t not in INTEGERS for t in types):
        return None
    return str(np.result_type(*types))


def contents_within(g: Builder, contents: Mapping[str, Constant], known: dict[str, Interval]) -> dict[str, Interval]:
    """`known`, with what constants of the program lie between."""
    for name, array in contents.items():
        if name not in known and array.dtype.kind in "iu" and array.size and g.tensors[name].role is Role.INPUT:
            known[name] = int(array.min()), int(array.max())
    return known
