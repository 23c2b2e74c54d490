"""Plans on submeshes under a memory limit that the fastest one breaks: what is found fits and is no worse than
placements alone, no plan that fits is below its bound, and the checker makes rows, bytes and times itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from budgets import work
from test_views import reasons, reasons_of

from shardproof.formal.plans.submeshes.limited import holds
from shardproof.formal.plans.submeshes.problem import SubmeshPlanning
from shardproof.formal.plans.submeshes.search import SubmeshAnswer, plan_submeshes, whole_machine
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.selection_problem import FORBIDDEN, Vertex
from shardproof.models.program.graph import Graph
from shardproof.models.sources.zoo import build
from shardproof.proofs.views.file import write_submesh_plan

MACHINE = load_machine("cloud-a100:2x2")


@cache
def towers() -> Graph:
    """Two towers and more, of 512 wide layers."""
    return build("candle-uno", batch=16, tower=2, layers=1, width=512)


@cache
def planned(limit: int | None) -> SubmeshAnswer:
    return plan_submeshes(whole_machine(towers(), MACHINE, space("complete"), limit), clock=work(60.0))


def held_by_the_fastest() -> int:
    answer = planned(None)
    assert answer.answer.solution is not None
    return holds(answer.planning, answer.answer.solution)


@pytest.mark.parametrize("less", [1, pytest.param(1 << 16, marks=pytest.mark.slow), 1 << 20])
def test_what_is_found_fits_and_is_proved(less: int) -> None:
    limit = held_by_the_fastest() - less
    answer, fastest = planned(limit), planned(None).answer
    certificate = answer.certificate(limit)
    assert certificate is not None and certificate.rows and answer.answer.solution is not None
    assert holds(answer.planning, answer.answer.solution) <= limit
    assert fastest.cost is not None and fastest.cost <= (answer.answer.cost or 0)
    assert reasons(certificate) == ""
    assert reasons_of(write_submesh_plan(None, certificate)) == ""


def test_no_plan_that_fits_is_below_the_bound() -> None:
    """Drawn solutions of the problem without rows: who holds no more than the limit costs at least the bound."""
    limit = held_by_the_fastest() - (1 << 18)
    answer, free = planned(limit).answer, planned(None).planning
    assert answer.lower_bound is not None
    fitting = 0
    for seed in range(25):
        x = drawn(free, seed)
        if holds(free, x) <= limit:
            fitting += 1
            assert free.problem.cost_of(x) >= answer.lower_bound, seed
    assert fitting > 4


def drawn(planning: SubmeshPlanning, seed: int) -> tuple[int, ...]:
    """A solution at random, near the cheapest."""
    draw = np.random.default_rng(seed)
    vertices = [
        Vertex(v.name, np.where(v.cost < FORBIDDEN, v.cost + draw.integers(0, 10**9, v.cost.shape), v.cost))
        for v in planning.problem.vertices
    ]
    x = solve(replace(planning.problem, vertices=tuple(vertices)), clock=work(2.0)).solution
    assert x is not None
    return x


@pytest.mark.parametrize("forge", ["rows", "limit", "both"])
def test_rows_of_another_limit_are_no_proof(forge: str) -> None:
    """Under a limit that nothing keeps everything is proved: the file's own limit and rows are what is checked."""
    limit = held_by_the_fastest() - 1
    certificate = planned(limit).certificate(limit)
    assert certificate is not None
    forged = {
        "rows": replace(certificate, rows=False),
        "limit": replace(certificate, memory=limit + 1),
        "both": replace(certificate, memory=None, rows=False),
    }[forge]
    assert "problem" in reasons(forged)


def test_rows_without_a_limit_are_malformed() -> None:
    limit = held_by_the_fastest() - 1
    certificate = planned(limit).certificate(limit)
    assert certificate is not None
    assert "rows" in reasons_of(write_submesh_plan(None, replace(certificate, memory=None)))


def test_files_without_rows_keep_their_verdict() -> None:
    """What was written before there were rows: the limit is kept, the bound knows none."""
    held = held_by_the_fastest()
    fastest = planned(None).certificate()
    assert fastest is not None and not fastest.rows
    assert reasons(replace(fastest, memory=held)) == ""


def test_it_is_never_worse_than_placements_alone() -> None:
    limit = held_by_the_fastest() - 1
    alone = solve(build_problem(towers(), MACHINE, space("complete"), limit).problem, clock=work(60.0))
    found = planned(limit).answer
    assert alone.cost is not None and found.cost is not None and found.cost <= alone.cost


def test_a_limit_that_the_fastest_keeps_changes_nothing() -> None:
    limit = held_by_the_fastest()
    assert planned(limit).answer.cost == planned(None).answer.cost


def test_bytes_are_the_checkers_own() -> None:
    limit = held_by_the_fastest() - 1
    certificate = planned(limit).certificate(limit)
    fastest = planned(None).certificate()
    assert certificate is not None and fastest is not None
    assert "bytes on a device" in reasons(replace(fastest, memory=limit))
    assert certificate.memory == limit
