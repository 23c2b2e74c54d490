"""The least time of a step on a pipeline, from lower bounds of runs of units.

P stages, m micro-batches; stage s of units [i, j) takes a_s for forward and backward of a micro-batch and u_s for its
updates, sends take c there and back at a cut.  Stage s begins when the first micro-batch has come through those before
it; when its last backward has ended the gradient still goes back through them, and the first stage updates:

    step  >=  a_0 + u_0 + c_1  +  sum over 0 < r < s of (a_r + c_{r+1})  +  m a_s            for every s > 0
    step  >=  sum over r < s of (f_r + d_{r+1})  +  m a_s + u_s                               for every s

with f the forward part of a, d the send there.

    A[i, j) <= a,    W[i, j) <= a + u,    V[i, j) <= m a + u         from leaves: bounds of leaves side by side add up
    F[i, j) <= f                                                     from least work

For each of the two lines, the second one without its sum, the least of the largest right-hand side over all cuts into P
stages is found by a program over (first unit, stages left); the larger of both holds (`least`).  Whether any cut has
both lines below a value is asked of stages from the first on, with the sums of both lines at every unit that may come
next, none of which is beaten in both (`all_cuts_reach`).  Units that do not fit the memory of a view make no stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

IMPOSSIBLE = 1 << 70
"""Of units that fit the memory nowhere."""

MOST_SUMS = 64
"""Sums that are kept at a unit; beyond, the least of each line stands for all."""

Triangle = list[list[int]]
"""T[i][j]: of units i .. j-1, for i < j."""


def closure(units: int, known: dict[tuple[int, int], int]) -> Triangle:
    """The best sums of known values over runs side by side; a run that nothing is known of counts 0.

    >>> closure(3, {(0, 1): 1, (1, 2): 1, (2, 3): 1, (0, 2): 5})[0]
    [0, 1, 5, 6]
    """
    best = [[0] * (units + 1) for _ in range(units + 1)]
    ending: list[list[tuple[int, int]]] = [[] for _ in range(units + 1)]
    for (i, j), value in known.items():
        ending[j].append((i, value))
    for i in range(units):
        row = best[i]
        for j in range(i + 1, units + 1):
            row[j] = max(row[j - 1], *(row[k] + value for k, value in ending[j] if k >= i), 0)
    return best


@dataclass(frozen=True)
class Bounds:
    """What runs of units take at least: forward and backward of a micro-batch (`one`), these and updates (`updated`),
    all micro-batches and updates (`step`).
    """

    one: Triangle
    updated: Triangle
    step: Triangle


def least(known: Bounds, micro: int, sends: Sequence[int], stages: int, most: int) -> tuple[int, tuple[int, ...]]:
    """(the least bound over all cuts into `stages` stages, the starts of its stages).  `sends[c]`: there and back at
    cut c.  At `most` or above: (`most`, ()).

    >>> three = closure(3, {(0, 1): 1, (1, 2): 1, (2, 3): 1})
    >>> least(Bounds(three, three, [[4 * v for v in row] for row in three]), 4, [0, 0, 0], 3, 100)
    (6, (0, 1, 2))
    """
    one, units = known.one, len(known.one) - 1
    if stages > units:
        return most, ()
    if stages == 1:
        value = known.step[0][units]
        return (value, (0,)) if value < most else (most, ())
    # What comes before a stage is added to every term of it and of those behind, so the rest is a number of its own.
    rest = {(i, 1): (micro * one[i][units], units) for i in range(units)}
    alone = {(i, 1): known.step[i][units] for i in range(units)}
    for left in range(2, stages + 1):
        for i in range(units - left + 1):
            ends = range(i + 1, units - left + 2)
            alone[i, left] = min(max(known.step[i][j], alone[j, left - 1]) for j in ends)
            if left < stages:
                rest[i, left] = min(
                    (max(micro * one[i][j], one[i][j] + sends[j] + rest[j, left - 1][0]), j) for j in ends
                )
    value, at = min(
        (max(known.step[0][j], known.updated[0][j] + sends[j] + rest[j, stages - 1][0]), j)
        for j in range(1, units - stages + 2)
    )
    value = max(value, alone[0, stages])
    starts = [0]
    for left in range(stages - 1, 0, -1):
        starts.append(at)
        at = rest[at, left][1]
    return (value, tuple(starts)) if value < most else (most, ())


def all_cuts_reach(
    known: Bounds,
    forward: Sequence[int],
    micro: int,
    sends: Sequence[int],
    there: Sequence[int],
    stages: int,
    value: int,
) -> bool:
    """Whether every cut into `stages` stages has a line that is not below `value`.  `forward[u]`: least forward time
    of unit u; `there[c]`: the send at cut c without the way back.

    >>> three = closure(3, {(0, 1): 1, (1, 2): 1, (2, 3): 1})
    >>> bounds = Bounds(three, three, [[9 * v for v in row] for row in three])
    >>> [all_cuts_reach(bounds, [1, 1, 1], 4, [0, 0, 0], [0, 0, 0], 3, v) for v in (11, 12)]
    [True, False]
    """
    units = len(known.one) - 1
    if stages == 1:
        return known.step[0][units] >= value
    before = [0]
    for f in forward:
        before.append(before[-1] + f)
    at: dict[int, list[tuple[int, int]]] = {0: [(0, 0)]}
    for s in range(stages):
        ends = range(units, units + 1) if s == stages - 1 else range(1, units - stages + s + 2)
        coming: dict[int, list[tuple[int, int]]] = {}
        for i, sums in at.items():
            for j in ends:
                if j <= i:
                    continue
                inside = [
                    (a, f)
                    for a, f in sums
                    if f + known.step[i][j] < value and (s == 0 or a + micro * known.one[i][j] < value)
                ]
                if not inside:
                    if all(f + known.step[i][j] >= value for _, f in sums):
                        break  # longer stages take no less
                    continue
                one = known.updated[i][j] if s == 0 else known.one[i][j]
                more = (one + sends[j], before[j] - before[i] + there[j]) if j < units else (0, 0)
                coming.setdefault(j, []).extend((a + more[0], f + more[1]) for a, f in inside)
        at = {j: _least_sums(sums) for j, sums in coming.items()}
    return units not in at


def _least_sums(sums: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that no other is below in both; what stands for them where they are many."""
    found: list[tuple[int, int]] = []
    for a, f in sorted(set(sums)):
        if not found or f < found[-1][1]:
            found.append((a, f))
    return found if len(found) <= MOST_SUMS else [(found[0][0], found[-1][1])]
