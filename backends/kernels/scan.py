"""Computes a loop on one box of its rows: the body, operator by operator, once per turn."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import ModuleType
from typing import Protocol

from ...models.program.graph import Graph
from ...models.program.operators import Operator
from ...models.program.scan import carries, labels, reads, results, rows, turn, turns
from .blocks import Array, Block, Box, align, lengths, view
from .task import Task


class Run(Protocol):
    """Executes one operator on a box."""

    def __call__(self, xp: ModuleType, op: Operator, graph: Graph, box: Box, operands: Sequence[Block], /) -> Array:
        """The block of its output."""


def scan(t: Task, run: Run) -> Array:
    """The packed results of the rows in the box; `run` executes an operator of the body."""
    op, body, own = t.op, t.graph.body(t.op), rows(t.op)
    if 0 in t.shape:
        return t.xp.zeros(t.shape, dtype=t.operands[0].array.dtype)  # type: ignore[no-any-return]
    of = labels(op, body)
    low = {name: tuple(t.box[row][0] if row else 0 for row in of[name]) for name in of}
    entering = [x.name for x in body.tensors if x.name in {*of} and x.role.value == "input"]
    given = dict(zip(entering, (_input(t, j) for j in range(len(op.inputs))), strict=True))
    along = {name: names.index(turn(op)) for name, names in zip(entering, reads(op), strict=True) if turn(op) in names}
    steps = [(step, _box(step, of, t.box)) for step in body.operators]
    carried = {name: given[name] for name in entering[: carries(op)]}
    fixed = {name: Block(given[name], low[name]) for name in entering[carries(op) :] if name not in along}
    parts = results(op, body)
    out: Array | None = None
    order = range(turns(op))
    for now in reversed(order) if op.attribute("reverse", 0) else order:
        known = {**fixed, **{name: Block(array, low[name]) for name, array in carried.items()}}
        for name, k in along.items():
            known[name] = Block(given[name][(slice(None),) * k + (now,)], low[name])
        for step, box in steps:
            array = run(t.xp, step, body, box, [known[a.tensor] for a in step.inputs])
            known[step.output.tensor] = Block(array, low[step.output.tensor])
        for part in parts:
            if part.each:
                size = prod(part.inner)
                value = _flat(known[part.name].array, of[part.name], own)
                out = t.xp.zeros(t.shape, dtype=value.dtype) if out is None else out
                out[..., part.start + now * size : part.start + (now + 1) * size] = value
        carried = {name: known[after].array for name, after in zip(carried, body.outputs, strict=True)}
    for part in parts:
        if not part.each:
            value = _flat(carried[part.name], of[part.name], own)
            out = t.xp.zeros(t.shape, dtype=value.dtype) if out is None else out
            out[..., part.start : part.start + prod(part.inner)] = value
    assert out is not None  # a scan has results
    return out


def _input(t: Task, j: int) -> Array:
    """Input j along its axes, in the order in which the body knows them (and that of the turns)."""
    a, names = t.op.inputs[j], reads(t.op)[j]
    shape = t.graph.tensor(a.tensor).shape
    seen = align(view(t.xp, t.operands[j], a, t.box, shape, 0, f"{t.place}, input {j}"), a.axes, names)
    return t.xp.broadcast_to(seen, lengths(t.box, names))  # type: ignore[no-any-return]


def _box(step: Operator, of: dict[str, tuple[str, ...]], box: dict[str, tuple[int, int]]) -> Box:
    """Iteration box of an operator of the body: its rows are those of the box."""
    found = {a.name: (0, a.extent) for a in step.axes}
    for index, row in zip(step.output.index, of[step.output.tensor], strict=True):
        if row:
            found[index.terms[0][0]] = box[row]
    return found


def _flat(array: Array, named: tuple[str, ...], own: tuple[str, ...]) -> Array:
    """Rows first, in their order, then everything else as one dimension."""
    order = [named.index(r) for r in own] + [k for k, r in enumerate(named) if not r]
    moved = array.transpose(order)
    return moved.reshape((*moved.shape[: len(own)], -1))
