"""What a stage and a run of units cost, from the rebuilt problem of a micro-batch, by name.

A movement (`verify.plan.structure.moves`) or an operator counts once per step if it is an update's, or carries a
gradient that updates alone read; else once per micro-batch.  Memory of a stage that keeps k micro-batches, at every
operator that it runs (forward, backward, updates, each in order of the graph):

    parameters                           always
    what the backward pass reads of the forward pass (or of what arrives)       k - 1 times at all but updates, and
                                         once from where it is written (or first read) to its last reader
    gradients that updates read          as they are written, from the beginning to the updates, if m > 1
    everything else, operands received   as in plans, within the stage

Where reshardings run beside operators, a leaf counts either with the weights of its channels (`weighed`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from ...models.cost.selection import DecisionKind, Planning
from ...models.pipelines.channels import Channels
from ...models.pipelines.division import Division
from ...models.problem.selection_problem import FORBIDDEN, Edge, Ints, SelectionProblem, Vertex
from ...models.program.graph import Role
from ...proofs.container.effort import PART
from ..budget import Budget
from ..plan.effort import ENTRY
from ..plan.structure import Kept, Received, memory_rows, replaces, uses
from ..plan.used_entries import Entries
from ..selection.multiples import multiple

Number = tuple[int, int, int]
Chained = tuple[frozenset[int], frozenset[int]]
"""Vertices and edges of chains, by number."""


class Units:
    """A rebuilt problem and which part of it belongs to which unit."""

    free: frozenset[int] = frozenset()
    """Movements that leaves leave out."""

    def __init__(self, planning: Planning, division: Division, budget: Budget | None = None) -> None:
        self.planning, self.graph, self.cuts = planning, planning.graph, division.cuts
        self.entries = Entries(planning, budget)
        names = [op.name for op in self.graph.operators]
        self.unit = dict(zip(names, division.unit, strict=True))
        self.phase = dict(zip(names, division.phase, strict=True))
        self.order = {name: i for i, name in enumerate(names)}
        self.used, self.next_of = uses(self.graph), replaces(self.graph)
        self.writer = {op.output.tensor: op.name for op in self.graph.operators}
        self.rows = list(memory_rows(self.graph))
        self.where = [self._where(v) for v in range(len(planning.decisions))]
        self.updating = [self._updating(k) for k in range(len(self.entries.moves))]
        self.in_unit: list[list[int]] = [[] for _ in range(division.units)]
        for v, (u, _) in enumerate(self.where):
            if u is not None and u >= 0:
                self.in_unit[u].append(v)
        self.fetches = {(m.tensor, m.reader): k for k, m in reversed(list(enumerate(self.entries.moves)))}
        self.leaving: list[list[int]] = [[] for _ in self.where]
        for k, e in enumerate(planning.problem.edges):
            self.leaving[e.u].append(k)

    def _where(self, vertex: int) -> tuple[int | None, bool]:
        """(unit, whether updates alone have to do with it); no unit: a copy of an input."""
        d = self.planning.decisions[vertex]
        if d.kind is DecisionKind.OPERATOR:
            return self.unit[d.name], self.phase[d.name] == "U"
        if d.name in self.writer:
            w = self.writer[d.name]
            return self.unit[w], self.phase[w] == "U"
        if self.graph.tensor(d.name).role is Role.INPUT:
            return None, False
        users = [name for name, _ in self.used[d.name]]
        users += [self.writer[value] for value, p in self.next_of.items() if p == d.name]
        return self.unit[users[0]], all(self.phase[name] == "U" for name in users)

    def final(self, tensor: str) -> bool:
        """A gradient that updates alone read."""
        readers = [name for name, _ in self.used[tensor]]
        written = tensor in self.writer and self.phase[self.writer[tensor]] == "B"
        return written and bool(readers) and all(self.phase[name] == "U" for name in readers)

    def _updating(self, number: int) -> bool:
        move = self.entries.moves[number]
        ends = [name for name in (move.writer, move.reader) if name is not None]
        return any(self.phase[name] == "U" for name in ends) or self.final(move.tensor)

    def alike(self, first: int, end: int, once: bool, phase: str = "", weighed: bool = False) -> tuple[object, ...]:
        """Equal for runs of units whose problems are equal; edges that a leaf leaves out are looked at by neither, or
        equal leaves would count as different ones.  `weighed`: by what runs in which pass too.
        """
        chosen = self._chosen(first, end, once)
        local = {v: k for k, v in enumerate(chosen)}
        problem = self.planning.problem
        return (
            tuple((id(problem.vertices[v].cost), self.where[v][1], self.costs(v, phase)) for v in chosen),
            tuple("".join(str(int(self.costs(v, letter))) for letter in "FB") for v in chosen) if weighed else (),
            tuple(self.pass_of(k) for k, _ in self._between(local)) if weighed else (),
            tuple(
                (local[e.u], local[e.v], e.table, id(e.rows), id(e.cols), self.updating[k], self.moves_in(k, phase))
                for k, e in self._between(local)
                if once or not self.updating[k]
            ),
        )

    def _between(self, vertices: Collection[int]) -> list[tuple[int, Edge]]:
        """Numbered edges both of whose ends are among these, in order."""
        edges = self.planning.problem.edges
        numbers = sorted(k for v in vertices for k in self.leaving[v])
        return [(k, edges[k]) for k in numbers if edges[k].v in vertices and k not in self.free]

    def costs(self, vertex: int, phase: str) -> bool:
        """Whether a vertex costs anything where one pass alone counts; no phase: both do."""
        d = self.planning.decisions[vertex]
        return not phase or (d.kind is DecisionKind.OPERATOR and self.phase[d.name] == phase)

    def moves_in(self, number: int, phase: str) -> bool:
        """Whether a movement is one of this pass: of its reader, into a copy of its writer."""
        move = self.entries.moves[number]
        return not phase or self.phase[move.reader or move.writer or ""] == phase

    def pass_of(self, number: int) -> str:
        """F, B or U: when a movement runs."""
        move = self.entries.moves[number]
        return "U" if self.updating[number] else self.phase[move.reader or move.writer or ""]

    def inside(self, first: int, end: int, once: bool) -> tuple[list[int], list[int]]:
        """(vertices, movements) of a run of units, in order."""
        chosen = self._chosen(first, end, once)
        return chosen, [k for k, _ in self._between(set(chosen))]

    def _chosen(self, first: int, end: int, once: bool) -> list[int]:
        return sorted(v for inside in self.in_unit[first:end] for v in inside if once or not self.where[v][1])

    def leaf(
        self,
        first: int,
        end: int,
        micro: int,
        once: bool,
        phase: str = "",
        channels: Channels | None = None,
        chain: Chained = (frozenset(), frozenset()),
    ) -> SelectionProblem:
        """Units first .. end-1: `micro` times what micro-batches do, and with `once` the updates; with a `phase` what
        is not of it costs nothing.  With `channels` operators count c times, movements m times, those of `chain` p
        times more; movements that count nothing are left out.
        """
        problem = self.planning.problem
        chosen = self._chosen(first, end, once)
        local = {v: k for k, v in enumerate(chosen)}
        used = {(e.table, self.updating[k]) for k, e in self._between(local)}
        ways = 1 if channels is None else 6  # of F, B or U, on the chain or not
        size = ways * sum(problem.tables[number].size for number, _ in used)
        size += sum(problem.vertices[v].cost.size for v in chosen)
        self.entries.budget.charge(PART * (1 + len(chosen)) + ENTRY * size, "a leaf")
        self.entries.budget.hold(size, "a leaf")
        seen: dict[tuple[int, int], int] = {}
        tables: list[Ints] = []
        edges = []
        for k, e in self._between(local):
            if (self.updating[k] and not once) or not self.moves_in(k, phase):
                continue
            factor = 1 if self.updating[k] else micro
            if channels is not None:
                _, moved, along = channels.of(self.pass_of(k))
                factor *= moved + (along if k in chain[1] else 0)
            if factor == 0:
                continue
            if (e.table, factor) not in seen:
                seen[e.table, factor] = len(tables)
                tables.append(_multiple(problem.tables[e.table], factor))
            edges.append(Edge(local[e.u], local[e.v], seen[e.table, factor], e.rows, e.cols))
        costs = [problem.vertices[v].cost if self.costs(v, phase) else _free(problem.vertices[v].cost) for v in chosen]
        factors = [1 if self.where[v][1] else micro for v in chosen]
        if channels is not None:
            factors = [n * self._counted(v, channels, chain) for n, v in zip(factors, chosen, strict=True)]
        vertices = tuple(
            Vertex(str(k), _multiple(cost, n)) for k, (n, cost) in enumerate(zip(factors, costs, strict=True))
        )
        return SelectionProblem(
            "units of a pipeline",
            vertices,
            tuple(tables),
            tuple(edges),
            scale=problem.scale,
            unit_name=problem.unit_name,
            space=problem.space,
        ).check()

    def _counted(self, vertex: int, channels: Channels, chain: Chained) -> int:
        """How often an operator's time counts; a copy has none."""
        d = self.planning.decisions[vertex]
        if d.kind is not DecisionKind.OPERATOR:
            return 0
        operators, _, along = channels.of(self.phase[d.name])
        return operators + (along if vertex in chain[0] else 0)

    def operators(self, first: int, end: int) -> list[str]:
        """What a stage runs, in its order."""
        mine = {name for name, u in self.unit.items() if first <= u < end}
        inputs = {op.name: [self.writer.get(a.tensor) for a in op.inputs] for op in self.graph.operators}
        todo = sorted(mine)
        while todo:
            for w in inputs[todo.pop()]:
                if w is not None and self.unit[w] == -1 and w not in mine:
                    mine.add(w)
                    todo.append(w)
        return sorted(mine, key=lambda name: ("FBU".index(self.phase[name]), self.order[name]))

    def decisions_of(self, first: int, end: int) -> tuple[set[str], set[str]]:
        """(operators, copied tensors) whose placements a stage has."""
        names = self.operators(first, end)
        by_name = {op.name: op for op in self.graph.operators}
        touched = {a.tensor for name in names for a in by_name[name].inputs}
        touched |= {by_name[name].output.tensor for name in names}
        # A next value rests in its parameter's copy, in the stage that writes it and in those that it is sent to.
        touched |= {self.next_of[t] for t in list(touched) if t in self.next_of}
        return set(names), {t for t in touched if t in self.planning.copies}

    def seconds(self, first: int, end: int, x: Mapping[int, int]) -> Number:
        """(forward, backward, updates) of a stage under choices of the vertices that it has."""
        problem, total = self.planning.problem, {"F": 0, "B": 0, "U": 0}
        names, copies = self.decisions_of(first, end)
        for name in names:
            v = self.planning.operators[name]
            total[self.phase[name]] += int(problem.vertices[v].cost[x[v]])
        for number, move in enumerate(self.entries.moves):
            for end_name in (move.writer, move.reader):
                if end_name is not None and end_name not in names:
                    break
            else:
                e = problem.edges[number]
                resting = self.next_of.get(move.tensor, move.tensor)
                if (move.writer is None or move.reader is None) and resting not in copies:
                    continue
                row = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
                column = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
                phase = self.phase[move.reader or move.writer or ""]
                total["U" if self.updating[number] else phase] += int(problem.tables[e.table][row, column])
        return total["F"], total["B"], total["U"]

    def peak(self, first: int, end: int, x: Mapping[int, int], kept: int, micro: int) -> int:
        """Bytes on the fullest device of a stage at any moment."""
        return max(self.moments(first, end, x, kept, micro), default=0)

    def moments(self, first: int, end: int, x: Mapping[int, int], kept: int, micro: int) -> list[int]:
        """Bytes on the fullest device of a stage, operator by operator."""
        names = self.operators(first, end)
        step, last = {name: t for t, name in enumerate(names)}, len(names)
        updates = sum(self.phase[name] == "U" for name in names)
        change = np.zeros(last + 1, dtype=np.int64)

        def hold(begin: int, stop: int, amount: int) -> None:
            change[begin] += amount
            change[stop] -= amount

        for row, usage in zip(self.rows, self.planning.problem.usages, strict=True):
            if isinstance(row, Received):
                if row.reader in step:
                    hold(step[row.reader], step[row.reader] + 1, int(usage.amount[x[usage.vertex]]))
                continue
            for begin, stop, times in self._kept(row, step, kept, micro, updates):
                hold(begin, stop, times * int(usage.amount[x[usage.vertex]]))
        return [int(amount) for amount in np.cumsum(change)[:-1]]

    def resting(self, first: int, end: int, x: Mapping[int, int], kept: int, micro: int) -> int:
        """Bytes on the fullest device of a chunk that does nothing: what it has between its forward and its backward
        pass or between that and the updates; an activation that is not kept is taken off.
        """
        if kept == 0:
            one, two = (self.resting(first, end, x, k, micro) for k in (1, 2))
            return max(0, one - (two - one))
        names = self.operators(first, end)
        step = {name: t for t, name in enumerate(names)}
        forward = sum(self.phase[name] == "F" for name in names)
        updates = sum(self.phase[name] == "U" for name in names)
        between, total = (forward, len(names) - updates), 0
        for row, usage in zip(self.rows, self.planning.problem.usages, strict=True):
            if isinstance(row, Received):
                continue
            for begin, stop, times in self._kept(row, step, kept, micro, updates):
                if any(begin < moment < stop for moment in between):
                    total += times * int(usage.amount[x[usage.vertex]])
        return total

    def _kept(
        self, row: Kept, step: Mapping[str, int], kept: int, micro: int, updates: int
    ) -> Iterator[tuple[int, int, int]]:
        """From which step to which, and how many times, a stage has what a row counts."""
        last = len(step)
        readers = [name for name, _ in self.used[row.tensor] if name in step]
        writer = self.writer.get(row.tensor)
        written = None if writer is None else step.get(writer)
        if not readers and written is None:
            return
        if self.graph.tensor(row.tensor).role is Role.PARAMETER:
            yield 0, last, 1
            return
        if row.writer is not None and written is None:
            return  # it lies where it is written
        begin = min(step[name] for name in readers) if written is None else written
        stop = 1 + max([begin, *(step[name] for name in readers)])
        brief = row.writer is not None and (row.tensor in self.planning.copies or row.tensor in self.next_of)
        if brief:
            stop = begin + 1
        if row.writer is not None and micro > 1 and self.final(row.tensor):
            begin, stop = 0, max(stop, last - updates)
        yield begin, stop, 1
        forward = writer is None or self.phase[writer] == "F"
        again = any(self.phase[name] == "B" for name in readers)
        if kept > 1 and forward and again and not brief:  # a stage that takes no time keeps 0 at any moment
            yield 0, last - updates, kept - 1


def _free(values: Ints) -> Ints:
    """Nothing, but forbidden where it was."""
    return np.where(values >= FORBIDDEN, FORBIDDEN, 0)


def _multiple(values: Ints, factor: int) -> Ints:
    return values if factor == 1 else multiple(values, factor)
