"""Every distinct entry of a problem against whole arrays from index sets: a wrong one is found wherever it is, and what
was compared is counted.

Three ways to the same number: arrays of all layouts in `models/`, arrays of boxes in `verify/plan/entry_tables.py`,
sets of boxes one pair at a time in `verify/plan/entries.py`.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from strange_graphs import strange_graph
from test_verify_entries import PROBLEMS, mixed

from shardproof.__main__ import run
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.communication.choices import copy_layout, input_layout, output_layout
from shardproof.models.cost import cost
from shardproof.models.cost.selection import DecisionKind, Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.problem.selection_problem import Ints, Vertex
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import TINY
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.budget import CELLS, MORE_CELLS
from shardproof.verify.plan.box_tables import copy_operand, layouts, shape_of
from shardproof.verify.plan.communication import plain_layout
from shardproof.verify.plan.plan import check_plan
from shardproof.verify.plan.tables import wrong_anywhere
from shardproof.verify.plan.used_entries import Entries
from shardproof.verify.verdict import Coverage

SMALL = ("mlp-unity", "xdl", "attention")
SEEDS = 20


@pytest.fixture(
    scope="module",
    params=[p for p in PROBLEMS if p[0] not in ("alexnet", "transformer-layer")],
    ids=lambda p: "-".join(map(str, (p[0], *p[2:]))),
)
def planning(request: pytest.FixtureRequest) -> Planning:
    name, options, machine, where = request.param
    return build(mixed() if name == "mixed" else zoo(name, **options), load_machine(machine), space(where), 1 << 40)


def test_all_entries_of_a_problem_agree(planning: Planning) -> None:
    wrong, coverage = wrong_anywhere(Entries(planning), CELLS, "seed")
    assert wrong == "" and 0 < coverage.checked <= coverage.total
    assert coverage.total <= sum(v.cost.size for v in planning.problem.vertices) + sum(
        planning.problem.tables[e.table].size for e in planning.problem.edges
    ) + sum(u.amount.size for u in planning.problem.usages)


def test_layouts_are_those_of_single_placements(planning: Planning) -> None:
    """Box by box and digit by digit."""
    rng, graph, hierarchy = random.Random(5), planning.graph, planning.machine.hierarchy
    for decision in planning.decisions:
        choices = [rng.randrange(len(decision.placements)) for _ in range(3)]
        if decision.kind is DecisionKind.COPY:
            shape = graph.tensor(decision.name).shape
            found = [
                (
                    layouts(
                        copy_operand(shape, decision.axes),
                        tuple(shape[int(k)] for k in decision.axes),
                        decision.placements,
                        hierarchy,
                    ),
                    None,
                )
            ]
        else:
            known = shape_of(graph.operator(decision.name), graph, decision.axes)
            found = [
                (layouts(o, known.extents, decision.placements, hierarchy), j)
                for j, o in enumerate((*known.inputs, known.output))
            ]
        for some, position in found:
            for choice in choices:
                placement, op = decision.placement(choice), None if position is None else graph.operator(decision.name)
                if op is None or position is None:
                    layout = copy_layout(decision.name, graph, placement, hierarchy)
                elif position < len(op.inputs):
                    layout = input_layout(op, position, graph, placement, hierarchy)
                else:
                    layout = output_layout(op, graph, placement, hierarchy)
                number = int(some.of[choice])
                assert (some.boxes[number] == layout.boxes).all() and some.open[number] == plain_layout(layout).open


@pytest.mark.parametrize("seed", range(SEEDS))
def test_strange_graphs_agree(seed: int) -> None:
    machine = ("localhost:6", "cloud-a100:2x3", "summit:2x1x3", "summit:2x2x2")[seed % 4]
    entries = Entries(build(strange_graph(seed), load_machine(machine), space("complete,uneven"), 1 << 40))
    wrong, coverage = wrong_anywhere(entries, MORE_CELLS, "seed")
    assert wrong == "" and coverage.checked == coverage.total


def raised(array: Ints, place: tuple[int, ...]) -> Ints:
    out = array.copy()
    out[place] += 1
    return out


@pytest.mark.parametrize("name", SMALL)
def test_one_wrong_entry_is_found_wherever_it_is(name: str) -> None:
    """Any entry of any array, raised by one picosecond or byte; used or not."""
    planning = build(
        build_step(zoo(name, **TINY[name]), "adam").graph, load_machine("cloud-a100:2x2"), space("complete"), 1 << 40
    )
    p, rng = planning.problem, random.Random(6)

    def refuted(**parts: object) -> None:
        wrong, _ = wrong_anywhere(Entries(replace(planning, problem=replace(p, **parts))), CELLS, "seed")  # type: ignore[arg-type]
        assert wrong

    for v in rng.sample(range(len(p.vertices)), 8):
        cost_ = raised(p.vertices[v].cost, (rng.randrange(p.vertices[v].cost.size),))
        refuted(vertices=(*p.vertices[:v], Vertex(p.vertices[v].name, cost_), *p.vertices[v + 1 :]))
    for t in rng.sample(range(len(p.tables)), 8):
        table = raised(p.tables[t], tuple(rng.randrange(n) for n in p.tables[t].shape))
        refuted(tables=(*p.tables[:t], table, *p.tables[t + 1 :]))
    for u in rng.sample(range(len(p.usages)), 8):
        amount = raised(p.usages[u].amount, (rng.randrange(p.usages[u].amount.size),))
        refuted(usages=(*p.usages[:u], replace(p.usages[u], amount=amount), *p.usages[u + 1 :]))
    for e, edge in enumerate(p.edges):  # choices sent to another row of the table
        if edge.rows is not None and np.unique(p.tables[edge.table], axis=0).shape[0] > 1:
            refuted(edges=(*p.edges[:e], replace(edge, rows=np.roll(edge.rows, 1)), *p.edges[e + 1 :]))
            break


def filled(fillers: int) -> Graph:
    """Many operators of shapes of their own beside one that matters."""
    g = Builder("fillers")
    x = g.input("x", (64, 48))
    y = g.contract("matters", "b k, k n -> b n", x, g.parameter("w", (48, 36)))
    for n in range(fillers):
        g.map(f"filler{n}", "relu", g.input(f"i{n}", (2 * n + 2,)))
    return g.build(y)


def test_fillers_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong entry of one array, which the plan does not use, among 300 arrays: planner and checker build the
    same wrong table.
    """
    real = cost.operator_costs

    def wrong(form: object, *given: object) -> cost.OperatorCosts:
        found = real(form, *given)  # type: ignore[arg-type]
        worst = int(found.times.argmax())
        return replace(found, times=raised(found.times, (worst,))) if form.function == "product" else found  # type: ignore[attr-defined]

    monkeypatch.setattr(cost, "operator_costs", wrong)
    found = plan_graph(filled(300), load_machine("cloud-a100:2x2"))
    assert found.plan is not None
    result = {r.kind: r for r in check_plan(write_plan(None, found.plan)).results}["Entries"]
    assert result.verdict is Verdict.REFUTED and "operator 'matters'" in result.reason


