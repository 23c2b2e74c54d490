"""Figures 2, 10 and 16 of Unity (OSDI 2022): every strategy derived, costed, and found or proved worse than what is
returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from shardproof.formal.explain.parallel_graph import priced_graph
from shardproof.formal.rewriting.joint.growth import safe
from shardproof.formal.rewriting.joint.job import Joint
from shardproof.formal.rewriting.joint.solve import plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.restrict import restrict
from shardproof.formal.selection.solve import solve
from shardproof.models.communication.parallel_graph import Parallel
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.problem.claims import Status
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.verify.joint.derivation import wrong_derivation

WHERE = space("complete")
Split = Mapping[str, Mapping[str, int]]
"""Operator -> axis -> degree; other axes 1."""


def best_with(graph: Graph, machine: Machine, split: Split) -> tuple[Fraction, Planning, tuple[int, ...]]:
    """Cost of the cheapest plan in which some operators are split so, proved optimal among those."""
    planning = build(graph, machine, WHERE)
    domains = {}
    for name, degrees in split.items():
        v = planning.operators[name]
        d = planning.decisions[v]
        wanted = [degrees.get(a, 1) for a in d.axes]
        domains[v] = tuple(k for k, m in enumerate(d.placements.prod(axis=2).tolist()) if m[:-1] == wanted)
        assert domains[v], (name, d.axes)
    small = restrict(planning.problem, domains)
    answer = solve(small.inner)
    assert answer.status is Status.OPTIMAL and answer.cost is not None and answer.solution is not None
    return Fraction(answer.cost, planning.problem.scale), planning, small.solution_back(answer.solution)


def jointly(graph: Graph, machine: Machine) -> tuple[Fraction, Joint]:
    found = plan_jointly(graph, machine, WHERE, clock=Clock())
    assert found.answer.status is Status.OPTIMAL and found.answer.cost is not None
    return Fraction(found.answer.cost, found.planning.problem.scale), found


def test_figure_2() -> None:
    """784-512-10, 64 images, two devices.  (a) fused, data parallel; (b) not fused, the first sum split.  As in the paper
    (b) is cheaper; cheaper still, and proved the best of all equal programs, is the fused one with its columns split and
    the second sum split behind it: it moves as little as (b) and saves a pass over the activation.
    """
    graph, machine = zoo("mlp-unity-training"), load_machine("localhost:2")
    egraph, derivation = safe(graph)
    assert wrong_derivation(egraph, derivation) == ""
    fused = egraph.graph(egraph.close_modes({"relu1": "relu1~1"}))
    batch = {"relu1~1": {"b": 2}, "fc2": {"b": 2}, "fc1.dw": {"k": 2}, "fc2.dw": {"k": 2}}
    a, _, _ = best_with(fused, machine, {n: s for n, s in batch.items() if n in {o.name for o in fused.operators}})
    b, planning, x = best_with(graph, machine, {"fc1": {"k": 2}})
    assert {s.kind for c in priced_graph(planning, x).of.changes if c.writer == "fc1" for s in c.steps} >= {
        Parallel.REDUCE
    }
    best, found = jointly(graph, machine)
    assert best < b < a
    program, choices = found.planning.plan(found.answer.solution or ())
    first = choices.of_operator("relu1~1")
    assert dict(zip(first.axes, first.matrix, strict=False))["n"] == (2,)
    assert "relu1" not in {op.name for op in program.operators}


def test_figure_16_b() -> None:
    """DLRM without the concatenation: products with each table, added, are derived; in this cost model the first product
    of the top network does better with its activation fused, so all programs without the concatenation are proved worse.
    """
    graph, machine = zoo("dlrm", tables=3, batch=4096), load_machine("cloud-a100:1x2")
    egraph, derivation = safe(graph)
    assert wrong_derivation(egraph, derivation) == "" and "product-of-parts" in {s.rule for s in derivation.steps}
    best, _ = jointly(graph, machine)
    apart = []
    for node in egraph.nodes["top0"]:
        if node.function in ("sum_inputs", "product_sum"):
            program = egraph.graph(egraph.close_modes({"top0": node.name}))
            assert "features" not in {op.output.tensor for op in program.operators}
            apart.append(best_with(program, machine, {})[0])
    assert len(apart) == 2 and best < min(apart)


def test_figure_10() -> None:
    """Megatron's strategy of a layer: heads and columns split, then rows, a sum after each of both halves.  It is a plan of
    the space, whose parallel graph adds up at these two places only, and no better than the optimum.
    """
    graph, machine = zoo("transformer-layer"), load_machine("cloud-a100:1x2")
    heads = ("query", "query.bias_add", "query.scale", "key", "key.bias_add", "value", "value.bias_add", "scores")
    split: dict[str, Mapping[str, int]] = {f"layer.attention.{n}": {"h": 2} for n in (*heads, "softmax", "context")}
    split["layer.attention.output"] = {"h": 2}
    split |= {f"layer.ffn.{n}": {"f": 2} for n in ("up", "up.bias_add", "gelu", "down")}
    split |= {op.name: {} for op in graph.operators if op.name not in split}
    megatron, planning, x = best_with(graph, machine, split)
    sums = [c.writer for c in priced_graph(planning, x).of.changes for s in c.steps if s.kind is Parallel.REDUCE]
    assert sums == ["layer.attention.output", "layer.ffn.down"]
    assert [c for c in priced_graph(planning, x).of.changes if not c.given and c.steps and c.writer not in sums] == []
    optimum = solve(planning.problem)
    assert optimum.status is Status.OPTIMAL and optimum.cost is not None
    assert Fraction(optimum.cost, planning.problem.scale) <= megatron


def test_figure_16_a() -> None:
    """A training step in which some activations are fused and others are not, since their sums are split: cheaper than the
    program as it is and than the one with every activation fused.
    """
    graph, machine = build_step(zoo("mlp-8192", batch=2048, layers=4), "sgd").graph, load_machine("cloud-a100:1x8")
    best, found = jointly(graph, machine)
    egraph = found.planning.egraph
    relus = [op.output.tensor for op in graph.operators if op.function == "relu"]
    modes = found.planning.modes(found.answer.solution or ())
    fused = {t: n.name for t in relus for n in egraph.nodes[t] if n.function == "fused_product"}
    assert 0 < len([t for t in relus if modes[t] == t]) < len(relus)
    everything = egraph.graph(egraph.close_modes({**modes, **fused}))
    nothing = egraph.graph(egraph.close_modes({**modes, **{t: t for t in relus}}))
    costs = [best_with(g, machine, {})[0] for g in (graph, everything, nothing)]
    assert best <= min(costs) and best < costs[0] and best < costs[2]


def test_figure_16_c() -> None:
    """A bag of embeddings is a sum over its rows here, so splitting the bag, for which Unity needs a substitution, is a
    placement of the operator as it is; its sum stays open and is added up.
    """
    graph, machine = zoo("xdl", tables=2, batch=2048, bag=8, rows=1000), load_machine("cloud-a100:1x2")
    split, planning, x = best_with(graph, machine, {"table0": {"q": 2}})
    steps = [s.kind for c in priced_graph(planning, x).of.changes if c.writer == "table0" for s in c.steps]
    assert Parallel.REDUCE in steps
    best, _ = jointly(graph, machine)
    assert best <= split
