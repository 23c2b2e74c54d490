"""Products with an epilogue: what runs is the product followed by its maps; what cannot be one is refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardproof.backends.kernels.blocks import Block
from shardproof.backends.kernels.dispatch import execute
from shardproof.models.cost.forms import operator_form
from shardproof.models.layout.classes import axis_orders
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.program.operators import Operator
from tests.second_builder_cases import fused


def run(op: Operator, graph: Graph, box: dict[str, tuple[int, int]], arrays: list[np.ndarray]) -> np.ndarray:
    blocks = [Block(a, (0,) * a.ndim) for a in arrays]
    return np.asarray(execute(np, op, graph, box, blocks))


def test_the_kernel_is_the_product_and_then_its_maps() -> None:
    graph, rng = fused(), np.random.default_rng(0)
    x, w, bias, y = (rng.standard_normal(s) for s in ((8, 6), (6, 4), (4,), (8, 4)))
    op = graph.operator("z")
    whole = {"i": (0, 8), "j": (0, 4), "k": (0, 6)}
    got = run(op, graph, whole, [x, w, bias, y])
    expected = np.where(y > 0, np.maximum(x @ w + bias, 0), 0)
    assert np.allclose(got, expected)
    part = run(op, graph, {**whole, "i": (2, 5), "j": (1, 4)}, [x, w, bias, y])
    assert np.array_equal(part, got[2:5, 1:4]) and run(op, graph, {**whole, "j": (2, 2)}, [x, w, bias, y]).shape == (
        8,
        0,
    )


def test_every_map_is_paid_once_per_result() -> None:
    graph = fused()
    orders = axis_orders(graph)
    assert operator_form(graph.operator("z"), graph, orders["z"]).finish == 3  # add, relu, relu_gradient
    assert operator_form(graph.operator("y"), graph, orders["y"]).finish == 12  # gelu


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epilogue": ("softmax",)}, "needs attribute epilogue"),
        ({"epilogue": ("cast",)}, "needs attribute epilogue"),
        ({"epilogue": ()}, "needs attribute epilogue"),
        ({"epilogue": ("relu",) * 9}, "1 to 8 maps"),
        ({"epilogue": ("relu",)}, "has 4 inputs"),
        ({"factors": 3}, "has 4 inputs"),
        ({"factors": 0}, "has 4 inputs"),
    ],
)
def test_what_is_no_fused_product_is_refused(change: dict[str, object], said: str) -> None:
    graph = fused()
    op = graph.operator("z")
    wrong = replace(op, attributes=tuple(sorted({**dict(op.attributes), **change}.items())))  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=said):
        replace(graph, operators=(graph.operators[0], wrong)).check()


def test_a_map_of_a_partial_sum_is_refused() -> None:
    graph = fused()
    op = graph.operator("z")
    axes = tuple(replace(a, splittable=True) for a in op.axes)
    with pytest.raises(GraphError, match="reads axis 'k' whole, so it must not be splittable"):
        replace(graph, operators=(graph.operators[0], replace(op, axes=axes))).check()
