"""Reduction programs on real data: every synthesised program of small systems, a sample of large ones, on virtual
ranks and on MPI.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from shardproof.backends.execution.collective_programs import run_mpi, run_virtual
from shardproof.backends.execution.interpreter import RankError
from shardproof.backends.execution.launch import LaunchError, mpi_available
from shardproof.backends.transport import TransportError
from shardproof.backends.transport.virtual import VirtualTransport
from shardproof.formal.collective_programs.graph import explore
from shardproof.formal.collective_programs.placement import enumerate_matrices
from shardproof.formal.collective_programs.synthesize import synthesize
from shardproof.models.collective_programs.collectives import CollectiveError
from shardproof.models.collective_programs.cost import Algorithm, m2
from shardproof.models.collective_programs.parallelism import (
    Hierarchy,
    Order,
    PlacementProblem,
    ReductionRequest,
    Request,
    UnevenRequest,
)
from shardproof.models.collective_programs.programs import Program, words
from shardproof.models.machine.machine import load_machine

SMALL: list[tuple[Request, int]] = [  # with the number of programs
    (ReductionRequest((2, 2), ((2, 2),), (0,)), 47),
    (ReductionRequest((2, 4), ((2, 4),), (0,)), 47),
    (ReductionRequest((2, 3), ((2, 3),), (0,)), 47),
    (ReductionRequest((2, 4), ((2, 2), (1, 2)), (0,)), 47),
    (ReductionRequest((2, 4), ((1, 4), (2, 1)), (0,)), 3),
    (ReductionRequest((2, 4), ((1, 2), (2, 1), (1, 2)), (0, 2)), 3),
    (ReductionRequest((2, 4), ((1, 2), (2, 2)), (0, 1)), 47),
    (ReductionRequest((2, 4), ((1, 2), (2, 1), (1, 2)), (0, 1), Order.ROW_MAJOR), 47),
    (ReductionRequest((2, 4), ((1, 2), (2, 1), (1, 2)), (0, 1), Order.ALIGNED), 47),
]


def programs(request: Request) -> list[Program]:
    return list(explore(request.system()).programs())


def sample(items: list[Program], n: int) -> list[Program]:
    """The first, the last and others, always the same."""
    return [items[0], items[-1], *random.Random(4).sample(items, min(n, len(items)))]


@pytest.mark.parametrize(("request_", "count"), SMALL)
def test_every_program_of_a_small_system_delivers_the_sum(request_: Request, count: int) -> None:
    found = programs(request_)
    assert len(found) == count
    outcomes = run_virtual(found, request_.system())
    wrong = [words(p, request_.system().tree) for p, o in zip(found, outcomes, strict=True) if not o.correct]
    assert wrong == []


def test_three_levels_and_odd_sizes() -> None:
    for sizes, n in (((2, 2, 2), 60), ((3, 2), 47), ((2, 3, 2), 20)):
        request = ReductionRequest(sizes, (sizes,), (0,))
        assert all(o.correct for o in run_virtual(sample(programs(request), n), request.system()))


@pytest.mark.parametrize(
    "reading", ["vacuous", "guarded_ag", "guarded_b", "strict_a", "strict_b", "literal", "literal_first", "no_master"]
)
def test_every_reading_is_executable(reading: str) -> None:
    request = ReductionRequest((2, 2), ((2, 2),), (0,), reading=reading)
    found = programs(request)
    assert found and all(o.correct for o in run_virtual(found, request.system()))


@pytest.mark.parametrize("hierarchy", list(Hierarchy))
def test_every_synthesis_hierarchy_is_executable(hierarchy: Hierarchy) -> None:
    """(a) to (c) have one tree over all reduction groups: everybody gets its own group's sum, not everyone's."""
    request = ReductionRequest((2, 4), ((2, 2), (1, 2)), (0,), synthesis=hierarchy)
    found = programs(request)
    if found:
        assert all(o.correct for o in run_virtual(sample(found, 20), request.system()))
    assert found or hierarchy in (Hierarchy.SYSTEM, Hierarchy.ROW)


@pytest.mark.parametrize("nodes", [(2, 1), (3, 2), (3, 2, 1), (1, 2, 2)])
def test_uneven_nodes_deliver_the_sum(nodes: tuple[int, ...]) -> None:
    request = UnevenRequest(nodes)
    found = programs(request)
    assert len(found) > 1
    assert all(o.correct for o in run_virtual(sample(found, 40), request.system()))


def test_the_cheapest_programs_of_the_large_systems() -> None:
    """The optima of the published systems, 32 and 64 ranks."""
    for spec, hierarchy, matrix, algorithm in (
        ("p2-a100:4x16", (4, 16), ((4, 16),), Algorithm.RING),
        ("p2-a100:4x16", (4, 16), ((4, 16),), Algorithm.TREE),
        ("p2-a100:4x16", (4, 16), ((2, 8), (2, 2)), Algorithm.RING),
        ("p2-v100:4x8", (4, 8), ((2, 4), (2, 2)), Algorithm.RING),
    ):
        request = ReductionRequest(hierarchy, matrix, (0,))
        program = synthesize(request, m2(load_machine(spec), algorithm=algorithm)).program
        assert all(o.correct for o in run_virtual([program], request.system(), width=1))


def test_a_sample_of_a_large_system() -> None:
    request = ReductionRequest((4, 8), ((4, 4), (1, 2)), (0,))
    assert all(o.correct for o in run_virtual(programs(request), request.system(), width=1))


def test_all_placements_of_a_machine() -> None:
    """Every matrix of [2 4] over [2 4], both axes; 8 ranks."""
    for matrix in enumerate_matrices(PlacementProblem((2, 4), (2, 4))):
        for axis in (0, 1):
            request = ReductionRequest((2, 4), matrix, (axis,))
            assert all(o.correct for o in run_virtual(programs(request), request.system()))


def test_a_program_that_stops_early_or_does_not_apply() -> None:
    request = SMALL[0][0]
    system, program = request.system(), next(p for p in programs(request) if len(p) == 3)
    outcome = run_virtual([program[:2]], system)[0]
    assert not outcome.correct and outcome.wrong == (0, 1, 2, 3)
    one = run_virtual([()], system)[0]
    assert one.wrong == (0, 1, 2, 3)
    with pytest.raises(CollectiveError, match="step 1"):
        run_virtual([(program[0], program[0])], system)


@pytest.mark.parametrize("method", ["all_reduce", "reduce_scatter", "all_gather", "reduce", "exchange"])
def test_a_faulty_collective_is_noticed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: one collective that returns one element wrongly spoils exactly the programs that use
    it.
    """
    honest = getattr(VirtualTransport, method)
    calls: list[str] = []

    def faulty(self: VirtualTransport, *arguments: object) -> object:
        out = honest(self, *arguments)
        calls.append(method)
        if isinstance(out, np.ndarray):
            out = out.copy()
            out.reshape(-1)[0] += 1
        elif isinstance(out, dict):
            out = {k: v + 1 for k, v in out.items()}
        return out

    request = SMALL[0][0]
    found = programs(request)
    monkeypatch.setattr(VirtualTransport, method, faulty)
    spoiled = []
    for p in found:
        calls.clear()
        outcome = run_virtual([p], request.system())[0]
        assert outcome.correct == (not calls), words(p, request.system().tree)
        spoiled.append(not outcome.correct)
    assert 0 < sum(spoiled) < len(found)


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
class TestMpi:
    """Every start has a time-out."""

    @pytest.mark.parametrize("request_", [SMALL[0][0], SMALL[4][0], SMALL[7][0]])
    def test_every_program(self, request_: Request) -> None:
        found = programs(request_)
        outcomes = run_mpi(found, request_.system(), timeout_s=90)
        assert len(outcomes) == len(found) and all(o.correct for o in outcomes)

    def test_three_levels_uneven_nodes_and_eight_ranks(self) -> None:
        for request, n in (
            (ReductionRequest((2, 2, 2), ((2, 2, 2),), (0,)), 10),
            (UnevenRequest((3, 2)), 10),
            (SMALL[3][0], 10),
        ):
            assert all(o.correct for o in run_mpi(sample(programs(request), n), request.system(), timeout_s=90))

    def test_times_and_an_unfinished_program(self) -> None:
        request = SMALL[0][0]
        program = programs(request)[-1]
        good, bad = run_mpi([program, program[:1]], request.system(), width=64, repeats=3, timeout_s=60)
        assert good.correct and len(good.seconds) == 3 and min(good.seconds) > 0
        assert not bad.correct and bad.wrong == (0, 1, 2, 3)

    @pytest.mark.timeout(100)
    def test_failures_are_named_and_end_in_time(self) -> None:
        request = SMALL[0][0]
        program = programs(request)[0]
        with pytest.raises(RankError, match="reduction program 0"):
            run_mpi([program], request.system(), width=-1, timeout_s=60)  # no array has such a shape: every rank fails
        with pytest.raises(LaunchError, match="did not finish within"):
            run_mpi([program], request.system(), repeats=10**9, timeout_s=3)
        with pytest.raises(TransportError, match=r"0 \.\. n-1"):
            run_mpi([program], type(request.system())(request.system().tree, ((0, 1, 2, 4),), 4), timeout_s=60)
