"""A loop as an operator: a body, run once per turn, whose carried values go from turn to turn.

    carry_i(0)     =  input i                                                   for the first `carries` inputs
    carry(s + 1), values(s)  =  body( carry(s), the others at turn(s) )         turn(s) = s, or turns - 1 - s
    scan[r, p]     =  the results side by side along p:
                        `each n`   tensor n of the body in every turn, in the order of the axis of turns
                        `last c`   carry c after the last turn

Attributes: `body`, the canonical text of a graph, whose inputs are those of the operator in order, and whose outputs
are the next carries; `carries`, their number; `turn`, the axis of turns; `reads`, per input its axes in the order in
which the body knows them (an input that names the axis of turns is read one turn at a time, and the body does not see
that axis; what the tensor lacks is repeated); `results`; `reverse` = 1 goes from the last turn to the first.

*Rows* r are the axes of the result but the last, p.  Every operator of the body must work row by row: a row is a single
parallel axis of each, at that index of whatever has it, and is no axis of statistics.  So a part of the rows is a scan
of its own, and rows are split like any parallel axis.  All other axes are whole: what a turn carries along them is
needed by the next.  Of the body's functions those are allowed that know of no position: products, maps, reductions,
norms, copies.

A scan costs what its body costs, as often as it turns: operations, bytes that each operator of the body reads and
writes, launches; besides these its operands are read and its result is written once.

Source: Bradbury et al., JAX (2018), `lax.scan`; Bird, Lectures on constructive functional programming (1989).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .graph import Graph
    from .index import Affine, Axis
    from .operators import Operator

SCAN: Final = "scan"
"""The function."""

EACH: Final = "each "
LAST: Final = "last "

KINDS: Final = frozenset({"contract", "map", "reduce", "normalise", "layout"})
"""Kinds of what a body may do."""

REFUSED: Final = frozenset(
    {"constant", "iota", "random", "update", "fused_product", "strided_gradient", "to_host", "from_host"}
)
"""Functions of these kinds that know positions, read windows as attributes say, or leave the device in every turn."""

MOST_BODY: Final = 1 << 12
"""Operators of a body."""


@dataclass(frozen=True)
class Result:
    """A part of the result: tensor `name` of the body, of every turn (`each`) or the last; `start` along p; its
    dimensions beside rows and turns have these extents."""

    name: str
    each: bool
    start: int
    inner: tuple[int, ...]


@dataclass(frozen=True)
class Traffic:
    """Bytes that a scan moves for every row of `rows`, besides its operands and its result."""

    rows: tuple[str, ...]
    bytes: int


def texts(op: Operator, name: str) -> tuple[str, ...]:
    """An attribute that is a tuple of texts."""
    value = op.attribute(name, ())
    return tuple(str(v) for v in value) if isinstance(value, tuple) else ()


def reads(op: Operator) -> tuple[tuple[str, ...], ...]:
    """Axes of every input, as the body knows them, with that of the turns."""
    return tuple(tuple(text.split()) for text in texts(op, "reads"))


def carries(op: Operator) -> int:
    """How many inputs are carried."""
    value = op.attribute("carries", 0)
    return value if isinstance(value, int) else 0


def turn(op: Operator) -> str:
    """The axis of turns."""
    return str(op.attribute("turn", ""))


def rows(op: Operator) -> tuple[str, ...]:
    """Axes along which parts are scans of their own."""
    return op.output.axes[:-1]


def turns(op: Operator) -> int:
    """How often the body runs."""
    return op.axis(turn(op)).extent


def inner(op: Operator) -> tuple[str, ...]:
    """Axes that are no rows."""
    return tuple(a.name for a in op.axes if a.name not in rows(op))


def labels(op: Operator, body: Graph) -> dict[str, tuple[str, ...]]:
    """Per tensor of the body which row each of its dimensions is, else empty.  Raises `ValueError` that says where an
    operator does not work row by row.
    """
    known: dict[str, tuple[str, ...]] = {}
    own = {n: op.axis(n).extent for n in rows(op)}
    for tensor, names in zip((t.name for t in body.tensors if t.role.value == "input"), reads(op), strict=True):
        known[tensor] = tuple(n if n in own else "" for n in names if n != turn(op))
    for step in body.operators:
        known[step.output.tensor] = _labels_of(step, known, own)
    return known


def _labels_of(step: Operator, known: dict[str, tuple[str, ...]], extent: dict[str, int]) -> tuple[str, ...]:
    """Rows of an operator's result."""
    row_of: dict[str, str] = {}
    place = f"operator {step.name!r} of the body"
    for a in step.inputs:
        for row, index in zip(known[a.tensor], a.index, strict=True):
            name = index.single
            if row and (name is None or row_of.setdefault(name, row) != row or step.axis(name).extent != extent[row]):
                raise ValueError(f"{place} does not read {a.tensor!r} along {row!r} row by row")
    for a in step.inputs:
        for row, index in zip(known[a.tensor], a.index, strict=True):
            if not row and any(name in row_of for name, _ in index.terms):
                raise ValueError(f"{place} reads {a.tensor!r} at a row, and it has none there")
    for axis in step.axes:
        if axis.name in row_of and (axis.combine is not None or axis.name in step.over):
            raise ValueError(f"{place} joins rows along {row_of[axis.name]!r}")
    out = tuple(row_of.get(str(i.single), "") for i in step.output.index)
    if lost := [r for r in extent if r not in out]:
        raise ValueError(f"{place} lacks row {lost[0]!r}")
    at = step.attribute("at", ())
    if isinstance(at, tuple) and any(k in at for k, row in enumerate(out) if row):
        raise ValueError(f"{place} reads rows at positions")
    return out


