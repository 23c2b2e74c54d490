"""Recognises the pattern of attention: a product of values with a softmax of scores becomes one operator.

    product( [cast] softmax over t of ( [+ mask | masked] [cap tanh(. / cap)] [scale] product(q, k) ), v )

Walked from the product with v down to that of q and k, through casts, copies that only repeat or reorder, scales, one
soft cap, and masks above them.  What lies between must serve nothing else, since it will not exist any more.  A mask
whose contents are known, or that compares positions, and that is a band becomes attributes; one other mask is an
operand.  A mask of finite numbers that fills (-10^30) is taken for -inf where every query sees a key.

Keys shared by a group of heads are read without the group's axis, however the program repeated them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import ge, gt, le, lt
from typing import Final

import numpy as np
import numpy.typing as npt

from ...program.index import Access, Affine, Axis, Combine
from ...program.operators import Operator, Value
from ..building.attention import attributes
from ..building.band import HIDDEN, Bounds, bounds_of, seen_by
from .masks import composition
from .view import Read, View, axes_of, number

MOST_ELEMENTS: Final = 1 << 27
"""Elements of a mask that is looked at."""


@dataclass(frozen=True)
class _Scores:
    """What was found between the softmax and the product of q and k; `inside`: operators that disappear."""

    product: Operator
    reads: tuple[Read, ...]
    scale: float = 1.0
    cap: float | None = None
    added: tuple[Read, ...] = ()
    filled: tuple[tuple[Read, float], ...] = ()
    inside: tuple[str, ...] = ()


def attend(view: View, op: Operator) -> Operator | None:
    """The attention operator that writes what the product `op` writes, if it is the end of one."""
    if op.function != "product" or len(op.inputs) != 2 or op.attributes or not op.reduction_axes:
        return None
    reads: list[Read] = [(a.tensor, a.index) for a in op.inputs]  # in all axes of `op`, the reduced ones as they are
    for p, v in (reads, reads[::-1]):
        found = _softmax_below(view, op, p)
        if found is not None:
            made = _made(view, op, found, v)
            if made is not None:
                return made
    return None


@dataclass(frozen=True)
class _Softmax:
    """A softmax that the product reads at `index`, its argument, and the operators passed on the way."""

    soft: Operator
    index: tuple[Affine, ...]
    argument: Read
    inside: tuple[str, ...]


def _softmax_below(view: View, op: Operator, read: Read) -> _Softmax | None:
    """The softmax below casts; one that gives 0 to rows without keys is what attention gives them."""
    inside: list[str] = []
    while (writer := view.writer.get(read[0])) is not None and not _shared(view, read[0], op.name, inside):
        inside.append(writer.name)
        if writer.function == "mask_fill" and (safe := composition(view, writer)) is not None:
            inside += sorted(safe.inside - {writer.name})
            writer = safe.soft
        (argument, *more) = view.reads(writer, read[1]) or [read]
        if writer.function == "softmax":
            return _Softmax(writer, read[1], argument, tuple(inside))
        if more or writer.function not in ("cast", "identity"):
            return None
        read = argument
    return None


def _shared(view: View, tensor: str, top: str, inside: Sequence[str]) -> bool:
    """Whether anybody else wants the tensor."""
    return tensor in view.graph.outputs or not set(view.readers[tensor]) <= {top, *inside}


def _made(view: View, op: Operator, below: _Softmax, v: Read) -> Operator | None:
    soft = below.soft
    own = {i.single: o.single for i, o in zip(soft.output.index, below.index, strict=True)}
    key = tuple(own.get(a) or "" for a in soft.over)
    if (
        "" in key
        or set(key) != {a.name for a in op.reduction_axes}
        or None in own.values()
        or len({*own.values()}) < len(own)
    ):
        return None
    rows = tuple(str(a) for a in own.values() if a not in key)
    out = op.output.axes
    content = tuple(a for a in out if a not in rows)
    seen = {*axes_of(v)}
    if not set(rows) <= set(out) or not seen <= {*rows, *key, *content} or not {*key, *content} <= seen:
        return None
    for found in _walk(view, below.argument, _Scores(op, (), inside=below.inside), op.name):
        for q, k in (found.reads, found.reads[::-1]):
            feature = {f"'{a.name}" for a in found.product.reduction_axes}
            fits = set(axes_of(q)) <= {*rows, *feature} and set(axes_of(k)) <= {*rows, *key, *feature}
            if not fits or not feature <= set(axes_of(q)) & set(axes_of(k)) or not {*key} <= set(axes_of(k)):
                continue
            masks = _masks(view, op, found, rows, key)
            if masks is not None:
                (q, more), (k, most) = _unscaled(view, q, found), _unscaled(view, k, found)
                found = replace(found, scale=found.scale * more * most)
                return _operator(op, found, (q, k, v), masks, rows, key, content)
    return None


def _unscaled(view: View, read: Read, found: _Scores) -> tuple[Read, float]:
    """What is read below scales that serve nothing else, and their factor."""
    op = view.writer.get(read[0])
    if op is None or op.function != "scale" or _shared(view, read[0], found.product.name, ()):
        return read, 1.0
    below, factor = _unscaled(view, view.reads(op, read[1])[0], replace(found, product=op))
    return below, factor * number(op, "scale", 1.0)


def _walk(view: View, read: Read, found: _Scores, top: str) -> Iterator[_Scores]:
    """Ways down to a product; `found` is what lies above."""
    op = view.writer.get(read[0])
    if op is None or _shared(view, read[0], top, found.inside) or len(found.inside) > 16:
        return
    below = replace(found, inside=(*found.inside, op.name))
    reads = view.reads(op, read[1])
    plain = found.scale == 1.0 and found.cap is None
    match op.function:
        case "product" if len(op.inputs) == 2 and op.reduction_axes and not op.attributes:
            yield replace(below, product=op, reads=tuple(reads))
        case "cast" | "identity":
            yield from _walk(view, reads[0], below, top)
        case "copy" if len(reads) == 1 and all(i.single is not None for i in op.inputs[0].index):
            if tuple(op.axis(str(i.single)).extent for i in op.inputs[0].index) == view.graph.tensor(reads[0][0]).shape:
                yield from _walk(view, reads[0], below, top)
        case "scale":
            yield from _walk(view, reads[0], replace(below, scale=found.scale * number(op, "scale", 1.0)), top)
        case "tanh" if found.cap is None:
            yield from _walk(view, reads[0], replace(below, cap=found.scale, scale=1.0), top)
        case "add" if plain:
            for mine, mask in (reads, reads[::-1]):
                yield from _walk(view, mine, replace(below, added=(*found.added, mask)), top)
        case "mask_fill" if plain and number(op, "value", 0.0) <= HIDDEN:
            filled = (*found.filled, (reads[1], number(op, "value", 0.0)))
            yield from _walk(view, reads[0], replace(below, filled=filled), top)


def _masks(
    view: View, op: Operator, found: _Scores, rows: Sequence[str], key: Sequence[str]
) -> tuple[Bounds, str, list[Read]] | None:
    """The band, its query axis, and what is left as an operand; None if that cannot be said by one operator."""
    bounds, query, operands = Bounds(None, None), "", list[Read]()
    for read, value in (*((r, None) for r in found.added), *found.filled):
        if not set(axes_of(read)) <= {*rows, *key}:
            return None
        seen = band_of(view, read, rows, key, value)
        if seen is None:
            if value is not None and value != -np.inf:
                return None  # a query without keys would give the mean of all values
            operands.append(read)
            continue
        limit, axis = seen
        if query and axis and query != axis:
            return None
        query = axis or query
        both = least(bounds, limit)
        if both is None:
            return None
        bounds = both
    return (bounds, query, operands) if len(operands) < 2 else None


def least(a: Bounds, b: Bounds) -> Bounds | None:
    """What both bands leave; None where that is nothing, or no band.

    >>> least(Bounds(None, 0), Bounds(3, 3))
    Bounds(behind=3, ahead=0, block=None)
    """
    if a.block is not None and b.block is not None and a.block != b.block:
        return None

    def smaller(x: int | None, y: int | None) -> int | None:
        return y if x is None else x if y is None else min(x, y)

    behind, ahead = smaller(a.behind, b.behind), smaller(a.ahead, b.ahead)
    if behind is not None and ahead is not None and behind + ahead < 0:
        return None
    return Bounds(behind, ahead, b.block if a.block is None else a.block)


def band_of(
    view: View, read: Read, rows: Sequence[str], key: Sequence[str], value: float | None
) -> tuple[Bounds, str] | None:
    """The band and its query axis of a mask of known contents, no bounds and no axis if it hides nothing; None if it is
    no band.  Layers share masks, so each is looked at once."""
    asked = ("band", read, tuple(rows), tuple(key), value)
    if asked not in view.found:
        view.found[asked] = _band(view, read, rows, key, value)
    found = view.found[asked]
    return found if isinstance(found, tuple) else None


def _band(
    view: View, read: Read, rows: Sequence[str], key: Sequence[str], value: float | None
) -> tuple[Bounds, str] | None:
    known = contents(view, read)
    if known is None:
        return _band_of_positions(view, read, rows, key)
    axes, array = known
    if value is not None:
        array = array != 0
    seen = seen_by(array)
    if seen is None:
        return None
    if bool(np.all(seen)):
        return Bounds(None, None), ""
    if len(axes) != 2 or len(key) != 1 or key[0] not in axes:
        return None
    plane = seen if axes[1] == key[0] else seen.T
    (query,) = (a for a in axes if a != key[0])
    if (
        query not in rows
        or (array.dtype.kind == "f" or value not in (None, -np.inf))
        and not bool(np.all(np.any(plane, axis=1)))
    ):
        return None
    found = bounds_of(plane)
    return None if found is None else (found, query)


def _band_of_positions(view: View, read: Read, rows: Sequence[str], key: Sequence[str]) -> tuple[Bounds, str] | None:
    """The band of positions that are compared, x + i >= y + j, too many of them to be looked at; None for any other
    mask, or one that leaves a query without keys.
    """
    op = view.writer.get(read[0])
    if op is None or op.function not in _COMPARED or len(op.inputs) != 2 or len(key) != 1:
        return None
    lines = [contents(view, r) for r in view.reads(op, read[1])]
    flat = [(b[0][0], b[1]) for b in lines if b is not None and len(b[0]) == 1]
    if len(flat) != 2 or any(not np.array_equal(np.diff(x), np.ones(x.size - 1)) for _, x in flat):
        return None
    (a, x), (b, y) = flat
    if op.function in ("less_equal", "less"):
        (a, x), (b, y) = (b, y), (a, x)
    reach = int(x[0] - y[0]) - (op.function in ("greater", "less"))
    if b == key[0] and a in rows and reach >= 0:
        return Bounds(None, reach), a
    if a == key[0] and b in rows and reach >= y.size - x.size:
        return Bounds(reach, None), b
    return None


_COMPARED: Final = {"greater_equal": ge, "greater": gt, "less_equal": le, "less": lt}


def contents(view: View, read: Read) -> tuple[tuple[str, ...], npt.NDArray[np.generic]] | None:
    """(axes, array) of what is read, along the axes it is read at, where contents are known: stated, or positions
    compared."""
    tensor, index = read
    op, held = view.writer.get(tensor), view.stated.get(tensor)
    if held is not None and held.size == view.graph.tensor(tensor).elements:
        array = np.asarray(held).reshape(view.graph.tensor(tensor).shape)
        return _along(index, array)
    if op is None:
        return None
    if op.function == "constant" and isinstance(values := op.attribute("values", ()), tuple):
        numbers = [float.fromhex(x) if isinstance(x, str) else x for x in values]
        array = np.array(numbers).reshape(view.graph.tensor(tensor).shape)
        return _along(index, array != 0 if view.graph.tensor(tensor).dtype == "bool" else array)
    reads = view.reads(op, index)
    if op.function == "iota":
        along = str(op.attribute("along", ""))
        at = {i.single: o for i, o in zip(op.output.index, index, strict=True)}[along].single
        line = number(op, "start", 0) + number(op, "step", 1) * np.arange(op.axis(along).extent)
        return None if at is None else ((at,), line)
    if op.function in ("cast", "identity") and view.graph.tensor(tensor).dtype != "bool":
        return contents(view, reads[0])
    if op.function in _COMPARED and len(reads) == 2:
        both = [contents(view, r) for r in reads]
        if any(b is None or len(b[0]) != 1 for b in both):
            return None
        (((a,), x), ((b,), y)) = ((b[0], b[1]) for b in both if b is not None)
        if a == b or x.size * y.size > MOST_ELEMENTS:
            return None
        return (a, b), np.asarray(_COMPARED[op.function](x[:, None], y[None, :]))
    return None


def _along(
    index: Sequence[Affine], array: npt.NDArray[np.generic]
) -> tuple[tuple[str, ...], npt.NDArray[np.generic]] | None:
    """An array read at single axes and constants; axes of extent 1 are left out."""
    names: list[str] = []
    for k, i in enumerate(index):
        if i.single is not None:
            names.append(i.single)
        elif i.terms or i.whole or not 0 <= i.offset < array.shape[k]:
            return None
    taken = array[tuple(slice(None) if i.single is not None else i.offset for i in index)]
    if len(set(names)) < len(names):
        return None
    keep = [k for k, n in enumerate(taken.shape) if n > 1]
    return tuple(names[k] for k in keep), taken.reshape([taken.shape[k] for k in keep])


def _operator(
    op: Operator,
    found: _Scores,
    reads: tuple[Read, Read, Read],
    masks: tuple[Bounds, str, list[Read]],
    rows: Sequence[str],
    key: Sequence[str],
    content: Sequence[str],
) -> Operator:
    bounds, query, operands = masks
    taken = {a.name for a in op.axes}
    renamed: dict[str, str] = {}
    for a in found.product.reduction_axes:
        name = next(n for n in (a.name, "d", *(f"d{k}" for k in range(99))) if n not in taken)
        taken.add(name)
        renamed[f"'{a.name}"] = name
    features = [Axis(renamed[f"'{a.name}"], a.extent, Combine.SUM, False) for a in found.product.reduction_axes]
    axes = [replace(a, splittable=a.splittable and a.name not in content) for a in op.axes]
    alone = [a for a in rows if a not in axes_of(reads[1]) and a not in axes_of(reads[2])]
    roles: Mapping[str, Value] = {
        "query": (query,) if query else tuple(alone) if len(alone) == 1 else (),
        "key": tuple(key),
        "feature": tuple(a.name for a in features),
        "value_feature": tuple(content),
    }
    scale = found.scale if found.cap is None else found.scale * found.cap
    given = {**roles, **attributes(scale, found.cap, bounds.behind, bounds.ahead, bounds.block)}
    inputs = tuple(Access(t, tuple(_renamed(i, renamed) for i in index)) for t, index in (*reads, *operands))
    return Operator(op.name, "attention", (*axes, *features), inputs, op.output, tuple(sorted(given.items())))


def _renamed(index: Affine, names: Mapping[str, str]) -> Affine:
    return Affine(tuple((names.get(a, a), c) for a, c in index.terms), index.offset, index.whole)
