"""Every model of the zoo, scaled down, under its found plan on eight virtual ranks: the same numbers as one process."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod

import numpy as np
import pytest
from budgets import limited

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import TINY, ZOO, build

SLOW = {"bert-large", "inception-v3", "resnet101"}
WITHOUT_LOSS = {"linear-training", "mlp-unity-training"}


def names(slow: set[str], without: set[str]) -> list[object]:
    return [pytest.param(n, marks=[pytest.mark.slow] if n in slow else []) for n in sorted(ZOO) if n not in without]


def free_links() -> Machine:
    """Eight devices between which moving costs next to nothing: plans of small graphs split everything they can."""
    machine = load_machine("cloud-a100:2x4")
    levels = tuple(replace(level, latency=Fraction(0), bandwidth=1000 * level.bandwidth) for level in machine.levels)
    return replace(machine, levels=levels, device=replace(machine.device, launch=Fraction(0)))


def check(graph: Graph) -> None:
    """Plan, run on eight ranks, compare.  At least half of the operators must be split."""
    planned = plan_graph(graph, free_links(), space("complete,uneven"), limit=limited(5))
    assert planned.plan is not None
    split = [name for name, placement in planned.plan.choices.operators if prod(placement.matrix[-1]) < 8]
    assert len(split) > 0.5 * len(graph.operators)
    values = random_inputs(graph, 5)
    found = run_virtual(lower(graph, (2, 4), planned.plan.choices), values).outputs
    for output, expected in run_graph(graph, values).items():
        np.testing.assert_allclose(found[output], expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", names(SLOW, set()))
def test_a_plan_on_eight_ranks_equals_one_process(name: str) -> None:
    check(build(name, **TINY[name]))


@pytest.mark.parametrize(
    "name",
    names(
        SLOW | {"alexnet", "bert-tiny", "llama", "moe", "resnext50", "rnnlm", "transformer", "vit"},
        WITHOUT_LOSS | {"bert-large"},
    ),
)
def test_a_training_step_on_eight_ranks_equals_one_process(name: str) -> None:
    """Loss, and every weight and moment after one step of Adam."""
    check(build_step(build(name, **TINY[name]), "adam").graph)


def test_experts_that_do_not_fit_are_split_and_tokens_travel() -> None:
    """With room for all experts on a device the batch is split; with room for a quarter of them, tokens go to their
    experts and come back.
    """
    graph = build("moe", layers=1, batch=16, sequence=1024)
    machine, found = load_machine("cloud-a100:1x8"), {}
    for limit in (None, 2 << 30):
        planned = plan_graph(graph, machine, space("complete"), limit, limit=limited(30))
        assert planned.plan is not None
        placement = planned.plan.choices.of_operator("layer0.ffn.gate")
        found[limit] = (
            dict(zip(placement.axes, placement.matrix))["e"],
            {m.collective for m in planned.plan.communication},
        )
    assert found[None] == ((1, 1), {"none"})
    split, collectives = found[2 << 30]
    assert split[1] == 4 and "all-to-all" in collectives
