"""The row of operators that users specify: what an operator means is in its one parameter, a statement.

    local_mix: y[b, i, d] = sum j: x[b, i + j - 1, d] * w[j, d]; x[b, t, d]; w[j, d]; i = t; outside zero

Name and formula (`models.program.formula`), then every operand with its axes, sizes of axes that no operand has, and
whether what is read outside an operand is 0.  Typing asks equal names for equal sizes, results of at least one element
and, where nothing may lie outside, that nothing does.

maximum(x, y) = relu(x - y) + y,  minimum(x, y) = x - relu(x - y),  |x| = relu(x) + relu(-x),  x / y = x (1 / y); other
functions are those of `functions.FUNCTIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from ..program import formula as written
from ..program.formula import Formula, FormulaError, Size, axes_of, read_formula, read_size, reads
from ..program.index import Affine, Combine
from .functions import FUNCTIONS
from .index_expressions import Call, Expression, Most, Plus, Read, Times, Total, number, where
from .meaning import Define, Floor, Meaning, RankError
from .nodes import AtLeast, Condition, Equal, Node
from .polynomial import Poly
from .row_parts import P, in_range, inverse, need_ranks, size

SPECIFIED: Final = "specified"
"""The operator's name in rules."""
STATEMENT: Final = "statement"
"""Its parameter."""

MOST_OPERANDS: Final = 8
"""Operands of one operator."""

_OPERAND: Final = re.compile(r"\s*([A-Za-z_]\w*)\[([\w, ]*)\]\s*")
_SIZE: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*=([^=]+)")


@dataclass(frozen=True)
class Statement:
    """An operator: `operands` are names and axes, `sizes` axes and their extents as written."""

    name: str
    formula: str
    operands: tuple[tuple[str, tuple[str, ...]], ...]
    sizes: tuple[tuple[str, str], ...]
    outside: bool

    @property
    def text(self) -> str:
        """The parameter of a rule that means this operator."""
        parts = [f"{self.name}: {self.formula}", *(f"{n}[{', '.join(axes)}]" for n, axes in self.operands)]
        parts += [f"{axis} = {text}" for axis, text in self.sizes]
        return "; ".join([*parts, *(["outside zero"] if self.outside else [])])

    @property
    def read(self) -> Formula:
        """The formula."""
        return read_formula(self.formula)


def read_statement(text: str) -> Statement:
    """Inverse of `Statement.text`.  Raises `FormulaError`.

    >>> text = "mix: y[i] = sum j: x[i + j] * w[j]; x[t]; w[j]; i = t - j + 1"
    >>> read_statement(text).text == text, read_statement(text).operands
    (True, (('x', ('t',)), ('w', ('j',))))
    """
    head, *rest = text.split("; ")
    name, colon, formula = head.partition(": ")
    if not colon:
        raise FormulaError("statement", "begins with the operator's name and ': '")
    operands, sizes, outside = [], [], False
    for part in rest:
        if (found := _OPERAND.fullmatch(part)) is not None:
            operands.append((found[1], tuple(filter(None, re.split(r"[, ]+", found[2])))))
        elif (found := _SIZE.fullmatch(part)) is not None:
            sizes.append((found[1], found[2].strip()))
        elif part == "outside zero" and not outside:
            outside = True
        else:
            raise FormulaError("statement", f"{part[:40]!r} is no operand, no size and not 'outside zero'")
    return Statement(name, formula, tuple(operands), tuple(sizes), outside)


def wrong_statement(text: str) -> str:
    """Why a text is no statement; empty if it is one."""
    try:
        s = read_statement(text)
        _meaning(s, tuple(len(axes) for _, axes in s.operands))
    except (FormulaError, RankError) as error:
        return str(error)
    return ""


