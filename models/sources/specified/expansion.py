"""Writes an operator that a user specifies as operators of our table, whose gradients, placements, prices and
kernels are known.

    sum of products          per product one `product`: reads in place, windows and all; parts of sums where summed axes
                             are split
    greatest, least          the body over all axes, then `max` or `min`
    everything else          elementwise functions, each over the axes of what it reads

A factor that is no read is computed first, over its own axes.  Axes that are combined and stand in a window are read
whole, as taps of a convolution are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Final, Protocol

from ...program.formula import Apply, Expression, Number, Read
from ...program.index import Access, Axis, Combine, access
from ...program.operators import Value
from ...program.specified import Placed, Specified
from .specification import Specification, SpecificationError

MOST_TERMS: Final = 32
"""Products of a sum that is multiplied out."""


class Emit(Protocol):
    """Adds an operator to a graph in the making: the tensor that it writes."""

    def __call__(
        self,
        part: str,
        function: str,
        axes: Sequence[Axis],
        inputs: Sequence[Access],
        out: Sequence[str],
        attributes: Mapping[str, Value],
    ) -> str: ...


@dataclass(frozen=True)
class _Term:
    """A number times factors."""

    number: Fraction
    factors: tuple[Expression, ...]


def expand(s: Specification, tensors: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], emit: Emit) -> str:
    """The tensor that holds the operator's result.  `tensors`: of the operands.  Raises `SpecificationError` for shapes
    that do not fit.
    """
    return _Writer(s, tensors, s.extents(shapes), shapes, emit).write()


def use_of(s: Specification, tensors: Mapping[str, str], result: str) -> Specified:
    """What the graph says of it."""
    operands = tuple((o.name, o.axes, Placed.plain(tensors[o.name], len(o.axes))) for o in s.operands)
    sizes = tuple((axis, text) for axis, text, _ in s.sizes)
    return Specified(s.name, s.text, operands, sizes, s.outside, Placed.plain(result, len(s.formula.axes)))


class _Writer:
    def __init__(
        self,
        s: Specification,
        tensors: Mapping[str, str],
        extents: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
        emit: Emit,
    ) -> None:
        self.s, self.tensors, self.extents, self.shapes, self.emit = s, tensors, extents, shapes, emit
        self.known: dict[Expression, Access] = {}

    def write(self) -> str:
        f = self.s.formula
        if f.combine in (Combine.MAX, Combine.MIN):
            found = self._value(f.body)
            if isinstance(found, Fraction):
                raise SpecificationError(self.s.name, "combines numbers, and reads nothing")
            if f.body in self.known or not self._leaves(found):
                return self._reduced(found)
            return self._reduced(self._map("read", "identity", [found]))
        return self._sum(_terms(f.body, self.s.name) if f.combine is Combine.SUM else [_Term(Fraction(1), (f.body,))])

    # --- sums of products

    def _sum(self, terms: Sequence[_Term]) -> str:
        """Every product, then their sum."""
        total, constant = "", Fraction(0)
        for term in terms:
            over = [a for a in self.s.formula.over if any(a in _axes(x) for x in term.factors)]
            number = term.number * prod(self.extents[a] for a in self.s.formula.over if a not in over)
            reads = [self._value(x) for x in term.factors]
            number *= prod((x for x in reads if isinstance(x, Fraction)), start=Fraction(1))
            factors = [x for x in reads if isinstance(x, Access)]
            if not factors:
                constant += number
                continue
            if over or len(factors) > 1 or factors[0].axes != self.s.formula.axes or self._bare(factors[0]):
                function = "product" if over or len(factors) > 1 else "identity"
                factors = [access(self.emit("", function, self._axes(over), factors, self.s.formula.axes, {}),
                                  *self.s.formula.axes)]  # fmt: skip
            if not total:
                total = self._times(factors[0], number).tensor
            else:
                minus = number == -1
                total = self._map("", "subtract" if minus else "add",
                                  [access(total, *self.s.formula.axes),
                                   factors[0] if minus else self._times(factors[0], number)]).tensor  # fmt: skip
        if not total:
            raise SpecificationError(self.s.name, "reads nothing that is not multiplied by 0")
        if constant:
            total = self._number("shift", access(total, *self.s.formula.axes), constant).tensor
        return total

    def _bare(self, read: Access) -> bool:
        """Whether it is no tensor of the output's form that was made here."""
        made = read.tensor not in self.tensors.values()
        return not (made and all(i.single is not None for i in read.index) and len(read.index) == len(read.axes))

    def _times(self, read: Access, number: Fraction) -> Access:
        return read if number == 1 else self._number("scale", read, number)

    def _number(self, function: str, read: Access, number: Fraction) -> Access:
        if Fraction(float(number)) != number:
            raise SpecificationError(self.s.name, f"the number {number} is no binary64; write it as a product of two")
        if function == "scale" and number == -1:
            return self._map("", "negate", [read])
        return self._map("", function, [read], {function: float(number)})

    # --- elementwise functions

    def _axes(self, over: Sequence[str]) -> list[Axis]:
        names = self.s.formula.axes
        combine = self.s.formula.combine
        return [
            *(Axis(a, self.extents[a]) for a in names),
            *(Axis(a, self.extents[a], combine, a not in self.s.compound) for a in over),
        ]

    def _map(
        self, part: str, function: str, of: Sequence[Access], attributes: Mapping[str, Value] | None = None
    ) -> Access:
        used = {a for x in of for a in x.axes}
        names = [a for a in self.s.axes if a in used]
        tensor = self.emit(part, function, [Axis(a, self.extents[a]) for a in names], of, names, attributes or {})
        return access(tensor, *names)

    def _value(self, e: Expression) -> Access | Fraction:
        """What an expression is: a number, or where it can be read."""
        if isinstance(e, Number):
            return e.value
        if isinstance(e, Read):
            return Access(self.tensors[e.operand], e.index)
        if e in self.known:
            return self.known[e]
        of = [self._value(x) for x in e.of]
        if all(isinstance(x, Fraction) for x in of):
            return self._folded(e, [x for x in of if isinstance(x, Fraction)])
        if any(isinstance(x, Fraction) for x in of):
            found = self._with_number(e, of)
        else:
            found = self._map("", e.function, [x for x in of if isinstance(x, Access)])
        self.known[e] = found
        return found

    def _folded(self, e: Apply, of: Sequence[Fraction]) -> Fraction:
        match e.function, of:
            case "add", (a, b):
                return a + b
            case "subtract", (a, b):
                return a - b
            case "multiply", (a, b):
                return a * b
            case "divide", (a, b) if b:
                return a / b
            case "negate", (a,):
                return -a
            case _:
                raise SpecificationError(self.s.name, f"{e.function} of numbers alone; write the number that it is")

    def _with_number(self, e: Apply, of: Sequence[Access | Fraction]) -> Access:
        match e.function, of:
            case "add", (Access() as a, Fraction() as n) | (Fraction() as n, Access() as a):
                return self._number("shift", a, n)
            case "multiply", (Access() as a, Fraction() as n) | (Fraction() as n, Access() as a):
                return self._number("scale", a, n)
            case "subtract", (Access() as a, Fraction() as n):
                return self._number("shift", a, -n)
            case "subtract", (Fraction() as n, Access() as a):
                return self._number("shift", self._map("", "negate", [a]), n)
            case "divide", (Access() as a, Fraction() as n) if n:
                return self._number("scale", a, 1 / n)
            case "divide", (Fraction() as n, Access() as a):
                return self._times(self._map("", "reciprocal", [a]), n)
            case _:
                raise SpecificationError(
                    self.s.name, f"{e.function} of a number and what is read; only + - * / take numbers"
                )

    # --- the greatest, the least

    def _leaves(self, read: Access) -> bool:
        """Whether something outside its tensor is read, which counts as 0."""
        box = {a: (0, self.extents[a]) for a in self.s.axes}
        shape = next(self.shapes[name] for name, t in self.tensors.items() if t == read.tensor)
        ends = [i.unclipped_interval(box) for i in read.index]
        return any(low < 0 or high > n for (low, high), n in zip(ends, shape, strict=True))

    def _reduced(self, read: Access) -> str:
        f = self.s.formula
        if f.combine is None:
            raise SpecificationError(self.s.name, "combines nothing")
        return self.emit("", f.combine.value, self._axes(f.over), [read], f.axes, {})