def results(op: Operator, body: Graph) -> tuple[Result, ...]:
    """The parts of the result."""
    found, start, of = [], 0, labels(op, body)
    for text in texts(op, "results"):
        each, name = text.startswith(EACH), text[len(EACH) :]
        size = tuple(n for n, row in zip(body.tensor(name).shape, of[name], strict=True) if not row)
        found.append(Result(name, each, start, size))
        start += prod(size) * (turns(op) if each else 1)
    return tuple(found)


def operations(op: Operator, body: Graph) -> int:
    """Floating-point operations per row."""
    extent = {a.name: a.extent for a in op.axes}
    return turns(op) * sum(map(body.work, body.operators)) // prod(extent[r] for r in rows(op))


def launches(op: Operator, body: Graph) -> int:
    """Operators that run, one after another."""
    return turns(op) * len(body.operators)


def traffic(op: Operator, body: Graph) -> tuple[Traffic, ...]:
    """What the operators of the body read and write in all turns."""
    of, total = labels(op, body), dict[tuple[str, ...], int]()
    for step in body.operators:
        box = {a.name: (0, a.extent) for a in step.axes}
        for a in (*step.inputs, step.output):
            tensor, size = body.tensor(a.tensor), 1
            for index, extent, row in zip(a.index, tensor.shape, of[a.tensor], strict=True):
                low, high = index.interval(box, extent)
                size *= 1 if row else high - low
            mine = tuple(r for r in rows(op) if r in of[a.tensor])
            total[mine] = total.get(mine, 0) + turns(op) * size * tensor.element_bytes
    return tuple(Traffic(r, n) for r, n in sorted(total.items()) if n)


def bytes_moved(op: Operator, body: Graph) -> int:
    """Bytes of `traffic` for all rows."""
    extent = {a.name: a.extent for a in op.axes}
    return sum(t.bytes * prod(extent[r] for r in t.rows) for t in traffic(op, body))


def wrong(op: Operator, graph: Graph) -> str:
    """What is wrong with a scan, empty if nothing is."""
    axes = {a.name: a for a in op.axes}
    for name in ("reads", "results"):
        value = op.attribute(name, ())
        if not isinstance(value, tuple) or not value or any(not isinstance(v, str) for v in value):
            return f"attribute {name} must be a tuple of texts, not {value!r}"
    if op.attribute("reverse", 0) not in (0, 1):
        return "attribute reverse is 0 or 1"
    if turn(op) not in axes or turn(op) in op.output.axes:
        return f"attribute turn names {turn(op)!r}, which is no axis besides those of the result"
    if not op.output.axes:
        return "the result has an axis of what is packed, its last"
    if cut := [a.name for a in op.axes if a.splittable and a.name not in rows(op)]:
        return f"axis {cut[0]!r} is carried, or is no row, so it must not be splittable"
    try:
        body = graph.body(op)
    except ValueError as e:
        return f"attribute body: {str(e)[:200]}"
    return _wrong_body(op, graph, body) or _wrong_inputs(op, graph, body, axes) or _wrong_results(op, graph, body)


