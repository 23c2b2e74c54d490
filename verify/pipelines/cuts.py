"""Whether any cut into stages may take less than a value: every cut is looked at, stage by stage.

Equal micro-batches pass a stage in order without loss (`verify.schedules.pipeline`).  Then on stage s, with f, b, u the
times of forward, backward and updates, d and e the sends there and back in front of a stage:

    forward j starts           not before  H + j f_q        for every q <= s:  stage q ran j forwards before it
    any backward starts        not before  H + R            the first one has been through all stages behind
    backward m - 1 - i ends    not after   T - E - i b_q    for every r <= q <= s:  i more follow on stage q
    any forward ends           not after   T - E - R'       its backward follows

    H = sum over t < s of (f_t + d_(t+1))         R = f_s + way,  R' = b_s + way
    E = u_r + sum over r <= t < s of (b_t + e_(t+1))      way = sum over t > s of (f_t + b_t + d_t + e_t)

where T is the end of the step.  The stage works m - j forwards and m - i backwards in between, one after another:

    T  >=  H + min(j f_q, R) + (m - j) f_s + (m - i) b_s + min(i b_q, R') + E

Of runs F <= f, B <= b, A <= f + b, W <= f + b + u, V <= m (f + b) + u are known; every term is replaced by what follows
from these: nothing is subtracted, so lower bounds may stand for times.  With k = max(i, j) < m, for r = s

    (m - j) f + (m - i) b + u  =  p (m f + m b + u) + (1 - p) (f + b + u) + (k - j) f + (k - i) b

with p = 1 - k / (m - 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..budget import Budget
from .bound import PLACE, RUN

MOST_CUTS = 1 << 17
"""First stages of cuts that are looked at, for one value."""

Table = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Known:
    """Least times of units i .. j-1 at [i][j]: forward, backward, both, these and updates, all micro-batches with
    updates; sends in front of stage s at unit c at [s][c], there and back.
    """

    forward: Table
    backward: Table
    both: Table
    updated: Table
    step: Table
    there: Table
    back: Table


def takes(known: Known, cut: Sequence[int], micro: int) -> int:
    """The least step of a cut that is known; `cut`: first units of its stages."""
    runs = list(zip(cut, [*cut[1:], len(known.both) - 1], strict=True))
    f, b, a, w, v = (
        [table[i][j] for i, j in runs]
        for table in (known.forward, known.backward, known.both, known.updated, known.step)
    )
    last = len(runs)
    d, e = ([0, *(table[s][cut[s]] for s in range(1, last))] for table in (known.there, known.back))
    round_trip = [max(a[s], f[s] + b[s]) for s in range(last)]
    least = 0
    for s in range(last):
        way = sum(round_trip[t] + d[t] + e[t] for t in range(s + 1, last))
        to_come = sum(f[t] + d[t + 1] for t in range(s))
        there_and_back = sum((round_trip[t] if t else w[0]) + d[t + 1] + e[t + 1] for t in range(s))
        for j in left_out(f[s] + way, max(f[: s + 1]), f[s], micro):
            begin = min(j * max(f[: s + 1]), f[s] + way)
            if micro > 1:
                busy = ((micro - 1 - j) * v[s] + j * w[s]) // (micro - 1) + j * b[s]
            else:
                busy = v[s]
            least = max(least, to_come + begin + busy)
            for i in left_out(b[s] + way, max(b[: s + 1]), b[s], micro):
                if s == 0:
                    break  # r = s was that
                end, k = min(i * max(b[: s + 1]), b[s] + way), max(i, j)
                busy = (micro - k) * a[s] + (k - j) * f[s] + (k - i) * b[s]
                least = max(least, there_and_back + begin + busy + end)
    return least


def left_out(way: int, pace: int, own: int, micro: int) -> list[int]:
    """Numbers of tasks that are left out: 0, and both around `way` / `pace`, below `micro`; 0 alone at the own pace."""
    if pace <= own:
        return [0]
    return sorted({0, min(micro - 1, way // pace), min(micro - 1, way // pace + 1)})


def none_below(known: Known, stages: int, micro: int, wanted: int, budget: Budget | None = None) -> bool:
    """Whether all cuts into `stages` > 1 stages are shown to take `wanted` or more."""
    units = len(known.both) - 1
    budget = Budget.with_large() if budget is None else budget
    budget.charge(RUN * 2 * stages * units * units, PLACE)
    rest = _rest(known, stages, micro)
    todo: list[tuple[int, ...]] = [(0,)]
    looked = 0
    while todo:
        cut = todo.pop()
        if len(cut) == stages:
            budget.charge(RUN * stages * (stages + 64), PLACE)
            if takes(known, cut, micro) < wanted:
                return False
            continue
        looked += 1
        if looked > MOST_CUTS:
            return False
        left = stages - len(cut)  # stages after the one that ends at j
        budget.charge(RUN * (1 + len(cut)) * max(1, units - left + 1 - cut[-1]), PLACE)
        for j in range(cut[-1] + 1, units - left + 1):
            if _open(known, (*cut, j), micro, wanted, rest[left]):
                todo.append((*cut, j))
    return True


def _open(known: Known, cut: tuple[int, ...], micro: int, wanted: int, rest: list[tuple[int, int]]) -> bool:
    """Whether the stages of a cut but the last, and all that may follow, have both plain lines below the value."""
    head = around = 0
    for s, (i, j) in enumerate(pairwise(cut)):
        if head + known.step[i][j] >= wanted or (s and around + micro * known.both[i][j] >= wanted):
            return False
        there = known.there[s + 1][j]
        head += known.forward[i][j] + there
        around += (known.both if s else known.updated)[i][j] + there + known.back[s + 1][j]
    a, v = rest[cut[-1]]
    return head + v < wanted and around + a < wanted


def _rest(known: Known, stages: int, micro: int) -> list[list[tuple[int, int]]]:
    """[n][i]: the least that the two plain lines say of units i .. on the last n stages, from their begin on."""
    units = len(known.both) - 1
    rows = [[(0, 0)] * (units + 1), [(micro * known.both[i][units], known.step[i][units]) for i in range(units)]]
    for n in range(2, stages):
        s = stages - n + 1  # the stage behind the first of them
        row = []
        for i in range(units - n + 1):
            a = v = 1 << 80
            for j in range(i + 1, units - n + 2):
                go, come, (next_a, next_v) = known.there[s][j], known.back[s][j], rows[n - 1][j]
                a = min(a, max(micro * known.both[i][j], known.both[i][j] + go + come + next_a))
                v = min(v, max(known.step[i][j], known.forward[i][j] + go + next_v))
            row.append((a, v))
        rows.append(row)
    return rows
