"""What is minimised: a loss that the graph returns, or one that is added to an output.

returned             the only floating-point scalar among the outputs; of several, the one called `loss`
cross entropy        - mean over positions of log_softmax(logits)[label];  `labels`: integers, a new input.  When the
                     output is a softmax (its argument are the logits) or log_softmax over its last axis, and when it is
                     a table of logits: a contraction (perhaps plus bias) with one row per example, one whose last axis
                     is the vocabulary `v`, or one value per token and row of the table that embeds the tokens; a single
                     column is a regression.  The label of a position is what is predicted there: a decoder's label is
                     the next token, and who runs the step shifts
mean squared error   mean of (output - target)^2;  `target`: a new input of the output's shape.  In every other case,
                     but for logits of tokens over something else than the vocabulary: their loss is not guessed

`--loss` names a scalar, or one of the two that are added, where needed with the output: `squared-error:pooled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final

from ...program.graph import Graph, GraphError, Role, Tensor
from ...program.index import Access, Axis, Combine, access
from ...program.operators import NodeKind, Operator
from ..building.dimensions import dimension_names

ADDED: Final = ("cross-entropy", "squared-error")
"""What `--loss` may add to an output."""


def with_loss(graph: Graph, loss: str | None = None) -> tuple[Graph, str, str]:
    """(graph whose only output is a scalar loss, the loss, what was chosen in words).

    Raises `GraphError` if `loss` is not a computed scalar, or the output to which a loss would be added is not unique.

    >>> from ..zoo import build
    >>> with_loss(build("mlp-unity"))[2]
    "the loss is the mean cross entropy of 'fc2' against the integer input 'labels'"
    """
    computed = graph.writer()
    kind, _, named = (loss or "").partition(":")
    if loss is not None and (kind not in ADDED or loss in computed):
        if loss not in computed or graph.tensor(loss).shape != ():
            scalars = [t for t in computed if graph.tensor(t).shape == ()]
            raise GraphError(
                f"loss {loss!r}",
                f"is not a computed scalar of the graph; it has: "
                f"{', '.join(scalars[:10]) or 'none: leave --loss out and one is added'}; {' and '.join(ADDED)} are "
                f"added where --loss says so",
            )
        return replace(graph, outputs=(loss,)), loss, f"the loss is {loss!r}"
    real = [o for o in graph.outputs if o in computed and graph.tensor(o).dtype.startswith(("float", "bfloat"))]
    if loss is None:
        scalars = [o for o in real if graph.tensor(o).shape == ()]
        found = RETURNED if RETURNED in scalars else scalars[0] if len(scalars) == 1 else None
        if found is not None:
            others = f", one of {len(graph.outputs)}" if len(graph.outputs) > 1 else ""
            return replace(graph, outputs=(found,)), found, f"the loss is the output {found!r}{others}"
        if scalars:
            raise GraphError(
                f"graph {graph.name!r}",
                f"returns {len(scalars)} scalars, none called {RETURNED!r}: {', '.join(scalars[:10])}; name the one to "
                f"be minimised with --loss",
            )
    name = _output(graph, real, named)
    logits = _logits(graph, graph.operators[computed[name]])
    if kind == "squared-error":
        return _squared_error(graph, name)
    if kind == "cross-entropy":
        return _cross_entropy(graph, *(logits or (name, "logits")))
    if logits is None and _scores(graph, name):
        raise GraphError(
            f"output {name!r}",
            f"holds {graph.tensor(name).shape[-1]} numbers per token, as many as no table of the tokens has rows: what "
            f"is wrong for them is not guessed.  Let the model return its loss (labels=), or give --loss {ADDED[0]} or "
            f"--loss {ADDED[1]}",
        )
    return _squared_error(graph, name) if logits is None else _cross_entropy(graph, *logits)


RETURNED: Final = "loss"
"""The scalar among several that is the loss."""


def _output(graph: Graph, real: Sequence[str], named: str) -> str:
    """The output to which a loss is added: the one named, the only one, or the only one that is a table of logits."""
    if named or len(graph.outputs) == 1:
        name = named or graph.outputs[0]
        if name not in real:
            raise GraphError(
                f"output {name!r}",
                "is not computed, or not a floating-point tensor: no loss can be added; make a floating-point scalar "
                "part of the model and name it with --loss",
            )
        return name
    computed = graph.writer()
    logits = [o for o in real if _logits(graph, graph.operators[computed[o]]) is not None]
    if len(logits) != 1:
        listed = [f"{o} {list(graph.tensor(o).source_shape or graph.tensor(o).shape)}" for o in graph.outputs[:10]]
        raise GraphError(
            f"graph {graph.name!r}",
            f"has {len(graph.outputs)} outputs; name the one scalar to be minimised with --loss, or say what is added "
            f"to which: --loss {ADDED[1]}:{graph.outputs[0]}; or let the model return its loss (labels among its "
            f"example inputs); outputs: {', '.join(listed)}{', ..' if len(graph.outputs) > 10 else ''}",
        )
    return logits[0]


def _tokens(graph: Graph) -> list[tuple[tuple[int, ...], int]]:
    """(shape of the ids, rows of the table) for integer inputs that pick rows of a weight."""
    out = []
    for op in graph.operators:
        if op.kind is NodeKind.GATHER:
            table, ids = (graph.tensor(a.tensor) for a in op.inputs)
            if ids.role is Role.INPUT and "int" in ids.dtype and table.role is Role.PARAMETER:
                out.append((ids.shape, op.axis(str(op.attribute("rows", ""))).extent))
    return out


def _scores(graph: Graph, name: str) -> bool:
    """Whether an output is a contraction, perhaps plus bias, with one row per token: logits of something."""
    shape = graph.tensor(name).shape
    at = _source(graph, graph.operators[graph.writer()[name]])
    per_token = any(len(shape) > len(ids) > 1 and shape[: len(ids)] == ids for ids, _ in _tokens(graph))
    return per_token and at.kind is NodeKind.CONTRACT


def _source(graph: Graph, op: Operator) -> Operator:
    """What an operator adds something to, through additions and casts."""
    writer = {o.output.tensor: o for o in graph.operators}
    rank, at = len(op.output.index), op
    while at.function in ("add", "cast") and (
        source := next((writer[a.tensor] for a in at.inputs if a.tensor in writer and len(a.index) == rank), None)
    ):
        at = source
    return at


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
    shape = graph.tensor(op.output.tensor).shape
    if (shape[:-1], shape[-1]) in _tokens(graph):
        return op.output.tensor, "logits"
    last, at = out[-1:], _source(graph, op)
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
