"""Rounded resource rows: their inequality, the checker's arithmetic, mutants, and the solver's side of it.

The oracle evaluates the formulas of `proofs/selection/certificates.py` entry by entry in Python integers.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import selection_cases as cases
from budgets import work
from contest_cases import contest_problem
from hypothesis import given
from hypothesis import strategies as st
from oracles import brute_force
from random_problems import graphs_of_all_kinds

from shardproof.formal.selection.bound.dense_dual import DenseBounder, quantise
from shardproof.formal.selection.bound.mir_cuts import Cut, build, separate
from shardproof.formal.selection.bound.smoothed import smoothed_ascent
from shardproof.formal.selection.bound.warm_start import carry
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.dense import dense_problem
from shardproof.formal.selection.presolve.presolve import presolve
from shardproof.formal.selection.primal.local_search import Improver
from shardproof.formal.selection.tree.best_first import start
from shardproof.models.problem.claims import LowerBound, Verdict
from shardproof.models.problem.selection_problem import SelectionProblem, Usage, Vertex
from shardproof.proofs.selection.certificates import Dual, Open, Rounded
from shardproof.proofs.selection.file import read_certificate, write_certificate
from shardproof.verify.selection.certificate import check_selection
from shardproof.verify.selection.dual import dual_bound
from shardproof.verify.selection.ground import Ground, Refuted
from shardproof.verify.selection.rounded import rounded_terms


def rounding(d: int, g: int, r: int) -> int:
    return (g - r) * (d // g) + max(0, d % g - r)


@given(st.integers(1, 60), st.integers(0, 59), st.integers(-200, 200), st.integers(-200, 200))
def test_rounding_never_decreases_and_is_superadditive(g: int, r: int, a: int, b: int) -> None:
    r %= g
    assert rounding(a, g, r) + rounding(b, g, r) <= rounding(a + b, g, r)
    assert rounding(a, g, r) <= rounding(a + 1, g, r) and rounding(0, g, r) == 0


def use_at(problem: SelectionProblem, v: int, a: int, t: int) -> int:
    return sum(int(u.amount[a]) for u in problem.usages if u.vertex == v and u.start <= t < u.end)


def oracle_terms(problem: SelectionProblem, row: Rounded) -> tuple[list[list[int]], int]:
    """(what the row adds to theta of every choice, what it takes off)."""
    assert problem.limit is not None
    g = row.modulus
    base = [use_at(problem, v, int(z), row.step) for v, z in enumerate(row.reference)]
    cap = problem.limit - sum(base)
    r = cap % g
    added = [
        [row.multiplier * rounding(use_at(problem, v, a, row.step) - base[v], g, r) for a in range(x.cost.size)]
        for v, x in enumerate(problem.vertices)
    ]
    return added, row.multiplier * (g - r) * (cap // g)


def random_row(problem: SelectionProblem, rng: random.Random) -> Rounded:
    reference = np.array([rng.randrange(v.cost.size) for v in problem.vertices], dtype=np.int64)
    return Rounded(rng.randint(-1, 9), rng.randint(1, 6), rng.randint(1, 9), reference)


def folded(problem: SelectionProblem, rows: list[Rounded], q: int) -> tuple[SelectionProblem, int]:
    """The problem whose vertex costs hold the rows, for q = 1."""
    assert q == 1
    costs, off = [v.cost.copy() for v in problem.vertices], 0
    for row in rows:
        added, taken = oracle_terms(problem, row)
        off += taken
        for cost, more in zip(costs, added, strict=True):
            cost += np.where(cost >= 1 << 60, 0, more)
    vertices = tuple(Vertex(v.name, cost) for v, cost in zip(problem.vertices, costs, strict=True))
    return replace(problem, vertices=vertices, constant=problem.constant - off), off


def test_checker_evaluates_the_formula() -> None:
    """A record with rounded rows is worth what it is worth without them on the problem that has them in its costs;
    never above the optimum.
    """
    seen = 0
    for seed in range(400):
        problem = graphs_of_all_kinds(seed, rows=True)
        if problem.limit is None:
            continue
        rng = random.Random(seed)
        plain = cases.random_dual(problem, rng, q=1)
        rows = [random_row(problem, rng) for _ in range(rng.randint(1, 3))]
        dual = replace(plain, rounded=tuple(rows), then=Open())
        optimum, _ = brute_force(problem)
        ub = rng.choice([10, 40, 100])
        got, kept = dual_bound(Ground(problem), dual, list(Ground(problem).full), ub, "test")
        inside, _ = folded(problem, rows, 1)
        want, left = dual_bound(Ground(inside), replace(plain, then=Open()), list(Ground(inside).full), ub, "test")
        assert got == want, seed
        assert (kept is None) == (left is None)
        if kept is not None and left is not None:
            assert [k.tolist() for k in kept] == [k.tolist() for k in left], seed
        if optimum is not None:
            assert got <= optimum, seed
            seen += 1
    assert seen > 100


def knapsack(limit: int, items: list[int]) -> SelectionProblem:
    """Using item i saves 10 per unit."""
    vertices = tuple(Vertex(f"item{i}", np.array([10 * u, 0], dtype=np.int64)) for i, u in enumerate(items))
    usages = tuple(Usage(i, 0, 1, np.array([0, u], dtype=np.int64)) for i, u in enumerate(items))
    return SelectionProblem("knapsack", vertices, (), (), usages, limit)


def test_a_rounded_row_closes_a_knapsack() -> None:
    problem = knapsack(10, [4, 4, 4])  # two of three fit: optimum 40, relaxed 20
    zero = np.zeros(3, dtype=np.int64)
    plain = Dual((), (), 1, ((0, 10),))
    rounded = Dual((), (), 2, (), None, (Rounded(0, 40, 4, zero),))  # F(4) = 2, F(10) = 4
    assert dual_bound(Ground(problem), plain, list(Ground(problem).full), 1000, "t")[0] == 20
    assert dual_bound(Ground(problem), rounded, list(Ground(problem).full), 1000, "t")[0] == 40
    certificate = cases.certified(problem, LowerBound(40), rounded)
    again = read_certificate(write_certificate(None, certificate))
    assert check_selection(problem, again).verdict is Verdict.PROVED
    assert check_selection(problem, cases.certified(problem, LowerBound(41), rounded)).verdict is Verdict.UNDECIDED


MALFORMED = {
    "no multiplier": {"multiplier": 0},
    "negative multiplier": {"multiplier": -1},
    "modulus 0": {"modulus": 0},
    "negative modulus": {"modulus": -4},
    "missing choice": {"reference": np.array([0, 0, 2])},
    "negative choice": {"reference": np.array([0, -1, 0])},
    "too few": {"reference": np.zeros(2, dtype=np.int64)},
    "floats": {"reference": np.zeros(3)},
    "shape": {"reference": np.zeros((3, 1), dtype=np.int64)},
    "float modulus": {"modulus": 4.0},
    "float multiplier": {"multiplier": 40.0},
    "float step": {"step": 0.0},
    "bool": {"multiplier": True},
}


@pytest.mark.parametrize("changes", MALFORMED.values(), ids=MALFORMED)
def test_malformed_rows_are_refused(changes: dict[str, object]) -> None:
    problem = knapsack(10, [4, 4, 4])
    row = replace(Rounded(0, 40, 4, np.zeros(3, dtype=np.int64)), **changes)
    with pytest.raises(Refuted):
        rounded_terms(Ground(problem), (row,), list(Ground(problem).full), "test")


def test_rows_need_a_limit() -> None:
    problem = replace(knapsack(10, [4, 4, 4]), limit=None)
    with pytest.raises(Refuted, match="no limit"):
        rounded_terms(
            Ground(problem), (Rounded(0, 1, 4, np.zeros(3, dtype=np.int64)),), list(Ground(problem).full), "test"
        )


def test_too_good_claims_about_random_rows_are_not_proved() -> None:
    """The bound of the record is accepted, one more never."""
    for seed in range(300):
        problem = graphs_of_all_kinds(seed, rows=True)
        if problem.limit is None:
            continue
        rng = random.Random(seed + 1)
        dual = replace(cases.random_dual(problem, rng), rounded=tuple(random_row(problem, rng) for _ in range(2)))
        bound, _ = dual_bound(Ground(problem), dual, list(Ground(problem).full), float("inf"), "test")
        if bound == float("inf"):
            continue
        for claimed, verdict in ((int(bound), Verdict.PROVED), (int(bound) + 1, Verdict.UNDECIDED)):
            certificate = read_certificate(write_certificate(None, cases.certified(problem, LowerBound(claimed), dual)))
            assert check_selection(problem, certificate).verdict is verdict, seed


@pytest.mark.parametrize("scale", [1, 1 << 20, 1 << 50])
@pytest.mark.parametrize("multiplier", [1, 1 << 30, 1 << 58])
def test_large_numbers_do_not_wrap(scale: int, multiplier: int) -> None:
    problem = knapsack(10 * scale + 1, [4 * scale, 3 * scale + 1, 5 * scale])
    row = Rounded(0, multiplier, 4 * scale, np.array([1, 0, 0], dtype=np.int64))
    terms, total = rounded_terms(Ground(problem), (row, row), list(Ground(problem).full), "test")
    added, taken = oracle_terms(problem, row)
    assert total == 2 * taken
    for v, more in enumerate(added):
        found = terms[v][0] if v in terms else [0, 0]
        assert [int(x) for x in found] == [2 * x for x in more]
        assert max(abs(2 * x) for x in more) <= terms[v][1]


@pytest.mark.parametrize("seed", range(4))
def test_solver_and_checker_agree(seed: int) -> None:
    reduction = presolve(contest_problem(seed, 15, 3, tight=0.4))
    assert reduction is not None and reduction.problem is not None
    core = reduction.problem
    flat = dense_problem(core)
    bounder = DenseBounder(flat, 1 << 50)
    state = bounder.subgradient_ascent(start(flat), 1e6, 80, Clock())
    improver = Improver(flat)
    assert improver.fit(np.zeros(flat.vertices, dtype=np.int64), state.n, work(20))
    upper = int(improver.best_value) + core.constant
    state = smoothed_ascent(bounder, state, float(upper), Clock(), steps=20)
    before = state.bound
    rows = np.flatnonzero(state.n > 0)[:3].tolist() or [0]
    rng = np.random.default_rng(seed)
    reference = np.array([int(rng.integers(k)) for k in np.diff(flat.label)], dtype=np.int64)
    bounder.cuts = build(flat, tuple(Cut(r, int(rng.integers(1, 50)), reference) for r in rows))
    state.k = np.full(len(rows), 1e-3)
    state = bounder.subgradient_ascent(state, float(upper), 30, Clock())
    found = quantise(flat, state, upper, bounder.cuts)
    assert found is not None
    record, exact = found
    assert record.rounded and exact.bound is not None and abs(exact.bound / exact.denominator - state.bound) < 1.0
    bound, kept = dual_bound(Ground(core), replace(record, then=Open()), list(Ground(core).full), upper, "test")
    assert bound == exact.lower() and bound is not None and bound <= upper and before <= upper
    assert kept is not None and [k.tolist() for k in kept] == [k.tolist() for k in exact.fix(flat.domains, upper)]
    smaller = presolve(core, exact.fix(flat.domains, upper))
    if smaller is not None and smaller.problem is not None:
        inner = dense_problem(smaller.problem)
        cuts, k = carry(flat, state, bounder.cuts, smaller, inner)
        assert cuts.count == k.size <= len(rows)
        assert all(0 <= c.row < inner.events.size and (c.reference < np.diff(inner.label)).all() for c in cuts.kinds)


def test_separation_finds_the_row_that_closes_the_knapsack() -> None:
    flat = dense_problem(knapsack(10, [4, 4, 4]))
    often = np.array([0, 1, 0, 1, 0.5, 0.5])
    found = separate(flat, np.array([10.0]), often, ())
    assert [(c.row, c.modulus) for c in found] == [(0, 4)]
    bounder = DenseBounder(flat, 1000)
    bounder.often = often
    state = start(flat)
    state.n[:] = 10.0
    assert bounder.tighten(state, 4) == 1
    state = bounder.subgradient_ascent(state, 40.0, 300, Clock())
    assert state.bound > 39.0  # 20 without
    exact = quantise(flat, state, 40, bounder.cuts)
    assert exact is not None and (lower := exact[1].lower()) is not None and lower >= 39


def test_smoothing_is_deterministic_and_never_lowers_the_bound() -> None:
    flat = dense_problem(contest_problem(3, 30, 3, tight=0.3))
    bounder = DenseBounder(flat, 1 << 50)
    state = bounder.subgradient_ascent(start(flat), 1e6, 40, Clock())
    one = smoothed_ascent(bounder, state, 1.2 * state.bound, Clock(), steps=15)
    two = smoothed_ascent(bounder, state, 1.2 * state.bound, Clock(), steps=15)
    assert one.bound == two.bound >= state.bound and (one.messages == two.messages).all()
