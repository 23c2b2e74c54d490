"""Production's tables against a second builder, written from the formulas alone: every entry of every plan.

What it is worth is tested too: one unit more or less in any entry is noticed, and so is every changed formula.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest
from second_builder.placements import matrices
from second_builder.reduction_time import reduction
from second_builder.resharding_time import missing
from second_builder.tilings import Box, Digit
from second_builder_cases import CASES, Case, small
from second_builder_comparison import compare, compare_movements, entries_of, tables_of
from second_builder_random import random_attention, random_graph, random_step
from second_builder_random_machine import SPACES, random_machine

from shardproof.models.communication import choices, exchange, pricing
from shardproof.models.communication import resharding as communication
from shardproof.models.cost import cost, memory, selection, structures
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout import classes, layout, placement
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.selection_problem import FORBIDDEN, ProblemError
from shardproof.models.program.graph import Graph, GraphError
from shardproof.models.program.index import Access, Affine, Axis, Combine, access
from shardproof.models.sources.building.builder import Builder

FOLDER = Path(__file__).parent / "second_builder"
ALLOWED = {"__future__", "collections", "dataclasses", "fractions", "functools", "itertools", "json", "math"}

RANDOM_FAST, RANDOM_SLOW, AT_ONCE = 10, 1500, 10
STEPS_FAST, STEPS_SLOW = 5, 308
"""Seeds of random programs and of random training steps, in `make test` and with the slow ones."""

LARGEST_FAST, LARGEST_SLOW = 5_000, 20_000
"""Entries of the largest random problem in each: a second for 5,000."""


def test_the_second_builder_shares_no_code() -> None:
    """Standard library, each other, and the table of functions; no float is written down."""
    files = sorted(FOLDER.glob("*.py"))
    assert len(files) >= 9
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.ImportFrom(module=module, level=0, names=names):
                    known = module.partition(".")[0] in ALLOWED or (module, [n.name for n in names]) == (
                        "shardproof.models.program.operators",
                        ["FUNCTIONS"],
                    )
                    assert known, f"{file.name} imports {module}"
                case ast.ImportFrom(level=level):
                    assert level == 1, file.name
                case ast.Import(names=names):
                    assert {n.name for n in names} <= ALLOWED, file.name
                case ast.Constant(value=value):
                    assert not isinstance(value, float), file.name


def agrees(planning: Planning, seed: int = 0) -> None:
    """All entries, and the reshardings of one solution, whose layouts and steps production derives for
    themselves.
    """
    tables, rng = tables_of(planning), random.Random(seed)
    outcome = compare(planning, tables)
    assert not outcome.differences, "\n".join([f"seed {seed}", *outcome.differences[:10]])
    assert outcome.entries == entries_of(planning)
    moved = compare_movements(planning, tables, any_solution(planning, rng))
    assert not moved.differences, "\n".join([f"seed {seed}", *moved.differences[:10]])
    assert moved.entries == len(planning.routes)


def any_solution(planning: Planning, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(v.cost.size) for v in planning.problem.vertices)


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if not case.slow])
def test_every_entry_of_small_plans(name: str) -> None:
    agrees(CASES[name].planning())


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.slow])
def test_every_entry_of_larger_plans(name: str) -> None:
    agrees(CASES[name].planning())


def check_random(first: int, count: int, make: Callable[[int], Graph | None], largest: int) -> None:
    """Programs of some seeds on random machines over random spaces; most of them are small enough."""
    compared = 0
    for seed in range(first, first + count):
        graph = make(seed)
        if graph is not None:
            planning = build(graph, random_machine(seed, graph), space(random.Random(seed).choice(SPACES)), 1 << 12)
            if entries_of(planning) <= largest:
                agrees(planning, seed)
                compared += 1
    assert compared > count // 2


@pytest.mark.parametrize("first", range(0, RANDOM_FAST, AT_ONCE))
def test_random_programs(first: int) -> None:
    check_random(first, AT_ONCE, random_graph, LARGEST_FAST)


def test_random_training_steps() -> None:
    check_random(0, STEPS_FAST, random_step, LARGEST_FAST)


def test_random_attentions() -> None:
    check_random(0, STEPS_FAST, random_attention, 2 * LARGEST_FAST)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(RANDOM_FAST, RANDOM_SLOW, AT_ONCE))
def test_more_random_programs(first: int) -> None:
    check_random(first, AT_ONCE, random_graph, LARGEST_SLOW)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(STEPS_FAST, STEPS_SLOW, AT_ONCE))
def test_more_random_attentions(first: int) -> None:
    check_random(first, AT_ONCE, random_attention, LARGEST_SLOW)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(STEPS_FAST, STEPS_SLOW, AT_ONCE))
def test_more_random_training_steps(first: int) -> None:
    check_random(first, AT_ONCE, random_step, LARGEST_SLOW)


def test_random_programs_are_of_all_kinds() -> None:
    """What the seeds of the fast part and of the slow part are made of."""
    graphs = [random_graph(seed) for seed in range(400)]
    functions = {op.function for g in graphs for op in g.operators}
    assert {
        "product",
        "embedding",
        "embedding_gradient",
        "softmax",
        "max",
        "opaque",
        "max_pool",
        "copy",
        "iota",
        "product_sum",
        "sgd_update",
    } <= functions
    readers = [(g, t.name, g.readers()[t.name]) for g in graphs for t in g.tensors]
    assert any(not uses and name in g.writer() and name not in g.results for g, name, uses in readers), "unread results"
    assert any(g.state and g.state[0][1] in g.outputs for g in graphs)
    machines = [random_machine(seed, g) for seed, g in enumerate(graphs)]
    assert {len(m.levels) for m in machines} == {1, 2, 3, 4}
    assert any(m.others for m in machines) and any(m.profiles for m in machines) and any(m.resources for m in machines)


def test_the_unit_is_the_finest_that_fits() -> None:
    """Times of weeks: the sum of the largest entries is below 2**57 in the unit of the problem, and not in a finer
    one.
    """
    planning = Case(
        lambda: small("linear-training", batch=1 << 22, inputs=1 << 14, outputs=1 << 14), "localhost:2"
    ).planning()
    agrees(planning)

    def total(scale: int) -> int:
        tables = tables_of(replace(planning, problem=replace(planning.problem, scale=scale)))
        costs = sum(max(tables.costs(v)) for v in tables.choices)
        return costs + sum(max(max(row) for row in tables.edge_costs(e)) for e in tables.edges)

    assert planning.problem.scale < 10**12
    assert total(planning.problem.scale) < 1 << 57 <= total(10 * planning.problem.scale)


# What the comparison is worth.

MUTATED = (
    "matmul chain, mixed machine",
    "partial sums",
    "convolution, strided and padded",
    "perceptron with adam",
    "an unread result",
)
MUTANTS = 200


@pytest.mark.parametrize("name", MUTATED)
def test_one_unit_in_one_entry_is_noticed(name: str) -> None:
    """Entries of vertices, tables and rows, one more, one less, or forbidden."""
    planning = CASES[name].planning()
    tables, rng = tables_of(planning), random.Random(name)
    for _ in range(MUTANTS // len(MUTATED)):
        problem, kind = planning.problem, rng.choice(("vertex", "edge", "row"))
        change: Callable[[int], int] = rng.choice((lambda v: v + 1, lambda v: v - 1, lambda v: FORBIDDEN))
        if kind == "vertex":
            v = rng.randrange(len(problem.vertices))
            mutant = replace(
                problem,
                vertices=_put(
                    problem.vertices,
                    v,
                    replace(problem.vertices[v], cost=_changed(problem.vertices[v].cost, rng, change)),
                ),
            )
        elif kind == "edge":
            t = rng.choice(problem.edges).table
            mutant = replace(problem, tables=_put(problem.tables, t, _changed(problem.tables[t], rng, change)))
        else:
            u = rng.randrange(len(problem.usages))
            mutant = replace(
                problem,
                usages=_put(
                    problem.usages,
                    u,
                    replace(problem.usages[u], amount=_changed(problem.usages[u].amount, rng, change)),
                ),
            )
        assert compare(replace(planning, problem=mutant), tables).differences, kind


def _put(values: tuple, i: int, value: object) -> tuple:
    return (*values[:i], value, *values[i + 1 :])


def _changed(array: np.ndarray, rng: random.Random, change: Callable[[int], int]) -> np.ndarray:
    out = array.copy()
    i = rng.randrange(out.size)
    out.flat[i] = change(int(out.flat[i]))
    return out


@pytest.mark.parametrize("name", MUTATED)
def test_other_structure_is_noticed(name: str) -> None:
    """A row that is missing or ends one step early, an edge that is missing or turned, choices in another order."""
    planning = CASES[name].planning()
    tables, problem = tables_of(planning), planning.problem
    usage, edge = problem.usages[0], problem.edges[-1]
    decision = planning.decisions[0]
    mutants = {
        "row missing": replace(planning, problem=replace(problem, usages=problem.usages[1:])),
        "row short": replace(
            planning, problem=replace(problem, usages=_put(problem.usages, 0, replace(usage, end=usage.end - 1)))
        ),
        "row early": replace(
            planning, problem=replace(problem, usages=_put(problem.usages, 0, replace(usage, start=usage.start - 1)))
        ),
        "edge missing": replace(
            planning, problem=replace(problem, edges=problem.edges[:-1]), routes=planning.routes[:-1]
        ),
        "edge turned": replace(
            planning,
            problem=replace(
                problem, edges=_put(problem.edges, len(problem.edges) - 1, replace(edge, u=edge.v, v=edge.u))
            ),
        ),
        "choices turned": replace(
            planning,
            decisions=_put(planning.decisions, 0, replace(decision, placements=decision.placements[::-1].copy())),
        ),
        "choice missing": replace(
            planning, decisions=_put(planning.decisions, 0, replace(decision, placements=decision.placements[1:]))
        ),
        "constant": replace(planning, problem=replace(problem, constant=1)),
    }
    for what, mutant in mutants.items():
        assert compare(mutant, tables).differences, what


def _floor_blocks(blocks: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Blocks of floor(n / D), the last one larger."""

    def wrong(extent: int, degree: tuple[int, ...], stride: tuple[int, ...], hierarchy: tuple[int, ...]) -> np.ndarray:
        rank, size = layout.ranks(degree, stride, hierarchy), extent // prod(degree)
        low = rank * size
        return np.stack([low, np.where(rank == prod(degree) - 1, extent, low + size)], axis=1)

    return wrong


