"""Graph substitutions: two sides over shared pattern inputs, mapped outputs, preconditions.

    left  =>  right        for every instance on which the left side types and the preconditions hold,
                           the right side types with equal types, and every mapped output has equal values

Every operator has one result (a two-way split is the two nodes `split0` and `split1`).  A *wire* names a tensor: `-1-k`
is pattern input k of the rule, `n >= 0` is node n of the same side; nodes stand in topological order.  Numeric
parameters are integers or the name of a symbol (an unknown integer >= 1, shared by both sides: strides, kernels,
extents of constants, degrees).

The operators and what they mean: `ops.OPERATORS`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .nodes import (
    AtLeast,
    Condition,
    Divides,
    Equal,
    Node,
    OneOrMultiple,
    Parameter,
    SubstitutionError,
    divides,
    holds,
    node,
    polynomials,
)
from .ops import OPERATORS

MOST_RANK = 8
"""Axes of an input at most; no public rule has more than 4."""


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


__all__ = [
    "MOST_RANK",
    "AtLeast",
    "Condition",
    "Divides",
    "Equal",
    "Node",
    "OneOrMultiple",
    "Parameter",
    "Pattern",
    "Substitution",
    "SubstitutionError",
    "divides",
    "holds",
    "node",
    "polynomials",
]
