"""Elimination records that leave their messages to the checker: same bound, same refusals, bounded effort."""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from random_problems import shared_tables
from selection_cases import brute, certified, eliminate

from shardproof.formal.selection.elimination import dense, sums
from shardproof.formal.selection.elimination import factored as eliminate_module
from shardproof.formal.selection.elimination.factored import elimination_order as order_of
from shardproof.formal.selection.model.factored import Base, build, whole
from shardproof.formal.selection.options import Options
from shardproof.formal.selection.options.elimination import EliminationOptions
from shardproof.formal.selection.solve import solve
from shardproof.models.problem.claims import LowerBound, Optimal, Status, Verdict
from shardproof.models.problem.selection_problem import FORBIDDEN, Edge, SelectionProblem, Vertex
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.container.effort import ELIMINATED, PART
from shardproof.proofs.selection.certificates import Elimination
from shardproof.proofs.selection.file import read_certificate, write_certificate
from shardproof.verify.budget import Budget
from shardproof.verify.selection.certificate import check_selection
from shardproof.verify.selection.elimination import SLOWER


@pytest.mark.parametrize("seed", range(150))
def test_left_out_messages_give_the_optimum(seed: int) -> None:
    problem = shared_tables(seed, rows=False)
    stored = eliminate(problem, random.Random(seed))
    record = Elimination(stored.order, stored.scopes, ())
    best = brute(problem, rows=False)
    if best is None:
        assert check_selection(problem, certified(problem, LowerBound(FORBIDDEN - 1), record)).verdict is Verdict.PROVED
        return
    cost, x = best
    good = certified(problem, Optimal(x, cost), record)
    assert check_selection(problem, read_certificate(write_certificate(None, good))).verdict is Verdict.PROVED
    assert check_selection(problem, certified(problem, LowerBound(cost), record)).verdict is Verdict.PROVED
    assert check_selection(problem, certified(problem, LowerBound(cost + 1), record)).verdict is not Verdict.PROVED


def test_bad_orders_and_scopes_are_refused() -> None:
    problem = shared_tables(5, rows=False)
    stored = eliminate(problem, random.Random(5))
    cost, x = brute(problem, rows=False) or (0, ())
    claim = Optimal(x, cost)
    bad = [
        Elimination((*stored.order[1:], stored.order[1]), stored.scopes, ()),
        Elimination(stored.order, stored.scopes[:-1], ()),
        Elimination(stored.order, (*stored.scopes[:-1], (99,)), ()),
        Elimination(stored.order, ((), *stored.scopes[1:]), ())
        if stored.scopes[0]
        else Elimination(stored.order, (stored.order[:1], *stored.scopes[1:]), ()),
    ]
    for record in bad:
        result = check_selection(problem, certified(problem, claim, record))
        assert result.verdict is Verdict.REFUTED and result.reason


