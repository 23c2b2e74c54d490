"""Attention split over batch, heads, groups, queries and keys: the values of one process, the bytes of the known
schemes, plans that are proved.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_run import check_run, choose, draw_choices

from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.run import run_virtual
from shardproof.backends.lowering.program import lower
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.cost.assumptions import flags
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.attention import attention, with_fused_gradients
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.plan.box_tables import shape_of
from shardproof.verify.plan.entries import operator_entry
from shardproof.verify.plan.entry_tables import operator_times
from shardproof.verify.plan.plan import check_plan

BATCH, SEQUENCE, KV, GROUP, HEAD, WIDTH = 2, 8, 2, 2, 4, 12


def layer(dtype: str = "float64", **options: int) -> Graph:
    """Grouped-query attention of x[b, s, m] over itself with its four projections."""
    g = Builder("layer", dtype)
    x = g.input("x", (BATCH, SEQUENCE, WIDTH))
    wq, wk = g.parameter("wq", (WIDTH, KV, GROUP, HEAD)), g.parameter("wk", (WIDTH, KV, HEAD))
    wv, wo = g.parameter("wv", (WIDTH, KV, HEAD)), g.parameter("wo", (KV, GROUP, HEAD, WIDTH))
    q = g.contract("q", "b s m, m h g d -> b s h g d", x, wq)
    k, v = (g.contract(n, "b t m, m h d -> b t h d", x, w) for n, w in (("k", wk), ("v", wv)))
    y = attention(g, "y", "b s h g d, b t h d, b t h e -> b s h g e", q, k, v, query="s", scale=0.5, **options)
    return g.build(g.contract("out", "b s h g e, h g e m -> b s m", y, wo))


GRAPHS = {
    "whole": lambda: layer(),
    "causal": lambda: layer(ahead=0),
    "blocks": lambda: layer(ahead=0, block=3),
    "window": lambda: layer(ahead=0, behind=2),
    "causal step": lambda: build_step(layer(ahead=0), "sgd").graph,
    "causal step with moments": lambda: build_step(layer(ahead=0), "adam").graph,
    "fused step": lambda: build_step(with_fused_gradients(layer()), "sgd").graph,
    "fused step in a window": lambda: build_step(with_fused_gradients(layer(ahead=0, behind=2)), "sgd").graph,
}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(GRAPHS)), st.sampled_from([(2, 2), (4,), (3,), (2, 3)]), st.integers(0, 10**6))
def test_any_choices_give_the_reference(name: str, hierarchy: tuple[int, ...], seed: int) -> None:
    graph = GRAPHS[name]()
    values = random_inputs(graph, seed)
    found = run_virtual(lower(graph, hierarchy, draw_choices(graph, hierarchy, np.random.default_rng(seed))), values)
    expected = run_graph(graph, values)
    assert {*found.outputs} == {*expected} == {*graph.results} and all(t.fits for t in found.traffic)
    for tensor, array in expected.items():
        np.testing.assert_allclose(found.outputs[tensor], array, rtol=1e-9, atol=1e-10)


def alone(queries: int, keys: int, heads: int = KV, **options: int) -> Graph:
    g = Builder("alone", "float64")
    q, k, v = (
        g.map(n, "identity", g.input(f"{n}.in", (heads, m, HEAD)))
        for n, m in (("q", queries), ("k", keys), ("v", keys))
    )
    return g.build(attention(g, "y", "h s d, h t d, h t e -> h s e", q, k, v, query="s", **options))


def test_queries_split_receive_what_ring_attention_passes_on() -> None:
    """Every one of n ranks gets the keys and values of the n - 1 others once, and nothing else moves."""
    ranks, tokens = 4, 16
    graph = alone(tokens, tokens, ahead=0)
    table = {n: {graph.operator(n).output.axes[1]: (ranks,)} for n in ("q", "k", "v")}
    table |= {"y": {"s": (ranks,)}, "tensor:y": {"1": (ranks,)}}
    moved = {t.place: t for t in check_run(graph, (ranks,), choose(graph, (ranks,), table)).traffic if any(t.counted)}
    ring = (ranks - 1) * (tokens // ranks) * KV * HEAD
    assert {p: t.counted for p, t in moved.items()} == {"k to input 1 of y": (ring,), "v to input 2 of y": (ring,)}


def test_keys_split_reduce_two_numbers_per_row_and_the_result() -> None:
    """Flash decoding: one query, keys where they are; maximum, sum and the partial results are all-reduced."""
    ranks, tokens, heads = 4, 16, 4
    graph = alone(1, tokens, heads)
    table = {n: {graph.operator(n).output.axes[1]: (ranks,)} for n in ("k", "v")} | {"y": {"t": (ranks,)}}
    moved = {t.place: t for t in check_run(graph, (ranks,), choose(graph, (ranks,), table)).traffic if any(t.counted)}
    assert {p: t.counted for p, t in moved.items()} == {
        "statistics of y": (2 * 2 * (ranks - 1) * heads // ranks,),
        "y to its copy": (2 * (ranks - 1) * heads * HEAD // ranks,),
    }


def test_fused_gradients_split_over_keys_on_four_ranks() -> None:
    """Parts of the keys give parts of every gradient, which add up to those of one process; no statistics travel."""
    graph = build_step(with_fused_gradients(layer(ahead=0)), "sgd").graph
    graph = replace(graph, outputs=graph.results, state=())
    ranks = 4
    (op,) = (o for o in graph.operators if o.function == "attention_gradients")
    for split in ("t", "s"):
        table = {n: {graph.operator(n).output.axes[1]: (ranks,)} for n in ("k", "v")} | {op.name: {split: (ranks,)}}
        moved = {t.place: t for t in check_run(graph, (ranks,), choose(graph, (ranks,), table)).traffic}
        summed = 2 * (ranks - 1) * prod(graph.tensor(op.output.tensor).shape) // ranks
        assert moved[f"{op.output.tensor} to its copy"].counted == (summed,)
        assert not any(moved[p].counted[0] for p in moved if p == f"statistics of {op.name}")


def test_fused_gradients_take_six_products_for_nine() -> None:
    """lse, then five products for all gradients, where one operator per gradient computes its scores again."""
    apart, fused = (build_step(g, "sgd").graph for g in (layer(ahead=0), with_fused_gradients(layer(ahead=0))))
    pairs = BATCH * KV * GROUP * SEQUENCE * (SEQUENCE + 1) // 2
    work = [
        sum(g.work(o) for o in g.operators if o.name.startswith("grad:y/") or o.function.startswith("attention_"))
        - sum(g.work(o) for o in g.operators if o.name == "grad:y/delta")
        for g in (apart, fused)
    ]
    assert work == [pairs * (9 * 2 * HEAD + 12 + 10 + 14 + 14), pairs * (6 * 2 * HEAD + 12 + 14)]


def test_the_slowest_rank_of_a_causal_mask_is_priced() -> None:
    """Cut in n blocks of queries, the last one sees (2 n - 1) / n^2 of the pairs of the square; half of them are
    computed in all."""
    tokens, machine = 64, load_machine("localhost:4")
    planning = build(alone(tokens, tokens, ahead=0), machine, space("complete"))
    v = planning.operators["y"]
    costs = planning.costs[v]
    assert costs is not None
    axes, placements = planning.decisions[v].axes, planning.decisions[v].placements
    flops = {tuple(row): int(f) for row, f in zip(placements[:, :, 0].tolist(), costs.flops, strict=True)}
    each, rest = 4 * HEAD + 12, (axes.index("s"), axes.index("h"))
    by_queries, by_heads = [1] * placements.shape[1], [1] * placements.shape[1]
    by_queries[rest[0]], by_heads[rest[1]], by_heads[-1] = 4, 2, 2
    last = sum(i + 1 for i in range(48, 64))
    assert flops[tuple(by_queries)] == KV * each * last
    assert flops[tuple(by_heads)] == each * tokens * (tokens + 1) // 2


def test_bands_of_equal_shape_have_prices_of_their_own() -> None:
    """What the caches give for operators that differ in a band alone is what the checker gives for each, in every
    placement."""
    g = Builder("bands", "float64")
    q, k, v = (g.input(n, (KV, 8, HEAD)) for n in "qkv")
    bands = [
        {},
        {"ahead": 0},
        {"ahead": 3},
        {"behind": 1},
        {"ahead": 0, "behind": 1},
        {"ahead": -2},
        {"block": 3, "ahead": 0},
    ]
    made = [
        attention(g, f"y{i}", "h s d, h t d, h t e -> h s e", q, k, v, query="s", **band)
        for i, band in enumerate(bands)
    ]
    planning = build(g.build(*made), load_machine("cloud-a100:2x2"), space("complete,uneven"))
    seen = set()
    for name in made:
        decision, costs = planning.decisions[planning.operators[name]], planning.costs[planning.operators[name]]
        assert costs is not None
        op = planning.graph.operator(name)
        times = [
            operator_entry(op, planning.graph, decision.placement(i), planning.machine, planning.problem.scale)
            for i in range(decision.placements.shape[0])
        ]
        assert costs.times.tolist() == times
        shape = shape_of(op, planning.graph, decision.axes)
        whole = operator_times(shape, decision.placements, planning.machine, planning.problem.scale)
        assert whole.tolist() == times
        seen.add(tuple(costs.flops.tolist()))
    assert len(seen) == len(bands)


def test_contiguous_queries_are_an_assumption() -> None:
    machine, where = load_machine("localhost:2"), space("complete")
    assert "contiguous-queries(1: y)" in flags(layer(ahead=0), machine, where, None, True)
    assert not [f for f in flags(layer(), machine, where, None, True) if f.startswith("contiguous")]
    assert "unsplit-axes(2: y.e y.d)" in flags(layer(), machine, where, None, True)


@pytest.mark.parametrize("name", ["causal", "causal step", "fused step"])
def test_plans_are_proved(name: str) -> None:
    forward = layer("float32", ahead=0)
    forward = with_fused_gradients(forward) if name == "fused step" else forward
    graph = forward if name == "causal" else build_step(forward, "adam").graph
    found = plan_graph(graph, load_machine("localhost:4"), memory_limit=1 << 20)
    checked = check_plan(write_plan(None, found.plan))
    assert checked.results and all(r.verdict is Verdict.PROVED for r in checked.results)
