"""Replays a reduction log (`proofs/selection/presolve_log.py`) on numpy: every entry is tested on the state
that the entries before it left.

The state keeps its allowed costs and table entries below 2**57 in size, forbidden ones at exactly 2**60 (`saturate`),
so that sums of up to three of them fit and are recognised.  Choices are positions in `labels[v]` here and numbers of
the enclosing problem in the log.  What an entry takes is charged to the budget of the certificate before it is applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import prod
from typing import Final

import numpy as np

from ...models.problem.selection_problem import (
    FINITE_LIMIT,
    FORBIDDEN,
    Edge,
    Ints,
    ProblemError,
    SelectionProblem,
    Vertex,
)
from ...proofs.container.effort import PART
from ...proofs.selection.certificates import Reduced
from ...proofs.selection.presolve_log import AT_MOST_ONE, Rule
from .ground import Domains, Facts, Ground, Refuted
from .usage import UsageState, Wrong, saturate

CELL_COST: Final = 4
"""Cells that an entry of a table costs in an entry of the log: it is gathered, added, compared with the bounds."""


def replay(ground: Ground, record: Reduced, domains: Domains, facts: Facts, place: str) -> Ground | None:
    """The reduced problem, None if the log empties a domain.  `Refuted` if an entry does not hold."""
    if record.log.ndim != 2 or record.log.shape[1] != 4:
        raise Refuted(place, f"log has shape {record.log.shape}, not (entries, 4)")
    facts.vertices.update(range(facts.size))  # the reduced problem stands for all of it
    at = -1
    try:
        state = _State(ground, domains, place)
        for start, end in _runs(record.log):
            at = start
            _apply(state, record, record.log[start:end])
            if int(record.log[start, 0]) == Rule.OVERFULL:
                facts.rests_on({ground.original_step(t) for t in record.log[start:end, 3].tolist()})
            if state.empty:
                break
        at = -1
        return None if state.empty else state.finish(ground)
    except Wrong as wrong:
        raise Refuted(place if at < 0 else f"{place}, log entry {at} {record.log[at].tolist()}", str(wrong)) from None


def _apply(state: _State, record: Reduced, run: Ints) -> None:
    """One entry, or a run of entries that are tested together."""
    rule, i, a, h = run[0].tolist()
    match rule:
        case Rule.ROWS:
            if not 0 <= i < len(record.steps):
                raise Wrong("list of steps does not exist")
            state.budget.charge(PART * (1 + state.parts), state.place)
            state.usage.keep_rows(record.steps[i])
        case Rule.ARC:
            state.arc(i, a)
        case Rule.FIX:
            state.fix(i)
        case Rule.MERGE:
            state.merge(i, a)
        case Rule.FOLLOW:
            state.follow(i, a)
        case Rule.SEPARABLE:
            state.separable(i, a)
        case Rule.DOMINATED:
            state.drop_dominated(i, run[:, 2], run[:, 3])
        case Rule.ELIMINATE:
            state.eliminate(i)
        case Rule.OVERFULL:
            state.overfull(run)
        case Rule.CLIQUE:
            state.clique(run)
        case Rule.IMPLIED:
            state.free_implied(i, a, h)
        case _:
            raise Wrong("unknown rule")


def _runs(log: Ints) -> Iterator[tuple[int, int]]:
    """Entries in order; neighbouring DOMINATED of one vertex, OVERFULL, and CLIQUE of one new vertex, together."""
    if not len(log):
        return
    rule, vertex = log[:, 0], log[:, 1]
    same = (rule[1:] == rule[:-1]) & (
        ((rule[1:] == Rule.DOMINATED) & (vertex[1:] == vertex[:-1]))
        | (rule[1:] == Rule.OVERFULL)
        | ((rule[1:] == Rule.CLIQUE) & (log[1:, 3] == log[:-1, 3]))
    )
    starts = np.flatnonzero(np.concatenate([[True], ~same])).tolist()
    yield from zip(starts, [*starts[1:], len(log)], strict=True)


class _State:
    """See `proofs/selection/presolve_log.py`.  `tables[i][j]` has shape (choices of i, choices of j) and
    `tables[j][i]` is its transpose.
    """

    def __init__(self, ground: Ground, domains: Domains, place: str) -> None:
        self.problem = problem = ground.problem
        self.budget, self.place = ground.budget, place
        self.parts = ground.parts
        self.labels = list(domains)
        self.alive = [True] * len(domains)
        self.empty = any(d.size == 0 for d in domains)
        self.constant = problem.constant
        self.cells = 0
        capped = [np.minimum(t, FORBIDDEN) if t.size and int(t.max()) > FORBIDDEN else t for t in problem.tables]
        whole = [d.size == v.cost.size for d, v in zip(domains, problem.vertices, strict=True)]
        self.cost: list[Ints] = [
            np.minimum(v.cost, FORBIDDEN)[d] for v, d in zip(problem.vertices, domains, strict=True)
        ]
        self.tables: list[dict[int, Ints]] = [{} for _ in domains]
        for e in problem.edges:
            rows = e.rows if whole[e.u] else domains[e.u] if e.rows is None else e.rows[domains[e.u]]
            cols = e.cols if whole[e.v] else domains[e.v] if e.cols is None else e.cols[domains[e.v]]
            self._count(domains[e.u].size * domains[e.v].size)
            table = capped[e.table] if rows is None else capped[e.table][rows]
            self._join(e.u, e.v, table if cols is None else table[:, cols])
        self.usage = UsageState(problem, domains)

    def _count(self, cells: int) -> None:
        self.cells += cells
        self.budget.hold(self.cells, self.place)
        self._charge(cells)

    def _charge(self, cells: int) -> None:
        """`cells` entries of tables are about to be looked at."""
        self.budget.charge(CELL_COST * cells, self.place)

    def _charge_vertex(self, i: int, times: int = 1) -> None:
        """Every table and span of `i` is about to be looked at."""
        tables = sum(table.size for table in self.tables[i].values()) + self.labels[i].size
        self.budget.charge(PART * (1 + len(self.tables[i])), self.place)
        self._charge(times * (tables + self.usage.size(i)))

    def _join(self, i: int, j: int, table: Ints) -> None:
        """Add `table` to the edge between `i` and `j`."""
        if j in self.tables[i]:
            table = saturate(self.tables[i][j] + table)
            self.cells -= table.size
        self.tables[i][j], self.tables[j][i] = table, table.T

    def _cut(self, i: int, j: int) -> Ints:
        """Take the edge out."""
        table = self.tables[i].pop(j)
        del self.tables[j][i]
        self.cells -= table.size
        return table

    def _vertex(self, i: int) -> None:
        if not 0 <= i < len(self.alive) or not self.alive[i]:
            raise Wrong(f"vertex {i} does not exist any more")

    def _edge(self, i: int, j: int) -> Ints:
        self._vertex(i)
        if j not in self.tables[i]:
            raise Wrong(f"there is no edge between {i} and {j}")
        return self.tables[i][j]

    def _positions(self, i: int, choices: Ints) -> Ints:
        at = np.searchsorted(self.labels[i], choices)
        if (at >= self.labels[i].size).any() or (self.labels[i][at] != choices).any():
            raise Wrong(f"names a choice that vertex {i} does not have any more")
        return at

    def _keep(self, i: int, kept: Ints) -> None:
        """`kept`: ascending positions."""
        self._charge_vertex(i)
        for j, table in list(self.tables[i].items()):
            self.cells -= table.size
            cut = table[kept]
            self.cells += cut.size
            self.tables[i][j], self.tables[j][i] = cut, cut.T
        self.labels[i], self.cost[i] = self.labels[i][kept], self.cost[i][kept]
        self.empty = self.empty or not kept.size
        if kept.size:
            self.usage.keep_choices(i, kept)

    def arc(self, i: int, j: int) -> None:
        self._vertex(i)
        self._charge(self.labels[i].size if j == -1 else self._edge(i, j).size)
        stay = self.cost[i] < FORBIDDEN if j == -1 else (self._edge(i, j) < FORBIDDEN).any(axis=1)
        if stay.all():
            raise Wrong("no choice leaves")
        self._keep(i, np.flatnonzero(stay))

    def fix(self, i: int) -> None:
        self._vertex(i)
        if self.labels[i].size != 1 or self.cost[i][0] >= FORBIDDEN:
            raise Wrong("needs one choice, of allowed cost")
        self._charge_vertex(i)
        for j in list(self.tables[i]):
            row = self._cut(i, j)[0]
            self.cost[j] = saturate(self.cost[j] + row)
        self._remove(i)

    def _remove(self, i: int) -> None:
        """The vertex has no edges, and its usage does not depend on the choice any more: the least cost goes to the
        constant.
        """
        if self.usage.spans(i) is not None:
            raise Wrong("usage depends on the choice")
        self.constant += int(self.cost[i].min())
        self.alive[i] = False

    def merge(self, i: int, j: int) -> None:
        table = self._edge(j, i)
        self._charge(table.size)
        allowed = table < FORBIDDEN
        g = allowed.argmax(axis=1)
        if np.count_nonzero(allowed) != g.size or not allowed[np.arange(g.size), g].all():
            raise Wrong(f"a choice of {j} has not exactly one partner")
        self._absorb(i, j, g)

    def _absorb(self, i: int, j: int, g: Ints) -> None:
        """x_i = g(x_j)."""
        self._charge_vertex(i)
        table = self._cut(j, i)
        self.cost[j] = saturate(self.cost[j] + table[np.arange(g.size), g] + self.cost[i][g])
        for w in list(self.tables[i]):
            moved = self._cut(i, w)
            self._count(g.size * self.labels[w].size)
            self._join(j, w, moved[g])
        self.usage.move(i, j, g)
        self.alive[i] = False

    def follow(self, i: int, j: int) -> None:
        table = self._edge(i, j)
        if len(self.tables[i]) != 1:
            raise Wrong("has another neighbour")
        self._charge_vertex(i)
        self._charge(self.labels[j].size * (PART + self.labels[i].size + self.usage.size(i)))
        total = saturate(self.cost[i][:, None] + table)
        spans = self.usage.spans(i)
        amount = np.zeros((0, self.labels[i].size), dtype=np.int64) if spans is None else spans.amount
        weight = [sum(column) for column in amount.T.tolist()]
        g = []
        for y, column in enumerate(total.T):
            allowed = np.flatnonzero(column < FORBIDDEN)
            cheapest = np.flatnonzero(column == column.min())
            best = min(cheapest.tolist(), key=lambda x: (weight[x], x))
            if (amount[:, [best]] > amount[:, allowed]).any():
                raise Wrong(f"for choice {y} of {j} no choice is cheapest and uses least")
            g.append(best)
        self._absorb(i, j, np.array(g, dtype=np.int64))

    def separable(self, i: int, j: int) -> None:
        table = self._edge(i, j)
        self._charge(table.size)
        row = table.min(axis=1)
        column = table[0] - row[0]
        if (table >= FORBIDDEN).any() or (table != row[:, None] + column[None, :]).any():
            raise Wrong("table is not a sum of a row and a column term")
        self._cut(i, j)
        self.cost[i] = saturate(self.cost[i] + row)
        self.cost[j] = saturate(self.cost[j] + column)

    def drop_dominated(self, i: int, leaving: Ints, staying: Ints) -> None:
        """The pairs one after another: everything but the choices left of `i` stays the same meanwhile, so they are
        tested together.
        """
        self._vertex(i)
        self._charge_vertex(i, 1 + leaving.size // self.labels[i].size)
        a, b = self._positions(i, leaving), self._positions(i, staying)
        rank = np.full(self.labels[i].size, a.size, dtype=np.int64)  # when a choice leaves
        rank[a] = np.arange(a.size)
        if (rank[a] != np.arange(a.size)).any() or (rank[b] <= np.arange(a.size)).any():
            raise Wrong("a choice leaves twice, or for one that has left")
        if (self.cost[i][b] >= FORBIDDEN).any():
            raise Wrong("a choice of forbidden cost dominates nothing")
        worse = self.cost[i][a] - self.cost[i][b]
        bound = FORBIDDEN << 1
        for table in self.tables[i].values():
            one, other = table[a], table[b]
            difference = np.where(one < FORBIDDEN, one - other, FORBIDDEN).min(axis=1)  # allowed - forbidden < -2**59
            worse = np.where(
                (worse < -(bound >> 1)) | (difference < -(FORBIDDEN >> 1)),
                -bound,
                np.minimum(worse + difference, bound),
            )
        spans = self.usage.spans(i)
        fits = np.ones(a.size, dtype=bool) if spans is None else (spans.amount[:, b] <= spans.amount[:, a]).all(axis=0)
        wrong = np.flatnonzero((worse < 0) | ~fits)
        if wrong.size:
            raise Wrong(f"choice {leaving[wrong[0]]} is not dominated by {staying[wrong[0]]}")
        self._keep(i, np.flatnonzero(rank == a.size))

    def eliminate(self, i: int) -> None:
        self._vertex(i)
        ends = list(self.tables[i])
        if len(ends) > 2:
            raise Wrong(f"has {len(ends)} neighbours")
        self._charge_vertex(i)
        self._charge(self.labels[i].size * (PART + prod(self.labels[j].size for j in ends)))
        if len(ends) == 2:
            j, k = ends
            one, two = self._cut(i, j), self._cut(i, k)
            self._count(3 * one.shape[1] * two.shape[1])  # the sums of one choice stand beside the minima
            self.cells -= 2 * one.shape[1] * two.shape[1]
            least = np.full((one.shape[1], two.shape[1]), 3 * FORBIDDEN, dtype=np.int64)
            for cost, x, y in zip(self.cost[i], one, two, strict=True):
                np.minimum(least, (cost + x)[:, None] + y[None, :], out=least)
            self._join(j, k, saturate(least))
        elif ends:
            table = self._cut(i, ends[0])
            least = saturate((self.cost[i][:, None] + table).min(axis=0))
            self.cost[ends[0]] = saturate(self.cost[ends[0]] + least)
        if ends:
            self.cost[i] = np.zeros(1, dtype=np.int64)
        elif self.cost[i].min() >= FORBIDDEN:
            raise Wrong("every choice is forbidden; they leave by their own cost")
        self._remove(i)

    def overfull(self, entries: Ints) -> None:
        """All judged against the same state: what leaves can only raise the minima."""
        usage = self.usage
        if usage.limit is None:
            raise Wrong("the problem has no limit")
        self.budget.charge(PART * (self.parts + len(entries)), self.place)
        for v in np.flatnonzero(self.alive).tolist():
            usage.spans(v)
        base = usage.base()
        gone: dict[int, list[int]] = {}
        for _, i, choice, step in entries.tolist():
            self._vertex(i)
            a = int(self._positions(i, np.array([choice]))[0])
            r = int(np.searchsorted(usage.rows, step))
            if r >= usage.rows.size or usage.rows[r] != step:
                raise Wrong(f"step {step} is not a row of the state")
            spans = usage.spans(i)
            here = 0 if spans is None else int(spans.amount[(spans.first <= r) & (r < spans.last), a].sum())
            if int(base[r]) + here <= usage.limit:
                raise Wrong(f"choice {choice} of vertex {i} fits at step {step}")
            if a in gone.setdefault(i, []):
                raise Wrong(f"choice {choice} of vertex {i} leaves twice")
            gone[i].append(a)
        for i, positions in gone.items():
            self._keep(i, np.setdiff1d(np.arange(self.labels[i].size), positions))

    def clique(self, entries: Ints) -> None:
        """A vertex that says which of the named choices, no two of which go together, is taken."""
        h = len(self.alive)
        if (entries[:, 3] != h).any():
            raise Wrong(f"the next vertex is {h}")
        members: dict[int, list[int]] = {}
        for _, i, choice, _ in entries.tolist():
            self._vertex(i)
            a = int(self._positions(i, np.array([choice]))[0])
            if a in members.setdefault(i, []):
                raise Wrong(f"names choice {choice} of vertex {i} twice")
            members[i].append(a)
        self.budget.charge(PART * (1 + len(members)), self.place)
        for i, mine in members.items():
            for j, its in members.items():
                if i < j:
                    self._charge(PART + len(mine) * len(its))
                    if (self._edge(i, j)[np.ix_(mine, its)] < FORBIDDEN).any():
                        raise Wrong(f"choices of vertices {i} and {j} go together")
        self.labels.append(np.arange(1 + len(members), dtype=np.int64))
        self.alive.append(True)
        self.cost.append(np.zeros(1 + len(members), dtype=np.int64))
        self.tables.append({})
        self.usage.add_vertex()
        for k, (i, mine) in enumerate(members.items()):
            self._count((1 + len(members)) * self.labels[i].size)
            taken = np.zeros((1 + len(members), self.labels[i].size), dtype=bool)
            taken[:, mine] = True
            taken[1 + k] = ~taken[1 + k]
            self._join(h, i, np.where(taken, FORBIDDEN, 0).astype(np.int64))

    def free_implied(self, i: int, j: int, h: int) -> None:
        table, one, other = self._edge(i, j), self._edge(i, h), self._edge(j, h)
        self._charge(one.shape[0] * other.shape[0] * (1 + one.shape[1]))
        together = (one < FORBIDDEN).astype(np.int64) @ (other < FORBIDDEN).T.astype(np.int64)
        freed = (table >= FORBIDDEN) & (together == 0)
        if not freed.any():
            raise Wrong(f"vertex {h} excludes nothing that the table does")
        table = np.where(freed, 0, table)
        self.tables[i][j], self.tables[j][i] = table, table.T

    def finish(self, ground: Ground) -> Ground:
        """P' with its numbers checked again."""
        left = [v for v, alive in enumerate(self.alive) if alive]
        number = dict(zip(left, count()))
        names = [v.name for v in self.problem.vertices]
        names += [AT_MOST_ONE] * (len(self.alive) - len(names))
        vertices = [Vertex(names[v], self.cost[v]) for v in left]
        tables: list[Ints] = []
        edges: list[Edge] = []
        for u in left:
            for w in sorted(w for w in self.tables[u] if w > u):
                edges.append(Edge(number[u], number[w], len(tables)))
                tables.append(self.tables[u][w])
        usages = self.usage.usages(number)
        baseline, used = self.usage.baseline(len(left))
        if used or not left:
            vertices.append(baseline)
            usages += used
        if abs(self.constant) >= FINITE_LIMIT:
            raise Wrong("the constant grows beyond 2**57")
        reduced = SelectionProblem(
            self.problem.name,
            tuple(vertices),
            tuple(tables),
            tuple(edges),
            tuple(usages),
            self.usage.limit,
            self.constant,
        )
        try:
            reduced.check()
        except ProblemError as error:
            raise Wrong(f"the reduced problem is not well formed: {error}") from None
        return Ground(
            reduced,
            steps=np.array([ground.original_step(t) for t in self.usage.rows.tolist()], dtype=np.int64),
            fine_bits=ground.fine_bits,
            budget=ground.budget,
        )
