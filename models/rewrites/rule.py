"""This module holds graph substitutions: two sides over shared pattern inputs, mapped outputs, preconditions.

    left  =>  right        for every instance on which the left side types and the preconditions hold,
                           the right side types with equal types, and every mapped output has equal values

Every operator has one result (a two-way split is the two nodes `split0` and `split1`).  A *wire* names a tensor: `-1-k`
is pattern input k of the rule, `n >= 0` is node n of the same side; nodes stand in topological order.  Numeric
parameters are integers or the name of a symbol (an unknown integer >= 1, shared by both sides: strides, kernels,
extents of constants, degrees).

The operators and what they mean: `ops.OPERATORS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from .polynomial import Poly

Parameter = int | str | tuple[int, ...]

MOST_RANK = 8
"""Axes of an input at most; no public rule has more than 4."""


class SubstitutionError(ValueError):
    """A rule that is not well formed.  `rule` names it, `place` the part."""

    def __init__(self, rule: str, place: str, message: str) -> None:
        super().__init__(f"rule {rule}: {place}: {message}")
        self.rule, self.place, self.message = rule, place, message


@dataclass(frozen=True)
class Pattern:
    """A pattern input: `rank` data axes, every size an unknown >= 1 unless `fixed` says (axis, size).

    `sharded`: every axis that is not fixed also has an unknown degree >= 1 that divides its size; otherwise all degrees
    are 1.
    """

    name: str
    rank: int
    fixed: tuple[tuple[int, int], ...] = ()
    sharded: bool = False


@dataclass(frozen=True)
class Node:
    """One operator applied to `inputs` (wires).  `parameters` are sorted (key, value) pairs."""

    operator: str
    inputs: tuple[int, ...]
    parameters: tuple[tuple[str, Parameter], ...] = ()

    def parameter(self, key: str) -> Parameter:
        """Value of a parameter; KeyError if there is none."""
        return dict(self.parameters)[key]


def node(operator: str, *inputs: int, **parameters: Parameter) -> Node:
    """Shorthand.

    >>> node("concat", -1, -2, axis=0).parameter("axis")
    0
    """
    return Node(operator, inputs, tuple(sorted(parameters.items())))


@dataclass(frozen=True)
class Equal:
    """left = right."""

    left: Poly
    right: Poly

    def __str__(self) -> str:
        return f"{self.left} = {self.right}"


@dataclass(frozen=True)
class AtLeast:
    """value >= 0."""

    value: Poly

    def __str__(self) -> str:
        return f"{self.value} >= 0"


@dataclass(frozen=True)
class Divides:
    """divisor >= 1, value >= 0, and divisor divides value (`divides`).  The text says so where it is not visible:
    names are at least 1.
    """

    divisor: Poly
    value: Poly

    def __str__(self) -> str:
        return f"{self.divisor} divides {self.value}{_signs(self.divisor, self.value)}"


@dataclass(frozen=True)
class OneOrMultiple:
    """value = 1, or `Divides`."""

    divisor: Poly
    value: Poly

    def __str__(self) -> str:
        return f"{self.value} = 1 or {self.divisor} divides {self.value}{_signs(self.divisor, self.value)}"


Condition = Equal | AtLeast | Divides | OneOrMultiple
"""Conditions over the symbols of a rule: `name.axis` (size), `name.axis.degree`, and its parameters."""


def divides(divisor: int, value: int) -> bool:
    """What "divides" means everywhere: value = divisor * quotient with divisor >= 1 and an integer quotient >= 0.

    >>> divides(2, 6), divides(2, 0), divides(0, 0), divides(2, -4), divides(-2, 4)
    (True, True, False, False, False)
    """
    return divisor >= 1 and value >= 0 and value % divisor == 0


def holds(c: Condition, values: Mapping[str, int]) -> bool:
    """Whether a condition holds for integer values of its names; KeyError for a name without one."""
    match c:
        case Equal():
            return c.left.value(values) == c.right.value(values)
        case AtLeast():
            return c.value.value(values) >= 0
        case Divides():
            return divides(c.divisor.value(values), c.value.value(values))
        case OneOrMultiple():
            return c.value.value(values) == 1 or divides(c.divisor.value(values), c.value.value(values))
        case _:
            assert_never(c)


def _signs(divisor: Poly, value: Poly) -> str:
    """What the text of a divisibility adds where signs are not visible from coefficients."""
    said = [f"{divisor} >= 1"] if not divisor.terms or any(c < 0 for c in divisor.terms.values()) else []
    said += [f"{value} >= 0"] if any(c < 0 for c in value.terms.values()) else []
    return f" ({', '.join(said)})" if said else ""


def polynomials(c: Condition) -> tuple[Poly, Poly]:
    """Both polynomials of a condition (0 beside the one of `AtLeast`)."""
    match c:
        case Equal():
            return c.left, c.right
        case AtLeast():
            return c.value, Poly({})
        case Divides() | OneOrMultiple():
            return c.divisor, c.value
        case _:
            assert_never(c)


@dataclass(frozen=True)
class Substitution:
    """See the module docstring.  `outputs`: pairs (wire of the left side, wire of the right side)."""

    name: str
    inputs: tuple[Pattern, ...]
    left: tuple[Node, ...]
    right: tuple[Node, ...]
    outputs: tuple[tuple[int, int], ...]
    preconditions: tuple[Condition, ...] = ()
    _names: dict[str, int] = field(init=False, repr=False, compare=False, hash=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._names.update({p.name: k for k, p in enumerate(self.inputs)})

    def wire(self, name: str) -> int:
        """Wire of the pattern input called `name`; KeyError if there is none."""
        return -1 - self._names[name]

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the unknown parameters, in order of first use."""
        from .ops import OPERATORS

        found: dict[str, None] = {}
        for n in (*self.left, *self.right):
            numeric = OPERATORS[n.operator].numbers if n.operator in OPERATORS else ()
            for key, value in n.parameters:
                if key in numeric and isinstance(value, str):
                    found[value] = None
        return tuple(found)

    @property
    def names(self) -> frozenset[str]:
        """Names that its preconditions may speak of: parameters, sizes, degrees; all are at least 1."""
        axes = [f"{p.name}.{a}" for p in self.inputs for a in range(p.rank)]
        return frozenset((*self.symbols, *axes, *(f"{a}.degree" for a in axes)))

    def check(self) -> Substitution:
        """Self, if well formed; `SubstitutionError` names what is not."""
        from .ops import OPERATORS

        if len(self._names) != len(self.inputs):
            raise SubstitutionError(self.name, "inputs", "two pattern inputs have one name")
        for p in self.inputs:
            if not p.name.isidentifier():
                raise SubstitutionError(
                    self.name, f"input {p.name!r}", "a name must be letters, digits and underscores"
                )
            if p.rank > MOST_RANK:
                raise SubstitutionError(self.name, f"input {p.name}", f"rank {p.rank} is above {MOST_RANK}")
            if p.rank < 0 or len(dict(p.fixed)) < len(p.fixed) or any(not 0 <= a < p.rank or n < 1 for a, n in p.fixed):
                raise SubstitutionError(
                    self.name,
                    f"input {p.name}",
                    f"rank {p.rank} with fixed sizes {dict(p.fixed)}: axes must exist once, sizes be at least 1",
                )
        if not self.outputs:
            raise SubstitutionError(self.name, "outputs", "no output is mapped")
        for side, nodes in (("left", self.left), ("right", self.right)):
            for k, n in enumerate(nodes):
                place = f"{side} operator {k} ({n.operator})"
                if n.operator not in OPERATORS:
                    raise SubstitutionError(
                        self.name, place, f"unknown operator; known are {', '.join(sorted(OPERATORS))}"
                    )
                OPERATORS[n.operator].check(n, self.name, place)
                for w in n.inputs:
                    if w >= k:
                        raise SubstitutionError(
                            self.name,
                            place,
                            f"reads the result of operator {w}: the pattern is cyclic or not in topological order",
                        )
                    self._wire_exists(w, nodes, place)
        for a, b in self.outputs:
            self._wire_exists(a, self.left, "mapped output, left")
            self._wire_exists(b, self.right, "mapped output, right")
        known = self.names
        for c in self.preconditions:
            strange = sorted(frozenset().union(*(q.names for q in polynomials(c))) - known)
            if strange:
                raise SubstitutionError(
                    self.name, "preconditions", f"{c}: {strange[0]!r} is no size, degree or parameter of the rule"
                )
        return self

    @property
    def unbound(self) -> tuple[str, ...]:
        """Inputs that the right side uses and the left side does not: such a rule cannot be applied without
        supplying them.
        """
        left = {w for n in self.left for w in n.inputs} | {a for a, _ in self.outputs}
        right = {w for n in self.right for w in n.inputs} | {b for _, b in self.outputs}
        return tuple(p.name for k, p in enumerate(self.inputs) if -1 - k in right - left)

    def _wire_exists(self, wire: int, nodes: tuple[Node, ...], place: str) -> None:
        if not -len(self.inputs) <= wire < len(nodes):
            raise SubstitutionError(
                self.name,
                place,
                f"reads {f'operator {wire}' if wire >= 0 else f'input {-1 - wire}'}, which does not exist",
            )