FORMULAS: dict[str, tuple[object, str, Callable[[object], object], str]] = {
    "statistics in doubles": (cost, "STATISTIC_BYTES", lambda _: 8, "softmax and norms"),
    "no latency": (
        cost,
        "edge_times",
        lambda f: lambda loads, *rest: f(replace(loads, phases=tuple(p * 0 for p in loads.phases)), *rest),
        "partial sums",
    ),
    "times are cut, not rounded up": (cost, "ceil_sum", lambda f: lambda terms: f(terms) - 1, "partial sums"),
    "no statistics": (cost, "statistics_terms", lambda _: lambda *a, **k: [], "softmax and norms"),
    "no profiles": (cost, "measured_times", lambda _: lambda *a, **k: None, "matmul chain, mixed machine"),
    "blocks of floor(n / D)": (layout, "blocks", _floor_blocks, "uneven perceptron on 7"),
    "the last row most significant": (
        layout,
        "strides",
        lambda f: lambda x: f(x[:, ::-1])[:, ::-1],
        "moments that are read",
    ),
    "digits that are not prime": (
        layout,
        "prime_digits",
        lambda _: lambda level, degree, stride: [layout.OpenDigit(level, stride, degree)] * (degree > 1),
        "moments that are read",
    ),
    "windows without taps": (
        layout,
        "intervals",
        lambda f: lambda a, *rest: f(Access(a.tensor, tuple(replace(i, terms=i.terms[:1]) for i in a.index)), *rest),
        "convolution with halos",
    ),
    "every open digit is replicated": (
        pricing,
        "changes_along",
        lambda _: lambda b, d: np.zeros(len(b), dtype=bool),
        "partial sums",
    ),
    "every open digit is scattered": (
        pricing,
        "changes_along",
        lambda _: lambda b, d: np.ones(len(b), dtype=bool),
        "partial sums",
    ),
    "unions are hulls": (
        pricing,
        "_unions",
        lambda f: lambda table, width: (f(table, width)[0], True),
        "pieces on two levels",
    ),
    "diagonals as products": (layout, "is_coupled", lambda _: lambda a: False, "diagonals"),
    "axes in their own order": (
        classes,
        "_written_first",
        lambda _: lambda op: [a.name for a in reversed(op.axes)],
        "matmul chain",
    ),
    "what is wanted has no copy": (selection, "needs_copy", lambda f: lambda g: f(g) - set(g.outputs), "matmul chain"),
    "uneven where even was asked": (
        structures,
        "matrices",
        lambda f: lambda n, s, h, w: f(n, s, h, replace(w, uneven=True)),
        "uneven perceptron on 7, evenly",
    ),
    "any number of rows per level": (
        structures,
        "matrices",
        lambda f: lambda n, s, h, w: f(n, s, h, replace(w, rows_per_level=None)),
        "matmul chain on one level of eight",
    ),
}


