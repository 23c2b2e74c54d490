"""Parts of a solution searched again around the rest, at prices and under a limit; mixtures of two plans over
layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from random_problems import maps_and_holes, rows_for_every_second

from shardproof.formal.selection.bound.restricted_master import Column, master
from shardproof.formal.selection.decomposition import column_generation as generating
from shardproof.formal.selection.decomposition import round_master as rounding
from shardproof.formal.selection.decomposition.column_generation import generate_columns
from shardproof.formal.selection.decomposition.quotient import quotient
from shardproof.formal.selection.decomposition.round_master import _Rounded, _Side, pair, round_master
from shardproof.formal.selection.decomposition.symmetric import average, symmetric_problem
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.priced import Floats
from shardproof.formal.selection.model.resources import Rows
from shardproof.formal.selection.model.restrict import condition
from shardproof.formal.selection.options.bound import BoundOptions
from shardproof.formal.selection.options.decomposition import DECOMPOSITION
from shardproof.formal.selection.options.tree import TREE
from shardproof.formal.selection.tree import neighbourhood as mending
from shardproof.formal.selection.tree.neighbourhood import connected_parts, repair_by_prices, search_neighbourhood
from shardproof.formal.selection.tree.run import Run, converge_on_whole
from shardproof.models.problem.selection_problem import (
    FORBIDDEN,
    Edge,
    Fine,
    ProblemError,
    SelectionProblem,
    Usage,
    Vertex,
)
from shardproof.proofs.selection.certificates import Dual

from .test_seams import bound_rows, ladder, lower_of, optimum, searching, tight


def choices(problem: SelectionProblem) -> Iterator[tuple[int, ...]]:
    for x in np.ndindex(*(v.cost.size for v in problem.vertices)):
        yield tuple(int(a) for a in x)


@pytest.mark.parametrize("seed", range(8))
def test_conditioning_keeps_costs(seed: int) -> None:
    """Every choice of the free vertices costs in the small problem what it costs in the whole."""
    problem, rng = maps_and_holes(seed), np.random.default_rng(seed)
    x = tuple(int(rng.integers(v.cost.size)) for v in problem.vertices)
    free = {int(v) for v in rng.choice(12, seed, replace=False)}
    small = condition(problem, x, free)
    assert len(small.inner.vertices) == len(free)
    for _ in range(20):
        y = tuple(int(rng.integers(v.cost.size)) for v in small.inner.vertices)
        whole = small.solution_back(y)
        assert small.inner.cost_of(y) == problem.cost_of(whole)
        assert all(whole[v] == a for v, a in enumerate(x) if v not in free)


def test_conditioning_forbids_what_the_others_forbid() -> None:
    table = np.array([[0, FORBIDDEN], [1, 2]])
    pair = SelectionProblem(
        "pair", (Vertex("a", np.array([0, 0])), Vertex("b", np.array([0, 0]))), (table,), (Edge(0, 1, 0),)
    )
    assert condition(pair, (0, 1), {0}).inner.vertices[0].cost.tolist() == [FORBIDDEN, 2]
    assert condition(pair, (0, 1), {1}).inner.vertices[0].cost.tolist() == [0, FORBIDDEN]
    assert condition(pair, (0, 1), set()).inner.constant == 0, "left out: what the others do is not decided here"
    less = replace(pair, vertices=(Vertex("a", np.array([-5, 0])), pair.vertices[1]))
    assert condition(less, (0, 1), {0}).inner.vertices[0].cost.tolist() == [FORBIDDEN, 2], (
        "a negative cost does not make it allowed"
    )
    with pytest.raises(ProblemError, match="in one part"):
        condition(replace(pair, fine=Fine(1, np.zeros(8, dtype=np.uint8))), (0, 0), {0})


@pytest.mark.parametrize("seed", range(8))
def test_conditioning_keeps_rows(seed: int) -> None:
    """A choice of the free vertices fits in the small problem exactly if it fits in the whole, where the others
    alone do.
    """
    rng = np.random.default_rng(seed)
    seen = set()
    for limit in (10, 16, 22, 200):
        problem = rows_for_every_second(seed, limit)
        x = tuple(int(rng.integers(v.cost.size)) for v in problem.vertices)
        free = {int(v) for v in rng.choice(12, 4, replace=False)}
        alone = replace(problem, usages=tuple(u for u in problem.usages if u.vertex not in free)).peak_of(x)[0]
        small = condition(problem, x, free)
        assert small.inner.limit == limit and len(small.inner.vertices) == len(free) + 1
        for y in choices(small.inner):
            fits = small.inner.peak_of(y)[0] <= limit
            peak = problem.peak_of(small.solution_back(y))[0]
            assert small.inner.cost_of(y) == problem.cost_of(small.solution_back(y))
            assert fits == (peak <= limit) or alone > limit and fits
            seen.add((fits, alone > limit))
        if limit == 200:
            assert not small.inner.usages, "what cannot exceed the limit is left out"
    assert {fits for fits, _ in seen} == {True, False}


def test_mend_searches_parts_that_no_edge_joins_one_after_another() -> None:
    """Two windows of a ladder far from each other: together they reach what the best choices of both reach."""
    problem = ladder(30, 2)
    windows = {0, 1, 2, 3}, {30, 31, 32}
    free = windows[0] | windows[1]
    assert mending.connected_parts(problem, free) == [windows[1], windows[0]], "smallest first"
    search = searching(replace(problem, limit=None, usages=()))
    x = (0,) * len(problem.vertices)
    y = search_neighbourhood(search, search.problem, x, free, Clock())
    small = condition(problem, x, free)
    assert problem.cost_of(y) == optimum(small.inner) < problem.cost_of(x)
    assert all(y[v] == 0 for v in range(len(x)) if v not in free)
    assert search_neighbourhood(search, search.problem, x, set(), Clock()) == x


def test_mend_takes_windows_out_of_forbidden_starts() -> None:
    """The ends of an expanded plan often are forbidden, several at a time: each is searched while the others still
    are.
    """
    problem = ladder(30, 2)
    table = problem.tables[0].copy()
    table[0, 0] = FORBIDDEN
    free = {0, 1, 2, 3, 30, 31, 32, 33}
    start = tuple(0 if v in free else int(np.argmin(problem.vertices[v].cost)) for v in range(len(problem.vertices)))
    barred = replace(problem, tables=(table, *problem.tables[1:]))
    assert barred.cost_of(start) >= FORBIDDEN
    search = searching(barred)
    y = search_neighbourhood(search, barred, start, free, Clock())
    for e in barred.edges:
        assert e.u not in free or e.v not in free or int(barred.tables[e.table][y[e.u], y[e.v]]) < FORBIDDEN


@pytest.mark.parametrize("seed", range(10))
def test_tighten_finds_the_best_that_fits_in_its_window(seed: int) -> None:
    """From a start that fits and from one that does not; against enumeration."""
    rng = np.random.default_rng(seed)
    loose = rows_for_every_second(seed, 10**6)
    starts = [tuple(int(rng.integers(v.cost.size)) for v in loose.vertices) for _ in range(40)]
    peaks = [loose.peak_of(x)[0] for x in starts]
    lean, full = starts[int(np.argmin(peaks))], starts[int(np.argmax(peaks))]
    problem = replace(loose, limit=min(peaks) + 1)
    for start, size in ((lean, 3), (lean, 5), (full, 3), (full, 5), (full, 6)):
        free = {int(v) for v in rng.choice(12, size, replace=False)}
        search = searching(problem)
        assert search.rows is not None
        n = np.zeros(len(search.rows.events))
        n[int(search.rows.use(full).argmax())] = 3.0
        inside = replace(problem, vertices=tuple(problem.vertices[v] for v in sorted(free)))
        fitting = [problem.cost_of(x) for y in choices(inside) if problem.is_feasible(x := put(start, free, y))]
        found = repair_by_prices(search, start, n, free, Clock())
        if found is None:
            assert start is full, "what fits is never lost"
            continue
        assert problem.is_feasible(found) and all(found[v] == start[v] for v in range(12) if v not in free)
        assert problem.cost_of(found) == min(fitting)


def put(x: tuple[int, ...], free: set[int], y: tuple[int, ...]) -> tuple[int, ...]:
    """`x` with `y` at the free vertices, in order."""
    there = dict(zip(sorted(free), y, strict=True))
    return tuple(there.get(v, a) for v, a in enumerate(x))


def test_tighten_reaches_what_no_price_reaches() -> None:
    """(usage, cost) = (0, 30), (4, 21), (9, 0), limit 5: the middle is no corner of the hull, but what fits best."""
    one = SelectionProblem(
        "one", (Vertex("a", np.array([30, 21, 0])),), (), (), limit=5, usages=(Usage(0, 0, 1, np.array([0, 4, 9])),)
    )
    search = searching(one)
    for start in (0, 2):
        assert repair_by_prices(search, (start,), np.array([3.3]), {0}, Clock()) == (1,)
    tighter = replace(one, limit=3)
    assert repair_by_prices(searching(tighter), (2,), np.array([3.3]), {0}, Clock()) == (0,)
    hopeless = replace(one, usages=(Usage(0, 0, 1, np.array([6, 7, 9])),))
    assert repair_by_prices(searching(hopeless), (2,), np.array([3.3]), {0}, Clock()) is None


def test_a_row_without_a_price_gets_one_when_it_is_exceeded() -> None:
    usages = (Usage(0, 0, 1, np.array([4, 4, 4])), Usage(0, 2, 3, np.array([0, 4, 9])))
    one = SelectionProblem("one", (Vertex("a", np.array([30, 21, 0])),), (), (), limit=5, usages=usages)
    assert repair_by_prices(searching(one), (2,), np.array([10.0, 0.0]), {0}, Clock()) == (1,)


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_pair_against_the_master_program(seed: int) -> None:
    """The master program on two columns is the mixture in the best proportion."""
    rng = np.random.default_rng(seed)
    columns = [Column((k,), int(rng.integers(10, 100)), rng.integers(0, 20, 3).astype(np.float64)) for k in range(5)]
    limit = 8
    options = BoundOptions(over_price=1e6)
    values = [
        m.value
        for a in columns
        for b in columns
        if (m := master([a, b], limit, options)).over <= 1e-9 and min(a.use.max(), b.use.max()) <= limit
    ]
    share, cheap, lean = pair(columns, limit)
    if not values:
        assert share == 0.0 and cheap is lean and lean.use.max() == min(c.use.max() for c in columns)
        return
    assert master([cheap, lean], limit, options).value == pytest.approx(min(values)) and cheap.cost <= lean.cost
    assert share * cheap.cost + (1.0 - share) * lean.cost == pytest.approx(min(values))


@pytest.mark.parametrize("early", [True, False])
def test_a_side_has_the_cheaper_plan_on_k_layers(early: bool) -> None:
    layer = np.repeat(np.arange(5), 2)
    side = _Side(np.full(10, 7), np.full(10, 3), layer, 5, 1, early)
    for k in range(6):
        mixture = side.round_at(k)
        cheaper = {int(b) for b in layer[mixture == 7]}
        assert cheaper == (set(range(k)) if early else set(range(5 - k, 5)))
        around, leaner = {int(layer[v]) for v in side.interface(k)}, {int(layer[v]) for v in side.leaner(k)}
        assert len(leaner) == 1
        if 0 < k < 5:
            assert around == ({k - 1, k} if early else {4 - k, 5 - k}) and leaner <= around and not leaner & cheaper


def test_the_most_promising_mixtures_are_tightened_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many at most, none that is worth no less than the best costs; what comes back is offered."""
    problem, _ = bound_rows(0, Fraction(9, 10), 10**6)
    found, search = quotient(problem), searching(problem)
    assert found is not None and search.rows is not None
    lightest = {u.vertex: int(np.argmin(u.amount)) for u in problem.usages}
    light = tuple(lightest.get(v, 0) for v in range(len(problem.vertices)))
    cost = problem.cost_of(light)
    assert problem.is_feasible(light)
    unused = [v for v in range(len(light)) if v not in lightest]

    def other(k: int) -> tuple[int, ...]:
        return tuple(1 if v == unused[k] else a for v, a in enumerate(light))

    worths = {True: [cost - 5.0, cost - 50.0, cost + 9.0], False: [cost - 20.0, cost - 1.0, cost - 30.0]}
    monkeypatch.setattr(
        rounding,
        "_from_one_side",
        lambda search, side, k, n, free, until: [
            _Rounded(w, other(i + 3 * side.early), {i}) for i, w in enumerate(worths[side.early])
        ],
    )
    asked: list[int] = []

    def stub(search: Run, solution: tuple[int, ...], n: Floats, free: set[int], until: Clock) -> tuple[int, ...]:
        asked.append(min(free))
        return light

    monkeypatch.setattr(rounding, "repair_by_prices", stub)
    column = Column((0,) * len(found.problem.vertices), 1, np.zeros(len(search.rows.events)))
    n = np.zeros(len(search.rows.events))
    assert search.incumbent.solution is None
    round_master(search, found, [column], n, set())
    assert asked == [1, 2, 0] and search.incumbent.cost == cost
    worths[True], worths[False] = [cost - 2.0, float(cost), cost + 1.0], []
    asked.clear()
    round_master(search, found, [column], n, set())
    assert asked == [0] * 3, "not worth less than the best costs; nothing better was found, so three attempts"


