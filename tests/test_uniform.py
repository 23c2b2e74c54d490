"""A plan and a bound at once for problems that repeat, against the search that needs longer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from budgets import work
from random_problems import repeated_blocks

from shardproof.formal.selection.answer import Answer
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.options import Limits, Options
from shardproof.formal.selection.options.decomposition import DecompositionOptions
from shardproof.formal.selection.primal.incumbent import Incumbent
from shardproof.formal.selection.relax_resources import relax_resources
from shardproof.formal.selection.solve import solve
from shardproof.formal.selection.tree.branch_and_bound import new_run
from shardproof.formal.selection.uniform import uniform_start
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Status, Verdict
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.verify.selection.certificate import check_selection

EARLY = Options(
    decomposition=DecompositionOptions(uniform_vertices=40, uniform_vertices_in_a_hurry=40, vertices=40),
    limits=Limits(joint=64),
)
"""As usual, for problems of a tested size: none that elimination solves at once."""


def _start(problem: SelectionProblem, options: Options) -> Answer | None:
    return uniform_start(new_run(problem, Incumbent(problem), Clock(), options))


@pytest.mark.parametrize("seed", range(6))
def test_without_rows_the_start_is_near_the_optimum(seed: int) -> None:
    problem = repeated_blocks(40, seed)
    start = _start(problem, EARLY)
    best = solve(problem).cost
    assert start is not None and start.certificate is not None and start.cost is not None and best is not None
    assert start.lower_bound is not None and start.lower_bound <= best <= start.cost
    assert start.cost <= best * 1.15 and start.lower_bound >= best * 0.95  # two plans in turn may be cheaper than one
    assert check_selection(problem, start.certificate).verdict is Verdict.PROVED


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 6))])
def test_under_a_limit_that_binds_it_fits(seed: int) -> None:
    """The limit halfway between what the best plan uses and the least that any uses."""
    free = repeated_blocks(40, seed, limit=1 << 40)
    loose = solve(free)
    assert loose.solution is not None
    most = free.peak_of(loose.solution)[0]
    least = sum(int(u.amount.min()) for u in free.usages)
    problem = replace(free, limit=(most + least) // 2)
    start = _start(problem, EARLY)
    assert start is not None and start.solution is not None and start.certificate is not None
    assert start.cost is not None and start.lower_bound is not None
    assert problem.peak_of(start.solution)[0] <= (problem.limit or 0)
    assert start.cost - start.lower_bound <= start.cost * 0.15
    assert check_selection(problem, start.certificate).verdict is Verdict.PROVED
    found = relax_resources(problem, options=EARLY, clock=work(1.0))
    assert found.cost is not None and found.cost <= start.cost and (found.lower_bound or 0) >= start.lower_bound
    assert found.certificate is not None
    assert check_selection(problem, found.certificate).verdict is Verdict.PROVED


def test_what_cannot_fit_has_no_start() -> None:
    problem = repeated_blocks(40, 0, limit=1)
    assert _start(problem, EARLY) is None
    assert relax_resources(problem, options=EARLY, clock=work(5.0)).status is Status.INFEASIBLE


def test_small_problems_and_such_as_do_not_repeat_are_left_to_the_search() -> None:
    assert _start(repeated_blocks(40, 0), Options()) is None
    single = repeated_blocks(1, 0, width=50)
    assert _start(single, EARLY) is None


@pytest.mark.slow
def test_a_decoder_under_a_limit_has_a_plan_however_short_the_time() -> None:
    """Layers with Adam and recomputation; a quarter of the memory gone: a plan that the search alone does not find, and
    near its bound where the command has the time that a start takes.
    """
    forward = zoo("llama", layers=14, width=64, heads=4, kv_heads=2, hidden=128, vocabulary=512, batch=8, sequence=32)
    graph = build_step(forward, "adam", recompute="all").graph
    machine = load_machine("cloud-a100:2x2")
    problem = build(graph, machine, space("one-per-level"), 1 << 30).problem
    free = _start(problem, EARLY)
    assert free is not None and free.solution is not None and free.cost is not None
    tight = replace(problem, limit=problem.peak_of(free.solution)[0] * 3 // 4)
    for limit, gap in ((0.01, 0.7), (EARLY.decomposition.uniform_s, 0.25)):
        answer = relax_resources(tight, clock=work(limit), options=EARLY)
        assert answer.solution is not None and answer.certificate is not None
        assert answer.cost is not None and answer.lower_bound is not None
        assert tight.peak_of(answer.solution)[0] <= (tight.limit or 0)
        assert answer.cost >= free.cost and answer.cost - answer.lower_bound <= answer.cost * gap
        assert check_selection(tight, answer.certificate).verdict is Verdict.PROVED


def test_late_in_a_command_the_start_does_not_take_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama-3 70B under a limit of 60 s beside other work searched 85 s longer: twice 23 s began whatever was left."""
    from shardproof.formal.selection import uniform

    at, given, seconds = EARLY.decomposition, [], [0.0]
    monkeypatch.setattr(uniform, "begin", lambda run: given.append(run.clock.remaining_s()))
    problem = repeated_blocks(40, 0)
    whole = Clock(60.0, now=lambda: seconds[0])
    for moment in (0.0, 30.0, 45.0, 59.0, 200.0):
        seconds[0] = moment
        uniform_start(new_run(problem, Incumbent(problem), whole.share(0.15), EARLY))
    assert given == [at.uniform_s, at.uniform_s, 15.0, at.uniform_late_s, at.uniform_late_s]
