"""Reduces a problem exactly, known as presolve: a smaller problem with the same optimum, a log that a
checker can replay, and the way back.

Order: vertices for cliques of choices that exclude each other (`cliques.py`); then to a fixpoint,
(1) arc consistency, fixing, functional merges and separable edges over the pairs that changed,
(2) labels that exceed the limit on their own, rows that the limit or other rows imply, (3) dominance and elimination
    over the vertices that changed.
The rules and why none loses all optima: `proofs/selection/presolve_log.py`; ties are broken by the smaller number,
rules apply one after another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Final

import numpy as np

from ....models.problem.selection_problem import Edge, Ints, ProblemError, SelectionProblem, Usage, Vertex
from ....proofs.selection.certificates import Dual, Record, Reduced
from ....proofs.selection.presolve_log import AT_MOST_ONE, BASELINE, Rule
from ..model.clock import ENTRIES, Clock
from ..model.factored import Domains, whole
from ..options.presolve import PRESOLVE, PresolveOptions
from .cliques import exclusions
from .state import Clique, Follows, State, TooLarge

PAIR: Final = 10
"""Steps of work of a pair that is looked at, beside its entries."""

VERTEX: Final = 100
"""Steps of work of a vertex that is looked at, beside its labels."""


@dataclass(frozen=True, eq=False)
class Presolved:
    """`problem`: the reduced problem (None: the log empties a domain, nothing in the domains is feasible).

    `log`, `steps`: see `proofs.selection.certificates.Reduced`.  `left`: the original vertices that the reduced
    problem's first ones are, with the original choices that theirs are; `follows`: how the choices of the others
    follow, in the order in which they vanished; `cliques`: of the vertices that joined, numbered behind the original
    ones.
    """

    original: SelectionProblem
    domains: Domains
    problem: SelectionProblem | None
    log: Ints
    steps: tuple[Ints, ...]
    left: tuple[tuple[int, Ints], ...]
    follows: tuple[Follows, ...]
    cliques: tuple[Clique, ...] = ()

    @property
    def inner(self) -> SelectionProblem | None:
        """The reduced problem."""
        return self.problem

    def proof_back(self, proof: Record) -> Reduced:
        """The record about the original problem (on `domains`) from one about the reduced problem (any record if
        that is None).
        """
        return Reduced(self.log, self.steps, proof)

    def solution_back(self, solution: tuple[int, ...]) -> tuple[int, ...]:
        """The solution of the original problem with the same cost: choices of the reduced problem's vertices in,
        original choices out.
        """
        x = [0] * (len(self.original.vertices) + len(self.cliques))
        for (v, labels), a in zip(
            self.left, solution, strict=False
        ):  # the baseline vertex, if there is one, comes last and has no say
            x[v] = int(labels[a])
        for follows in reversed(self.follows):
            follows.set(x)
        return tuple(x[: len(self.original.vertices)])

    def messages_there(self, dual: Dual) -> Dual:
        """Messages at the labels and edges that have stayed; those of parallel edges add up."""
        problem, place = self.problem, {v: (i, labels) for i, (v, labels) in enumerate(self.left)}
        assert problem is not None
        number = {(e.u, e.v): k for k, e in enumerate(problem.edges)}
        shapes = [problem.tables[e.table].shape for e in problem.edges]
        kind = dual.to_u[0].dtype if dual.to_u else np.dtype(np.int64)
        to_u, to_v = ([np.zeros(shape[side], dtype=kind) for shape in shapes] for side in (0, 1))
        for e, edge in enumerate(self.original.edges):
            if edge.u not in place or edge.v not in place:
                continue
            (i, a), (j, b) = place[edge.u], place[edge.v]
            at_u = dual.to_u[e][a if edge.rows is None else edge.rows[a]]
            at_v = dual.to_v[e][b if edge.cols is None else edge.cols[b]]
            if (k := number.get((i, j))) is not None:
                to_u[k] += at_u
                to_v[k] += at_v
            elif (k := number.get((j, i))) is not None:
                to_u[k] += at_v
                to_v[k] += at_u
        return Dual(tuple(to_u), tuple(to_v), dual.denominator)

    def project(self, solution: tuple[int, ...]) -> tuple[int, ...] | None:
        """Choices of the reduced problem where `solution` agrees with it; None if one of its choices has left.  May
        cost less.
        """
        out = []
        solution = (*solution, *(clique.choice(solution) for clique in self.cliques))
        for v, labels in self.left:
            at = int(np.searchsorted(labels, solution[v]))
            if at == labels.size or int(labels[at]) != solution[v]:
                return None
            out.append(at)
        baseline = 0 if self.problem is None else len(self.problem.vertices) - len(out)
        return (*out, *[0] * baseline)


def presolve(
    problem: SelectionProblem,
    domains: Domains | None = None,
    clock: Clock | None = None,
    options: PresolveOptions = PRESOLVE,
) -> Presolved | None:
    """Reduce `problem` restricted to `domains` (default: every choice; none may be empty).  Stops early when `clock` is
    over.

    None when its tables (not shared here), or its numbers, are too large for the state.

    >>> import numpy as np
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))),
    ...                      (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> r = presolve(p)
    >>> r.problem.constant, r.solution_back((0,))
    (1, (0, 0))
    """
    d = whole(problem) if domains is None else domains
    if (
        sum(d[e.u].size * d[e.v].size for e in problem.edges) > options.cells
        or sum(int(u.amount.max()) for u in problem.usages) >= 1 << 62
    ):
        return None
    state = State(problem, d)
    try:
        _Run(state, clock or Clock(), options).reduce_all()
        return _finish(state)
    except TooLarge:
        return None


class _Run:
    """One reduction; the log grows in `state`."""

    def __init__(self, state: State, clock: Clock, options: PresolveOptions) -> None:
        self.state, self.clock, self.options = state, clock, options
        from . import kernels  # compiled loops: what is not presolved starts without them

        self.kernels = kernels
        if state.usage.rows.size < len(state.problem.events() if state.usage.limit is not None else ()):
            state.keep_rows(state.usage.rows)

    def reduce_all(self) -> None:
        state = self.state
        for v in range(len(state.labels)):
            state.drop_forbidden(v)
            if state.empty:
                return
        if state.usage.limit is None:
            self.cliques()
        self.counts = np.zeros(max((d.size for d in state.labels), default=1), dtype=np.int64)
        while not self.clock.over():
            self.pairs()
            if state.empty or self.clock.over():
                return
            before = len(state.log)
            self.vertices()
            if state.empty or (len(state.log) == before and not self.rows()):
                return

    def cliques(self) -> None:
        """Vertices for cliques, to which the pairs are left once all of them are there."""
        state, first = self.state, len(self.state.labels)
        for clique in exclusions(state, self.options):
            self.clock.charge(VERTEX + PAIR * len(clique.members) ** 2)
            state.add_clique(clique)
        for k, clique in enumerate(state.cliques):
            state.leave_to_clique(first + k, clique)

    def rows(self) -> bool:
        """Labels over the limit, rows that are implied; True when something changed."""
        state, usage = self.state, self.state.usage
        if usage.limit is None or not usage.rows.size:
            return False
        alive = [v for v, there in enumerate(state.alive) if there]
        # the log judges neighbouring OVERFULL entries against one state, but this batch would rest on what the last one
        # took away: it waits until something else has been logged, and what never gets its turn is left in, which loses
        # nothing but size
        over = [] if state.log and state.log[-1][0] == Rule.OVERFULL else usage.overfull(alive)
        changed = state.overfull(over)
        if state.empty:
            return changed
        needed = usage.needed_rows(alive)
        if usage.rows.size - needed.size > self.options.dropped_rows * usage.rows.size:
            state.keep_rows(usage.keep_rows(needed))
            state.touched.update(dict.fromkeys(alive))
            changed = True
        return changed

    def pairs(self) -> None:
        """Rules on single pairs and vertices of one label, to a fixpoint; pairs wait in the order in which they
        changed.
        """
        state = self.state
        queue = deque[tuple[int, int]]()
        while not state.empty:
            while state.single and not state.empty:
                v = state.single.popleft()
                if state.alive[v]:
                    state.fix(v)
            queue.extend(state.loose)
            state.loose.clear()
            if not queue or state.empty:
                return
            for _ in range(len(queue)):
                pair = queue.popleft()
                if pair not in state.loose:  # else it has changed, and waits again
                    self._pair(*pair)
                if state.single or state.empty:
                    break

    def _pair(self, i: int, j: int) -> None:
        """One pair i < j."""
        state, flag = self.state, self.kernels
        table = state.stored_table(i, j)
        self.clock.charge(PAIR + (0 if table is None else table.size // ENTRIES))
        flags = 0 if table is None else self.kernels.inspect(table, self.counts)
        if flags & flag.EMPTY_ROW:
            state.arc(i, j)
        elif flags & flag.EMPTY_COLUMN:
            state.arc(j, i)
        elif flags & (flag.ONE_PER_COLUMN | flag.ONE_PER_ROW):
            options = [(a, b) for one, a, b in ((flag.ONE_PER_COLUMN, i, j), (flag.ONE_PER_ROW, j, i)) if flags & one]
            options.sort(key=lambda o: (len(state.near[o[0]]) + state.usage.spans[o[0]], o[0]))
            for a, b in options:
                more = state.labels[b].size - state.labels[a].size
                if more <= 0 or more * sum(state.labels[w].size for w in state.near[a]) <= self.options.growth:
                    state.merge(a, b)
                    return
        elif flags & flag.SEPARABLE:
            state.separable(i, j)

    def vertices(self) -> None:
        """Dominance, elimination and following over the touched vertices, in order of numbers; what they touch
        waits for the next round.
        """
        state = self.state
        waiting = sorted(v for v in state.touched if state.alive[v])
        state.touched.clear()
        for v in waiting:
            if not state.alive[v]:
                continue
            self.clock.charge(VERTEX + state.labels[v].size)
            if state.labels[v].size > 1:
                self._dominance(v)
            self._small_degree(v)
            if state.empty or self.clock.over():
                return

    def _small_degree(self, v: int) -> None:
        state = self.state
        ends = list(state.near[v])
        if len(ends) > 2:
            return
        if state.usage.settle(v) is None:
            if (
                len(ends) < 2
                or state.labels[ends[0]].size * state.labels[ends[1]].size <= self.options.eliminated_table
            ):
                state.eliminate(v)
        elif len(ends) == 1:
            state.follow(v, ends[0])

    def _dominance(self, v: int) -> None:
        state = self.state
        ends = list(state.near[v])
        k = state.labels[v].size
        cuts = np.cumsum([0, *(state.labels[w].size for w in ends)], dtype=np.int64)
        if k * int(cuts[-1]) > self.options.dominance_cells:
            return
        tables = [state.table(v, w) for w in ends]
        joined = np.ascontiguousarray(np.concatenate([np.zeros((k, 0), dtype=np.int64), *tables], axis=1))
        first = np.array(
            [t.argmin(axis=1) + c for t, c in zip(tables, cuts[:-1], strict=True)], dtype=np.int64
        ).reshape(len(ends), k)
        part = state.usage.settle(v)
        usage = np.zeros((k, 0), dtype=np.int64) if part is None else np.ascontiguousarray(part[2].T)
        leaves, stays = np.zeros(k, dtype=np.int64), np.zeros(k, dtype=np.int64)
        found = self.kernels.dominated_pairs(state.cost[v], joined, cuts, first, usage, leaves, stays)
        if found:
            state.drop_dominated(v, leaves[:found], stays[:found])


def _finish(state: State) -> Presolved:
    """The reduced problem, numbered as `proofs.selection.certificates.Reduced` says."""
    original = state.problem
    log = np.array(state.log, dtype=np.int64).reshape(-1, 4)
    left = [v for v, there in enumerate(state.alive) if there]
    if state.empty:
        return Presolved(original, tuple(state.labels), None, log, tuple(state.steps), (), ())
    number = dict(zip(left, count()))
    names = [v.name for v in original.vertices] + [AT_MOST_ONE] * len(state.cliques)
    vertices = [Vertex(names[v], state.cost[v]) for v in left]
    edges: list[Edge] = []
    tables: list[Ints] = []
    for u in left:
        for w in sorted(w for w in state.near[u] if w > u):
            edges.append(Edge(number[u], number[w], len(tables)))
            tables.append(state.table(u, w))
    usages = state.usage.usages(number)
    base = state.usage.base()
    if base.any() or not left:
        usages += _baseline(base, len(left))
        vertices.append(Vertex(BASELINE, np.zeros(1, dtype=np.int64)))
    problem = SelectionProblem(
        f"{original.name}, reduced",
        tuple(vertices),
        tuple(tables),
        tuple(edges),
        tuple(usages),
        state.usage.limit,
        state.constant,
        original.scale,
        original.unit_name,
        original.space,
        original.assumptions,
    )
    try:
        problem.check()
    except ProblemError:
        raise TooLarge from None
    return Presolved(
        original,
        tuple(state.labels),
        problem,
        log,
        tuple(state.steps),
        tuple((v, state.labels[v]) for v in left),
        tuple(state.follows),
        tuple(state.cliques),
    )


def _baseline(base: Ints, vertex: int) -> list[Usage]:
    cuts = np.flatnonzero(np.diff(base, prepend=0, append=0)).tolist()
    return [Usage(vertex, s, e, base[s : s + 1]) for s, e in pairwise(cuts) if base[s]]
