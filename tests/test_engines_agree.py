"""Brute force, elimination, ILP and SMT solve the same problems: equal optimal costs, equal verdicts of infeasibility.

The engines are tested by what they return themselves, before the native search could repair it, and through `solve`.
"""

from __future__ import annotations

import numpy as np
import pytest
from oracles import brute_force
from random_problems import graphs_of_all_kinds

from shardproof.formal.selection.engines.encodings import ilp, smt
from shardproof.formal.selection.solve import solve
from shardproof.models.problem.claims import Status, Verdict
from shardproof.models.problem.selection_problem import Edge, SelectionProblem, Vertex
from shardproof.verify.selection.certificate import check_selection

ENGINES = {"ilp": ilp.solve_ilp, "smt": smt.solve_smt}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("block", range(5))
def test_engines_equal_brute_force(engine: str, rows: bool, block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        problem = graphs_of_all_kinds(seed, rows=rows, largest=5, labels=3)
        optimum, _ = brute_force(problem)
        reply = ENGINES[engine](problem)
        if optimum is None:
            assert reply.solution is None or not problem.is_feasible(reply.solution), seed
            assert reply.says.lower().startswith(("infeasible", "unsat")), (seed, reply.says)
        else:
            assert reply.solution is not None, (seed, reply.says)
            assert problem.cost_of(reply.solution) == optimum, seed
            assert problem.limit is None or problem.peak_of(reply.solution)[0] <= problem.limit, seed


@pytest.mark.parametrize("engine", ["native", "ilp", "smt"])
def test_all_engines_end_in_checked_certificates(engine: str) -> None:
    for seed in range(60):
        problem = graphs_of_all_kinds(seed, rows=seed % 2 == 1, largest=4)
        optimum, _ = brute_force(problem)
        answer = solve(problem, engine=engine)
        assert answer.cost == optimum
        assert answer.status is (Status.INFEASIBLE if optimum is None else Status.OPTIMAL)
        assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED


def test_large_costs_do_not_fool_the_ilp() -> None:
    """Costs near 2**50 that differ by one: too fine for the tolerances of a float solver, so only the proof may
    decide.
    """
    big = 1 << 50
    rng = np.random.default_rng(0)
    vertices = tuple(Vertex(f"v{i}", big + rng.integers(0, 3, 4)) for i in range(5))
    tables = tuple(big + rng.integers(0, 3, (4, 4)) for _ in range(5))
    problem = SelectionProblem("big", vertices, tables, tuple(Edge(i, (i + 1) % 5, i) for i in range(5)))
    answer = solve(problem, engine="ilp")
    assert answer.status is Status.OPTIMAL and answer.cost == brute_force(problem)[0]


def test_another_number_of_threads_in_the_same_process() -> None:
    """HiGHS refused every solve after one with another number of threads; `Not Solved` then looked like a hard
    problem.
    """
    problem = graphs_of_all_kinds(7, rows=False, largest=4)
    replies = [ilp.solve_ilp(problem, threads=threads) for threads in (1, 2, 1)]
    assert len({reply.says for reply in replies}) == 1 and replies[0].says != "Not Solved"


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="choose native, ilp, smt or cp-sat"):
        solve(graphs_of_all_kinds(0), engine="oracle")
