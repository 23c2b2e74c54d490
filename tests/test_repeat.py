"""Repeated structure: quotients, their messages and plans on the whole, mixtures under resource rows."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from random_problems import repeated_blocks

from shardproof.formal.selection.bound.dual import gather, score
from shardproof.formal.selection.bound.restricted_master import Column, master
from shardproof.formal.selection.decomposition.blocks import begin, spread
from shardproof.formal.selection.decomposition.interface import ends
from shardproof.formal.selection.decomposition.layers import layers
from shardproof.formal.selection.decomposition.quotient import quotient
from shardproof.formal.selection.decomposition.symmetric import average, symmetric_problem
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.factored import Base, build, exact_cost, whole
from shardproof.formal.selection.model.priced import priced_problem
from shardproof.formal.selection.model.resources import Rows
from shardproof.formal.selection.options import OPTIONS, Options
from shardproof.formal.selection.options.decomposition import DecompositionOptions
from shardproof.formal.selection.options.limits import Limits
from shardproof.formal.selection.primal.incumbent import Incumbent
from shardproof.formal.selection.solve import solve, suits_dense_search
from shardproof.formal.selection.tree.branch_and_bound import _below, new_run
from shardproof.formal.selection.tree.proof_tree import DualNode, Leaf
from shardproof.formal.selection.tree.run import Run
from shardproof.models.problem.selection_problem import FORBIDDEN, Edge, SelectionProblem, Vertex

TIGHT = Limits(joint=1, work=1, kept=1, last_joint=1, last_work=1, last_kept=1)


def searching(problem: SelectionProblem) -> Run:
    """A run whose parts have the usual limits."""
    run = new_run(problem, Incumbent(problem), Clock(None), replace(OPTIONS, limits=TIGHT))
    run.__dict__["part"] = make
    return run


def make(problem: SelectionProblem, clock: Clock) -> Run:
    return new_run(problem, Incumbent(problem), clock)


def test_quotient_has_one_vertex_per_place_and_real_edges() -> None:
    problem = repeated_blocks(60, 0)
    found = quotient(problem)
    assert found is not None and len(found.problem.vertices) * 3 <= len(problem.vertices)
    for v, c in enumerate(found.of_vertex):
        assert np.array_equal(problem.vertices[v].cost, found.problem.vertices[c].cost)
    for e, k in zip(problem.edges, found.of_edge, strict=True):
        if k is not None:
            small = found.problem.edges[k]
            assert (found.of_vertex[e.u], found.of_vertex[e.v], e.table) == (small.u, small.v, small.table)


def test_nothing_repeated_gives_no_quotient() -> None:
    rng = np.random.default_rng(1)
    vertices = tuple(Vertex(f"v{i}", rng.integers(0, 1000, 3)) for i in range(60))
    assert quotient(SelectionProblem("once", vertices, (), ())) is None


@pytest.mark.parametrize("seed", range(4))
def test_messages_of_the_block_bound_the_whole(seed: int) -> None:
    problem = repeated_blocks(60, seed)
    best = solve(problem)
    found = quotient(problem)
    assert found is not None and best.cost is not None
    inner = searching(found.problem)
    inner.nodes = 1
    draft = inner.search()
    assert isinstance(draft, DualNode)
    record = spread(problem, found, draft.record)
    network = build(Base(problem, record.denominator), whole(problem))
    lower = score(network, *gather(network, record)).lower()
    assert lower is not None and lower <= best.cost


@pytest.mark.parametrize("seed", range(4))
def test_start_from_blocks_is_near_the_optimum(seed: int) -> None:
    problem = repeated_blocks(60, seed)
    best = solve(problem)
    search = searching(problem)
    warm = begin(search)
    assert search.incumbent.solution is not None and best.cost is not None
    assert (
        best.cost <= search.incumbent.cost <= best.cost + abs(best.cost) // 5
    )  # where every other block differs, a ring of one cannot say it
    assert warm is not None
    lower = score(build(search.base, whole(problem)), *gather(build(search.base, whole(problem)), warm)).lower()
    assert lower is not None and best.cost - abs(best.cost) // 5 <= lower <= best.cost


def test_ends_are_few() -> None:
    problem = repeated_blocks(60, 2)
    found = quotient(problem)
    assert found is not None
    assert 0 < len(ends(problem, found, 1)) < len(problem.vertices) // 2


def test_layers_follow_both_directions() -> None:
    """The mirror image of block i of the forward part carries the same number, from whichever side numbers start."""
    problem, width, count = repeated_blocks(60, 3), 2, 60
    found = quotient(problem)
    assert found is not None
    layer = layers(problem, found).reshape(2, count, width)
    middle = range(20, 40)
    shift = int(layer[0, 30, 0]) - 30
    assert all((layer[0, i] == i + shift).all() and (layer[1, count - 1 - i] == i + shift).all() for i in middle)


def test_rows_of_symmetric_plans_agree_with_those_of_the_whole() -> None:
    problem = repeated_blocks(60, 4, limit=10**6)
    found = quotient(problem)
    assert found is not None
    rows = Rows(symmetric_problem(problem, found))
    rng = np.random.default_rng(0)
    plan = tuple(int(rng.integers(0, v.cost.size)) for v in found.problem.vertices)
    whole_plan = found.solution_back(plan)
    for k, t in enumerate(rows.events):
        live = sum(int(u.amount[whole_plan[u.vertex]]) for u in problem.usages if u.start <= t < u.end)
        assert rows.use(plan)[k] == live
    n = np.zeros(len(rows.events))
    n[len(n) // 2] = 2.0
    extra = exact_cost(priced_problem(Rows(problem), n), whole_plan)
    plain = exact_cost(replace(problem, limit=None, usages=()), whole_plan)
    assert extra is not None and plain is not None and extra - plain == 2 * rows.use(plan)[len(n) // 2]
    same = priced_problem(rows, n)
    assert (
        same.limit is None
        and exact_cost(priced_problem(rows, 0 * n), plan) == plain
        and exact_cost(same, plan) == extra
    )
    each = average(rows, found, n)
    size = np.bincount(found.of_vertex)
    for c, v in enumerate(each.vertices):  # rounded once for a member, once for all of them
        added = same.vertices[c].cost - rows.problem.vertices[c].cost
        assert np.abs((v.cost - found.problem.vertices[c].cost) * size[c] - added).max() <= 0.5 * size[c] + 0.5


@pytest.mark.parametrize("seed", range(6))
def test_uniform_plans_cost_what_they_cost_in_the_whole(seed: int) -> None:
    """Ends, loops of a class, forbidden entries and all; the uniform optimum is the cheapest of them."""
    rng = np.random.default_rng(seed)
    problem = repeated_blocks(60, seed)
    extra = tuple(Edge(2 * i, 2 * i + 2, 0) for i in range(59)) + (
        Edge(0, len(problem.vertices) - 1, 1),
    )  # within one class; first and last
    extra += tuple(
        Edge(2 * i + 1, 2 * i + 2, 1, rows=np.array([2, 0, 1])) for i in range(59)
    )  # the table of other edges there, through a map
    tables = (*problem.tables[:2], np.where(rng.random((3, 3)) < 0.2, FORBIDDEN, problem.tables[2]))
    problem = replace(problem, edges=(*problem.edges, *extra), tables=tables, constant=17)
    found = quotient(problem, DecompositionOptions(rounds=4))
    assert found is not None
    assert any(found.of_vertex[e.u] == found.of_vertex[e.v] for e in problem.edges)
    same = symmetric_problem(problem, found).check()
    assert max(int(t.max()) for t in same.tables) == FORBIDDEN, "no multiple of it"
    allowed = 0
    for _ in range(200):
        plan = tuple(int(rng.integers(0, v.cost.size)) for v in same.vertices)
        small, large = exact_cost(same, plan), exact_cost(problem, found.solution_back(plan))
        assert small == large
        allowed += small is not None
    best = solve(same)
    if best.solution is not None:
        assert exact_cost(problem, found.solution_back(best.solution)) == best.cost
    if seed == 0:
        assert allowed > 0 or best.solution is not None


def test_master_mixes_and_prices() -> None:
    """Cost 10 with usage 4, cost 30 with usage 0, limit 1: a quarter of the one, three of the other; a byte is
    worth 5.
    """
    columns = [Column((0,), 10, np.array([4.0, 0.0])), Column((1,), 30, np.array([0.0, 0.5]))]
    mixed = master(columns, 1)
    assert mixed.over == pytest.approx(0.0) and mixed.value == pytest.approx(25.0)
    assert mixed.weights.tolist() == pytest.approx([0.25, 0.75]) and mixed.n.tolist() == pytest.approx([5.0, 0.0])
    assert master(columns[:1], 1).over > 0


@pytest.mark.parametrize("share", [Fraction(9, 10), Fraction(3, 4)])
def test_mixtures_keep_binding_rows(share: Fraction) -> None:
    free = repeated_blocks(60, 5, limit=10**9)
    unlimited = solve(replace(free, limit=None, usages=()))
    assert unlimited.solution is not None
    limit = int(share * free.peak_of(unlimited.solution)[0])
    problem = replace(free, limit=limit)
    search = searching(problem)
    assert search.rows is not None
    warm = begin(search)
    assert search.incumbent.solution is not None, "some mixture fits"
    assert problem.peak_of(search.incumbent.solution)[0] <= limit
    assert unlimited.cost is not None and search.incumbent.cost >= unlimited.cost
    assert warm is None or all(n > 0 for _, n in warm.multipliers)
    again = searching(problem)
    again.incumbent.offer(search.incumbent.solution)
    warm = begin(again)
    assert warm is not None and warm.multipliers, "a solution that is known is no reason to drop the rows"


def test_rows_that_do_not_bind_cost_nothing() -> None:
    free = repeated_blocks(60, 6, limit=10**9)
    unlimited = solve(replace(free, limit=None, usages=()))
    assert unlimited.solution is not None
    most = sum(int(u.amount.max()) for u in free.usages)
    problem = replace(free, limit=most - 1)
    search = searching(problem)
    assert search.rows is not None
    begin(search)
    assert search.rows is None and search.incumbent.solution is not None


def test_repeated_blocks_with_large_tables_are_solved_as_such() -> None:
    """Elsewhere flat loops and reductions: with small tables, without repetition, and with few vertices."""
    wide = repeated_blocks(60, 0, limit=10**6, labels=300)
    assert not suits_dense_search(wide, Options())
    assert suits_dense_search(repeated_blocks(60, 0, limit=10**6, labels=30), Options()), "small tables"
    few = repeated_blocks(99, 0, limit=10**6, width=1, labels=300)
    assert suits_dense_search(few, Options()) and quotient(few) is not None, "few vertices"
    rng = np.random.default_rng(0)
    once = tuple(Vertex(v.name, rng.permutation(v.cost)) for v in wide.vertices)
    assert suits_dense_search(replace(wide, vertices=once), Options()), "nothing repeated"


def test_a_node_of_which_nothing_better_is_left_is_closed() -> None:
    """A domain that fixing has emptied is neither scored nor split."""
    problem = repeated_blocks(3, 1)
    run = searching(problem)
    domains = whole(problem)
    network = build(run.base, domains)
    record = run.record(network, run.sweeper(network, None), ())
    node = DualNode(record[0], domains, record[1])
    left = (domains[0][:0], *domains[1:])
    assert isinstance(_below(run, left, node, None, 0), Leaf)
