"""This module turns a copy that puts slices of one tensor side by side into a copy of the tensor.

    y[i, ..] = copy( t[0, i - 0, ..], t[1, i - n, ..], t[2, i - 2 n, ..], .. )  with t of extent n in its second place
    y[a n + r] = t[a, r],   i = n a + r,  0 <= r < n

Every operand is read where its index lies inside of the tensor, so operand k gives the places k n to (k + 1) n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...program.index import Access, Affine
from ...program.operators import Operator
from ...program.tensor import Tensor


def stacked(op: Operator, tensors: Mapping[str, Tensor]) -> Operator:
    """The copy with one operand in the place of all slices of a tensor, if they are all of them, in order; else the
    same.
    """
    if op.function != "copy" or len(op.inputs) < 2:
        return op
    groups: list[list[Access]] = []
    for a in op.inputs:
        if groups and groups[-1][0].tensor == a.tensor:
            groups[-1].append(a)
        else:
            groups.append([a])
    made = [_one(op, group, tensors[group[0].tensor]) if len(group) > 1 else None for group in groups]
    inputs = [a for one, group in zip(made, groups, strict=True) for a in ([one] if one is not None else group)]
    return replace(op, inputs=tuple(inputs))


def _one(op: Operator, reads: list[Access], t: Tensor) -> Access | None:
    """One access that reads what all of them do."""
    for d in range(len(t.shape)):
        if [a.index[d] for a in reads] != [Affine(offset=k) for k in range(t.shape[d])]:
            continue
        for e in range(len(t.shape)):
            if e != d and (split := _split(op, reads, e, t)) is not None:
                index = list(reads[0].index)
                index[d], index[e] = split
                return Access(reads[0].tensor, tuple(index))
    return None


def _split(op: Operator, reads: list[Access], e: int, t: Tensor) -> tuple[Affine, Affine] | None:
    """Index e of the first operand as (which slice, where in it), if the others are one extent further each."""
    n, first = t.shape[e], reads[0].index[e]
    for k, a in enumerate(reads):
        at = replace(first, offset=first.offset - k * n)
        rest = [j for j in range(len(a.index)) if j != e and a.index[j].terms]
        if a.index[e] != at or any(a.index[j] != reads[0].index[j] for j in rest):
            return None
    whole = tuple((name, c // n) for name, c in first.terms if c % n == 0)
    part = Affine(tuple((name, c) for name, c in first.terms if c % n), first.offset % n)
    low, high = part.unclipped({x.name: (0, x.extent) for x in op.axes})
    if first.whole or low < 0 or high > n:
        return None
    return Affine(whole, first.offset // n), part
