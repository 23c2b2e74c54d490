"""Sensitivity: every statement rests on a solve whose certificate the checker accepts on tables built for the moved
machine.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from budgets import work

from shardproof import load
from shardproof.__main__ import run
from shardproof.formal.explain.elsewhere import all_programs
from shardproof.formal.explain.sensitivity import Sensitivity, constants_of, sensitivity
from shardproof.formal.explain.sensitivity_text import render_sensitivity
from shardproof.formal.explain.terms import PlanTerms
from shardproof.formal.plans.request import PlanRequest
from shardproof.formal.plans.time_limit import TimeLimit
from shardproof.formal.rewriting.joint.request import carry_out_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.sources import zoo
from shardproof.proofs.plan.bundle import Plan, write_plan
from shardproof.verify.selection.certificate import check_selection

GRID = tuple(Fraction(n, 10) for n in (11, 15, 20, 40, 80, 200))


@pytest.fixture(scope="module")
def planning() -> Planning:
    return build(zoo.build("mlp-8192", batch=64, layers=2), load_machine("cloud-a100:2x2"), space("complete"))


@pytest.fixture(scope="module")
def found(planning: Planning) -> Sensitivity:
    answer = solve(planning.problem)
    assert answer.solution is not None
    return sensitivity(planning, answer.solution, answer.certificate, grid=GRID)


def test_costs_at_moved_constants_equal_rebuilt_tables(planning: Planning) -> None:
    terms = PlanTerms(planning)
    rng = np.random.default_rng(1)
    for c in constants_of(planning)[0]:
        for factor in (Fraction(1, 7), Fraction(13, 10), Fraction(50)):
            machine = c.scale_constant(planning.machine, factor)
            assert machine != planning.machine
            rebuilt = build(planning.graph, machine, planning.space)
            for _ in range(3):
                x = tuple(int(rng.integers(planning.problem.domain_size(v))) for v in range(len(planning.decisions)))
                assert terms.cost_at(x, machine) == rebuilt.problem.cost_of(x)


def test_every_statement_has_a_checked_certificate(planning: Planning, found: Sensitivity) -> None:
    assert found.base_proved and found.complete and len(found.ranges) == len(constants_of(planning)[0]) >= 5
    moved = 0
    for r in found.ranges:
        by_factor = {t.factor: t for t in r.tests}
        for t in r.tests:
            problem = build(
                planning.graph, r.constant.scale_constant(planning.machine, t.factor), planning.space
            ).problem
            assert t.certificate is not None and check_selection(problem, t.certificate).verdict is Verdict.PROVED
            assert t.plan_cost == problem.cost_of(found.choices) and t.passed == (t.lower_bound == t.plan_cost)
        for end in (r.low, r.high):
            assert end == 1 or by_factor[end].passed
        assert (
            r.low <= 1 <= r.high
            and (r.low_open is None or r.low_open < r.low)
            and (r.high_open is None or r.high_open > r.high)
        )
        for better in (r.low_better, r.high_better):
            assert better is None or better[0] < better[1]
        moved += (r.low_open is not None) + (r.high_open is not None)
    assert moved >= 2  # some constant does decide the plan


def test_between_the_ends_of_a_link_the_plan_stays_optimal_up_to_rounding(
    planning: Planning, found: Sensitivity
) -> None:
    slack = 2 * (len(planning.problem.vertices) + len(planning.problem.edges))
    for r in found.ranges:
        if "linear" not in r.between or r.high == 1:
            continue
        for factor in ((1 + r.high) / 2, (1 + 3 * r.high) / 4):
            problem = build(planning.graph, r.constant.scale_constant(planning.machine, factor), planning.space).problem
            best = solve(problem).cost
            assert best is not None and problem.cost_of(found.choices) <= best + slack


def test_ends_are_the_last_of_the_grid_that_pass(planning: Planning, found: Sensitivity) -> None:
    """Without skipping: the plan does pass at the ends and does not at the next factor outwards."""
    for r in found.ranges:
        if r.high_open is not None:
            problem = build(
                planning.graph, r.constant.scale_constant(planning.machine, r.high_open), planning.space
            ).problem
            best = solve(problem).cost
            assert best is not None and best < problem.cost_of(found.choices)


def test_measurements_are_ordered_by_what_the_plan_may_lose(planning: Planning, found: Sensitivity) -> None:
    """Bars as wide as the grid: every constant whose end another plan was found better at has that regret, exactly."""
    assert found.measurements == (), "this machine has no error bounds"
    names = {"nodes.bandwidth": "level.nodes.bandwidth", "gpus.latency": "level.gpus.latency"}
    device = f"device_class.{planning.machine.device.name}"
    names |= {"memory.bandwidth": f"{device}.bandwidth", "peak.float32": f"{device}.peaks.float32"}
    bars = tuple(sorted((path, Fraction(19)) for path in names.values()))
    unsure = replace(planning, machine=replace(planning.machine, bars=bars))
    answer = solve(unsure.problem)
    assert answer.solution is not None
    again = sensitivity(unsure, answer.solution, answer.certificate, grid=GRID)
    regrets = [m.regret for m in again.measurements]
    assert regrets == sorted(regrets, reverse=True) and regrets[0] > 0 and min(regrets) >= 0
    assert {m.constant.name for m in again.measurements} == {*names} & {r.constant.name for r in again.ranges}
    for m in again.measurements:
        moved = m.constant.scale_constant(planning.machine, m.factor)
        problem = build(planning.graph, moved, planning.space).problem
        assert m.factor in (20, Fraction(1, 20)) and problem.cost_of(answer.solution) == m.plan_cost
        best = solve(problem).cost
        assert best is not None and best <= m.better_cost
        of = next(r for r in again.ranges if r.constant == m.constant)
        if of.low <= Fraction(1, 20) and of.high >= 20:
            assert m.regret == 0
    text = render_sensitivity(again)
    first = again.measurements[0]
    assert f"measure {first.constant.name} (within 1900 %)" in text and "machine calibrate cloud-a100:2x2" in text
    listed = again.to_json()["measurements"]
    assert isinstance(listed, list) and [m["regret"] for m in listed] == regrets
    narrow = replace(planning, machine=replace(planning.machine, bars=(("level.nodes.bandwidth", Fraction(1, 10**6)),)))
    none = sensitivity(narrow, answer.solution, answer.certificate, grid=GRID, constants=("nodes.bandwidth",))
    assert [m.regret for m in none.measurements] == [0]
    assert "no constant within its error bound" in render_sensitivity(none)


def test_only_a_proved_plan_is_varied(planning: Planning) -> None:
    worst = tuple(0 for _ in planning.decisions)
    found = sensitivity(planning, worst, None, grid=GRID)
    assert not found.base_proved and found.ranges == () and "not proved optimal" in render_sensitivity(found)


def test_constants_that_cannot_matter_are_named() -> None:
    machine = load_machine("cloud-a100:1x2")
    machine = replace(machine, device=replace(machine.device, launch=Fraction(1, 10**6)))
    planning = build(zoo.build("linear-training"), machine, space("complete"))
    names = dict(constants_of(planning)[1])
    assert set(names) == {"level nodes", "launch"}
    answer = solve(planning.problem)
    assert answer.solution is not None
    said: list[tuple[int, int, str]] = []
    found = sensitivity(
        planning,
        answer.solution,
        grid=GRID,
        constants=("gpus.latency",),
        progress=lambda done, total, stage: said.append((done, total, stage)),
    )
    assert [r.constant.name for r in found.ranges] == ["gpus.latency"] and said and said[0][:2] == (0, 1)
    text = render_sensitivity(found)
    assert "gpus.latency" in text and "level nodes cannot matter" in text and "5 us" in text
    assert found.to_json()["base_proved"] is True


def test_no_time_left_is_said(planning: Planning, found: Sensitivity) -> None:
    answer = solve(planning.problem)
    assert answer.solution is not None
    short = sensitivity(planning, answer.solution, answer.certificate, grid=GRID, clock=Clock(0.0))
    assert not short.complete and short.ranges == () and "time ran out" in render_sensitivity(short)


def test_solves_that_do_not_close_narrow_the_range_and_are_called_so(planning: Planning, found: Sensitivity) -> None:
    answer = solve(planning.problem)
    assert answer.solution is not None
    hasty = sensitivity(planning, answer.solution, answer.certificate, grid=GRID, solve_limit=0.0)
    assert hasty.complete
    not_closed = 0
    for quick, full in zip(hasty.ranges, found.ranges, strict=True):
        assert full.low <= quick.low <= 1 <= quick.high <= full.high
        for t in quick.tests:
            assert t.passed == (t.lower_bound is not None and t.lower_bound >= t.plan_cost)
            not_closed += not t.passed and (t.best_cost is None or t.best_cost >= t.plan_cost)
        assert quick.high == GRID[-1] or quick.high_open == GRID[GRID.index(quick.high) + 1 if quick.high > 1 else 0]
    assert not_closed and "not closed" in render_sensitivity(hasty)


@pytest.fixture(scope="module")
def rewritten() -> Plan:
    graph = zoo.build("mlp-8192", batch=16, layers=3, width=64)
    request = PlanRequest(graph, load_machine("localhost:2"), "sgd", space=space("complete"))
    made = carry_out_jointly(request, TimeLimit(work(2))).plan
    assert made is not None and made.joint is not None and made.graph.name.endswith("+rewritten")
    return made


def test_a_plan_that_rules_derive_is_varied_over_all_its_programs(rewritten: Plan) -> None:
    """At every factor the claim is about every program, and the checker accepts it of the problem built there."""
    subject, x = all_programs(rewritten)
    assert rewritten.certificate is not None
    assert rewritten.certificate.problem_sha256 == subject.problem.sha256()
    found = sensitivity(subject, x, rewritten.certificate, grid=GRID[:3])
    assert found.base_proved and found.complete and found.ranges
    tests = [(r.constant, t) for r in found.ranges for t in r.tests]
    assert any(t.passed for _, t in tests)
    for constant, t in tests[:4]:
        problem = subject.on(constant.scale_constant(rewritten.machine, t.factor))
        assert t.certificate is not None and check_selection(problem, t.certificate).verdict is Verdict.PROVED
        assert t.plan_cost == problem.cost_of(x)
    alone = build(rewritten.graph, rewritten.machine, space("complete"))
    assert subject.cost_at(x, rewritten.machine) == alone.problem.cost_of(alone.solution(rewritten.choices))


def test_what_a_rewritten_program_costs_elsewhere_is_what_the_problem_there_says(rewritten: Plan) -> None:
    """Up to a unit of rounding for every term."""
    subject, x = all_programs(rewritten)
    terms = len(subject.problem.vertices) + len(subject.problem.edges)
    for c in constants_of(subject)[0]:
        machine = c.scale_constant(rewritten.machine, Fraction(3))
        assert abs((subject.cost_at(x, machine) or 0) - subject.on(machine).cost_of(x)) <= terms
    with pytest.raises(LookupError, match="one program"):
        all_programs(replace(rewritten, joint=None))


def test_joint_plans_on_the_command_line(rewritten: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.spz").write_bytes(write_plan(None, rewritten))
    assert run(["sensitivity", str(tmp_path / "p.spz"), "--work-limit", "200k", "--json"]) in (0, 5)
    said = json.loads(capsys.readouterr().out)
    assert said["base_proved"] and said["constants"]
    assert load(tmp_path / "p.spz").sensitivity(work_limit=1).base_proved
