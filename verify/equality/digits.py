"""Counts in digits: boxes of digits that are intervals of numbers, digits that refine others, boxes that are one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .index import Range, Undecided

Box = tuple[Range, ...]


def boxes_of(low: int, high: int, sizes: Sequence[int]) -> list[Box]:
    """Boxes of digits that are the numbers from `low` up to `high`."""
    if len(sizes) == 1:
        return [((low, high),)] if low < high else []
    rest = prod(sizes[1:])
    (a, r), (b, s) = divmod(low, rest), divmod(high, rest)
    if a == b:
        return [((a, a + 1), *inner) for inner in boxes_of(r, s, sizes[1:])] if r < s else []
    found = list[Box]()
    if r:
        found += [((a, a + 1), *inner) for inner in boxes_of(r, rest, sizes[1:])]
    if a + bool(r) < b:
        found.append(((a + bool(r), b), *((0, n) for n in sizes[1:])))
    if s:
        found += [((b, b + 1), *inner) for inner in boxes_of(0, s, sizes[1:])]
    return found


def common_digits(a: Sequence[int], b: Sequence[int]) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Digits that refine both; for each digit of either the new ones that it falls into."""
    new = list[int]()
    one, two = [list[int]() for _ in a], [list[int]() for _ in b]
    i, j = len(a) - 1, len(b) - 1
    p, q = (a[i] if i >= 0 else 0), (b[j] if j >= 0 else 0)
    while i >= 0 or j >= 0:
        if i >= 0 and j >= 0 and a[i] == b[j] == 1:
            step = both = 1
        elif i >= 0 and a[i] == 1:
            one[i].append(len(new))
            new.append(1)
            i -= 1
            p = a[i] if i >= 0 else 0
            continue
        elif j >= 0 and b[j] == 1:
            two[j].append(len(new))
            new.append(1)
            j -= 1
            q = b[j] if j >= 0 else 0
            continue
        else:
            step, both = min(p, q), max(p, q)
        if i < 0 or j < 0 or step == 0 or both % step:
            raise Undecided(f"digits {tuple(a)} and {tuple(b)} of a dimension do not nest")
        one[i].append(len(new))
        two[j].append(len(new))
        new.append(step)
        p, q = p // step, q // step
        if p == 1:
            i -= 1
            p = a[i] if i >= 0 else 0
        if q == 1:
            j -= 1
            q = b[j] if j >= 0 else 0
    n = len(new)
    return new[::-1], [[n - 1 - k for k in g[::-1]] for g in one], [[n - 1 - k for k in g[::-1]] for g in two]


def meet(a: Box, b: Box) -> Box:
    return tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))


def joined_boxes(boxes: Sequence[Box]) -> list[Box]:
    """Boxes of which those that are adjacent along one dimension are one, as long as there are any."""
    found, before = list(dict.fromkeys(boxes)), 0
    while len(found) != before and len(found) > 1:
        before = len(found)
        for k in range(len(found[0])):
            lines: dict[Box, list[Range]] = {}
            for box in found:
                lines.setdefault((*box[:k], *box[k + 1 :]), []).append(box[k])
            found = [(*rest[:k], run, *rest[k:]) for rest, runs in lines.items() for run in _chained(runs)]
    return found


def _chained(runs: Sequence[Range]) -> list[Range]:
    """Ranges of which those that follow one another are one."""
    begun: dict[int, list[int]] = {}
    for first, last in sorted(runs):
        starts = begun.get(first)
        start = starts.pop() if starts else first
        begun.setdefault(last, []).append(start)
    return [(start, last) for last, starts in begun.items() for start in starts]