def test_beyond_the_budget_a_part_of_every_group_is_drawn() -> None:
    planning = build(zoo("transformer-layer"), load_machine("cloud-a100:2x4"), space("complete"), 1 << 40)
    whole = wrong_anywhere(Entries(planning), MORE_CELLS, "seed")
    some = wrong_anywhere(Entries(planning), 1 << 18, "seed")
    assert whole[0] == some[0] == "" and whole[1].checked == whole[1].total == some[1].total > some[1].checked > 0
    assert some == wrong_anywhere(Entries(planning), 1 << 18, "seed")
    tables = planning.problem.tables
    for t in (
        min(range(len(tables)), key=lambda t: tables[t].size),
        max(range(len(tables)), key=lambda t: tables[t].size),
    ):
        shifted = replace(
            planning, problem=replace(planning.problem, tables=(*tables[:t], tables[t] + 1, *tables[t + 1 :]))
        )
        assert wrong_anywhere(Entries(shifted), 1 << 18, "other seed")[0]


def test_the_count_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "p.spz")
    assert run(["plan", "mlp-unity", "--machine", "localhost:2", "-o", plan]) == 0
    capsys.readouterr()
    assert run(["check", plan]) == 0
    text = capsys.readouterr().out
    assert run(["check", plan, "--json"]) == 0
    (claim,) = [c for c in json.loads(capsys.readouterr().out)["claims"] if c["kind"] == "Entries"]
    assert 0 < claim["entries_checked"] == claim["entries"]
    assert f"all {claim['entries']:,} distinct entries checked" in text
    assert Coverage(5, 7).words == "5 of 7 distinct entries checked"
