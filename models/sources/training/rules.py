"""Derivatives of everything that is no map: one rule per function, the table `RULES` at the end.

product           `products`
sum, max, min     g spread over the reduced axes; max and min: shared evenly by the elements that attain the extreme,
or with attribute `first` = 1 given to the first of them; with attribute `nan` = 1 a NaN attains it
softmax           y (g - sum g y)                    log_softmax   g - exp(y) sum g
layer_norm        with h = g gamma, x^ = (x - mean) / s:   (h - mean h - x^ mean(h x^)) / s;  gamma: sum g x^;  beta:
sum g
rms_norm          with x^ = x / s:   (h - x^ mean(h x^)) / s
embedding         sum over uses of  [ids = v] g      (a scatter written as a one-hot contraction; the ids have no
gradient)
pools, local response                                functions of their own that read windows of g whole
copy              the adjoint of reading
scan              a scan that runs the other way (`loops`)
attention         log-sum-exp, then scores again in tiles (`attention`)
update            outside the part that is overwritten to the old value, inside to the new one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Final

from ...program.graph import GraphError
from ...program.index import Access, Affine, Axis, Combine, access
from ...program.operators import BY_DATA, Operator, Value
from .adjoint import pull
from .attention import attention
from .backward import Backward
from .contributions import Pending
from .indexed import INDEXED
from .loops import Rules, loop, part_read
from .maps import MAP_RULES, differentiate_map, map_positions
from .merged import with_merged_positions
from .products import parallel, product_rule, summed_axes
from .windows import open_windows, result_axes, tap_axes, whole_windows, windows, with_single_windows, without_single

Rule = Callable[[Backward, Operator], None]


def _sum(b: Backward, op: Operator) -> None:
    _spread(b, op, "scale" if "scale" in dict(op.attributes) else "identity", (), ())


def _extreme(b: Backward, op: Operator) -> None:
    over = tuple(a.name for a in op.reduction_axes)
    if op.attribute("first", 0) and b.wants(op, 0):
        _spread(b, op, "mask_fill", (_first(b, op),), (), (("value", 0.0),))
    else:
        nan: tuple[tuple[str, Value], ...] = (("nan", 1),) if op.attribute("nan", 0) else ()
        _spread(b, op, "extreme_gradient", (b.forward(op.inputs[0]), b.forward(op.output)), over, nan)


def _first(b: Backward, op: Operator) -> Access:
    """Where the first element is, along the reduced axes together, that is the extreme, or NaN: true there alone."""
    x, y, every = b.forward(op.inputs[0]), b.forward(op.output), tuple(a.name for a in op.axes)
    whole = tuple(parallel(op, every))
    count = prod(a.extent for a in op.reduction_axes)

    def mask(part: str, function: str, *reads: Access) -> Access:
        return access(b.emit(f"grad:{op.name}/{part}", function, whole, reads, every, (), "bool"), *every)

    hit = mask("hit", "logical_or", mask("equal", "equal", x, y), mask("nan", "not_equal", x, x))
    steps = (("along", "n"), ("start", 0), ("step", 1))
    order = b.emit(f"grad:{op.name}/positions", "iota", [Axis("n", count)], [], ["n"], steps, "int64")
    place, left = Affine(), count
    for a in op.reduction_axes:
        left //= a.extent
        place = place.plus(a.name, left)
    filled = (("value", count),)
    reads = (Access(order, (place,)), hit)
    at = b.emit(f"grad:{op.name}/place", "mask_fill", whole, reads, every, filled, "int64")
    least = tuple(replace(a, combine=Combine.MIN if a.combine is not None else None) for a in op.axes)
    first = b.emit(f"grad:{op.name}/first", "min", least, [access(at, *every)], op.output.axes, (), "int64")
    return mask("chosen", "equal", access(at, *every), access(first, *op.output.axes))


def _spread(
    b: Backward,
    op: Operator,
    function: str,
    more: tuple[Access, ...],
    over: tuple[str, ...],
    fixed: tuple[tuple[str, Value], ...] = (),
) -> None:
    """A gradient over the whole iteration space, then the adjoint of reading it."""
    if not b.wants(op, 0):
        return
    a = op.inputs[0]
    names = tuple(x.name for x in op.axes)
    axes = tuple(parallel(op, names))
    attributes = (*((k, v) for k, v in op.attributes if k == "scale"), *((("over", over),) if over else ()), *fixed)
    inputs = (b.incoming(op), *more)
    singles = tuple(i.single for i in a.index)
    shape = b.tensors[a.tensor].shape
    if len(set(singles)) == len(names) == len(singles) and None not in singles and _extent(op, singles) == shape:
        b.give(op, 0, Pending(op.name, function, axes, inputs, tuple(str(s) for s in singles), attributes))
        return
    whole = b.emit(f"grad:{op.name}/spread", function, axes, inputs, names, attributes, b.tensors[a.tensor].dtype)
    pull(b, replace(op, axes=axes, output=access(whole, *names)), 0, whole)


def _extent(op: Operator, names: tuple[str | None, ...]) -> tuple[int, ...]:
    return tuple(op.axis(str(n)).extent for n in names)


def _normalise(b: Backward, op: Operator, function: str, inputs: tuple[Access, ...]) -> None:
    """The gradient of the first input of a normalise operator, over all of its axes."""
    if not b.wants(op, 0):
        return
    a, out = op.inputs[0], op.output.axes
    attributes = tuple((k, v) for k, v in op.attributes if k in ("over", "epsilon"))
    singles = tuple(i.single for i in a.index)
    if set(singles) == set(out) and len(singles) == len(out) and _extent(op, singles) == b.tensors[a.tensor].shape:
        b.give(op, 0, Pending(op.name, function, op.axes, inputs, tuple(str(s) for s in singles), attributes))
    else:
        pull(
            b,
            op,
            0,
            b.emit(f"grad:{op.name}/input0", function, op.axes, inputs, out, attributes, b.tensors[a.tensor].dtype),
        )


def _softmax(b: Backward, op: Operator) -> None:
    _normalise(b, op, f"{op.function}_gradient", (b.incoming(op), b.forward(op.output)))


def _norm(b: Backward, op: Operator) -> None:
    """layer_norm and rms_norm with their scale and shift."""
    g, x, scale = b.incoming(op), b.forward(op.inputs[0]), [b.forward(a) for a in op.inputs[1:2]]
    _normalise(b, op, f"{op.function}_gradient", (g, x, *scale))
    out = op.output.axes
    for j in range(1, len(op.inputs)):
        if not b.wants(op, j):
            continue
        if j == 2:
            pull(b, op, j, g.tensor)
            continue
        attributes = tuple((k, v) for k, v in op.attributes if k in ("over", "epsilon"))
        normal = b.emit(
            f"grad:{op.name}/normal", op.function, op.axes, [x], out, attributes, b.tensors[op.output.tensor].dtype
        )
        a = op.inputs[j]
        names = tuple(i.single for i in a.index)
        kept = tuple(dict.fromkeys(n for i in a.index for n, _ in i.terms))
        axes, factors = (*parallel(op, kept), *summed_axes(op, kept)), (g, access(normal, *out))
        if names == kept and _extent(op, names) == b.tensors[a.tensor].shape:
            b.give(op, j, Pending(op.name, "product", axes, factors, kept))
            continue
        scale_dtype = b.tensors[
            a.tensor
        ].dtype  # at constant indices, in digits: per axis first, then where it was read
        part = b.emit(f"grad:{op.name}/scale", "product", axes, factors, kept, (), scale_dtype)
        pull(b, replace(op, axes=tuple(parallel(op, kept)), output=access(part, *kept)), j, part)


def _embedding(b: Backward, op: Operator) -> None:
    if not b.wants(op, 0):
        return
    table = op.inputs[0]
    if any(i == Affine() for i in table.index):  # read at position 0 of some dimensions: the gradient of that part
        axes = tuple(a for a in op.axes if a.name in table.axes)
        part = b.emit(f"grad:{op.name}/table", *_of_table(b, op, table.axes), b.tensors[table.tensor].dtype)
        pull(b, replace(op, axes=axes, output=access(part, *table.axes)), 0, part)
        return
    names = tuple(i.single for i in table.index)
    if None in names or len(set(names)) < len(names) or _extent(op, names) != b.tensors[table.tensor].shape:
        raise GraphError(f"operator {op.name!r}", "no gradient of a table that is not read axis by axis")
    function, axes, inputs, kept, attributes = _of_table(b, op, tuple(str(n) for n in names))
    b.give(op, 0, Pending(op.name, function, axes, inputs, kept, attributes))


def _of_table(
    b: Backward, op: Operator, kept: tuple[str, ...]
) -> tuple[str, tuple[Axis, ...], tuple[Access, ...], tuple[str, ...], tuple[tuple[str, Value], ...]]:
    """What was picked from a table, back at its axes `kept`."""
    axes = (*parallel(op, kept), *summed_axes(op, kept))
    inputs = (b.incoming(op), b.forward(op.inputs[1]))
    rows: tuple[tuple[str, Value], ...] = (("rows", op.rows),)
    if op.rows in kept:
        padding = tuple((k, v) for k, v in op.attributes if k == "padding")
        return "embedding_gradient", axes, inputs, kept, (*padding, *rows)
    return "grouped_product", axes, inputs, kept, (*rows, ("load", "any"))  # all rows are the same


def _window(b: Backward, op: Operator) -> None:
    if not b.wants(op, 0):
        return
    g, shape = b.incoming(op), b.tensors[op.inputs[0].tensor].shape
    found = windows(op, op.inputs[0], shape)
    if not found and (merged := with_merged_positions(b, op, 0)) is not None:
        op, g = merged
        found = windows(op, op.inputs[0], shape)
    if not found and (single := with_single_windows(b, op, 0, g)) is not None:
        op, g = single
        found = windows(op, op.inputs[0], shape)
    a = op.inputs[0]
    if not found:
        raise GraphError(f"operator {op.name!r}", f"no gradient of {op.function} through the access to {a.tensor!r}")
    axes = result_axes(op, a, found)
    g = _without(b, op, g, without_single(op, a))
    touched = {w.axis for w in found} | {w.tap for w in found if w.tap is not None}
    inputs = [open_windows(g, touched)]
    if op.function != "average_pool":
        inputs.append(open_windows(b.forward(a), touched))
    kept = tuple((k, v) for k, v in op.attributes if k in ("count_include_pad", "alpha", "beta", "bias", "size"))
    names = tuple(x.name for x in axes)
    attributes = (*whole_windows(found, g), *kept)
    b.give(
        op, 0, Pending(op.name, f"{op.function}_gradient", (*axes, *tap_axes(found)), tuple(inputs), names, attributes)
    )


def _without(b: Backward, op: Operator, g: Access, single: set[str]) -> Access:
    """The gradient of an output without its axes of one element: channels of what has none (`x[:, None]`, pooled)."""
    if not single:
        return g
    read = Access(g.tensor, tuple(Affine() if i.single in single else i for i in g.index))
    names = [i.single for i in g.index if i.single is not None and i.single not in single]
    axes = [replace(op.axis(n), combine=None) for n in names]
    made = b.emit(f"grad:{op.name}/one", "copy", axes, [read], names, (), b.tensors[op.output.tensor].dtype)
    return access(made, *names)


def _copy(b: Backward, op: Operator) -> None:
    if op.reduction_axes:
        raise GraphError(f"operator {op.name!r}", "no gradient of a copy that sums")
    part = part_read(b.graph, op)
    if part is not None and b.wants(op, 0):  # the loop takes it as it is
        packed = op.inputs[0].tensor
        b.taken.setdefault(packed, []).append((op, part, b.incoming(op).tensor))
        b.gradient.setdefault(packed, "")
        return
    for j in range(len(op.inputs)):
        if b.wants(op, j):
            pull(b, op, j, b.incoming(op).tensor)


def _cumulative(b: Backward, op: Operator) -> None:
    if not b.wants(op, 0):
        return
    attributes = tuple((k, v) for k, v in op.attributes if k in ("over", "exclusive"))
    out = op.output.axes
    name = b.emit(
        f"grad:{op.name}/input0",
        "reverse_cumulative_sum",
        op.axes,
        [b.incoming(op)],
        out,
        attributes,
        b.tensors[op.output.tensor].dtype,
    )
    pull(b, op, 0, name)


def _corner(op: Operator, name: str) -> tuple[int, ...]:
    value = op.attribute(name, ())
    found = tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()
    if len(found) != len(op.output.axes):
        raise GraphError(f"operator {op.name!r}", f"attribute {name} needs one index per dimension")
    return found


def _update(b: Backward, op: Operator) -> None:
    """old with a part overwritten by value: outside the part the gradient goes to old, inside it to value."""
    g, out = b.incoming(op), op.output.axes
    start, stop = _corner(op, "start"), _corner(op, "stop")
    dtype = b.tensors[op.output.tensor].dtype
    if b.wants(op, 0):
        zero = b.emit(f"grad:{op.name}/zero", "fill", (), [access(b.seed)], (), (("value", 0.0),), dtype)
        pull(
            b, op, 0, b.emit(f"grad:{op.name}/outside", "update", op.axes, [g, access(zero)], out, op.attributes, dtype)
        )
    if b.wants(op, 1):
        low = dict(zip(out, start, strict=True))
        part = tuple(Axis(a, hi - lo, None, op.axis(a).splittable) for a, lo, hi in zip(out, start, stop, strict=True))
        inside = b.emit(
            f"grad:{op.name}/inside",
            "copy",
            part,
            [access(g.tensor, *(Affine.axis(a).shift(low[a]) for a in out))],
            out,
            (),
            dtype,
        )
        value = op.inputs[1]
        moved = Access(
            value.tensor, tuple(i if i.whole else i.shift(sum(c * low[n] for n, c in i.terms)) for i in value.index)
        )
        pull(b, replace(op, axes=part, inputs=(op.inputs[0], moved), output=access(inside, *out)), 1, inside)


def _loop(b: Backward, op: Operator) -> None:
    """A scan, whose body has the rules of any graph."""
    loop(b, op, Rules(positions, differentiate))


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "product": product_rule,
        "sum": _sum,
        "max": _extreme,
        "min": _extreme,
        "softmax": _softmax,
        "log_softmax": _softmax,
        "layer_norm": _norm,
        "rms_norm": _norm,
        "embedding": _embedding,
        "copy": _copy,
        "cumulative_sum": _cumulative,
        "update": _update,
        "max_pool": _window,
        "average_pool": _window,
        "local_response": _window,
        **INDEXED,
        "attention": attention,
        "scan": _loop,
    }
)
"""Function -> rule, for functions that are no maps."""

CONSTANT: Final = frozenset({"constant", "iota", "random", "top_k_mask", "argsort"})
"""Functions, no maps, whose result does not depend on any number smoothly: they end the reverse pass."""


OWN: Final = "own"
"""Attribute of a `stop_gradient` behind values whose gradients are not their derivative: what makes them so, in words
(a backward written by hand, a hook)."""


def own_gradient(op: Operator) -> tuple[str, ...]:
    """What has a gradient of its own behind an operator; nothing of most."""
    found = op.attribute(OWN, ()) if op.function == "stop_gradient" else ()
    return tuple(map(str, found)) if isinstance(found, tuple) else (str(found),)


def positions(op: Operator) -> tuple[int, ...] | None:
    """Inputs that can carry a gradient; None if the function has no rule."""
    if own_gradient(op):
        return None
    if op.function in MAP_RULES or op.function == "sum_inputs":
        return tuple(j for j, local in enumerate(map_positions(op)[: len(op.inputs)]) if local is not None)
    if op.function in CONSTANT:
        return ()
    if op.kind in BY_DATA and op.function in RULES:  # the last input says where, and is no number
        return tuple(range(len(op.inputs) - 1))
    return tuple(range(len(op.inputs))) if op.function in RULES else None


def differentiate(b: Backward, op: Operator) -> None:
    """Contributions of one operator whose output has a gradient.  Raises `GraphError` for an access that no rule
    covers.
    """
    if op.function in RULES:
        RULES[op.function](b, op)
    else:
        differentiate_map(b, op)
