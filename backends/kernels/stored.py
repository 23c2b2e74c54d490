"""Computes operators on blocks that are kept in the element types of the graph: rounded once, where the
result is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import ModuleType

from ...models.program.graph import Graph
from ...models.program.operators import NodeKind, Operator
from .blocks import Array, Block, Box, StatisticsReducer
from .dispatch import execute
from .half import round_to, widen
from .library import Execute
from .scan import scan
from .task import Task


def execute_stored(
    xp: ModuleType,
    op: Operator,
    graph: Graph,
    box: Box,
    operands: Sequence[Block],
    collectives: StatisticsReducer | None = None,
    run: Execute = execute,
) -> Array:
    """`execute` on blocks in the types of the graph: its operands as they are stored, its result rounded to the type
    of the tensor that it writes.  `run`: who computes it.

    >>> import numpy as np
    >>> from ...models.sources.building.builder import Builder
    >>> g = Builder("g", "bfloat16")
    >>> graph = g.build(g.map("y", "scale", g.input("x", (2,)), text="i -> i", scale=1.01))
    >>> x = Block(round_to(np, np.array([1.0, 3.0]), "bfloat16"), (0,))
    >>> widen(np, execute_stored(np, graph.operators[0], graph, {"i": (0, 2)}, [x])).tolist()
    [1.0078125, 3.03125]
    """
    if op.kind is NodeKind.SCAN:  # every operator of the body writes what is stored
        exact = {a.name: box[a.name] for a in op.axes}
        return scan(Task(xp, op, graph, exact, operands, collectives), partial(execute_stored, run=run))
    result = execute_unrounded(xp, op, graph, box, operands, collectives, run)
    return round_to(xp, result, graph.tensor(op.output.tensor).dtype)


def execute_unrounded(
    xp: ModuleType,
    op: Operator,
    graph: Graph,
    box: Box,
    operands: Sequence[Block],
    collectives: StatisticsReducer | None = None,
    run: Execute = execute,
) -> Array:
    """What `execute_stored` rounds."""
    wide = [Block(widen(xp, b.array), b.origin) for b in operands]
    return run(xp, op, graph, box, wide, collectives)
