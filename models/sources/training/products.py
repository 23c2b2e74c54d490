"""The gradient of a product with respect to one of its factors, however the factor is read.

    y[o] = sum_r  A_1[i_1(o, r)] .. A_n[i_n(o, r)]      =>
    grad A_j [p] = sum of  g[o] * (the other factors)  over all points (o, r) with  i_j(o, r) = p

Cases, simplest first:

    axes                     a product that keeps the axes of A_j
    shifted axes             the gradient of the slice, then its place in zeros
    constant index c         an axis of extent 1 that nothing else is read along, shifted by c
    windows of stride 1      a product with the taps counted backwards (`windows.reversed_windows`)
    windows of stride > 1    `strided_gradient`, of two factors
    anything else            the product over every axis of A_j's access, then the adjoint of reading (`adjoint`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...program.graph import GraphError
from ...program.index import Access, Affine, Axis, Combine, access
from ...program.operators import Operator
from .adjoint import adjoint
from .backward import Backward
from .contributions import Contribution, Pending
from .merged import with_merged_positions
from .windows import Window, open_windows, result_axes, reversed_windows, tap_axes, whole_windows, windows


@dataclass(frozen=True)
class _Part:
    """The part of a factor, [start, start + extent) in every dimension, and how it is read."""

    read: Access
    start: tuple[int, ...]
    shape: tuple[int, ...]


def parallel(op: Operator, names: Sequence[str]) -> list[Axis]:
    """Axes of the operator, none of them reduced."""
    return [replace(op.axis(n), combine=None) for n in names]


def summed_axes(op: Operator, without: Sequence[str]) -> list[Axis]:
    """The other axes of the operator, all of them summed."""
    return [replace(a, combine=Combine.SUM) for a in op.axes if a.name not in without]


def product_rule(b: Backward, op: Operator) -> None:
    """Contributions to every factor.  Raises `GraphError` for one that is read whole, which no product does."""
    for j, a in enumerate(op.inputs):
        if b.wants(op, j):
            if any(i.whole for i in a.index):
                raise GraphError(f"operator {op.name!r}", f"no gradient of a product that reads {a.tensor!r} whole")
            others = [b.forward(x) for i, x in enumerate(op.inputs) if i != j]
            b.give(op, j, _factor(b, op, j, others))


def _factor(b: Backward, op: Operator, j: int, others: list[Access]) -> Contribution:
    g, shape = b.incoming(op), b.tensors[op.inputs[j].tensor].shape
    more, read = _with_axes(op, op.inputs[j])
    slice_ = _part(more, op.inputs[j], read, shape, True)
    names = tuple(i.single for i in slice_.read.index if i.single is not None)
    if len(set(names)) == len(shape):
        axes = (*parallel(more, names), *summed_axes(more, names))
        return _placed(b, op, j, Pending(op.name, "product", axes, (g, *others), names), slice_)
    if (merged := with_merged_positions(b, op, j)) is not None:
        op, g = merged
        more, read = _with_axes(op, op.inputs[j])
        slice_ = _part(more, op.inputs[j], read, shape, True)
    for part in (_part(more, op.inputs[j], read, shape, False), slice_):
        found = windows(more, part.read, part.shape)
        if not found or _shared(op, j, found):
            continue
        if all(w.stride == 1 for w in found):
            return _placed(b, op, j, _reversed(more, part.read, found, g, others), part)
        if len(others) == 1 and _plain(others[0]):
            return _placed(b, op, j, _strided(more, part.read, found, g, others[0]), part)
    return _scattered(b, op, j, g, others)


def _with_axes(op: Operator, a: Access) -> tuple[Operator, Access]:
    """The operator and the access with an axis of extent 1, which indexes nothing else, added to every constant.

    The operator's output has it too, so that it counts as parallel; the gradient that comes in is not read along it.
    """
    taken, made, index = {x.name for x in op.axes}, [], []
    for k, i in enumerate(a.index):
        name = f"at{k}"
        while name in taken:
            name += "'"
        if not i.terms:
            made.append(Axis(name, 1, None, False))
        index.append(i if i.terms else i.plus(name))
    if not made:
        return op, a
    output = replace(op.output, index=(*op.output.index, *(Affine.axis(x.name) for x in made)))
    return replace(op, axes=(*op.axes, *made), output=output), replace(a, index=tuple(index))


def _part(op: Operator, a: Access, read: Access, shape: Sequence[int], slices: bool) -> _Part:
    """What is read at constants, and, if `slices`, along shifted axes, becomes a tensor of its own."""
    index, start, extents = [], [], []
    for old, new, extent in zip(a.index, read.index, shape, strict=True):
        one = len(new.terms) == 1 and new.terms[0][1] == 1
        own = not old.terms or (slices and one)
        index.append(replace(new, offset=0) if own else new)
        start.append(new.offset if own else 0)
        extents.append(op.axis(new.terms[0][0]).extent if own else extent)
    return _Part(replace(read, index=tuple(index)), tuple(start), tuple(extents))


def _placed(b: Backward, op: Operator, j: int, found: Pending, part: _Part) -> Pending:
    """The gradient of the whole factor: `found` if that is the part, else `found` in its place, zero elsewhere."""
    like = b.tensors[op.inputs[j].tensor]
    if part.shape == like.shape and not any(part.start):
        return found
    name = b.emit(
        f"grad:{op.name}/input{j}", found.function, found.axes, found.inputs, found.out, found.attributes, like.dtype
    )
    own = {x.name: x.splittable for x in found.axes}
    constant = [not i.terms for i in op.inputs[j].index]
    axes = tuple(
        Axis(n, extent, None, own[n] or fixed) for n, extent, fixed in zip(found.out, like.shape, constant, strict=True)
    )
    read = access(name, *(Affine.axis(n).shift(-start) for n, start in zip(found.out, part.start, strict=True)))
    return Pending(found.label, "copy", axes, (read,), found.out)


def _scattered(b: Backward, op: Operator, j: int, g: Access, others: list[Access]) -> Contribution:
    """The product over every axis that the factor is read along, then the adjoint of reading it."""
    a = op.inputs[j]
    like, kept = b.tensors[a.tensor], a.axes
    axes = (*parallel(op, kept), *summed_axes(op, kept))
    part = b.emit(f"grad:{op.name}/read{j}", "product", axes, (g, *others), kept, (), like.dtype)
    reading = replace(op, axes=tuple(parallel(op, kept)), output=access(part, *kept))
    return adjoint(reading, j, part, like.shape)


def _shared(op: Operator, position: int, found: list[Window]) -> bool:
    """Does another factor use a window's axes in any way but a single tap?"""
    axes, taps = {w.axis for w in found}, {w.tap for w in found}
    return any(
        n in axes or (n in taps and i.single is None)
        for k, x in enumerate(op.inputs)
        if k != position
        for i in x.index
        for n, _ in i.terms
    )


