"""Expert parallelism as layouts: the axis of experts split over ranks, what is derived to move, and steps that run so.

Without capacity (grouped products), ranks that hold some of the experts read all tokens of their group and leave
partial sums: tokens are gathered, sums reduced.  With places (`building.slots`), tokens change from their own split to
that of experts: an all-to-all, of as many elements as places were set aside.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from test_run import choose

from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.launch import mpi_available, run_mpi
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.models.communication.choices import Choices, needs_copy
from shardproof.models.communication.resharding import analyse
from shardproof.models.program.graph import Graph
from shardproof.models.program.operators import NodeKind
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.building.digits import split_digits
from shardproof.models.sources.building.slots import Places, with_slots
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import TINY, build

RANKS, GROUPS, LENGTH, EXPERTS, WIDTH, HIDDEN = 4, 4, 6, 4, 3, 5


def layer(places: Places | None = None) -> Graph:
    """Points through their experts and back: a sum over all of it, to be minimised."""
    g = Builder("experts", "float64")
    points = GROUPS * LENGTH
    x, ids = g.parameter("x", (GROUPS, LENGTH, WIDTH)), g.input("ids", (GROUPS, LENGTH), "int64")
    rows, chosen = g.view("rows", x, (points, WIDTH)), g.view("chosen", ids, (points,))
    up, down = g.parameter("up", (EXPERTS, WIDTH, HIDDEN)), g.parameter("down", (EXPERTS, HIDDEN, WIDTH))
    y = g.map(
        "active", "silu", g.grouped_product("h", "s k, e k n, s -> s n", rows, up, chosen, rows="e"), text="s n -> s n"
    )
    y = g.grouped_product("y", "s k, e k n, s -> s n", y, down, chosen, rows="e")
    graph = g.build(g.view("back", y, (GROUPS, LENGTH, WIDTH)))
    return split_digits(graph if places is None else with_slots(graph, places)).graph


def expected(values: dict[str, np.ndarray], capacity: int) -> np.ndarray:
    """One point after another, as long as its expert has a place in its group."""
    out = np.zeros((GROUPS, LENGTH, WIDTH))
    for g in range(GROUPS):
        taken = Counter()
        for i, e in enumerate(values["ids"][g].tolist()):
            taken[e] += 1
            if taken[e] <= capacity:
                h = values["x"][g, i] @ values["up"][e]
                out[g, i] = (h / (1 + np.exp(-h))) @ values["down"][e]
    return out


@pytest.mark.parametrize("percent", [0, 50, 100, 200])
def test_points_take_places_one_by_one(percent: int) -> None:
    graph = layer(Places(percent))
    assert not any(op.kind is NodeKind.GROUPED for op in graph.operators)
    values = random_inputs(graph, 3)
    capacity = -(-percent * LENGTH // (100 * EXPERTS)) if percent else LENGTH
    (y,) = graph.outputs
    want = expected(values, capacity)
    np.testing.assert_allclose(run_graph(graph, values)[y].reshape(want.shape), want, rtol=1e-12)
    assert (np.abs(want - expected(values, LENGTH)).max() > 0) == (0 < capacity < 4)


def test_gradients_with_places_for_all_are_those_without_capacity() -> None:
    free, held = (build_step(layer(p), "sgd") for p in (None, Places()))
    values = random_inputs(free.graph, 5)
    found = [run_graph(s.graph, values, keep=[g for _, g in s.trained]) for s in (free, held)]
    for (name, a), (again, b) in zip(sorted(free.trained), sorted(held.trained), strict=True):
        assert name == again
        np.testing.assert_allclose(found[0][a], found[1][b], rtol=1e-11, atol=1e-13)


def by_experts(graph: Graph, ranks: int) -> Choices:
    """Experts over the ranks where an operator has them, else the first axis of as many places as there are ranks."""
    table: dict[str, dict[str, tuple[int, ...]]] = {}
    for op in graph.operators:
        free = [a.name for a in op.axes if a.splittable and a.extent == ranks]
        mine = [a for a in free if a in ("e", "e'") and (a == "e'" or op.kind is NodeKind.GROUPED)]
        if mine or free:
            table[op.name] = {(mine or free)[0]: (ranks,)}
    for name in needs_copy(graph):
        if graph.tensor(name).shape[:1] == (ranks,):
            table[f"tensor:{name}"] = {"0": (ranks,)}
    return choose(graph, (ranks,), table)


def moved(graph: Graph, choices: Choices) -> Counter[str]:
    """Kinds of resharding."""
    found = (
        analyse(m.plan.source, m.plan.target) for m in build_program(graph, (RANKS,), choices, Options()).movements
    )
    return Counter(a.collective for a in found if a.collective != "none")


def test_dispatch_and_combine_are_all_to_alls() -> None:
    """Forward and backward, each of all rows but a rank's own."""
    graph = layer(Places())
    kinds = moved(graph, by_experts(graph, RANKS))
    assert kinds == {"all-to-all": 2, "all-gather": 1}  # of rows, there and back; and of the experts' numbers
    step = build_step(graph, "sgd").graph
    program = build_program(step, (RANKS,), by_experts(step, RANKS), Options())
    exchanges = [m for m in program.movements if analyse(m.plan.source, m.plan.target).collective == "all-to-all"]
    assert len(exchanges) >= 4
    rows = GROUPS // RANKS * EXPERTS * LENGTH * WIDTH  # of a rank's groups, at all experts
    for m in exchanges:
        if step.tensor(m.tensor).elements == RANKS * rows:
            assert analyse(m.plan.source, m.plan.target).loads == (rows * (RANKS - 1) // RANKS,)


def test_without_capacity_tokens_are_gathered_and_sums_reduced() -> None:
    graph = build("moe", **{**TINY["moe"], "batch": RANKS, "layers": 1, "capacity_percent": 0})
    kinds = moved(graph, by_experts(graph, RANKS))
    assert set(kinds) == {"all-gather", "reduce-scatter"} and min(kinds.values()) >= 2


def training(name: str) -> Graph:
    if name == "places":
        return build_step(layer(Places()), "adam").graph
    if name == "grouped":
        return build_step(layer(), "adam").graph
    options = {**TINY["moe"], "batch": RANKS, "layers": 1, "capacity_percent": 0}
    return build_step(build("moe", **options), "adam").graph


@pytest.mark.parametrize("name", ["places", "grouped", "model"])
def test_a_step_on_four_ranks_is_that_of_one_process(name: str) -> None:
    """Bytes counted are bytes priced, or fewer where parts are not equal."""
    graph = training(name)
    values = random_inputs(graph, 11)
    result = run_virtual(build_program(graph, (RANKS,), by_experts(graph, RANKS), Options()), values)
    assert all(t.fits for t in result.traffic) and sum(t.counted[0] for t in result.traffic) > 0
    for tensor, wanted in run_graph(graph, values).items():
        np.testing.assert_allclose(result.outputs[tensor], wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
@pytest.mark.parametrize("name", ["places", "grouped"])
def test_a_step_on_four_processes(name: str) -> None:
    graph = training(name)
    values = random_inputs(graph, 12)
    out = run_mpi(graph, (RANKS,), by_experts(graph, RANKS), values)
    for tensor, wanted in run_graph(graph, values).items():
        np.testing.assert_allclose(out[tensor], wanted, rtol=1e-9, atol=1e-11)
