"""What is too large is said before the search, by the function that the checker enforces, and nothing that it
admits wraps or is refused later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from shardproof import __main__ as front
from shardproof.formal.plans import plan, tables
from shardproof.formal.plans.plan import fitting_space, plan_graph
from shardproof.models.cost import limits
from shardproof.models.cost.limits import LARGE, SMALL, Budget, OverBudget, TooLarge, check_sizes
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.budget import Budget as CheckBudget
from shardproof.verify.plan import effort
from shardproof.verify.plan.boxes import MOST_CELLS
from shardproof.verify.plan.plan import check_plan

LLAMA_405B = {"layers": 2, "batch": 512, "sequence": 8192, "width": 16384, "heads": 128, "kv_heads": 8, "hidden": 53248}
CASES = [
    ("mlp-unity", {}, None, "cloud-a100:2x4", "complete"),
    ("bert-tiny", {}, "adam", "cloud-a100:4x8", "two-per-level"),
    ("conv-stack", {}, None, "cloud-a100:2x3", "complete,uneven"),
    ("attention", {}, None, "cloud-a100:2x4", "complete"),
    ("mlp-uneven", {}, "sgd", "cloud-a100:2x6", "two-per-level,uneven"),
]


def case(name: str, options: dict[str, int], train: str | None) -> Graph:
    graph = zoo(name, **options)
    return graph if train is None else build_step(graph, train).graph


def diagonal(n: int) -> Graph:
    g = Builder("diagonal")
    x = g.map("x", "relu", g.input("a", (n, n)), text="i j -> i j")
    return g.build(g.map("d", "copy", x, text="i i -> i"))


def needed(graph: Graph, machine: str, where: str) -> Budget:
    """The bound on what building takes."""
    return check_sizes(graph, load_machine(machine), space(where))


@pytest.mark.parametrize(
    ("options", "train", "sizes"),
    [
        ({"layers": 2, "batch": 64}, None, "64x8"),
        (LLAMA_405B, None, "128x8"),
        (LLAMA_405B, None, "512x8"),
        (LLAMA_405B, "adam", "512x8"),
    ],
)
def test_large_models_on_large_machines_are_admitted(options: dict[str, int], train: str | None, sizes: str) -> None:
    """Two Llama-3 8B layers at batch 64 on 64x8 were refused after the search: 137713831378944 points of a gather
    are not what a check costs.
    """
    check_sizes(case("llama", options, train), load_machine("cloud-a100:" + sizes), space("two-per-level"))


@pytest.mark.parametrize(("machine", "what"), [("cloud-a100:3000x8", "24000 devices"), ("summit:64x8x8", "placements")])
def test_what_cannot_be_checked_is_refused_before_anything_is_built(
    machine: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "build", lambda *args, **options: pytest.fail("built"))
    graph = case("llama", LLAMA_405B, None)
    with pytest.raises(TooLarge, match=what):
        plan_graph(graph, load_machine(machine), space("two-per-level"))


def test_the_default_space_is_one_that_can_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = zoo("bert-tiny"), load_machine("cloud-a100:4x8")
    assert fitting_space(graph, machine).name == "complete"
    monkeypatch.setattr(limits, "MOST_PLACEMENTS", 100)
    plan._require_size.cache_clear()
    assert fitting_space(graph, machine).name == "one-per-level"
    monkeypatch.setattr(limits, "MOST_PLACEMENTS", 2)
    plan._require_size.cache_clear()
    with pytest.raises(TooLarge, match="placements"):
        fitting_space(graph, machine)


@pytest.mark.parametrize(("name", "options", "train", "machine", "where"), CASES)
def test_bounds_are_bounds(name: str, options: dict[str, int], train: str | None, machine: str, where: str) -> None:
    graph = case(name, options, train)
    bound = needed(graph, machine, where)
    planning = build(graph, load_machine(machine), space(where))
    assert sum(t.size for t in planning.problem.tables) <= bound.entries * 2  # element sizes share layouts, not tables
    assert max(v.cost.size for v in planning.problem.vertices) <= bound.entries


LIMITS = (
    "MOST_DEVICES",
    "MOST_AXES",
    "MOST_PLACEMENTS",
    "MOST_PER_DEVICE",
    "MOST_TABLE",
    "MOST_OVERLAPS",
    "MOST_NUMBER",
    "MOST_STEPS",
)


@pytest.mark.parametrize("limit", LIMITS)
def test_planner_and_checker_refuse_at_the_same_size(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every limit is moved to where this plan just fits and just does not: both say the same, in the same words."""
    graph, machine, where = zoo("mlp-unity"), load_machine("cloud-a100:2x4"), space("complete")
    planned = plan_graph(graph, machine, where)
    assert planned.plan is not None
    data = write_plan(None, planned.plan)

    def refusals(value: int) -> tuple[str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(limits, limit, value)
            plan._require_size.cache_clear()
            said = []
            for ask, error in (
                (lambda: plan_graph(graph, machine, where), TooLarge),
                (lambda: check_plan(data, samples=5), ContainerError),
            ):
                try:
                    ask()
                    said.append("")
                except error as e:
                    said.append(str(e))
        return said[0], said[1]

    low, high = 0, getattr(limits, limit)  # refused at 0, admitted at the limit
    assert refusals(low)[0] and not refusals(high)[0]
    while high - low > 1:
        middle = (low + high) // 2
        with monkeypatch.context() as patch:
            patch.setattr(limits, limit, middle)
            try:
                check_sizes(graph, machine, where)
                high = middle
            except TooLarge:
                low = middle
    for value, admitted in ((low, False), (high, True)):
        planner, checker = refusals(value)
        assert (planner == "") == (checker == "") == admitted, (limit, value, planner, checker)
        assert planner in checker


SIZES = {
    "entries": zoo("mlp-unity"),
    "overlaps": zoo("mlp-unity"),
    "boxes": zoo("mlp-unity"),
    "tables": zoo("mlp-unity"),
    "compared": zoo("mlp-unity"),
    "steps": zoo("mlp-unity"),
    "segments": zoo("conv-stack"),
    "coupled": diagonal(16),
    "at_once": zoo("conv-stack"),
}
"""What is counted, and a graph that has some of it."""

SPACE = {"compared": "complete,uneven"}
"""Of that graph, where it is not `complete`."""


@pytest.mark.parametrize("part", SIZES)
def test_budgets_are_exact(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine, where = SIZES[part], load_machine("cloud-a100:2x4"), space(SPACE.get(part, "complete"))
    bound = needed(graph, "cloud-a100:2x4", where.name)
    assert getattr(bound, part) > 0
    check_sizes(graph, machine, where, bound)
    less = replace(bound, **{part: getattr(bound, part) - 1})
    if part != "steps":  # each of several counters may take so many
        with pytest.raises(OverBudget, match="without --large"):
            check_sizes(graph, machine, where, less)
        monkeypatch.setattr(limits, "LARGE", replace(LARGE, **{part: getattr(less, part)}))
        with pytest.raises(TooLarge, match="are planned and checked"):
            check_sizes(graph, machine, where)
    with pytest.raises(OverBudget, match="takes more than 3 steps"):
        check_sizes(graph, machine, where, replace(bound, steps=3))
    assert getattr(SMALL, part) < getattr(LARGE, part)


@pytest.mark.parametrize("part", SIZES)
def test_the_checker_asks_for_consent_by_name(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the sizes of a problem ends a check without `--large`, and not one with it."""
    graph, machine, where = SIZES[part], load_machine("cloud-a100:2x4"), space(SPACE.get(part, "complete"))
    planned = plan_graph(graph, machine, where)
    assert planned.plan is not None
    data = write_plan(None, planned.plan)
    most = 3 if part == "steps" else getattr(needed(graph, "cloud-a100:2x4", where.name), part) - 1
    monkeypatch.setattr(effort, "SMALL", replace(effort.SMALL, **{part: most}))
    with pytest.raises(ContainerError, match=r"more than a minute or 2 GiB.*'shardproof check --large' takes its time"):
        check_plan(data, samples=5, budget=CheckBudget.without_large())
    assert check_plan(data, samples=5, budget=CheckBudget.with_large()).verdict is Verdict.PROVED


def test_the_command_line_asks_for_consent_to_large_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p.spz"
    assert front.run(["plan", "mlp-unity", "--machine", "cloud-a100:2x4", "-o", str(out)]) == 0
    monkeypatch.setattr(effort, "SMALL", replace(effort.SMALL, entries=10))
    assert front.run(["check", str(out)]) == 3
    assert "check --large" in capsys.readouterr().err
    assert front.run(["check", "--large", str(out)]) == 0


def product(rows: int, inner: int, columns: int, dtype: str = "float64") -> Graph:
    g = Builder("large", dtype)
    y = g.contract("y", "b k, k n -> b n", g.input("x", (rows, inner)), g.parameter("w", (inner, columns)))
    return g.build(g.map("z", "relu", y, text="b n -> b n"))


def largest(fits: Callable[[int], bool]) -> int:
    """The largest power of two that fits."""
    n = 1
    while fits(2 * n):
        n *= 2
    return n


@pytest.mark.parametrize("sizes", ["2x2", "8", "1"])
def test_nothing_wraps_at_the_largest_sizes(sizes: str) -> None:
    """The largest matrices that are admitted: tables as index sets and Python integers give them."""
    machine, where = load_machine(("cloud-a100:" if "x" in sizes else "localhost:") + sizes), space("complete")

    def fits(n: int, shape: Callable[[int], tuple[int, int, int]]) -> bool:
        try:
            check_sizes(product(*shape(n)), machine, where)
        except (TooLarge, GraphError):
            return False
        return True

    shapes: list[Callable[[int], tuple[int, int, int]]] = [
        lambda n: (n, 16, n),
        lambda n: (n, 8, 8),
        lambda n: (8, n, 8),
        lambda n: (n, n, n),
    ]
    for shape in shapes:
        n = largest(lambda n, shape=shape: fits(n, shape))  # type: ignore[misc]
        assert math.prod(shape(n)) > 1 << 30
        planned = plan_graph(product(*shape(n)), machine, where)
        assert planned.plan is not None
        checked = check_plan(write_plan(None, planned.plan), samples=400)
        assert checked.verdict is Verdict.PROVED, [r.reason for r in checked.results]
        assert all(int(t.min()) >= 0 for t in checked.planning.problem.tables)


def test_diagonals_are_bounded_before_they_are_built() -> None:
    """A read along a diagonal has cells in the square of the devices below a subtree."""
    check_sizes(diagonal(64), load_machine("cloud-a100:8x8"), space("complete"))
    with pytest.raises(TooLarge, match="runs through two dimensions"):
        check_sizes(diagonal(4096), load_machine("cloud-a100:512x8"), space("two-per-level"))
    assert limits.MOST_CELLS == MOST_CELLS
    assert np.iinfo(np.int64).max > 2 * limits.MOST_NUMBER


def test_every_size_that_takes_time_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size that is bounded alone and free in the sum is how 1/16 of a budget took 5 s (pairs of uneven layouts)."""
    graph, machine, where = zoo("mlp-unity"), load_machine("cloud-a100:2x4"), space("complete")
    nothing = Budget(**{f.name: 0 for f in fields(Budget)})

    def charged(sizes: Budget) -> int:
        monkeypatch.setattr(effort, "check_sizes", lambda *of: sizes)
        budget = CheckBudget.without_large()
        effort.charge_tables(graph, machine, where, budget, "plan")
        return budget.work

    free = {f.name for f in fields(Budget) if charged(replace(nothing, **{f.name: 1000})) == charged(nothing)}
    assert free == {"cells", "cells_at_once", "at_once"}  # movements charge their own cells; the last is memory
