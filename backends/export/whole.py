"""This module foresees which functions of a job run on whole tensors on every rank: by the operators of the plan.

DTensor has no rule for them and `dtensor_functions` no way by parts, so every rank gathers their operands and computes
all of them.  A function is listed where the plan keeps an operand or the result of it in parts.  The table is of our
operators; a job counts what it does by functions of PyTorch (`model.functions.whole`), and `verify-job` prints that.
"""

from __future__ import annotations

from typing import Final

from ...models.communication.shardings import PlanShardings
from ...models.layout.sharding import Sharding
from ...models.program.graph import Graph
from ...models.program.operators import NodeKind, Operator
from ...models.text import bytes_text
from .exported import Whole, in_docstring
from .modules import PART, forward_operators, weights_read

WHOLE: Final = frozenset(
    {
        "sort",
        "argsort",
        "top_k",
        "top_k_mask",
        "sort_values",
        "argmax",
        "argmin",
        "cumulative_sum",
        "cumulative_product",
    }
)
"""Functions of operators without a rule, whatever their layout."""

KINDS: Final = frozenset({NodeKind.SCATTER, NodeKind.GROUPED, NodeKind.SCAN, NodeKind.OPAQUE})
"""Kinds of operators without a rule."""


def runs_whole(graph: Graph, found: PlanShardings) -> tuple[Whole, ...]:
    """Operators of the first micro-batch that will run whole, in order, with the bytes of what is gathered."""
    weights, out = weights_read(graph), []
    for op in forward_operators(graph):
        part = PART.search(op.name)
        if (part is not None and int(part[1])) or not _without_rule(op, graph, weights, found):
            continue
        held = [found.reads.get((op.name, i)) for i in range(len(op.inputs))] + [found.writes.get(op.name)]
        if any(s is not None and (any(s.splits) or s.partial) for s in held):
            tensors = dict.fromkeys([*(a.tensor for a in op.inputs), op.output.tensor])
            size = sum(graph.tensor(t).elements * graph.tensor(t).element_bytes for t in tensors)
            out.append(Whole(PART.sub("", op.name), op.function, size))
    return tuple(out)


def _without_rule(op: Operator, graph: Graph, weights: dict[str, str], found: PlanShardings) -> bool:
    if op.function in WHOLE or op.kind in KINDS:
        return True
    if op.kind is NodeKind.GATHER:  # rows of a weight by numbers have a rule, other tables and picked elements do not
        return op.inputs[0].tensor not in weights and not _label(op, graph)
    if op.kind is NodeKind.ATTENTION:
        return not _by_batch(found.writes.get(op.name))
    return False


def _label(op: Operator, graph: Graph) -> bool:
    """Whether an operator picks the label's entry of log_softmax: part of a cross entropy."""
    writer = {o.output.tensor: o for o in graph.operators}
    above = writer.get(op.inputs[0].tensor)
    return above is not None and above.function == "log_softmax"


def _by_batch(held: Sharding | None) -> bool:
    return held is None or any(held.splits)


def whole_text(whole: tuple[Whole, ...]) -> str:
    """Lines of a docstring."""
    lines = [f"    {in_docstring(w.operator)}: {w.function}, {bytes_text(w.bytes)}" for w in whole]
    return "\n".join(["Operators that run on whole tensors on every rank, as DTensor has no rule for them:", *lines])
