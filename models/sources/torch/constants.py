"""Constants of a program that an operator must read: as little as describes them.

    1  an arithmetic progression along one dimension (also: the same everywhere)    -> iota
    2  positions compared, i + d >= j or i + d < j (causal masks)                   -> two iota and a comparison
    3  a few elementwise operators over such (rotary tables)                        -> these operators
    4  anything else                                                                -> an input `constant.*` with stated
       contents

After recognition and digits, which look at contents, `stated.carried` puts what is small into the graph by value.

Dimensions along which all slices are equal are kept once and repeated by the reader; equal constants are made once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

import numpy as np

from ...program.graph import STATED, GraphError
from ...program.index import Access, Affine, Axis
from ...program.operators import Value
from ..building.flat import Unsupported, letters
from ..building.stated import asked_for
from .context import Constant, Context, Handler, Node, Ref, uniform_along

_DERIVED: Final = frozenset(
    {
        "mul",
        "add",
        "sub",
        "div",
        "neg",
        "exp",
        "cos",
        "sin",
        "pow",
        "reciprocal",
        "_to_copy",
        "unsqueeze",
        "view",
        "expand",
        "clone",
        "permute",
    }
)
_MOST_STEPS = 12


def emit(c: Context, value: Ref, handlers: Mapping[str, Handler]) -> str:
    """A tensor of the constant's full shape."""
    full = c.constants[value]
    short = full[tuple(slice(0, 1) if uniform_along(full, k) else slice(None) for k in range(full.ndim))]
    small = np.ascontiguousarray(short).reshape(short.shape)  # NumPy would make a scalar one-dimensional
    key = (small.shape, c.dtypes[value], sha256(small.tobytes()).digest())
    if key not in c.shared:
        c.places.setdefault(value.node, Node("constant", value.node, "", False, {}, (full.shape,), (c.dtypes[value],)))
        tensor = _progression(c, value, small) or _compared(c, value, small) or _derived(c, value, handlers)
        if tensor is not None and c.g.tensors[tensor].shape == full.shape != small.shape:
            c.contents[tensor] = np.broadcast_to(small, full.shape)
            return tensor
        c.shared[key] = tensor or _stated(c, value, small)
        c.contents[c.shared[key]] = small
    tensor = c.shared[key]
    return tensor if small.shape == full.shape else _repeated(c, value, tensor, full.shape)


def _name(c: Context, value: Ref, part: str) -> str:
    name = c.unique(f"constant.{value.node.partition('/')[0]}{part}")
    c.where[name] = value.node
    return name


def _stated(c: Context, value: Ref, small: Constant) -> str:
    name = c.unique(f"{STATED}{value.node.partition('/')[0]}")
    c.stated[name] = small
    return asked_for(c.g, name, small, c.dtypes[value])


def _repeated(c: Context, value: Ref, tensor: str, shape: Sequence[int]) -> str:
    names, small = letters(len(shape)), c.g.tensors[tensor].shape
    index = tuple(Affine() if n == 1 else Affine.axis(a) for a, n in zip(names, small, strict=True))
    axes = [Axis(a, n) for a, n in zip(names, shape, strict=True)]
    return c.g.operator(
        _name(c, value, ".expand"), "copy", axes, [Access(tensor, index)], names, {}, c.g.tensors[tensor].dtype
    )


def progression(run: Constant) -> tuple[float, float] | None:
    """(start, step) of an arithmetic progression, exact for integers, to rounding for floats; None if it is none.

    >>> progression(np.array([3, 5, 7]))
    (3, 2)
    """
    if run.dtype.kind not in "iuf" or not bool(np.all(np.isfinite(run))):
        return None
    whole = run.dtype.kind in "iu"
    start: float = int(run[0]) if whole else float(run[0])
    step: float = (
        0
        if len(run) == 1
        else (int(run[1]) - int(run[0]) if whole else (float(run[-1]) - float(run[0])) / (len(run) - 1))
    )
    if whole and abs(step) > np.iinfo(np.int64).max:
        return None
    if len(run) == 2 and not (float(start).is_integer() and float(step).is_integer()):
        return None  # any two numbers are one; 1, 0.1 is rather the start of a formula
    wanted = start + step * np.arange(len(run))
    slack = 0.0 if whole else float(np.max(np.abs(run))) * 2.0 ** (-50 if run.dtype.itemsize == 8 else -22)
    return (start, step) if bool(np.all(np.abs(np.subtract(wanted, run)) <= slack)) else None


def _progression(c: Context, value: Ref, small: Constant) -> str | None:
    long = [k for k, n in enumerate(small.shape) if n > 1]
    if len(long) > 1 or c.dtypes[value] == "bool":
        return None
    found = progression(small.reshape(-1))
    if found is None:
        return None
    shape = small.shape or (1,)
    names = letters(len(shape))
    axes = [Axis(a, n) for a, n in zip(names, shape, strict=True)]
    attributes: dict[str, Value] = {"along": names[long[0] if long else 0], "start": found[0], "step": found[1]}
    return c.g.operator(_name(c, value, ""), "iota", axes, [], names, attributes, c.dtypes[value])


def _compared(c: Context, value: Ref, small: Constant) -> str | None:
    long = [k for k, n in enumerate(small.shape) if n > 1]
    if len(long) != 2 or c.dtypes[value] != "bool":
        return None
    rows, columns = (small.shape[k] for k in long)
    plane = small.reshape(rows, columns).astype(bool)
    for function, held in (("greater_equal", plane), ("less", ~plane)):
        shift = int(np.count_nonzero(held[0])) - 1
        if bool(np.all(held == (np.arange(rows)[:, None] + shift >= np.arange(columns)))):
            break
    else:
        return None
    names = letters(len(small.shape))
    a, b = (names[k] for k in long)
    query = c.g.operator(
        _name(c, value, ".row"), "iota", [Axis(a, rows)], [], [a], {"along": a, "start": shift, "step": 1}, "int32"
    )
    place = c.g.operator(
        _name(c, value, ".column"), "iota", [Axis(b, columns)], [], [b], {"along": b, "start": 0, "step": 1}, "int32"
    )
    axes = [Axis(n, small.shape[k]) for k, n in enumerate(names)]
    reads = [Access(query, (Affine.axis(a),)), Access(place, (Affine.axis(b),))]
    return c.g.operator(_name(c, value, ""), function, axes, reads, names, {}, "bool")


def _steps(c: Context, value: Ref) -> int:
    """Operators that make the constant from progressions; more than allowed if it cannot be made so."""
    found = c.constants.get(value)
    if found is None:
        return _MOST_STEPS + 1
    short = found[tuple(slice(0, 1) if uniform_along(found, k) else slice(None) for k in range(found.ndim))]
    if (
        sum(n > 1 for n in short.shape) <= 1
        and c.dtypes[value] != "bool"
        and progression(short.reshape(-1)) is not None
    ):
        return 0
    node = c.makers.get(value)
    if node is None or node.kind.removeprefix("aten.").partition(".")[0] not in _DERIVED:
        return _MOST_STEPS + 1
    return 1 + sum(_steps(c, v) for v in node.arguments.values() if isinstance(v, Ref))


def _derived(c: Context, value: Ref, handlers: Mapping[str, Handler]) -> str | None:
    if _steps(c, value) > _MOST_STEPS:
        return None
    node = c.makers[value]
    c.places[node.name] = node
    held = c.constants.pop(value)
    try:
        handlers[node.kind.removeprefix("aten.").partition(".")[0]](c, node)
    except (Unsupported, GraphError):
        c.values.pop(value, None)
    finally:
        c.constants[value] = held
    return c.values.get(value)
