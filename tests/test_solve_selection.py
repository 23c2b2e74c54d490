"""The native solver against brute force, its certificates against two readers of the definition, and its parts one by
one.

Every certificate is judged by `verify.selection.certificate` and by `oracles.bound_of`, a literal reading that shares
code with neither side.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from budgets import some_or_all, work
from oracles import INF, bound_of, brute_force, everything
from random_problems import chain, graphs_of_all_kinds, grid_of_tables

from shardproof.formal.selection.answer import Answer
from shardproof.formal.selection.bound.accelerated import AcceleratedSweeper
from shardproof.formal.selection.bound.dual import score, score_of
from shardproof.formal.selection.bound.trws import Sweeper
from shardproof.formal.selection.elimination.factored import eliminate, elimination_order
from shardproof.formal.selection.model import minplus
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.factored import Base, build, whole
from shardproof.formal.selection.model.restrict import restrict
from shardproof.formal.selection.options.limits import Limits
from shardproof.formal.selection.primal.repair import repair
from shardproof.formal.selection.solve import solve
from shardproof.models.problem.claims import Infeasible, Status, Verdict, WithinGap
from shardproof.models.problem.selection_problem import FORBIDDEN, Edge, ProblemError, SelectionProblem, Usage, Vertex
from shardproof.proofs.selection.certificates import Dual, Elimination, Point, RowConflict, SelectionCertificate, Split
from shardproof.verify.selection.certificate import check_selection

PATHS = {
    "eliminate": None,
    "bound": Limits(joint=0),
    "mixed": Limits(joint=12),
    "branch": Limits(joint=30, root_sweeps=1, node_sweeps=1, node_steps=1),
}


def judge(problem: SelectionProblem, answer: Answer, optimum: int | None) -> None:
    """The answer is right, claimed as such, and proved to both readers of its certificate."""
    assert answer.certificate is not None
    verdict = check_selection(problem, answer.certificate)
    assert verdict.verdict is Verdict.PROVED, verdict
    if optimum is None:
        assert answer.status is Status.INFEASIBLE
        assert bound_of(problem, answer.certificate.proof, everything(problem), INF) == INF
    else:
        assert answer.status is Status.OPTIMAL
        assert (answer.cost, answer.lower_bound) == (optimum, optimum)
        assert problem.cost_of(answer.solution) == optimum
        assert bound_of(problem, answer.certificate.proof, everything(problem), optimum) >= optimum


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("block", range(5))
def test_random_problems_equal_brute_force(path: str, block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        problem = graphs_of_all_kinds(seed)
        judge(problem, solve(problem, limits=PATHS[path]), brute_force(problem)[0])


@pytest.mark.parametrize("path", ["eliminate", "bound", "branch"])
@pytest.mark.parametrize("seeds", some_or_all(range(30), range(30, 300)))
def test_random_problems_with_rows_equal_brute_force(path: str, seeds: range) -> None:
    for seed in seeds:
        problem = graphs_of_all_kinds(seed, rows=True)
        judge(problem, solve(problem, limits=PATHS[path]), brute_force(problem)[0])


def test_every_kind_of_record_occurs() -> None:
    kinds: set[type] = set()

    def walk(record: object) -> None:
        kinds.add(type(record))
        for child in getattr(record, "children", ()):
            walk(child)
        if isinstance(record, Dual) and record.then is not None:
            walk(record.then)

    wanted = {Dual, Elimination, Split, Point, RowConflict}
    for seed in range(300):
        for limits in PATHS.values():
            certificate = solve(graphs_of_all_kinds(seed, rows=seed % 2 == 0), limits=limits).certificate
            assert certificate is not None
            walk(certificate.proof)
        if kinds >= wanted:
            return
    raise AssertionError(wanted - kinds)


@pytest.mark.parametrize("seed", range(10))
def test_sweeps_reach_the_optimum_of_a_tree(seed: int) -> None:
    """Where no two ways join two vertices the relaxation is exact: what is left is the remainders."""
    rng = np.random.default_rng(seed)
    n, labels = 15, 6
    vertices = tuple(Vertex(f"v{i}", rng.integers(-50, 50, labels)) for i in range(n))
    tables = tuple(rng.integers(-50, 50, (labels, labels)) for _ in range(n - 1))
    problem = SelectionProblem(
        "tree", vertices, tables, tuple(Edge(i, int(rng.integers(i + 1, n)), i) for i in range(n - 1))
    )
    optimum = eliminate(
        build(Base(problem), whole(problem)), elimination_order(build(Base(problem), whole(problem))), Clock()
    )
    assert optimum is not None
    moving = AcceleratedSweeper(Sweeper(build(Base(problem, 1 << 12), whole(problem)), list(range(n))))
    bounds = [moving.sweep(1, Clock()) for _ in range(200)]
    assert bounds == sorted(bounds)
    assert 0 <= (optimum.value << 12) - bounds[-1] < 1 << 12


def test_fixing_against_a_record_keeps_what_the_definition_keeps() -> None:
    removed = 0
    for seed in range(100):
        problem = graphs_of_all_kinds(seed)
        rng = np.random.default_rng(seed)
        dual = Dual(
            tuple(rng.integers(-30, 30, problem.tables[e.table].shape[0]) for e in problem.edges),
            tuple(rng.integers(-30, 30, problem.tables[e.table].shape[1]) for e in problem.edges),
            denominator=int(rng.integers(1, 4)),
        )
        optimum = brute_force(problem)[0]
        if optimum is None:
            continue
        found = score_of(Base(problem, dual.denominator), whole(problem), dual)
        bound, kept = found.bound, found.fix(whole(problem), optimum + 1)
        literal = bound_of(problem, dual, everything(problem), INF)
        assert (INF if bound is None else -(-bound // dual.denominator)) == literal
        if bound is None:
            continue
        removed += sum(v.cost.size - d.size for v, d in zip(problem.vertices, kept, strict=True))
        smaller = restrict(problem, {v: tuple(d.tolist()) for v, d in enumerate(kept)})
        assert brute_force(smaller.inner)[0] == optimum  # against UB = optimum + 1 every optimal solution stays
    assert removed > 100


def test_solution_outside_the_fixed_domains_is_still_proved() -> None:
    """Against UB the incumbent's own labels may be fixed away: an empty domain then closes the record."""
    problem = chain(3, 1, labels=3)
    answer = solve(problem, limits=Limits(joint=0))
    judge(problem, answer, brute_force(problem)[0])


