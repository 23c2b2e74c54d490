"""The least time of a step whose groups of devices hold several chunks of the model, over all cuts.

S groups, V chunks each, chunk c of units [i, j) on group c mod S, P = S V, m micro-batches; a_c = f_c + b_c and u_c:
forward and backward of a micro-batch, updates; d_c, e_c: the sends there and back in front of chunk c.  A group works
on one task after another, and updates its chunks behind its last backward.  Of group s look at the forwards of its
chunks from the k-th on and the backwards from the l-th on, k, l = 0 .. V (V: of none), not both V:

    line(s, k, l)   step  >=  head  +  m (sum of f over these)  +  m (sum of b over these)  +  tail  +  U_0

    head   sum over r < s + k S of (f_r + d_(r+1))          before the first of the forwards;  for k = V, before the
           first backward on the group:  sum of all f and d  +  sum over r > s + (V - 1) S of (b_r + e_r)
    tail   sum over r < s + l S of (b_r + e_(r+1))          behind the last of the backwards;  for l = V, behind the
           last forward on the group:  sum over r > s + (V - 1) S of (f_r + d_r)  +  sum of all b and e
    U_0    updates of group 0

    own(s)          step  >=  sum over r < s of (f_r + d_(r+1))  +  sum over its chunks of (m a + u)

For weights of the lines, none negative, the weighted mean of the lines is no more than the largest, and it is a sum
over chunks: its least over all cuts is found by a program over (chunk, first unit).  Any weights give a bound; the best
ones are the duals of the least largest line.  Runs of units are known by F, B, A, W, V as in `cuts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .bound import IMPOSSIBLE
from .cuts import Hops, Passes

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """`groups` of devices, `chunks` on each, `micro` micro-batches."""

    groups: int
    chunks: int
    micro: int

    @property
    def parts(self) -> int:
        """Chunks of the model."""
        return self.groups * self.chunks

    @cached_property
    def lines(self) -> list[tuple[int, int, int]]:
        """(s, k, l) of the first weights; then come those of own(s).

        >>> Shape(2, 1, 4).lines
        [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 0, 1), (1, 1, 0)]
        """
        v = self.chunks
        every = [(s, k, n) for s in range(self.groups) for k in range(v + 1) for n in range(v + 1)]
        return [(s, k, n) for s, k, n in every if k < v or n < v]

    @cached_property
    def counts(self) -> Floats:
        """[line, chunk, what]: how often a line counts f, b, u and m a + u of a chunk, and the sends behind it, there
        and back.
        """
        p, s_all, v = self.parts, self.groups, self.chunks
        table = np.zeros((len(self.lines) + s_all, p, 6))
        for row, (s, k, n) in zip(table, self.lines, strict=False):
            last = s + (v - 1) * s_all
            mine = np.arange(p) % s_all == s
            chunk = np.arange(p)
            for what, sends, first, other, back in ((0, 4, k, 1, 5), (1, 5, n, 0, 4)):
                if first < v:
                    row[chunk < s + first * s_all, what] += 1
                    row[chunk < s + first * s_all, sends] += 1
                    row[mine & (chunk >= s + first * s_all), what] += self.micro
                else:
                    row[:, what] += 1
                    row[:-1, sends] += 1
                    row[chunk > last, other] += 1
                    row[last:-1, back] += 1
            row[::s_all, 2] += 1
        for s, row in enumerate(table[len(self.lines) :]):
            row[:s, 0] += 1
            row[:s, 4] += 1
            row[s::s_all, 3] += 1
        return table


def weighted_bound(known: Passes, hops: Hops, shape: Shape, weights: Sequence[int]) -> int:
    """What a step takes at least, in the unit of `known`: the least weighted mean of the lines over all cuts.

    >>> one = [[0, 3, 6, 9, 12], [0, 0, 3, 6, 9], [0, 0, 0, 3, 6], [0, 0, 0, 0, 3], [0] * 5]
    >>> f, b, four = ([[k * v // 3 for v in row] for row in one] for k in (1, 2, 12))
    >>> none, shape = [[0] * 5 for _ in range(4)], Shape(2, 2, 4)
    >>> weights = [int(line == (1, 0, 0)) for line in shape.lines] + [0, 0]
    >>> weighted_bound(Passes(f, b, one, one, four), Hops(none, none), shape, weights)
    27
    """
    units, last = len(known.one) - 1, shape.parts - 1
    counts: list[list[int]] = np.einsum("l,lcw->cw", np.array(weights), shape.counts.astype(np.int64)).tolist()
    nothing = IMPOSSIBLE * sum(weights)
    rest = [nothing] * units + [0]
    for r in range(last, -1, -1):
        *rows, there, back = counts[r]
        more = [0] * (units + 1)
        if r < last:
            pairs = zip(hops.there[r + 1], hops.back[r + 1], strict=True)
            more = [*(there * x + back * y for x, y in pairs), 0]
        new = [nothing] * (units + 1)
        for i in range(units) if r else (0,):
            ends = range(i + 1, units - last + r + 1)
            new[i] = min((_taken(known, rows, i, j) + more[j] + rest[j] for j in ends), default=nothing)
        rest = new
    return min(IMPOSSIBLE, -(-rest[0] // sum(weights)))


def _taken(known: Passes, counts: Sequence[int], i: int, j: int) -> int:
    """Counts of f, b, u and m a + u times what is known, together where more is known of them together."""
    f, b, a, w, v = known.span(i, j)
    forward, backward, update, step = counts
    both = min(forward, backward)
    all_three = min(both, update)
    a = max(a, f + b)
    joint = all_three * max(w, a) + (both - all_three) * a
    return joint + (forward - both) * f + (backward - both) * b + step * v
