"""Builds rows that are put in order, worked on one by one, and put back: the order is left out.

    order = argsort(ids),  back = argsort(order),  x' = x[f(order)],  y' = F(x'),  y = y'[back]

Where F works on every row by itself (its operators have the row axis as a parallel axis, read alone), rows may be
worked on in the order they came:  y = F(x[f(0, 1, ..)]).  The operators stay the same, with other operands, as copies
that `digits` removes:

    x[order]             x
    x[floor(order / k)]  every row of x repeated k times, which is an expansion
    y'[back]             y'

So a mixture of experts that sorts tokens by expert can be split over tokens, which an order over all of them forbids.
Applied only where every reader of an ordered tensor works row by row or puts it back.  Sums inside a row stay the same
sums, and nothing else is summed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from ...program.graph import Graph
from ...program.index import Access, Affine, Axis, access
from ...program.operators import NodeKind, Operator
from ...program.specified import with_specified
from .digits_cuts import groups, is_view
from .flat import used

_BY_ROW: Final = frozenset(
    {NodeKind.MAP, NodeKind.CONTRACT, NodeKind.REDUCE, NodeKind.GROUPED, NodeKind.GATHER, NodeKind.NORMALISE}
)


@dataclass
class _Ordered:
    """What is in the order of one `argsort`: tensor -> the dimension of the rows; operators that put rows in order, and
    that put them back; `rows`: how many.
    """

    rows: int
    tensors: dict[str, int] = field(default_factory=dict)
    sorted: dict[str, int] = field(default_factory=dict)
    back: list[str] = field(default_factory=list)


def without_sorting(graph: Graph) -> Graph:
    """The graph without orders that are undone.

    >>> from ...program.index import Combine, access
    >>> from .builder import Builder
    >>> g = Builder("g")
    >>> x, ids = g.input("x", (4, 2)), g.input("ids", (4,), "int64")
    >>> def order(name, of):
    ...     axis = [Axis("s", 4, None, False)]
    ...     return g.operator(name, "argsort", axis, [access(of, "s")], ["s"], {"over": ("s",)}, "int64")
    >>> def rows(name, table, at):
    ...     axes = [Axis("s", 4), Axis("m", 2), Axis("v", 4, Combine.SUM)]
    ...     reads = [access(table, "v", "m"), access(at, "s")]
    ...     return g.operator(name, "embedding", axes, reads, ["s", "m"], {"rows": "v"})
    >>> p = order("p", ids)
    >>> y = rows("y", g.map("e", "exp", rows("xs", x, p)), order("back", p))
    >>> [op.function for op in without_sorting(g.build(g.map("z", "negate", y))).operators]
    ['copy', 'exp', 'copy', 'negate']
    """
    for op in graph.operators:
        if op.function == "argsort" and len(op.output.index) == 1:
            found = _found(graph, op)
            if found is not None:
                graph = _rewritten(graph, found)
    return graph


def _found(graph: Graph, order: Operator) -> _Ordered | None:
    """Everything in this order, if all of it is put back; None otherwise."""
    name, rows = order.output.tensor, order.axes[0].extent
    found = _Ordered(rows)
    inverse = {
        op.output.tensor for op in graph.operators if op.function == "argsort" and op.inputs[0].tensor == name
    }  # the order of a permutation is its inverse
    places = {name: 1}  # tensors of positions: every row stands k times
    for op in graph.operators:
        read = [a.tensor for a in op.inputs]
        if op.output.tensor in inverse or op is order:
            continue
        if op.function == "floor_divide" and read == [name] and _whole(graph, op.inputs[0], op):
            step = op.attribute("value", 0)
            if not isinstance(step, (int, float)) or step < 1 or step != int(step):
                return None
            places[op.output.tensor] = int(step)
        elif op.function == "embedding" and read[1] in places and read[0] not in found.tensors:
            if not _puts(graph, op, places[read[1]], rows):
                return None
            found.sorted[op.name] = places[read[1]]
            found.tensors[op.output.tensor] = _dimension(op, op.inputs[1])
        elif op.function == "embedding" and read[1] in inverse and read[0] in found.tensors:
            if not _puts_back(graph, op, found.tensors[read[0]]):
                return None
            found.back.append(op.name)
        elif any(t in places for t in read) or any(t in inverse for t in read):
            return None
        elif any(t in found.tensors for t in read):
            at = _row_axis(graph, op, found)
            if at is None:
                return None
            found.tensors[op.output.tensor] = at
    if not found.back or any(t in graph.outputs for t in (*found.tensors, *places, *inverse)):
        return None
    return found


def _whole(graph: Graph, a: Access, op: Operator) -> bool:
    """Whether an operand is read axis by axis, all of it."""
    shape = graph.tensor(a.tensor).shape
    names = [i.single for i in a.index]
    return (
        None not in names
        and len(set(names)) == len(names)
        and all(op.axis(str(x)).extent == n for x, n in zip(names, shape, strict=True))
    )


def _dimension(op: Operator, ids: Access) -> int:
    """The dimension of the result along which the ids run."""
    return [i.single for i in op.output.index].index(ids.index[0].single)


def _puts(graph: Graph, op: Operator, step: int, rows: int) -> bool:
    """Whether a gather takes every row of its table `step` times, and only its rows."""
    table, ids = op.inputs
    dims = [k for k, i in enumerate(table.index) if i.single == op.rows]
    plain = _whole(graph, table, op) and _whole(graph, ids, op) and len(dims) == 1
    return plain and ids.index[0].single not in table.axes and op.axis(op.rows).extent * step == rows and not _bags(op)


def _bags(op: Operator) -> bool:
    return len(op.reduction_axes) != 1


def _puts_back(graph: Graph, op: Operator, dim: int) -> bool:
    """Whether a gather takes the rows of an ordered tensor by the inverse."""
    table, ids = op.inputs
    plain = _whole(graph, table, op) and _whole(graph, ids, op) and not _bags(op)
    return plain and table.index[dim].single == op.rows and ids.index[0].single not in table.axes


def _row_axis(graph: Graph, op: Operator, found: _Ordered) -> int | None:
    """The dimension of the result that the rows become, if the operator works row by row; else None."""
    if is_view(op):
        return _seen(graph, op, found.tensors[op.inputs[0].tensor])
    copies = op.kind is NodeKind.LAYOUT and op.function == "copy" and len(op.inputs) == 1
    if op.kind not in _BY_ROW and not copies:
        return None
    axes = {a.index[found.tensors[a.tensor]].single for a in op.inputs if a.tensor in found.tensors}
    if len(axes) != 1 or None in axes:
        return None
    (axis,) = axes
    if op.axis(str(axis)).extent != found.rows or axis in op.over or op.axis(str(axis)).combine is not None:
        return None
    for a in op.inputs:
        at = found.tensors.get(a.tensor)
        if any(axis in dict(i.terms) for k, i in enumerate(a.index) if k != at) or (
            at is None and axis in a.axes
        ):  # along the rows only what is in the same order may be read
            return None
    places = [i.single for i in op.output.index]
    return places.index(axis) if axis in places else None


def _seen(graph: Graph, op: Operator, dim: int) -> int | None:
    """The dimension of a view that is dimension `dim` of its input; None if there is none."""
    left, right = graph.tensor(op.inputs[0].tensor).shape, graph.tensor(op.output.tensor).shape
    return next((theirs[0] for mine, theirs in groups(left, right) if mine == [dim] and len(theirs) == 1), None)


def _rewritten(graph: Graph, found: _Ordered) -> Graph:
    """Every row in its own place."""
    operators: list[Operator] = []
    tensors = {t.name: t for t in graph.tensors}
    for op in graph.operators:
        step = 1 if op.name in found.back else found.sorted.get(op.name, 0)
        if step == 0:
            operators.append(op)
            continue
        row = str(op.inputs[1].index[0].single)
        table, result = op.inputs[0], tensors[op.output.tensor]
        if step == 1:
            axes = tuple(a for a in op.axes if a.name != op.rows)
            read = _with_axis(table, op.rows, row)
            operators.append(Operator(op.name, "copy", axes, (read,), op.output))
            continue
        whole = f"{op.output.tensor}/rows"
        count, again = Axis(op.rows, op.axis(op.rows).extent), Axis(row, step)
        axes = tuple(x for a in op.axes if a.name != op.rows for x in ((count, again) if a.name == row else (a,)))
        names = tuple(x for i in op.output.axes for x in ((op.rows, row) if i == row else (i,)))
        shape = tuple({x.name: x.extent for x in axes}[n] for n in names)
        tensors[whole] = replace(result, name=whole, shape=shape, source_shape=None)
        operators.append(Operator(whole, "copy", axes, (table,), access(whole, *names)))
        flat = tuple(Axis(f"d{k}", n, None, False) for k, n in enumerate(result.shape))
        everything = Access(whole, tuple(Affine.everything() for _ in shape))
        operators.append(Operator(op.name, "copy", flat, (everything,), access(result.name, *(a.name for a in flat))))
    return with_specified(
        used(replace(graph, tensors=tuple(tensors.values()), operators=tuple(operators), specified=())), graph
    ).check()


def _with_axis(a: Access, old: str, new: str) -> Access:
    return Access(a.tensor, tuple(Affine.axis(new) if i.single == old else i for i in a.index))
