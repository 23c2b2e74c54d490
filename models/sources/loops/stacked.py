"""Turns a copy that puts slices of one tensor side by side into a copy of the tensor.

    y[i, ..] = copy( t[0, i - 0, ..], t[1, i - n, ..], t[2, i - 2 n, ..], .. )  with t of extent n in its second place
    y[a n + r] = t[a, r],   i = n a + r,  0 <= r < n

Every operand is read where its index lies inside of the tensor, so operand k gives the places k n to (k + 1) n.  Where
a copy gave each slice a dimension of extent 1 of its own (`unsqueeze`), n is 1 and that dimension stands for the slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...program.index import Access, Affine
from ...program.operators import Operator
from ...program.tensor import Tensor


def stack_slices(op: Operator, tensors: Mapping[str, Tensor], writer: Mapping[str, Operator]) -> Operator:
    """The copy with one operand in the place of all slices of a tensor, if they are all of them, in order; else the
    same.  `writer`: operators that slices may have been copied by.
    """
    if op.function != "copy" or len(op.inputs) < 2:
        return op
    groups: list[list[_Read]] = []
    for a in op.inputs:
        read = _seen(a, tensors, writer)
        if groups and groups[-1][0].tensor == read.tensor:
            groups[-1].append(read)
        else:
            groups.append([read])
    inputs: list[Access] = []
    for group in groups:
        one = _one(op, group, tensors[group[0].tensor]) if len(group) > 1 else None
        inputs += [one] if one is not None else [r.own for r in group]
    return replace(op, inputs=tuple(inputs))


@dataclass(frozen=True)
class _Read:
    """An operand: how it is read, which tensor behind a copy that is, at which index, and the index of the dimension
    of extent 1 that the copy gave it."""

    own: Access
    tensor: str
    index: tuple[Affine, ...]
    alone: Affine | None = None


def _seen(a: Access, tensors: Mapping[str, Tensor], writer: Mapping[str, Operator]) -> _Read:
    copy = writer.get(a.tensor)
    if copy is None or copy.function != "copy" or len(copy.inputs) != 1:
        return _Read(a, a.tensor, a.index)
    (source,) = copy.inputs
    shape, names = tensors[source.tensor].shape, [i.single for i in copy.output.index]
    alone = [d for d, n in enumerate(names) if n is None or n not in source.axes]
    read = [i.single for i in source.index if i.terms]
    whole = None not in read and len({*read}) == len(read)
    if len(alone) != 1 or not whole or tensors[a.tensor].shape[alone[0]] != 1 or any(i.whole for i in source.index):
        return _Read(a, a.tensor, a.index)
    if any(i.terms and copy.axis(str(i.single)).extent != n for i, n in zip(source.index, shape, strict=True)):
        return _Read(a, a.tensor, a.index)
    at = dict(zip(names, a.index, strict=True))
    index = tuple(at[i.single] if i.terms else i for i in source.index)
    return _Read(a, source.tensor, index, a.index[alone[0]])


def _one(op: Operator, reads: list[_Read], t: Tensor) -> Access | None:
    """One access that reads what all of them do."""
    for d in range(len(t.shape)):
        if [r.index[d] for r in reads] != [Affine(offset=k) for k in range(t.shape[d])]:
            continue
        rest = [[i for e, i in enumerate(r.index) if e != d] for r in reads]
        first = reads[0].alone
        in_order = first is not None and [r.alone for r in reads] == [first.shift(-k) for k in range(len(reads))]
        if first is not None and in_order and all(r == rest[0] for r in rest):
            return Access(t.name, (*reads[0].index[:d], first, *reads[0].index[d + 1 :]))
        for e in range(len(t.shape)):
            plain = all(r.alone is None for r in reads)
            if e != d and plain and (split := _split(op, [r.own for r in reads], e, t)) is not None:
                index = list(reads[0].index)
                index[d], index[e] = split
                return Access(t.name, tuple(index))
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
    low, high = part.unclipped_interval({x.name: (0, x.extent) for x in op.axes})
    if first.whole or low < 0 or high > n:
        return None
    return Affine(whole, first.offset // n), part
