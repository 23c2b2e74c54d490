"""Recomputes values of tensors in index notation, in a normal form: sums of products over the real numbers.

    position    sum of coefficient * axis + offset; an axis is free (it indexes what is compared) or bound (summed)
    atom        an element of a tensor at positions; [p > 0], which is 1 or 0; f(p_1, ..), of which nothing is known but
                that equal arguments give equal values; [ids = row], the same for equal places and rows; a functional
                F(functions of some axes; a point of these axes), of which nothing is known but that equal functions
                and points give equal values (a norm of a row, the greatest of a window)
    monomial    product of atoms and of conditions 0 <= position < n, summed over its bound axes
    polynomial  sum of rational multiples of monomials

Two polynomials with the same normal form are equal for all real values of the tensors:

    a bound axis of one value is that value; one that occurs nowhere is a factor; bound axes have no names (the least of
    all orders of them is taken)
    a condition that holds everywhere is left out, with one that holds nowhere the monomial is 0; where one depends on
    an axis, `Cut` names a value of it: below and from it on are compared apart, a sum is two sums
    [p > 0] [p > 0] = [p > 0]  and  [ [p > 0] p > 0 ] = [p > 0], since both sides agree where p > 0 and where it is not
    the greatest f(x) is f of the greatest x, for f that never falls, over windows that are nowhere empty
    conditions on the axes of a functional stay as they are

Nothing of the search, of the prover of rules or of the builder of plans is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import count, permutations
from math import factorial
from typing import Final

from ...proofs.container.effort import OBJECT
from ..budget import Budget

MOST_TERMS: Final = 512
"""Monomials of one polynomial."""
MOST_BOUND: Final = 6
"""Bound axes of one monomial, of which all orders are looked at."""
MOST_THINGS: Final = 1 << 19
"""Terms, atoms, conditions and axes that are looked at for one equation: a second's work; rules need some hundreds."""


class Undecided(ValueError):
    """What is compared is too large for this, or not made of what it knows."""


class Cut(Exception):
    """A condition depends on the value of `axis`: on one side of `at` it may hold, on the other not."""

    def __init__(self, axis: str, at: int) -> None:
        super().__init__(axis, at)
        self.axis, self.at = axis, at


@dataclass
class Work:
    """What one equation takes off the budget of a file: for everything that is made or looked at, what it holds."""

    budget: Budget
    place: str
    left: int = MOST_THINGS

    def take(self, things: int) -> None:
        """`Undecided` if so many things are too many for an equation, `ContainerError` if they are for the file."""
        self.left -= things
        if self.left < 0:
            raise Undecided("is too large: functions of functions, or sums in many orders")
        self.budget.charge(OBJECT * things, self.place)

    def of(self, p: Polynomial) -> None:
        """For the terms of a polynomial that was made, without what lies inside its functions."""
        self.take(1 + sum(1 + len(m.atoms) + len(m.conditions) + len(m.bound) for _, m in p.terms))


@dataclass(frozen=True)
class Position:
    """`terms`: (axis, coefficient), coefficients not 0, sorted by axis."""

    terms: tuple[tuple[str, int], ...] = ()
    offset: int = 0

    @staticmethod
    def of(terms: Mapping[str, int], offset: int) -> Position:
        return Position(tuple(sorted((a, c) for a, c in terms.items() if c)), offset)

    def substitute(self, axes: Mapping[str, Position]) -> Position:
        """With some axes replaced by positions."""
        terms: dict[str, int] = {}
        offset = self.offset
        for a, c in self.terms:
            new = axes.get(a)
            if new is None:
                terms[a] = terms.get(a, 0) + c
            else:
                offset += c * new.offset
                for b, d in new.terms:
                    terms[b] = terms.get(b, 0) + c * d
        return Position.of(terms, offset)

    def span(self, ranges: Mapping[str, int]) -> tuple[int, int]:
        """Least and greatest value; axes go from 0 to their range."""
        low = self.offset + sum(min(0, c * (ranges[a] - 1)) for a, c in self.terms)
        return low, self.offset + sum(max(0, c * (ranges[a] - 1)) for a, c in self.terms)


@dataclass(frozen=True)
class Element:
    tensor: str
    at: tuple[Position, ...]


@dataclass(frozen=True)
class Positive:
    """[of > 0]"""

    of: Polynomial


@dataclass(frozen=True)
class Call:
    """A function of which nothing is known; `attributes` belong to its name."""

    function: str
    attributes: tuple[tuple[str, object], ...]
    of: tuple[Polynomial, ...]


@dataclass(frozen=True)
class Hit:
    """[the element of `ids` at `at` is `row`]"""

    ids: str
    at: tuple[Position, ...]
    row: Position