@pytest.mark.parametrize("what", FORMULAS)
def test_another_formula_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One function of production does something else; the tables of one plan or of several are not the second
    builder's any more.
    """
    module, attribute, change, name = FORMULAS[what]
    case = CASES.get(name) or Case(CASES["uneven perceptron on 7"].graph, "localhost:6")
    layout._axis_block.cache_clear()
    before = case.planning()
    agrees(before)
    layout._axis_block.cache_clear()
    pricing._shared.cache_clear()
    original = getattr(module, attribute)
    for room in (module, layout, pricing, cost, structures, selection, classes, memory, choices, placement):
        if getattr(room, attribute, None) is original:
            monkeypatch.setattr(room, attribute, change(original))
    mutant = case.planning()
    monkeypatch.undo()
    layout._axis_block.cache_clear()
    pricing._shared.cache_clear()
    assert compare(mutant, tables_of(before)).differences


def test_other_boxes_and_steps_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A halo that is forgotten, a partial sum taken for a whole, transfers that are missing, in what is derived for
    a solution.
    """
    interval, operand = layout._interval, choices._operand

    def without_taps(index: Affine, *rest: object) -> None:
        interval(replace(index, terms=index.terms[:1]), *rest)

    mutants: tuple[tuple[str, object, str, object], ...] = (
        ("convolution, strided and padded", layout, "_interval", without_taps),
        ("partial sums", choices, "_operand", lambda *a: replace(operand(*a), open=())),
        (
            "partial sums",
            communication,
            "exchanges",
            lambda a, b: [replace(e, transfers=e.transfers[:0]) for e in exchange.exchanges(a, b)],
        ),
    )
    for name, module, attribute, wrong in mutants:
        planning = CASES[name].planning()
        tables = tables_of(planning)
        solutions = [any_solution(planning, random.Random(k)) for k in range(5)]
        operand.cache_clear()
        assert not any(compare_movements(planning, tables, x).differences for x in solutions)
        operand.cache_clear()
        with monkeypatch.context() as m:
            m.setattr(module, attribute, wrong)
            assert any(compare_movements(planning, tables, x).differences for x in solutions), attribute
        operand.cache_clear()