def _plain(a: Access) -> bool:
    """Is a factor read at different axes and constants only?"""
    singles = [i.single for i in a.index if i.terms]
    return None not in singles and len(set(singles)) == len(singles)


def _reversed(op: Operator, a: Access, found: list[Window], g: Access, others: list[Access]) -> Pending:
    moved = reversed_windows(found)
    extent = {w.axis: w.extent for w in found}
    window = {w.dimension: w.axis for w in found}
    names = tuple(window[k] if k in window else i.terms[0][0] for k, i in enumerate(a.index))
    axes = [replace(x, extent=extent.get(x.name, x.extent)) for x in (*parallel(op, names), *summed_axes(op, names))]
    read = Access(g.tensor, tuple(moved.get(str(i.single), i) for i in g.index))
    taps = tuple(sorted(w.tap for w in found if w.tap is not None))
    return Pending(op.name, "product", tuple(axes), (read, *others), names, (("reversed", taps),) if taps else ())


def _strided(op: Operator, a: Access, found: list[Window], g: Access, other: Access) -> Pending:
    axes = result_axes(op, a, found)
    names = tuple(x.name for x in axes)
    taps = {w.tap for w in found if w.tap is not None}
    reduced = [x for x in summed_axes(op, names) if x.name not in taps]
    place = {i.single: k for k, i in enumerate(other.index)}
    through = ("through", tuple(-1 if w.tap is None else place.get(w.tap, -1) for w in found))
    return Pending(
        op.name,
        "strided_gradient",
        (*axes, *reduced, *tap_axes(found)),
        (open_windows(g, {w.axis for w in found}), open_windows(other, taps)),
        names,
        (*whole_windows(found, g), through),
    )
