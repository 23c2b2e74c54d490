"""Parts of a network: together with what separates them they are everything, and no edge joins two of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.formal.selection.bound.separator import separate
from shardproof.formal.selection.options.bound import BOUND, BoundOptions


def around_of(n: int, edges: list[tuple[int, int]]) -> list[list[int]]:
    around: list[list[int]] = [[] for _ in range(n)]
    for u, v in edges:
        around[u].append(v)
        around[v].append(u)
    return around


@given(st.integers(1, 24), st.data())
def test_no_edge_joins_two_parts(n: int, data: st.DataObject) -> None:
    vertex = st.integers(0, n - 1)
    edges = data.draw(st.lists(st.tuples(vertex, vertex).filter(lambda e: e[0] != e[1]), max_size=30))
    work = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    order = data.draw(st.permutations(range(n)))
    found = separate(around_of(n, edges), work, order)
    assert sorted(found.order) == list(range(n))
    part = {v: k for k, vertices in enumerate(found.parts) for v in vertices}
    assert all(u not in part or v not in part or part[u] == part[v] for u, v in edges)
    for vertices in (*found.parts, found.separator):
        assert [order.index(v) for v in vertices] == sorted(order.index(v) for v in vertices)
    assert len(found.parts) == 1 or sum(work[v] for v in found.separator) <= BOUND.separator_share * sum(work)


@pytest.mark.parametrize("parts", [2, 4])
def test_a_long_row_falls_into_equal_parts(parts: int) -> None:
    """Numbered as layers of a training step are, forwards and backwards again: the parts are runs of layers, not
    halves of the numbers.
    """
    n = 400
    edges = [(i, i + 1) for i in range(n - 1)] + [(i, n - 1 - i) for i in range(n // 2 - 1)]
    found = separate(around_of(n, edges), [1] * n, list(range(n)), BoundOptions(parts=parts))
    assert len(found.parts) == parts and len(found.separator) <= 4 * (parts - 1)
    for part in found.parts:
        assert abs(len(part) - n / parts) <= 8
        assert {n - 1 - v for v in part if 8 < v < n - 9} <= {*part, *found.separator}


def test_hubs_separate() -> None:
    n = 2 * BOUND.hub
    edges = [(i, i + 1) for i in range(n - 1)]
    hub = n
    found = separate(around_of(n + 1, [*edges, *((hub, i) for i in range(n))]), [1] * (n + 1), list(range(n + 1)))
    assert len(found.parts) == 2 and hub in found.separator and len(found.separator) <= 3


def test_what_does_not_fall_apart_stays_whole() -> None:
    n = 12
    found = separate(around_of(n, [(i, j) for i in range(n) for j in range(i)]), [1] * n, list(range(n)))
    assert found.parts == (tuple(range(n)),) and found.separator == ()