def test_kernels_agree_with_numpy_on_large_tables() -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(-(10**6), 10**6, (701, 903))
    table[rng.random(table.shape) < 0.1] = FORBIDDEN
    h, g = rng.integers(-(10**6), 10**6, 701), rng.integers(-(10**6), 10**6, 903)
    assert table.size > minplus.SMALL
    assert np.array_equal(minplus.columns_min(table, h), (table + h[:, None]).min(axis=0))
    assert np.array_equal(minplus.rows_min(table, g), (table + g[None, :]).min(axis=1))


def test_denominators_do_not_change_the_bound_of_a_score() -> None:
    problem = grid_of_tables(3, 0, 4, 50)
    results = []
    for q in (1, 8):
        network = build(Base(problem, q), whole(problem))
        zero_u = [np.zeros(network.tables[a.table].shape[0], dtype=np.int64) for a in network.arcs]
        zero_v = [np.zeros(network.tables[a.table].shape[1], dtype=np.int64) for a in network.arcs]
        results.append(score(network, zero_u, zero_v).lower())
    assert results[0] == results[1]


def test_grids_too_wide_to_eliminate_are_closed_by_bounding_and_branching() -> None:
    problem = grid_of_tables(6, 5, 4, 60)
    exact = solve(problem)
    assert isinstance(exact.certificate.proof, Elimination)
    bounded = solve(problem, limits=Limits(joint=200))
    assert isinstance(bounded.certificate.proof, Dual)
    assert bounded.status is Status.OPTIMAL and bounded.cost == exact.cost
    assert check_selection(problem, bounded.certificate).verdict is Verdict.PROVED


def test_descent_ends_where_no_single_move_helps() -> None:
    problem = grid_of_tables(4, 9, 5, 100)
    network = build(Base(problem), whole(problem))
    x = repair(network, None, [0] * 16, Clock())
    assert x is not None
    cost = problem.cost_of(tuple(x))
    for v, a in itertools.product(range(16), range(5)):
        assert problem.cost_of((*x[:v], a, *x[v + 1 :])) >= cost


@pytest.mark.timeout(60)
def test_time_limit_gives_the_best_so_far_and_never_a_false_optimum() -> None:
    problem = grid_of_tables(14, 2, 12, 1000)
    answer = solve(problem, clock=work(1.0), limits=Limits(joint=1000))
    assert answer.status is Status.FEASIBLE
    assert answer.lower_bound < answer.cost == problem.cost_of(answer.solution)
    assert isinstance(answer.certificate.claim, WithinGap)
    assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
    assert answer.cost - answer.lower_bound < 0.15 * answer.cost


def test_gap_stops_early_with_a_certified_gap() -> None:
    problem = grid_of_tables(8, 1, 6, 1000)
    answer = solve(problem, gap=Fraction(1, 10), limits=Limits(joint=0))
    assert answer.status in (Status.FEASIBLE, Status.OPTIMAL)
    assert answer.cost - answer.lower_bound <= answer.cost / 10
    assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED


def test_two_runs_are_identical() -> None:
    problem = grid_of_tables(6, 4, 5, 100)
    first, second = (solve(problem, limits=Limits(joint=100)) for _ in range(2))
    assert first.solution == second.solution
    assert describe(first.certificate) == describe(second.certificate)


