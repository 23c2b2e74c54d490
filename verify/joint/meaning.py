"""What an operator of a planned graph computes, as a polynomial in elements of the tensors that it
reads.

    out[o] = sum over reduction axes of f( input_1[i_1(o, r)], .. )        indices outside a tensor read 0

Known are products, sums of products, sums, copies, and the maps of `_MAPS`; every other map is a function of its
operands at one point, of which nothing else is known; relu is [x > 0] x, its gradient [x > 0] g.  Norms, softmax,
pooling, attention and the rows of a table: `kinds`.  Of other operators (sorts, products by group, views, gradients of
windows) nothing is said here: they stay whole, and what needs more is refused.

What is added or multiplied is real: of truth values and integers, whose arithmetic is another one, nothing is known.

`Unfolding` unfolds the operators that it is given for some tensors, and leaves all other tensors as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import count
from typing import Final

from ...models.program.graph import Graph
from ...models.program.index import Combine
from ...models.program.operators import FUNCTIONS, NodeKind, Operator
from ..budget import Budget
from . import kinds
from .numbers import exact
from .polynomials import Call, Cut, Element, Polynomial, Position, Positive, Undecided, Work, normal

MOST_UNFOLDED: Final = 1 << 12
"""Operators of one element, as often as they are read: a chain whose links read twice doubles with every link."""

MOST_PIECES: Final = 64
"""Pieces of the positions of a tensor that are compared apart."""


class Unfolding:
    """Values of tensors of a graph, some of them unfolded: `by` names the operator for each of those.

    `sign`: whether relu and its gradient are more than functions of which nothing is known; `defined`: whether softmax
    is; `casts`: whether a cast of real numbers to another type of them leaves them as they are.
    """

    def __init__(
        self,
        graph: Graph,
        by: Mapping[str, Operator],
        sign: bool,
        work: Work,
        defined: bool = False,
        casts: bool = False,
    ) -> None:
        self.casts = casts
        self.graph, self.by, self.sign, self.work, self.defined = graph, by, sign, work, defined
        self._fresh = count()
        self.used = set[str]()
        self.unfolded = 0

    def of_tensor(self, tensor: str, at: tuple[Position, ...]) -> Polynomial:
        """The element of a tensor at positions inside it."""
        if tensor not in self.by:
            return Polynomial.atom(Element(tensor, at))
        self.used.add(tensor)
        return self.of_operator(self.by[tensor], at)

    def of_operator(self, op: Operator, at: tuple[Position, ...]) -> Polynomial:
        """What the operator computes at these positions.  Raises `Undecided` for one that is not known here."""
        self.unfolded += 1
        if self.unfolded > MOST_UNFOLDED:
            raise Undecided(f"more than {MOST_UNFOLDED} operators stand in one element, each as often as it is read")
        if not self._real(op.output.tensor):
            raise Undecided(f"operator {op.name!r} computes no real numbers")
        axes = {i.terms[0][0]: p for i, p in zip(op.output.index, at, strict=True)}
        if kinds.is_known(op):
            self._calculates(op, 0, len(op.inputs) - (op.function in kinds.HITS))
            found = kinds.value(op, self.graph, axes, self._new, self._input, self.defined)
            self.work.of(found)
            return found
        bound = []
        for a in op.axes:
            if a.combine is not None:
                if a.combine is not Combine.SUM:
                    raise Undecided(f"operator {op.name!r} combines by {a.combine.value}")
                name = self._new(a.name)
                axes[a.name] = Position(((name, 1),))
                bound.append((name, a.extent))
        inputs = [partial(self._input, op, j, axes) for j in range(len(op.inputs))]
        found = self._applied(op, inputs, tuple(bound))
        self.work.of(found)
        return found

    def _new(self, axis: str) -> str:
        return f"s{next(self._fresh)}~{axis}"

    def _input(self, op: Operator, j: int, axes: Mapping[str, Position]) -> Polynomial:
        a = op.inputs[j]
        shape = self.graph.tensor(a.tensor).shape
        if any(i.whole for i in a.index):
            raise Undecided(f"operator {op.name!r} reads {a.tensor!r} whole")
        at = tuple(kinds.position(i, axes) for i in a.index)
        return self.of_tensor(a.tensor, at).where(tuple(zip(at, shape, strict=True)))

    def _real(self, tensor: str) -> bool:
        return self.graph.tensor(tensor).dtype.startswith(("float", "bfloat"))

    def _calculates(self, op: Operator, first: int = 0, last: int | None = None) -> None:
        """Raises `Undecided` if some of the inputs that are added or multiplied are no real numbers."""
        for a in op.inputs[first:last]:
            if not self._real(a.tensor):
                raise Undecided(f"operator {op.name!r} calculates with {a.tensor!r}, which holds no real numbers")

    def _product(self, inputs: Sequence[Callable[[], Polynomial]]) -> Polynomial:
        """A product of inputs, each unfolded apart, so that what one sums over no other does."""
        total = Polynomial.number(Fraction(1))
        for i in inputs:
            total = total * i()
            self.work.of(total)
        return total

    def _applied(
        self, op: Operator, inputs: Sequence[Callable[[], Polynomial]], bound: tuple[tuple[str, int], ...]
    ) -> Polynomial:
        known = dict(op.attributes)
        if op.kind is NodeKind.MAP:
            if not self._opaque(op.function, op.attributes):
                self._calculates(op)
            return self._map(op.function, [i() for i in inputs], op.attributes, op)
        if op.function != "fused_product":
            self._calculates(op)
        if op.function == "product" and known.keys() <= {"arithmetic"}:  # how it is rounded
            return self._product(inputs).sum_over(bound)
        if op.function == "product_sum" and known.keys() <= {"arithmetic"}:
            total = Polynomial()
            for j in range(0, len(inputs), 2):
                total = total + self._product(inputs[j : j + 2])
            return total.sum_over(bound)
        if op.function == "sum" and known.keys() <= {"scale"}:
            return inputs[0]().sum_over(bound).times(exact(known.get("scale", 1), op))
        if op.function == "copy" and not known and not bound:
            total = Polynomial()
            for i in inputs:
                total = total + i()
            return total
        if op.function == "fused_product" and "reversed" not in known:
            many, names = known["factors"], known["epilogue"]
            if not isinstance(many, int) or not isinstance(names, tuple):
                raise Undecided(f"operator {op.name!r} has no factors or no epilogue")
            self._calculates(op, 0, many)
            value, rest, at = self._product(inputs[:many]).sum_over(bound), iter(inputs[many:]), many
            left = tuple((k, v) for k, v in op.attributes if k not in ("factors", "epilogue", "arithmetic"))
            for name in names:
                more = FUNCTIONS[str(name)].arity[0] - 1
                attributes = _read(str(name), left)
                if not self._opaque(str(name), attributes):
                    self._calculates(op, at, at + more)
                at += more
                value = self._map(str(name), [value, *(next(rest)() for _ in range(more))], attributes, op)
                self.work.of(value)
            return value
        raise Undecided(f"operator {op.name!r} is a {op.function}, of which nothing is known here")

    def _opaque(self, function: str, attributes: tuple[tuple[str, object], ...]) -> bool:
        """Whether of a map nothing is known but that equal operands give equal values."""
        names = {name for name, _ in attributes}
        known = function in _MAPS or (self.sign and function in ("relu", "relu_gradient"))
        return not (known and not names or (function in ("scale", "shift") and names == {function}))

    def _map(
        self, function: str, of: list[Polynomial], attributes: tuple[tuple[str, object], ...], op: Operator
    ) -> Polynomial:
        known = dict(attributes)
        if function in _MAPS and not known:
            return _MAPS[function](of)
        if function in ("scale", "shift") and known.keys() == {function}:
            number = exact(known[function], op)
            return of[0].times(number) if function == "scale" else of[0] + Polynomial.number(number)
        if self.sign and not known and function == "relu":
            return Polynomial.atom(Positive(of[0])) * of[0]
        if self.sign and not known and function == "relu_gradient":
            return Polynomial.atom(Positive(of[1])) * of[0]
        if (
            self.casts
            and function == "cast"
            and self._real(op.inputs[0].tensor)
            and attributes == (("dtype", self.graph.tensor(op.output.tensor).dtype),)
        ):
            return of[0]
        if FUNCTIONS[function].logical or function == "cast":
            raise Undecided(f"operator {op.name!r} computes no real numbers, or changes their element type")
        return Polynomial.atom(Call(function, attributes, tuple(of)))


_MAPS: Final[Mapping[str, Callable[[list[Polynomial]], Polynomial]]] = {
    "identity": lambda p: p[0],
    "negate": lambda p: p[0].times(Fraction(-1)),
    "add": lambda p: p[0] + p[1],
    "subtract": lambda p: p[0] + p[1].times(Fraction(-1)),
    "multiply": lambda p: p[0] * p[1],
    "fused_scale_shift": lambda p: p[0] * p[1] + p[2],
    "sum_inputs": lambda p: sum(p[1:], p[0]),
}
"""Maps that are polynomials."""


_WITHOUT: Final = frozenset(_MAPS) | {
    *("relu", "relu_gradient", "abs", "sign", "floor", "ceil", "round", "trunc", "reciprocal", "softplus", "silu"),
    *("tanh", "sigmoid", "exp", "erf", "sqrt", "rsqrt", "log", "cos", "sin", "divide", "maximum", "minimum", "where"),
}
"""Maps that read no attribute."""

_ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "scale": ("scale",),
    "shift": ("shift",),
    "gelu": ("approximate",),
    "gelu_gradient": ("approximate",),
    "batch_norm": ("epsilon",),
    "clip": ("low", "high"),
    "power": ("exponent",),
    "mask_fill": ("value",),
}
"""Maps and the attributes that they read; of other maps any may be read."""


def _read(function: str, attributes: tuple[tuple[str, object], ...]) -> tuple[tuple[str, object], ...]:
    """The attributes of a fused product that one of its maps reads."""
    if function in _WITHOUT:
        return ()
    names = _ATTRIBUTES.get(function)
    return attributes if names is None else tuple((k, v) for k, v in attributes if k in names)


def wrong_equation(
    graph: Graph,
    left: Operator,
    right: Operator,
    by: Mapping[str, Operator],
    sign: bool,
    budget: Budget,
    defined: bool = False,
) -> str:
    """Why two operators that write the same tensor are not seen to compute the same, where the tensors in `by` are
    what those operators compute; empty if they are.  Raises `ContainerError` for more work than the budget has.
    """

    def sides(unfolding: Unfolding, at: tuple[Position, ...]) -> tuple[Polynomial, Polynomial]:
        return unfolding.of_operator(left, at), unfolding.of_operator(right, at)

    said = f"operators {left.name!r} and {right.name!r} compute different values"
    return wrong_values(graph, Equation(left.output.tensor, sides, right.name, said), by, sign, budget, defined)


Sides = Callable[[Unfolding, tuple[Position, ...]], tuple[Polynomial, Polynomial]]
"""What two sides are where a tensor is read at positions."""


@dataclass(frozen=True)
class Equation:
    """Two `sides` that are the tensor; `name`: of what is charged; `said` where they differ."""

    tensor: str
    sides: Sides
    name: str
    said: str


def wrong_values(
    graph: Graph,
    equation: Equation,
    by: Mapping[str, Operator],
    sign: bool,
    budget: Budget,
    defined: bool,
    casts: bool = False,
) -> str:
    """The same of any equation."""
    work = Work(budget, f"equation of {equation.name[:80]!r}")
    rest = [tuple((0, n) for n in graph.tensor(equation.tensor).shape)]
    used = set[str]()
    for _ in range(MOST_PIECES):
        if not rest:
            idle = sorted(by.keys() - used)
            return f"nothing needs what computes {idle[0]!r}" if idle else ""
        spans = rest.pop()
        at = tuple(Position(((f"o{k}", 1),), begin) for k, (begin, _) in enumerate(spans))
        ranges = {f"o{k}": end - begin for k, (begin, end) in enumerate(spans)}
        unfolding = Unfolding(graph, by, sign, work, defined, casts)
        try:
            values = [normal(p, ranges, work) for p in equation.sides(unfolding, at)]
        except Cut as cut:
            k = int(cut.axis[1:])
            begin, end = spans[k]
            rest.extend(
                (*spans[:k], part, *spans[k + 1 :]) for part in ((begin, begin + cut.at), (begin + cut.at, end))
            )
            continue
        except Undecided as error:
            return str(error)
        if values[0] != values[1]:
            return equation.said
        used |= unfolding.used
    return f"falls into more than {MOST_PIECES} pieces"
