"""Carries out what `place` and `reduce` ask for, from the command line and from Python alike: the default machine, the
search, and the certificate that its checker takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...models.collective_programs.cost import Algorithm
from ...models.collective_programs.parallelism import (
    Hierarchy,
    Matrix,
    Order,
    PlacementProblem,
    ReductionRequest,
    Request,
    UnevenRequest,
    check_reduction_axes,
)
from ...models.machine.machine import Machine, load_machine
from ...models.machine.parts import MachineError
from ...models.text import InputError
from ...proofs.collective_programs.certificate import Best, CostSpec, PlacementCertificate, ReductionCertificate, Term
from .asked import Engine, EngineAnswer
from .placement import find_matrices
from .synthesize import Cost, Synthesis, best_placement, distinct_orders, synthesize

DEFAULT_MACHINES: Final = {1: "localhost", 2: "p2-a100", 3: "summit"}
"""Machine by number of levels when none is named."""

Reduction = tuple[tuple[int, ...], int, int]
"""Axes, bytes per device, times per step."""


@dataclass(frozen=True)
class How:
    """How programs are searched and priced; `orders`: device orders that are tried."""

    algorithm: Algorithm = Algorithm.RING
    preset: str = "linked"
    orders: tuple[Order, ...] = tuple(Order)
    reading: str = "paper"
    engine: Engine = "native"


@dataclass(frozen=True)
class Found:
    """The best of one request over the device orders, and all that was tried."""

    request: Request
    best: Synthesis
    tried: tuple[Synthesis, ...]


def cheapest_of(tried: Sequence[Synthesis]) -> Found:
    """The cheapest; of equal ones the first."""
    best = min(tried, key=lambda s: (s.cost is None, s.cost or 0))  # ties: the first order
    return Found(best.request, best, tuple(tried))


@dataclass(frozen=True, eq=False)
class Placed:
    """All placements, and for reductions the best: `programs[matrix][term][order]`, `totals` per matrix in units of
    1/`scale` s.  `asked`: what another engine was asked.
    """

    placement: PlacementCertificate
    asked: tuple[EngineAnswer | None, ...]
    terms: tuple[Term, ...] = ()
    best: Best | None = None
    programs: tuple[tuple[tuple[Synthesis, ...], ...], ...] = ()
    totals: tuple[int, ...] = ()
    scale: int = 0
    certificate: ReductionCertificate | None = None


@dataclass(frozen=True, eq=False)
class Reduced:
    """Programs of every placement that was asked about."""

    rows: tuple[Found, ...]
    spec: CostSpec
    hierarchy: tuple[int, ...]
    asked: tuple[EngineAnswer | None, ...]
    certificate: ReductionCertificate

    @property
    def winner(self) -> Found:
        """The cheapest; of equal ones the first."""
        return min(self.rows, key=lambda f: (f.best.cost is None, f.best.cost or 0))


def machine_for(name: Machine | str | None, hierarchy: tuple[int, ...]) -> Machine:
    """A machine of this hierarchy; without a name the default of its number of levels."""
    if name is None:
        if len(hierarchy) not in DEFAULT_MACHINES:
            raise InputError(
                f"there is no default machine with {len(hierarchy)} levels; name one with --machine (a TOML file "
                f"may have any number of levels)"
            )
        name = DEFAULT_MACHINES[len(hierarchy)]
    known = load_machine(name) if isinstance(name, str) else name
    return known if known.hierarchy == hierarchy else known.resized(hierarchy)


def place_axes(
    problem: PlacementProblem, reductions: Sequence[Reduction], machine: Machine | str | None, how: How
) -> Placed:
    """All placements of `problem`; with `reductions` the best one for them on a machine."""
    matrices, asked = find_matrices(problem.check(), how.engine)
    placement = PlacementCertificate(problem, matrices)
    if not reductions:
        return Placed(placement, (asked,))
    target = machine_for(machine, problem.hierarchy)
    specs = tuple(CostSpec(how.preset, target, payload, how.algorithm) for _, payload, _ in reductions)
    costs = [Cost(k, spec.model()) for k, spec in enumerate(specs)]
    terms = tuple(Term(over, k, times) for k, (over, _, times) in enumerate(reductions))
    best, parts, programs = best_placement(placement, costs, terms, how.orders, how.reading, how.engine)
    totals = tuple(
        sum(t.weight * min(s.cost or 0 for s in tried) for t, tried in zip(terms, row, strict=True)) for row in programs
    )
    return Placed(
        placement,
        (asked, *(s.asked for row in programs for tried in row for s in tried)),
        terms,
        best,
        tuple(tuple(tuple(tried) for tried in row) for row in programs),
        totals,
        costs[0].model.scale,
        ReductionCertificate(specs, parts, placement, best),
    )


def reduce_axes(
    problem: PlacementProblem,
    over: tuple[int, ...],
    matrix: Matrix | None,
    machine: Machine | str | None,
    payload: int,
    how: How,
    tree: Hierarchy = Hierarchy.COLLAPSED,
) -> Reduced:
    """Programs over the axes `over` on every placement of `problem` (`matrix`: only on this); `payload`: bytes per
    device.
    """
    check_reduction_axes(problem.check().axes, over)
    spec = CostSpec(how.preset, machine_for(machine, problem.hierarchy), payload, how.algorithm)
    model, asked = spec.model(), None
    if matrix is None:
        matrices, asked = find_matrices(problem, how.engine)
    else:
        matrices = (problem.require(matrix),)
    placement = PlacementCertificate(problem, matrices) if matrix is None else None
    if placement is not None and tree is Hierarchy.COLLAPSED:
        best, parts, programs = best_placement(
            placement, [Cost(0, model)], [Term(over, 0)], how.orders, how.reading, how.engine
        )
        rows = [cheapest_of(p[0]) for p in programs]
        counts = tuple(f.best.parts(0)[0] for f in rows)
        certificate = ReductionCertificate((spec,), counts + parts, placement, best)
    else:
        requests = [
            [
                ReductionRequest(problem.hierarchy, m, over, o, how.reading, tree)
                for o in distinct_orders(over, how.orders)
            ]
            for m in matrices
        ]
        rows = [cheapest_of([synthesize(r, model, how.engine) for r in same]) for same in requests]
        certificate = ReductionCertificate(
            (spec,), tuple(p for f in rows for one in f.tried for p in one.parts(0)), placement
        )
    return Reduced(
        tuple(rows), spec, problem.hierarchy, (asked, *(s.asked for f in rows for s in f.tried)), certificate
    )


def reduce_nodes(nodes: tuple[int, ...], machine: Machine | str | None, payload: int, how: How) -> Reduced:
    """Programs for all devices of nodes of different sizes, on a machine that has room for them."""
    request = UnevenRequest(nodes, how.reading).check()
    if machine is None:
        whole = load_machine("p2-a100").resized((len(nodes), max(nodes)))
    else:
        whole = load_machine(machine) if isinstance(machine, str) else machine
    if len(whole.hierarchy) != 2 or whole.hierarchy[0] < len(nodes) or whole.hierarchy[1] < max(nodes):
        raise MachineError(
            f"machine {whole.name!r}",
            f"{'x'.join(map(str, whole.hierarchy))} has no room for nodes of {list(nodes)} devices",
            f"{whole.name}:{len(nodes)}x{max(nodes)}",
        )
    mask = tuple(v * whole.hierarchy[1] + d for v, size in enumerate(nodes) for d in range(size))
    spec = CostSpec("linked", whole, payload, how.algorithm, mask)
    one = synthesize(request, spec.model(), how.engine)
    certificate = ReductionCertificate((spec,), one.parts(0))
    return Reduced((cheapest_of([one]),), spec, nodes, (one.asked,), certificate)