def describe(certificate: SelectionCertificate) -> str:
    def show(value: object) -> str:
        if isinstance(value, np.ndarray):
            return f"{value.shape}{value.tolist()}"
        if isinstance(value, tuple):
            return "(" + ",".join(map(show, value)) + ")"
        fields = getattr(value, "__dataclass_fields__", None)
        return repr(value) if fields is None else type(value).__name__ + show(tuple(getattr(value, f) for f in fields))

    return show(certificate)


def test_a_forbidden_entry_beside_negative_costs_is_not_a_solution() -> None:
    """The sum falls below FORBIDDEN; such a choice was once offered as a solution."""
    problem = SelectionProblem(
        "negative",
        (Vertex("a", np.array([-5, 3])), Vertex("b", np.array([-7]))),
        (np.array([[FORBIDDEN], [1]]),),
        (Edge(0, 1, 0),),
    )
    for limits in PATHS.values():
        judge(problem, solve(problem, limits=limits), -3)


def test_infeasible_by_rows_names_the_rows_and_a_limit_that_works() -> None:
    vertices = tuple(Vertex(f"v{i}", np.array([1, 2])) for i in range(3))
    usages = tuple(Usage(i, i, i + 2, np.array([9, 6])) for i in range(3))
    problem = SelectionProblem("tight", vertices, (), (), usages, limit=11)
    answer = solve(problem)
    judge(problem, answer, None)
    claim = answer.certificate.claim
    assert isinstance(claim, Infeasible)
    assert claim.steps in ((1,), (2,))
    assert claim.least_limit == 12 and problem.peak_of(claim.witness)[0] == 12
    assert set(claim.vertices) <= {0, 1, 2} and len(claim.vertices) == 2


def test_infeasible_only_by_two_rows_together() -> None:
    """Vertex b must be small at step 0 and at step 1, but each of its choices is large at one of them."""
    problem = SelectionProblem(
        "mixture",
        (Vertex("b", np.array([0, 0])),),
        (),
        (),
        (Usage(0, 0, 1, np.array([10, 0])), Usage(0, 1, 2, np.array([0, 10]))),
        limit=4,
    )
    answer = solve(problem)
    judge(problem, answer, None)
    assert answer.certificate.claim.steps == (0, 1)


def test_infeasible_by_tables_alone() -> None:
    problem = SelectionProblem(
        "never",
        (Vertex("a", np.array([0])), Vertex("b", np.array([0, 1]))),
        (np.array([[FORBIDDEN, FORBIDDEN]]),),
        (Edge(0, 1, 0),),
    )
    for limits in PATHS.values():
        judge(problem, solve(problem, limits=limits), None)


def test_restriction_maps_solutions_back_and_names_mistakes() -> None:
    problem = graphs_of_all_kinds(17, rows=True)
    first = problem.vertices[0].cost.size - 1
    smaller = restrict(problem, {0: (first,)})
    x = smaller.solution_back(tuple(0 for _ in problem.vertices))
    assert x[0] == first
    assert smaller.inner.cost_of(tuple(0 for _ in problem.vertices)) == problem.cost_of(x)
    assert smaller.inner.peak_of(tuple(0 for _ in problem.vertices)) == problem.peak_of(x)
    with pytest.raises(ProblemError, match="vertex 0.*no choice is left"):
        restrict(problem, {0: ()})
    with pytest.raises(ProblemError, match="choice 99"):
        restrict(problem, {0: (99,)})
    with pytest.raises(ProblemError, match="vertex 1000 does not exist"):
        restrict(problem, {1000: (0,)})


PASE = Path(__file__).resolve().parents[2] / "shared" / "data" / "pase"


def pase_problem(path: Path) -> tuple[SelectionProblem, float]:
    """Costs times the largest power of two that fits, rounded: the published optimum is stable to 1e-9."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    total = sum(max(n["cost"]) for n in data["nodes"]) + sum(max(map(max, e[2])) for e in data["edges"])
    scale = 2 ** max(0, 56 - math.ceil(math.log2(total)))
    vertices = tuple(
        Vertex(n["name"], np.array([round(Fraction(x) * scale) for x in n["cost"]], dtype=np.int64))
        for n in data["nodes"]
    )
    tables = tuple(
        np.array([[round(Fraction(x) * scale) for x in row] for row in e[2]], dtype=np.int64) for e in data["edges"]
    )
    edges = tuple(Edge(e[0], e[1], k) for k, e in enumerate(data["edges"]))
    return SelectionProblem(path.stem, vertices, tables, edges, scale=scale), data["exact"]["cost"]


@pytest.mark.skipif(not PASE.is_dir(), reason="the data set lies outside the repository")
@pytest.mark.parametrize("name", ["alexnet-p8", "rnnlm-p8", "resnet101-p4", "inception3-p8", "transformer-p4"])
def test_published_pase_optima(name: str) -> None:
    problem, published = pase_problem(PASE / f"{name}.json.gz")
    for limits in (None, Limits(joint=1000)):
        answer = solve(problem, limits=limits)
        assert answer.status is Status.OPTIMAL
        assert answer.cost / problem.scale == pytest.approx(published, rel=1e-9)
        assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
