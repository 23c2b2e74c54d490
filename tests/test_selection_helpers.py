"""Other solvers as sources of solutions: found where they find one, ignored where they fail, never believed."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import other_solvers
import pytest
from contest_cases import contest_problem
from oracles import brute_force
from other_solvers import Solver, ask, available, propose
from random_problems import graphs_of_all_kinds

from shardproof.models.problem.selection_problem import FORBIDDEN, SelectionProblem, Vertex

SOLVERS: tuple[Solver, ...] = ("highs", "toulbar2")


def needs(solver: Solver) -> None:
    if solver not in available():
        pytest.skip(f"{solver} is not installed")


@pytest.mark.parametrize("solver", SOLVERS)
def test_optimum_of_small_problems_with_rows(solver: Solver) -> None:
    needs(solver)
    solved = 0
    for seed in range(500, 507):
        problem = graphs_of_all_kinds(seed, rows=True)
        optimum = brute_force(problem)[0]
        x = propose(problem, 30.0, solver)
        assert (x is None) == (optimum is None), seed
        if x is not None:
            assert problem.is_feasible(x) and problem.cost_of(x) == optimum
            solved += 1
    assert solved > 2


@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_are_added_until_they_hold(solver: Solver) -> None:
    needs(solver)
    problem = contest_problem(9, 5, 2, tight=0.4)
    x = propose(problem, 60.0, solver)
    assert x is not None and problem.is_feasible(x) and problem.cost_of(x) == 21120
    free = propose(replace(problem, limit=None), 60.0, solver)
    assert free is not None and problem.peak_of(free)[0] > problem.limit and problem.cost_of(free) < 21120


def test_only_what_is_cheaper_than_the_incumbent_counts() -> None:
    if not available():
        pytest.skip("no solver is installed")
    problem = contest_problem(9, 5, 2, tight=0.4)
    assert propose(problem, 60.0, upper=21120) is None
    assert propose(problem, 60.0, upper=21121) is not None


def test_large_problems_are_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_solvers, "PAIRS", {"highs": 3, "toulbar2": 3})
    assert ask(contest_problem(9, 5, 2), 1.0) is None and propose(contest_problem(9, 5, 2), 1.0) is None


@pytest.mark.timeout(50)
def test_a_solver_that_dies_or_hangs_or_lies_proposes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not available():
        pytest.skip("no solver is installed")
    problem = contest_problem(9, 5, 2)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert propose(problem, 5.0) is None
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\necho these are no numbers of choices\nexec sleep 600\n")
    hangs.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(hangs))
    assert propose(problem, 0.5) is None
    one = SelectionProblem("one", (Vertex("a", np.array([1, FORBIDDEN])),), (), ())
    asked = ask(one, 5.0)
    assert asked is not None
    asked.stop()
    asked._reply.seek(0)
    asked._reply.write(np.array([1], dtype=np.int64).tobytes())  # the forbidden choice
    assert asked.answer() is None


def test_the_caller_may_go_on_meanwhile() -> None:
    if not available():
        pytest.skip("no solver is installed")
    problem = contest_problem(9, 5, 2, tight=0.4)
    asked = ask(problem, 60.0)
    assert asked is not None
    while not asked.ready():
        time.sleep(0.05)
    x = asked.answer()
    assert x is not None and problem.cost_of(x) == 21120
