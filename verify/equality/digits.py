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


def aligned(a: Sequence[int], b: Sequence[int]) -> tuple[list[int], list[list[int]], list[list[int]]]:
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


def joined_boxes(boxes: list[Box]) -> list[Box]:
    """Boxes of which those that are adjacent are one."""
    boxes = list(dict.fromkeys(boxes))
    again = len(boxes) > 1
    while again:
        again = False
        for i, a in enumerate(boxes):
            for b in boxes[i + 1 :]:
                apart = [k for k in range(len(a)) if a[k] != b[k]]
                if len(apart) != 1:
                    continue
                k = apart[0]
                (p, q), (r, s) = sorted((a[k], b[k]))
                if q == r:
                    boxes = [*(c for c in boxes if c not in (a, b)), (*a[:k], (p, s), *a[k + 1 :])]
                    again = len(boxes) > 1
                    break
            if again:
                break
    return boxes
