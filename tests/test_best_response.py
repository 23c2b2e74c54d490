"""The early manuscript's algorithm, the counterexample to its theorem, and PaSE's dynamic programming, against
enumeration.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
import selection_reduction_cases as tiny
from best_response import best_responses
from pase_dp import pase_dp
from random_problems import few_costs, reducible

from shardproof.models.problem.selection_problem import FORBIDDEN, Edge, ProblemError, SelectionProblem, Usage, Vertex
from shardproof.proofs.selection.load import load_selection_problem

PASE = Path(__file__).resolve().parents[2] / "shared" / "data" / "pase"


def cycle(costs: list[int], table: np.ndarray) -> SelectionProblem:
    """Four equal vertices in a ring."""
    vertices = tuple(Vertex(f"v{i}", np.array(costs)) for i in range(4))
    return SelectionProblem("ring", vertices, (table,), tuple(Edge(i, (i + 1) % 4, 0) for i in range(4)))


def adversary(v: int, around: dict[int, int], cheapest: list[int]) -> int:
    """Legal picks among equal minima: x0 = x1, x3 = x0 xor x2, x2 = not (x1 xor x3), where all of them are 0 or 1."""
    if any(a > 1 for a in around.values()):
        return cheapest[0]
    wish = {0: lambda x: x[1], 3: lambda x: x[0] ^ x[2], 2: lambda x: 1 - (x[1] ^ x[3])}
    a = wish[v](around) if v in wish else cheapest[0]
    return a if a in cheapest else cheapest[0]


def test_theorem_1_is_false_no_strategy_is_left() -> None:
    ring = cycle([0, 0], np.zeros((2, 2), dtype=np.int64))
    found = best_responses(ring, adversary, (0, 1, 3, 2))
    assert found.valid == () and found.solution is None
    assert best_responses(ring).cost == 0


def test_theorem_1_is_false_a_worse_strategy_is_returned() -> None:
    table = np.array([[0, 0, 10], [0, 0, 10], [10, 10, 0]])
    ring = cycle([0, 0, 1], table)
    found = best_responses(ring, adversary, (0, 1, 3, 2))
    assert (found.valid, found.solution, found.cost) == (((2, 2, 2, 2),), (2, 2, 2, 2), 4)
    assert int(tiny.landscape(ring).min()) == 0 == best_responses(ring).cost


def test_with_a_fixed_order_the_optimum_survives() -> None:
    for seed in range(900):
        problem = few_costs(seed)
        costs = tiny.landscape(problem)
        found = best_responses(problem)
        if int(costs.min()) == FORBIDDEN:
            assert found.cost is None
        else:
            assert found.cost == int(costs.min()) == int(costs[found.solution])
            assert set(found.valid) <= set(map(tuple, np.argwhere(costs <= FORBIDDEN).tolist()))


def test_random_picks_lose_the_optimum_now_and_then() -> None:
    lost = 0
    for seed in range(500):
        rng = random.Random(seed)
        n = 4 + seed % 3
        vertices = tuple(Vertex(f"v{i}", np.zeros(2, dtype=np.int64)) for i in range(n))
        ring = SelectionProblem(
            "ring", vertices, (np.zeros((2, 2), dtype=np.int64),), tuple(Edge(i, (i + 1) % n, 0) for i in range(n))
        )
        lost += best_responses(ring, lambda v, around, cheapest, rng=rng: rng.choice(cheapest)).cost is None
    assert 0 < lost < 50


def test_mistakes_are_named() -> None:
    ring = cycle([0, 0], np.zeros((2, 2), dtype=np.int64))
    with pytest.raises(ProblemError, match="unprocessed neighbours"):
        best_responses(ring, order=(0, 2, 1, 3))
    with pytest.raises(ProblemError, match="every vertex once"):
        best_responses(ring, order=(0, 1, 1, 3))
    star = SelectionProblem("star", tuple(Vertex(f"v{i}", np.zeros(9, dtype=np.int64)) for i in range(9)),
                            (np.zeros((9, 9), dtype=np.int64),), tuple(Edge(0, i, 0) for i in range(1, 9)))  # fmt: skip
    with pytest.raises(ProblemError, match=r"vertex 0 'v0'.*387420489"):
        best_responses(star)
    rows = SelectionProblem("rows", (Vertex("a", np.array([0])),), (), (), (Usage(0, 0, 1, np.array([1])),), 3)
    for method in (best_responses, pase_dp):
        with pytest.raises(ProblemError, match="resource rows"):
            method(rows)


def test_dynamic_programming_equals_enumeration() -> None:
    for seed in range(700):
        problem = reducible(seed)
        free = SelectionProblem(
            problem.name, problem.vertices, problem.tables, problem.edges, constant=problem.constant
        )
        costs = tiny.landscape(free)
        found = pase_dp(free)
        assert found.cost == (None if int(costs.min()) == FORBIDDEN else int(costs.min()))
        assert found.solution is None or int(costs[found.solution]) == found.cost


def test_a_table_that_is_too_large_is_named() -> None:
    n = 10
    clique = SelectionProblem("clique", tuple(Vertex(f"v{i}", np.zeros(9, dtype=np.int64)) for i in range(n)), (np.zeros((9, 9), dtype=np.int64),),
                              tuple(Edge(i, j, 0) for i in range(n) for j in range(i)))  # fmt: skip
    with pytest.raises(ProblemError, match="vertex 0 'v0'.*3486784401"):
        pase_dp(clique)


@pytest.mark.skipif(not PASE.is_dir(), reason="the data set lies outside the repository")
@pytest.mark.parametrize("name", ["alexnet-p16", "rnnlm-p8", "resnet101-p8", "inception3-p8", "transformer-p4"])
def test_published_optima(name: str) -> None:
    problem = load_selection_problem(PASE / f"{name}.json.gz")
    exact = json.loads(gzip.decompress((PASE / f"{name}.json.gz").read_bytes()))["exact"]
    found = pase_dp(problem)
    assert found.cost / problem.scale == pytest.approx(exact["cost"], rel=1e-12)
    assert problem.cost_of(found.solution) == found.cost
