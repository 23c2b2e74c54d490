"""Resource rows, known as cumulative resource constraints: usage over time, and conflicts between
rows.

Events are the steps at which usage can reach a new maximum; usage a covers the events first_a <= k < last_a.  For
multipliers n >= 0

    f(n) = sum_v min_{a in D_v} sum_t n_t u_t,v(a) - sum_t n_t L  >  0      proves that nothing in D fits
    (`RowConflict`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ....models.problem.selection_problem import Ints, SelectionProblem, Usage
from ..options.bound import BOUND, BoundOptions
from .clock import ENTRIES, Clock
from .factored import Domains

WEIGHTED_LIMIT: Final = 1 << 62
"""Sums of weighted usages up to here are taken in int64."""

Prices = TypeVar("Prices", Ints, NDArray[np.float64])

POLL: Final = 1_000
"""Vertices between two looks at the clock."""


class Rows:
    """The rows of `problem` over its events; use only when the problem has a limit."""

    def __init__(self, problem: SelectionProblem, options: BoundOptions = BOUND) -> None:
        if problem.limit is None:
            raise ValueError("the problem has no limit")
        self.problem, self.options = problem, options
        self.limit = problem.limit
        self.events = problem.events()
        self.kinds: list[Kinds | None] = [None] * len(problem.vertices)
        spans: list[list[tuple[int, int, Ints]]] = [[] for _ in problem.vertices]
        for usage in problem.usages:
            first, last = bisect_left(self.events, usage.start), bisect_left(self.events, usage.end)
            if first < last and int(usage.amount.max()) > 0:
                spans[usage.vertex].append((first, last, usage.amount))
        distinct: dict[tuple[int, ...], tuple[Ints, Ints]] = {}
        for v, parts in enumerate(spans):
            if parts:
                amounts = tuple(id(amount) for _, _, amount in parts)
                if amounts not in distinct:
                    distinct[amounts] = _distinct([amount for _, _, amount in parts])
                self.kinds[v] = _kinds(parts, *distinct[amounts])

    def least(self, domains: Domains) -> Ints:
        """Least possible usage per event when every vertex is taken alone, shape (events,)."""
        total = np.zeros(len(self.events), dtype=np.int64)
        for kinds, d in zip(self.kinds, domains, strict=True):
            if kinds is not None:
                total[kinds.span] += kinds.remaining_usage(d).min(axis=0)
        return total

    def use(self, x: tuple[int, ...] | list[int]) -> Ints:
        """Usage per event of choices `x` (numbers of the original problem), shape (events,)."""
        total = np.zeros(len(self.events), dtype=np.int64)
        for kinds, a in zip(self.kinds, x, strict=True):
            if kinds is not None:
                total[kinds.span] += kinds.usage[kinds.of[a]]
        return total

    def price_usage(self, domains: Domains, n: Prices) -> list[Prices | None]:
        """sum_t n_t u_t,v per vertex and label of its domain (None: v uses nothing); `n` has shape (events,)."""
        out: list[Prices | None] = []
        for kinds, d in zip(self.kinds, domains, strict=True):
            out.append(None if kinds is None else (kinds.usage @ n[kinds.span])[kinds.of[d]])
        return out

    def pairs(self, n: Ints) -> tuple[tuple[int, int], ...]:
        """`n` as the multipliers of a record."""
        return tuple((self.events[int(k)], int(n[k])) for k in np.flatnonzero(n))

    def conflict(self, domains: Domains, thorough: bool, clock: Clock) -> tuple[tuple[int, int], ...] | None:
        """Multipliers of a `RowConflict` on `domains`, if one is found: single rows first, then weighted sums of
        rows, known as surrogate rows, by subgradient steps while there is time.
        """
        least = self.least(domains)
        if least.size == 0:
            return None
        k = int(np.argmax(least))
        if int(least[k]) > self.limit:
            return ((self.events[k], 1),)
        return self._surrogate(domains, clock) if thorough and not clock.over() else None

    def _surrogate(self, domains: Domains, clock: Clock) -> tuple[tuple[int, int], ...] | None:
        """Products of large multipliers and amounts may leave int64; then they are Python integers, which are slow
        and cannot wrap.
        """
        left = [
            (kinds.span, kinds.remaining_usage(d))
            for kinds, d in zip(self.kinds, domains, strict=True)
            if kinds is not None
        ]
        largest = sum(int(usage.max()) for _, usage in left) + self.limit
        whole: type = (
            np.int64 if largest * len(self.events) * self.options.conflict_multiplier < WEIGHTED_LIMIT else object
        )
        left = [(span, usage.astype(whole)) for span, usage in left]
        n = np.ones(len(self.events))
        for step in range(self.options.conflict_steps):
            scaled = np.rint(n * (self.options.conflict_multiplier / max(n.max(), 1e-9))).astype(np.int64).astype(whole)
            use: np.ndarray = np.zeros(len(self.events), dtype=whole)
            for k, (span, usage) in enumerate(left):
                if k % POLL == 0 and clock.over():
                    return None
                clock.charge(usage.size // ENTRIES + 1)
                use[span] += usage[int(np.argmin(usage @ scaled[span]))]
            if int(scaled @ (use - self.limit)) > 0:
                return self.pairs(scaled)
            over = (use - self.limit).astype(np.float64)
            size = float(np.abs(over).max())
            if size == 0:
                return None
            n = np.maximum(0.0, n + over / size * (n.max() / (2 + step) + 1e-3))
            if not n.any():
                return None
        return None


@dataclass(frozen=True, eq=False)
class Kinds:
    """Usage of one vertex: `usage[k]` over the events `span` for labels of kind k, `of[a]` the kind of label a.

    Bytes per device take few values, so there are far fewer kinds than labels.
    """

    span: slice
    usage: Ints
    of: Ints

    def remaining_usage(self, labels: Ints) -> Ints:
        """Usage of the kinds that `labels` still contain."""
        return self.usage[np.unique(self.of[labels])]


def _distinct(amounts: list[Ints]) -> tuple[Ints, Ints]:
    """The distinct rows of amounts side by side, and which of them every label has."""
    values, of = np.unique(np.stack(amounts, axis=1), axis=0, return_inverse=True)
    return values, of.astype(np.int64).reshape(-1)


def _kinds(parts: list[tuple[int, int, Ints]], values: Ints, of: Ints) -> Kinds:
    first, last = min(p[0] for p in parts), max(p[1] for p in parts)
    usage = np.zeros((values.shape[0], last - first), dtype=np.int64)
    for column, (a, b, _) in enumerate(parts):
        usage[:, a - first : b - first] += values[:, column][:, None]
    return Kinds(slice(first, last), usage, of)


def added_up(events: Ints, usages: Sequence[tuple[Usage, int]]) -> Ints:
    """Sum of the amounts over the usages that are live, per event, shape (events,).

    >>> added_up(np.array([0, 4]), [(Usage(0, 0, 4, np.array([3])), 3), (Usage(1, 2, 9, np.array([2])), 2)]).tolist()
    [3, 2]
    """
    spans = np.array([(u.start, max(u.start, u.end)) for u, _ in usages], dtype=np.int64).reshape(-1, 2)
    amounts = np.array([amount for _, amount in usages], dtype=np.int64)
    change = np.zeros(events.size + 1, dtype=np.int64)
    np.add.at(change, np.searchsorted(events, spans[:, 0]), amounts)
    np.subtract.at(change, np.searchsorted(events, spans[:, 1]), amounts)
    return np.cumsum(change)[:-1]
