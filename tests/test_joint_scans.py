"""Programs that rules make of recurrent networks: axes that are never split stand in any order."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.model.clock import STEPS, Clock
from shardproof.models.layout.classes import same_rows
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Status
from shardproof.models.program.index import Axis, Combine, access
from shardproof.models.program.operators import Operator
from shardproof.models.sources.load import load_model
from shardproof.models.sources.training import build_step
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.joint.plan import check_any_plan


def test_orders_that_differ_in_axes_that_are_never_split() -> None:
    axes = (Axis("b", 8), Axis("h", 4, Combine.SUM, False), Axis("n", 4, Combine.SUM, False))
    op = Operator("s", "sum", axes, (access("x", "b", "h", "n"),), access("s", "b"), ())
    assert same_rows(op, ("b", "h", "n"), ("b", "n", "h")) and same_rows(op, ("b", "h", "n"), ("b", "h", "n"))
    assert not same_rows(op, ("b", "h", "n"), ("h", "b", "n")) and not same_rows(op, ("b", "h"), ("b", "h", "n"))


@pytest.mark.torch
def test_the_best_program_of_a_recurrent_network_is_executable() -> None:
    """Alone, its scans have their hidden axes in another order than beside all programs; both are whole."""
    pytest.importorskip("torch")
    step = build_step(load_model(str(Path(__file__).with_name("torch_models") / "recurrent.py") + ":gru"), "adam")
    found = plan_jointly(step.graph, load_machine("localhost:4"), space("complete"), clock=Clock(work=8 * STEPS))
    assert found.answer.status is Status.OPTIMAL and not found.planning.executable(found.answer.solution or ())
    plan = joint_plan(found)
    assert plan is not None and check_any_plan(write_plan(None, plan)).verdict.value == "proved"