@dataclass(frozen=True)
class Whole:
    """A functional: `of` are functions of the axes `bound` (axis, extent), which have names that begin with `OWN`; `at`
    is the point of these axes at which its value is asked, empty where it has but one.
    """

    function: str
    attributes: tuple[tuple[str, object], ...]
    bound: tuple[tuple[str, int], ...]
    at: tuple[Position, ...]
    of: tuple[Polynomial, ...]


OWN: Final = "%"
"""First letter of the axes of a functional."""

GREATEST: Final = frozenset({"max", "max_pool"})
"""Functionals that are the greatest of their first function where the second is 1."""

NEVER_FALLS: Final = frozenset({"relu", "tanh", "sigmoid", "exp", "softplus", "erf", "floor", "ceil", "trunc"})
"""Maps f of one operand and no attribute, with x <= y => f(x) <= f(y)."""

Atom = Element | Positive | Call | Hit | Whole
Condition = tuple[Position, int]
"""0 <= position < n."""


@dataclass(frozen=True)
class Monomial:
    """`bound`: (axis, extent); sums are over all their values from 0."""

    atoms: tuple[Atom, ...] = ()
    conditions: tuple[Condition, ...] = ()
    bound: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Polynomial:
    """Terms are (coefficient, monomial)."""

    terms: tuple[tuple[Fraction, Monomial], ...] = ()

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial(_few((*self.terms, *other.terms)))

    def times(self, factor: Fraction) -> Polynomial:
        return Polynomial(tuple((c * factor, m) for c, m in self.terms))

    def __mul__(self, other: Polynomial) -> Polynomial:
        """The product; bound axes of both must have different names."""
        if len(self.terms) * len(other.terms) > MOST_TERMS:
            raise Undecided(f"has more than {MOST_TERMS} terms")
        out = [
            (c * d, Monomial((*m.atoms, *n.atoms), (*m.conditions, *n.conditions), (*m.bound, *n.bound)))
            for c, m in self.terms
            for d, n in other.terms
        ]
        return Polynomial(tuple(out))

    def sum_over(self, bound: tuple[tuple[str, int], ...]) -> Polynomial:
        """Summed over axes."""
        return Polynomial(tuple((c, Monomial(m.atoms, m.conditions, (*m.bound, *bound))) for c, m in self.terms))

    def where(self, conditions: tuple[Condition, ...]) -> Polynomial:
        """Times conditions."""
        return Polynomial(tuple((c, Monomial(m.atoms, (*m.conditions, *conditions), m.bound)) for c, m in self.terms))

    @staticmethod
    def atom(atom: Atom) -> Polynomial:
        return Polynomial(((Fraction(1), Monomial((atom,))),))

    @staticmethod
    def number(value: Fraction) -> Polynomial:
        return Polynomial(((value, Monomial()),)) if value else Polynomial()


def _few(terms: tuple[tuple[Fraction, Monomial], ...]) -> tuple[tuple[Fraction, Monomial], ...]:
    if len(terms) > MOST_TERMS:
        raise Undecided(f"has more than {MOST_TERMS} terms")
    return terms


def substitute(p: Polynomial, axes: Mapping[str, Position]) -> Polynomial:
    """With axes replaced by positions, in which no axis occurs that is bound in `p`.  What a sum binds is its own."""
    return Polynomial(tuple((c, _put_in(m, axes)) for c, m in p.terms)) if axes else p


def _put_in(m: Monomial, axes: Mapping[str, Position]) -> Monomial:
    here = {a: at for a, at in axes.items() if all(a != b for b, _ in m.bound)}
    return Monomial(
        tuple(_put(a, here) for a in m.atoms), tuple((at.substitute(here), n) for at, n in m.conditions), m.bound
    )


def _put(atom: Atom, axes: Mapping[str, Position]) -> Atom:
    match atom:
        case Element():
            return Element(atom.tensor, tuple(at.substitute(axes) for at in atom.at))
        case Positive():
            return Positive(substitute(atom.of, axes))
        case Call():
            return Call(atom.function, atom.attributes, tuple(substitute(p, axes) for p in atom.of))
        case Hit():
            return Hit(atom.ids, tuple(at.substitute(axes) for at in atom.at), atom.row.substitute(axes))
        case Whole():
            own = {a for a, _ in atom.bound}
            here = {a: at for a, at in axes.items() if a not in own}
            if own & {b for at in here.values() for b, _ in at.terms}:
                raise Undecided("takes the axis of a functional for another")
            at = tuple(p.substitute(axes) for p in atom.at)
            return Whole(atom.function, atom.attributes, atom.bound, at, tuple(substitute(p, here) for p in atom.of))


