"""Recomputes memory rows of a problem over all programs a second time: what every choice holds at every
step.

The steps are the e-nodes in order.  A choice of a vertex leaves open which operators compute and read a tensor, which
is there from the first that may compute it (given ones from the beginning) until the last that may read it has run,
parameters and outputs until all have.  A class without a place to rest holds its tensor itself for all of that time,
one with a place only at the step that writes it; the place holds it in a layout of its own, or as written from the next
step on.  Operands are held at the step that reads them; given ones that the user's program reads once, and does not
replace, from the beginning, as their reader wants them.  Other given tensors that are taken where they are wanted count
whole.

The usages of a vertex are added up: however they are cut into intervals, at every step they must give this.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ...models.joint.choices import Block, Kind
from ...models.joint.problem import JointDecision, JointPlanning
from ...models.problem.selection_problem import Ints
from ...models.program.graph import Role
from ...models.program.operators import Operator
from .entries import Numbers, Side
from .skeleton import Programs, assumed_by

Changes = dict[int, Ints]
"""Step -> bytes more (less, where negative) than at the step before, per choice."""


def wrong_rows(planning: JointPlanning, programs: Programs, numbers: Numbers) -> str:
    """The first vertex that accounts for other bytes than its choices hold; empty if there is none."""
    return _Rows(planning, programs, numbers).wrong()


class _Rows:
    def __init__(self, planning: JointPlanning, programs: Programs, numbers: Numbers) -> None:
        self.planning, self.programs, self.numbers = planning, programs, numbers
        self.graph, self.outputs = programs.graph, set(planning.egraph.base.outputs)
        self.at = {op.name: i for i, op in enumerate(planning.egraph.operators)}
        once = [a.tensor for op in planning.egraph.base.operators for a in op.inputs]
        self.often = {t for t in once if once.count(t) > 1} | {t for t, _ in planning.egraph.base.state}
        self._bytes: dict[object, Ints] = {}

    def wrong(self) -> str:
        problem = self.planning.problem
        found: list[Changes] = [{} for _ in problem.vertices]
        for u in problem.usages:
            if u.start < u.end:
                _add(found[u.vertex], u.start, u.end, slice(None), u.amount, u.amount.size)
        if problem.limit is None:
            return "it has memory rows and no limit" if problem.usages else ""
        for v, d in enumerate(self.planning.decisions):
            expected = Changes()
            for i, block in enumerate(d.blocks):
                for start, stop, amount in self._held(d, block):
                    if start < stop:
                        _add(expected, start, stop, slice(*d.span(i)), amount, d.size)
            for step in sorted(expected.keys() | found[v].keys()):
                none = np.zeros(d.size, dtype=np.int64)
                here = np.flatnonzero(found[v].get(step, none) != expected.get(step, none))
                if here.size:
                    return f"memory of {d.name!r}, choice {int(here[0])}: wrong from step {step} on"
        return ""

    def _held(self, d: JointDecision, block: Block) -> Iterator[tuple[int, int, Ints | int]]:
        t, node = d.tensor, block.node
        steps = len(self.at)
        readers = [
            self.at[mode]
            for r in self.programs.read_by[t]
            for mode in assumed_by(d.tensor, d.rests, block).get(r, frozenset(self.programs.writers[r]))
            if mode is not None and self.programs.times(r, mode, t)
        ]
        writers = [
            self.at[mode]
            for mode in assumed_by(d.tensor, d.rests, block).get(t, frozenset(self.programs.writers.get(t, {})))
            if mode is not None
        ]
        begin = min(writers, default=0)
        done = steps if self._stays(t) else max([*readers, begin]) + 1
        if d.rests:
            if block.kind is Kind.COPY:
                yield begin, done, self._fullest(self.numbers.side(t, None, None), t)
            elif block.kind is Kind.PASSED and node is not None:
                side = self.numbers.side(t, node, None)
                yield self.at[node.name] + 1, done, self._fullest(side, t)[self.numbers.first_placements(node)]
            elif block.kind is Kind.GIVEN and t in self.often:
                whole = self.graph.tensor(t)
                yield 0, done, prod(whole.shape) * whole.element_bytes
            return
        if node is not None:
            yield from self._running(node, done)

    def _running(self, node: Operator, done: int) -> Iterator[tuple[int, int, Ints | int]]:
        now, t = self.at[node.name], node.output.tensor
        copied = self.programs.has_copy(self.programs.rests_in(t))
        written = self._fullest(self.numbers.side(t, node, None), t)
        yield now, now + 1, written
        if not copied:
            yield now + 1, done, written
        for j, a in enumerate(node.inputs):
            read = self._fullest(self.numbers.side(a.tensor, node, j), a.tensor)
            yield now, now + 1, read
            if a.tensor not in self.programs.writers and a.tensor not in self.often:
                yield 0, now, read
                if self._stays(a.tensor):
                    yield now + 1, len(self.at), read

    def _stays(self, t: str) -> bool:
        return t in self.outputs or self.graph.tensor(t).role is Role.PARAMETER

    def _fullest(self, side: Side, t: str) -> Ints:
        """Bytes on the fullest device, per placement."""
        size = self.graph.tensor(t).element_bytes
        key = (side.key, size)
        if key not in self._bytes:
            layouts = self.numbers.layouts(side)
            self._bytes[key] = (layouts.largest * size)[layouts.of]
        return self._bytes[key]


def _add(changes: Changes, start: int, stop: int, span: slice, amount: Ints | int, size: int) -> None:
    for step, sign in ((start, 1), (stop, -1)):
        changes.setdefault(step, np.zeros(size, dtype=np.int64))[span] += sign * amount
