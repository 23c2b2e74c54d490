"""Certificates of placements and reduction programs.

Placement      problem (hierarchy, axes) and claim
  Complete     `matrices` are all placements.  Proof: they are valid and distinct, and their number is the product over
               the primes of the number of transportation tables, which the checker counts on its own.

Reduction      parts; a part is a request (who reduces, over which tree, by which reading), the claims about it, and
               potentials
  Correct      the program does what was asked for.  Proof: replay.
  Cheapest     it costs `cost` under a cost model, and no program of any length costs less.  Proof: potentials phi on
               the closed state graph, one integer per state in order of discovery (breadth first from the start;
               patterns root to leaf, InsideGroup, Parallel, Master; collectives in the order of `Collective`; the goal
               is not expanded):
                   phi(goal) <= 0;  phi(start) >= cost;  phi(s) <= cost(s, t) + phi(t) for every step s -> t
                   (unlisted t count as 0)
               So every program costs at least phi(start), by adding up along its path.  Dead states carry `DEAD`.
               phi(start) < cost is a weaker but valid certificate: it proves the lower bound phi(start).
  Count        there are `lengths[t]` programs of t steps, and no longer ones.  Proof: recount on the closed graph.
  Impossible   no program of any length.  Proof: the goal is not in the closed graph.
Best           of all placements (Complete) and device orders, the placement `matrix` makes the weighted sum of the
               cheapest programs of all reductions least.  Proof: a Cheapest part for every placement, reduction and
               order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from ...models.collective_programs.cost import Algorithm, LinkCost, preset
from ...models.collective_programs.parallelism import Matrix, PlacementProblem, Request
from ...models.collective_programs.programs import Program
from ...models.machine.machine import Machine
from ...models.problem.selection_problem import Ints

DEAD: Final = 1 << 61
"""Potential of states from which the goal cannot be reached; more than any program costs (`MAX_COST`)."""

MAX_COST: Final = 1 << 56
"""Costs of steps are below this: 20 hours in picoseconds."""


@dataclass(frozen=True)
class CostSpec:
    """A cost model by content.  `payload`: bytes per device; `devices`: those of the machine that take part (() for
    all).
    """

    preset: str
    machine: Machine
    payload: int
    algorithm: Algorithm = Algorithm.RING
    devices: tuple[int, ...] = ()

    def model(self) -> LinkCost:
        """The cost model.  Raises `MachineError` for an unknown preset or constants that make no sense."""
        return preset(self.preset, self.machine, self.payload, self.algorithm, self.devices)


class ReductionCertificateError(ValueError):
    """A certificate whose parts do not fit together."""


@dataclass(frozen=True)
class PlacementCertificate:
    """`matrices` are all placements of `problem`."""

    problem: PlacementProblem
    matrices: tuple[Matrix, ...]


@dataclass(frozen=True)
class Correct:
    """`program` gives every device the sum over its reduction group."""

    program: Program


@dataclass(frozen=True)
class Cheapest:
    """`program` is correct, costs `cost` under cost model number `model`, and no program costs less."""

    program: Program
    model: int
    cost: int


@dataclass(frozen=True)
class Count:
    """`lengths[t]` programs have t steps."""

    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Impossible:
    """No program does what was asked for."""


ReductionClaim = Correct | Cheapest | Count | Impossible


def claim_name(claim: ReductionClaim) -> str:
    """Kind of a claim in reports."""
    match claim:
        case Correct() | Cheapest() | Count() | Impossible():
            return type(claim).__name__
        case _:
            assert_never(claim)


@dataclass(frozen=True, eq=False)
class Part:
    """One request with one claim.  `potentials`: int64, shape (states,), for Cheapest; empty otherwise."""

    request: Request
    claim: ReductionClaim
    potentials: Ints


@dataclass(frozen=True)
class Term:
    """A reduction over axes `reduce`, priced by cost model number `model`, `weight` times per step."""

    reduce: tuple[int, ...]
    model: int
    weight: int = 1


@dataclass(frozen=True)
class Best:
    """Placement number `matrix` of the complete list is best for `terms`; every order named in `orders` was
    considered.
    """

    matrix: int
    cost: int
    terms: tuple[Term, ...]
    orders: tuple[str, ...]


@dataclass(frozen=True)
class ReductionCertificate:
    """`placement` and `best` are None for a single request."""

    costs: tuple[CostSpec, ...]
    parts: tuple[Part, ...]
    placement: PlacementCertificate | None = None
    best: Best | None = None
