"""Strange graphs through the whole house: planned, proved, run on virtual ranks, compared with one process, and their
memory with what ranks hold.

Constant indices, scalars, unread results and names such as `tensor:y` each ended in an internal error or a wrong proof
once.
"""

from __future__ import annotations

import numpy as np
import pytest
from strange_graphs import strange_graph

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.fusion import fuse
from shardproof.backends.lowering.program import Compute, lower
from shardproof.formal.explain.deviation import name_of, vertex_of
from shardproof.formal.plans.plan import plan_graph
from shardproof.formal.plans.schedules import propagate
from shardproof.formal.plans.strategy import parse_strategy, resolve, strategy_of
from shardproof.models.communication.choices import Choices
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import Placement, space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Access, Affine, Axis, access
from shardproof.models.sources.building.builder import Builder
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.plan.plan import check_plan

FEW, MANY = 30, 2000
"""Graphs drawn here and in the slow suite."""
MACHINES = ("localhost:2", "localhost:3", "localhost:4", "localhost:6", "cloud-a100:2x2")
SPACES = ("complete", "complete,uneven")


def planned_and_run(graph: Graph, machine: str, where: str, seed: int = 0) -> None:
    """Every claim proved, the same numbers as one process, never more held than the rows say."""
    found = plan_graph(graph, load_machine(machine), space(where), 1 << 40)
    assert found.plan is not None
    checked = check_plan(write_plan(None, found.plan))
    assert [(r.kind, r.reason) for r in checked.results if r.verdict is not Verdict.PROVED] == []
    values, program = random_inputs(graph, seed), lower(graph, found.planning.machine.hierarchy, found.plan.choices)
    plain, fused = run_virtual(program, values, measure=True), run_virtual(fuse(program), values)
    for name, expected in run_graph(graph, values).items():
        for result in (plain, fused):
            np.testing.assert_allclose(result.outputs[name], expected, rtol=1e-9, atol=1e-9)
    assert all(t.fits for t in plain.traffic)
    predicted, _ = found.planning.problem.peak_of(found.planning.solution(found.plan.choices))
    assert max(plain.peaks) <= predicted


