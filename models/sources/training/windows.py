"""Windows: the dimensions of an input that are read at  stride * y + dilation * t + offset,  y an
output axis, t a tap.

The adjoint of reading a window at position p collects every (y, t) with  stride * y + dilation * t + offset = p.

    stride 1      y = p - dilation * t - offset.  With the taps counted backwards, t = T - 1 - t', this is
                  p + dilation * t' - offset - dilation * (T - 1):  a window again, coefficients positive
                  (`reversed_windows`)
    stride > 1    only every stride-th p has a given tap: no map with coefficients >= 1.  Functions of their own read
                  the incoming gradient whole along these dimensions, so they are split along the others only
                  (`whole_windows`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...program.index import Access, Affine, Axis, Combine, access
from ...program.operators import Operator, Value
from .backward import Backward


@dataclass(frozen=True)
class Window:
    """Dimension `dimension` of an input, of extent `extent`; `tap` is None where the index has one term only."""

    dimension: int
    extent: int
    axis: str
    stride: int
    tap: str | None
    taps: int
    dilation: int
    offset: int

    @property
    def per_position(self) -> int:
        """Most taps that meet at one position."""
        return -(-self.taps // self.stride)


def windows(op: Operator, a: Access, shape: Sequence[int]) -> list[Window] | None:
    """The windowed dimensions of an access, in order; None if another dimension is not a single axis, or axes are
    shared.
    """
    out = op.output.axes
    found: list[Window] = []
    names: list[str] = []
    for k, (index, extent) in enumerate(zip(a.index, shape, strict=True)):
        names += [n for n, _ in index.terms]
        if index.whole or not index.terms:
            return None
        if index.single is not None and op.axis(index.single).extent == extent:
            continue
        position = [(n, c) for n, c in index.terms if n in out]
        taps = [(n, c) for n, c in index.terms if n not in out]
        if len(position) != 1 or len(taps) > 1 or any(op.axis(n).splittable for n, _ in taps):
            return None
        axis, stride = position[0]
        tap, dilation = taps[0] if taps else (None, 1)
        found.append(
            Window(k, extent, axis, stride, tap, 1 if tap is None else op.axis(tap).extent, dilation, index.offset)
        )
    return found if len(set(names)) == len(names) else None


def reversed_windows(found: Sequence[Window]) -> dict[str, Affine]:
    """Output axis y of every window -> its index at position p (an axis that keeps the name of y), taps counted
    backwards.
    """
    out = {}
    for w in found:
        index = Affine.axis(w.axis)
        if w.tap is not None:
            index = index.plus(w.tap, w.dilation)
        out[w.axis] = index.shift(-w.offset - w.dilation * (w.taps - 1))
    return out


def whole_windows(found: Sequence[Window], gradient: Access) -> tuple[tuple[str, Value], ...]:
    """Attributes of the functions that read a gradient whole: per window the dimension of the result (`at`), of the
    gradient (`from`), and taps, stride, dilation, offset."""
    place = {i.single: k for k, i in enumerate(gradient.index)}
    return (
        ("at", tuple(w.dimension for w in found)),
        ("dilation", tuple(w.dilation for w in found)),
        ("from", tuple(place[w.axis] for w in found)),
        ("offset", tuple(w.offset for w in found)),
        ("stride", tuple(w.stride for w in found)),
        ("taps", tuple(w.taps for w in found)),
    )


def open_windows(a: Access, names: set[str]) -> Access:
    """The access with every dimension that uses one of the axes `names` read whole."""
    return Access(a.tensor, tuple(Affine.everything() if any(n in names for n, _ in i.terms) else i for i in a.index))


def without_single(op: Operator, a: Access) -> set[str]:
    """Axes of one element of the output that the input does not have."""
    return {x.name for x in op.axes if x.extent == 1 and x.combine is None} - {n for i in a.index for n, _ in i.terms}


def with_single_windows(b: Backward, op: Operator, position: int, g: Access) -> tuple[Operator, Access] | None:
    """The operator with an output axis of one element for every dimension that no output axis reads (a whole dimension
    of taps, a constant position), so that it is a window of one position, and the gradient `g` with these axes; None
    where every dimension has one.
    """
    a, out = op.inputs[position], op.output.axes
    fresh = {k: f"window {k}" for k, i in enumerate(a.index) if not i.whole and not {n for n, _ in i.terms} & set(out)}
    if not fresh:
        return None
    axes = (*op.axes, *(Axis(n, 1, None, False) for n in fresh.values()))
    index = tuple(i.plus(fresh[k], 1) if k in fresh else i for k, i in enumerate(a.index))
    inputs = tuple(replace(x, index=index) if j == position else x for j, x in enumerate(op.inputs))
    names = (*out, *fresh.values())
    kept = [replace(x, combine=None) for x in axes if x.name in names]
    dtype = b.tensors[op.output.tensor].dtype
    made = b.emit(f"grad:{op.name}/single", "copy", kept, [g], names, (), dtype)
    seen = replace(op, axes=axes, inputs=inputs, output=access(op.output.tensor, *names))
    return seen, access(made, *names)


def result_axes(op: Operator, a: Access, found: Sequence[Window]) -> list[Axis]:
    """One parallel axis per dimension of the input; windowed ones carry the name of their output axis and are not
    split.
    """
    window = {w.dimension: w for w in found}
    out = []
    for k, index in enumerate(a.index):
        w = window.get(k)
        if w is not None:
            out.append(Axis(w.axis, w.extent, None, False))
        else:
            name = index.terms[0][0]
            out.append(Axis(name, op.axis(name).extent, None, op.axis(name).splittable))
    return out


def tap_axes(found: Sequence[Window]) -> list[Axis]:
    """Reduced axes that count the taps meeting at one position, so that the work is counted right."""
    return [Axis(w.tap, w.per_position, Combine.SUM, False) for w in found if w.tap is not None]
