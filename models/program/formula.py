"""Reads the formula of an operator that a user specifies: one line of index notation.

    y[b, i, d] = sum j: x[b, i + j - 1, d] * w[j, d]

    formula     NAME [ axes ] = [sum|max|min axes :] sum
    sum         term {+|- term}
    term        factor {*|/ factor}
    factor      number | - factor | ( sum ) | f( sum, .. ) | NAME [ index, .. ]
    index       integers and axes, added and subtracted; an axis times an integer

f is an elementwise function of our table that reads no attribute.  Every value is a real number.  Numbers are the
binary64 nearest to what is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from .index import Affine, Combine

MOST_TEXT: Final = 4096
"""Characters of a formula."""
MOST_DEPTH: Final = 60
"""Brackets inside brackets."""
MOST_NUMBER: Final = 1 << 40
"""Largest integer of an index."""

WITHOUT_ATTRIBUTES: Final = (
    *("relu", "abs", "sign", "floor", "ceil", "reciprocal", "tanh", "sigmoid", "exp", "erf", "sqrt", "rsqrt", "log"),
    *("cos", "sin", "silu", "softplus", "maximum", "minimum"),
)
"""Functions that a formula may call."""
OF_TWO: Final = ("maximum", "minimum")
"""Those of two values."""

_TOKEN: Final = re.compile(r"\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(//|[][(),:=+*/-]))")


class FormulaError(ValueError):
    """A formula that is none; `place` names the part, the message says what to write."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place, self.message = place, message


@dataclass(frozen=True)
class Number:
    """A real number."""

    value: Fraction


@dataclass(frozen=True)
class Read:
    """An operand at an index per axis of it; coefficients may be negative."""

    operand: str
    index: tuple[Affine, ...]


@dataclass(frozen=True)
class Apply:
    """A function of the table, or add, subtract, multiply, divide, negate."""

    function: str
    of: tuple[Expression, ...]


Expression = Number | Read | Apply


@dataclass(frozen=True)
class Formula:
    """`output` over `axes` is `body`, combined over the axes `over` (none: not combined)."""

    output: str
    axes: tuple[str, ...]
    combine: Combine | None
    over: tuple[str, ...]
    body: Expression


def reads(e: Expression) -> Iterator[Read]:
    """All reads of an expression, from left to right."""
    match e:
        case Read():
            yield e
        case Apply():
            for part in e.of:
                yield from reads(part)
        case Number():
            return


def axes_of(e: Expression) -> tuple[str, ...]:
    """Axes of all reads, in the order in which they occur.

    >>> axes_of(read_formula("y[i] = sum j: x[i + j] * w[j]").body)
    ('i', 'j')
    """
    return tuple(dict.fromkeys(a for r in reads(e) for i in r.index for a, _ in i.terms))


def read_formula(text: str) -> Formula:
    """The formula that a text is.  Raises `FormulaError` with the place.

    >>> f = read_formula("y[b, i] = max j: x[b, 2*i + j - 1] + w[j]")
    >>> f.combine.value, f.over, f.body.of[0].index[1]
    ('max', ('j',), Affine(terms=(('i', 2), ('j', 1)), offset=-1, whole=False))
    """
    return _Reader(text).formula()


def formula_text(f: Formula) -> str:
    """A formula as it is written.

    >>> text = "y[b, i] = max j: (x[b, 2*i + j - 1] + w[j]) * 0.5"
    >>> formula_text(read_formula(text)) == text
    True
    """
    combined = "" if f.combine is None else f"{f.combine.value} {', '.join(f.over)}: "
    return f"{f.output}[{', '.join(f.axes)}] = {combined}{_text(f.body, 0)}"


_SIGNS: Final = {"add": (0, "+"), "subtract": (0, "-"), "multiply": (1, "*"), "divide": (1, "/")}
"""How strongly functions with a sign bind, and the sign."""


def _text(e: Expression, binds: int) -> str:
    match e:
        case Number():
            return repr(float(e.value)) if e.value.denominator > 1 else str(e.value)
        case Read():
            return f"{e.operand}[{', '.join(map(_index_text, e.index))}]"
        case Apply("negate", (a,)):
            return f"-{_text(a, 2)}"
        case Apply(name, (a, b)) if name in _SIGNS:
            own, sign = _SIGNS[name]
            written = f"{_text(a, own)} {sign} {_text(b, own + 1)}"
            return f"({written})" if own < binds else written
        case Apply():
            return f"{e.function}({', '.join(_text(x, 0) for x in e.of)})"