def _axes(e: Expression) -> set[str]:
    match e:
        case Number():
            return set()
        case Read():
            return {a for i in e.index for a, _ in i.terms}
        case Apply():
            return set().union(*map(_axes, e.of))


def _terms(e: Expression, place: str) -> list[_Term]:
    """An expression multiplied out, as far as sums, products and numbers go."""
    found: list[_Term]
    match e:
        case Number():
            found = [_Term(e.value, ())]
        case Apply("negate", (a,)):
            found = [_Term(-t.number, t.factors) for t in _terms(a, place)]
        case Apply("add" | "subtract", (a, b)):
            sign = 1 if e.function == "add" else -1
            found = [*_terms(a, place), *(_Term(sign * t.number, t.factors) for t in _terms(b, place))]
        case Apply("multiply", (a, b)):
            found = [_Term(x.number * y.number, (*x.factors, *y.factors))
                     for x in _terms(a, place) for y in _terms(b, place)]  # fmt: skip
        case Apply("divide", (a, Number() as n)) if n.value:
            found = [_Term(t.number / n.value, t.factors) for t in _terms(a, place)]
        case _:
            found = [_Term(Fraction(1), (e,))]
    if len(found) > MOST_TERMS:
        raise SpecificationError(place, f"is a sum of more than {MOST_TERMS} products; specify it as two operators")
    return found


def placements(s: Specification) -> list[str]:
    """What splitting every axis of the formula means, in words: derived, nobody states it.

    >>> from .specification import specification
    >>> axes = {"x": ["t", "c"], "w": ["j", "c", "o"]}
    >>> mix = specification({"name": "mix", "formula": "y[i, o] = sum j, c: x[i + j, c] * w[j, c, o]",
    ...     "operands": axes, "sizes": {"i": "t - j + 1"}}, "mix.toml")
    >>> placements(mix)
    ['i: splits the output; x with a halo', 'o: splits the output; w', 'j: whole, a window', 'c: parts of sums; x, w']
    """
    out = []
    for a in s.axes:
        where = []
        for r in dict.fromkeys(_reads(s.formula.body)):
            index = [i for i in r.index if any(a == b for b, _ in i.terms)]
            halo = any(i.single is None for i in index)
            where += [f"{r.operand} with a halo" if halo else r.operand] if index else []
        named = ", ".join(dict.fromkeys(where)) or "nothing that is read"
        if a in s.formula.over and a in s.compound:
            out.append(f"{a}: whole, a window")
        elif a in s.formula.over and s.formula.combine is not None:
            kind = "sums" if s.formula.combine is Combine.SUM else s.formula.combine.value
            out.append(f"{a}: parts of {kind}; {named}")
        else:
            out.append(f"{a}: splits the output; {named}")
    return out


def _reads(e: Expression) -> list[Read]:
    return [e] if isinstance(e, Read) else [r for x in e.of for r in _reads(x)] if isinstance(e, Apply) else []