def ranged(first: int, last: int) -> None:
    for seed in range(first, last):
        try:
            planned_and_run(
                strange_graph(seed), MACHINES[seed % len(MACHINES)], SPACES[seed // len(MACHINES) % len(SPACES)], seed
            )
        except Exception as error:
            error.add_note(f"strange_graph({seed})")
            raise


def test_a_few_strange_graphs() -> None:
    ranged(0, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_strange_graphs(part: int) -> None:
    ranged(FEW + part * MANY // 10, FEW + (part + 1) * MANY // 10)


def test_the_generator_draws_what_it_is_for() -> None:
    graphs = [strange_graph(seed) for seed in range(FEW)]
    read = [{a.tensor for op in g.operators for a in op.inputs} for g in graphs]
    assert (
        sum(
            any(op.output.tensor not in {*r, *g.outputs} for op in g.operators)
            for g, r in zip(graphs, read, strict=True)
        )
        > 5
    )
    assert sum(any(not op.axes for op in g.operators) for g in graphs) > 1
    assert sum(any(op.name.startswith(("tensor:", "operator:")) for op in g.operators) for g in graphs) > 1
    assert sum(any(len({a.tensor for a in op.inputs}) < len(op.inputs) for op in g.operators) for g in graphs) > 5
    assert all(g.check() == strange_graph(seed) for seed, g in enumerate(graphs))


# What failed, one by one.


@pytest.mark.parametrize("machine", MACHINES)
def test_an_operator_without_axes(machine: str) -> None:
    """`a[0, 0] * 2`, and a scalar that is read by two."""
    g = Builder("corner")
    y = g.operator("y", "scale", [], [Access(g.input("a", (4, 4)), (Affine(), Affine()))], [], {"scale": 2.0})
    graph = g.build(g.map("z", "add", y, y), y)
    planned_and_run(graph, machine, "complete")


@pytest.mark.parametrize(
    "names",
    [
        ("tensor:y", "y"),
        ("y", "tensor:y"),
        ("tensor:tensor:y", "tensor:y"),
        ("operator:tensor:y", "tensor:y"),
        ("x[0]", "x"),
        ("x as written", "x[0]"),
    ],
)
def test_operators_are_not_taken_for_copies_or_slots(names: tuple[str, str]) -> None:
    """Each operator has other axes than the tensor that its name looks like."""
    first, second = names
    g = Builder("names")
    x = g.input("x" if "x" not in names else "x'", (6, 4))
    a = g.map(first, "relu", x)
    b = g.contract(second, "i j, i j -> ", a, a)
    planned_and_run(g.build(b, g.map("end", "add", a, a), g.map("end'", "add", b, b)), "localhost:2", "complete")


def test_a_result_that_nobody_reads_is_held_while_it_is_written() -> None:
    """16 GiB thrown away: a limit of a few bytes must not be proved."""
    g = Builder("unread")
    x = g.input("x", (4,))
    y = g.map("y", "relu", x)  # first: the interval was empty for every step but the first
    g.operator(
        "thrown",
        "identity",
        [Axis("i0", 4), Axis("i1", 1 << 15), Axis("i2", 1 << 15)],
        [access(x, "i0")],
        ["i0", "i1", "i2"],
    )
    graph = g.build(y)
    found = plan_graph(graph, load_machine("localhost:2"), memory_limit=1 << 20)
    assert found.plan is None and found.answer.status.value == "infeasible"
    roomy = plan_graph(graph, load_machine("localhost:2"), memory_limit=1 << 40)
    assert (
        roomy.plan is not None
        and roomy.planning.problem.peak_of(roomy.planning.solution(roomy.plan.choices))[0] > 1 << 33
    )


def test_slots_are_told_apart_when_tensors_are_called_like_them() -> None:
    g = Builder("slots")
    x = g.input("y[0]", (4,))
    y = g.map("y", "relu", x)
    graph = g.build(g.map("y as written", "negate", y), y)
    everything = Placement(("i0",), ((1,), (1,)))
    copies = tuple((t, Placement(("0",), ((1,), (1,)))) for t in (y, "y as written"))
    program = lower(graph, (1,), Choices(tuple((op.name, everything) for op in graph.operators), copies))
    written = [i for i in program.ranks[0] if isinstance(i, Compute)]
    assert [(i.slot, i.operands[0][0]) for i in written] == [
        ("y as written'", "y[0]'"),
        ("y as written as written", "y as written[0]"),
    ]


def test_strategies_tell_operators_from_copies_of_the_same_name() -> None:
    """`tensor:y` is the copy of y; an operator called so is `operator:tensor:y`, or `tensor:y` where y has no copy."""
    g = Builder("names")
    y = g.map("y", "relu", g.input("x", (6, 4)))
    graph = g.build(g.contract("tensor:y", "i j, i j -> j", y, y), g.map("tensor:x", "relu", y))
    planning = build(graph, load_machine("localhost:2"), space("complete"))
    whole = strategy_of(planning, (0,) * len(planning.decisions))
    assert {r.key for r in whole.rules} >= {"y", "tensor:y", "operator:tensor:y", "operator:tensor:x"}
    assert resolve(whole, planning).allowed == {v: (0,) for v in range(len(planning.decisions))}
    found = resolve(
        parse_strategy(
            '{"operator:tensor:y": {"j": {"ranks": 2}}, "tensor:y": {"0": {"ranks": 2}}, "tensor:x": {"i1": '
            '{"ranks": 2}}}'
        ),
        planning,
    )
    assert set(found.allowed) == {planning.operators["tensor:y"], planning.copies["y"], planning.operators["tensor:x"]}
    carried = propagate(graph, load_machine("localhost:2"), parse_strategy('{"tensor:x": {"i1": {"ranks": 2}}}'))
    assert dict(carried.choices.operators)["tensor:x"].matrix == ((1,), (2,), (1,))
    assert (
        vertex_of(planning, "tensor:x") == planning.operators["tensor:x"]
        and vertex_of(planning, "tensor:y") == planning.copies["y"]
    )
    assert name_of(planning, planning.operators["tensor:y"]) == "operator:tensor:y"
