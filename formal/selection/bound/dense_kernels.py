"""Loops over a dense problem, compiled with numba: prices, usage, decoding, exact score.  Arguments
are arrays of `DenseProblem`.

Sweeps (`bound/sweep_kernels.py`) and decoding work on floats and only guide; `score` works on int64 under the ranges
that `quantise` tests, and carries the proof.
"""

from __future__ import annotations

import numpy as np

from ....models.problem.selection_problem import Ints
from ...compiling import njit
from ..model.dense import DenseProblem, Floats
from .sweep_kernels import FAR, thetas


def price_labels(flat: DenseProblem, cost: Floats | Ints, n: Floats | Ints, weight: Floats | Ints) -> None:
    """weight = cost + what every label uses at the prices `n` of the rows; `weight` may be `cost`."""
    weigh(flat.label, cost, flat.spans, np.concatenate([np.zeros(1, dtype=n.dtype), np.cumsum(n)]), weight)


@njit(cache=True, nogil=True)
def weigh(label, cost, spans, prefix, weight):  # type: ignore[no-untyped-def]
    """weight = cost + sum over spans of (prefix[last] - prefix[first]) * amount."""
    part, first, last, at, amount = spans
    for i in range(label.shape[0] - 1):
        here, k = label[i], label[i + 1] - label[i]
        for a in range(k):
            weight[here + a] = cost[here + a]
        for p in range(part[i], part[i + 1]):
            n = prefix[last[p]] - prefix[first[p]]
            if n != 0:
                for a in range(k):
                    weight[here + a] += n * amount[at[p] + a]


@njit(cache=True, nogil=True)
def usage(x, spans, use):  # type: ignore[no-untyped-def]
    """Usage per row of positions `x`, written to `use`."""
    part, first, last, at, amount = spans
    use[:] = 0
    rows = use.shape[0]
    for i in range(x.shape[0]):
        for p in range(part[i], part[i + 1]):
            q = amount[at[p] + x[i]]
            if q != 0 and first[p] < last[p]:
                use[first[p]] += q
                if last[p] < rows:
                    use[last[p]] -= q
    _running(use)


@njit(cache=True, nogil=True)
def expected_usage(label, spans, shares, use):  # type: ignore[no-untyped-def]
    """Expected usage per row, written to `use`; `shares`: of every label."""
    part, first, last, at, amount = spans
    use[:] = 0
    rows = use.shape[0]
    for i in range(label.shape[0] - 1):
        for p in range(part[i], part[i + 1]):
            if first[p] >= last[p]:
                continue
            q = 0.0
            for a in range(label[i + 1] - label[i]):
                q += shares[label[i] + a] * amount[at[p] + a]
            use[first[p]] += q
            if last[p] < rows:
                use[last[p]] -= q
    _running(use)


@njit(cache=True, nogil=True)
def _running(use):  # type: ignore[no-untyped-def]
    """Running sums, in place."""
    for r in range(1, use.shape[0]):
        use[r] += use[r - 1]


@njit(cache=True, nogil=True)
def reach(g, messages, sums):  # type: ignore[no-untyped-def]
    """Adds the messages of every label to `sums`."""
    for i in range(g.label.shape[0] - 1):
        thetas(i, g, None, sums, messages, sums[g.label[i] : g.label[i + 1]], None, False)


@njit(cache=True, nogil=True)
def score(g, weight, cells, messages, low, least, excess):  # type: ignore[no-untyped-def]
    """Exact minima in int64: `low` per vertex, `least` per edge, `excess` per label (see `bound/dual.py`).  `cells` and
    `weight` are scaled.
    """
    label, u, v = g.label, g.u, g.v
    widest = 1
    for i in range(label.shape[0] - 1):
        here, end = label[i], label[i + 1]
        widest = max(widest, end - here)
        thetas(i, g, None, weight, messages, excess[here:end], None, False)
        best = excess[here]
        for a in range(here + 1, end):
            best = min(best, excess[a])
        low[i] = best
        for a in range(here, end):
            excess[a] -= best
    of_v = np.empty(widest, np.int64)
    of_u = np.empty(widest, np.int64)
    for e in range(u.shape[0]):
        ku, kv = label[u[e] + 1] - label[u[e]], label[v[e] + 1] - label[v[e]]
        mu, mv, t = g.message[2 * e], g.message[2 * e + 1], g.table[e]
        for b in range(kv):
            of_v[b] = FAR * 4
        for a in range(ku):
            row = cells[t + a * kv : t + (a + 1) * kv]
            x = messages[mu + a]
            best = FAR * 4
            for b in range(kv):
                y = row[b] - messages[mv + b] - x
                best = min(best, y)
                of_v[b] = min(of_v[b], y)
            of_u[a] = best
        best = of_u[0]
        for a in range(1, ku):
            best = min(best, of_u[a])
        least[e] = best
        at = label[u[e]]
        for a in range(ku):
            excess[at + a] = min(excess[at + a] + min(of_u[a] - best, FAR), FAR * 2)
        at = label[v[e]]
        for b in range(kv):
            excess[at + b] = min(excess[at + b] + min(of_v[b] - best, FAR), FAR * 2)


@njit(cache=True, nogil=True)
def decode(g, weight, cells, messages, x):  # type: ignore[no-untyped-def]
    """Positions read off the messages of the last sweep, which went backward: vertices in order, first least label."""
    label, near, edge, u, v, table, message = g
    n = label.shape[0] - 1
    widest = 0
    for i in range(n):
        widest = max(widest, label[i + 1] - label[i])
    total = np.empty(widest)
    for i in range(n):
        here, k = label[i], label[i + 1] - label[i]
        for a in range(k):
            total[a] = weight[here + a]
        for j in range(near[i], near[i + 1]):
            e = edge[j]
            mine = u[e] == i
            other = v[e] if mine else u[e]
            if other < i:  # decided
                t = table[e]
                if mine:
                    m = label[other + 1] - label[other]
                    for a in range(k):
                        total[a] += cells[t + a * m + x[other]]
                else:
                    for a in range(k):
                        total[a] += cells[t + x[other] * k + a]
            else:
                at = message[2 * e] if mine else message[2 * e + 1]
                for a in range(k):
                    total[a] += messages[at + a]
        best = 0
        for a in range(1, k):
            if total[a] < total[best]:
                best = a
        x[i] = best
