"""Foresees which functions of a job run on whole tensors on every rank: by the operators of the plan.

DTensor has no rule for them and `dtensor_functions` no way by parts, so every rank gathers their operands and computes
all of them.  A function is listed where the plan keeps an operand or the result of it in parts.  Attention is listed
where it is cut through queries or keys alone, and where its operands come out of a fused projection that the plan cuts
inside of a dimension: DTensor does not say that, and the projection stays whole.

The table is of our operators; a job counts what it does by functions of PyTorch (`model.functions.whole`), and
`verify-job` prints that.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

from ...models.communication.shardings import PlanShardings
from ...models.layout.sharding import Sharding
from ...models.program.attention import role
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
    inside = set(_cut_inside(graph, weights, found))
    for op in forward_operators(graph):
        part = PART.search(op.name)
        if (part is not None and int(part[1])) or not _without_rule(op, graph, weights, found, inside):
            continue
        held = [found.reads.get((op.name, i)) for i in range(len(op.inputs))] + [found.writes.get(op.name)]
        if any(s is not None and (any(s.splits) or s.partial) for s in held):
            tensors = dict.fromkeys([*(a.tensor for a in op.inputs), op.output.tensor])
            size = sum(graph.tensor(t).elements * graph.tensor(t).element_bytes for t in tensors)
            out.append(Whole(PART.sub("", op.name), op.function, size))
    return tuple(out)


def _without_rule(op: Operator, graph: Graph, weights: dict[str, str], found: PlanShardings, inside: set[str]) -> bool:
    if op.function in WHOLE or op.kind in KINDS:
        return True
    if op.kind is NodeKind.GATHER:  # rows of a weight by numbers have a rule, other tables and picked elements do not
        return op.inputs[0].tensor not in weights and not _label(op, graph)
    if op.kind is NodeKind.ATTENTION:
        return not _by_rows(op, found.writes.get(op.name)) or any(
            _comes_from(graph, a.tensor, inside) for a in op.inputs
        )
    return False


def _cut_inside(graph: Graph, weights: dict[str, str], found: PlanShardings) -> Iterator[str]:
    """Results of projections that the plan cuts inside of their last dimension, behind a digit that is not cut through:
    what `dtensor_runtime.unfolded` does not say.
    """
    for op in forward_operators(graph):
        weight = next((a for a in op.inputs if a.tensor in weights), None)
        held = found.writes.get(op.name)
        if op.kind is not NodeKind.CONTRACT or weight is None or held is None:
            continue
        shape, size, group = graph.tensor(op.output.tensor).shape, 1, 0
        out = prod(op.axis(a).extent for a in weight.axes if a in op.output.axes)
        while group < len(shape) and size < out:
            group += 1
            size *= shape[len(shape) - group]
        whole = True
        for n, names in zip(shape[len(shape) - group :], held.splits[len(shape) - group :], strict=True):
            if names and not whole:
                yield op.output.tensor
                break
            whole = whole and found.mesh.size(names) == n


def _comes_from(graph: Graph, tensor: str, sources: set[str]) -> bool:
    """Whether a tensor is one of some, or made of one by additions and copies."""
    writer = graph.writer()
    seen: set[str] = set()
    waiting = [tensor]
    while waiting:
        t = waiting.pop()
        if t in sources:
            return True
        op = graph.operators[writer[t]] if t in writer and t not in seen else None
        seen.add(t)
        if op is not None and (op.function in ("add", "copy", "identity", "cast") or op.kind is NodeKind.LAYOUT):
            waiting += [a.tensor for a in op.inputs]
    return False


def _label(op: Operator, graph: Graph) -> bool:
    """Whether an operator picks the label's entry of log_softmax: part of a cross entropy."""
    writer = {o.output.tensor: o for o in graph.operators}
    above = writer.get(op.inputs[0].tensor)
    return above is not None and above.function == "log_softmax"


def _by_rows(op: Operator, held: Sharding | None) -> bool:
    """Whether attention is cut along its rows, if at all: batch and heads."""
    if held is None or not any(held.splits):
        return True
    queries = {*role(op, "query"), *role(op, "value_feature")}
    return any(names and axis not in queries for axis, names in zip(op.output.axes, held.splits, strict=False))


def whole_text(whole: tuple[Whole, ...]) -> str:
    """Lines of a docstring."""
    lines = [f"    {in_docstring(w.operator)}: {w.function}, {bytes_text(w.bytes)}" for w in whole]
    return "\n".join(["Operators that run on whole tensors on every rank, as DTensor has no rule for them:", *lines])
