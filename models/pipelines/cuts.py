"""The least time of a step over all cuts, cut by cut: what the passes of every stage take apart from
each other.

Stage s takes f for the forward and b for the backward pass of a micro-batch, u for its updates; d and e are the sends
there and back in front of it; m micro-batches, i, j < m.  Of what stage s does, all forwards but the first j and all
backwards but the last i lie, one after another, between

    H + min(j M, R)         H = sum over t < s of (f_t + d_(t+1)),       M the longest f of a stage up to s
                            R = f_s + sum over t > s of (f_t + b_t + d_t + e_t)
    E + min(i N, R')        E = u_r + sum over r <= t < s of (b_t + e_(t+1)),       N the longest b from r to s
                            R' = b_s + the sum in R

from the beginning and before the end: the first backward there comes after a way to the last stage and back, and until
then forwards come no faster than from the slowest stage in front; the mirror image holds for the end.  So

    step  >=  H + min(j M, R) + (m - j) f_s + (m - i) b_s + min(i N, R') + E

Runs of units are known by F <= f, B <= b, A <= f + b, W <= f + b + u, V <= m (f + b) + u.  The right-hand side grows
with all times, and with k = max(i, j)

    (m - j) f + (m - i) b + u  >=  ((m - 1 - k) V + k W) / (m - 1) + (k - j) F + (k - i) B              r = s
    (m - j) f + (m - i) b      >=  (m - k) A + (k - j) F + (k - i) B,     f_0 + b_0 + u_0 >= W_0        r = 0

Taken are r = s and r = 0, and where forwards or backwards stop to wait, j = R / M rounded down or up, i likewise, or 0:
with j = i = 0 these are the two lines of `bound`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .bound import Triangle

MOST_PREFIXES = 20_000
"""First stages of cuts that are looked at; with more there is no answer."""

Span = tuple[int, int, int, int, int]
"""Of a stage: F, B, A, W and V at least."""


@dataclass(frozen=True)
class Passes:
    """What runs of units take at least: forward and backward of a micro-batch, alone and together, with updates; all
    micro-batches with updates.
    """

    forward: Triangle
    backward: Triangle
    one: Triangle
    updated: Triangle
    step: Triangle

    def span(self, i: int, j: int) -> Span:
        """Of units i .. j-1."""
        return self.forward[i][j], self.backward[i][j], self.one[i][j], self.updated[i][j], self.step[i][j]


@dataclass(frozen=True)
class Hops:
    """`there[s][c]`, `back[s][c]`: sends in front of stage s > 0 where it begins with unit c."""

    there: Sequence[Sequence[int]]
    back: Sequence[Sequence[int]]


def cut_bound(spans: Sequence[Span], there: Sequence[int], back: Sequence[int], micro: int) -> int:
    """What a step with these stages takes at least; `there[s]`, `back[s]`: sends in front of stage s.

    Forwards of the second stage wait for those of the first, until its first gradient comes back; 48 without that.

    >>> cut_bound([(6, 3, 9, 9, 36), (2, 5, 7, 7, 28), (1, 5, 6, 6, 24)], [0, 2, 2], [0, 2, 2], 4)
    49
    """
    beyond = [0] * len(spans)
    for s in range(len(spans) - 1, 0, -1):
        f, b, a, _, _ = spans[s]
        beyond[s - 1] = beyond[s] + max(a, f + b) + there[s] + back[s]
    value = head = around = slow_f = slow_b = 0
    for s, (f, b, a, w, v) in enumerate(spans):
        slow_f, slow_b = max(slow_f, f), max(slow_b, b)
        for j in _waits(f + beyond[s], slow_f, f, micro):
            start = min(j * slow_f, f + beyond[s])
            own = v if micro == 1 else ((micro - 1 - j) * v + j * w) // (micro - 1) + j * b
            value = max(value, head + start + own)
            for i in _waits(b + beyond[s], slow_b, b, micro) if s else ():
                k, end = max(i, j), min(i * slow_b, b + beyond[s])
                value = max(value, around + start + end + (micro - k) * a + (k - j) * f + (k - i) * b)
        if s + 1 < len(spans):
            head += f + there[s + 1]
            around += (w if s == 0 else max(a, f + b)) + there[s + 1] + back[s + 1]
    return value


def _waits(way: int, slow: int, own: int, micro: int) -> Iterator[int]:
    """How many tasks to leave out: none, or as many as fit `way` at the pace `slow`, where that is not its own."""
    yield 0
    if slow > own:
        yield from {min(n, micro - 1) for n in (way // slow, way // slow + 1)} - {0}


def least_cut(
    known: Passes, hops: Hops, micro: int, starts: Sequence[int], low: int, most: int
) -> tuple[int, tuple[int, ...]] | None:
    """(the least bound over all cuts into as many stages, the starts of its stages), no less than `low`; at `most` or
    above (`most`, ()).  `starts`: a cut to begin with.  None if there are too many cuts.
    """
    units, stages = len(known.one) - 1, len(starts)
    whole, ahead = _behind(known, hops, micro, stages)
    best, found = most, tuple[int, ...]()

    def value_of(cut: Sequence[int]) -> int:
        spans = [known.span(i, j) for i, j in zip(cut, (*cut[1:], units), strict=True)]
        there, back = ([0, *(way[s][cut[s]] for s in range(1, stages))] for way in (hops.there, hops.back))
        return cut_bound(spans, there, back, micro)

    if (first := value_of(starts)) < best:
        best, found = max(first, low), tuple(starts)
    looked = 0
    open_cuts: list[tuple[tuple[int, ...], int, int]] = [((0,), 0, 0)]
    while open_cuts and best > low:
        cut, around, head = open_cuts.pop()
        s, i, left = len(cut) - 1, cut[-1], stages - len(cut)
        if left == 0:
            if (value := value_of(cut)) < best:
                best, found = max(value, low), cut
            continue
        for j in range(units - left, i, -1):
            f, _, a, w, v = known.span(i, j)
            if head + v >= best or (s and around + micro * a >= best):
                continue
            there, back = hops.there[s + 1][j], hops.back[s + 1][j]
            more = around + (a if s else w) + there + back, head + f + there
            if more[0] + whole[left][j] < best and more[1] + ahead[left][j] < best:
                looked += 1
                open_cuts.append(((*cut, j), *more))
        if looked > MOST_PREFIXES:
            return None
    return best, found


def _behind(known: Passes, hops: Hops, micro: int, stages: int) -> tuple[list[list[int]], list[list[int]]]:
    """[left][i]: the least over cuts of units i .. into `left` stages of the largest term of these in either line, from
    the beginning of their first stage on.
    """
    units = len(known.one) - 1
    whole, ahead = [[0] * (units + 1) for _ in range(stages + 1)], [[0] * (units + 1) for _ in range(stages + 1)]
    for i in range(units):
        whole[1][i], ahead[1][i] = micro * known.one[i][units], known.step[i][units]
    for left in range(2, stages):
        there, back = hops.there[stages - left + 1], hops.back[stages - left + 1]
        for i in range(units - left + 1):
            ends = range(i + 1, units - left + 2)
            one, step, forward = known.one[i], known.step[i], known.forward[i]
            whole[left][i] = min(max(micro * one[j], one[j] + there[j] + back[j] + whole[left - 1][j]) for j in ends)
            ahead[left][i] = min(max(step[j], forward[j] + there[j] + ahead[left - 1][j]) for j in ends)
    return whole, ahead
