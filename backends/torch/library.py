"""Computes an operator on a box with PyTorch where PyTorch has it, and with the kernels of this package where not.

    convolutions (products: NumPy's BLAS)    `products`
    softmax, norms, sums                     `statistics`
    attention                                `attention`
    elementwise functions, updates           `maps`

Blocks stay NumPy's arrays, whose memory PyTorch reads and whose results are PyTorch's memory: ranks, collectives,
states and files know nothing of it.  Integers, 16 bits, empty boxes, gathers and everything that no row names are left
to `kernels.dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType, ModuleType
from typing import Final

from ...models.program.attention import FUSED
from ...models.program.graph import Graph
from ...models.program.operators import Operator
from ..kernels import Array, Block, Box, StatisticsReducer
from ..kernels import execute as execute_ours
from ..kernels.blocks import spread
from ..kernels.library import Library
from ..kernels.moments import Kept
from ..kernels.task import Task
from .arrays import are_real
from .attention import attention, gradients
from .maps import FUNCTIONS, ROWS, WRITES
from .products import product, product_sum
from .statistics import axis_sum, norm_gradient, normalise, softmax_gradient

KERNELS: Final = MappingProxyType[str, Callable[[Task], Array | None]](
    {
        "product": product,
        "product_sum": product_sum,
        "sum": axis_sum,
        "attention": attention,
        FUSED: gradients,
        **dict.fromkeys(("softmax", "log_softmax", "layer_norm", "rms_norm"), normalise),
        **dict.fromkeys(("softmax_gradient", "log_softmax_gradient"), softmax_gradient),
        **dict.fromkeys(("layer_norm_gradient", "rms_norm_gradient"), norm_gradient),
    }
)
"""Function -> kernel; None from one means that it does not take this case."""


def execute(
    xp: ModuleType,
    op: Operator,
    graph: Graph,
    box: Box,
    operands: Sequence[Block],
    collectives: StatisticsReducer | None = None,
    kept: Kept | None = None,
) -> Array:
    """See `kernels.dispatch.execute`.

    >>> import numpy
    >>> from ...models.sources.building.builder import Builder
    >>> g = Builder("g")
    >>> y = g.contract("y", "m k, k n -> m n", g.input("a", (2, 3)), g.input("b", (3, 2)))
    >>> graph = g.build(y)
    >>> a, b = Block(numpy.ones((2, 3)), (0, 0)), Block(numpy.ones((3, 2)), (0, 0))
    >>> execute(numpy, graph.operators[0], graph, {"m": (0, 1), "n": (0, 2), "k": (1, 3)}, [a, b])
    array([[2., 2.]])
    """
    found = None
    if (op.function in KERNELS or op.function in ROWS) and _is_usual(op, box, operands):
        task = Task(xp, op, graph, {a.name: box[a.name] for a in op.axes}, operands, collectives, kept)
        kernel = KERNELS.get(op.function)
        found = _map(task) if kernel is None else kernel(task)
    if found is None:
        return execute_ours(xp, op, graph, box, operands, collectives, kept)
    return found.copy() if any(xp.may_share_memory(found, b.array) for b in operands) else found


def _is_usual(op: Operator, box: Box, operands: Sequence[Block]) -> bool:
    """Neither empty nor malformed: what is, is refused, or made nothing of, in one place."""
    return len(operands) == len(op.inputs) and all(a.name in box and box[a.name][0] < box[a.name][1] for a in op.axes)


def _map(t: Task) -> Array | None:
    if not are_real([b.array for b in t.operands]):
        return None
    return spread(t.xp, FUNCTIONS[t.op.function](t.xp, [t.operand(j) for j in range(len(t.op.inputs))], t.op), t.shape)


TORCH: Final = Library(execute, FUNCTIONS, passes=True, writes=WRITES)
"""PyTorch, and our kernels for the rest."""
