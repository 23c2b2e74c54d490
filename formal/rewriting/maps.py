"""Finds candidates for integer affine maps of the bound variables of one monomial into those of another.

First permutations whose entries agree as they stand, then solutions of index equations; nothing here is trusted.
Permutations come first:  with digit indices p*m + j solving yields j' = p*m + j - p'*m, which is not a unit map of the
box.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from ...models.rewrites.guarded_sums import Atom, Entry, Monomial
from ...models.rewrites.polynomial import ONE, Poly, determinant
from .terms_inside import all_entries, head_of


def candidate_maps(
    first: Monomial, m: Monomial, anything: bool = False
) -> Iterator[tuple[dict[str, Poly], tuple[int, ...] | None]]:
    """Maps of the variables of m into those of first: permutations, then solutions of index equations."""
    seen: set[tuple[tuple[str, Poly], ...]] = set()

    def new(a: dict[str, Poly]) -> bool:
        key = tuple(sorted(a.items()))
        if key in seen:
            return False
        seen.add(key)
        return True

    k = len(m.variables)
    if k == 0:
        yield {}, None
        return
    good: list[dict[str, Poly]] = []
    rest: list[dict[str, Poly]] = []
    if k <= 5:
        for p in permutations(first.variables):
            a = {v: Poly.of(w) for v, w in zip(m.variables, p, strict=True)}
            (good if plain_match(first, m, a) else rest).append(a)
    for a in good:
        if new(a):
            yield a, None
    for a in solve_indices(first, m):
        if new(a):
            yield a, None
    for a in rest[:6] if anything or not all_entries(first.atoms) else ():
        if new(a):
            yield a, None


def plain_match(first: Monomial, m: Monomial, a: dict[str, Poly]) -> bool:
    """Whether the entries agree syntactically, as multisets."""
    mine = sorted((x.operand, tuple(map(str, x.index))) for x in first.atoms if isinstance(x, Entry))
    other = sorted((x.operand, tuple(str(p.substitute(a)) for p in x.index)) for x in m.atoms if isinstance(x, Entry))
    return mine == other


def solve_indices(first: Monomial, m: Monomial) -> Iterator[dict[str, Poly]]:
    """Solutions of index equations: of all entries of the products at once, or of one pair of entries inside
    functions.
    """
    xs = [a for a in first.atoms if isinstance(a, Entry)]
    ys = [a for a in m.atoms if isinstance(a, Entry)]
    systems: Iterator[list[tuple[Entry, Entry]]]
    if xs:
        if len(xs) != len(ys):
            return
        systems = ([(xs[i], ys[j]) for i, j in enumerate(order)] for order in entry_pairings(xs, ys))
    else:
        pairs = ((x, y) for x in all_entries(first.atoms) for y in all_entries(m.atoms))
        systems = ([(x, y)] for x, y in pairs if x.operand == y.operand and len(x.index) == len(y.index))
    for count, system in enumerate(systems):
        if count >= 24:
            return
        equations = [(p, q) for x, y in system for p, q in zip(x.index, y.index, strict=True)]
        a = solve_equations(equations, m.variables)
        left = [v for v in m.variables if v not in a]
        free = [v for v in first.variables if not any(v in p.names for p in a.values())]
        if len(free) < len(left):
            free = list(first.variables)
        for p in permutations(free, len(left)):
            b = {**a, **{v: Poly.of(w) for v, w in zip(left, p, strict=True)}}
            yield {v: q.substitute({u: Poly.of(w) for u, w in zip(left, p, strict=True)}) for v, q in b.items()}


def solve_equations(equations: list[tuple[Poly, Poly]], variables: tuple[str, ...]) -> dict[str, Poly]:
    """Solve p = q for variables (they occur in q only) with coefficient +-1."""
    a: dict[str, Poly] = {}
    again = True
    while again:
        again = False
        for p, q in equations:
            d = q.substitute(a) - p
            for v in variables:
                if v in a or v not in d.names:
                    continue
                parts = d.coefficient(v)
                if parts is not None and parts[0].constant in (1, -1) and v not in p.names:
                    value = -parts[1] if parts[0].constant == 1 else parts[1]
                    a = {u: r.substitute({v: value}) for u, r in a.items()}
                    a[v] = value
                    again = True
                    break
    return a


def entry_pairings(xs: list[Entry], ys: list[Entry]) -> Iterator[tuple[int, ...]]:
    def go(i: int, used: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if i == len(xs):
            yield used
            return
        for j in range(len(ys)):
            if j not in used and ys[j].operand == xs[i].operand and len(ys[j].index) == len(xs[i].index):
                yield from go(i + 1, (*used, j))

    yield from go(0, ())


def atom_pairings(first: tuple[Atom, ...], second: tuple[Atom, ...]) -> Iterator[tuple[int, ...]]:
    heads = [head_of(b) for b in second]

    def go(i: int, used: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if i == len(first):
            yield used
            return
        options = [j for j in range(len(second)) if j not in used and heads[j] == head_of(first[i])]
        exact = [j for j in options if second[j] == first[i]]
        for j in exact[:1] if exact and isinstance(first[i], Entry) else options:
            yield from go(i + 1, (*used, j))

    for count, order in enumerate(go(0, ())):
        if count >= 24:
            return
        yield order


def unimodular(variables: tuple[str, ...], others: tuple[str, ...], assignment: dict[str, Poly]) -> bool:
    rows = []
    for w in others:
        row, rest = [], assignment[w]
        for v in variables:
            parts = rest.coefficient(v)
            if parts is None or parts[0].names & set(variables):
                return False
            row.append(parts[0])
            rest = parts[1]
        if rest.names & set(others) - set(variables):
            return False
        rows.append(row)
    d = determinant(rows)
    return d in (ONE, -ONE)
