"""Proofs about substitutions: what the checker `verify.rewrites.soundness` replays.

A *fact* shows that integer polynomials h_0, h_1, .. cannot all be >= 0: non-negative integers c with

    sum_k c_k * h_i(k) * h_j(k)   (h_j absent if j = -1)    =    a negative constant;

to show g >= 0 from h_0..h_{n-1} take h_n = -g - 1.  An empty fact is allowed where g is a constant >= 0, or some h_i
plus a constant >= 0.

Equality of two guarded sums under a list of facts ("context"):

    Split(g, yes, no)       both under g >= 0 and under -g-1 >= 0
    Larger(k, first, second)  the k-th maximum of the typing is its first / its second argument
    Empty(fact)             the context is contradictory
    Leaf                    every monomial of both sides goes through a Step; what is kept is put into clusters of
                            monomials that are equal up to the coefficient, and in every cluster coefficients (right
                            side negated) add up to 0

    Keep                    the monomial as it is
    Zero(fact)              context and guards are contradictory: the monomial is 0
    Cut(g, yes, no)         the monomial with guard g plus the monomial with guard -g-1
    Pin(v, p, f, f')        the guards force v = p (p without v): substitute
    Digits(v, m, f, rest)   v = m * v'h + v'l with 0 <= v'l < m, m >= 1
    Known(k, axiom, ..)     what is known of the function of atom k: relu of what is not negative, exp of a sum, a
                            monotone function of a maximum, ..

A member of a cluster is carried to the first one (the representative) by an integer affine map of bound variables with
determinant +-1; `there` shows its mapped guards from the representative's, `back` the converse; then atoms pair off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...models.rewrites.polynomial import Poly
from ...models.rewrites.rule import Substitution

Fact = tuple[tuple[int, int, int], ...]
"""Triples (i, j or -1, multiplier >= 1)."""

Assignment = tuple[tuple[str, Poly], ...]
Facts = tuple[Fact, ...]


@dataclass(frozen=True)
class Keep:
    """The monomial as it is."""


@dataclass(frozen=True)
class Zero:
    """The monomial is 0."""

    fact: Fact


@dataclass(frozen=True)
class Cut:
    """Two monomials, by a guard and its negation."""

    guard: Poly
    yes: Step
    no: Step


@dataclass(frozen=True)
class Pin:
    """The guards force `variable` = `value`."""

    variable: str
    value: Poly
    at_least: Fact
    at_most: Fact
    rest: Step


@dataclass(frozen=True)
class Digits:
    """Two digits of a bound variable."""

    variable: str
    modulus: Poly
    fact: Fact
    rest: Step


@dataclass(frozen=True)
class Known:
    """Atom `atom` of the monomial, a function of one sum, is rewritten by an axiom of
    `models.rewrites.function_axioms`: the sum's monomials go through `steps`, identical ones are put together, the
    axiom is applied, and what comes out, multiplied out, goes through `rest`.  `factors`: atoms that come out of the
    function (axiom "factor").  `point`, `facts`: a point in the range of a maximum (axiom "maximum", if the function
    does not keep 0)."""

    atom: int
    axiom: str
    steps: tuple[Step, ...]
    factors: tuple[int, ...]
    point: Assignment
    facts: Facts
    rest: tuple[Step, ...]


Step = Keep | Zero | Cut | Pin | Digits | Known


@dataclass(frozen=True)
class Entries:
    """Equal entries (or equal integer values): per index two facts, difference >= 0 and <= 0."""

    facts: tuple[tuple[Fact, Fact], ...]


@dataclass(frozen=True)
class Applied:
    """Equal applications: integer arguments by facts, values by proofs."""

    facts: tuple[tuple[Fact, Fact], ...]
    arguments: tuple[Equality, ...]


@dataclass(frozen=True)
class Peak:
    """Equal maxima: ranges in bijection, bodies equal."""

    assignment: Assignment
    there: Facts
    back: Facts
    body: Equality


AtomProof = Entries | Applied | Peak


@dataclass(frozen=True)
class Member:
    """Kept monomial `number` equals the representative; `pairing[k]` is its atom for the representative's atom k."""

    number: int
    assignment: Assignment
    there: Facts
    back: Facts
    pairing: tuple[int, ...]
    atoms: tuple[AtomProof, ...]


@dataclass(frozen=True)
class Cluster:
    """`first` is the number of the representative among kept monomials (left side first)."""

    first: int
    others: tuple[Member, ...]


