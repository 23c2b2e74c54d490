"""Seams of repeated blocks: distances from them, and messages with multipliers in their own unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from random_problems import maps_and_holes

from shardproof.formal.selection.bound import converge
from shardproof.formal.selection.bound.accelerated import AcceleratedSweeper
from shardproof.formal.selection.bound.dual import gather, score, score_of
from shardproof.formal.selection.bound.trws import Sweeper, load
from shardproof.formal.selection.decomposition import blocks, interface
from shardproof.formal.selection.decomposition.blocks import begin, converge_at
from shardproof.formal.selection.decomposition.quotient import Quotient, quotient
from shardproof.formal.selection.elimination.factored import eliminate, elimination_order, recorded_order
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.factored import Base, allowed_domains, build, whole
from shardproof.formal.selection.options import OPTIONS, Options
from shardproof.formal.selection.options.bound import BOUND, BoundOptions
from shardproof.formal.selection.options.decomposition import DecompositionOptions
from shardproof.formal.selection.options.limits import Limits
from shardproof.formal.selection.primal.incumbent import Incumbent
from shardproof.formal.selection.solve import solve
from shardproof.formal.selection.tree import run as runs
from shardproof.formal.selection.tree.branch_and_bound import eliminator, new_run
from shardproof.formal.selection.tree.run import Run, converge_on_whole
from shardproof.models.problem.selection_problem import FORBIDDEN, Edge, Ints, SelectionProblem, Usage, Vertex
from shardproof.proofs.selection.certificates import Dual

TIGHT = Limits(
    joint=1,
    work=1,
    kept=1,
    last_joint=1,
    last_work=1,
    last_kept=1,
    root_sweeps=20,
    node_sweeps=5,
    node_steps=5,
)
"""No elimination: what comes out are messages.  Few sweeps: seconds."""

LARGE = 60
"""More vertices than a ring has."""

Call = tuple[Run, Dual]


def make(problem: SelectionProblem, clock: Clock) -> Run:
    return new_run(problem, Incumbent(problem), clock)


def tight(problem: SelectionProblem, clock: Clock) -> Run:
    """No elimination of a ring: its messages are what is asked for here.  The ends, where most vertices are fixed,
    may be eliminated.
    """
    return new_run(
        problem,
        Incumbent(problem),
        clock,
        replace(OPTIONS, limits=TIGHT if len(problem.vertices) < LARGE else Limits()),
    )


def searching(problem: SelectionProblem, options: Options | None = None) -> Run:
    """A run whose parts are `tight`."""
    return with_parts(new_run(problem, Incumbent(problem), Clock(), replace(options or OPTIONS, limits=TIGHT)), tight)


def with_parts(run: Run, part: Callable[[SelectionProblem, Clock], Run]) -> Run:
    """`run`, which gets runs on other problems from `part`."""
    run.__dict__["part"] = part
    return run


def ladder(
    count: int, seed: int, limit: int | None = None, labels: int = 4, unit: int = 1, weight: int = 5
) -> SelectionProblem:
    """`count` equal blocks of two vertices forward and two backward, as in a training step; both chains meet in every
    block.

    The two ends differ: an edge of its own joins the first block of both chains, so that there is a seam.  Edges
    outweigh vertices, so that messages need many turns (`weight`: of vertices; 40: of edges).
    """
    rng = np.random.default_rng(seed)
    costs = [rng.integers(0, weight * unit, labels) for _ in range(4)]
    tables = tuple(rng.integers(0, 40 * unit, (labels, labels)) for _ in range(4))
    amounts = [rng.permutation(np.arange(1, labels + 1)) * 10 for _ in range(2)]
    vertices, edges = [], []
    for side in (0, 1):
        for i in range(count):
            first = (side * count + i) * 2
            vertices += [Vertex(f"{side}.{i}.{k}", costs[2 * side + k]) for k in (0, 1)]
            edges.append(Edge(first, first + 1, 0))
            if i:
                edges.append(Edge(first - 1, first, 1))
            if side:
                edges += [Edge((count - 1 - i) * 2 + k, first + k, 2) for k in (0, 1)]
    edges.append(Edge(1, 4 * count - 1, 3))
    usages: tuple[Usage, ...] = ()
    if limit is not None:
        usages = tuple(Usage(i * 2 + k, i, 2 * count - i, amounts[k]) for i in range(count) for k in (0, 1))
    return SelectionProblem("ladder", tuple(vertices), tables, tuple(edges), limit=limit, usages=usages)


def sweeper_of(problem: SelectionProblem, denominator: int = 1, options: BoundOptions = BOUND) -> Sweeper:
    network = build(Base(problem, denominator), whole(problem))
    return Sweeper(network, list(range(len(network.domains))), options=options)


def parts_of_bound(sweeper: Sweeper) -> tuple[list[int], list[int]]:
    """Minima of the vertices and of the edges, label by label in Python integers; no kernel of the sweeps takes
    part.
    """
    network = sweeper.network
    theta = [[int(c) for c in costs] for costs in network.unary]
    for v, extra in enumerate(sweeper.extra):
        if extra is not None:
            theta[v] = [c + int(x) for c, x in zip(theta[v], extra, strict=True)]
    brackets = []
    for e, arc in enumerate(network.arcs):
        table, to_u, to_v = network.tables[arc.table].tolist(), sweeper.to_u[e].tolist(), sweeper.to_v[e].tolist()
        rows = range(len(to_u)) if arc.rows is None else arc.rows.tolist()
        cols = range(len(to_v)) if arc.cols is None else arc.cols.tolist()
        for i, r in enumerate(rows):
            theta[arc.u][i] += to_u[r]
        for j, c in enumerate(cols):
            theta[arc.v][j] += to_v[c]
        brackets.append(
            min(table[r][c] - to_u[r] - to_v[c] for r in set(rows) for c in set(cols) if table[r][c] < FORBIDDEN)
        )
    return [min(t) for t in theta], brackets


def bound_of(sweeper: Sweeper) -> int:
    low, brackets = parts_of_bound(sweeper)
    return sum(low) + sum(brackets)


def moved(sweeper: Sweeper, turns: int) -> None:
    moving = AcceleratedSweeper(sweeper)
    assert moving.sweep(turns, Clock()) is not None
    moving.store()


def copied(side: list[Ints]) -> list[list[int]]:
    return [m.tolist() for m in side]


def lower_of(problem: SelectionProblem, record: Dual) -> Fraction:
    """The bound of `record` on the whole problem, multipliers included."""
    bound = score_of(Base(problem, record.denominator), whole(problem), record).bound
    assert bound is not None
    return Fraction(bound, record.denominator)


def optimum(problem: SelectionProblem) -> int:
    """By elimination, rows aside."""
    network = build(Base(problem), whole(problem))
    outcome = eliminate(network, elimination_order(network), Clock())
    assert outcome is not None
    return outcome.value


# --- messages and distances
# --------------------------------------------------------------------------------------------------------------


def test_without_time_nothing_moves() -> None:
    sweeper = sweeper_of(ladder(30, 0), 64)
    old = copied(sweeper.to_u), copied(sweeper.to_v)
    converge.converge(sweeper, Clock(0.0))
    assert (copied(sweeper.to_u), copied(sweeper.to_v)) == old


@pytest.mark.parametrize("seed", [0, 3, 6])
def test_converge_ends_where_further_sweeps_gain_nothing(seed: int) -> None:
    sweeper = sweeper_of(ladder(12, seed), 1 << 12)
    converge.converge(sweeper, Clock())
    reached = bound_of(sweeper)
    once = sweeper_of(ladder(12, seed), 1 << 12)
    moved(once, 1)
    assert reached > bound_of(once)
    moved(sweeper, BOUND.span)
    assert 0 <= (bound_of(sweeper) - reached) * 10_000 <= reached, "another round as long as the last"


def chain(count: int, spokes: int) -> SelectionProblem:
    """A chain of `count` vertices in edges of both directions, and one more vertex joined to the first `spokes` of
    them.
    """
    vertex, table = np.array([0, 1]), np.array([[0, 2], [2, 0]])
    edges = [Edge(i, i + 1, 0) if i % 2 else Edge(i + 1, i, 0) for i in range(count - 1)]
    edges += [Edge(count, i, 0) if i % 2 else Edge(i, count, 0) for i in range(spokes)]
    return SelectionProblem("chain", tuple(Vertex(f"v{i}", vertex) for i in range(count + 1)), (table,), tuple(edges))


def within(problem: SelectionProblem, missing: int, reach: int) -> set[int]:
    """The ends where the quotient lacks edge `missing` alone and no class is rare."""
    n = len(problem.vertices)
    of_edge = tuple(None if k == missing else k for k in range(len(problem.edges)))
    return interface.ends(problem, Quotient(problem, tuple(range(n)), of_edge), reach)


def test_ends_do_not_reach_across_a_hub() -> None:
    hub, n = BOUND.hub, BOUND.hub + 10
    crowded, quiet = chain(n, hub), chain(n, hub - 1)
    assert within(crowded, 0, 1) == {0, 1, 2, n}, "the hub is reached"
    assert within(crowded, 0, 2) == {0, 1, 2, 3, n}, "what lies behind it is not"
    assert within(quiet, 0, 2) == {*range(hub - 1), n}
    last = len(crowded.edges) - 1
    assert within(crowded, last, 1) == {hub - 2, hub - 1, hub, n}, "not even from a hub at the interface"


def test_ends_from_several_edges_and_without_a_way() -> None:
    problem = chain(7, 0)
    assert within(problem, 0, 0) == {0, 1}
    assert within(problem, 3, 1) == {2, 3, 4, 5}
    assert within(problem, 3, 9) == set(range(7)), "vertex 7 has no edges"
    parallel = replace(problem, edges=problem.edges * 2)
    assert within(parallel, 3, 1) == {2, 3, 4, 5}


def test_rare_classes_and_missing_edges() -> None:
    problem = chain(9, 0)
    classes = (0, 1, 1, 1, 1, 2, 2, 3, 1, 4)  # the largest has five members, a class of two is less than half of it
    found = Quotient(problem, classes, (None, *[0] * 6, None))
    described = replace(found, of_edge=(0,) * 8)
    assert interface.ends(problem, described, 0) == {0, 5, 6, 7, 9}
    halves = replace(described, of_vertex=(0, 0, 0, 0, 1, 1, 2, 2, 2, 3))
    assert interface.ends(problem, halves, 0) == {9}, "two of four are half"
    assert interface.interface(problem, found) == {0, 1, 7, 8}
    assert interface.interface(problem, replace(found, of_edge=(0,) * 8)) == set()
    assert interface.ends(problem, found, 0) == {0, 1, 5, 6, 7, 8, 9}
    assert interface.ends(problem, replace(found, of_edge=(*[0] * 7, None)), 2) == {0, 5, 6, 7, 8, 9}


# --- messages of the block, settled at the seams
# ------------------------------------------------------------------------


def watched_settled(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What `begin` hands to `converge_at`."""
    calls: list[Call] = []

    def watch(search: Run, warm: Dual) -> Dual:
        calls.append((search, warm))
        return converge_at(search, warm)

    monkeypatch.setattr(blocks, "converge_at", watch)
    return calls


