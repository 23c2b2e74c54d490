"""Pipelined steps of small programs once more: every cut, every placement, every order of forwards and backwards.

A stage has F, B and U: what a forward, a backward and the updates take.  Micro-batches are alike, so they may be taken
to pass every chunk in order, and a schedule is who is next on every view: `least_schedule` goes through all states
(forwards and backwards that every chunk has begun) with all vectors of moments that none other is nowhere above.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import ceil, prod

import numpy as np
from composed_prices import NOWHERE, Factor, Priced, Tasks, edge_factor, least_order, least_vectors, undominated
from second_builder.description import BYTES, Machine, Program, read_program
from second_builder.tables import Edge, Vertex

PICO = 10**12
Times = tuple[int, int, int]
Boundary = tuple[int, ...]


def shorter(text: str, batch: int, count: int) -> Program:
    """The program of a micro-batch: every extent that is the batch's, and no other is, gets shorter."""
    data = json.loads(text)
    for tensor in data["tensors"]:
        tensor["shape"] = [n // count if n == batch else n for n in tensor["shape"]]
    for op in data["operators"]:
        op["axes"] = [[a, n // count if n == batch else n, *rest] for a, n, *rest in op["axes"]]
    return read_program(json.dumps(data))


def view_of(machine: Machine, stages: int) -> Machine:
    """One of equal parts, the outermost levels cut first."""
    sizes, left = [], stages
    for size in machine.sizes:
        part = left if size % left == 0 else size
        sizes.append(size // part)
        left //= part
    return replace(machine, sizes=tuple(sizes), devices=machine.devices[: prod(sizes)])


def send(machine: Machine, stages: int, size: int, boundary: int | None) -> int:
    """Picoseconds of so many bytes in front of a stage; None: between the nearest parts."""
    view = view_of(machine, stages).sizes
    counts = [a // b for a, b in zip(machine.sizes, view, strict=True)]
    cut = [k for k, n in enumerate(counts) if n > 1] or [0]
    level = cut[-1]
    if boundary is not None:
        for k in reversed(cut):  # a step by one carries over a level when all inside of it turn over
            level = k
            if boundary % counts[k]:
                break
            boundary //= counts[k]
    total = Fraction(0)
    for k in range(level, len(view)):
        total += Fraction(size, prod(view[: k + 1])) / machine.bandwidths[k] + machine.latencies[k]
    return ceil(total * PICO)


@dataclass(frozen=True)
class Step:
    """What a file says is enumerated; `letters` and `units` per operator; `cuts`: (tensor, gradient)."""

    units: Sequence[int]
    letters: str
    cuts: Sequence[tuple[str, str]]


class Stages:
    """A step of `views` x `micro` micro-batches with `chunks` chunks on every view."""

    def __init__(
        self,
        priced: Priced,
        step: Step,
        machine: Machine,
        shape: tuple[int, int, int],
        limit: int | None,
        *,
        beside: bool,
        near: bool,
    ) -> None:
        self.priced, self.step, self.machine, self.limit, self.beside = priced, step, machine, limit, beside
        self.views, self.micro, self.chunks = shape
        self.near = near
        names = [op.name for op in priced.program.operators]
        self.unit, self.letter = (dict(zip(names, x, strict=True)) for x in (step.units, step.letters))
        self.operators = {op.name: op for op in priced.program.operators}
        self.writer = {op.output.tensor: op.name for op in priced.program.operators}
        self.of_stage: dict[tuple[int, int], dict[tuple[Boundary, Boundary], list[tuple[Times, int]]]] = {}

    # What belongs to a stage.

    def runs(self, first: int, end: int) -> list[str]:
        """Its operators, forwards before backwards before updates."""
        mine = {n for n, u in self.unit.items() if first <= u < end}
        for name in reversed(list(self.unit)):  # constants that they read
            if self.unit[name] == -1 and any(
                self.writer.get(a.tensor) == name for n in mine for a in self.operators[n].inputs
            ):
                mine.add(name)
        return sorted((n for n in self.unit if n in mine), key=lambda n: "FBU".index(self.letter[n]))

    def vertices(self, first: int, end: int) -> list[Vertex]:
        """Its operators and the copies that it touches."""
        runs, rests = self.runs(first, end), self.priced.tables.copies
        touched = {a.tensor for n in runs for a in (*self.operators[n].inputs, self.operators[n].output)}
        copies = {rests[t] for t in touched if t in rests}
        return [v for v in self.priced.sizes if v[1] in (copies if v[0] == "copy" else set(runs))]

    def edges(self, first: int, end: int) -> list[Edge]:
        """What moves in it: both ends are its own, and so is the operator that writes or reads."""
        mine = set(self.vertices(first, end))
        return [e for e in self.priced.edges if e.source in mine and e.target in mine]

    def letter_of(self, e: Edge) -> str:
        """When it moves: gradients that updates alone read move once a step."""
        readers = {self.letter[n] for n, _ in self.priced.readers[e.tensor]}
        writer = self.letter[self.writer[e.tensor]] if e.tensor in self.writer else ""
        ends = [self.letter[v[1]] for v in (e.target, e.source) if v[0] == "operator"]
        return "U" if "U" in ends or (writer == "B" and readers == {"U"}) else ends[0]

    def boundary(self, cut: int) -> tuple[Vertex, ...]:
        """Copies of what crosses."""
        return tuple(("copy", t) for t in self.step.cuts[cut - 1])

    def even(self, vertex: Vertex, choice: int) -> bool:
        """Whether a copy is split evenly over all devices."""
        shape = self.priced.program.tensors[vertex[1]].shape
        tiling = self.priced.tables.leaves(vertex)[choice]
        return bool(tiling.largest * len(self.priced.tables.machine.devices) == prod(shape))

    # What a stage takes and holds.

    def vectors(self, first: int, end: int) -> dict[tuple[Boundary, Boundary], list[tuple[Times, int]]]:
        """Per layouts at both sides (times, activations that fit), what none other is as good as."""
        if (first, end) not in self.of_stage:
            self.of_stage[first, end] = self._vectors(first, end)
        return self.of_stage[first, end]

    def _sides(self, first: int, end: int) -> tuple[tuple[Vertex, ...], tuple[Vertex, ...]]:
        units = max(self.step.units) + 1
        return self.boundary(first) if first else (), self.boundary(end) if end < units else ()

    def _vectors(self, first: int, end: int) -> dict[tuple[Boundary, Boundary], list[tuple[Times, int]]]:
        left, right = self._sides(first, end)
        found: dict[tuple[Boundary, Boundary], set[tuple[Times, int]]] = {}
        for kept in [self.micro] if self.limit is None else range(self.micro, 0, -1):
            runs = self.runs(first, end) if self.limit is not None else []
            factors = list(self._factors(first, end, runs, kept))
            caps = [*[NOWHERE] * 3, *[self.limit or 0] * len(runs)]
            choices = {v: self.open(first, end, v) for v in self.vertices(first, end)}
            for chosen, rows in least_vectors(choices, factors, caps, (*left, *right)).items():
                key = chosen[: len(left)], chosen[len(left) :]
                times = [(int(f), int(b), int(u)) for f, b, u in undominated(rows[:, :3])]
                found.setdefault(key, set()).update((self.pico(t), kept) for t in times)
        return {key: _best(rows) for key, rows in found.items()}

    def pico(self, times: Sequence[int]) -> Times:
        f, b, u = (ceil(Fraction(t * PICO, self.priced.tables.scale)) for t in times)
        return f, b, u

    def _factors(self, first: int, end: int, runs: list[str], kept: int) -> Iterator[Factor]:
        rows = self.rows(first, end, runs, kept) if runs else {}
        for v in self.vertices(first, end):
            cells = {}
            for i in range(self.priced.sizes[v]):
                vector = np.zeros((1, 3 + len(runs)), dtype=np.int64)
                if v[0] == "operator" and not self.beside:
                    vector[0, "FBU".index(self.letter[v[1]])] = self.priced.tables.costs(v)[i]
                if v in rows:
                    vector[0, 3:] = rows[v][i]
                cells[(i,)] = vector
            yield (v,), cells
        if self.beside:
            yield from (self._phase_factor(first, end, letter, 3 + len(runs)) for letter in "FBU")
            return
        for e in self.edges(first, end):
            yield edge_factor(e, self.priced.tables.edge_costs(e), 3 + len(runs), "FBU".index(self.letter_of(e)))

    def rows(self, first: int, end: int, runs: list[str], kept: int) -> dict[Vertex, np.ndarray]:
        """Per vertex and choice what is held on its account at every operator of the stage, with so many activations."""
        priced, tables = self.priced, self.priced.tables
        at, updates = {n: t for t, n in enumerate(runs)}, sum(self.letter[n] == "U" for n in runs)
        found = {v: np.zeros((priced.sizes[v], len(runs)), dtype=np.int64) for v in self.vertices(first, end)}

        def hold(v: Vertex, tilings: Sequence, tensor: str, begin: int, stop: int, times: int = 1) -> None:  # type: ignore[type-arg]
            size = BYTES[priced.program.tensors[tensor].dtype] * times
            for i, tiling in enumerate(tilings):
                found[v][i, begin:stop] += size * tiling.largest

        for name, tensor in priced.program.tensors.items():
            readers = [(n, k) for n, k in priced.readers[name] if n in at]
            writer = self.writer.get(name)
            written = at.get(writer) if writer is not None else None
            if not readers and written is None:
                continue
            rest = tables.copies.get(name)
            for n, k in readers:
                if rest is not None or name in self.writer:
                    hold(("operator", n), tables.wants(("operator", n), k), name, at[n], at[n] + 1)
            if tensor.role == "parameter":
                v: Vertex = ("copy", name) if rest else ("operator", readers[0][0])
                tilings = tables.leaves(v) if rest else tables.wants(v, readers[0][1])
                hold(v, tilings, name, 0, len(runs))
                continue
            begin = written if written is not None else min(at[n] for n, _ in readers)
            until = 1 + max([begin, *(at[n] for n, _ in readers)])
            forward = writer is None or self.letter[writer] == "F"
            again = kept - 1 if forward and any(self.letter[n] == "B" for n, _ in readers) else 0
            final = (
                writer is not None
                and self.letter[writer] == "B"
                and {self.letter[n] for n, _ in priced.readers[name]} == {"U"}
            )
            added = final and self.micro > 1
            if written is not None:
                v = ("operator", str(writer))
                brief = rest is not None
                lasts = (0, len(runs) - updates) if added else (begin, begin + 1 if brief else until)
                lasts = (lasts[0], max(lasts[1], begin + 1 if brief else until))
                hold(v, tables.leaves(v), name, *lasts)
                if again and not brief:
                    hold(v, tables.leaves(v), name, 0, len(runs) - updates, again)
            if rest == name:
                hold(("copy", name), tables.leaves(("copy", name)), name, begin, until)
                if again:
                    hold(("copy", name), tables.leaves(("copy", name)), name, 0, len(runs) - updates, again)
            elif rest is None and writer is None:
                v = ("operator", readers[0][0])
                hold(v, tables.wants(v, readers[0][1]), name, begin, until)
        return found

    def _phase_factor(self, first: int, end: int, letter: str, width: int) -> Factor:
        """What a phase takes in its best order, per choice of all that has to do with it."""
        runs, moves, waits = self.shape(first, end, letter)
        met = {("operator", n) for n in runs} | {v for e in moves for v in (e.source, e.target)}
        scope, cells, known = tuple(sorted(met)), dict[tuple[int, ...], np.ndarray](), dict[tuple[int, ...], int]()
        tables = self.priced.tables
        alone = [(scope.index(("operator", n)), tables.costs(("operator", n))) for n in runs]
        between = [(scope.index(e.source), scope.index(e.target), tables.edge_costs(e)) for e in moves]
        for choices in itertools.product(*(self.open(first, end, v) for v in scope)):
            times = (*(row[choices[k]] for k, row in alone), *(t[choices[i]][choices[j]] for i, j, t in between))
            if times not in known:
                known[times] = least_order(tasks_of(len(runs), times, waits))
            cells[choices] = np.zeros((1, width), dtype=np.int64)
            cells[choices][0, "FBU".index(letter)] = known[times]
        return scope, cells

    def open(self, first: int, end: int, vertex: Vertex) -> list[int]:
        """Choices of a vertex of a stage: what crosses its cuts is split evenly."""
        sides = [v for side in self._sides(first, end) for v in side]
        return [i for i in range(self.priced.sizes[vertex]) if vertex not in sides or self.even(vertex, i)]

    @cache  # noqa: B019
    def shape(self, first: int, end: int, letter: str) -> tuple[list[str], list[Edge], list[frozenset[int]]]:
        """Operators, reshardings, and what each waits for, in a phase."""
        runs = [n for n in self.runs(first, end) if self.letter[n] == letter]
        moves = [e for e in self.edges(first, end) if self.letter_of(e) == letter]
        at = {n: t for t, n in enumerate(runs)}
        waits: list[set[int]] = [set() for _ in (*runs, *moves)]
        for t, e in enumerate(moves, len(runs)):
            if e.source[0] == "operator" and e.source[1] in at:
                waits[t].add(at[e.source[1]])
            waits[t] |= {
                u
                for u, f in enumerate(moves, len(runs))
                if e.source[0] == "copy" and f.target == e.source and f.tensor == e.tensor
            }
            if e.target[0] == "operator" and e.target[1] in at:
                waits[at[e.target[1]]].add(t)
        for value, parameter in self.priced.parameter_of.items():
            last = self.writer[value]
            if last in at:
                waits[at[last]] |= {at[n] for n, _ in self.priced.readers[parameter] if n in at and n != last}
        return runs, moves, [frozenset(w) for w in waits]

    def phase(self, first: int, end: int, x: Mapping[Vertex, int], letter: str) -> Tasks:
        """Tasks of a phase under one choice of everything."""
        runs, moves, waits = self.shape(first, end, letter)
        times = [self.priced.cost(("operator", n), x) for n in runs] + [self.priced.edge(e, x) for e in moves]
        return tasks_of(len(runs), times, waits)

    def sums(self, first: int, end: int, x: Mapping[Vertex, int]) -> Times:
        """(F, B, U) one after another, in picoseconds."""
        total = dict.fromkeys("FBU", 0)
        for v in self.vertices(first, end):
            if v[0] == "operator":
                total[self.letter[v[1]]] += self.priced.cost(v, x)
        for e in self.edges(first, end):
            total[self.letter_of(e)] += self.priced.edge(e, x)
        return self.pico([*total.values()])

    def held(self, first: int, end: int, x: Mapping[Vertex, int], kept: int) -> int:
        """The most bytes of a device of a stage, without what waits at its cuts."""
        rows = self.rows(first, end, self.runs(first, end), max(1, kept))
        return int(sum(amounts[x[v]] for v, amounts in rows.items()).max())  # type: ignore[union-attr]

    # The step.

    def sends(self, cut: int, boundary: int) -> tuple[int, int]:
        """There and back."""
        tensors = [self.priced.program.tensors[t] for t in self.step.cuts[cut - 1]]
        sizes = [prod(t.shape) * BYTES[t.dtype] for t in tensors]
        there, back = (send(self.machine, self.views, s, None if self.near else boundary) for s in sizes)
        return there, back

    def least(self) -> int | None:
        """Picoseconds of the best step; None where nothing fits."""
        parts, units, best = self.views * self.chunks, max(self.step.units) + 1, NOWHERE
        known: dict[tuple[object, ...], int] = {}
        for inner in itertools.combinations(range(1, units), parts - 1):
            cut = (0, *inner, units)
            lags = [(0, 0), *(self.sends(c, s) for s, c in enumerate(inner, 1))]
            plans: list[tuple[Boundary, list[tuple[Times, int]]]] = [((), [])]
            for i, j in itertools.pairwise(cut):
                mine = self.vectors(i, j)
                plans = [
                    (right, [*rows, row])
                    for at, rows in plans
                    for (left, right), more in mine.items()
                    if left == at
                    for row in more
                ]
            ranked = sorted((self._busy([t for t, _ in rows]), rows) for _, rows in plans)
            for line, rows in ranked:
                if line >= best:
                    break
                key = tuple(rows), tuple(lags)
                if key not in known:
                    times, room = [t for t, _ in rows], [k for _, k in rows]
                    known[key] = least_schedule(times, lags, self.micro, self.views, room)
                best = min(best, known[key])
        return None if best == NOWHERE else best

    def _busy(self, times: Sequence[Times]) -> int:
        per = [sum(self.micro * (f + b) + u for f, b, u in times[v :: self.views]) for v in range(self.views)]
        return max(per)


def _best(rows: set[tuple[Times, int]]) -> list[tuple[Times, int]]:
    """Those that none other is as good as."""
    return [
        (t, k)
        for t, k in sorted(rows)
        if not any((s, j) != (t, k) and j >= k and all(a <= b for a, b in zip(s, t, strict=True)) for s, j in rows)
    ]


def tasks_of(operators: int, times: Sequence[int], waits: Sequence[frozenset[int]]) -> Tasks:
    """Operators first, then reshardings, on no stream where they take no time."""
    streams = tuple(0 if t < operators else 1 if time else None for t, time in enumerate(times))
    return Tasks(tuple(times), streams, tuple(waits))


def least_schedule(
    times: Sequence[Times], lags: Sequence[tuple[int, int]], micro: int, views: int, room: Sequence[int]
) -> int:
    """The least step: chunk c on view c mod `views`, `lags` there and back in front of every chunk, `room`:
    activations of every chunk at once.  Updates of a view follow its last task.
    """
    parts = len(times)
    start = (0,) * parts, (0,) * parts
    # of a state: moments at which every view is free, then ends of forwards and of backwards that are waited for
    layer: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]]
    layer = {start: [((0,) * views, ((),) * (2 * parts))]}
    for _ in range(2 * parts * micro):
        after: dict[
            tuple[tuple[int, ...], tuple[int, ...]], set[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]
        ] = {}
        for (forth, back), vectors in layer.items():
            for c in range(parts):
                if forth[c] < micro and forth[c] - back[c] < room[c] and (c == 0 or forth[c - 1] > forth[c]):
                    key = (*forth[:c], forth[c] + 1, *forth[c + 1 :]), back
                    after.setdefault(key, set()).update(_next(v, c, 0, times, lags, views, parts) for v in vectors)
                last = c == parts - 1
                if back[c] < forth[c] and (last or back[c + 1] > back[c]):
                    key = forth, (*back[:c], back[c] + 1, *back[c + 1 :])
                    after.setdefault(key, set()).update(_next(v, c, 1, times, lags, views, parts) for v in vectors)
        layer = {key: _lowest(vectors) for key, vectors in after.items()}
    later = [sum(u for _, _, u in times[v::views]) for v in range(views)]
    ends = [max(f + u for f, u in zip(free, later, strict=True)) for vectors in layer.values() for free, _ in vectors]
    return min(ends, default=NOWHERE)


Moments = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


def _next(
    vector: Moments,
    c: int,
    way: int,
    times: Sequence[Times],
    lags: Sequence[tuple[int, int]],
    views: int,
    parts: int,
) -> Moments:
    """One more forward (0) or backward (1) of chunk c, as early as may be."""
    free, waiting = list(vector[0]), list(vector[1])
    source = c - 1 if way == 0 else c + 1
    begin = free[c % views]
    if 0 <= source < parts:
        arrives, *rest = waiting[way * parts + source]
        waiting[way * parts + source] = tuple(rest)
        far = source % views != c % views
        begin = max(begin, arrives + (lags[max(source, c)][way] if far else 0))
    free[c % views] = begin + times[c][way]
    target = c + 1 if way == 0 else c - 1
    if 0 <= target < parts:
        waiting[way * parts + c] = (*waiting[way * parts + c], free[c % views])
    return tuple(free), tuple(waiting)


def _lowest(vectors: set[Moments]) -> list[Moments]:
    found: list[tuple[Moments, tuple[int, ...]]] = []
    for v in sorted(vectors):
        flat = (*v[0], *itertools.chain(*v[1]))
        if not any(all(a <= b for a, b in zip(other, flat, strict=True)) for _, other in found):
            found.append((v, flat))
    return [v for v, _ in found]