def test_prices_stop_where_the_limit_is_crossed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up until it fits, down until it does not; the steps after that would leave more unused, or exceed it by more."""
    one = SelectionProblem(
        "one", (Vertex("a", np.array([30, 21, 0])),), (), (), limit=5, usages=(Usage(0, 0, 1, np.array([0, 4, 9])),)
    )
    tried: list[float] = []
    real = mending.priced_problem

    def watched(rows: Rows, n: Floats) -> SelectionProblem:
        tried.append(float(n[0]))
        return real(rows, n)

    monkeypatch.setattr(mending, "priced_problem", watched)
    for start, n in ((2, 1.0), (0, 10.0)):
        tried.clear()
        repair_by_prices(searching(one), (start,), np.array([n]), {0}, Clock())
        factors = TREE.dearer if start == 2 else TREE.cheaper
        assert [t / n for t in tried[: len(factors)]] == list(factors), "prices at which nothing changes"
    for n, last in ((2.0, 2.0), (2.6, 1.5)):
        tried.clear()
        repair_by_prices(searching(one), (2,), np.array([n]), {0}, Clock())
        assert tried[-1] / n == last


@pytest.mark.parametrize("seed", range(3))
def test_generate_returns_the_prices_that_bound_best(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = bound_rows(seed, Fraction(9, 10), 10**6)
    found, search = quotient(problem), searching(problem)
    assert found is not None and problem.limit is not None
    same = Rows(symmetric_problem(problem, found))
    bounds: list[tuple[float, Floats]] = []
    real = generating._column

    def watched(
        search: Run, same: Rows, n: Floats, columns: list[Column], warm: Dual, until: Clock
    ) -> tuple[Column, Dual | None, float]:
        answer = real(search, same, n, columns, warm, until)
        assert answer is not None
        column, record, slack = answer
        bounds.append((column.cost + float(n @ column.use) - float(problem.limit or 0) * float(n.sum()) - slack, n))
        return column, record, slack

    monkeypatch.setattr(generating, "_column", watched)
    monkeypatch.setattr(generating, "round_master", lambda *arguments: None)
    inner = tight(replace(same.problem, usages=(), limit=None), Clock())
    first = converge_on_whole(inner)
    inner.search(first)
    assert inner.incumbent.solution is not None
    answer = generate_columns(search, found, same, (inner.incumbent.solution, first), set())
    best = max(bounds, key=lambda b: b[0])
    assert len(bounds) > 1 and answer is not None and answer[1] is best[1]
    ring = average(same, found, answer[1])
    assert answer[0].multipliers == () and 0.95 * optimum(ring) <= lower_of(ring, answer[0]) <= optimum(ring)
    plain = generating.column_of(same, inner.incumbent.solution)
    assert np.array_equal(bounds[0][1], generating._steep([plain], problem.limit, DECOMPOSITION))


def test_steep_prices_grow_until_something_fits() -> None:
    """At the events where the plans tried use most, more where later ones do, steeper with every plan."""
    columns = [Column((0,), 80, np.array([9.0, 12.0])), Column((1,), 90, np.array([11.0, 8.0]))]
    assert generating._steep(columns[:1], 10, DECOMPOSITION).tolist() == [0.0, 4.0]
    both = 2.0 * DECOMPOSITION.steeper  # half of the first plan's price of the limit for each of the two events
    assert generating._steep(columns, 10, DECOMPOSITION).tolist() == [both, both]
    last = Column((2,), 95, np.array([3.0, 10.5]))
    third = 4.0 * DECOMPOSITION.steeper**3 / 3.0
    assert np.allclose(generating._steep([*columns, last], 10, DECOMPOSITION), [third, 2.0 * third])


def test_an_end_is_searched_where_the_end_exceeds_the_limit() -> None:
    """A row without a price is exceeded: by nothing that layers do, so the end with the most to give is the window,
    and the row gets a price.
    """
    problem, _ = bound_rows(0, Fraction(9, 10), 10**6)
    n_vertices = len(problem.vertices)
    late = max(u.end for u in problem.usages) + 5
    own = (
        Usage(0, late, late + 1, np.array([5, 9, 9, 9])),
        Usage(1, late, late + 1, np.array([0, 90, 90, 90])),
        Usage(50, late, late + 1, np.array([100, 101, 101, 101])),
    )
    problem = replace(problem, limit=160, usages=own)
    search = searching(problem)
    assert search.rows is not None
    x = (1,) * n_vertices
    n = np.zeros(len(search.rows.events))
    free = {0, 1, 50, 51}
    parts = mending.connected_parts(problem, free)
    mixture = _Rounded(0.0, x, {30})
    window = rounding._window(search, mixture, n, free)
    assert len(parts) > 1 and 1 in window and window in parts
    found = repair_by_prices(search, x, n, window, Clock())
    assert found is not None and problem.is_feasible(found) and not problem.is_feasible(x)
    assert rounding._window(search, mixture, n + 1.0, free) == {30}, "priced: layers are what gives way"
    assert rounding._window(search, _Rounded(0.0, found, {30}), n, free) == {30}, "nothing is exceeded"
    assert rounding._window(search, mixture, n, set()) == {30}, "no end"


def test_parts_between_which_are_no_edges() -> None:
    """Two vertices may have several edges: that ended in an internal error."""
    table = np.zeros((2, 2), dtype=np.int64)
    vertices = tuple(Vertex(f"v{i}", np.zeros(2, dtype=np.int64)) for i in range(6))
    joined = ((0, 1), (0, 1), (1, 2), (2, 0), (3, 4), (4, 3))
    problem = SelectionProblem("parts", vertices, (table,), tuple(Edge(u, v, 0) for u, v in joined))
    assert connected_parts(problem, {0, 1, 2, 3, 4, 5}) == [{5}, {3, 4}, {0, 1, 2}]
    assert connected_parts(problem, {0, 2, 3}) == [{3}, {0, 2}]
