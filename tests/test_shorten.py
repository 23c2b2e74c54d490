"""A short row of blocks for a long one: its structure, its prices, and its messages at every block."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from shardproof.formal.selection.bound.accelerated import AcceleratedSweeper
from shardproof.formal.selection.bound.trws import load
from shardproof.formal.selection.decomposition import blocks
from shardproof.formal.selection.decomposition.blocks import begin, spread
from shardproof.formal.selection.decomposition.coarsen import Coarse, coarsen
from shardproof.formal.selection.decomposition.layers import layers
from shardproof.formal.selection.decomposition.quotient import Quotient, quotient
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.priced import Floats, priced_problem
from shardproof.formal.selection.model.resources import Rows
from shardproof.formal.selection.options.decomposition import DECOMPOSITION, DecompositionOptions
from shardproof.formal.selection.tree.run import Run
from shardproof.models.problem.selection_problem import Ints, SelectionProblem
from shardproof.proofs.selection.certificates import Dual

from .test_seams import bound_rows, ladder, lower_of, optimum, searching, sweeper_of


def short_of(problem: SelectionProblem) -> tuple[Quotient, Coarse]:
    found = quotient(problem)
    assert found is not None
    short = coarsen(problem, found, layers(problem, found))
    assert short is not None
    return found, short


def messages(problem: SelectionProblem, turns: int, start: Dual | None = None) -> Dual:
    sweeper = sweeper_of(problem, 1 << 12)
    if start is not None:
        load(sweeper, start)
    moving = AcceleratedSweeper(sweeper)
    moving.sweep(turns, Clock())
    moving.store()
    return Dual(tuple(sweeper.to_u), tuple(sweeper.to_v), 1 << 12)


@pytest.mark.parametrize("seed", range(4))
def test_the_short_row_of_a_ladder_is_a_short_ladder(seed: int) -> None:
    long = ladder(40, seed)
    _, short = short_of(long)
    few = ladder(
        40 - short.blocks + DECOMPOSITION.kept, seed
    )  # what differs near the ends belongs to the first and the last block
    assert 2 * len(few.vertices) < len(long.vertices)
    assert [v.cost.tolist() for v in short.problem.vertices] == [v.cost.tolist() for v in few.vertices]
    assert sorted((e.u, e.v, e.table) for e in short.problem.edges) == sorted((e.u, e.v, e.table) for e in few.edges)
    assert optimum(short.problem) == optimum(few)
    for k, e in zip(short.edges, short.problem.edges, strict=True):
        assert long.edges[k].table == e.table
        assert short.vertices[e.u] == long.edges[k].u or short.vertices[e.v] == long.edges[k].v


def test_few_blocks_are_not_shortened() -> None:
    problem = ladder(2 * DECOMPOSITION.kept, 0)
    found = quotient(ladder(2 * DECOMPOSITION.kept, 0), DecompositionOptions(rounds=2))
    assert found is not None
    assert coarsen(problem, found, layers(problem, found)) is None


@pytest.mark.parametrize("seed", range(4))
def test_messages_of_the_ends_stay_and_those_between_are_interpolated(seed: int) -> None:
    _, short = short_of(problem := ladder(40, seed))
    if short.blocks % 2 == 0:
        _, short = short_of(problem := ladder(41, seed))
    assert short.blocks % 2, "there is a block in the middle"
    last = short.blocks - 1
    record = messages(short.problem, 50)
    long = short.prolong(record, record.denominator)
    assert long.denominator == record.denominator
    finer = short.prolong(record, 4 * record.denominator)
    assert finer.denominator == 4 * record.denominator
    assert all(np.abs(a - 4 * b).max() <= 2 for a, b in zip(finer.to_u, long.to_u, strict=True))
    known = {k: i for i, k in enumerate(short.edges)}
    for e, i in known.items():
        if short.places[e] in (0, last):
            assert long.to_u[e].tolist() == record.to_u[i].tolist()
            assert long.to_v[e].tolist() == record.to_v[i].tolist()
    for table in (0, 2):  # within a chain, and between the two
        first = {short.places[e]: e for e in reversed(range(len(problem.edges))) if problem.edges[e].table == table}
        kind = {place: e for place, e in first.items() if short.kinds[e] == short.kinds[first[last // 2]]}
        two, three = (record.to_u[known[kind[place]]] for place in (2, last - 2))
        assert np.abs(2 * long.to_u[kind[last // 2]] - two - three).max() <= 1, (
            "half way between the third and the fourth block of six"
        )


@pytest.mark.parametrize("seed", range(4))
def test_the_long_row_begins_where_the_short_one_ended(seed: int) -> None:
    """A few turns from the messages of the short row reach more than from those of the ring, and any messages bound."""
    problem = ladder(60, seed)
    found, short = short_of(problem)
    ring = messages(found.problem, 100)
    best = optimum(problem)
    start = spread(short.problem, replace(found, of_edge=tuple(found.of_edge[e] for e in short.edges)), ring)
    lengthened = short.prolong(messages(short.problem, 200, start), 1 << 12)
    assert lower_of(problem, lengthened) <= best
    far = lower_of(problem, messages(problem, 6, lengthened))
    near = lower_of(problem, messages(problem, 6, spread(problem, found, ring)))
    assert near <= far <= best
    if seed in (0, 3):  # in the others the ring's messages are as good
        assert near < far


def test_begin_under_rows_keeps_the_prices_that_bound_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short row has them in its costs, the record as multipliers."""
    problem, _ = bound_rows(0, Fraction(9, 10), 10**6)
    generate, shorten = blocks.generate_columns, blocks.coarsen
    kept: list[Floats] = []
    rows: list[Coarse] = []

    def priced(
        search: Run,
        found: Quotient,
        same: Rows,
        first: tuple[tuple[int, ...], Dual],
        free: set[int],
    ) -> tuple[Dual, Floats] | None:
        at = generate(search, found, same, first, free)
        assert at is not None
        kept.append(at[1])
        return at

    def watched(
        problem: SelectionProblem, found: Quotient, block: Ints, options: DecompositionOptions
    ) -> Coarse | None:
        short = shorten(problem, found, block, options)
        assert short is not None
        rows.append(short)
        return short

    monkeypatch.setattr(blocks, "generate_columns", priced)
    monkeypatch.setattr(blocks, "coarsen", watched)
    search = searching(problem)
    record = begin(search)
    ((n,), (short,)), events = (kept, rows), problem.events()
    assert record is not None and record.multipliers
    assert {events.index(t) for t, _ in record.multipliers} == set(np.flatnonzero(n).tolist())
    for t, count in record.multipliers:
        assert abs(float(n[events.index(t)]) - count / record.denominator) <= 1 / record.denominator
    full = priced_problem(Rows(problem), n)
    assert all(
        np.array_equal(v.cost, full.vertices[w].cost)
        for v, w in zip(short.problem.vertices, short.vertices, strict=True)
    )
    assert lower_of(problem, record) <= search.incumbent.cost