@lru_cache(maxsize=256)
def function_of_statement(text: str) -> str | None:
    """The function of graphs that an operator is where one is enough: a product of all its operands, each read once,
    that is summed, or the greatest of what its operand has; None for others.

    >>> function_of_statement("mix: y[i] = sum j: x[i + j] * w[j]; x[t]; w[j]; i = t - j + 1")
    'product'
    """
    s = read_statement(text)
    f = s.read
    factors = _factors(f.body)
    names = [x.operand for x in factors if isinstance(x, written.Read)]
    if len(names) < len(factors) or sorted(names) != sorted(name for name, _ in s.operands):
        return None
    if f.combine is Combine.SUM:
        return "product"
    return "max" if f.combine is Combine.MAX and len(names) == 1 and not s.outside else None


def sums_of_statement(text: str) -> int:
    """Axes that are combined."""
    return len(read_statement(text).read.over)


def specified_meaning(node: Node, ranks: tuple[int, ...]) -> Meaning:
    """The meaning of a node: that of its statement."""
    return _read(str(node.parameter(STATEMENT)), ranks)


@lru_cache(maxsize=256)
def _read(text: str, ranks: tuple[int, ...]) -> Meaning:
    try:
        return _meaning(read_statement(text), ranks)
    except FormulaError as error:
        raise RankError(f"statement {text[:40]!r}: {error}") from None


def _meaning(s: Statement, ranks: tuple[int, ...]) -> Meaning:
    f = s.read
    need_ranks(ranks, *(len(axes) for _, axes in s.operands))
    places = {name: k for k, (name, _) in enumerate(s.operands)}
    if not 1 <= len(places) <= MOST_OPERANDS or len(places) < len(s.operands):
        raise FormulaError("statement", f"needs 1 to {MOST_OPERANDS} operands of different names")
    extents: dict[str, Poly] = {}
    require: list[Condition] = []
    for k, (_, axes) in enumerate(s.operands):
        for a, axis in enumerate(axes):
            if extents.setdefault(axis, size(k, a)) != size(k, a):
                require.append(Equal(extents[axis], size(k, a)))
    define: list[Define] = []
    given = dict(extents)
    for axis, text in s.sizes:
        if axis in extents:
            raise FormulaError("statement", f"axis {axis!r} has a size already")
        extents[axis] = _size(read_size(text), given, define)
        if extents[axis] not in given.values():
            require.append(AtLeast(extents[axis] - 1))
    names = {a: f"i{k}" for k, a in enumerate(f.axes)} | {a: f"s_{a}" for a in f.over}
    if len(names) < len(f.axes) + len(f.over):
        raise FormulaError("formula", "binds an axis twice")
    for axis in (*names, *axes_of(f.body)):
        if axis not in names or axis not in extents:
            raise FormulaError("formula", f"axis {axis!r} is not bound, or has no extent")
    for r in reads(f.body):
        if r.operand not in places or len(r.index) != ranks[places[r.operand]]:
            raise FormulaError("formula", f"does not read {r.operand!r} at an index per axis")
        for index, (k, a) in zip(r.index, ((places[r.operand], a) for a in range(len(r.index))), strict=True):
            if any(c < 1 for _, c in index.terms):
                raise FormulaError("formula", f"reads {r.operand!r} backwards")
            if not s.outside:
                last = sum((c * (extents[x] - 1) for x, c in index.terms), P(index.offset))
                require += [AtLeast(q) for q in (P(index.offset), size(k, a) - 1 - last)]
    body = _Body({name: (k, axes) for k, (name, axes) in enumerate(s.operands)}, names, extents, s.outside).of_formula(
        f
    )
    kept = tuple(c for c in dict.fromkeys(require) if not _visible(c))
    return Meaning(tuple(extents[a] for a in f.axes), body, kept, tuple(define))


def _visible(c: Condition) -> bool:
    """Whether a condition holds whatever the sizes are."""
    return isinstance(c, AtLeast) and c.value.constant is not None and c.value.constant >= 0


def _size(s: Size, given: Mapping[str, Poly], define: list[Define]) -> Poly:
    match s.what:
        case "number":
            return P(s.number)
        case "axis":
            if s.name not in given:
                raise FormulaError("sizes", f"{s.name!r} is no axis of an operand")
            return given[s.name]
        case "+":
            return _size(s.of[0], given, define) + _size(s.of[1], given, define)
        case "-":
            return _size(s.of[0], given, define) - _size(s.of[1], given, define)
        case "*":
            return _size(s.of[0], given, define) * _size(s.of[1], given, define)
        case _:
            name = f"whole_{len(define)}"
            define.append(Floor(name, _size(s.of[0], given, define), P(s.of[1].number)))
            return P(name)


