"""The unit of time: chosen by the problem alone, the finest that fits, the same for planner and checker, and said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shardproof import __main__ as front
from shardproof.formal.explain.explain import explain
from shardproof.formal.explain.terms import PlanTerms
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.cost import selection
from shardproof.models.cost.cost import UNIT, ceil_sum
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine import machine
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.problem.selection_problem import FINITE_LIMIT, ProblemError, TooFine, largest_finite
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.plan.plan import check_plan


def small(rows: int = 64) -> Graph:
    g = Builder("small")
    y = g.contract("y", "b k, k n -> b n", g.input("x", (rows, 32)), g.parameter("w", (32, 16)))
    return g.build(g.reduce("s", "b n -> b", g.map("z", "relu", y, text="b n -> b n")))


def slowed(machine: Machine, factor: int) -> Machine:
    """Everything takes `factor` times as long."""
    device = replace(
        machine.device,
        bandwidth=machine.device.bandwidth / factor,
        peaks=tuple((n, p / factor) for n, p in machine.device.peaks),
    )
    levels = tuple(
        replace(level, bandwidth=level.bandwidth / factor, latency=level.latency * factor) for level in machine.levels
    )
    return replace(machine, device=device, levels=levels)


def total(planning: Planning) -> int:
    p = planning.problem
    sizes, _ = largest_finite([*(v.cost for v in p.vertices), *p.tables])
    return sum(sizes[: len(p.vertices)]) + sum(sizes[len(p.vertices) + e.table] for e in p.edges)


@pytest.mark.parametrize("decades", range(0, 24, 3))
def test_the_finest_unit_that_fits_is_taken(decades: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, where = slowed(load_machine("cloud-a100:2x2"), 10**decades), space("complete")
    exact = total(build(small(), load_machine("cloud-a100:2x2"), where)) * 10**decades / 10**12
    if exact >= FINITE_LIMIT:
        with pytest.raises(ProblemError, match="even for times in seconds"):
            build(small(), machine, where)
        return
    planning = build(small(), machine, where)
    unit = Fraction(1, planning.problem.scale)
    assert UNIT <= unit <= 1
    assert total(planning) < FINITE_LIMIT
    if unit > UNIT:  # a unit ten times finer does not fit
        monkeypatch.setattr(selection, "coarser", lambda finer, total: pytest.fail("does not fit"))
        with pytest.raises(pytest.fail.Exception):
            build(small(), machine, where, unit=unit / 10)
    again = build(small(), machine, where, unit=unit)
    assert again.problem.sha256() == planning.problem.sha256()


@pytest.mark.parametrize("decades", [0, 14, 20])
def test_planner_and_checker_agree_on_the_unit(decades: int) -> None:
    machine = slowed(load_machine("cloud-a100:2x2"), 10**decades)
    planned = plan_graph(small(), machine, space("complete"))
    assert planned.plan is not None
    checked = check_plan(write_plan(None, planned.plan), samples=200)
    assert checked.verdict is Verdict.PROVED, [r.reason for r in checked.results]
    assert (checked.planning.problem.scale == 10**12) == (decades == 0)
    assert checked.planning.problem.scale == planned.planning.problem.scale


def test_parts_of_the_cost_are_in_the_unit_of_the_problem() -> None:
    machine = slowed(load_machine("cloud-a100:2x2"), 10**18)
    planned = plan_graph(small(), machine, space("complete"))
    assert planned.answer.solution is not None and planned.answer.cost is not None
    assert PlanTerms(planned.planning).cost_at(planned.answer.solution, machine) == planned.answer.cost
    told = explain(planned.planning, planned.answer.solution).to_json()
    assert told["scale"] == planned.planning.problem.scale != 10**12


@pytest.mark.parametrize("change", [lambda t: t + 1, lambda t: np.maximum(t - 1, 0)])
def test_entries_off_by_one_coarse_unit_are_refuted(
    change: Callable[[np.ndarray], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardproof.models.cost import cost

    true = cost.edge_times
    monkeypatch.setattr(cost, "edge_times", lambda *args: change(true(*args)))
    planned = plan_graph(small(), slowed(load_machine("cloud-a100:2x2"), 10**16), space("complete"))
    assert planned.plan is not None and planned.planning.problem.scale < 10**12
    checked = check_plan(write_plan(None, planned.plan), samples=200)
    assert checked.verdict is Verdict.REFUTED


def test_sums_that_leave_int64_say_how_large_they_are() -> None:
    huge = 3 * 10**30
    with pytest.raises(TooFine) as said:
        ceil_sum([(Fraction(huge), np.array([1, 2])), (Fraction(1, 3), np.array([1, 0]))])
    assert said.value.total == 2 * huge
    edge = (1 << 62) - 1
    assert ceil_sum([(Fraction(edge), np.array([1]))]).tolist() == [edge]
    with pytest.raises(TooFine):
        ceil_sum([(Fraction(edge), np.array([1])), (Fraction(1, 7), np.array([1]))])


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert front.run(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("model", ["mlp-unity", pytest.param("llama", marks=pytest.mark.slow)])
def test_the_command_line_says_the_unit(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`plan llama --machine localhost:2` asked for "a coarser unit", which nobody could choose."""
    out, slow = tmp_path / "l.spz", tmp_path / "slow.toml"
    text = (Path(machine.__file__).parent / "builtin" / "localhost.toml").read_text(encoding="utf-8")
    slow.write_text(
        text.replace("size = 8", "size = 2").replace("GB/s", "B/s").replace('"20 Gflop', '"20 flop'), encoding="utf-8"
    )
    document = json.loads(
        said(
            [
                "plan",
                model,
                "--machine",
                str(slow) if model == "mlp-unity" else "localhost:2",
                "-o",
                str(out),
                "--json",
            ],
            capsys,
        )
    )
    assert document["scale"] == 10**10 and document["rounding_bound"] > 0
    words = "rounded up once to 100 ps: exact times add up to at most"
    assert words in said(["check", str(out)], capsys)
    assert words in said(["explain", str(out)], capsys)
    assert json.loads(said(["check", str(out), "--json"], capsys))["rounding"] == [
        {"file": str(out), "scale": 10**10, "rounding_bound": document["rounding_bound"]}
    ]
    assert json.loads(said(["explain", str(out), "--json"], capsys))["rounding_bound"] == document["rounding_bound"]


def test_plans_that_fit_keep_picoseconds_and_their_identity() -> None:
    planning = build(zoo("mlp-unity"), load_machine("cloud-a100:4x8"), space("complete"))
    assert planning.problem.scale == 10**12