def normal(p: Polynomial, ranges: Mapping[str, int], work: Work) -> Polynomial:
    """The normal form; `ranges`: extents of the free axes.  Raises `Cut` for a condition that depends on a free axis,
    `Undecided` for what is too large.
    """
    found: dict[Monomial, Fraction] = {}
    rest = [(c, m) for c, m in p.terms]
    steps = count()
    while rest:
        if next(steps) > MOST_TERMS:
            raise Undecided(f"falls into more than {MOST_TERMS} parts")
        c, m = rest.pop()
        try:
            factor, new = _monomial(m, ranges, work)
        except Cut as cut:
            if cut.axis not in dict(m.bound):
                raise
            rest.extend((c, piece) for piece in _halves(m, cut))
            continue
        if factor:
            found[new] = found.get(new, Fraction(0)) + c * factor
    terms = tuple(sorted(((c, m) for m, c in found.items() if c), key=lambda term: repr(term[1])))
    return Polynomial(_few(terms))


def _halves(m: Monomial, cut: Cut) -> Iterator[Monomial]:
    """The sums over the values of a bound axis below the cut, and from it on."""
    extent, others = dict(m.bound)[cut.axis], tuple((a, n) for a, n in m.bound if a != cut.axis)
    for begin, end in ((0, cut.at), (cut.at, extent)):
        piece = _put_in(Monomial(m.atoms, m.conditions), {cut.axis: Position(((cut.axis, 1),), begin)})
        yield Monomial(piece.atoms, piece.conditions, (*others, (cut.axis, end - begin)))