def in_unit_of(search: Run, warm: Dual) -> Dual:
    """`warm` at the denominator of `search`, as `load` rounds it."""
    sweeper = Sweeper(build(search.base, whole(search.problem)), list(range(len(search.problem.vertices))))
    load(sweeper, warm)
    pairs = tuple((t, n * search.denominator // warm.denominator) for t, n in warm.multipliers)
    return Dual(tuple(sweeper.to_u), tuple(sweeper.to_v), search.denominator, pairs)


@pytest.mark.parametrize("seed", range(3))
def test_begin_bounds_at_least_as_well_as_the_ring(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = watched_settled(monkeypatch)
    monkeypatch.setattr(blocks, "coarsen", lambda *_: None)  # as with few blocks
    problem = ladder(50, seed, unit=10**6)  # so large that the whole has a coarser unit than the ring
    found = quotient(problem)
    assert found is not None and interface.interface(problem, found), (
        "the block does not describe the edge between the ends"
    )
    search = searching(problem)
    record = begin(search)
    assert record is not None and record.denominator == search.denominator
    (_, warm), best = calls[0], optimum(problem)
    reached = lower_of(problem, record)
    assert warm.denominator > record.denominator
    assert lower_of(problem, in_unit_of(search, warm)) < reached <= best
    assert reached >= lower_of(problem, warm) - Fraction(2 * len(problem.edges), search.denominator)
    assert best <= search.incumbent.cost
    assert best - reached < Fraction(1, 10) * best


@pytest.mark.parametrize("seed", range(3))
def test_swept_bounds_the_ring_and_a_search_from_there_closes_it(seed: int) -> None:
    found = quotient(ladder(60, seed))
    assert found is not None
    inner = tight(found.problem, Clock())
    record = converge_on_whole(inner)
    assert record.denominator == inner.denominator and record.multipliers == ()
    best, reached = optimum(found.problem), lower_of(found.problem, record)
    assert 0.9 * best <= reached <= best
    again = converge_on_whole(inner, record)
    assert reached <= lower_of(found.problem, again) <= best
    assert lower_of(found.problem, converge_on_whole(tight(found.problem, Clock(0.0)), record)) == reached, (
        "nothing swept, nothing lost"
    )
    inner.search(record)
    assert inner.incumbent.cost == best


def bound_rows(seed: int, share: Fraction, unit: int, labels: int = 4) -> tuple[SelectionProblem, int]:
    """A ladder whose cheapest solution uses more than the limit, and the cost of that solution."""
    free = ladder(50, seed, limit=10**9, labels=labels, unit=unit)
    unlimited = solve(replace(free, limit=None, usages=()))
    assert unlimited.solution is not None and unlimited.cost is not None
    return replace(free, limit=int(share * free.peak_of(unlimited.solution)[0])), unlimited.cost


@pytest.mark.parametrize("denominator", [1, 4, 1 << 40])
def test_settled_returns_multipliers_in_its_own_unit(denominator: int) -> None:
    """A step costs n / Q: whoever changes Q and keeps n changes the price."""
    problem, _ = bound_rows(1, Fraction(9, 10), 1)
    search = searching(problem)
    assert search.rows is not None and search.denominator not in (1, 4, 1 << 40)
    zero = searching(replace(problem, limit=None, usages=()))
    zero.denominator, zero.base = denominator, Base(zero.problem, denominator)
    sweeper = Sweeper(build(zero.base, whole(problem)), list(range(len(problem.vertices))))
    moved(sweeper, 3)
    middle = len(search.rows.events) // 2
    price = Fraction(1, 4) if denominator > 1 else Fraction(1)
    prices = {search.rows.events[k]: price * (1 + k - middle) for k in (middle, middle + 1)}
    pairs = tuple((t, int(n * denominator)) for t, n in prices.items())
    warm = Dual(tuple(sweeper.to_u), tuple(sweeper.to_v), denominator, pairs)
    record = converge_at(search, warm)
    assert record.denominator == search.denominator
    assert {t: Fraction(n, record.denominator) for t, n in record.multipliers} == prices
    assert lower_of(problem, in_unit_of(search, warm)) <= lower_of(problem, record)


@pytest.mark.parametrize(("seed", "share", "labels"), [(0, Fraction(9, 10), 4), (5, Fraction(4, 5), 3)])
def test_begin_under_rows_bounds_with_prices_in_its_own_unit(
    seed: int, share: Fraction, labels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "coarsen", lambda *_: None)  # as with few blocks
    problem, unlimited = bound_rows(seed, share, 10**6, labels)
    calls = watched_settled(monkeypatch)
    options = Options(bound=BoundOptions(turns=12))  # quicker

    def quick(part: SelectionProblem, clock: Clock) -> Run:
        return new_run(part, Incumbent(part), clock, replace(options, limits=tight(part, clock).limits))

    search = with_parts(searching(problem, options), quick)
    record = begin(search)
    assert record is not None and record.multipliers and search.rows is not None
    (_, warm), *more = calls
    assert not more and warm.multipliers and warm.denominator != record.denominator == search.denominator
    worth = {t: Fraction(n, warm.denominator) for t, n in warm.multipliers}
    for t, n in record.multipliers:
        assert 0 <= worth[t] - Fraction(n, record.denominator) < Fraction(1, record.denominator)
    assert search.incumbent.solution is not None and problem.peak_of(search.incumbent.solution)[0] <= problem.limit
    reached = lower_of(problem, record)
    assert lower_of(problem, in_unit_of(search, warm)) <= reached <= search.incumbent.cost
    assert reached > lower_of(problem, replace(record, multipliers=tuple((t, n * 64) for t, n in record.multipliers)))
    assert search.incumbent.cost >= unlimited


def test_what_is_enough_counts_the_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps report a bound with the prices of what is used, without the constant and without the price of the
    limit.
    """
    asked: list[int | None] = []
    monkeypatch.setattr(runs, "converge", lambda sweeper, clock, enough: asked.append(enough))
    problem = replace(bound_rows(1, Fraction(9, 10), 1)[0], constant=23)
    options = Options(decomposition=DecompositionOptions(nearly=10))
    search, found = searching(problem, options), quotient(problem)
    assert search.rows is not None and problem.limit is not None and found is not None
    zeros = tuple(np.zeros(4, dtype=np.int64) for _ in problem.edges)
    warm = Dual(zeros, zeros, 1, ((search.rows.events[0], 2), (search.rows.events[-1], 3)))
    converge_at(search, warm)
    lightest = {u.vertex: int(np.argmin(u.amount)) for u in problem.usages}
    assert search.incumbent.offer(tuple(lightest.get(v, 0) for v in range(len(problem.vertices))))
    converge_at(search, warm)
    cost = search.incumbent.cost
    assert asked == [None, (cost - cost // 10 - 23 + 5 * problem.limit) * search.denominator]


@pytest.mark.parametrize("seed", range(6))
def test_bounds_under_rows_hold_against_enumeration(seed: int) -> None:
    """Small enough to try everything: six vertices in pairs, limit at half of what the cheapest solution uses."""
    rng = np.random.default_rng(seed)
    vertices = tuple(Vertex(f"v{i}", rng.integers(0, 20, 3)) for i in range(6))
    tables = tuple(rng.integers(0, 20, (3, 3)) for _ in range(2))
    edges = tuple(Edge(i, (i + 1) % 6, i % 2) for i in range(6))
    usages = tuple(Usage(i, 0, 2 + i % 2, rng.permutation(3)) for i in range(6))
    problem = SelectionProblem("six", vertices, tables, edges, limit=4, usages=usages)
    plans = [tuple(int(a) for a in x) for x in np.ndindex(*[3] * 6)]
    best = min(problem.cost_of(x) for x in plans if problem.peak_of(x)[0] <= 4)
    search = searching(problem)
    assert search.rows is not None and search.denominator > 1
    zeros = tuple(np.zeros(3, dtype=np.int64) for _ in edges)
    warm = Dual(zeros, zeros, 1, ((search.rows.events[-1], 3),))
    record = converge_at(search, warm)
    assert lower_of(problem, warm) <= lower_of(problem, record) <= best
    assert [Fraction(n, record.denominator) for _, n in record.multipliers] == [3]


@pytest.mark.parametrize("seed", range(4))
def test_forbidden_choices_change_nothing(seed: int) -> None:
    plain = ladder(9, seed)
    dead = np.array([0, FORBIDDEN, 0, 0])
    holed = replace(plain, vertices=tuple(Vertex(v.name, np.where(dead > 0, dead, v.cost)) for v in plain.vertices))
    without = replace(
        plain,
        vertices=tuple(Vertex(v.name, np.delete(v.cost, 1)) for v in plain.vertices),
        tables=tuple(np.delete(np.delete(t, 1, axis=0), 1, axis=1) for t in plain.tables),
    )
    found, expected = searching(holed), searching(without)
    lower = [
        score(network, *gather(network, record)).bound
        for search in (found, expected)
        for record in (converge_on_whole(search),)
        for network in (build(search.base, allowed_domains(search.problem)),)
    ]
    assert lower[0] == lower[1], "the same sweeps on the same allowed choices"


def test_an_order_stays_cheap_on_smaller_domains_where_a_fresh_one_may_not() -> None:
    dearer = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(2, 9, 9).tolist()
        pairs = [(u, v) for u in range(9) for v in range(u + 1, 9) if rng.random() < 0.45]
        problem = SelectionProblem(
            "dense",
            tuple(Vertex(f"v{i}", rng.integers(0, 50, k)) for i, k in enumerate(sizes)),
            tuple(rng.integers(0, 50, (sizes[u], sizes[v])) for u, v in pairs),
            tuple(Edge(u, v, i) for i, (u, v) in enumerate(pairs)),
        )
        network = build(Base(problem), whole(problem))
        first = elimination_order(network)
        before = eliminate(network, first, Clock(None))
        assert before is not None
        part = tuple(np.sort(rng.permutation(k)[: rng.integers(1, k + 1)]) for k in sizes)
        smaller = build(Base(problem), part)
        again, fresh = recorded_order(smaller, before.record), elimination_order(smaller)
        assert all(
            a <= b
            for a, b in zip(
                (again.kept, again.work, again.largest), (first.kept, first.work, first.largest), strict=True
            )
        )
        one, other = eliminate(smaller, again, Clock(None)), eliminate(smaller, fresh, Clock(None))
        assert one is not None and other is not None and one.value == other.value
        dearer += fresh.kept > again.kept
        assembled = eliminator(searching(problem), part, before.record)
        assert assembled is not None and assembled[0].order == before.record.order
    assert dearer, "a fresh order is never dearer: the reason for `recorded_order` is not shown"


def test_nodes_beyond_the_memory_stay_open() -> None:
    less = 0
    for seed in range(12):
        problem = maps_and_holes(seed, vertices=14)
        best = optimum(problem)
        free, full = (solve(problem, limits=replace(TIGHT, held=held)) for held in (1 << 30, 0))
        assert free.lower_bound == best == free.cost, "the tree closes this one when it may grow"
        assert full.lower_bound is not None and full.cost is not None and full.lower_bound <= best <= full.cost
        less += full.lower_bound < best
    assert less, "the limit never ended a tree"
