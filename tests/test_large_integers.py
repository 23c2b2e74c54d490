"""Whole numbers that no float is (beyond 2 to the 53) are what the program says, in every place of a program and in
every frontend: kernels and attributes that hold floats lose them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shardproof.backends.execution.differential import compare
from shardproof.backends.execution.reference import run_graph
from shardproof.models.sources.building.original import Differs, Original
from shardproof.models.sources.numpy.program import ArraySpec
from shardproof.models.sources.numpy.trace import graph_of

LARGE = (2**53 + 1, 2**62 + 1, 2**63 - 1, -(2**63) + 1, 3)


def _written(x: Any, c: int) -> Any:
    y = x.copy()
    y[0] = c
    return y


PLACES: dict[str, Callable[[Any, int], Any]] = {
    "add": lambda x, c: x + c, "subtract": lambda x, c: x - c, "from": lambda x, c: c - x, "multiply": lambda x, c: x * c,
    "equal": lambda x, c: x == c, "unequal": lambda x, c: x != c, "greater": lambda x, c: x > c, "at most": lambda x, c: c <= x,
    "maximum": lambda x, c: np.maximum(x, c), "minimum": lambda x, c: np.minimum(x, c), "clip": lambda x, c: np.clip(x, c - 1, c),
    "where": lambda x, c: np.where(x > 0, x, np.int64(c)), "where not": lambda x, c: np.where(x > 0, np.int64(c), x),
    "full": lambda x, c: np.full_like(x, c) + x * 0, "written": _written, "listed": lambda x, c: x + np.array([c, 1, c, c, 3, 4]),
    "square": lambda x, c: x**2 - c, "range": lambda x, c: x + np.arange(6) * c, "negated": lambda x, c: -x * c,
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", LARGE)
def test_numpy(place: str, number: int) -> None:
    def program(x: Any) -> Any:
        return PLACES[place](x, number)

    graph = graph_of(program, "program", {"x": ArraySpec((6,), "int64")})
    given = np.array([0, 1, -1, number, number - 1, 5])
    with np.errstate(all="ignore"):
        made, right = run_graph(graph, {"x": given})[graph.outputs[0]], np.asarray(program(given))
    assert made.dtype == right.dtype
    np.testing.assert_array_equal(made.reshape(right.shape), right)


def test_a_large_integer_that_is_off_by_one_is_found() -> None:
    """What reals cannot tell apart is excused only where integers are made of reals."""
    taken: list[Original] = []
    graph = graph_of(lambda x: x + 2**60, "program", {"x": ArraySpec((6,), "int64")}, taken.append)
    wrong = Original("NumPy", lambda values: (np.asarray(values["x"] + 2**60 + 1),))
    assert compare(graph, taken[0]).samples == 6
    with pytest.raises(Differs):
        compare(graph, wrong)
    graph = graph_of(lambda x: (x * 1e15).astype("int64"), "program", {"x": ArraySpec((6,))}, taken.append)
    assert compare(graph, taken[1]).samples >= 4
