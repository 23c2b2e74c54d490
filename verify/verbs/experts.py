"""What no placement of experts on ranks goes below, and what a given one takes: sums and the pigeonhole alone.

    average     the ranks share all tokens
    copies      whatever is copied, sum_e ceil(n_e / t) <= slots for the makespan t: some copy has that much
    pigeonhole  without copies: of the k R + 1 fullest experts one rank holds k + 1, and S - k - 1 others besides

Nothing here is searched.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from ...models.schedules.experts import ExpertPlaces


def makespan_and_bound(found: ExpertPlaces) -> tuple[Fraction, Fraction]:
    """The load of the fullest rank, and what no placement of as many slots goes below.

    Raises `ValueError` for what is no placement.

    >>> makespan_and_bound(ExpertPlaces((4, 4, 1, 1), ((0, 2), (1, 3))))
    (Fraction(5, 1), Fraction(5, 1))
    """
    counts, ranks = found.counts, found.ranks
    width = len(ranks[0]) if ranks else 0
    held = [0] * len(counts)
    for rank in ranks:
        if len(rank) != width or len(set(rank)) != width:
            raise ValueError("slots of ranks differ, or a rank holds an expert twice")
        for e in rank:
            if not 0 <= e < len(counts):
                raise ValueError(f"there is no expert {e}")
            held[e] += 1
    if not all(held):
        raise ValueError(f"expert {held.index(0)} has no rank")
    loads = [sum((Fraction(counts[e]) / held[e] for e in rank), Fraction(0)) for rank in ranks]
    slots, total = width * len(ranks), sum(counts)
    bounds = [Fraction(total, len(ranks)), _fullest_copy(counts, slots)]
    if slots == len(counts):
        bounds = [Fraction(ceil(bounds[0])), *_pigeonholes(sorted(counts), len(ranks), width)]
    return max(loads), max(bounds)


def _fullest_copy(counts: tuple[int, ...], slots: int) -> Fraction:
    """The least t such that copies of at most t tokens fill no more than the slots."""
    sizes = sorted({Fraction(n, c) for n in counts for c in range(1, slots - len(counts) + 2) if n})
    low, high = 0, len(sizes) - 1
    while low < high:
        middle = (low + high) // 2
        if sum(max(1, ceil(n / sizes[middle])) for n in counts) <= slots:
            high = middle
        else:
            low = middle + 1
    return sizes[low] if sizes else Fraction(0)


def _pigeonholes(ascending: list[int], ranks: int, width: int) -> list[Fraction]:
    """See the module docstring; without copies."""
    found = []
    for k in range(width):
        fullest = ascending[len(ascending) - k * ranks - 1 :]
        found.append(Fraction(sum(fullest[: k + 1]) + sum(ascending[: width - k - 1])))
    return found
