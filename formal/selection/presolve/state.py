"""The problem while it is reduced: what is left, the log, and the way back from its solutions.

    labels[v]     choices left, numbers of the original problem, ascending            cost[v]      int64 per label,
                  FORBIDDEN or below 2**57
    table(i, j)   costs of the pair, shape (labels of i, labels of j)                 constant     Python integer

Parallel edges are added up.  Every operation here writes its log entry (`proofs/selection/presolve_log.py` defines what
it does) and remembers how the choice of a vertex that vanishes follows from choices of vertices that are left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ....models.problem.selection_problem import FINITE_LIMIT, FORBIDDEN, Ints, SelectionProblem
from ....proofs.selection.presolve_log import Rule
from ..model.factored import Domains, saturate
from .usage import RowUsage


class TooLarge(Exception):
    """Sums of costs would leave the range that the checker allows: the reduction stops here."""


@dataclass(frozen=True, eq=False)
class Follows:
    """Choice of `vertex` from those of `of` (at most two vertices, with their labels then): `choice[positions]`."""

    vertex: int
    of: tuple[int, ...]
    labels: tuple[Ints, ...]
    choice: Ints

    def set(self, x: list[int]) -> None:
        at = tuple(int(np.searchsorted(d, x[w])) for w, d in zip(self.of, self.labels, strict=True))
        x[self.vertex] = int(self.choice[at])


@dataclass(frozen=True)
class Clique:
    """`members`: vertices and choices of theirs; no two choices of different vertices go together."""

    members: tuple[tuple[int, tuple[int, ...]], ...]

    def choice(self, x: Sequence[int]) -> int:
        """That of the vertex that joins: 0, or one more than the place of the member that takes one of its choices."""
        return next((1 + k for k, (i, choices) in enumerate(self.members) if x[i] in choices), 0)


class State:
    """See the module docstring.

    `touched`, `loose`: vertices and pairs whose numbers have changed since somebody emptied them; `single`: vertices
    with one label.
    """

    def __init__(self, problem: SelectionProblem, domains: Domains) -> None:
        self.problem = problem
        self.labels: list[Ints] = list(domains)
        self.alive = [True] * len(domains)
        self.empty = False
        self.constant = problem.constant
        self.log: list[tuple[int, int, int, int]] = []
        self.steps: list[Ints] = []
        self.follows: list[Follows] = []
        self.cliques: list[Clique] = []
        self.usage = RowUsage(problem, domains)
        self.cost: list[Ints] = [
            np.minimum(v.cost[d], FORBIDDEN) for v, d in zip(problem.vertices, domains, strict=True)
        ]
        self.near: list[dict[int, None]] = [{} for _ in domains]
        self._tables: dict[tuple[int, int], Ints] = {}  # u < v, C order
        self.touched: dict[int, None] = {}
        self.loose: dict[tuple[int, int], None] = {}
        self.single = deque(v for v, d in enumerate(domains) if d.size == 1)
        capped = [
            _writable(np.minimum(t, FORBIDDEN) if t.size and int(t.max()) > FORBIDDEN else t) for t in problem.tables
        ]
        whole = [d.size == v.cost.size for d, v in zip(domains, problem.vertices, strict=True)]
        for e in problem.edges:
            rows = e.rows if whole[e.u] else domains[e.u] if e.rows is None else e.rows[domains[e.u]]
            cols = e.cols if whole[e.v] else domains[e.v] if e.cols is None else e.cols[domains[e.v]]
            table = capped[e.table] if rows is None else capped[e.table][rows]
            self._join(e.u, e.v, table if cols is None else table[:, cols])

    def table(self, i: int, j: int) -> Ints:
        """Shape (labels of i, labels of j)."""
        return self._tables[i, j] if i < j else self._tables[j, i].T

    def stored_table(self, i: int, j: int) -> Ints | None:
        """The table of the pair i < j in C order."""
        return self._tables.get((i, j))

    def _put(self, i: int, j: int, table: Ints) -> None:
        pair = (i, j) if i < j else (j, i)
        self._tables[pair] = np.ascontiguousarray(table if i < j else table.T)
        self.loose[pair] = None
        self.touched[i] = self.touched[j] = None

    def _join(self, i: int, j: int, table: Ints) -> None:
        if j in self.near[i]:
            table = _checked(self.table(i, j) + table)
        else:
            self.near[i][j] = self.near[j][i] = None
        self._put(i, j, table)

    def _cut(self, i: int, j: int) -> Ints:
        del self.near[i][j], self.near[j][i]
        self.touched[i] = self.touched[j] = None
        pair = (i, j) if i < j else (j, i)
        self.loose.pop(pair, None)
        table = self._tables.pop(pair)
        return table if i < j else table.T

    def _charge(self, i: int, amount: Ints) -> None:
        """Add to the costs of `i`; labels that become forbidden leave."""
        self.cost[i] = _checked(self.cost[i] + amount)
        self.touched[i] = None

    def drop_forbidden(self, i: int) -> None:
        """ARC by own cost, when it applies."""
        stay = self.cost[i] < FORBIDDEN
        if not stay.all():
            self._log(Rule.ARC, i, -1)
            self._keep(i, np.flatnonzero(stay))

    def _log(self, rule: Rule, i: int, a: int = 0, b: int = 0) -> None:
        self.log.append((int(rule), i, a, b))

    def _keep(self, i: int, kept: Ints) -> None:
        self.labels[i], self.cost[i] = self.labels[i][kept], self.cost[i][kept]
        if not kept.size:
            self.empty = True
            return
        if kept.size == 1:
            self.single.append(i)
        self.usage.keep(i, kept)
        self.touched[i] = None
        for j in self.near[i]:
            self._put(i, j, self.table(i, j)[kept])

    def arc(self, i: int, j: int) -> None:
        """Labels of `i` without partner in `j` leave (there must be one)."""
        self._log(Rule.ARC, i, j)
        self._keep(i, np.flatnonzero((self.table(i, j) < FORBIDDEN).any(axis=1)))

    def fix(self, i: int) -> None:
        """`i` has one label left, of allowed cost."""
        self._log(Rule.FIX, i)
        ends = list(self.near[i])
        for j in ends:
            self._charge(j, self._cut(i, j)[0])
        self.usage.settle(i)
        self._remove(i, int(self.cost[i][0]))
        self.follows.append(Follows(i, (), (), self.labels[i][0]))
        for j in ends:
            self.drop_forbidden(j)
            if self.empty:
                return

    def _remove(self, i: int, cost: int) -> None:
        self.constant += cost
        if abs(self.constant) >= FINITE_LIMIT:
            raise TooLarge
        self.alive[i] = False
        self.touched.pop(i, None)

    def merge(self, i: int, j: int) -> None:
        """Every label of `j` allows exactly one of `i`."""
        self._log(Rule.MERGE, i, j)
        self._absorb(i, j, (self.table(j, i) < FORBIDDEN).argmax(axis=1))

    def _absorb(self, i: int, j: int, g: Ints) -> None:
        table = self._cut(j, i)
        self._charge(j, _checked(table[np.arange(g.size), g] + self.cost[i][g]))
        for w in list(self.near[i]):
            self._join(j, w, self._cut(i, w)[g])
        self.usage.move(i, j, g)
        self.follows.append(Follows(i, (j,), (self.labels[j],), self.labels[i][g]))
        self._remove(i, 0)
        self.drop_forbidden(j)

    def follow(self, i: int, j: int) -> bool:
        """FOLLOW if it applies to `i`, whose only neighbour is `j`."""
        part = self.usage.settle(i)
        if part is None:
            return False
        total = saturate(self.cost[i][:, None] + self.table(i, j))
        weight = np.array([sum(column) for column in part[2].T.tolist()], dtype=object)
        kinds, of = np.unique(part[2], axis=1, return_inverse=True)
        of = of.reshape(-1)
        below = np.asarray((kinds[:, :, None] <= kinds[:, None, :]).all(axis=0))[
            np.ix_(of, of)
        ]  # below[x, z]: x uses at most what z uses
        order = np.array(sorted(range(total.shape[0]), key=lambda x: (weight[x], x)))
        ranked = total[order]
        g = order[ranked.argmin(axis=0)]
        if not (below[g].T | (total >= FORBIDDEN)).all():
            return False
        self._log(Rule.FOLLOW, i, j)
        self._absorb(i, j, g)
        return True

    def separable(self, i: int, j: int) -> None:
        """The table is a sum of a row and a column term, without forbidden entries."""
        self._log(Rule.SEPARABLE, i, j)
        table = self._cut(i, j)
        row = table.min(axis=1)
        self._charge(j, table[0] - row[0])
        self._charge(i, row)

    def drop_dominated(self, i: int, leaves: Ints, stays: Ints) -> None:
        """Labels at positions `leaves` go, one after another, because those at `stays` are there."""
        for a, b in zip(self.labels[i][leaves].tolist(), self.labels[i][stays].tolist(), strict=True):
            self._log(Rule.DOMINATED, i, a, b)
        stay = np.ones(self.labels[i].size, dtype=bool)
        stay[leaves] = False
        self._keep(i, np.flatnonzero(stay))

    def eliminate(self, i: int) -> None:
        """At most two neighbours, and the usage does not depend on the label."""
        self._log(Rule.ELIMINATE, i)
        ends = list(self.near[i])
        tables = [self._cut(i, j) for j in ends]
        labels = tuple(self.labels[j] for j in ends)
        if not ends:
            best = np.asarray(self.cost[i].argmin())
            self._remove(i, int(self.cost[i].min()))
        else:
            joint = self.cost[i].reshape(-1, *[1] * len(ends)) + tables[0].reshape(
                *tables[0].shape, *[1] * (len(ends) - 1)
            )
            if len(ends) == 2:
                joint = joint + tables[1][:, None, :]
            best, least = joint.argmin(axis=0), _checked(joint.min(axis=0))
            if len(ends) == 2:
                self._join(ends[0], ends[1], least)
            else:
                self._charge(ends[0], least)
            self._remove(i, 0)
        self.follows.append(Follows(i, tuple(ends), labels, self.labels[i][best]))
        if len(ends) == 1:
            self.drop_forbidden(ends[0])

    def overfull(self, found: Iterable[tuple[int, int, int]]) -> bool:
        """Labels (vertex, position, step) go; True if there was one."""
        gone: dict[int, list[int]] = {}
        for i, position, step in found:
            self._log(Rule.OVERFULL, i, int(self.labels[i][position]), step)
            gone.setdefault(i, []).append(position)
        for i, positions in gone.items():
            self._keep(i, np.setdiff1d(np.arange(self.labels[i].size), positions))
        return bool(gone)

    def add_clique(self, clique: Clique) -> None:
        """A vertex that says which of choices that exclude each other is taken."""
        h, k = len(self.labels), 1 + len(clique.members)
        for i, choices in clique.members:
            for a in choices:
                self._log(Rule.CLIQUE, i, a, h)
        self.labels.append(np.arange(k, dtype=np.int64))
        self.alive.append(True)
        self.cost.append(np.zeros(k, dtype=np.int64))
        self.near.append({})
        self.usage.add_vertex()
        self.cliques.append(clique)
        for place, (i, choices) in enumerate(clique.members):
            taken = np.tile(np.isin(self.labels[i], choices), (k, 1))
            taken[1 + place] = ~taken[1 + place]
            self._join(i, h, np.where(taken, FORBIDDEN, 0).astype(np.int64).T)

    def leave_to_clique(self, h: int, clique: Clique) -> None:
        """What the vertex h says of pairs of its clique, their own tables need not say."""
        for (i, one), (j, other) in combinations(clique.members, 2):
            at = np.ix_(np.isin(self.labels[i], one), np.isin(self.labels[j], other))
            if j in self.near[i] and (self.table(i, j)[at] >= FORBIDDEN).any():
                self._log(Rule.IMPLIED, i, j, h)
                table = self.table(i, j).copy()
                table[at] = 0
                self._put(i, j, table)

    def keep_rows(self, steps: Ints) -> None:
        """Log that only `steps` are left."""
        self._log(Rule.ROWS, len(self.steps))
        self.steps.append(steps)


def _writable(a: Ints) -> Ints:
    """In C order and writable: compiled code is made anew for every other kind of array."""
    return a if a.flags.c_contiguous and a.flags.writeable else np.array(a, order="C")


def _checked(a: Ints) -> Ints:
    """`saturate`, and `TooLarge` if an allowed entry reaches 2**57."""
    saturate(a)
    if a.size and (int(a.min()) <= -FINITE_LIMIT or int(a.max(where=a < FORBIDDEN, initial=0)) >= FINITE_LIMIT):
        raise TooLarge
    return a
