"""Joint plans: equal to enumeration, never worse than the plan of the graph as it is, checked, and run."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from shardproof.backends.execution.job import Options
from shardproof.backends.execution.launch import build_program
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.formal.rewriting.joint.saturate import same_order, saturate
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import build
from shardproof.models.joint.egraph import EGraph
from shardproof.models.joint.problem import JointSubject, build_joint
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Status, Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.joint.plan import check_any_plan
from shardproof.verify.selection.certificate import check_selection
from tests.joint_cases import CASES, programs

DEEP = 6
"""Applications of rules: more than any of the cases has places for."""


def best(graph: Graph, machine: str) -> Fraction:
    """The optimum of one program, by a certificate that is checked."""
    problem = build(graph, load_machine(machine), space("complete")).problem
    answer = solve(problem)
    assert answer.certificate is not None and answer.status is Status.OPTIMAL and answer.cost is not None
    assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
    return Fraction(answer.cost, problem.scale)


@pytest.mark.parametrize("name", CASES)
def test_the_optimum_is_that_of_all_programs(name: str) -> None:
    """Every program that the rules make, rewritten one by one here, is planned by itself; the joint optimum is the
    least of all, and its file is accepted.
    """
    graph, machine = CASES[name](), "cloud-a100:2x4" if len(name) % 2 else "cloud-a100:1x8"
    every = programs(graph, DEEP)
    assert len(every) > 1 and len(programs(graph, DEEP + 1)) == len(every)
    costs = [best(g, machine) for g in every]
    found = plan_jointly(graph, load_machine(machine), space("complete"), clock=Clock())
    assert found.answer.status is Status.OPTIMAL and found.answer.cost is not None
    assert Fraction(found.answer.cost, found.planning.problem.scale) == min(costs) <= costs[0]
    plan = joint_plan(found)
    assert plan is not None
    checked = check_any_plan(write_plan(None, plan))
    assert [(r.kind, r.reason) for r in checked.results if r.verdict is not Verdict.PROVED] == []
    assert {"Equivalent", "Parts", "Space", "Optimal", "Entries", "Delivers", "Bytes"} == {
        r.kind for r in checked.results
    }


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["two layers", "shared product", "step"])
def test_tags_change_no_optimum(name: str, level: int) -> None:
    graph, machine = CASES[name](), load_machine("cloud-a100:2x4")
    found = plan_jointly(graph, machine, space("complete"), clock=Clock(), level=level)
    assert found.answer.status is Status.OPTIMAL and found.planning.skeleton.level == level
    costs = [best(g, "cloud-a100:2x4") for g in programs(graph, DEEP)]
    assert found.answer.cost is not None
    assert Fraction(found.answer.cost, found.planning.problem.scale) == min(costs)


@pytest.mark.parametrize("name", CASES)
def test_every_solution_costs_what_its_plan_costs(name: str) -> None:
    """Random programs and placements: the joint problem and the plan of the program alone agree to the unit."""
    graph, machine, where = CASES[name](), load_machine("cloud-a100:2x2"), space("complete")
    egraph, derivation = saturate(graph)
    assert same_order(egraph)
    joint = build_joint(JointSubject(egraph, derivation.rounds, machine, where, level=3))
    rng, seen = np.random.default_rng(0), 0
    for _ in range(40):
        modes = egraph.close_modes({t: str(rng.choice([n.name for n in nodes])) for t, nodes in egraph.nodes.items()})
        try:
            program = egraph.graph(modes)
        except ValueError:
            continue
        alone = build(program, machine, where)
        x = tuple(int(rng.integers(v.cost.size)) for v in alone.problem.vertices)
        y = joint.solution(modes, alone.choices(x))
        assert joint.problem.cost_of(y) == alone.problem.cost_of(x)
        assert joint.plan(y) == (program, alone.choices(x)) and not joint.executable(y)
        seen += 1
    assert seen > 10


def test_without_rules_the_problem_is_that_of_the_graph() -> None:
    graph = CASES["step"]()
    alone = build(graph, load_machine("cloud-a100:2x4"), space("complete"))
    joint = build_joint(
        JointSubject(EGraph(graph, (), graph.operators), 0, load_machine("cloud-a100:2x4"), space("complete"))
    )
    assert solve(joint.problem).cost == solve(alone.problem).cost
    assert len(joint.problem.vertices) == len(alone.problem.vertices)


@pytest.mark.parametrize("name", CASES)
def test_the_rewritten_program_gives_the_numbers_of_the_users_graph(name: str) -> None:
    graph = CASES[name]()
    machine = load_machine("cloud-a100:2x2")
    found = plan_jointly(graph, machine, space("complete"), clock=Clock())
    plan = joint_plan(found)
    assert plan is not None and plan.user_graph == graph
    arrays = random_inputs(graph, 0, "float64")
    expected = run_graph(graph, arrays)
    program = build_program(plan.graph, machine.hierarchy, plan.choices, Options())
    outputs = run_virtual(program, arrays).outputs
    assert set(outputs) == set(graph.results)
    for t in graph.results:
        assert np.allclose(outputs[t], expected[t], atol=1e-12)


def test_never_worse_than_the_graph_as_it_is_however_short_the_time() -> None:
    graph = build_step(zoo("mlp-8192", batch=2048, layers=3), "sgd").graph
    for seconds in (0.0, 0.05):
        found = plan_jointly(graph, load_machine("cloud-a100:2x8"), space("complete"), clock=Clock(seconds))
        assert found.answer.cost is not None and found.plain.cost is not None
        assert found.answer.cost <= found.plain.cost
        plan = joint_plan(found)
        assert plan is not None
        assert check_any_plan(write_plan(None, plan)).verdict is not Verdict.REFUTED


def test_layers_of_mlp_8192() -> None:
    """The cheapest program of a training step of two layers: the activation in its product, its gradient from there."""
    graph = build_step(zoo("mlp-8192", batch=8192, layers=2), "sgd").graph
    found = plan_jointly(graph, load_machine("cloud-a100:4x8"), space("complete"), clock=Clock())
    assert found.answer.status is Status.OPTIMAL
    assert (found.plain.cost, found.answer.cost) == (36837076997, 36789572279)
