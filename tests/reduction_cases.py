"""Valid certificates of reduction programs, for the tests of the checker."""

from __future__ import annotations

from functools import cache

from shardproof.formal.collective_programs.placement import enumerate_matrices
from shardproof.formal.collective_programs.synthesize import Cost, best_placement, synthesize
from shardproof.models.collective_programs.cost import PAYLOAD, Algorithm
from shardproof.models.collective_programs.parallelism import Order, PlacementProblem, ReductionRequest, Request
from shardproof.models.machine.machine import load_machine
from shardproof.proofs.collective_programs.certificate import CostSpec, PlacementCertificate, ReductionCertificate, Term

MACHINES = {1: "localhost", 2: "p2-a100", 3: "summit"}


def spec(request: Request) -> CostSpec:
    """A cost model that fits the request."""
    if isinstance(request, ReductionRequest):
        return CostSpec("m2", load_machine(MACHINES[len(request.hierarchy)]).resized(request.hierarchy), PAYLOAD)
    width = max(request.nodes)
    devices = tuple(v * width + d for v, n in enumerate(request.nodes) for d in range(n))
    return CostSpec(
        "linked", load_machine("p2-a100").resized((len(request.nodes), width)), PAYLOAD, Algorithm.RING, devices
    )


def single(request: Request, cost: CostSpec | None = None) -> ReductionCertificate:
    """Count and Cheapest of one request."""
    cost = cost or spec(request)
    return ReductionCertificate((cost,), synthesize(request, cost.model()).parts(0))


@cache
def certificate(hierarchy: tuple[int, ...], axes: tuple[int, ...], reduce: tuple[int, ...]) -> ReductionCertificate:
    """Everything of one `shardproof reduce`: placements, counts, cheapest programs in both orders, best placement."""
    problem = PlacementProblem(hierarchy, axes)
    placement = PlacementCertificate(problem, enumerate_matrices(problem))
    cost = CostSpec("m2", load_machine(MACHINES[len(hierarchy)]).resized(hierarchy), PAYLOAD)
    best, parts, found = best_placement(placement, [Cost(0, cost.model())], [Term(reduce, 0)], list(Order))
    return ReductionCertificate((cost,), tuple(row[0][0].parts(0)[0] for row in found) + parts, placement, best)
