"""Large problems with resource rows: reduced, bounded, branched and searched on flat arrays; every answer goes through
the checker.

The compiled path is forced on tiny problems too, where enumeration knows the truth.  One story: neighbouring OVERFULL
entries of a reduction log are judged against one state, so two batches in a row were refused by the checker
(`contest_problem(2)` ran into it).
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from budgets import work
from contest_cases import contest_problem
from oracles import brute_force
from random_problems import graphs_of_all_kinds

from shardproof.formal.selection.bound.dense_dual import DenseBounder, quantise
from shardproof.formal.selection.bound.warm_start import transfer
from shardproof.formal.selection.model.clock import Clock, Quiet
from shardproof.formal.selection.model.dense import dense_problem
from shardproof.formal.selection.options import Options
from shardproof.formal.selection.options.solve import SolveOptions
from shardproof.formal.selection.options.tree import TreeOptions
from shardproof.formal.selection.presolve.presolve import presolve
from shardproof.formal.selection.primal.incumbent import Incumbent
from shardproof.formal.selection.primal.local_search import EXACT, Improver
from shardproof.formal.selection.solve import solve
from shardproof.formal.selection.tree.best_first import start
from shardproof.formal.selection.tree.branch_and_bound import new_run
from shardproof.formal.selection.tree.dense_search import DenseSearch
from shardproof.models.problem.claims import Infeasible, Status, Verdict
from shardproof.models.problem.selection_problem import FORBIDDEN
from shardproof.proofs.selection.certificates import Dual, Open, Record, Reduced, Split
from shardproof.verify.selection.certificate import check_selection
from shardproof.verify.selection.dual import dual_bound
from shardproof.verify.selection.ground import Ground

FORCED = Options(solve=SolveOptions(dense_vertices_with_rows=0, dense_vertices=0), tree=TreeOptions(least_limit_s=0.2))
"""Every problem goes to the dense search."""


@pytest.mark.parametrize("rows", [False, True])
def test_equals_enumeration(rows: bool) -> None:
    seen = {Status.OPTIMAL: 0, Status.INFEASIBLE: 0}
    for seed in range(7000, 7300):
        problem = graphs_of_all_kinds(seed, rows=rows)
        optimum, _ = brute_force(problem)
        answer = solve(problem, clock=work(10), options=FORCED)
        seen[answer.status] += 1
        assert answer.cost == optimum, seed
        assert answer.certificate is not None
        result = check_selection(problem, answer.certificate)
        assert result.verdict is Verdict.PROVED, (seed, result.reason)
    assert seen[Status.OPTIMAL] > 100 and (not rows or seen[Status.INFEASIBLE] > 30)


def test_branches_to_a_checked_optimum() -> None:
    problem = contest_problem(21, 12, 3, tight=0.45)
    answer = solve(problem, clock=work(60))
    assert answer.status is Status.OPTIMAL and answer.certificate is not None
    assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
    assert _splits(answer.certificate.proof) > 0
    assert answer.solution is not None and problem.is_feasible(answer.solution)


def _splits(record: Record) -> int:
    match record:
        case Split():
            return 1 + sum(_splits(child) for child in record.children)
        case Reduced() | Dual():
            return 0 if record.then is None else _splits(record.then)
        case _:
            return 0


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_time_limits_leave_a_checked_gap(seed: int) -> None:
    problem = contest_problem(seed, 60, 3, tight=0.3)
    answer = solve(problem, clock=work(1))
    assert (
        answer.certificate is not None
        and answer.solution is not None
        and answer.cost is not None
        and answer.lower_bound is not None
    )
    assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
    assert 0.9 * answer.cost < answer.lower_bound <= answer.cost == problem.cost_of(answer.solution)


def test_infeasible_names_rows_and_a_limit_that_works() -> None:
    problem = contest_problem(4, 40, 3, tight=0.1)
    answer = solve(problem, clock=work(20))
    assert answer.status is Status.INFEASIBLE and answer.certificate is not None
    assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
    claim = answer.certificate.claim
    assert isinstance(claim, Infeasible) and claim.steps
    assert (
        claim.least_limit is not None
        and claim.witness is not None
        and problem.limit is not None
        and claim.least_limit > problem.limit
    )
    assert problem.peak_of(claim.witness)[0] == claim.least_limit


@pytest.mark.timeout(120)
def test_ctrl_c_leaves_the_best_answer() -> None:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a suite started in the background of a shell inherits "ignore"
    problem, known = contest_problem(5, 150, 4), list[int]()

    class Interrupting(Quiet):
        """Sends the signal once an answer is known."""

        def update(self, stage: str, lower: int | None, upper: int | None) -> None:
            if upper is not None and not known:
                known.append(upper)
                os.kill(os.getpid(), signal.SIGINT)

    answer = solve(problem, clock=work(300), progress=Interrupting())
    assert known and answer.cost is not None and answer.cost <= known[0]
    assert answer.certificate is not None and answer.status is Status.FEASIBLE
    assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("seed", range(4))
def test_bounds_and_fixed_labels_are_the_checkers(seed: int) -> None:
    reduction = presolve(contest_problem(seed, 15, 3, tight=0.4))
    assert reduction is not None and reduction.problem is not None
    core = reduction.problem
    flat = dense_problem(core)
    state = DenseBounder(flat, 1 << 50).subgradient_ascent(start(flat), 1e6, 80, Clock())
    improver = Improver(flat)
    assert improver.fit(np.zeros(flat.vertices, dtype=np.int64), state.n, work(20))
    upper = int(improver.best_value) + core.constant
    found = quantise(flat, state, upper)
    assert found is not None
    record, exact = found
    assert exact.bound is not None and abs(exact.bound / exact.denominator - state.bound) < 1.0
    ground = Ground(core)
    bound, kept = dual_bound(ground, replace(record, then=Open()), list(ground.full), upper, "test")
    assert bound == exact.lower() and bound is not None and bound <= upper
    assert kept is not None and [k.tolist() for k in kept] == [k.tolist() for k in exact.fix(flat.domains, upper)]
    smaller = presolve(core, exact.fix(flat.domains, upper))
    assert smaller is not None and smaller.problem is not None
    inner = dense_problem(smaller.problem)
    moved = transfer(flat, state, smaller, inner)
    again = quantise(inner, moved, upper)
    assert again is not None and (lower := again[1].lower()) is not None and lower <= upper


def test_local_search_keeps_its_books() -> None:
    problem = contest_problem(8, 40, 3, tight=0.3)
    flat = dense_problem(problem)
    improver = Improver(flat, seed=3)
    state = DenseBounder(flat, 1 << 50).subgradient_ascent(start(flat), 1e7, 60, Clock())
    assert improver.fit(np.zeros(flat.vertices, dtype=np.int64), state.n, work(20))
    before = improver.best_value
    for s in (1.0, 0.3, 0.0):
        improver.move_vertices(400, 30, s)
        x = flat.solution(improver.x)
        assert problem.cost_of(x) == int(improver.value) + problem.constant
        assert problem.limit is not None and problem.peak_of(x)[0] <= problem.limit
        assert improver.slack.tolist() == (problem.limit - improver.usage(improver.x)).tolist()
    assert improver.best is not None and improver.best_value <= before < EXACT
    assert problem.cost_of(flat.solution(improver.best)) == int(improver.best_value) + problem.constant


def test_no_time_at_all_is_honest() -> None:
    problem = contest_problem(1, 30, 3)
    proved = DenseSearch(new_run(problem, Incumbent(problem), Clock(0.0))).search()
    assert proved is not None and proved[1] <= FORBIDDEN
    answer = solve(contest_problem(1, 30, 3), time_limit_s=0.0)
    assert answer.status in (Status.UNKNOWN, Status.FEASIBLE)


@pytest.mark.slow
def test_two_threads_find_what_one_finds() -> None:
    problem = contest_problem(21, 12, 3, tight=0.45)
    runs = [new_run(problem, Incumbent(problem), Clock(), threads=threads) for threads in (1, 2)]
    one, two = (DenseSearch(run).search() for run in runs)
    assert one is not None and two is not None
    first, second = (run.incumbent for run in runs)
    assert (first.solution, first.cost, one[1]) == (second.solution, second.cost, two[1]) and one[1] >= first.cost


def test_two_batches_of_overfull_labels_replay() -> None:
    """Two batches of labels that exceed the limit on their own were once logged side by side, and the checker
    refuted our own log.
    """
    problem = contest_problem(2, 40, 3, tight=0.3)
    answer = solve(problem, clock=work(1.0))
    assert answer.certificate is not None and check_selection(problem, answer.certificate).verdict is Verdict.PROVED
