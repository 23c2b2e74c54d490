"""What a row of the operator table of substitutions is made of: definitions, split trees, auxiliary
coordinates, meanings.

A row gives, for fixed ranks and fixed enumerated parameters, a `Meaning`: pure data over the names listed in
`index_expressions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .index_expressions import Expression
from .nodes import Condition, Node, SubstitutionError
from .polynomial import ONE, Poly


@dataclass(frozen=True)
class Floor:
    """name = floor(numerator / denominator), denominator >= 1."""

    name: str
    numerator: Poly
    denominator: Poly


@dataclass(frozen=True)
class Largest:
    """name = max(first, second)."""

    name: str
    first: Poly
    second: Poly


@dataclass(frozen=True)
class Quotient:
    """name = value / divisor; a typing precondition that divisor divides value."""

    name: str
    value: Poly
    divisor: Poly


@dataclass(frozen=True)
class Shrunk:
    """name = 1 if value = 1, else value / divisor; a typing precondition that value is 1 or a multiple."""

    name: str
    value: Poly
    divisor: Poly


Define = Floor | Largest | Quotient | Shrunk


@dataclass(frozen=True)
class Join:
    """Split tree of output axis `axis`: operand 0's extent before operand 1's."""

    axis: int


@dataclass(frozen=True)
class Part:
    """The operator takes part `which` (0 or 1) of the split tree of operand 0 on `axis`; `at`: the name bound to
    the split point.
    """

    axis: int
    which: int
    at: str


@dataclass(frozen=True)
class Auxiliary:
    """Change of the auxiliary coordinates.  Output: `copy` multiplies the copy extent; `sums`, `times`: (extents taken
    from the front of the operand's list, new extents put there); body names q0.., t0.. are the new coordinates."""

    copy: Poly = ONE
    sums_taken: int = 0
    sums: tuple[Poly, ...] = ()
    times_taken: int = 0
    times: tuple[tuple[int, Poly], ...] = ()


@dataclass(frozen=True)
class Meaning:
    """`sizes`, `degrees` (None: generated) of the result, `require` its typing preconditions, `body` its value at i0,
    i1, ..

    `copies`: (operand, axis) whose value must not depend on that axis.  `auxiliary` None: the operator acts pointwise
    on devices and times.
    """

    sizes: tuple[Poly, ...]
    body: Expression
    require: tuple[Condition, ...] = ()
    define: tuple[Define, ...] = ()
    degrees: tuple[Poly, ...] | None = None
    copies: tuple[tuple[int, int], ...] = ()
    tree: Join | Part | None = None
    auxiliary: Auxiliary | None = None


Build = Callable[[Node, tuple[int, ...]], Meaning]


@dataclass(frozen=True)
class Row:
    """One operator.  `numbers`: numeric parameters (integer >= 1 or symbol); `words`: enumerated parameters and their
    values; `integers`: parameters that are plain integers >= 0 (axes); `permutations`: parameters that are
    permutations; `texts`: parameters that are texts, with what says why one is none."""

    name: str
    arity: tuple[int, int]
    build: Build
    numbers: tuple[str, ...] = ()
    words: tuple[tuple[str, tuple[str, ...]], ...] = ()
    integers: tuple[str, ...] = ()
    permutations: tuple[str, ...] = ()
    texts: tuple[tuple[str, Callable[[str], str]], ...] = ()

    def check(self, node: Node, rule: str, place: str) -> None:
        """`SubstitutionError` unless the node has the row's operands and parameters."""
        if not self.arity[0] <= len(node.inputs) <= self.arity[1]:
            raise SubstitutionError(
                rule, place, f"has {len(node.inputs)} operands, needs {self.arity[0]} to {self.arity[1]}"
            )
        words = dict(self.words)
        texts = dict(self.texts)
        known = {*self.numbers, *words, *self.integers, *self.permutations, *texts}
        given = dict(node.parameters)
        if set(given) != known or len(given) != len(node.parameters):
            raise SubstitutionError(rule, place, f"has parameters {sorted(given)}, needs {sorted(known)}")
        for key, value in node.parameters:
            if key in words:
                fits = value in words[key]
            elif key in texts:
                wrong = texts[key](value) if isinstance(value, str) else "is no text"
                if wrong:
                    raise SubstitutionError(rule, place, f"parameter {key}: {wrong}")
                fits = True
            elif key in self.integers:
                fits = type(value) is int and 0 <= value < 8
            elif key in self.permutations:
                fits = isinstance(value, tuple) and sorted(value) == list(range(len(value)))
            else:
                fits = (type(value) is int and 1 <= value < 1 << 31) or (
                    isinstance(value, str) and value.isidentifier()
                )
            if not fits:
                raise SubstitutionError(rule, place, f"parameter {key} cannot be {value!r}")


class RankError(ValueError):
    """Operands of the wrong rank, or an axis that does not exist."""
