"""Reads a stretch of a program as the turns of one loop, if what they read fits together.

Operator j of turn k reads, at the same places in every turn,

    what operator i of the same turn wrote
    what operator i of the turn before wrote, a *carry*; in the first turn, how it starts
    one tensor from before the stretch, the same in every turn
    a slice of one tensor at place  first + k * step      (copies of slices are seen through)

Anything else is no loop.  All of it is compared operator by operator and turn by turn; nothing is inferred.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...program.graph import Graph, Role, Tensor
from ...program.index import Access, Affine
from ...program.operators import Operator
from ..building.lifting import Lifted
from .recurrence import Recurrence
from .repeats import LEAST_TURNS, Stretch

MOST_CUTS: Final = 6
"""Places at which a period may begin that are tried, those with the fewest carries first."""

UNFED: Final = 16
"""Turns from which on a repetition that reads no slices is a loop; fewer may be layers that share their weights."""


@dataclass(frozen=True)
class Turns:
    """A recurrence, and of every turn's tensors their names in its body: those that are read behind the stretch."""

    recurrence: Recurrence
    start: int
    stop: int
    read: dict[str, tuple[str, int]]


def turns(graph: Graph, stretch: Stretch) -> Iterator[Turns]:
    """Ways to read a stretch as a loop, fewest carries first."""
    period = stretch.period
    for cut in _cuts(graph, stretch):
        for start in (stretch.start + cut, stretch.start + cut + period):
            count = (stretch.stop - start) // period
            if count >= LEAST_TURNS:
                found = _Reader(graph, start, period, count).read()
                if found is not None:
                    yield found
                    break