@dataclass(frozen=True)
class Split:
    """Case split on a guard."""

    guard: Poly
    yes: Equality
    no: Equality


@dataclass(frozen=True)
class Larger:
    """Case split on a maximum of the typing."""

    number: int
    first: Equality
    second: Equality


@dataclass(frozen=True)
class Empty:
    """The context is contradictory."""

    fact: Fact


@dataclass(frozen=True)
class Leaf:
    """See the module docstring."""

    left: tuple[Step, ...]
    right: tuple[Step, ...]
    clusters: tuple[Cluster, ...]


Equality = Split | Larger | Empty | Leaf


@dataclass(frozen=True)
class Void:
    """No instance falls under this case: typing fails visibly, or by a fact over what is known."""

    fact: Fact | None


@dataclass(frozen=True)
class Shown:
    """Everything owed: per equation or inequality its facts; copy requirements of the left and the right side;
    mapped outputs.
    """

    owed: tuple[tuple[Fact, ...], ...]
    copies: tuple[Equality, ...]
    outputs: tuple[Equality, ...]


@dataclass(frozen=True)
class Absent:
    """The monomial is 0: context and guards are contradictory."""

    fact: Fact


@dataclass(frozen=True)
class Idle:
    """The monomial is 0: its atom `atom` is an entry of an input that is 0, or relu of a sum whose monomials are
    all 0 (`inner`).
    """

    atom: int
    inner: tuple[Sign, ...]


@dataclass(frozen=True)
class Present:
    """The monomial is at least 1: its range holds the point `point` (`facts`: its guards there), its atoms there are
    entries of inputs that are 1, or relu of a sum that is at least 1 (`inner[k]`)."""

    point: Assignment
    facts: Facts
    inner: tuple[tuple[Sign, ...], ...]


@dataclass(frozen=True)
class Least:
    """The monomial is at least 0."""


Sign = Absent | Idle | Present | Least


@dataclass(frozen=True)
class Unequal:
    """No instance of the case keeps its copies: with the inputs `ones` all 1 and the others all 0, the operand of copy
    requirement `number` of the left side is 0 at one replica and at least 1 at another: replica 0 and replica `at` (1
    <= at < extent), the other way round if `swapped`; all its other coordinates are 0.  `zero`, `some`: a sign per
    monomial of the two values."""

    number: int
    at: Poly
    swapped: bool
    ones: tuple[int, ...]
    in_range: tuple[Fact, Fact]
    zero: tuple[Sign, ...]
    some: tuple[Sign, ...]


@dataclass(frozen=True)
class Case:
    """Outcome under a list of typing choices (0: the value is 1, 1: it is a multiple)."""

    choices: tuple[int, ...]
    outcome: Void | Shown | Unequal


TRUE: Final = "true"
Instance = tuple[tuple[str, int], ...]
"""Values of sizes `name.axis`, degrees `name.axis.degree` and parameters, sorted by name."""


@dataclass(frozen=True)
class Counterexample:
    """An instance on which the left side types (and, unless it shows a precondition necessary, all preconditions hold)
    and the right side fails.

    `values[k]`: entries of input k, row-major.  `functions`: `TRUE`; elementwise functions are what
    `models.rewrites.functions` says (files of old versions may say "any": such a one shows nothing).  `what`: "typing",
    "shape", "copy" or "value".
    """

    instance: Instance
    values: tuple[tuple[int, ...], ...]
    functions: str
    what: str


@dataclass(frozen=True)
class Proved:
    """The rule holds for all instances that satisfy its preconditions; `needed[k]` shows precondition k necessary;
    `witness` is one instance.
    """

    rule: Substitution
    cases: tuple[Case, ...]
    witness: Instance
    needed: tuple[Counterexample, ...]


@dataclass(frozen=True)
class Refuted:
    """The rule fails on an instance."""

    rule: Substitution
    counterexample: Counterexample


@dataclass(frozen=True)
class Vacuous:
    """The left side has no instance: every case is void or has unequal copies throughout.  `violation` is an instance
    on which copies differ; without cases it is all there is: nothing is known of other instances."""

    rule: Substitution
    cases: tuple[Case, ...]
    violation: Counterexample | None


@dataclass(frozen=True)
class Undecided:
    """Nothing is claimed."""

    rule: Substitution
    reason: str


Judgement = Proved | Refuted | Vacuous | Undecided


def shown_cases(proved: Proved) -> tuple[tuple[int, ...], ...]:
    """Choices of the cases of typing that have instances."""
    return tuple(c.choices for c in proved.cases if isinstance(c.outcome, Shown))
