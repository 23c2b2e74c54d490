"""Computes one operator on one iteration box.

`execute` returns the block of the output that the box writes.  Reduction axes are combined over the box only: when the
box holds part of them the result is partial, and combining the results of the parts gives the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import assert_never

from ...models.program.fused import FUSED
from ...models.program.graph import Graph
from ...models.program.operators import NodeKind, Operator
from .attention import ATTENTION
from .blocks import Array, Block, Box, KernelError, StatisticsReducer, align, execution_dtype, lengths, spread, view
from .contract import contract
from .elementwise import MAPS
from .epilogue import fused_product
from .gradient_maps import GRADIENT_MAPS
from .gradients import GRADIENTS, gradient
from .grouped import grouped_product
from .moments import Kept
from .movement import copy, gather, iota, random
from .programs import constant, opaque, update
from .reductions import normalise, reduce, window
from .scan import scan
from .scatter import scatter
from .task import Task


def execute(
    xp: ModuleType,
    op: Operator,
    graph: Graph,
    box: Box,
    operands: Sequence[Block],
    collectives: StatisticsReducer | None = None,
    kept: Kept | None = None,
) -> Array:
    """The output block of `op` for an iteration box: shape = lengths of the box along the output axes, C order.

    `operands` are blocks in argument order, each holding what the box touches; what lies outside a tensor is padding
    (nothing for max_pool, else zero).  `collectives` serves normalise operators whose `over` axes are split; it is
    called equally often on every rank, also for empty boxes.  `kept`: moments that operators share.  The result shares
    no memory with the operands.

    Raises `KernelError` naming the operator: a block too small, a missing axis, an attribute of the wrong type.

    >>> import numpy
    >>> from ...models.sources.building.builder import Builder
    >>> g = Builder("g")
    >>> y = g.contract("y", "m k, k n -> m n", g.input("a", (2, 3)), g.input("b", (3, 2)))
    >>> graph = g.build(y)
    >>> a, b = Block(numpy.ones((2, 3)), (0, 0)), Block(numpy.ones((3, 2)), (0, 0))
    >>> execute(numpy, graph.operators[0], graph, {"m": (0, 1), "n": (0, 2), "k": (1, 3)}, [a, b])
    array([[2., 2.]])
    """
    task = Task(xp, op, graph, _exact_box(op, box, operands), operands, collectives, kept)
    if op.function in GRADIENTS:
        return _own(xp, gradient(task), operands)
    return _own(xp, _in_type(_result(task), graph.tensor(op.output.tensor).dtype), operands)


def _exact_box(op: Operator, box: Box, operands: Sequence[Block]) -> dict[str, tuple[int, int]]:
    """The box over the operator's axes.  Inverted intervals are empty ones: no kernel meets a negative length."""
    place = f"operator {op.name!r}"
    missing = [a.name for a in op.axes if a.name not in box]
    if missing:
        raise KernelError(place, f"the iteration box lacks axis {missing[0]!r}")
    if len(operands) != len(op.inputs):
        raise KernelError(place, f"{len(op.inputs)} operands expected, got {len(operands)}")
    return {
        a.name: box[a.name] if box[a.name][0] < box[a.name][1] else (box[a.name][0], box[a.name][0]) for a in op.axes
    }


def _result(task: Task) -> Array:
    """What the operator of a kind computes, which may still lie in the memory of an operand."""
    xp, op, graph, box, operands = task.xp, task.op, task.graph, task.box, task.operands
    match op.kind:
        case NodeKind.CONTRACT if op.function == FUSED:
            return fused_product(task)
        case NodeKind.CONTRACT:
            return contract(xp, op, graph, box, operands)
        case NodeKind.MAP:
            return _map(xp, op, graph, box, operands)
        case NodeKind.REDUCE:
            return reduce(xp, op, graph, box, operands)
        case NodeKind.NORMALISE:
            return normalise(task)
        case NodeKind.WINDOW:
            return window(xp, op, graph, box, operands)
        case NodeKind.GATHER:
            return gather(xp, op, graph, box, operands)
        case NodeKind.SCATTER:
            return scatter(task)
        case NodeKind.GROUPED:
            return grouped_product(task)
        case NodeKind.LAYOUT:
            return _layout(xp, op, graph, box, operands)
        case NodeKind.ATTENTION:
            return spread(xp, ATTENTION[op.function](task), task.shape)
        case NodeKind.SCAN:
            return scan(task, execute)
        case NodeKind.OPAQUE:
            return opaque(xp, op, graph, box, operands)
        case _:
            assert_never(op.kind)


def _in_type(result: Array, dtype: str) -> Array:
    """Integers in the element type of the tensor, in which they wrap around."""
    wanted = execution_dtype(dtype)
    whole = result.dtype.kind in "iu" and wanted.startswith(("int", "uint"))
    return result.astype(wanted) if whole and result.dtype.name != wanted else result


def _own(xp: ModuleType, result: Array, operands: Sequence[Block]) -> Array:
    """The result in memory of its own."""
    return result.copy() if any(xp.may_share_memory(result, b.array) for b in operands) else result


def _layout(
    xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]], operands: Sequence[Block]
) -> Array:
    match op.function:
        case "iota":
            return iota(xp, op, graph, box)
        case "constant":
            return constant(xp, op, graph, box)
        case "random":
            return random(xp, op, graph, box)
        case "update":
            return update(xp, op, graph, box, operands)
        case _:
            return copy(xp, op, graph, box, operands)


def _map(
    xp: ModuleType, op: Operator, graph: Graph, box: dict[str, tuple[int, int]], operands: Sequence[Block]
) -> Array:
    function = MAPS.get(op.function) or GRADIENT_MAPS.get(op.function)
    if function is None:
        raise KernelError(
            f"operator {op.name!r}", f"no kernel for {op.function!r}; add it to backends/kernels/elementwise.py"
        )
    out = op.output.axes
    aligned = [
        align(view(xp, b, a, box, graph.tensor(a.tensor).shape, 0, f"operator {op.name!r}, input {j}"), a.axes, out)
        for j, (a, b) in enumerate(zip(op.inputs, operands, strict=True))
    ]
    return spread(xp, function(xp, aligned, op), lengths(box, out))
