"""Places experts on ranks with a small makespan: fullest first, then exchanges; copies of the fullest where asked for.

    copies     each goes to the expert with most tokens a copy (the fullest copy is then as small as it can be)
    first      copies, fullest first, each to the emptiest rank with a slot that does not hold the expert
    exchange   of two slots, one of the fullest rank, as long as the larger of the two ranks' loads falls

That no placement is better is not said here: bounds are the checker's (`verify.verbs.experts`), and small cases
without copies are encoded: one vertex per expert, its choices the ranks, a row per rank that its tokens may not exceed,
and one that holds as many experts as there are slots; infeasible with one token less.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from heapq import heapify, heapreplace
from typing import Final

import numpy as np

from ...models.problem.selection_problem import SelectionProblem, Usage, Vertex
from ...models.schedules.experts import ExpertPlaces
from ...models.text import InputError

SMALL: Final = 12
"""Experts of a case whose least makespan is proved by search: ten take seconds, sixteen do not end."""

ROUNDS: Final = 10_000
"""Exchanges of one layer: each lowers the fullest rank or the number of fullest ranks; a bound, not a target."""


def place_experts(counts: Sequence[int], ranks: int, more: int = 0) -> ExpertPlaces:
    """Experts on ranks, with `more` copies.  Raises `InputError` where slots cannot be filled evenly.

    >>> place_experts([7, 1, 1, 1], 2).loads
    (Fraction(8, 1), Fraction(2, 1))
    >>> place_experts([6, 1, 1], 2, 1).loads
    (Fraction(4, 1), Fraction(4, 1))
    """
    slots = len(counts) + more
    if slots % ranks:
        raise InputError(
            f"{len(counts)} experts and {more} copies more do not fill {ranks} ranks evenly; "
            f"{-slots % ranks} copies more would"
        )
    if slots > len(counts) * ranks:
        raise InputError(f"{slots} slots are more than every one of {len(counts)} experts on all of {ranks} ranks")
    copies = _copies(counts, ranks, more)
    each = [Fraction(n, c) for n, c in zip(counts, copies, strict=True)]
    held = _first([e for e, c in enumerate(copies) for _ in range(c)], each, ranks, slots // ranks)
    _exchange(held, each)
    return ExpertPlaces(tuple(counts), tuple(tuple(sorted(rank)) for rank in held)).check()


def _copies(counts: Sequence[int], ranks: int, more: int) -> list[int]:
    copies = [1] * len(counts)
    heap = [(-Fraction(n), e) for e, n in enumerate(counts)]
    heapify(heap)
    for _ in range(more):
        while copies[heap[0][1]] == ranks:
            heapreplace(heap, (Fraction(1), heap[0][1]))  # on every rank already
        e = heap[0][1]
        copies[e] += 1
        heapreplace(heap, (-Fraction(counts[e], copies[e]), e))
    return copies


def _first(items: list[int], each: Sequence[Fraction], ranks: int, width: int) -> list[list[int]]:
    """Every copy on a rank; where only a rank that holds the expert has a slot, another rank makes one."""
    held: list[list[int]] = [[] for _ in range(ranks)]
    loads = [Fraction(0)] * ranks
    for e in sorted(items, key=lambda e: (-each[e], e)):
        open_ranks = [r for r in range(ranks) if len(held[r]) < width]
        r = min(open_ranks, key=lambda r: (e in held[r], loads[r], r))
        if e in held[r]:
            s, other = next(
                (s, x) for s in range(ranks) if e not in held[s] for x in held[s] if x not in held[r] and x != e
            )
            held[s].remove(other)
            held[s].append(e)
            loads[s] += each[e] - each[other]
            e = other
        held[r].append(e)
        loads[r] += each[e]
    return held


def _exchange(held: list[list[int]], each: Sequence[Fraction]) -> None:
    loads = [sum((each[e] for e in rank), Fraction(0)) for rank in held]
    for _ in range(ROUNDS):
        full = max(range(len(held)), key=lambda r: (loads[r], -r))
        best: tuple[Fraction, int, int, int] | None = None
        for r, rank in enumerate(held):
            for mine in held[full] if r != full else ():
                for other in rank:
                    if mine in rank or other in held[full] or each[mine] <= each[other]:
                        continue
                    moved = each[mine] - each[other]
                    worst = max(loads[full] - moved, loads[r] + moved)
                    if worst < loads[full] and (best is None or (worst, r, mine, other) < best):
                        best = worst, r, mine, other
        if best is None:
            return
        _, r, mine, other = best
        held[full].remove(mine)
        held[full].append(other)
        held[r].remove(other)
        held[r].append(mine)
        loads[full] += each[other] - each[mine]
        loads[r] += each[mine] - each[other]


def better_places(found: ExpertPlaces) -> SelectionProblem:
    """The problem of placing the experts, without copies, so that every rank has a token less than the fullest has now:
    it is infeasible where there is nothing better.
    """
    counts, ranks = found.counts, len(found.ranks)
    width, most = len(counts) // ranks, int(found.makespan) - 1
    scale = width * (width + 1) // max(1, most) + 1
    limit = most * scale
    slot = limit // width  # as many as there are slots fit a rank, and one more does not
    usages = []
    for e, n in enumerate(counts):
        for r in range(ranks):
            here = np.zeros(ranks, dtype=np.int64)
            here[r] = 1
            usages += [Usage(e, r, r + 1, here * n * scale), Usage(e, ranks + r, ranks + r + 1, here * slot)]
    vertices = tuple(Vertex(f"expert {e}", np.zeros(ranks, dtype=np.int64)) for e in range(len(counts)))
    return SelectionProblem("experts on ranks", vertices, (), (), tuple(usages), limit).check()