def _index_text(index: Affine) -> str:
    terms = [(c, a if abs(c) == 1 else f"{abs(c)}*{a}") for a, c in index.terms]
    terms += [(index.offset, str(abs(index.offset)))] if index.offset or not terms else []
    first, *rest = [(" - " if c < 0 else " + ", t) for c, t in terms]
    return ("-" if first[0] == " - " else "") + first[1] + "".join(f"{sign}{t}" for sign, t in rest)


@dataclass(frozen=True)
class Size:
    """An extent: `what` is number, axis, or a sign between the two of `of`."""

    what: str
    of: tuple[Size, ...] = ()
    name: str = ""
    number: int = 0

    def value(self, extents: dict[str, int]) -> int:
        """The integer where axes have these extents; KeyError for an axis that has none."""
        match self.what:
            case "number":
                return self.number
            case "axis":
                return extents[self.name]
            case "+":
                return self.of[0].value(extents) + self.of[1].value(extents)
            case "-":
                return self.of[0].value(extents) - self.of[1].value(extents)
            case "*":
                return self.of[0].value(extents) * self.of[1].value(extents)
            case _:
                return self.of[0].value(extents) // self.of[1].number

    @property
    def names(self) -> tuple[str, ...]:
        """Axes that occur."""
        return (self.name,) if self.what == "axis" else tuple(n for s in self.of for n in s.names)


def read_size(text: str) -> Size:
    """An extent in extents of axes: sums, products with integers, floor division by integers.

    >>> read_size("(t - j) // 2 + 1").value({"t": 9, "j": 3})
    4
    """
    return _Reader(text).size()


