"""Builds loops in a graph under construction: the operator `scan`, and its results taken apart.

packed  =  scan(carries, slices, constants; body)             every result of a row side by side
y[t, r, i]  =  packed[r, start + t size + i]                  one copy per result that is read
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...program.graph import Graph, Tensor
from ...program.index import Access, Affine, Axis, Combine, access
from ...program.operators import Operator, Value
from ...program.scan import SCAN, Result, results, rows, turn, turns
from .builder import Builder

PACKED = "packed"


@dataclass(frozen=True)
class Loop:
    """A loop: its body (`models.program.scan`), axes of every input in the order of the body, the `rows` that may be
    split, the axis of `turn`s and their number, `results` and direction."""

    body: Graph
    carries: int
    reads: tuple[str, ...]
    rows: tuple[str, ...]
    turn: str
    turns: int
    results: tuple[str, ...]
    reverse: bool = False


def operator(name: str, loop: Loop, inputs: Sequence[Access]) -> Operator:
    """The loop as an operator that writes a tensor of its own name.

    >>> g = Builder("body")
    >>> h, x = g.input("h", (4, 3)), g.input("x", (4, 3))
    >>> loop = Loop(g.build(g.map("next", "add", h, x)), 1, ("b f", "t b f"), ("b",), "t", 5, ("each next", "last h"))
    >>> op = operator("sums", loop, [access("h0", "b", "f"), access("x", "t", "b", "f")])
    >>> [(a.name, a.extent, a.splittable) for a in op.axes]
    [('b', 4, True), ('packed', 18, False), ('f', 3, False), ('t', 5, False)]
    """
    extent = {loop.turn: loop.turns}
    given = [t for t in loop.body.tensors if t.role.value == "input"]
    for t, text in zip(given, loop.reads, strict=True):
        extent |= dict(zip((n for n in text.split() if n != loop.turn), t.shape, strict=True))
    inner = [n for n in extent if n not in loop.rows]
    used = [*(n for n in inner if n != loop.turn), loop.turn]
    attributes: dict[str, Value] = {
        "body": loop.body.to_json(),
        "carries": loop.carries,
        "positional": (*loop.rows, PACKED, *used),
        "reads": loop.reads,
        "results": loop.results,
        "turn": loop.turn,
        **({"reverse": 1} if loop.reverse else {}),
    }

    def scan_of_size(size: int) -> Operator:
        axes = [Axis(r, extent[r]) for r in loop.rows] + [Axis(PACKED, size, None, False)]
        axes += [Axis(n, extent[n], Combine.SUM, False) for n in used]
        out = access(name, *loop.rows, PACKED)
        return Operator(name, SCAN, tuple(axes), tuple(inputs), out, tuple(sorted(attributes.items())))

    last = results(scan_of_size(1), loop.body)[-1]
    return scan_of_size(last.start + prod(last.inner) * (loop.turns if last.each else 1))


def result_copy(op: Operator, result: Result) -> tuple[list[Axis], Access, tuple[str, ...]]:
    """Axes, access and output axes of the copy that takes one result out of what a scan writes: turns (of each), rows,
    then the result's own dimensions.
    """
    own = [Axis(f"i{k}", n) for k, n in enumerate(result.inner)]
    index, weight = Affine(offset=result.start), 1
    for axis in reversed(own):
        index, weight = Affine(((axis.name, weight), *index.terms), index.offset), weight * axis.extent
    lead = [Axis(r, op.axis(r).extent) for r in rows(op)]
    if result.each:
        index = Affine(((turn(op), weight), *index.terms), index.offset)
        lead = [Axis(turn(op), turns(op)), *lead]
    axes = [*lead, *own]
    return axes, Access(op.output.tensor, (*map(Affine.axis, rows(op)), index)), tuple(a.name for a in axes)


def scan(g: Builder, name: str, loop: Loop, tensors: Sequence[str | Access], parts: Mapping[int, str]) -> list[str]:
    """Add a loop and a copy per result in `parts` (its number -> the name of the copy).  Inputs are read axis by axis,
    or as their accesses say.  Returned: the copies, in the order of `parts`.
    """
    inputs = [
        a if isinstance(a, Access) else access(a, *text.split()) for a, text in zip(tensors, loop.reads, strict=True)
    ]
    op = operator(name, loop, inputs)
    dtype = g.tensors[inputs[0].tensor].dtype
    g.operator(name, SCAN, op.axes, op.inputs, op.output.axes, dict(op.attributes), dtype)
    found = results(op, loop.body)
    out = []
    for number, part in parts.items():
        axes, read, names = result_copy(op, found[number])
        out.append(g.operator(part, "copy", axes, [read], names, None, dtype))
    return out


def tensor_of(op: Operator, dtype: str) -> Tensor:
    """What a scan writes."""
    extent = {a.name: a.extent for a in op.axes}
    return Tensor(op.output.tensor, tuple(extent[a] for a in op.output.axes), dtype)
