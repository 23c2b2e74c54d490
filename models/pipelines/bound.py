"""The least time of a step on a pipeline, from lower bounds of runs of units.

With P stages, m micro-batches, a stage s of units [i, j) that takes a_s for forward and backward of a micro-batch and
u_s for its updates, and sends c at the cuts: stage s begins when the first micro-batch has come through those before
it, and when its last backward has ended the gradient goes back through them; then all stages update:

    step  >=  max over s of   sum over r < s of (a_r + sends there and back)  +  m a_s + u_s

    A[i, j) <= a,    V[i, j) <= m a + u         from leaves: bounds of leaves side by side add up

The least of the right-hand side over all cuts into P stages is found by a program over (stages so far, end), which
keeps the pairs (sum, maximum) that no other pair beats in both.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def least(micro: Triangle, step: Triangle, sends: Sequence[int], stages: int, most: int) -> tuple[int, tuple[int, ...]]:
    """(the least bound over all cuts into `stages` stages, the starts of its stages).  `sends[c]`: there and back at
    cut c.  At `most` or above: (`most`, ()).

    >>> three = closure(3, {(0, 1): 1, (1, 2): 1, (2, 3): 1})
    >>> least(three, [[4 * v for v in row] for row in three], [0, 0, 0], 3, 100)
    (6, (0, 1, 2))
    """
    units = len(micro) - 1
    if stages > units:
        return most, ()
    front: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {0: [(0, 0, ())]}
    for s in range(stages):
        ahead: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {}
        for i, pairs in front.items():
            ends = (units,) if s == stages - 1 else range(i + 1, units - (stages - 1 - s) + 1)
            for j in ends:
                for total, worst, starts in pairs:
                    reached = max(worst, total + step[i][j])
                    if reached >= most:
                        continue
                    after = total + micro[i][j] + (sends[j] if j < units else 0)
                    ahead.setdefault(j, []).append((after, reached, (*starts, i)))
        front = {j: _undominated(pairs) for j, pairs in ahead.items()}
    found = [(worst, starts) for _, worst, starts in front.get(units, [])]
    return min(found, default=(most, ()))


def _undominated(pairs: list[tuple[int, int, tuple[int, ...]]]) -> list[tuple[int, int, tuple[int, ...]]]:
    out: list[tuple[int, int, tuple[int, ...]]] = []
    for pair in sorted(pairs):
        if not out or pair[1] < out[-1][1]:
            out.append(pair)
    return out
