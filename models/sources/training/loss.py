"""What is minimised when the graph does not say: a loss added to its only output.

cross entropy        - mean over positions of log_softmax(logits)[label];  `labels`: integers, a new input.  When the
                     output is a softmax (its argument are the logits) or log_softmax over its last axis, and when it is
                     a table of logits: a contraction (perhaps plus bias) with one row per example, or one whose last
                     axis is the vocabulary `v`; a single column is a regression
mean squared error   mean of (output - target)^2;  `target`: a new input of the output's shape.  In every other case
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ...program.graph import Graph, GraphError, Role, Tensor
from ...program.index import Access, Axis, Combine, access
from ...program.operators import NodeKind, Operator
from .backward import dimension_names


def with_loss(graph: Graph, loss: str | None = None) -> tuple[Graph, str, str]:
    """(graph whose only output is a scalar loss, the loss, what was chosen in words).

    Raises `GraphError` if `loss` is not a computed scalar, or the output to which a loss would be added is not unique.
    """
    computed = graph.writer()
    if loss is not None:
        if loss not in computed or graph.tensor(loss).shape != ():
            scalars = [t for t in computed if graph.tensor(t).shape == ()]
            raise GraphError(
                f"loss {loss!r}",
                f"is not a computed scalar of the graph; it has: "
                f"{', '.join(scalars[:10]) or 'none: leave --loss out and one is added'}",
            )
        return replace(graph, outputs=(loss,)), loss, f"the loss is {loss!r}"
    if len(graph.outputs) != 1:
        raise GraphError(
            f"graph {graph.name!r}", f"has {len(graph.outputs)} outputs; name the one scalar to be minimised"
        )
    (name,) = graph.outputs
    if name not in computed or not graph.tensor(name).dtype.startswith(("float", "bfloat")):
        raise GraphError(
            f"output {name!r}",
            "is not computed, or not a floating-point tensor: no loss can be added; make a floating-point scalar "
            "part of the model and name it with --loss",
        )
    if graph.tensor(name).shape == ():
        return graph, name, f"the loss is the output {name!r}"
    found = _logits(graph, graph.operators[computed[name]])
    return _squared_error(graph, name) if found is None else _cross_entropy(graph, *found)


def _logits(graph: Graph, op: Operator) -> tuple[str, str] | None:
    """(tensor, what it is: `logits` or `log_softmax`) where the output is a distribution or a table of logits over
    its last axis.
    """
    out = op.output.axes
    if op.function in ("softmax", "log_softmax") and op.over == out[-1:]:
        if op.function == "log_softmax":
            return op.output.tensor, "log_softmax"
        a = op.inputs[0]
        if tuple(i.single for i in a.index) == out:
            return a.tensor, "logits"
        return None
    writer = {o.output.tensor: o for o in graph.operators}
    last, at = out[-1:], op
    while at.function == "add" and (
        source := next((writer[a.tensor] for a in at.inputs if a.tensor in writer and len(a.index) == len(out)), None)
    ):
        at = source
    if (
        at.kind is NodeKind.CONTRACT
        and (len(out) == 2 or last == ("v",))
        and graph.tensor(op.output.tensor).shape[-1] > 1
    ):
        return op.output.tensor, "logits"
    return None


def _fresh(graph: Graph, *names: str) -> list[str]:
    taken = {t.name for t in graph.tensors} | {op.name for op in graph.operators}
    out = []
    for name in names:
        while name in taken:
            name += "'"
        out.append(name)
    return out


def _cross_entropy(graph: Graph, tensor: str, kind: str) -> tuple[Graph, str, str]:
    t = graph.tensor(tensor)
    *lead, classes = dimension_names(graph)[tensor]
    parallel = [Axis(a, n) for a, n in zip(lead, t.shape, strict=False)]
    labels, logs, picked, loss = _fresh(graph, "labels", "loss.log_softmax", "loss.picked", "loss")
    tensors, operators = [*graph.tensors, Tensor(labels, t.shape[:-1], "int32", Role.INPUT)], [*graph.operators]
    if kind == "logits":
        tensors.append(Tensor(logs, t.shape, t.dtype))
        axes = (*parallel, Axis(classes, t.shape[-1]))
        operators.append(
            Operator(
                logs,
                "log_softmax",
                axes,
                (access(tensor, *lead, classes),),
                access(logs, *lead, classes),
                (("over", (classes,)),),
            )
        )
    else:
        logs = tensor
    tensors += [Tensor(picked, t.shape[:-1], t.dtype), Tensor(loss, (), t.dtype)]
    axes = (*parallel, Axis(classes, t.shape[-1], Combine.SUM))
    operators.append(
        Operator(
            picked,
            "embedding",
            axes,
            (access(logs, *lead, classes), access(labels, *lead)),
            access(picked, *lead),
            (("rows", classes),),
        )
    )
    operators.append(_mean(loss, access(picked, *lead), t.shape[:-1], -1.0))
    words = f"the loss is the mean cross entropy of {tensor!r} against the integer input {labels!r}"
    return Graph(graph.name, tuple(tensors), tuple(operators), (loss,)), loss, words


def _squared_error(graph: Graph, tensor: str) -> tuple[Graph, str, str]:
    t = graph.tensor(tensor)
    target, squares, loss = _fresh(graph, "target", "loss.squares", "loss")
    names = dimension_names(graph)[tensor]
    axes = tuple(Axis(a, n) for a, n in zip(names, t.shape, strict=True))
    squared = Operator(
        squares, "squared_difference", axes, (access(tensor, *names), access(target, *names)), access(squares, *names)
    )
    tensors = (
        *graph.tensors,
        Tensor(target, t.shape, t.dtype, Role.INPUT, t.source_shape),
        Tensor(squares, t.shape, t.dtype),
        Tensor(loss, (), t.dtype),
    )
    words = f"the loss is the mean squared error of {tensor!r} against the input {target!r}"
    return (
        Graph(
            graph.name,
            tensors,
            (*graph.operators, squared, _mean(loss, access(squares, *names), t.shape, 1.0)),
            (loss,),
        ),
        loss,
        words,
    )


def _mean(name: str, read: Access, shape: tuple[int, ...], sign: float) -> Operator:
    axes = tuple(Axis(str(i.single), n, Combine.SUM) for i, n in zip(read.index, shape, strict=True))
    return Operator(name, "sum", axes, (read,), access(name), (("scale", sign / prod(shape)),))