# The second builder against literal definitions.


def test_missing_counts_elements() -> None:
    """Cells against elements that are listed one by one."""
    rng = random.Random(0)

    def boxes() -> tuple[Box, ...]:
        ends = [sorted(rng.choices(range(8), k=2)) for _ in range(6)]
        return tuple(((a, b), (c, d)) for (a, b), (c, d) in zip(ends[::2], ends[1::2], strict=True))

    def elements(some: tuple[Box, ...]) -> set[tuple[int, ...]]:
        return {e for box in some for e in product(*(range(low, high) for low, high in box))}

    for _ in range(200):
        held, needed = boxes(), boxes()
        assert missing(held, needed) == len(elements(needed) - elements(held))


def test_matrices_are_all_there_are() -> None:
    """Against every matrix of small numbers; the paper's three placements of 4 x 16 on 4 x 16 are those without
    replication.
    """
    for sizes, extents in (((2, 3), (6, 4)), ((4,), (4, 2, 1)), ((2, 2), (3, 8))):
        for uneven in (False, True):
            entries = range(1, max(sizes) + 1)
            every = [
                tuple(zip(*columns, strict=True))
                for columns in product(*(product(entries, repeat=len(extents) + 1) for _ in sizes))
            ]
            fit = [m for m in every if all(prod(row[j] for row in m) == size for j, size in enumerate(sizes))]
            fit = [
                m
                for m in fit
                if all(prod(r) <= n if uneven else n % prod(r) == 0 for r, n in zip(m[:-1], extents, strict=True))
            ]
            assert sorted(matrices(extents, (True,) * len(extents), sizes, "complete" + ",uneven" * uneven)) == sorted(
                fit
            )
    paper = [m for m in matrices((4, 16), (True, True), (4, 16), "complete") if set(m[-1]) == {1}]
    assert sorted(m[:2] for m in paper) == [((1, 4), (4, 4)), ((2, 2), (2, 8)), ((4, 1), (1, 16))]