def _cuts(graph: Graph, stretch: Stretch) -> list[int]:
    """Offsets at which a turn may begin: few carries first, then those that leave no part of a turn behind."""
    period, writer = stretch.period, graph.writer()
    middle = stretch.start + period * ((stretch.stop - stretch.start) // period - 1)
    pairs = {
        (w - stretch.start, i - stretch.start)
        for i in range(middle, middle + period)
        for a in graph.operators[i].inputs
        if (w := writer.get(a.tensor, -1)) >= stretch.start
    }
    found = []
    for cut in range(period):
        crossing = [(w % period, (i - cut) // period - (w - cut) // period) for w, i in pairs]
        if all(d <= 1 for _, d in crossing):
            rest = (stretch.stop - stretch.start - cut) % period
            found.append((len({w for w, d in crossing if d}), rest, cut))
    return [cut for n, _, cut in sorted(found)[:MOST_CUTS] if n]


@dataclass
class _Reader:
    graph: Graph
    start: int
    period: int
    count: int
    carries: dict[str, Access] = field(default_factory=dict)
    known: dict[str, Lifted] = field(default_factory=dict)
    given: dict[str, Tensor] = field(default_factory=dict)
    directions: set[int] = field(default_factory=set)

    def read(self) -> Turns | None:
        """The turns, or None if they are no loop."""
        g, operators, tensors = self.graph, list[Operator](), dict[str, Tensor]()
        self.turn = "turn"
        own = [self._op(j, 0) for j in range(self.period)]
        while any(self.turn == a.name for op in own for a in op.axes):
            self.turn += "'"
        for j, op in enumerate(own):
            reads = [self._input(j, i) for i in range(len(op.inputs))]
            if None in reads:
                return None
            operators.append(replace(op, inputs=tuple(a for a in reads if a is not None)))
            tensors[op.output.tensor] = replace(g.tensor(op.output.tensor), source_shape=None, role=Role.VALUE)
        fed = bool(self.directions)
        if not self.carries or len(self.directions) > 1 or (not fed and self.count < UNFED):
            return None
        body = Graph("body", (*self.given.values(), *tensors.values()), tuple(operators), ())
        read = self._read_behind([op.output.tensor for op in own])
        following = {c: n for c, n in ((_before(n), n) for n in tensors) if c in self.carries}
        ends = {n: c for c, n in following.items()}
        last = [n for n in ends if {k for name, k in read.values() if name == n} == {self.count - 1}]
        each = tuple(dict.fromkeys(n for n, _ in read.values() if n not in last))
        reverse = self.directions == {-1}
        starts = tuple(_whole(a.tensor, g.tensor(a.tensor)) for a in self.carries.values())
        name = f"{own[0].name}.loop"
        pairs = tuple((c, following[c]) for c in self.carries)
        found = Recurrence(
            name, body, pairs, starts, self.known, each, tuple(ends[n] for n in last), self.turn, self.count, reverse
        )
        return Turns(found, self.start, self.start + self.period * self.count, read)

    def _op(self, j: int, k: int) -> Operator:
        return self.graph.operators[self.start + k * self.period + j]

    def _input(self, j: int, i: int) -> Access | None:
        """How the body reads operand i of operator j."""
        reads = [self._op(j, k).inputs[i] for k in range(self.count)]
        writer, first = self.graph.writer(), reads[0]
        at = [writer.get(a.tensor, -1) - self.start - k * self.period for k, a in enumerate(reads)]
        same = len({a.index for a in reads}) == 1
        if len({*at}) == 1 and 0 <= at[0] < self.period:
            return first if same else None
        inside = [writer.get(a.tensor, -1) >= self.start for a in reads]
        if len({*at[1:]}) == 1 and -self.period <= at[1] < 0 and inside == [False] + [True] * (self.count - 1):
            return self._carry(self._op(at[1] + self.period, 0).output.tensor, first) if same else None
        if any(inside):
            return None
        if same and len({a.tensor for a in reads}) == 1:
            return self._constant(first)
        return self._slice(j, reads) or self._slice(j, [self._through(self._op(j, k), a) for k, a in enumerate(reads)])

    def _carry(self, following: str, start: Access) -> Access | None:
        name, after = _before(following), self.graph.tensor(following)
        begins = self.graph.tensor(start.tensor)
        if self.carries.setdefault(name, start).tensor != start.tensor:
            return None
        if (begins.shape, begins.dtype) != (after.shape, after.dtype):
            return None
        self.given[name] = replace(after, name=name, role=Role.INPUT, source_shape=None)
        return replace(start, tensor=name)

    def _constant(self, a: Access) -> Access:
        t = self.graph.tensor(a.tensor)
        self.known[a.tensor] = _whole(a.tensor, t)
        self.given[a.tensor] = Tensor(a.tensor, t.shape, t.dtype, Role.INPUT)
        return a

    def _slice(self, j: int, reads: Sequence[Access]) -> Access | None:
        """One tensor, one of whose places goes on by the same step in every turn."""
        first = reads[0]
        if len({a.tensor for a in reads}) > 1 or len({len(a.index) for a in reads}) > 1:
            return None
        steps = [b.offset - a.offset for a, b in zip(first.index, reads[1].index, strict=True)]
        moving = [d for d, step in enumerate(steps) if step]
        if len(moving) != 1:
            return None
        d, step = moving[0], steps[moving[0]]
        for k, a in enumerate(reads):
            moved = replace(first.index[d], offset=first.index[d].offset + k * step)
            if a.index != (*first.index[:d], moved, *first.index[d + 1 :]):
                return None
        t = self.graph.tensor(first.tensor)
        ends = (first.index[d].offset, reads[-1].index[d].offset)
        if any(self._op(j, 0).axis(n).extent > 1 for n, _ in first.index[d].terms) or first.index[d].whole:
            return None
        if min(ends) < 0 or max(ends) >= t.shape[d]:
            return None
        self.directions.add(1 if step > 0 else -1)
        name = f"{first.tensor}[{d}: {min(ends)} by {abs(step)}]"
        names = [f"d{n}" for n in range(len(t.shape) - 1)]
        at = Affine(((self.turn, abs(step)),), min(ends))
        index = [*map(Affine.axis, names[:d]), at, *map(Affine.axis, names[d:])]
        self.known[name] = Lifted(tuple(names), Access(first.tensor, tuple(index)))
        self.given[name] = Tensor(name, (*t.shape[:d], *t.shape[d + 1 :]), t.dtype, Role.INPUT)
        return Access(name, (*first.index[:d], *first.index[d + 1 :]))

    def _through(self, reader: Operator, a: Access) -> Access:
        """An access through copies of parts of a tensor."""
        writer = self.graph.writer()
        while (w := writer.get(a.tensor)) is not None:
            op = self.graph.operators[w]
            names = [i.single for i in op.output.index]
            box = {x.name: (0, x.extent) for x in op.axes}
            if op.function != "copy" or len(op.inputs) != 1 or None in names or len(op.axes) != len(names):
                break
            source, shape = op.inputs[0], self.graph.tensor(op.inputs[0].tensor).shape
            own = {x.name: (0, x.extent) for x in reader.axes}
            extents = self.graph.tensor(a.tensor).shape
            if any(i.whole for i in (*a.index, *source.index)) or not (
                _inside(source, box, shape) and _inside(a, own, extents)
            ):
                break
            at = dict(zip((str(n) for n in names), a.index, strict=True))
            a = Access(source.tensor, tuple(_composed(i, at) for i in source.index))
        return a

    def _read_behind(self, own: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Tensors of the turns that are read behind the stretch or are results -> (name in the body, turn)."""
        g, stop, readers, results = self.graph, self.start + self.period * self.count, self.graph.readers(), set()
        results = {*g.results}
        out = {}
        for k in range(self.count):
            for j in range(self.period):
                name = self._op(j, k).output.tensor
                if name in results or any(i >= stop for i, _ in readers[name]):
                    out[name] = (own[j], k)
        return out


def _before(following: str) -> str:
    """Name of a carry."""
    return f"{following}, before"


def _whole(name: str, t: Tensor) -> Lifted:
    names = tuple(f"d{k}" for k in range(len(t.shape)))
    return Lifted(names, Access(name, tuple(map(Affine.axis, names))))


def _inside(a: Access, box: dict[str, tuple[int, int]], shape: Sequence[int]) -> bool:
    return all(
        i.unclipped_interval(box)[0] >= 0 and i.unclipped_interval(box)[1] <= n
        for i, n in zip(a.index, shape, strict=True)
    )


def _composed(index: Affine, at: dict[str, Affine]) -> Affine:
    """An index of a copy's input in the axes of who reads the copy."""
    terms: dict[str, int] = {}
    offset = index.offset
    for name, c in index.terms:
        offset += c * at[name].offset
        for n, step in at[name].terms:
            terms[n] = terms.get(n, 0) + c * step
    return Affine(tuple(terms.items()), offset)
