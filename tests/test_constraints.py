"""Communication constraints as formulas: evaluated on every rank they are the integer tables, of every operator of
every program.
"""

from __future__ import annotations

import numpy as np
import pytest
from array_cases import CASES
from test_run import SMALL, draw_choices

from shardproof.formal.explain.constraints import Constraints, constraints, render
from shardproof.models.communication.choices import input_layout, output_layout
from shardproof.models.layout.placement import Placement
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.program.operators import Operator
from shardproof.models.sources.zoo import build

NAMES = [
    "mlp",
    "attention",
    "jacobi in place",
    "convolutions by rows and columns",
    "fused projections by heads",
    "matmul uneven m-n-k",
]


def graph_of(name: str) -> Graph:
    return SMALL[name]() if name in SMALL else CASES[name].traced().graph


def check(op: Operator, graph: Graph, placement: Placement, hierarchy: tuple[int, ...]) -> Constraints:
    found = constraints(op, graph, placement, load_machine("x".join(map(str, hierarchy))))
    layouts = [input_layout(op, j, graph, placement, hierarchy) for j in range(len(op.inputs))]
    layouts.append(output_layout(op, graph, placement, hierarchy))
    for c, layout in zip(found.operands, layouts, strict=True):
        for rank in range(int(np.prod(hierarchy))):
            assert found.box(c, rank) == layout.box(rank), (op.name, c.tensor, rank, c.dims)
        assert bool(c.summed) == bool(layout.open)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_formulas_are_the_tables(name: str) -> None:
    graph = graph_of(name)
    rng = np.random.default_rng(3)
    seen = 0
    for hierarchy in ((2, 3), (2, 4)):
        choices = dict(draw_choices(graph, hierarchy, rng).operators)
        for op in graph.operators[:8]:
            seen += len(check(op, graph, choices[op.name], hierarchy).grid)
    assert seen >= 2


def test_a_convolution_with_halos() -> None:
    """Rows in four parts, columns in two: the halo shows as one row more on either side, cut at the edges."""
    graph = build("conv-stack", batch=2, size=16, channels=4)
    op = next(o for o in graph.operators if o.name == "conv2")
    degrees = {"y": (2, 2), "x": (1, 2)}
    order = tuple(a.name for a in op.axes)
    placement = Placement(order, (*(degrees.get(a, (1, 1)) for a in order), (1, 1)))
    lines = render(check(op, graph, placement, (2, 4)))
    assert lines[0] == "conv2 on a process grid of y 4, x 2"
    assert any("p_x = Mod(c_gpu, 2)" in line or "Mod(c_" in line for line in lines)
    assert (
        "  reads  conv1.relu[:, :, Max(0, 4*p_y - 1) : 4*p_y + 4, Max(0, 8*p_x - 1) : 8*p_x + 8]" in lines
    )  # stride 2
