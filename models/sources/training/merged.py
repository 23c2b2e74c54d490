"""Writes windows whose position is written in digits: the output of a pool or convolution that others read
in parts.

    index = 8 y_0 + 4 y_1 + 2 y_2 + t - 1,  y_1 and y_2 of extent 2       =       2 y + t - 1,  y = (y_0, y_1, y_2)

The adjoint of a window needs the position as one axis, so the gradient that comes in is viewed with these digits
merged; its other dimensions stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from ...program.index import Access, Affine, Axis, access
from ...program.operators import Operator
from .backward import Backward


def with_merged_positions(b: Backward, op: Operator, position: int) -> tuple[Operator, Access] | None:
    """The operator with one axis per position of input `position`, and the gradient of that output; None where no
    position is in digits, or another operand or dimension reads one of the digits.
    """
    a = op.inputs[position]
    groups = [g for i in a.index if (g := _digits(op, i)) is not None]
    merged = {n: g[0] for g in groups for n in g}
    uses = [n for x in op.inputs for i in x.index for n, _ in i.terms]
    if not groups or any(uses.count(n) != 1 for n in merged):
        return None
    axes = _in_place(op, groups)
    index = tuple(_as_one(op, i, merged) for i in a.index)
    inputs = tuple(replace(x, index=index) if j == position else x for j, x in enumerate(op.inputs))
    out = tuple(n for n in op.output.axes if merged.get(n, n) == n)
    seen = replace(op, axes=tuple(axes), inputs=inputs, output=access(op.output.tensor, *out))
    return seen, _viewed(b, op, seen, groups, out)


def _digits(op: Operator, index: Affine) -> tuple[str, ...] | None:
    """Output axes that are the digits of one position, the largest first."""
    terms = sorted(((c, n) for n, c in index.terms if op.axis(n).combine is None), reverse=True)
    if len(terms) < 2 or any(c != d * op.axis(n).extent for (c, _), (d, n) in pairwise(terms)):
        return None
    return tuple(n for _, n in terms)


def _in_place(op: Operator, groups: Sequence[Sequence[str]]) -> list[Axis]:
    """The operator's axes, every group as one axis under the name of its first."""
    whole = {g[0]: Axis(g[0], prod(op.axis(n).extent for n in g), None, False) for g in groups}
    gone = {n for g in groups for n in g[1:]}
    return [whole.get(x.name, x) for x in op.axes if x.name not in gone]


def _as_one(op: Operator, index: Affine, merged: dict[str, str]) -> Affine:
    digits = [(n, c) for n, c in index.terms if n in merged]
    if not digits:
        return index
    rest = tuple((n, c) for n, c in index.terms if n not in merged)
    return replace(index, terms=((merged[digits[0][0]], min(c for _, c in digits)), *rest))


def _viewed(b: Backward, op: Operator, seen: Operator, groups: Sequence[Sequence[str]], out: Sequence[str]) -> Access:
    """The incoming gradient with the digits of every group, brought together if they are not, as one dimension."""
    g, dtype = b.incoming(op), b.tensors[op.output.tensor].dtype
    by_name = {group[0]: group for group in groups}
    order = [n for x in out for n in by_name.get(x, (x,))]
    if tuple(order) != op.output.axes:
        axes = [replace(op.axis(n), combine=None) for n in order]
        g = access(b.emit(f"grad:{op.name}/digits", "copy", axes, [g], order, (), dtype), *order)
    digits = {n for group in groups for n in group}
    read = Access(g.tensor, tuple(Affine.everything() if n in digits else Affine.axis(n) for n in order))
    axes = [seen.axis(n) for n in out]
    return access(b.emit(f"grad:{op.name}/merged", "copy", axes, [read], out, (("reshape", 1),), dtype), *out)