def _monomial(m: Monomial, ranges: Mapping[str, int], work: Work) -> tuple[Fraction, Monomial]:
    """A factor and the normal form of one monomial; factor 0 where a condition holds nowhere."""
    extents = {**ranges, **dict(m.bound)}
    single = {a: Position() for a, n in m.bound if n == 1}
    if single:
        piece = _put_in(Monomial(m.atoms, m.conditions), single)
        m = Monomial(piece.atoms, piece.conditions, tuple((a, n) for a, n in m.bound if a not in single))
    kept = []
    for at, n in m.conditions:
        low, high = at.span(extents)
        if high < 0 or low >= n:
            return Fraction(0), Monomial()
        if low >= 0 and high < n:
            continue
        if len(at.terms) == 1 and not at.terms[0][0].startswith(OWN):
            ((axis, c),) = at.terms
            for edge in (-at.offset, n - at.offset):  # the value crosses 0, or n, where c * axis reaches the edge
                cut = -(-edge // c) if c > 0 else edge // c + 1
                if 0 < cut < extents[axis]:
                    raise Cut(axis, cut)
        kept.append((at, n))
    atoms = list[Atom]()
    for atom in m.atoms:
        for part in _atom(atom, extents, work):
            if part is None:
                return Fraction(0), Monomial()
            if not (isinstance(part, Positive) and part in atoms):
                atoms.append(part)
    used = {a for atom in atoms for a in _axes(atom)} | {a for at, _ in kept for a, _ in at.terms}
    factor = Fraction(1)
    for a, n in m.bound:
        if a not in used:
            factor *= n
    bound = tuple((a, n) for a, n in m.bound if a in used)
    return factor, _without_names(tuple(atoms), tuple(dict.fromkeys(kept)), bound, work)


def _atom(atom: Atom, extents: Mapping[str, int], work: Work) -> Iterator[Atom | None]:
    """An atom whose parts are in normal form; None for [0 > 0]."""
    match atom:
        case Element():
            yield atom
        case Call():
            yield Call(atom.function, atom.attributes, tuple(normal(p, extents, work) for p in atom.of))
        case Positive():
            yield _positive(normal(atom.of, extents, work), extents, work)
        case Hit():
            yield atom
        case Whole():
            yield _whole(atom, extents, work)


def _whole(atom: Whole, extents: Mapping[str, int], work: Work) -> Atom:
    """A functional with its axes numbered, inside those of the functionals around it; f of the greatest in place of
    the greatest f.
    """
    depth = len({a.partition(".")[0] for a in extents if a.startswith(OWN)})
    names = {a: Position(((f"{OWN}{depth}.{i}", 1),)) for i, (a, _) in enumerate(atom.bound)}
    bound = tuple((f"{OWN}{depth}.{i}", n) for i, (_, n) in enumerate(atom.bound))
    inside = {**extents, **dict(bound)}
    of = tuple(normal(substitute(p, names), inside, work) for p in atom.of)
    if atom.function in GREATEST and len(of) == 2 and len(of[0].terms) == 1:
        ((c, m),) = of[0].terms
        ((d, seen),) = of[1].terms or ((Fraction(0), Monomial()),)
        call = m.atoms[0] if len(m.atoms) == 1 else None
        alone = c == d == 1 and not (m.bound or seen.bound or seen.atoms) and m.conditions == seen.conditions
        full = _apart(seen.conditions) and all(_somewhere(at, n, inside) for at, n in seen.conditions)
        plain = isinstance(call, Call) and call.function in NEVER_FALLS and not call.attributes and len(call.of) == 1
        if alone and full and plain and isinstance(call, Call):
            of = (call.of[0].where(m.conditions), of[1])
            inner = _whole(Whole(atom.function, atom.attributes, bound, atom.at, of), extents, work)
            return Call(call.function, (), (Polynomial.atom(inner),))
    return Whole(atom.function, atom.attributes, bound, atom.at, of)


def _apart(conditions: tuple[Condition, ...]) -> bool:
    """Whether no axis of a functional is in two conditions: then each can be met by itself."""
    own = [a for at, _ in conditions for a, _ in at.terms if a.startswith(OWN)]
    return len(set(own)) == len(own)


def _somewhere(at: Position, n: int, extents: Mapping[str, int]) -> bool:
    """Whether for all values of the other axes a value of the functional's axis meets 0 <= at < n."""
    own = [(a, c) for a, c in at.terms if a.startswith(OWN)]
    rest = Position(tuple(t for t in at.terms if t not in own), at.offset)
    low, high = rest.span(extents)
    if len(own) != 1:
        return not own and low >= 0 and high < n
    ((axis, c),) = own
    return 0 < c <= n and high < n and low + c * (extents[axis] - 1) >= 0


def _positive(p: Polynomial, extents: Mapping[str, int], work: Work) -> Positive | None:
    """[p > 0], and [q > 0] where p = [q > 0] q."""
    if not p.terms:
        return None
    for candidate in p.terms[0][1].atoms:
        if isinstance(candidate, Positive) and normal(Polynomial.atom(candidate) * candidate.of, extents, work) == p:
            return candidate
    return Positive(p)


def _axes(atom: Atom) -> Iterator[str]:
    match atom:
        case Element():
            yield from (a for at in atom.at for a, _ in at.terms)
        case Positive():
            yield from _inside(atom.of)
        case Call():
            for p in atom.of:
                yield from _inside(p)
        case Hit():
            yield from (a for at in (*atom.at, atom.row) for a, _ in at.terms)
        case Whole():
            own = {a for a, _ in atom.bound}
            yield from (a for at in atom.at for a, _ in at.terms)
            for p in atom.of:
                yield from (a for a in _inside(p) if a not in own)


def _inside(p: Polynomial) -> Iterator[str]:
    for _, m in p.terms:
        bound = {a for a, _ in m.bound}
        yield from (a for atom in m.atoms for a in _axes(atom) if a not in bound)
        yield from (a for at, _ in m.conditions for a, _ in at.terms if a not in bound)


def _without_names(
    atoms: tuple[Atom, ...], conditions: tuple[Condition, ...], bound: tuple[tuple[str, int], ...], work: Work
) -> Monomial:
    """Bound axes numbered in the order that gives the least text."""
    if len(bound) > MOST_BOUND:
        raise Undecided(f"sums over more than {MOST_BOUND} axes at once")
    size = 1 + len(conditions) + len(bound) + sum(map(_size, atoms))
    work.take(size * (1 + factorial(len(bound))))
    found: dict[str, Monomial] = {}
    depth = 1 + max((_depth(a) for a in atoms), default=0)
    for order in permutations(bound):
        axes = {a: Position(((f"#{depth}.{i}", 1),)) for i, (a, _) in enumerate(order)}
        renamed = Monomial(
            tuple(sorted((_put(a, axes) for a in atoms), key=repr)),
            tuple(sorted(((at.substitute(axes), n) for at, n in conditions), key=repr)),
            tuple((f"#{depth}.{i}", n) for i, (_, n) in enumerate(order)),
        )
        found[repr(renamed)] = renamed
    return found[min(found)]


def _size(atom: Atom) -> int:
    """How many things an atom holds."""
    if isinstance(atom, Element | Hit):
        return 2 + sum(1 + len(at.terms) for at in atom.at)
    inner = (atom.of,) if isinstance(atom, Positive) else atom.of
    return 1 + sum(1 + len(m.conditions) + len(m.bound) + sum(map(_size, m.atoms)) for p in inner for _, m in p.terms)


def _depth(atom: Atom) -> int:
    """How deep sums lie inside sums: names of bound axes are different at different depths."""
    inner = atom.of if isinstance(atom, Call | Whole) else (atom.of,) if isinstance(atom, Positive) else ()
    return max((1 + max((_depth(a) for a in m.atoms), default=0) for p in inner for _, m in p.terms), default=0)
