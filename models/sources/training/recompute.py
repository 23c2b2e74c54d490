"""Activation checkpointing (recomputation): inside a block, the reverse pass reads values computed again instead of
values kept since the forward pass.

    forward    x -> [ block: h_1 .. h_k ] -> y          h_i are freed as soon as the forward pass has read them
    reverse    x -> [ recompute:h_1 .. recompute:h_k ], then the adjoints of the block, which read these

Only what other blocks read (x, y) is kept.  A block is what shares a prefix that ends in a number: `layer3` of
`layer3.attention.query`, `encoder.0` of `encoder.0.linear1`; or the core of one attention, from the product that makes
its scores to the one that reads their softmax.  Operators computed again are ordinary operators with
placements of their own; those that no adjoint needs are dropped by `step.needed`.  The numbers are the same ones, bit
for bit in one process.

Sources: Chen et al., Training Deep Nets with Sublinear Memory Cost (2016); Korthikanti et al., Reducing Activation
Recomputation in Large Transformer Models (2022), section 5: the core of attention alone, "selective".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from ...program.graph import Graph, GraphError
from ...program.operators import NodeKind, Operator
from .backward import Backward

PREFIX: Final = "recompute:"

ATTENTION: Final = "attention"
"""What names the cores of attention; no block is called so, since blocks end in a number."""

_BLOCK: Final = re.compile(r"(.*?\d)(?:\.|$)", re.ASCII)

Blocks = Mapping[str, tuple[int, ...]]
"""Block -> positions of its operators."""


def blocks(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Blocks of a forward graph that keep something to themselves, in order of their first operators.

    >>> from ..zoo import build
    >>> list(blocks(build("bert-tiny")))
    ['layer0', 'layer1']
    """
    members: dict[str, list[int]] = {}
    for i, op in enumerate(graph.operators):
        if found := block_of(op.name):
            members.setdefault(found, []).append(i)
    kept = {name: tuple(at) for name, at in members.items()}
    return {name: at for name, at in kept.items() if inner(graph, at)}


def block_of(name: str) -> str | None:
    """The block of an operator, by its name.

    >>> block_of("encoder.0.linear1"), block_of("head")
    ('encoder.0', None)
    """
    found = _BLOCK.match(name)
    return None if found is None else found[1]


def inner(graph: Graph, block: Sequence[int]) -> set[str]:
    """Tensors that operators of the block write and nobody else reads or wants."""
    mine, readers = set(block), graph.readers()
    written = (graph.operators[i].output.tensor for i in block)
    return {t for t in written if readers[t] and t not in graph.outputs and all(i in mine for i, _ in readers[t])}


def attention_cores(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Softmax -> positions of the core of its attention: the product whose result it weighs, maps, and the product that
    reads it.  Attention that is one operator has none: it keeps no scores.

    >>> from ..zoo import build
    >>> graph = build("llama", layers=1, batch=1, sequence=16)
    >>> [graph.operators[i].name.rpartition(".")[2] for i in attention_cores(graph)["layer0.attention.softmax"]]
    ['scores', 'mask', 'softmax', 'context']
    """
    readers, writer = graph.readers(), graph.writer()

    def before(i: int) -> int | None:
        """The operator whose result this one changes: the first operand's."""
        return writer.get(graph.operators[i].inputs[0].tensor)

    def behind(i: int) -> int | None:
        """The only reader."""
        found = {j for j, _ in readers[graph.operators[i].output.tensor]}
        return found.pop() if len(found) == 1 else None

    found = {}
    for at, op in enumerate(graph.operators):
        if op.function == "softmax":
            first, last = (_walk(graph, at, step) for step in (before, behind))
            if first and last:
                found[op.name] = tuple(sorted((*first, at, *last)))
    return found


def _walk(graph: Graph, at: int, step: Callable[[int], int | None]) -> list[int]:
    """The maps on the way to a product, and the product; nothing where there is none."""
    out: list[int] = []
    while (found := step(at)) is not None and graph.operators[found].kind in _CORE:
        out.append(found)
        if graph.operators[found].kind is NodeKind.CONTRACT:
            return out
        at = found
    return []


_CORE: Final = (NodeKind.MAP, NodeKind.CONTRACT)


def select_blocks(graph: Graph, which: str) -> dict[str, tuple[int, ...]]:
    """The blocks that `which` names: `none`, `all`, `attention` (its cores), or globs over their names separated by
    commas.

    Raises `GraphError` for a glob that matches no block, and for a graph without attention.
    """
    if which == ATTENTION:
        if not (cores := attention_cores(graph)) and not any(op.kind is NodeKind.ATTENTION for op in graph.operators):
            raise GraphError(
                f"--recompute {which}",
                "there is no attention: no softmax between two products; give none, all or globs over blocks",
            )
        return cores
    known = {} if which == "none" else blocks(graph)
    if which == "none":
        return {}
    globs = ["*"] if which == "all" else [g.strip() for g in which.split(",")]
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in known):
            raise GraphError(
                f"--recompute {which}",
                f"no block is called like {glob!r}; blocks (operators that share a prefix ending in a number): "
                + (", ".join(list(known)[:20]) or "none in this graph"),
            )
    return {name: at for name, at in known.items() if any(fnmatchcase(name, g) for g in globs)}


def compute_again(b: Backward, block: Sequence[int]) -> None:
    """Emit the block once more; from here on the reverse pass reads the new values of its inner tensors."""
    graph, again = b.graph, inner(b.graph, block)
    for op in (graph.operators[i] for i in block):
        tensor = op.output.tensor
        if tensor in again:
            name = _free(PREFIX + tensor, b)
            b.tensors[name] = replace(b.tensors[tensor], name=name)
            b.operators.append(_clone(op, name, b))
            b.recomputed[tensor] = name


def _free(name: str, b: Backward) -> str:
    while name in b.tensors:
        name += "'"
    return name


def _clone(op: Operator, tensor: str, b: Backward) -> Operator:
    inputs = tuple(replace(a, tensor=b.recomputed.get(a.tensor, a.tensor)) for a in op.inputs)
    return replace(
        op,
        name=tensor if op.name == op.output.tensor else PREFIX + op.name,
        inputs=inputs,
        output=replace(op.output, tensor=tensor),
    )
