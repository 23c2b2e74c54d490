"""Prices of small programs by the second builder, and the least over all placements and all orders, for plans of one
part.

    least_vectors   over all choices of some variables, the vectors of sums that none other is nowhere above: variables
                    go out one by one, sets of vectors are added and pruned
    least_order     over all orders of tasks on streams, within a memory limit: every moment at which a task ends, every
                    task that may start then, and waiting
    Priced          vertices, edges and rows of a program on a machine, and its tasks under one choice of everything

Nothing of the search, of the checkers or of `models` prices anything here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray
from second_builder.description import BYTES, Machine, Program
from second_builder.tables import Edge, Tables, Vertex

Ints = NDArray[np.int64]
Cells = dict[tuple[int, ...], Ints]
Factor = tuple[tuple[Vertex, ...], Cells]
"""Variables, and per choice of them a set of vectors, as rows."""
NOWHERE = 1 << 60


def least_vectors(
    choices: Mapping[Vertex, Sequence[int]],
    factors: Sequence[Factor],
    caps: Sequence[int],
    kept: tuple[Vertex, ...] = (),
) -> Cells:
    """Per choice of the variables that are kept, the vectors that no other choice of the rest is at most equal to
    everywhere; none has an entry above its cap.  All entries are 0 or more.
    """
    cap, left = np.array(caps, dtype=np.int64), list(factors)
    todo = [v for v in choices if v not in kept]
    while todo:
        scopes = {v: {u for scope, _ in left if v in scope for u in scope} - {v} for v in todo}
        v = min(todo, key=lambda v: (prod(len(choices[u]) for u in scopes[v]), v))
        todo.remove(v)
        mine, left = [f for f in left if v in f[0]], [f for f in left if v not in f[0]]
        left.append(_joined(choices, mine, tuple(sorted(scopes[v])), v, cap))
    return _joined(choices, left, kept, None, cap)[1]


def _joined(
    choices: Mapping[Vertex, Sequence[int]],
    factors: Sequence[Factor],
    scope: tuple[Vertex, ...],
    out: Vertex | None,
    cap: Ints,
) -> Factor:
    """The sums of factors over `scope`, the best over all choices of `out`."""
    places = [[*scope, out].index(u) for f in factors for u in f[0]]
    ends = list(itertools.accumulate((len(f[0]) for f in factors), initial=0))
    where = [places[a:b] for a, b in itertools.pairwise(ends)]
    found: Cells = {}
    for chosen in itertools.product(*(choices[u] for u in scope)):
        sets = []
        for choice in (0,) if out is None else choices[out]:
            full, rows = (*chosen, choice), np.zeros((1, len(cap)), dtype=np.int64)
            for (_, cells), at in zip(factors, where, strict=True):
                more = cells[tuple(full[k] for k in at)]
                rows = (rows[:, None, :] + more[None, :, :]).reshape(-1, len(cap))
                rows = rows[(rows <= cap).all(axis=1)]
                rows = undominated(rows) if len(rows) > 1 and len(more) > 1 else rows
            sets.append(rows)
        found[chosen] = undominated(np.concatenate(sets))
    return scope, found


def undominated(rows: Ints) -> Ints:
    """Each row once that no other row is at most equal to everywhere."""
    if len(rows) < 2:
        return rows
    rows = np.unique(rows, axis=0)  # in ascending order: a row is only below later ones
    keep: list[Ints] = []
    while len(rows):
        first = rows[0]
        keep.append(first)
        rows = rows[(rows < first).any(axis=1)]
    return np.array(keep)


@dataclass(frozen=True)
class Tasks:
    """`streams`: None where a task takes no time and waits for no stream; `waits[t]`: tasks that end before t starts;
    `blocks`: (bytes, task that makes it or -1, tasks that need it, none: it stays).
    """

    times: tuple[int, ...]
    streams: tuple[int | None, ...]
    waits: tuple[frozenset[int], ...]
    blocks: tuple[tuple[int, int, frozenset[int]], ...] = ()


def least_order(tasks: Tasks, limit: int | None = None, below: int = NOWHERE) -> int:
    """The least end of all tasks over all orders; `below` where none ends before that."""
    n = len(tasks.times)
    tail = [0] * n
    after: list[list[int]] = [[t for t in range(n) if k in tasks.waits[t]] for k in range(n)]
    for t in reversed(_sorted(tasks)):
        tail[t] = tasks.times[t] + max((tail[u] for u in after[t]), default=0)
    best, seen = below, dict[tuple[frozenset[int], tuple[tuple[int, int], ...]], int]()

    def held(begun: frozenset[int], over: frozenset[int]) -> int:
        return sum(
            size for size, first, last in tasks.blocks if (first < 0 or first in begun) and not (last and last <= over)
        )

    def go(now: int, begun: frozenset[int], ends: dict[int, int]) -> None:
        """At moment `now`, with `begun` tasks, of which those in `ends` still run."""
        nonlocal best
        free = [
            t for t in range(n) if t not in begun and tasks.streams[t] is None and tasks.waits[t] <= begun - ends.keys()
        ]
        if free and limit is None:
            begun |= {free[0]}
            return go(now, begun, ends)
        if len(begun) == n:
            best = min(best, max([now, *ends.values()]))
            return None
        rest: dict[int, int] = {}
        for t in range(n):
            stream = tasks.streams[t]
            if t not in begun and stream is not None:
                rest[stream] = rest.get(stream, 0) + tasks.times[t]
        busy = {tasks.streams[t]: end for t, end in ends.items()}
        least = max([now, *ends.values(), *(now + tail[t] for t in range(n) if t not in begun)])
        least = max([least, *(max(now, busy.get(s, 0)) + work for s, work in rest.items())])
        key = begun, tuple(sorted((t, end - now) for t, end in ends.items()))
        if least >= best or seen.get(key, NOWHERE) <= now:
            return None
        seen[key] = now
        over = begun - ends.keys()
        may = [t for t in range(n) if t not in begun and tasks.waits[t] <= over and tasks.streams[t] not in busy]
        for t in sorted(may, key=lambda t: -tail[t]):
            if limit is None or held(begun | {t}, over) <= limit:
                go(now, begun | {t}, {**ends, t: now + tasks.times[t]})
        if ends:
            then = min(ends.values())
            go(then, begun, {t: end for t, end in ends.items() if end > then})
        return None

    if limit is None or held(frozenset(), frozenset()) <= limit:
        go(0, frozenset(), {})
    return best


def _sorted(tasks: Tasks) -> list[int]:
    done: list[int] = []
    while len(done) < len(tasks.times):
        done += [t for t in range(len(tasks.times)) if t not in done and tasks.waits[t] <= set(done)]
    return done


class Priced:
    """A program on a machine: what every choice takes and holds, out of its JSON."""

    def __init__(self, program: Program, machine: Machine, space: str, scale: int) -> None:
        self.program, self.tables = program, Tables(program, machine, space, scale)
        self.sizes = {v: len(c.matrices) for v, c in self.tables.choices.items()}
        writers = {op.output.tensor: t for t, op in enumerate(program.operators)}
        given = [e for e in self.tables.edges if e.tensor not in writers]
        made = [e for e in self.tables.edges if e.tensor in writers]
        # stable: of a tensor, into its copy comes first, then readers as they run
        self.edges: list[Edge] = given + sorted(made, key=lambda e: writers[e.tensor])
        self.readers = {
            name: [(op.name, k) for op in program.operators for k, a in enumerate(op.inputs) if a.tensor == name]
            for name in program.tensors
        }
        self.parameter_of = {value: name for name, value in program.state.items()}

    def choice(self, vertex: Vertex, axes: Sequence[str], matrix: Sequence[Sequence[int]]) -> int:
        """The number of a placement of a file."""
        known = self.tables.choices[vertex]
        rows = {**dict(zip(axes, matrix[:-1], strict=True)), "": matrix[-1]}
        return known.matrices.index(tuple(tuple(rows[a]) for a in (*known.axes, "")))

    def edge(self, e: Edge, x: Mapping[Vertex, int]) -> int:
        """What a resharding takes."""
        return self.tables.edge_costs(e)[x[e.source]][x[e.target]]

    def cost(self, vertex: Vertex, x: Mapping[Vertex, int]) -> int:
        """What an operator takes."""
        return self.tables.costs(vertex)[x[vertex]]

    def total(self, x: Mapping[Vertex, int]) -> int:
        """One thing after another."""
        return sum(self.cost(v, x) for v in self.sizes) + sum(self.edge(e, x) for e in self.edges)

    def held(self, x: Mapping[Vertex, int]) -> int:
        """The most bytes of a device in program order."""
        rows = self.tables.rows
        return max(
            sum(r.amounts[x[r.vertex]] for r in rows if r.start <= t < r.end)
            for t in range(len(self.program.operators))
        )

    def least_total(self, limit: int | None) -> int | None:
        """The least total of all placements within the limit; None where nothing fits."""
        steps = 0 if limit is None else len(self.program.operators)
        caps = [NOWHERE, *[limit or 0] * steps]
        found = least_vectors({v: range(n) for v, n in self.sizes.items()}, [*self._factors(steps)], caps)[()]
        return int(found[:, 0].min()) if len(found) else None

    def _factors(self, steps: int) -> Iterable[Factor]:
        for v, size in self.sizes.items():
            rows = [r for r in self.tables.rows if r.vertex == v] if steps else []
            cells = {}
            for i in range(size):
                held = [sum(r.amounts[i] for r in rows if r.start <= t < r.end) for t in range(steps)]
                cells[(i,)] = np.array([[self.tables.costs(v)[i], *held]], dtype=np.int64)
            yield (v,), cells
        for e in self.edges:
            yield edge_factor(e, self.tables.edge_costs(e), 1 + steps, 0)

    @property
    def placements(self) -> int:
        """How many there are of everything together."""
        return prod(self.sizes.values())

    def least_overlapped(self, limit: int | None) -> int | None:
        """The least end of any placement and any order of operators on one stream and reshardings on another."""
        found, best, known = list[tuple[int, tuple[int, ...]]](), NOWHERE, dict[Tasks, int]()
        for choices in itertools.product(*map(range, self.sizes.values())):
            x = dict(zip(self.sizes, choices, strict=True))
            lines = sum(self.cost(v, x) for v in self.sizes), sum(self.edge(e, x) for e in self.edges)
            found.append((max(lines), choices))
        for line, choices in sorted(found):
            if line >= best:
                break
            tasks = self.tasks(dict(zip(self.sizes, choices, strict=True)), limit is not None)
            if tasks not in known:
                known[tasks] = least_order(tasks, limit, best)
            best = min(best, known[tasks])
        return None if best == NOWHERE else best

    def tasks(self, x: Mapping[Vertex, int], memory: bool = False) -> Tasks:
        """Operators on stream 0, in order, and reshardings that take time on stream 1."""
        at = {op.name: k for k, op in enumerate(self.program.operators)}
        times, moves = [self.cost(("operator", name), x) for name in at], dict[Edge, int]()
        for e in self.edges:
            if time := self.edge(e, x):
                moves[e] = len(times)
                times.append(time)
        waits: list[set[int]] = [set() for _ in times]

        def end_of(e: Edge) -> int | None:
            """What has to end for the tensor to be at the target of an edge."""
            if e in moves:
                return moves[e]
            return source(e)

        def source(e: Edge) -> int | None:
            if e.source[0] == "operator":
                return at[e.source[1]]
            into = [f for f in self.edges if f.tensor == e.tensor and f.target == e.source]
            return end_of(into[0]) if into else None

        for e in self.edges:
            before = source(e)
            if e in moves and before is not None:
                waits[moves[e]].add(before)
            if e.target[0] == "operator" and (last := end_of(e)) is not None:
                waits[at[e.target[1]]].add(last)
        for value, parameter in self.parameter_of.items():
            last = next(op.name for op in self.program.operators if op.output.tensor == value)
            waits[at[last]] |= {at[name] for name, _ in self.readers[parameter] if name != last}
        streams = tuple(0 if t < len(at) else 1 for t in range(len(times)))
        blocks = tuple(sorted(self._blocks(x, at, moves, end_of), key=str)) if memory else ()
        return Tasks(tuple(times), streams, tuple(map(frozenset, waits)), blocks)

    def _blocks(self, x: Mapping[Vertex, int], at: Mapping[str, int], moves: Mapping[Edge, int], end_of):  # type: ignore[no-untyped-def]
        """What is held: operands, copies, what operators write, inputs and parameters as they are read."""
        program, tables = self.program, self.tables
        writers = {op.output.tensor: op.name for op in program.operators}

        def bytes_of(tiling, tensor: str) -> int:  # type: ignore[no-untyped-def]
            return int(tiling.largest) * BYTES[program.tensors[tensor].dtype]

        for name, tensor in program.tensors.items():
            out = [e for e in self.edges if e.tensor == name and e.target[0] == "operator"]
            into = [e for e in self.edges if e.tensor == name and e.target[0] == "copy"]
            stays = tensor.role == "parameter" or name in program.outputs
            begins = {e: moves.get(e, at[e.target[1]]) for e in out}
            for e in out:
                want = tables.wants(e.target, e.position)[x[e.target]]
                yield bytes_of(want, name), begins[e], frozenset({at[e.target[1]]})
            copied = tables.copies.get(name) == name
            if copied:
                copy = ("copy", name)
                first = -1 if not into else end_of(into[0]) if into[0] not in moves else moves[into[0]]
                until = frozenset() if stays else frozenset(begins.values())
                yield bytes_of(tables.leaves(copy)[x[copy]], name), first, until
            if name in writers:
                vertex = ("operator", writers[name])
                last = frozenset(end_of(e) for e in into) or frozenset(begins.values()) or frozenset({at[vertex[1]]})
                yield bytes_of(tables.leaves(vertex)[x[vertex]], name), at[vertex[1]], last
            elif not copied and self.readers[name]:
                ((reader, position),) = self.readers[name]
                vertex = ("operator", reader)
                size = bytes_of(tables.wants(vertex, position)[x[vertex]], name)
                yield size, -1, frozenset() if stays else frozenset({at[reader]})


def edge_factor(e: Edge, costs: Sequence[Sequence[int]], width: int, column: int) -> Factor:
    """The times of a resharding in one column."""
    cells = {}
    for i, row in enumerate(costs):
        for j, cost in enumerate(row):
            vector = np.zeros((1, width), dtype=np.int64)
            vector[0, column] = cost
            cells[i, j] = vector
    return (e.source, e.target), cells
