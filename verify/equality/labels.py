"""Puts variables of terms in order, moves them to where they begin, and joins those that are one: what makes equal
terms equal tuples (`forms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations, product
from math import factorial, gcd, lcm
from typing import Final

from .index import Index, Range, Undecided, substitute, variable
from .terms import Factor, Form

MOST_ORDERS: Final = 120
"""Orders of variables that look alike, of which the least is taken."""


def content(p: Form) -> Fraction:
    """The greatest positive number of which all coefficients are whole multiples."""
    top, bottom = 0, 1
    for _, c in p:
        top, bottom = gcd(top, c.numerator), lcm(bottom, c.denominator)
    return Fraction(top, bottom) if top else Fraction(1)


def ranges_of(at: Sequence[Index]) -> tuple[Range, ...]:
    """The ranges that a functional binds, of the numbers that stand for them."""
    return tuple((at[i][1], at[i + 1][1]) for i in range(0, len(at), 2))


def without_idle(c: Fraction, ranges: list[Range], factors: list[Factor]) -> tuple[Fraction, list[Range], list[Factor]]:
    """Sums over what occurs nowhere are factors."""
    used = {v for _, at, _ in factors for i in at for v, _ in i[0]}
    kept = [i for i in range(len(ranges)) if -i - 1 in used]
    if len(kept) == len(ranges):
        return c, ranges, factors
    for i, (low, high) in enumerate(ranges):
        if -i - 1 not in used:
            c *= high - low
    names = {-old - 1: variable(-new - 1) for new, old in enumerate(kept)}
    return c, [ranges[i] for i in kept], [(h, tuple(substitute(i, names) for i in at), p) for h, at, p in factors]


def merge_variables(ranges: list[Range], factors: list[Factor]) -> tuple[list[Range], list[Factor]]:
    """Bound variables that occur only as D h + d, with D values of d, are one."""
    again = len(ranges) > 1
    while again:
        again = False
        uses = [dict(i[0]) for _, at, _ in factors for i in at]
        for a, b in product(range(len(ranges)), repeat=2):
            h, d, size = -a - 1, -b - 1, ranges[b][1] - ranges[b][0]
            if a == b or any(u.get(h, 0) != size * u.get(d, 0) for u in uses):
                continue
            values = {d: (tuple(sorted(((d, 1), (h, -size)))), 0)}
            (low, high), first = ranges[a], ranges[b][0]
            ranges = list(ranges)
            ranges[b] = (size * low + first, size * (high - 1) + first + size)
            factors = [(g, tuple(substitute(i, values) for i in at), p) for g, at, p in factors]
            names = {-old - 1: variable(-new - 1) for new, old in enumerate(i for i in range(len(ranges)) if i != a)}
            factors = [(g, tuple(substitute(i, names) for i in at), p) for g, at, p in factors]
            del ranges[a]
            again = len(ranges) > 1
            break
    return ranges, factors


def marks_in(factors: Sequence[Factor], v: int) -> list[tuple[object, ...]]:
    """Where a bound variable of a term occurs, without the names of other bound ones."""
    return [
        (h, p, k, c, tuple((w, d) for w, d in i[0] if w >= 0), tuple(sorted(d for w, d in i[0] if w < 0)))
        for h, at, p in factors
        for k, i in enumerate(at)
        for w, c in i[0]
        if w == v
    ]


def signs_in(forms: Sequence[Form], v: int) -> list[tuple[object, ...]]:
    """Where a free variable of forms occurs, without the names of other variables."""
    found = list[tuple[object, ...]]()
    for n, form in enumerate(forms):
        for (ranges, factors), c in form:
            shape = tuple(sorted((h, p, tuple(tuple(sorted(d for _, d in i[0])) for i in at)) for h, at, p in factors))
            for h, at, p in factors:
                for k, i in enumerate(at):
                    for w, d in i[0]:
                        if w == v:
                            found.append((n, c, len(ranges), shape, h, p, k, d))
    return found


def orders(names: list[int], marks: Sequence[tuple[object, ...]]) -> list[list[int]]:
    """Orders by marks; all orders of those that have the same."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for name, mark in sorted(zip(names, marks, strict=True), key=lambda pair: (pair[1], pair[0])):
        groups.setdefault(mark, []).append(name)
    many = 1
    for group in groups.values():
        many *= factorial(len(group))
    if many > MOST_ORDERS:
        raise Undecided("too many variables look alike")
    return [[v for part in parts for v in part] for parts in product(*(permutations(g) for g in groups.values()))]


def shifts(factors: Sequence[Factor], order: Sequence[int], iota: int) -> dict[int, int]:
    """By how much each bound variable is moved so that its first index begins at 0: whole steps of a free variable in
    that index are left to the free one (`abstraction`).
    """
    found = dict.fromkeys(order, 0)
    most = {v: max((abs(d) for _, at, _ in factors for i in at for w, d in i[0] if w == v), default=0) for v in order}
    for v in sorted(order, key=lambda v: (-most[v], order.index(v))):
        firsts = [
            ((h, p, k, i[0]), _own(i, sum(d * found[w] for w, d in i[0] if w in found and w != v)) // c)
            for h, at, p in factors
            if h != iota
            for k, i in enumerate(at)
            for w, c in i[0]
            if w == v
        ]
        if firsts:
            least = min(key for key, _ in firsts)
            found[v] = min(s for key, s in firsts if key == least)
    return found


def _own(index: Index, moved: int) -> int:
    """The offset of an index without whole steps of its free variables."""
    step = gcd(*(d for w, d in index[0] if w >= 0))
    return (index[1] - moved) % step if step else index[1] - moved


def greatest_step(forms: Sequence[Form], v: int) -> int:
    """The greatest coefficient of a variable."""
    return max(
        (abs(d) for f in forms for (_, factors), _ in f for _, at, _ in factors for i in at for w, d in i[0] if w == v),
        default=0,
    )
