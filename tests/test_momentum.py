"""Sweeps with momentum: the bound they report is the bound of the messages they leave, and they get where plain
sweeps do not.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from random_problems import maps_and_holes

from shardproof.formal.selection.bound.accelerated import AcceleratedSweeper
from shardproof.formal.selection.bound.subgradient import factored_ascent
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.factored import Base, allowed_domains, build
from shardproof.formal.selection.options.bound import BOUND, BoundOptions
from shardproof.formal.selection.tree.proof_tree import DualNode
from shardproof.models.problem.selection_problem import FORBIDDEN, Edge, Ints, SelectionProblem, Vertex

from .test_seams import bound_of, bound_rows, ladder, optimum, searching, sweeper_of


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_reports_the_bound_of_the_messages_it_stores(seed: int, holes: bool) -> None:
    """Evaluated label by label in Python integers; maps, forbidden entries and prices of rows included."""
    problem = maps_and_holes(seed, holes=holes)
    sweeper, rng = sweeper_of(problem, 8), np.random.default_rng(seed)
    sweeper.to_u = [rng.integers(-40, 40, m.size) for m in sweeper.to_u]
    sweeper.to_v = [rng.integers(-40, 40, m.size) for m in sweeper.to_v]
    if seed % 2:
        sweeper.extra = [rng.integers(0, 30, c.size) if v % 3 else None for v, c in enumerate(sweeper.network.unary)]
    before = bound_of(sweeper)
    moving = AcceleratedSweeper(sweeper)
    reached = before
    for turns in (1, 1, 5, 30):
        bound = moving.sweep(turns, Clock())
        assert bound is not None and bound >= reached
        moving.store()
        assert bound_of(sweeper) == bound
        reached = bound
    if not seed % 2:
        assert Fraction(reached, 8) + problem.constant <= optimum(problem)


def lifted(problem: SelectionProblem) -> SelectionProblem:
    """Every array of costs raised until none is negative."""

    def up(a: Ints) -> Ints:
        return np.where(a >= FORBIDDEN, FORBIDDEN, a - min(0, int(a.min())))

    return replace(
        problem,
        vertices=tuple(Vertex(v.name, up(v.cost)) for v in problem.vertices),
        tables=tuple(up(t) for t in problem.tables),
    )


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_coarse_units_report_no_more_than_the_bound_of_the_messages(seed: int, holes: bool) -> None:
    """The bound of the stored messages, edge minima included, label by label; near the optimum the units become
    those of the network.
    """
    options = BoundOptions(coarse_cells=0, coarse_largest=1 << 12)  # some hundred times coarser than the costs
    problem = lifted(maps_and_holes(seed, holes=holes))
    sweeper = sweeper_of(problem, 1 << 10, options)
    moving = AcceleratedSweeper(sweeper)
    assert moving.coarse and moving.unit > 1
    for turns in (1, 7, 40):
        bound = moving.sweep(turns, Clock())
        assert bound is not None
        moving.store()
        assert bound <= bound_of(sweeper)
    best = optimum(problem) - problem.constant << 10
    assert moving.unit > 1 and best * 0.9 < bound <= best
    fine = AcceleratedSweeper(sweeper)
    exact = fine.sweep(60, Clock(), enough=best)
    assert exact is not None and not fine.coarse and fine.unit == 1 and bound <= exact <= best
    fine.store()
    assert bound_of(sweeper) >= exact


def test_units_follow_the_bound() -> None:
    """From a solution a thousand times too dear, read off messages that mean nothing, to a few times the bound; one
    far too cheap is mended as well.
    """
    problem = ladder(20, 0, unit=10**12)
    moving = AcceleratedSweeper(sweeper_of(problem, options=BoundOptions(coarse_cells=0)))
    for wrong in (10**18 // BOUND.coarse_largest, 10**12 // BOUND.coarse_largest):
        moving._measure(wrong, moving.now.astype(np.int64) * moving.unit)
        bound = moving.sweep(2 * BOUND.coarse_look, Clock())
        assert bound is not None and 2 * bound < BOUND.coarse_largest * moving.unit < 8 * bound
    assert moving.sweep(300, Clock()) <= optimum(problem) - problem.constant  # type: ignore[operator]


def test_negative_costs_are_swept_in_units_of_the_network() -> None:
    coarse = BoundOptions(coarse_cells=0)
    pair = SelectionProblem(
        "pair",
        (Vertex("a", np.array([3, -1])), Vertex("b", np.array([0, 2]))),
        (np.array([[0, 5], [5, 0]]),),
        (Edge(0, 1, 0),),
    )
    assert not AcceleratedSweeper(sweeper_of(pair, options=coarse)).coarse
    table = SelectionProblem(
        "pair",
        (Vertex("a", np.array([3, 1])), Vertex("b", np.array([0, 2]))),
        (np.array([[0, 5], [-5, 0]]),),
        (Edge(0, 1, 0),),
    )
    moving = AcceleratedSweeper(sweeper_of(table, options=coarse))
    assert not moving.coarse and moving.sweep(3, Clock()) == -4


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_at_the_same_time_or_one_after_the_other(parts: int) -> None:
    """Two threads leave what one leaves: no message of a part is read by another."""
    found = []
    for threads in (1, 2):
        sweeper = sweeper_of(ladder(40, 3), options=BoundOptions(coarse_cells=0, parts=parts))
        sweeper.threads = threads
        moving = AcceleratedSweeper(sweeper)
        assert len(moving.parts.parts) == parts
        moving.sweep(30, Clock())
        moving.store()
        found.append((moving.bound, [m.tolist() for m in (*sweeper.to_u, *sweeper.to_v)], sweeper.order))
    assert found[0] == found[1]
    assert found[0][2] == moving.parts.order != list(range(len(moving.parts.order)))


@pytest.mark.parametrize("seed", [0, 9])
def test_momentum_carries_further(seed: int) -> None:
    """60 turns over 80 blocks: with the push off they stay behind."""
    problem = ladder(80, seed)
    bounds = []
    for push in (BOUND.push, 0.0):
        bounds.append(AcceleratedSweeper(sweeper_of(problem, 1 << 12, BoundOptions(push=push))).sweep(60, Clock()))
    pushed, plain = bounds
    assert pushed is not None and plain is not None
    best = optimum(problem) << 12
    assert plain < pushed <= best
    assert best - pushed < (best - plain) * 0.95


def test_starts_again_from_the_best_when_nothing_is_gained() -> None:
    moving = AcceleratedSweeper(sweeper_of(ladder(6, 0), 1 << 8, BoundOptions(patience=3)))
    moving.sweep(200, Clock())
    best = moving.best.copy()
    moving.idle, moving.since = 2, 40
    moving.now = moving.best + 1000 * np.arange(moving.best.size)  # far off: the next turn gains nothing
    moving.sweep(1, Clock())
    assert moving.since == 1 and moving.idle == 0
    assert moving.now.tolist() == best.tolist() == moving.last.tolist()


def test_ends_at_once_when_told_to() -> None:
    sweeper = sweeper_of(ladder(20, 0), 64)
    moving = AcceleratedSweeper(sweeper)
    assert moving.sweep(10, Clock(0.0)) is None and moving.bound is None
    first = moving.sweep(1, Clock())
    assert first is not None
    before = moving.since
    assert moving.sweep(50, Clock(), enough=first) is not None
    assert moving.since == before + 1, "one turn, then it was enough"


def test_no_allowed_label_is_no_bound() -> None:
    pair = SelectionProblem(
        "pair",
        (Vertex("a", np.full(2, FORBIDDEN)), Vertex("b", np.array([0, 2]))),
        (np.zeros((2, 2), dtype=np.int64),),
        (Edge(0, 1, 0),),
    )
    assert AcceleratedSweeper(sweeper_of(pair)).sweep(3, Clock()) is None


def test_labels_left_out_take_no_part() -> None:
    """On restricted domains, tables cut or not, the bound is that of the restricted problem."""
    problem = maps_and_holes(5)
    domains = tuple(d[: max(1, d.size - v % 2)] for v, d in enumerate(allowed_domains(problem)))
    network = build(Base(problem, 8), domains)
    from shardproof.formal.selection.bound.trws import Sweeper

    sweeper = Sweeper(network, list(range(len(domains))))
    bound = AcceleratedSweeper(sweeper)
    found = bound.sweep(20, Clock())
    bound.store()
    assert found == bound_of(sweeper)


def leanest(problem: SelectionProblem) -> int:
    """Cost of a plan that fits: every vertex uses as little as it can."""
    least = {u.vertex: int(np.argmin(u.amount)) for u in problem.usages}
    x = tuple(least.get(v, 0) for v in range(len(problem.vertices)))
    assert problem.limit is not None and problem.peak_of(x)[0] <= problem.limit
    return problem.cost_of(x)


@pytest.mark.parametrize("seed", [0, 5])
def test_climb_reports_the_bound_at_its_prices(seed: int) -> None:
    """Never below where it began; the bound, label by label, is that of the messages and prices it leaves."""
    problem, _ = bound_rows(seed, Fraction(9, 10), 1)
    search = searching(problem)
    assert search.rows is not None
    sweeper = sweeper_of(problem, search.denominator)
    start = np.zeros(len(search.rows.events), dtype=np.int64)
    first = AcceleratedSweeper(sweeper).sweep(BOUND.stride, Clock())
    state = factored_ascent(sweeper, search.rows, start, None, Clock())
    assert (
        first is not None and state.bound is not None and state.bound > first and (state.n >= 0).all() and state.n.any()
    )
    assert bound_of(sweeper) - search.rows.limit * int(state.n.sum()) == state.bound
    assert state.bound <= leanest(problem) * search.denominator


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("seed", [0, 5])
def test_search_with_momentum_at_the_root_stays_below_what_is_known(
    seed: int, rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, _ = bound_rows(seed, Fraction(9, 10), 1) if rows else (ladder(50, seed), 0)
    known = leanest(problem) if rows else optimum(problem)
    turns: list[int] = []
    run = AcceleratedSweeper.sweep

    def watched(moving: AcceleratedSweeper, count: int, clock: Clock, enough: int | None = None) -> int | None:
        turns.append(count)
        return run(moving, count, clock, enough)

    monkeypatch.setattr(AcceleratedSweeper, "sweep", watched)
    inner = searching(problem)
    inner.nodes = 1  # the root alone: by counts, not by the clock
    draft = inner.search()
    assert turns
    assert isinstance(draft, DualNode)
    lower = draft.score.lower()
    assert lower is not None and lower <= known