class _Reader:
    """A recursive descent over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.tokens: list[tuple[str, int]] = []
        if len(text) > MOST_TEXT:
            raise FormulaError("formula", f"has {len(text)} characters, at most {MOST_TEXT} are read")
        end = len(text.rstrip())
        at = 0
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise FormulaError(f"column {at + 1}", f"{text[at : at + 10]!r} is no name, number or sign")
            self.tokens.append((found[0].strip(), found.start(found.lastindex or 0)))
            at = found.end()

    # --- tokens

    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def fail(self, message: str) -> FormulaError:
        at = self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text)
        return FormulaError(f"column {at + 1}", message)

    def expect(self, sign: str) -> None:
        if self.peek() != sign:
            raise self.fail(f"needs {sign!r}, not {self.peek() or 'the end'!r}")
        self.take()

    def name(self, what: str) -> str:
        if not re.fullmatch(r"[A-Za-z_]\w*", self.peek()):
            raise self.fail(f"needs the name of {what}, not {self.peek() or 'the end'!r}")
        return self.take()

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise self.fail(f"has more than {MOST_DEPTH} brackets inside each other")

    # --- the grammar

    def formula(self) -> Formula:
        output = self.name("the output")
        self.expect("[")
        axes = []
        while self.peek() != "]":
            axes.append(self.name("an axis of the output"))
            if self.peek() == ",":
                self.take()
            elif self.peek() != "]":
                raise self.fail(f"axes of the output stand alone, separated by commas; {self.peek()!r} does not")
        self.expect("]")
        self.expect("=")
        combine, over = None, list[str]()
        words = {c.value: c for c in Combine}
        if self.peek() in words and self._is_name(self.at + 1):
            combine = words[self.take()]
            while self.peek() != ":":
                over.append(self.name("an axis that is combined, then ':'"))
                if self.peek() == ",":
                    self.take()
            self.expect(":")
        body = self.sum()
        if self.peek():
            raise self.fail(f"ends before {self.peek()!r}")
        return Formula(output, tuple(axes), combine, tuple(over), body)

    def _is_name(self, at: int) -> bool:
        return at < len(self.tokens) and re.fullmatch(r"[A-Za-z_]\w*", self.tokens[at][0]) is not None

    def sum(self) -> Expression:
        found = self.term()
        while self.peek() in ("+", "-"):
            sign = self.take()
            found = Apply("add" if sign == "+" else "subtract", (found, self.term()))
        return found

    def term(self) -> Expression:
        found = self.factor()
        while self.peek() in ("*", "/"):
            sign = self.take()
            found = Apply("multiply" if sign == "*" else "divide", (found, self.factor()))
        return found

    def factor(self) -> Expression:
        self.enter()
        try:
            return self._factor()
        finally:
            self.depth -= 1

    def _factor(self) -> Expression:
        token = self.peek()
        if token == "-":
            self.take()
            found = self.factor()
            return Number(-found.value) if isinstance(found, Number) else Apply("negate", (found,))
        if token == "(":
            self.take()
            found = self.sum()
            self.expect(")")
            return found
        if token[:1].isdigit():
            value = float(self.take())
            if value in (float("inf"), float("-inf")):
                raise self.fail(f"{token} is larger than any binary64")
            return Number(Fraction(value))
        name = self.name("an operand or a function")
        if self.peek() == "(":
            return self._call(name)
        self.expect("[")
        index = []
        while self.peek() != "]":
            index.append(self.index())
            if self.peek() == ",":
                self.take()
            elif self.peek() != "]":
                raise self.fail(f"needs ',' or ']' behind an index of {name!r}, not {self.peek() or 'the end'!r}")
        self.expect("]")
        return Read(name, tuple(index))

    def _call(self, name: str) -> Expression:
        if name in ("sum", "max", "min"):
            raise self.fail(f"{name} stands once, in front: NAME[..] = {name} AXES: ..")
        if name not in WITHOUT_ATTRIBUTES:
            raise self.fail(f"{name!r} is no function of formulas; there are {', '.join(WITHOUT_ATTRIBUTES)}")
        self.take()
        of = [self.sum()]
        while self.peek() == ",":
            self.take()
            of.append(self.sum())
        self.expect(")")
        if len(of) != 1 + (name in OF_TWO):
            raise self.fail(f"{name} takes {1 + (name in OF_TWO)} values, got {len(of)}")
        return Apply(name, tuple(of))

    def index(self) -> Affine:
        terms: dict[str, int] = {}
        offset, sign = 0, 1
        if self.peek() in ("+", "-"):
            sign = -1 if self.take() == "-" else 1
        while True:
            number, axis = 1, ""
            if self.peek().isdigit():
                number = self._integer()
                if self.peek() == "*":
                    self.take()
                    axis = self.name("an axis")
            else:
                axis = self.name("an axis, or an integer")
                if self.peek() == "*":
                    self.take()
                    number = self._integer()
            if axis:
                terms[axis] = terms.get(axis, 0) + sign * number
            else:
                offset += sign * number
            if self.peek() not in ("+", "-"):
                return Affine(tuple((a, c) for a, c in terms.items() if c), offset)
            sign = -1 if self.take() == "-" else 1

    def _integer(self) -> int:
        if not self.peek().isdigit() or len(self.peek()) > 13 or int(self.peek()) > MOST_NUMBER:
            raise self.fail(f"needs an integer of at most 2**40, not {self.peek()[:20] or 'the end'!r}")
        return int(self.take())

    def size(self) -> Size:
        found = self._size_sum()
        if self.peek():
            raise self.fail(f"ends before {self.peek()!r}")
        return found

    def _size_sum(self) -> Size:
        found = self._size_term()
        while self.peek() in ("+", "-"):
            found = Size(self.take(), (found, self._size_term()))
        return found

    def _size_term(self) -> Size:
        found = self._size_factor()
        while self.peek() in ("*", "//"):
            sign = self.take()
            if sign == "//" and (not self.peek().isdigit() or int(self.peek()[:13]) < 1):
                raise self.fail("an extent is divided by a positive integer")
            found = Size(sign, (found, self._size_factor()))
        return found

    def _size_factor(self) -> Size:
        self.enter()
        try:
            if self.peek() == "(":
                self.take()
                found = self._size_sum()
                self.expect(")")
                return found
            if self.peek().isdigit():
                return Size("number", number=self._integer())
            return Size("axis", name=self.name("an axis, or an integer"))
        finally:
            self.depth -= 1
