"""Reads the formula of an operator that a user specified a second time, without the reader that wrote the
graph, and says what it is at positions of its result.

    formula     NAME [ axes ] = [sum|max|min axes :] sum of products of reads, numbers, functions and sums in brackets
    read        an element of the tensor that holds the operand, 0 where a position is outside of it
    axis        lies in one dimension of a tensor, or in several, most significant first (digits)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isfinite, prod
from typing import Final

from ...models.program.graph import Graph
from ...models.program.specified import Placed, Specified
from ..joint.polynomials import OWN, Call, Element, Polynomial, Position, Undecided, Whole

MOST_TEXT: Final = 4096
"""Characters of a formula."""
MOST_DEPTH: Final = 60
"""Brackets inside brackets."""

_ONE: Final = frozenset(
    {
        *("relu", "abs", "sign", "floor", "ceil", "reciprocal", "tanh", "sigmoid", "exp", "erf", "sqrt", "rsqrt"),
        *("log", "cos", "sin", "silu", "softplus"),
    }
)
_TWO: Final = frozenset({"maximum", "minimum"})
_TOKEN: Final = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|[A-Za-z_]\w*|//|[^\s\w])")


class Wrong(ValueError):
    """Why a specification does not hold."""


@dataclass
class _Text:
    """The tokens of a text, read from left to right."""

    text: str
    tokens: list[str] = field(init=False)
    at: int = 0
    depth: int = 0

    def __post_init__(self) -> None:
        if len(self.text) > MOST_TEXT:
            raise Wrong(f"its formula has more than {MOST_TEXT} characters")
        self.tokens = _TOKEN.findall(self.text)
        if "".join(self.tokens) != "".join(self.text.split()):
            raise Wrong("its formula has a character that is no sign, name or number")

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        """The next token, which must be `wanted`."""
        found = self.next
        if not found or (wanted and found != wanted):
            raise Wrong(f"its formula is none: {found or 'its end'!r} where {wanted or 'more'!r} must stand")
        self.at += 1
        return found

    def names(self, end: str) -> tuple[str, ...]:
        """Names up to a sign, separated by commas."""
        out = []
        while self.next != end:
            out.append(self.name())
            if self.next == ",":
                self.take()
        self.take(end)
        return tuple(out)

    def name(self) -> str:
        if not self.next.isidentifier():
            raise Wrong(f"its formula is none: {self.next or 'its end'!r} where a name must stand")
        return self.take()

    def end(self) -> None:
        if self.next:
            raise Wrong(f"its formula goes on with {self.next!r}")


class FormulaValues:
    """What a formula is at positions of its result."""

    def __init__(self, use: Specified, graph: Graph) -> None:
        self.use, self.graph = use, graph
        self.placed = {name: p for name, _, p in use.operands}
        text = _Text(use.formula)
        text.name()
        text.take("[")
        self.out = text.names("]")
        text.take("=")
        self.combine, self.over = "", tuple[str, ...]()
        if text.next in ("sum", "max", "min") and text.tokens[text.at + 1 : text.at + 2] != ["["]:
            self.combine = text.take()
            self.over = text.names(":")
            if not self.over:
                raise Wrong("its formula combines over no axis")
        self.body = text
        self.start = text.at
        if len({*self.out, *self.over}) != len(self.out) + len(self.over):
            raise Wrong("its formula binds an axis twice")
        self.extents = self._extents()
        self.digits = self._digits()
        self.axes: dict[str, tuple[Position, ...]] = {}
        self.whole: dict[str, int] = {}
        self.inside = False
        if not use.outside:
            self._require_inside()

    # --- extents, and the dimensions that hold an axis

    def _shape(self, placed: Placed) -> list[list[int]]:
        """Extents of the dimensions that hold every axis."""
        shape = self.graph.tensor(placed.tensor).shape
        return [[shape[k] for k in dims] for dims in placed.axes]

    def _extents(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, axes, placed in self.use.operands:
            for axis, dims in zip(axes, self._shape(placed), strict=True):
                if found.setdefault(axis, prod(dims)) != prod(dims):
                    raise Wrong(f"axis {axis!r} is {found[axis]} long, and {prod(dims)} in operand {name!r}")
        given = dict(found)
        for axis, text in self.use.sizes:
            if axis in found:
                raise Wrong(f"the extent of axis {axis!r} is stated, and is that of an operand")
            size = _Text(text)
            found[axis] = _size(size, given)
            size.end()
        for axis in (*self.out, *self.over):
            if found.get(axis, 0) < 1:
                raise Wrong(f"axis {axis!r} has no extent")
        result = [prod(dims) for dims in self._shape(self.use.result)]
        if result != [found[a] for a in self.out]:
            raise Wrong(f"its result has extents {result}, its formula {[found[a] for a in self.out]}")
        return found

    def _digits(self) -> dict[str, tuple[int, ...]]:
        """Extents of the dimensions that hold an axis, most significant first."""
        found: dict[str, tuple[int, ...]] = {}
        held = [(self.out, self.use.result), *((axes, p) for _, axes, p in self.use.operands)]
        for axes, placed in held:
            for axis, dims in zip(axes, self._shape(placed), strict=True):
                if len(dims) > 1 and found.setdefault(axis, tuple(dims)) != tuple(dims):
                    raise Undecided(f"axis {axis!r} is cut in two ways")
        return found

    # --- values

    def at(self, at: Sequence[Position]) -> Polynomial:
        """The formula where the result is read at these positions, one per dimension of its tensor."""
        self.axes = {
            axis: tuple(at[k] for k in dims) or (Position(),)
            for axis, dims in zip(self.out, self.use.result.axes, strict=True)
        }
        bound: list[tuple[str, int]] = []
        mark = OWN if self.combine in ("max", "min") else ""
        for axis in self.over:
            cut = self.digits.get(axis, (self.extents[axis],))
            names = [f"{mark}{axis}^{k}" for k in range(len(cut))]
            bound += zip(names, cut, strict=True)
            self.axes[axis] = tuple(Position(((n, 1),)) for n in names)
        self.ranges = dict(bound)
        self.body.at = self.start
        value = self._sum()
        self.body.end()
        if self.combine == "sum":
            return value.sum_over(tuple(bound))
        if self.combine:
            one = Polynomial.number(Fraction(1))
            return Polynomial.atom(Whole(self.combine, (), tuple(bound), (), (value, one)))
        return value

    def _sum(self) -> Polynomial:
        value = self._term()
        while self.body.next in ("+", "-"):
            sign = Fraction(1 if self.body.take() == "+" else -1)
            value = value + self._term().times(sign)
        return value

    def _term(self) -> Polynomial:
        value = self._factor()
        while self.body.next in ("*", "/"):
            if self.body.take() == "*":
                value = value * self._factor()
                continue
            below = self._factor()
            number, above = _number(below), _number(value)
            if number is not None:
                if not number:
                    raise Wrong("its formula divides by 0")
                value = value.times(1 / number)
            elif above is not None:
                value = Polynomial.atom(Call("reciprocal", (), (below,))).times(above)
            else:
                value = Polynomial.atom(Call("divide", (), (value, below)))
        return value

    def _factor(self) -> Polynomial:
        self.body.depth += 1
        if self.body.depth > MOST_DEPTH:
            raise Wrong(f"its formula has more than {MOST_DEPTH} brackets inside each other")
        try:
            return self._single()
        finally:
            self.body.depth -= 1

    def _single(self) -> Polynomial:
        text = self.body
        if text.next == "-":
            text.take()
            return self._factor().times(Fraction(-1))
        if text.next == "(":
            text.take()
            value = self._sum()
            text.take(")")
            return value
        if text.next[:1].isdigit():
            number = float(text.take())
            if not isfinite(number):
                raise Wrong("its formula has a number that is too large")
            return Polynomial.number(Fraction(number))
        name = text.name()
        if text.next == "(":
            text.take()
            of = [self._sum()]
            while text.next == ",":
                text.take()
                of.append(self._sum())
            text.take(")")
            if not ((name in _ONE and len(of) == 1) or (name in _TWO and len(of) == 2)):
                raise Wrong(f"its formula calls {name!r} of {len(of)} values, which is not known")
            return Polynomial.atom(Call(name, (), tuple(of)))
        return self._read(name)

    def _read(self, name: str) -> Polynomial:
        if name not in self.placed:
            raise Wrong(f"its formula reads {name!r}, which is no operand")
        placed = self.placed[name]
        shape = self.graph.tensor(placed.tensor).shape
        at = [Position()] * len(shape)
        conditions: list[tuple[Position, int]] = []
        self.body.take("[")
        for number, dims in enumerate(placed.axes):
            if number:
                self.body.take(",")
            terms, offset = self._index()
            if len(dims) > 1:
                axis = next(iter(terms), "")
                if terms != {axis: 1} or offset or self._cut_of(axis) != tuple(shape[k] for k in dims):
                    raise Undecided(f"it reads {name!r} in digits at more than one axis")
                for k, p in zip(dims, self.axes[axis], strict=True):
                    at[k] = p
                    conditions.append((p, shape[k]))
                continue
            position = self._position(terms, offset)
            conditions.append((position, shape[dims[0]] if dims else 1))
            if dims:
                at[dims[0]] = position
        self.body.take("]")
        for p, n in conditions if self.inside else ():
            low, high = p.span({**self.whole, **self.ranges})
            if low < 0 or high >= n:
                raise Wrong(f"it reads {name!r} at {low} to {high} of {n}, and nothing may be read outside")
        return Polynomial.atom(Element(placed.tensor, tuple(at))).where(tuple(conditions))

    def _cut_of(self, axis: str) -> tuple[int, ...]:
        """Extents of the digits in which a bound axis is read here."""
        return self.digits.get(axis, ()) if len(self.axes[axis]) == len(self.digits.get(axis, ())) else ()

    def _require_inside(self) -> None:
        """Raises `Wrong` if something outside an operand is read anywhere."""
        shape = self.graph.tensor(self.use.result.tensor).shape
        self.whole = {f"o{k}": n for k, n in enumerate(shape)}
        self.inside = True
        self.at(tuple(Position(((name, 1),)) for name in self.whole))
        self.inside, self.whole = False, {}

    def _position(self, terms: Mapping[str, int], offset: int) -> Position:
        total: dict[str, int] = {}
        for axis, c in terms.items():
            if len(self.axes[axis]) != 1:
                raise Undecided(f"axis {axis!r} is cut into digits, and stands in a window")
            (p,) = self.axes[axis]
            offset += c * p.offset
            for a, d in p.terms:
                total[a] = total.get(a, 0) + c * d
        return Position.of(total, offset)

    def _index(self) -> tuple[dict[str, int], int]:
        """Axes with coefficients, and an offset."""
        text, terms, offset, sign = self.body, dict[str, int](), 0, 1
        if text.next in ("+", "-"):
            sign = 1 if text.take() == "+" else -1
        while True:
            parts = [text.take()]
            while text.next == "*":
                text.take()
                parts.append(text.take())
            names = [p for p in parts if p.isidentifier()]
            numbers = [p for p in parts if p.isdigit() and len(p) < 14]
            if len(names) > 1 or len(names) + len(numbers) != len(parts):
                raise Wrong(f"its formula has the index {' * '.join(parts)!r}, which is not affine")
            if names and names[0] not in self.axes:
                raise Wrong(f"its formula uses axis {names[0]!r}, which is not bound")
            value = sign * prod(map(int, numbers))
            if names:
                terms[names[0]] = terms.get(names[0], 0) + value
            else:
                offset += value
            if text.next not in ("+", "-"):
                return {a: c for a, c in terms.items() if c}, offset
            sign = 1 if text.take() == "+" else -1


def _number(p: Polynomial) -> Fraction | None:
    """The number that a polynomial is, if it is one."""
    if all(not (m.atoms or m.conditions or m.bound) for _, m in p.terms):
        return sum((c for c, _ in p.terms), Fraction(0))
    return None


def _size(text: _Text, given: Mapping[str, int]) -> int:
    value = _product(text, given)
    while text.next in ("+", "-"):
        value += (1 if text.take() == "+" else -1) * _product(text, given)
    return value


def _product(text: _Text, given: Mapping[str, int]) -> int:
    value = _atom(text, given)
    while text.next in ("*", "//"):
        sign, other = text.take(), 0
        other = _atom(text, given)
        if sign == "//" and other < 1:
            raise Wrong("an extent is divided by what is not positive")
        value = value * other if sign == "*" else value // other
    return value


def _atom(text: _Text, given: Mapping[str, int]) -> int:
    text.depth += 1
    if text.depth > MOST_DEPTH:
        raise Wrong(f"an extent has more than {MOST_DEPTH} brackets")
    if text.next == "(":
        text.take()
        value = _size(text, given)
        text.take(")")
        return value
    token = text.take()
    if token.isdigit() and len(token) < 14:
        return int(token)
    if token not in given:
        raise Wrong(f"an extent is that of {token!r}, which is no axis of an operand")
    return given[token]
