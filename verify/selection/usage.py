"""Usage over time during the replay of a reduction log, on numpy.

    total usage at row r  =  base_r + sum_v u_r,v(x_v)              rows: the steps that the state still has, ascending,
                             numbered from 0

Each vertex has a list of spans [s, e) of rows with one amount per choice left.  `spans(v)` brings them to disjoint
spans with the minimum over the choices moved to the base and spans of zeros dropped, so that no span is left exactly if
the usage does not depend on the choice.  Sums stay below the sum of the largest amounts of all usages, which must be <
2**62.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem, Usage, Vertex
from ...proofs.selection.presolve_log import BASELINE
from .ground import Domains


class Wrong(Exception):
    """The entry of the log that is being replayed does not hold."""


@dataclass(frozen=True, eq=False)
class Spans:
    """Rows first[k] <= r < last[k] use amount[k, a]; shapes (n,), (n,), (n, choices)."""

    first: Ints
    last: Ints
    amount: Ints

    def choices(self, kept: Ints) -> Spans:
        """Choice a becomes what was choice kept[a]."""
        return Spans(self.first, self.last, self.amount[:, kept])


class UsageState:
    """`rows`: steps of the enclosing problem; `limit`: None without resource rows (then there is no usage at all)."""

    def __init__(self, problem: SelectionProblem, domains: Domains) -> None:
        self.limit = problem.limit
        self.rows = np.array(problem.events() if self.limit is not None else [], dtype=np.int64)
        self._change = np.zeros(self.rows.size + 1, dtype=np.int64)  # base as differences
        self._parts: list[list[Spans]] = [[] for _ in problem.vertices]
        self._tidy = [True] * len(problem.vertices)
        if self.limit is None:
            return
        live = [u for u in problem.usages if u.start < u.end]
        if sum(int(u.amount.max()) for u in live) >= 1 << 62:
            raise Wrong("usages are too large for a replay in 64 bits")
        ends = np.searchsorted(self.rows, np.array([(u.start, u.end) for u in live], dtype=np.int64).reshape(-1, 2))
        for u, (first, last) in zip(live, ends, strict=True):
            amount = u.amount[domains[u.vertex]]
            self._parts[u.vertex].append(Spans(np.array([first]), np.array([last]), amount[None]))
            self._tidy[u.vertex] = False

    def add_vertex(self) -> None:
        """A vertex more, which uses nothing."""
        self._parts.append([])
        self._tidy.append(True)

    def base(self) -> Ints:
        """Usage per row that does not depend on choices, shape (rows,)."""
        return np.cumsum(self._change)[:-1]

    def size(self, v: int) -> int:
        """Amounts of `v`."""
        return sum(p.amount.size for p in self._parts[v])

    def spans(self, v: int) -> Spans | None:
        """Usage of `v` beyond its minimum in every row; None if it is zero."""
        if not self._tidy[v]:
            self._parts[v], self._tidy[v] = self._reduced(self._joined(v)), True
        return self._parts[v][0] if self._parts[v] else None

    def _joined(self, v: int) -> list[Spans]:
        """The parts of `v` as one; empty if there are none."""
        parts = self._parts[v]
        if len(parts) < 2:
            return parts
        columns = ([p.first for p in parts], [p.last for p in parts], [p.amount for p in parts])
        return [Spans(*(np.concatenate(column) for column in columns))]

    def _reduced(self, parts: list[Spans]) -> list[Spans]:
        if not parts:
            return []
        first, last, amount = parts[0].first, parts[0].last, parts[0].amount
        cuts = np.unique(np.concatenate([first, last]))
        change = np.zeros((cuts.size, amount.shape[1]), dtype=np.int64)
        np.add.at(change, np.searchsorted(cuts, first), amount)
        np.subtract.at(change, np.searchsorted(cuts, last), amount)
        level = np.cumsum(change, axis=0)[:-1]
        least = level.min(axis=1)
        np.add.at(self._change, cuts[:-1], least)
        np.subtract.at(self._change, cuts[1:], least)
        level -= least[:, None]
        kept = level.any(axis=1)
        return [Spans(cuts[:-1][kept], cuts[1:][kept], level[kept])] if kept.any() else []

    def keep_choices(self, v: int, kept: Ints) -> None:
        """Choice a of `v` becomes what was choice kept[a]."""
        self._parts[v] = [p.choices(kept) for p in self._joined(v)]
        self._tidy[v] = not self._parts[v]

    def move(self, i: int, j: int, g: Ints) -> None:
        """Usage of `i` joins `j`, whose choice y means choice g[y] of `i`."""
        self._parts[j] += [p.choices(g) for p in self._joined(i)]
        self._tidy[j] = self._tidy[j] and not self._parts[i]
        self._parts[i], self._tidy[i] = [], True

    def keep_rows(self, steps: Ints) -> None:
        """Only `steps` stay."""
        at = np.searchsorted(self.rows, steps)
        if (
            steps.ndim != 1
            or (np.diff(steps) <= 0).any()
            or (at >= self.rows.size).any()
            or (self.rows[at] != steps).any()
        ):
            raise Wrong("rows to keep do not ascend, or are not rows of the state")
        if steps.size == self.rows.size:
            raise Wrong("no row leaves")
        base = self.base()[at]
        self.rows = self.rows[at]
        self._change = np.diff(base, prepend=0, append=0)
        every = [p for parts in self._parts for p in parts]
        if not every:
            return
        first, last = (
            np.searchsorted(at, np.concatenate([p.first for p in every])),
            np.searchsorted(at, np.concatenate([p.last for p in every])),
        )
        kept = first < last
        cuts = np.concatenate([[0], np.cumsum([p.first.size for p in every])]).tolist()
        left = np.add.reduceat(kept, cuts[:-1], dtype=np.int64).tolist()
        number = 0
        for v, parts in enumerate(self._parts):
            moved = []
            for p in parts:
                here = slice(cuts[number], cuts[number + 1])
                if left[number] == p.first.size:
                    moved.append(Spans(first[here], last[here], p.amount))
                elif left[number]:
                    k = kept[here]
                    moved.append(Spans(first[here][k], last[here][k], p.amount[k]))
                number += 1
            self._parts[v] = moved
            self._tidy[v] = not moved

    def usages(self, number: dict[int, int]) -> list[Usage]:
        """Usages of the vertices `number` (old to new), over rows as steps."""
        out = []
        for v, new in number.items():
            spans = self.spans(v)
            if spans is not None:
                out += [
                    Usage(new, s, e, amount)
                    for s, e, amount in zip(spans.first.tolist(), spans.last.tolist(), spans.amount, strict=True)
                ]
        return out

    def baseline(self, vertex: int) -> tuple[Vertex, list[Usage]]:
        """A vertex of one choice that uses the base; call after `usages`, which completes the base."""
        base = self.base()
        cuts = np.flatnonzero(np.diff(base, prepend=0, append=0))
        spans = zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
        return Vertex(BASELINE, np.zeros(1, dtype=np.int64)), [
            Usage(vertex, s, e, base[s : s + 1]) for s, e in spans if base[s]
        ]


def saturate(a: Ints) -> Ints:
    """A sum with entries >= 2**59 (those with a forbidden term) set to FORBIDDEN; in place.  Others must be below
    2**57 in size.
    """
    if not a.size:
        return a
    low, high = int(np.minimum.reduce(a, axis=None)), int(np.maximum.reduce(a, axis=None))
    if high >= FORBIDDEN >> 3:
        allowed = a < FORBIDDEN >> 1
        high = int(np.maximum.reduce(a, axis=None, where=allowed, initial=0))
        a[~allowed] = FORBIDDEN
    if low <= -(FORBIDDEN >> 3) or high >= FORBIDDEN >> 3:
        raise Wrong("costs grow beyond 2**57")
    return a
