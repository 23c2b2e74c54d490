"""Plans of rewritten programs on four MPI ranks: the numbers of the user's graph."""

from __future__ import annotations

import numpy as np
import pytest
from joint_cases import CASES
from test_joint_rules import PLACES

from shardproof.backends.execution.job import Options
from shardproof.backends.execution.launch import mpi_available, run_job
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.formal.rewriting.joint.saturate import RULES, saturate
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.solve import solve
from shardproof.models.communication.choices import Choices
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph

MACHINE = load_machine("cloud-a100:2x2")


def same_on_ranks(asked: Graph, program: Graph, choices: Choices) -> None:
    inputs = random_inputs(asked, 0, "float64")
    result = run_job(program, MACHINE.hierarchy, choices, inputs, Options(), 120.0)
    wanted = run_graph(asked, inputs)
    assert set(result.outputs) == set(asked.results)
    for t in asked.results:
        np.testing.assert_allclose(result.outputs[t], wanted[t], rtol=1e-9, atol=1e-10)


@pytest.mark.skipif(not mpi_available(), reason="MPI is not installed")
@pytest.mark.parametrize("name", ["step"])
def test_the_joint_plan_runs(name: str) -> None:
    graph = CASES[name]()
    plan = joint_plan(plan_jointly(graph, MACHINE, space("complete"), clock=Clock()))
    assert plan is not None and plan.user_graph == graph
    same_on_ranks(graph, plan.graph, plan.choices)


@pytest.mark.skipif(not mpi_available(), reason="MPI is not installed")
@pytest.mark.parametrize("name", ["fuse-epilogue", "fuse-attention", "merge-siblings", "product-of-parts"])
def test_rewritten_programs_run(name: str) -> None:
    """The program with all that a rule adds, in its best placement."""
    graph = PLACES[name]()
    egraph, derivation = saturate(graph, {name: RULES[name]})
    added = {step.node for step in derivation.steps}
    modes = {op.output.tensor: op.name for op in egraph.operators if op.name in added}
    program = egraph.graph(egraph.close_modes(modes))
    assert added & {op.name for op in program.operators}
    planning = build(program, MACHINE, space("complete"))
    best = solve(planning.problem).solution
    assert best is not None
    same_on_ranks(graph, program, planning.choices(best))