def _wrong_body(op: Operator, graph: Graph, body: Graph) -> str:
    """Whether a body holds nothing but inputs, allowed operators and next carries."""
    if body.to_json() != op.attribute("body", ""):
        return "attribute body is not the canonical text of its graph"
    if body.state or body.leading or any(t.role.value == "parameter" or t.contents for t in body.tensors):
        return "the body has parameters, constants or a state; they are inputs"
    if any(t.host for t in body.tensors):
        return "the body has tensors on hosts"
    if not 0 < len(body.operators) <= MOST_BODY:
        return f"the body has {len(body.operators)} operators; at least one, at most {MOST_BODY}"
    dtype = graph.tensor(op.output.tensor).dtype
    if not dtype.startswith(("float", "bfloat")):
        return f"the result is {dtype}, no float"
    if other := {t.dtype for t in body.tensors if t.dtype.startswith(("float", "bfloat"))} - {dtype}:
        return f"the body computes in {min(other)}, the result is {dtype}: cast outside of the loop"
    for step in body.operators:
        if step.kind.value not in KINDS or step.function in REFUSED:
            return f"operator {step.name!r} of the body: no {step.function} in a loop"
    if not 0 < carries(op) == len(body.outputs):
        return f"{carries(op)} carries, and {len(body.outputs)} outputs of the body: one each, at least one"
    return ""


def _wrong_inputs(op: Operator, graph: Graph, body: Graph, axes: dict[str, Axis]) -> str:
    """Whether the inputs are those of the body, turn by turn."""
    given, seen = [t for t in body.tensors if t.role.value == "input"], reads(op)
    if not len(given) == len(seen) == len(op.inputs) >= carries(op):
        return f"{len(op.inputs)} inputs, attribute reads has {len(seen)}, the body {len(given)}"
    for j, (t, names, a) in enumerate(zip(given, seen, op.inputs, strict=True)):
        if len(set(names)) < len(names) or any(n not in axes for n in names) or op.output.axes[-1] in names:
            return f"input {j} is read along {' '.join(names)!r}: axes of the operator, each once, none packed"
        if any(not _plain(index, axes) for index in a.index) or not {*a.axes} <= {*names}:
            return f"input {j} must be read axis by axis, along {' '.join(names)!r}"
        if len(set(a.axes)) < sum(bool(i.terms) for i in a.index):
            return f"input {j} is read along a diagonal"
        if tuple(axes[n].extent for n in names if n != turn(op)) != t.shape:
            return f"input {j} has not the shape {t.shape} that the body reads"
        if graph.tensor(a.tensor).dtype != t.dtype:
            return f"input {j} is {graph.tensor(a.tensor).dtype}, the body reads {t.dtype}"
        if j < carries(op) and turn(op) in names:
            return f"input {j} is carried, so it has no axis of iterations"
    try:
        of = labels(op, body)
    except ValueError as e:
        return str(e)
    for t, name in zip(given, body.outputs, strict=False):
        after = body.tensor(name)
        if (t.shape, t.dtype, of[t.name]) != (after.shape, after.dtype, of[name]):
            return f"carry {t.name!r} has another shape, type or other rows than {name!r}, its next value"
        if sorted(r for r in of[t.name] if r) != sorted(rows(op)):
            return f"carry {t.name!r} lacks a row"
    return ""


def _plain(index: Affine, axes: dict[str, Axis]) -> bool:
    """Whether an index is one axis, or one place."""
    return index.single in axes if index.terms else not index.whole


def _wrong_results(op: Operator, graph: Graph, body: Graph) -> str:
    """Whether the results are values of the body of one type, and fill the result."""
    of, given = labels(op, body), [t.name for t in body.tensors if t.role.value == "input"]
    dtype, size = graph.tensor(op.output.tensor).dtype, 0
    for text in texts(op, "results"):
        name = text[len(EACH) :]
        if text[: len(EACH)] not in (EACH, LAST) or name not in of:
            return f"result {text!r} is neither 'each' nor 'last' and a tensor of the body"
        if text.startswith(LAST) and name not in given[: carries(op)]:
            return f"result {text!r}: {name!r} is no carry"
        if body.tensor(name).dtype != dtype:
            return f"result {text!r} is {body.tensor(name).dtype}, the others are {dtype}"
        if sorted(r for r in of[name] if r) != sorted(rows(op)):
            return f"result {text!r} lacks a row"
    size = sum(prod(r.inner) * (turns(op) if r.each else 1) for r in results(op, body))
    if op.axis(op.output.axes[-1]).extent != size:
        return f"the results take {size} elements per row, axis {op.output.axes[-1]!r} has another extent"
    return ""