def test_reductions_of_the_textbook() -> None:
    """A ring all-reduce moves 2 (p - 1) / p of a tile into every device, a reduce-scatter half of that."""
    eight = [Digit(0, s, 2) for s in (4, 2, 1)]
    assert reduction(800, eight, eight, (8,)) == ((2 * 7 * 100,), (2,), (("all_reduce", 0, 8, 100),))
    assert reduction(100, eight, [], (8,)) == ((7 * 100,), (1,), (("reduce_scatter", 0, 8, 100),))
    inner, outer = Digit(1, 1, 2), Digit(0, 1, 2)
    both = [outer, inner]
    assert reduction(100, both, both, (2, 2))[:2] == ((2 * 25 + 2 * 25, 50 + 25 + 25 + 50), (2, 2))


# Faults that the comparison brought to light.


def test_numbers_beyond_int64_are_refused() -> None:
    """A product of 2**22 cubed was priced at 151 s instead of 7.6 million: points of a box, bytes and positions
    wrapped around.
    """

    def product_of(n: int) -> Graph:
        b = Builder("large")
        return b.build(b.contract("y", "i k, k j -> i j", b.input("x", (n, n)), b.parameter("w", (n, n))))

    with pytest.raises(GraphError, match="operator 'y': does .* operations on one device, more than 2"):
        product_of(1 << 22)
    agrees(build(product_of(1 << 20), load_machine("cloud-a100:2x2"), space("complete"), 1 << 40))
    b = Builder("far")
    axes = [Axis("i", 1 << 30), Axis("j", 1 << 30)]
    with pytest.raises(GraphError, match="up to position"):
        b.build(b.operator("y", "copy", axes[:1], [access(b.input("x", (8,)), Affine.axis("i", 1 << 40))], ["i"]))
    b = Builder("wide")
    with pytest.raises(GraphError, match="bytes, more than 2"):
        b.build(b.operator("y", "copy", axes, [access(b.input("x", (1,)), Affine())], ["i", "j"], dtype="float64"))
    b = Builder("rows")
    table, ids = b.parameter("t", (4, 1 << 30)), b.input("ids", (1 << 30,), "int32")
    bag = [Axis("m", 1 << 30), Axis("v", 4, Combine.SUM), Axis("q", 1 << 30, Combine.SUM)]
    with pytest.raises(GraphError, match="bytes, more than 2"):
        b.build(
            b.operator(
                "y", "embedding", bag, [access(table, "v", "m"), access(ids, "q")], ["m"], {"rows": "v"}, "int32"
            )
        )


def test_loads_beyond_int64_are_refused() -> None:
    """What a reduction moves is more than its tensor."""
    pricing.check_reduction(1 << 50, (8, 8))
    with pytest.raises(ProblemError, match="not below 2"):
        pricing.check_reduction(1 << 60, (8, 8))


def test_a_coefficient_beyond_int64_that_counts_nothing() -> None:
    """Rates without round quotients make a common denominator so large that a level over which nothing moves ended
    in an OverflowError.
    """
    large = cost.Fraction(10**40, 7)
    assert cost.ceil_sum([(large, np.zeros(2, dtype=np.int64)), (cost.Fraction(1, 3), np.array([4, 0]))]).tolist() == [
        2,
        0,
    ]
