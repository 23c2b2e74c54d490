"""Muon: momentum of a matrix, made nearly orthogonal by Newton and Schulz's iteration in bfloat16,
is its update.

    m := p m + (1 - p) g;   u = m,  or with nesterov  (1 - p) g + p m
    X = bf16(u) / max(|bf16(u)|, epsilon);   if X has more rows than columns, X' takes its place
    `iterations` times:   A = X X';   B = b A + c A A;   X := a X + B X          each product rounded once, to bfloat16
    w := (1 - rate decay) w - r X,    r = rate sqrt(max(1, rows / columns)),  or  0.2 rate sqrt(max(rows, columns))

as torch.optim.Muon computes.  X keeps the layout of the weight: what is transposed is only how products read it.  Where
the columns are split, A is the one thing that is added up; where the rows are, X is what is brought together.

Source: Jordan et al., Muon: an optimizer for hidden layers in neural networks (2024); Liu et al., Muon is scalable for
LLM training (2025), for the second r; torch.optim.Muon of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Final

from ...program.graph import Graph, GraphError, Role
from ...program.index import Access, Axis, Combine, access
from ...program.operators import NodeKind, Operator
from .settings import Settings
from .updates import Update, WeightUpdate, dimensions_of

HALF: Final = "bfloat16"


def muon(made: WeightUpdate, gradient: str, settings: Settings) -> Update:
    """The update of one matrix.  Raises `GraphError` for a weight that is no matrix."""
    weight, w = made.weight, made.weight.name
    found = dimensions_of(weight, made.names, 2)
    if found is None or found[0]:
        stated = weight.source_shape or weight.shape
        raise GraphError(
            f"parameter {w!r}",
            f"has shape {stated}; muon updates matrices: give it to another optimizer, such as adamw",
        )
    _, rows, columns = found
    extent = made.extents
    high, across = prod(extent[a] for a in rows), prod(extent[a] for a in columns)

    def number(key: str) -> float:
        return settings.number("muon", key)

    (m, kept), momentum = made.state_tensor("muon_m"), number("momentum")
    u = made.operator(f"{m}.next", "adam_moment1", (m, gradient), kept, beta1=momentum)
    if number("nesterov"):
        u = made.operator(f"{w}.muon.nesterov", "adam_moment1", (gradient, u), kept, beta1=1 - momentum)
    x = _orthogonal(made, u, columns if high > across else rows, settings)
    ratio = 0.2 * sqrt(max(high, across)) if number("match_rms") else sqrt(max(1.0, high / across))
    rate, decay = number("rate") * ratio, number("decay")
    if kept == "float64":
        x = made.operator(f"{w}.muon.wide", "cast", (x,), kept, dtype=kept)
    if decay:
        x = made.operator(f"{w}.muon.decayed", "decayed_gradient", (x, w), kept, decay=decay / ratio)
    made.operator(f"{w}.next", "sgd_update", (w, x), weight.dtype, rate=rate)
    return made.done()


def _orthogonal(made: WeightUpdate, u: str, short: Sequence[str], settings: Settings) -> str:
    """The iteration.  `short`: dimensions of the shorter side, whose Gram matrices are formed."""
    name, extent = f"{made.weight.name}.muon", made.extents
    first = made.operator(f"{name}.half", "cast", (u,), HALF, dtype=HALF)
    every = [Axis(a, n, Combine.SUM) for a, n in extent.items()]
    squares = made.operator_result(f"{name}.squares", "product", every, [access(first, *made.names)] * 2, (), "float32")
    norm = made.operator_result(f"{name}.norm", "sqrt", (), [access(squares)], (), HALF)
    norm = made.operator_result(
        f"{name}.least", "clip", (), [access(norm)], (), HALF, low=settings.number("muon", "epsilon")
    )
    whole = [Axis(a, n) for a, n in extent.items()]
    reads = [access(first, *made.names), access(norm)]
    x = made.operator_result(f"{name}.0", "divide", whole, reads, made.names, HALF)

    second, third = ({a: a + mark for a in short} for mark in ("'", "''"))
    row, column, inner = tuple(short), tuple(second.values()), tuple(third.values())
    sides = [Axis(a, extent[a]) for a in short] + [Axis(second[a], extent[a]) for a in short]
    summed = [Axis(third[a], extent[a], Combine.SUM, False) for a in short]
    a, b, c = settings.coefficients
    third_c = made.operator_result(f"{name}.c", "constant", (), (), (), "float32", values=(float(c).hex(),))
    for k in range(1, int(settings.number("muon", "iterations")) + 1):
        long = [Axis(d, n, Combine.SUM) for d, n in extent.items() if d not in short]
        reads = [access(x, *made.names), _renamed(x, made.names, second)]
        gram = made.operator_result(f"{name}.{k}.gram", "product", [*sides, *long], reads, (*row, *column), HALF)
        reads = [access(gram, *row, *inner), access(gram, *inner, *column), access(third_c)]
        reads.append(access(gram, *row, *column))
        step = made.operator_result(
            f"{name}.{k}.step",
            "fused_product",
            [*sides, *summed],
            reads,
            (*row, *column),
            HALF,
            factors=2,
            epilogue=("multiply", "decayed_gradient"),
            decay=b,
        )
        reads = [access(step, *row, *inner), _renamed(x, made.names, third), access(x, *made.names)]
        x = made.operator_result(
            f"{name}.{k}",
            "fused_product",
            [*whole, *summed],
            reads,
            made.names,
            HALF,
            factors=2,
            epilogue=("decayed_gradient",),
            decay=a,
        )
    return x


def _renamed(tensor: str, names: Sequence[str], other: Mapping[str, str]) -> Access:
    return access(tensor, *(other.get(a, a) for a in names))


def hidden_matrices(graph: Graph, trained: Sequence[str]) -> tuple[str, ...]:
    """Which trained weights muon is for: matrices, but not tables that rows are picked from (embeddings, and heads tied
    to them) nor the last ones before the loss (the head).

    >>> from ..zoo import build
    >>> hidden_matrices(build("mlp-unity"), ("fc1.weight", "fc2.weight"))
    ('fc1.weight',)
    """
    candidates = set(trained)
    weight = {t.name: t.name for t in graph.tensors if t.role is Role.PARAMETER and t.name in candidates}
    for op in graph.operators:
        if op.function == "cast" and op.inputs[0].tensor in weight:
            weight[op.output.tensor] = weight[op.inputs[0].tensor]
    wide = {w for w in candidates if len(graph.tensor(w).source_shape or graph.tensor(w).shape) > 1}
    left_out: set[str] = set()
    last: dict[str, bool] = {}
    followed: set[str] = set()
    for op in reversed(graph.operators):
        read = {weight[a.tensor] for a in op.inputs if a.tensor in weight}
        if op.kind is NodeKind.GATHER:
            left_out |= read
        multiplied = _multiplies(op) and bool(read & wide)
        if multiplied:
            for w in read & wide:
                last[w] = last.get(w, True) and op.output.tensor not in followed
        if multiplied or op.output.tensor in followed:
            followed |= {a.tensor for a in op.inputs if a.tensor not in weight}
    left_out |= {w for w, none_follows in last.items() if none_follows}
    names = [w for w in trained if w in last and w not in left_out]
    return tuple(w for w in names if _matrix(graph, w))


def _multiplies(op: Operator) -> bool:
    return op.kind in (NodeKind.CONTRACT, NodeKind.GROUPED) and bool(op.reduction_axes)


def _matrix(graph: Graph, name: str) -> bool:
    t = graph.tensor(name)
    source = t.shape if t.source_shape is None else t.source_shape
    found = dimensions_of(t, tuple(f"i{k}" for k in range(len(t.shape))), 2)
    return len(source) == 2 and found is not None and not found[0]