def test_an_eliminated_vertex_costs_a_step_however_few_its_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of one entry are no work, the Python around them is: 2,000 such vertices a thousand times over took
    minutes.
    """
    n, given = 50, Budget()
    vertices = tuple(Vertex(f"v{i}", np.array([1])) for i in range(n))
    problem = SelectionProblem("chain", vertices, (np.array([[1]]),), tuple(Edge(i, i + 1, 0) for i in range(n - 1)))
    record = Elimination(tuple(range(n)), (*((i + 1,) for i in range(n - 1)), ()), ())
    monkeypatch.setattr(Budget, "of", staticmethod(lambda *_: given))
    assert check_selection(problem, certified(problem, Optimal((0,) * n, 2 * n - 1), record)).verdict is Verdict.PROVED
    assert Budget().work - given.work >= n * ELIMINATED + PART * (2 * n - 1)
    format_alone, check = Budget().work - given.work, Budget.without_large()
    given = Budget(whole=check)
    assert check_selection(problem, certified(problem, Optimal((0,) * n, 2 * n - 1), record)).verdict is Verdict.PROVED
    assert Budget.without_large().work - check.work >= format_alone + SLOWER * n * ELIMINATED, "as long as they take"


def test_absurd_effort_is_refused_before_memory_is_taken() -> None:
    n, k = 8, 200
    cost = np.zeros(k, dtype=np.int64)
    table = np.zeros((k, k), dtype=np.int64)
    edges = tuple(Edge(u, v, 0) for u in range(n) for v in range(u + 1, n))
    problem = SelectionProblem("clique", tuple(Vertex(f"v{i}", cost) for i in range(n)), (table,), edges)
    record = Elimination(tuple(range(n)), tuple(tuple(range(i + 1, n)) for i in range(n)), ())
    with pytest.raises(ContainerError, match="too large to be checked"):  # which does not refute it
        check_selection(problem, certified(problem, Optimal((0,) * n, 0), record))


def test_the_solver_leaves_out_what_is_large() -> None:
    problem = shared_tables(11, n=5, k=5, rows=False)
    with_messages = solve(problem)
    without = solve(problem, options=Options(elimination=EliminationOptions(stored=0)))
    assert with_messages.status is without.status is Status.OPTIMAL and with_messages.cost == without.cost
    assert without.certificate is not None and check_selection(problem, without.certificate).verdict is Verdict.PROVED
    worse = replace(without.certificate, claim=Optimal(without.certificate.claim.solution, without.cost - 1))  # type: ignore[union-attr, operator]
    assert check_selection(problem, worse).verdict is Verdict.REFUTED


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_joints_larger_than_a_block(parts: int) -> None:
    """Story: blocked minima added the first and the last table of a joint; where there was only one, every entry
    counted twice and a false optimum was claimed."""
    rng = np.random.default_rng(parts)
    dims = [5, 40, 41, 42]
    factors = tuple(((0, 1, 2, 3), rng.integers(0, 1000, dims)) for _ in range(parts))
    unary = rng.integers(0, 1000, dims[0])
    assert prod(dims) > sums.CHUNK
    got = dense._minimum(0, (1, 2, 3), unary, factors, dims)
    assert np.array_equal(got, (sum(table for _, table in factors) + unary[:, None, None, None]).min(axis=0))


@pytest.mark.parametrize("mapped", [False, True])
def test_no_message_is_wider_than_a_file_holds(mapped: bool) -> None:
    """Tables of single choices are small however many axes they have: no bound on entries stops an elimination over
    all of 80 vertices.
    """
    rows = np.array([0]) if mapped else None  # a choice map takes the problem from `dense` to `search`
    vertices = tuple(Vertex(str(i), np.array([i])) for i in range(80))
    edges = tuple(Edge(i, j, 0, rows) for j in range(80) for i in range(j))
    problem = SelectionProblem("all with all", vertices, (np.array([[1]]),), edges).check()
    assert dense.plain(problem) is not mapped
    found = solve(problem)
    assert found.certificate is not None and (found.status, found.cost) == (Status.OPTIMAL, sum(range(80)) + len(edges))
    assert (
        check_selection(problem, read_certificate(write_certificate(None, found.certificate))).verdict is Verdict.PROVED
    )


def least_fill(sizes: list[int], near: list[set[int]]) -> list[int]:
    """The order by the formula: fill-in, joint size, number, all of them again at every step."""
    left, order = set(range(len(sizes))), []
    while left:
        v = min(
            left,
            key=lambda v: (
                sum(b not in near[a] for a in near[v] for b in near[v] if a < b),
                sizes[v] * prod(sizes[w] for w in near[v]),
                v,
            ),
        )
        for a in near[v]:
            near[a] = (near[a] | near[v]) - {a, v}
        left.remove(v)
        order.append(v)
    return order


@pytest.mark.parametrize("seed", range(60))
def test_the_elimination_order_is_that_of_the_formula(seed: int) -> None:
    rng = random.Random(seed)
    n, density = rng.randint(1, 14), rng.choice((0.1, 0.3, 0.6))
    sizes = [rng.randint(1, 3) for _ in range(n)]
    ends = [(i, j) for j in range(n) for i in range(j) if rng.random() < density]
    vertices = tuple(Vertex(f"v{v}", np.zeros(k, dtype=np.int64)) for v, k in enumerate(sizes))
    tables = tuple(np.zeros((sizes[i], sizes[j]), dtype=np.int64) for i, j in ends)
    problem = SelectionProblem("order", vertices, tables, tuple(Edge(i, j, e) for e, (i, j) in enumerate(ends)))
    near: list[set[int]] = [set() for _ in range(n)]
    for i, j in ends:
        near[i].add(j)
        near[j].add(i)
    found = order_of(build(Base(problem), whole(problem)))
    assert list(found.order) == least_fill(sizes, near) and found.complete


def test_a_vertex_of_many_neighbours_costs_its_degree_not_its_pairs() -> None:
    """A weight that thousands of unrolled steps read: its fill-in was counted anew, pair by pair, whenever a step
    went (94 s for RNNLM).
    """
    n = 1500
    vertices = tuple(Vertex(f"v{v}", np.zeros(2, dtype=np.int64)) for v in range(n + 1))
    edges = tuple(Edge(0, v, 0) for v in range(1, n + 1)) + tuple(Edge(v, v + 1, 0) for v in range(1, n))
    problem = SelectionProblem("star", vertices, (np.zeros((2, 2), dtype=np.int64),), edges)
    built = build(Base(problem), whole(problem))
    calls = 0

    class Counted(set[int]):
        def __and__(self, other: object) -> set[int]:
            nonlocal calls
            calls += 1
            return set.__and__(self, other)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eliminate_module, "set", Counted, raising=False)
        found = order_of(built)
    assert found.complete and found.width <= 3 and calls < n * n


@pytest.mark.parametrize("around", [31, 32, 40, 63, 64, 70])
@pytest.mark.parametrize("stored", [True, False])
def test_tables_of_many_axes_are_added_up_or_refused(around: int, stored: bool) -> None:
    """A vertex with many neighbours of one choice each: no error of NumPy's, whose arrays have 64 axes at most."""
    tables = (np.array([[1], [2]], dtype=np.int64),)
    vertices = (Vertex("hub", np.array([3, 0], dtype=np.int64)), *(Vertex(f"v{k}", np.zeros(1)) for k in range(around)))
    vertices = tuple(Vertex(v.name, np.asarray(v.cost, dtype=np.int64)) for v in vertices)
    edges = tuple(Edge(0, k, 0) for k in range(1, around + 1))
    problem = SelectionProblem("star", vertices, tables, edges).check()
    order = tuple(range(around + 1))
    scopes = tuple(tuple(range(k + 1, around + 1)) for k in range(around + 1))
    least = min(3 + around, 2 * around)
    if stored and around > 63:
        return  # no such array can be written
    messages = tuple(np.full((1,) * len(s), least, dtype=np.int64) for s in scopes) if stored else ()
    record = Elimination(order, scopes, messages)
    right = check_selection(problem, certified(problem, LowerBound(least), record))
    wrong = check_selection(problem, certified(problem, LowerBound(least + 1), record))
    assert wrong.verdict is not Verdict.PROVED
    assert (right.verdict is Verdict.PROVED) is (around < 64)
