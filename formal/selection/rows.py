"""Resource rows: usage over time, repair of solutions that use too much, conflicts between rows.

Events are the steps at which usage can reach a new maximum; usage a covers the events first_a <= k < last_a.  For multipliers n >= 0

    f(n) = sum_v min_{a in D_v} sum_t n_t u_t,v(a) - sum_t n_t L  >  0      proves that nothing in D fits (`RowConflict`).

`repair` lowers  cost + weight * sum_t max(0, use_t - L)  by moves of one vertex, with growing weight, then lowers the cost among the
choices that fit.  Costs count a forbidden entry as 2**60, more than any weighted overflow used here.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import numpy as np

from ...models.problems import FORBIDDEN, Ints, SelectionProblem
from .clock import Clock
from .network import INFINITE, Domains, Network
from .primal import Choice, local_costs

WEIGHT_LIMIT: Final = 1 << 58
CONFLICT_STEPS: Final = 200


class Rows:
    """The rows of `problem` over its events; use only when the problem has a limit."""

    def __init__(self, problem: SelectionProblem) -> None:
        if problem.limit is None:
            raise ValueError("the problem has no limit")
        self.problem = problem
        self.limit = problem.limit
        self.events = problem.events()
        self.at: list[list[tuple[int, int, Ints]]] = [[] for _ in problem.vertices]
        for usage in problem.usages:
            first, last = bisect_left(self.events, usage.start), bisect_left(self.events, usage.end)
            if first < last and int(usage.amount.max()) > 0:
                self.at[usage.vertex].append((first, last, usage.amount))

    def matrix(self, v: int, labels: Ints) -> tuple[int, Ints]:
        """(first event, usage of `labels` over the events that `v` covers), shape (labels, events); no events: width 0."""
        spans = self.at[v]
        if not spans:
            return 0, np.zeros((labels.size, 0), dtype=np.int64)
        first, last = min(s[0] for s in spans), max(s[1] for s in spans)
        out = np.zeros((labels.size, last - first), dtype=np.int64)
        for a, b, amount in spans:
            out[:, a - first : b - first] += amount[labels][:, None]
        return first, out

    def least(self, domains: Domains) -> Ints:
        """Least possible usage per event when every vertex is taken alone, shape (events,)."""
        total = np.zeros(len(self.events), dtype=np.int64)
        for v, d in enumerate(domains):
            if self.at[v]:
                first, matrix = self.matrix(v, d)
                total[first : first + matrix.shape[1]] += matrix.min(axis=0)
        return total

    def use(self, x: tuple[int, ...] | list[int]) -> Ints:
        """Usage per event of choices `x` (numbers of the original problem), shape (events,)."""
        total = np.zeros(len(self.events), dtype=np.int64)
        for v, a in enumerate(x):
            for first, last, amount in self.at[v]:
                total[first:last] += amount[a]
        return total

    def weighted(self, domains: Domains, n: Ints) -> list[Ints | None]:
        """sum_t n_t u_t,v per vertex (None: v uses nothing), from prefix sums of `n` (shape (events,))."""
        prefix = np.concatenate((np.zeros(1, dtype=n.dtype), np.cumsum(n)))
        out: list[Ints | None] = []
        for v, d in enumerate(domains):
            total: Ints | None = None
            for first, last, amount in self.at[v]:
                weight = prefix[last] - prefix[first]
                if weight:
                    term = weight * amount[d]
                    total = term if total is None else total + term
            out.append(total)
        return out

    def pairs(self, n: Ints) -> tuple[tuple[int, int], ...]:
        """`n` as the multipliers of a record."""
        return tuple((self.events[int(k)], int(n[k])) for k in np.flatnonzero(n))

    def conflict(self, domains: Domains, thorough: bool) -> tuple[tuple[int, int], ...] | None:
        """Multipliers of a `RowConflict` on `domains`, if one is found: single rows first, then mixtures by subgradient steps."""
        least = self.least(domains)
        if least.size == 0:
            return None
        k = int(np.argmax(least))
        if int(least[k]) > self.limit:
            return ((self.events[k], 1),)
        return self._mixture(domains) if thorough else None

    def _mixture(self, domains: Domains) -> tuple[tuple[int, int], ...] | None:
        matrices = [(v, *self.matrix(v, d)) for v, d in enumerate(domains) if self.at[v]]
        n = np.ones(len(self.events))
        for step in range(CONFLICT_STEPS):
            scaled = np.rint(n * (4096 / max(n.max(), 1e-9))).astype(np.int64)
            use = np.zeros(len(self.events), dtype=np.int64)
            for _, first, matrix in matrices:
                span = slice(first, first + matrix.shape[1])
                use[span] += matrix[int(np.argmin(matrix @ scaled[span]))]
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


def repair(network: Network, rows: Rows, choice: Choice, clock: Clock, limit: int | None = None, rounds: int = 12) -> Choice | None:
    """Choices near `choice` that fit under `limit` (default: the problem's), cheap among their neighbours; None if none was found."""
    bound = rows.limit if limit is None else limit
    x = list(choice)
    matrices = [rows.matrix(v, d) for v, d in enumerate(network.domains)]
    use = rows.use([int(d[i]) for d, i in zip(network.domains, x, strict=True)])
    weight = 1
    for _ in range(40):
        for _ in range(rounds):
            if clock.over() or not _pass(network, matrices, x, use, bound, weight):
                break
        if use.size == 0 or int(use.max()) <= bound:
            _settle(network, matrices, x, use, bound, clock)
            return x
        if clock.over() or weight > WEIGHT_LIMIT:
            return None
        weight *= 8
    return None


def _overflow(matrix: Ints, first: int, use: Ints, current: int, bound: int) -> tuple[Ints, Ints]:
    """(overflow of every label in units of usage, usage without the vertex over its span)."""
    span = slice(first, first + matrix.shape[1])
    rest = use[span] - matrix[current]
    return np.maximum(0, rest[None, :] + matrix - bound).sum(axis=1), rest


def _pass(network: Network, matrices: list[tuple[int, Ints]], x: Choice, use: Ints, bound: int, weight: int) -> bool:
    """One round of single moves; True when something moved."""
    moved = False
    for v, (first, matrix) in enumerate(matrices):
        if matrix.shape[0] == 1:
            continue
        costs = local_costs(network, x, v)
        over, rest = _overflow(matrix, first, use, x[v], bound)
        safe = int(over.max()) * weight < WEIGHT_LIMIT
        total = costs + over * weight if safe else np.where(costs >= INFINITE, FORBIDDEN, over)
        best = int(np.argmin(total))
        if total[best] < total[x[v]]:
            x[v] = best
            use[first : first + matrix.shape[1]] = rest + matrix[best]
            moved = True
    return moved


def _settle(network: Network, matrices: list[tuple[int, Ints]], x: Choice, use: Ints, bound: int, clock: Clock) -> None:
    """Lower the cost by single moves that keep every row."""
    for _ in range(20):
        moved = False
        for v, (first, matrix) in enumerate(matrices):
            if matrix.shape[0] == 1:
                continue
            costs = local_costs(network, x, v)
            over, rest = _overflow(matrix, first, use, x[v], bound)
            costs = np.where(over > 0, FORBIDDEN, costs)
            best = int(np.argmin(costs))
            if costs[best] < costs[x[v]]:
                x[v] = best
                use[first : first + matrix.shape[1]] = rest + matrix[best]
                moved = True
        if not moved or clock.over():
            return


def smallest_peak(network: Network, rows: Rows, choice: Choice, clock: Clock) -> tuple[Choice, int]:
    """Choices with a small peak by repeated repair under shrinking limits, and the peak."""
    x = list(choice)

    def peak(y: Choice) -> int:
        use = rows.use([int(d[i]) for d, i in zip(network.domains, y, strict=True)])
        return int(use.max()) if use.size else 0

    best = peak(x)
    step = max(1, best // 2)
    while step and not clock.over():
        lower = repair(network, rows, x, clock, limit=best - step)
        if lower is None:
            step //= 2
        else:
            x, best = lower, peak(lower)
            step = min(step, best)
    return x, best