@dataclass(frozen=True)
class _Body:
    """Writes formulas as index expressions."""

    places: Mapping[str, tuple[int, tuple[str, ...]]]
    names: Mapping[str, str]
    extents: Mapping[str, Poly]
    outside: bool

    def of_formula(self, f: Formula) -> Expression:
        ranges = tuple((self.names[a], self.extents[a]) for a in f.over)
        match f.combine:
            case None:
                return self.of(f.body)
            case Combine.MAX:
                return Most(ranges, (), self.of(f.body))
            case Combine.MIN:
                return Times((number(-1), Most(ranges, (), Times((number(-1), self.of(f.body))))))
            case Combine.SUM:
                found = self._products(f.body)
                for name, extent in reversed(ranges):
                    found = Total(name, extent, found)
                return found

    def _products(self, e: written.Expression) -> Expression:
        """A product of reads under one condition, so that it is what a product of graphs is."""
        factors = _factors(e)
        if len(factors) < 2 or not all(isinstance(x, written.Read) for x in factors):
            return self.of(e)
        guards, read = list[Poly](), list[Read]()
        for x in factors:
            if isinstance(x, written.Read):
                at, conditions = self._read(x)
                read.append(at)
                guards += conditions
        read.sort(key=lambda r: r.operand)
        product = Times(tuple(read))
        return where(product, *dict.fromkeys(guards)) if guards else product

    def of(self, e: written.Expression) -> Expression:
        if isinstance(e, written.Number):
            return _number(e.value)
        if isinstance(e, written.Read):
            at, guards = self._read(e)
            return where(at, *guards) if guards else at
        of = tuple(map(self.of, e.of))
        match e.function:
            case "add":
                return Plus(of)
            case "subtract":
                return Plus((of[0], _minus(of[1])))
            case "negate":
                return _minus(of[0])
            case "multiply":
                return Times(of)
            case "divide":
                return Times((of[0], inverse(of[1])))
            case "maximum":
                return Plus((_relu(Plus((of[0], _minus(of[1])))), of[1]))
            case "minimum":
                return Plus((of[0], _minus(_relu(Plus((of[0], _minus(of[1])))))))
            case "abs":
                return Plus((_relu(of[0]), _relu(_minus(of[0]))))
            case "silu":
                return Times((of[0], Call("sigmoid", (), of)))
            case name if name in FUNCTIONS:
                return Call(name, (), of)
            case name:
                known = ", ".join(("abs", "maximum", "minimum", "silu", *sorted(FUNCTIONS.keys() - {"hit", "root"})))
                raise FormulaError("formula", f"rules know nothing of {name!r}; of functions they know {known}")

    def _read(self, r: written.Read) -> tuple[Read, list[Poly]]:
        (k, axes), at, guards = self.places[r.operand], list[Poly](), list[Poly]()
        for a, index in enumerate(r.index):
            p = self._index(index)
            at.append(p)
            single = index.single
            if self.outside and single != axes[a] and (single is None or self.extents[single] != size(k, a)):
                guards += [g for g in in_range(p, size(k, a)) if g.constant is None or g.constant < 0]
        return Read(k, tuple(at)), guards

    def _index(self, index: Affine) -> Poly:
        return sum((P(self.names[a]) * c for a, c in index.terms), P(index.offset))


def _factors(e: written.Expression) -> tuple[written.Expression, ...]:
    if isinstance(e, written.Apply) and e.function == "multiply":
        return (*_factors(e.of[0]), *_factors(e.of[1]))
    return (e,)


def _minus(e: Expression) -> Expression:
    return Times((number(-1), e))


def _relu(e: Expression) -> Expression:
    return Call("relu", (), (e,))


def _number(value: Fraction) -> Expression:
    """A rational, as an integer times 1 / an integer."""
    whole = number(value.numerator)
    return whole if value.denominator == 1 else Times((whole, inverse(number(value.denominator))))
