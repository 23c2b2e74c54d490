"""Strategies that people use, as strategy files for the transformers of the zoo.  Machine: two levels, nodes of GPUs.

data_parallel       batch over everything; what is left of a level replicates
megatron            heads and feed-forward width over the GPUs of a node, batch over nodes (Shoeybi et al., 2019)
context_parallel    sequence of the queries and of the dense layers over the GPUs, batch over nodes; keys and values
                    stay whole before the scores, as in ring attention without overlap

Everything not named (embeddings, copies of tensors) is completed by the solver, in the user's favour.
"""

from __future__ import annotations

from math import gcd

from shardproof.formal.plans.strategy import Rule, Split, Strategy
from shardproof.models.machine.machine import Machine
from shardproof.models.program.graph import Graph


def _over(axis: str, machine: Machine, level: int, ways: int) -> Split:
    return ((axis, ((machine.levels[level].name, ways),)),) if ways > 1 else ()


def _batch(graph: Graph, machine: Machine, levels: tuple[int, ...]) -> dict[int, int]:
    """Largest degree of the batch at each of the levels, outermost first."""
    left = next(a.extent for op in graph.operators for a in op.axes if a.name == "b")
    out = {}
    for j in levels:
        out[j] = gcd(left, machine.levels[j].size)
        left //= out[j]
    return out


def _levels(axis: str, machine: Machine, degrees: dict[int, int]) -> Split:
    row = tuple((machine.levels[j].name, d) for j, d in sorted(degrees.items()) if d > 1)
    return ((axis, row),) if row else ()


def _strategy(name: str, graph: Graph, split: dict[str, Split]) -> Strategy:
    return Strategy(tuple(Rule(op.name, split[op.name]) for op in graph.operators if op.name in split), name)


def data_parallel(graph: Graph, machine: Machine) -> Strategy:
    """Batch over all devices, as far as it can be divided."""
    b = _levels("b", machine, _batch(graph, machine, (0, 1)))
    return _strategy("data parallel", graph, {op.name: b for op in graph.operators})


def megatron(graph: Graph, machine: Machine) -> Strategy:
    """Operators with heads or the feed-forward width split it over the GPUs; the others are replicated there."""
    b = _levels("b", machine, _batch(graph, machine, (0,)))
    split = {}
    for op in graph.operators:
        if op.name.startswith("embedding."):
            continue
        inner = next((a for a in op.axes if a.name in ("h", "f")), None)
        split[op.name] = (
            *b,
            *(() if inner is None else _over(inner.name, machine, 1, gcd(inner.extent, machine.levels[1].size))),
        )
    return _strategy("megatron", graph, split)


def context_parallel(graph: Graph, machine: Machine) -> Strategy:
    """Operators with a sequence axis split it over the GPUs: `s` where there is one, else `t` (the keys' own
    projections).
    """
    b = _levels("b", machine, _batch(graph, machine, (0,)))
    split = {}
    for op in graph.operators:
        names = {a.name: a.extent for a in op.axes}
        axis = "s" if "s" in names else "t" if "t" in names else None
        split[op.name] = (
            *b,
            *(() if axis is None else _over(axis, machine, 1, gcd(names[axis], machine.levels[1].size))),
        )
    return _strategy("context parallel", graph, split)


KNOWN = {"data parallel": data_parallel, "megatron": megatron, "context parallel": context_parallel}
