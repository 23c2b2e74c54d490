"""Recognises patterns along an axis: RMS norm, its gain, sums before an element."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ...program.index import Access
from ...program.operators import NodeKind, Operator, Value
from .algebra import Form, TooLarge
from .view import ROOTS, Read, View, axes_of, number, replacement, rounds


def rms_norm(view: View, op: Operator) -> Operator | None:
    """x * (mean of squares + epsilon)^(-1/2), where nothing inside is rounded to 16 bits."""
    if op.function not in ("multiply", "divide") or not view.near(op, ROOTS):
        return None
    for leaf in view.sources(op):
        try:
            form = view.form((op.output.tensor, op.output.index), leaf[0])
        except TooLarge:
            continue
        mean, epsilon = _root_of(form, leaf)
        source = view.writer.get(mean[0]) if mean is not None else None
        if mean is None or source is None or source.function != "sum":
            continue
        (argument,) = view.reads(source, mean[1])
        free = [a for a in op.output.axes if a not in axes_of(mean)]
        over = _matched(view, argument, leaf, [f"'{a.name}" for a in source.reduction_axes], free)
        extents = {a.name: a.extent for a in op.axes}
        count = prod(a.extent for a in source.reduction_axes)
        if (
            over is None
            or prod(extents[a] for a in over) != count
            or abs(number(source, "scale", 1.0) * count - 1.0) > 1e-6
        ):
            continue
        inside = view.inner(op, leaf)
        below = None if inside is None else _all_inside(view, source, leaf, op, inside)
        if below is not None and not any(rounds(view, view.graph.operator(n)) for n in below):
            return replacement(op, "rms_norm", [Access(*leaf)], {"over": tuple(over), "epsilon": epsilon})
    return None


def _root_of(form: Form, leaf: Read) -> tuple[Read | None, float]:
    """(mean, epsilon) if the form is leaf * (mean + epsilon)^(-1/2), mean a read."""
    if len(form) != 1:
        return None, 0.0
    ((monomial, factor),) = form.items()
    powers = {a: e for a, e in monomial if a != leaf}
    if factor != 1.0 or dict(monomial).get(leaf) != 1.0 or list(powers.values()) != [-0.5]:
        return None, 0.0
    return _shifted(next(iter(powers)))


def _shifted(root: object) -> tuple[Read | None, float]:
    """(read, epsilon) if the atom is a read plus a positive number, or the read itself."""
    if not (isinstance(root, tuple) and len(root) == 2 and root[0] == "sum"):
        return (root, 0.0) if isinstance(root, tuple) and len(root) == 2 and isinstance(root[1], tuple) else (None, 0.0)
    terms = dict(root[1])
    epsilon = terms.pop((), 0.0)
    if len(terms) != 1 or epsilon < 0:
        return None, 0.0
    ((monomial, c),) = terms.items()
    if c != 1.0 or len(monomial) != 1 or monomial[0][1] != 1.0:
        return None, 0.0
    return monomial[0][0], epsilon


def _matched(view: View, argument: Read, leaf: Read, names: list[str], free: list[str]) -> list[str] | None:
    """The axes of `leaf` that the sum runs over, if its argument is leaf^2 with these axes renamed."""
    try:
        form = view.form(argument, leaf[0], 4)
    except TooLarge:
        return None
    if len(form) != 1:
        return None
    ((monomial, factor),) = form.items()
    if factor != 1.0 or len(monomial) != 1 or monomial[0][1] != 2.0:
        return None
    found = monomial[0][0]
    if not isinstance(found, tuple) or found[0] != leaf[0]:
        return None
    renamed: dict[str, str] = {}
    for mine, theirs, extent in zip(leaf[1], found[1], view.graph.tensor(leaf[0]).shape, strict=True):
        if mine == theirs or extent == 1:  # of one element: read along an axis or at 0
            continue
        a, b = mine.single, theirs.single
        if a is None or b is None or a not in free or b not in names:
            return None
        renamed[a] = b
    return list(renamed) if sorted(renamed.values()) == sorted(names) else None


def _all_inside(view: View, source: Operator, leaf: Read, top: Operator, inside: set[str]) -> set[str] | None:
    """What disappears, with the sum and the square below it; None if any of it serves anything else."""
    below = {source.name, *inside}
    queue = [a.tensor for a in source.inputs]
    while queue:
        tensor = queue.pop()
        op = view.writer.get(tensor)
        if tensor == leaf[0] or op is None:
            continue
        if (
            op.kind is not NodeKind.MAP
            or not set(view.readers[tensor]) <= {*below, top.name}
            or tensor in view.graph.outputs
        ):
            return None
        below.add(op.name)
        queue += [a.tensor for a in op.inputs]
    summed = source.output.tensor
    return below if set(view.readers[summed]) <= {*below, top.name} and summed not in view.graph.outputs else None


def norm_gain(view: View, op: Operator) -> Operator | None:
    """rms_norm(x) * w: the gain belongs to the normalisation, unless it is rounded to 16 bits before."""
    if op.function != "multiply":
        return None
    reads = view.reads(op)
    for mine, gain in (reads, reads[::-1]):
        tensor, seen = mine[0], mine[1]
        cast = view.writer.get(tensor)
        norm = cast
        if (
            cast is not None
            and cast.function == "cast"
            and view.readers[tensor] == [op.name]
            and tensor not in view.graph.outputs
        ):
            (inner,) = view.reads(cast, seen)
            seen, norm = inner[1], view.writer.get(inner[0])
        if (
            norm is None
            or norm.function != "rms_norm"
            or len(norm.inputs) != 1
            or len(view.readers[norm.output.tensor]) != 1
            or rounds(view, norm)
            or rounds(view, view.writer[tensor])
        ):
            continue
        at = {i.single: o.single for i, o in zip(norm.output.index, seen, strict=True)}
        over = [at.get(a) for a in norm.over]
        if norm.output.tensor in view.graph.outputs or None in at.values() or not set(axes_of(gain)) <= set(over):
            continue
        (x,) = view.reads(norm, seen)
        if set(axes_of(x)) != set(op.output.axes):
            continue
        attributes: dict[str, Value] = {
            "over": tuple(a for a in over if a is not None),
            "epsilon": number(norm, "epsilon", 1e-5),
        }
        return replacement(op, "rms_norm", [Access(*x), Access(*gain)], attributes)
    return None


def exclusive_sum(view: View, op: Operator) -> Operator | None:
    """cumulative_sum(x) - x."""
    if op.function != "subtract":
        return None
    total, own = view.reads(op)
    source = view.writer.get(total[0])
    if (
        source is None
        or source.function != "cumulative_sum"
        or source.attribute("exclusive", 0)
        or len(view.readers[total[0]]) != 1
    ):
        return None
    (x,) = view.reads(source, total[1])
    cast = view.writer.get(own[0])
    if own != x and cast is not None and cast.function == "cast" and len(view.readers[own[0]]) == 1:
        (own,) = view.reads(cast, own[1])
    at = {i.single: o.single for i, o in zip(source.output.index, total[1], strict=True)}
    over = tuple(str(at.get(a)) for a in source.over)
    if own != x or None in at.values() or set(axes_of(x)) != set(op.output.axes) or total[0] in view.graph.outputs:
        return None
    new = replacement(op, "cumulative_sum", [Access(*x)], {"over": over, "exclusive": 1})
    return replace(new, axes=tuple(replace(a, splittable=a.splittable and a.name not in over) for a in new.axes))
