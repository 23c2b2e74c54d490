"""Entries recomputed device by device against the tables of `models/`, and against numbers worked out by hand.

Both sides were written from the same formulas by different people in different ways (arrays of all layouts at once
there, sets of boxes of one pair here): thousands of random entries must agree, on uneven sizes, three levels, halos,
slices and gathers too.
"""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import ceil, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.models.communication.choices import communications, needs_copy
from shardproof.models.cost.limits import Counter, TooLarge, check_sizes
from shardproof.models.cost.selection import DecisionKind, Planning, build
from shardproof.models.layout.placement import Placement, matrices, space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.selection_problem import SelectionProblem, Vertex
from shardproof.models.program.graph import Graph
from shardproof.models.program.index import Affine, Axis, Combine, access
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.zoo import ZOO
from shardproof.models.sources.zoo import build as zoo
from shardproof.verify.plan.boxes import (
    DeviceBoxes,
    Digit,
    axis_blocks,
    boxes_of,
    copy_of,
    difference,
    inside,
    open_digits,
    reached_interval,
    read_by,
    volume,
    written_by,
)
from shardproof.verify.plan.entries import communication_entry, communication_loads, operator_entry, reduction
from shardproof.verify.plan.space import check_list
from shardproof.verify.plan.structure import Received, copied_tensors, memory_rows, moves
from shardproof.verify.plan.used_entries import Draw, Entries, wrong_sampled, wrong_structure, wrong_used


def mixed() -> Graph:
    """Concat, slice, pad, strided and grouped convolution, pooling, LRN, gather, view, softmax and layer norm in
    one graph.
    """
    g = Builder("mixed")
    x = g.input("x", (4, 6, 9, 8))
    a = g.convolution("conv", x, g.parameter("w", (10, 6, 3, 3)), (2, 1), (1, 1))
    b = g.pool("pool", "max_pool", x, (3, 3), (2, 1), (1, 1))
    both = [Axis("b", 4), Axis("c", 16), Axis("y", 5), Axis("x", 8)]
    cat = g.operator(
        "concat",
        "copy",
        both,
        [access(a, "b", "c", "y", "x"), access(b, "b", Affine.axis("c").shift(-10), "y", "x")],
        list("bcyx"),
    )
    part = g.operator(
        "slice",
        "copy",
        [Axis("b", 4), Axis("c", 7), Axis("y", 5), Axis("x", 4)],
        [access(cat, "b", Affine.axis("c").shift(6), "y", Affine.axis("x", 2).shift(1))],
        list("bcyx"),
    )
    padded = g.operator(
        "pad",
        "copy",
        [Axis("b", 4), Axis("c", 7), Axis("y", 9), Axis("x", 4)],
        [access(part, "b", "c", Affine.axis("y").shift(-2), "x")],
        list("bcyx"),
    )
    lrn = g.operator(
        "lrn",
        "local_response",
        [Axis("b", 4), Axis("c", 7), Axis("y", 9), Axis("x", 4), Axis("t", 3, Combine.SUM, False)],
        [access(padded, "b", Affine.axis("c").plus("t").shift(-1), "y", "x")],
        list("bcyx"),
        {"axis": 1, "size": 3},
    )
    flat = g.view("flat", lrn, (28, 36))
    scores = g.contract("scores", "b k, k n -> b n", flat, g.parameter("v", (36, 12)))
    soft = g.normalise("soft", "softmax", "b n -> b n", scores, over=("n",))
    norm = g.normalise("norm", "layer_norm", "b n, n -> b n", soft, g.parameter("gamma", (12,)), over=("n",), epsilon=1)
    ids = g.input("ids", (28,), "int64")
    rows = g.embedding("rows", "v n, b -> b n", g.parameter("table", (50, 12)), ids)
    total = g.map("total", "add", norm, rows)
    most = g.reduce("most", "b n -> b", total, Combine.MAX)
    return g.build(total, most)


PROBLEMS = [
    ("mixed", {}, "cloud-a100:2x4", "complete"),
    ("mixed", {}, "cloud-a100:2x3", "complete,uneven"),
    ("mixed", {}, "summit:2x1x3", "complete,uneven"),
    ("mixed", {}, "summit:2x2x2", "two-per-level"),
    ("mixed", {}, "localhost:5", "one-per-level,uneven"),
    ("mlp-uneven", {}, "cloud-a100:2x6", "complete,uneven"),
    ("conv-stack", {}, "cloud-a100:2x4", "complete"),
    ("bert-tiny", {}, "summit:2x2x3", "complete,uneven"),
    ("attention", {}, "cloud-a100:1x4", "complete,uneven"),
    ("alexnet", {"batch": 256}, "cloud-a100:4x8", "complete"),
    ("mlp-unity-training", {}, "localhost:4", "complete"),
    ("transformer-layer", {}, "cloud-a100:4x8", "two-per-level"),
]


@pytest.fixture(scope="module", params=PROBLEMS, ids=lambda p: "-".join(map(str, (p[0], *p[2:]))))
def planning(request: pytest.FixtureRequest) -> Planning:
    name, options, machine, where = request.param
    graph = mixed() if name == "mixed" else zoo(name, **options)
    return build(graph, load_machine(machine), space(where), 1 << 40)


def held(planning: Planning, vertex: int, choice: int, tensor: str, position: int | None) -> DeviceBoxes:
    decision, hierarchy = planning.decisions[vertex], planning.machine.hierarchy
    placement = decision.placement(choice)
    if decision.kind is DecisionKind.COPY:
        return copy_of(tensor, planning.graph, placement, hierarchy)
    op = planning.graph.operator(decision.name)
    return (
        written_by(op, planning.graph, placement, hierarchy)
        if position is None
        else read_by(op, position, planning.graph, placement, hierarchy)
    )


def test_operator_entries_equal_the_tables(planning: Planning) -> None:
    rng = random.Random(1)
    for op in planning.graph.operators:
        v = planning.operators[op.name]
        for _ in range(12):
            choice = rng.randrange(planning.problem.domain_size(v))
            entry = operator_entry(op, planning.graph, planning.decisions[v].placement(choice), planning.machine)
            assert entry == planning.problem.vertices[v].cost[choice], (op.name, choice)


def test_movement_entries_equal_the_tables(planning: Planning) -> None:
    rng, problem = random.Random(2), planning.problem
    for route, edge in zip(planning.routes, problem.edges, strict=True):
        size = planning.graph.tensor(route.tensor).element_bytes
        for _ in range(12):
            a, b = rng.randrange(problem.domain_size(edge.u)), rng.randrange(problem.domain_size(edge.v))
            entry = communication_entry(
                size,
                held(planning, edge.u, a, route.tensor, None),
                held(planning, edge.v, b, route.tensor, route.input_position),
                planning.machine,
            )
            row, column = a if edge.rows is None else edge.rows[a], b if edge.cols is None else edge.cols[b]
            assert entry == problem.tables[edge.table][row, column], (route.tensor, a, b)


def test_boxes_equal_the_layouts(planning: Planning) -> None:
    """Box by box and digit by digit, not only in their prices."""
    rng = random.Random(3)
    x = tuple(rng.randrange(v.cost.size) for v in planning.problem.vertices)
    for e, (route, edge) in enumerate(zip(planning.routes, planning.problem.edges, strict=True)):
        pair = (
            held(planning, edge.u, x[edge.u], route.tensor, None),
            held(planning, edge.v, x[edge.v], route.tensor, route.input_position),
        )
        for mine, layout in zip(pair, planning.layouts_of(e, x), strict=True):
            assert [list(map(list, box)) for box in mine.boxes] == layout.boxes.tolist()
            assert [(d.level, d.stride, d.prime) for d in mine.open] == [
                (d.level, d.stride, d.prime) for d in layout.open
            ]


def test_all_used_and_sampled_entries_agree(planning: Planning) -> None:
    rng, entries = random.Random(4), Entries(planning)
    assert wrong_structure(entries) == ""
    for _ in range(3):
        assert wrong_used(entries, [rng.randrange(v.cost.size) for v in planning.problem.vertices]) == ""
    assert wrong_sampled(entries, 300, "some seed") == ""


def test_lists_of_placements_are_the_whole_space(planning: Planning) -> None:
    counter = Counter(planning.machine.hierarchy, planning.space)
    check_sizes(planning.graph, planning.machine, planning.space)
    for op in planning.graph.operators:
        decision = planning.decisions[planning.operators[op.name]]
        axes = [op.axis(n) for n in decision.axes]
        extents, split = [a.extent for a in axes], [a.splittable for a in axes]
        assert check_list(decision.placements, extents, split, planning.space, counter) == ""
        doubled = np.concatenate([decision.placements, decision.placements[-1:]])
        assert check_list(doubled, extents, split, planning.space, counter) == "a placement occurs twice"
        if decision.placements.shape[0] > 1:
            assert "placements, the space has" in check_list(
                decision.placements[1:], extents, split, planning.space, counter
            )


def changed(planning: Planning, **parts: object) -> Entries:
    return Entries(replace(planning, problem=replace(planning.problem, **parts)))  # type: ignore[arg-type]


def test_a_wrong_number_is_found() -> None:
    """Every entry of every kind, raised by one: used ones at once, others by sampling."""
    planning = build(zoo("mlp-unity"), load_machine("cloud-a100:2x2"), space("complete"), 1 << 40)
    p: SelectionProblem = planning.problem
    x = [0] * len(p.vertices)
    for v, vertex in enumerate(p.vertices):
        cost = vertex.cost.copy()
        cost[0] += 1
        wrong = wrong_used(
            changed(planning, vertices=(*p.vertices[:v], Vertex(vertex.name, cost), *p.vertices[v + 1 :])), x
        )
        assert "choice 0: costs" in wrong and (vertex.name in wrong or "copy of" in wrong)
    for e, edge in enumerate(p.edges):
        tables = list(p.tables)
        tables[edge.table] = tables[edge.table].copy()
        tables[edge.table][0 if edge.rows is None else edge.rows[0], 0 if edge.cols is None else edge.cols[0]] += 1
        assert planning.routes[e].tensor in wrong_used(changed(planning, tables=tuple(tables)), x)
    for u, usage in enumerate(p.usages):
        amount = usage.amount.copy()
        amount[0] -= 1
        assert "memory of" in wrong_used(
            changed(planning, usages=(*p.usages[:u], replace(usage, amount=amount), *p.usages[u + 1 :])), x
        )
    for t, table in enumerate(p.tables):
        lowered = (*p.tables[:t], table - 1, *p.tables[t + 1 :])
        assert "costs" in wrong_sampled(changed(planning, tables=lowered), 200, "seed")


def test_a_wrong_structure_is_found() -> None:
    planning = build(zoo("mlp-unity-training"), load_machine("cloud-a100:2x2"), space("complete"), 1 << 40)
    p = planning.problem
    assert "edges" in wrong_structure(changed(planning, edges=p.edges[1:]))
    assert "edges" in wrong_structure(
        changed(planning, edges=(replace(p.edges[0], u=p.edges[0].v, v=p.edges[0].u), *p.edges[1:]))
    )
    assert "usages" in wrong_structure(changed(planning, usages=p.usages[:-1]))
    assert "usages" in wrong_structure(
        changed(planning, usages=(replace(p.usages[0], end=p.usages[0].end - 1), *p.usages[1:]))
    )
    assert "vertices" in wrong_structure(changed(planning, vertices=p.vertices[:-1]))
    swapped = dict(zip(planning.operators, reversed(planning.operators.values()), strict=True))
    assert "does not decide" in wrong_structure(Entries(replace(planning, operators=swapped)))


SMALLER = {"bert-large": {"layers": 2}, "rnnlm": {"steps": 4}, "moe": {"layers": 2}, "transformer": {"layers": 2}}
"""Sizes of models whose parts repeat."""


@pytest.mark.parametrize("name", sorted(ZOO))
def test_structure_of_the_zoo(name: str) -> None:
    """Movements, copies and memory rows equal those of `models/`, in the same order."""
    graph = zoo(name, **SMALLER.get(name, {}))
    planning = build(graph, load_machine("cloud-a100:2x2"), space("one-per-level"), 1 << 40)
    choices = planning.choices((0,) * len(planning.decisions))
    assert [(m.tensor, m.writer, m.reader, m.position) for m in moves(graph)] == [
        (m.tensor, m.writer, m.reader, m.position) for m in communications(graph, (2, 2), choices)
    ]
    assert set(copied_tensors(graph)) == needs_copy(graph)
    for row, usage in zip(memory_rows(graph), planning.problem.usages, strict=True):
        if isinstance(row, Received):
            vertex = planning.operators[row.reader]
        else:
            vertex = (
                planning.copies[row.tensor]
                if row.writer is row.reader is None
                else planning.operators[row.writer or row.reader or ""]
            )
        assert (vertex, row.start, row.end) == (usage.vertex, usage.start, usage.end)


# Numbers worked out by hand, on a machine of round numbers: 2 nodes x 4 devices.

NODE, BUS = Fraction(10), Fraction(100)


def line(n: int, parts: int, hierarchy: tuple[int, ...] = (2, 4), open_: tuple[Digit, ...] = ()) -> DeviceBoxes:
    """A vector of n cut into `parts` consecutive blocks over 8 devices, outermost digits first."""
    return DeviceBoxes.of(
        hierarchy,
        (n,),
        tuple(((d * parts // 8 * n // parts, (d * parts // 8 + 1) * n // parts),) for d in range(8)),
        open_,
    )


def test_loads_by_hand() -> None:
    # all-gather of 64 elements: every node lacks the other node's 32; every device lacks 56
    assert communication_loads(line(64, 8), line(64, 1)) == ((32, 56), (1, 1))
    # inside each node only: nodes hold what they need
    assert communication_loads(line(64, 8), line(64, 2)) == ((0, 24), (0, 1))
    assert communication_loads(line(64, 1), line(64, 8)) == ((0, 0), (0, 0))
    digits = (Digit(0, 1, 2), Digit(1, 2, 2), Digit(1, 1, 2))
    # all-reduce of 64 over 8 = reduce-scatter: inside nodes each device receives 3 x 16, then across nodes 1 x 8 (x 4
    # devices per node); all-gather: 8 across, then 3 x 16 inside
    assert communication_loads(line(64, 1, open_=digits), line(64, 1)) == ((2 * 4 * 8, 2 * (48 + 8)), (2, 2))
    # reduce-scatter alone
    assert communication_loads(line(64, 1, open_=digits), line(64, 8)) == ((4 * 8, 48 + 8), (1, 1))
    # a partial vector whose blocks are not where they are wanted: all-reduce of the blocks, then fetch
    assert communication_loads(line(64, 2, open_=digits[1:]), line(64, 1)) == ((32, 2 * 3 * 8 + 32), (1, 3))


def test_reduction_pads_tiles() -> None:
    """5 elements over 4 devices: tiles of 2, so 6 in and 6 in, as for 8 elements."""
    digits = (Digit(0, 2, 2), Digit(0, 1, 2))
    assert reduction((4,), digits, (False, False), 5) == reduction((4,), digits, (False, False), 8) == ((12,), (2,))
    assert reduction((4,), digits, (True, True), 2) == ((6,), (1,))
    assert reduction((4,), (), (), 7) == ((0,), (0,))
    assert reduction((4,), digits, (False, False), 0) == ((0,), (0,))


def test_operator_time_by_hand() -> None:
    """A matmul of 8 x 6 x 10 with k cut in two and b in four: 2 x 10 x 3 points each."""
    g = Builder("one")
    graph = g.build(g.contract("y", "b k, k n -> b n", g.input("x", (8, 6)), g.parameter("w", (6, 10))))
    machine = load_machine("cloud-a100:2x4")
    op, device = graph.operators[0], machine.device
    placement = Placement(("b", "n", "k"), ((1, 4), (1, 1), (2, 1), (1, 1)))
    seconds = max(2 * 60 / device.peak("float32"), 4 * (2 * 3 + 3 * 10 + 2 * 10) / device.bandwidth) + device.launch
    assert operator_entry(op, graph, placement, machine) == ceil(seconds * 10**12)
    assert written_by(op, graph, placement, (2, 4)).open == (Digit(0, 1, 2),)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_blocks_partition_every_axis(hierarchy: list[int], data: st.DataObject) -> None:
    """Rank r of the digits gets block r; over the devices that agree in the other digits the blocks make up the
    axis.
    """
    matrix = []
    for size in hierarchy:
        first = data.draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        second = data.draw(st.sampled_from([d for d in range(1, size // first + 1) if size // first % d == 0]))
        matrix.append((first, second, size // first // second))
    rows = tuple(zip(*matrix, strict=True))
    extents = (data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12)))
    blocks = boxes_of(axis_blocks(extents, rows, tuple(hierarchy)))
    assert len(blocks) == prod(hierarchy)
    for axis, extent in enumerate(extents):
        others: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        for device, mine in zip(product(*map(range, hierarchy)), blocks, strict=True):
            digits = []
            for c, (a, b, r) in zip(device, matrix, strict=True):
                parts = (c // (b * r) % a, c // r % b, c % r)
                digits.append(parts[:axis] + parts[axis + 1 :])
            others.setdefault(tuple(digits), []).append(mine[axis])
        for group in others.values():
            assert sorted(x for low, high in group for x in range(low, high)) == list(range(extent))
            assert [b for b in group if b != (0, 0)] == sorted(b for b in group if b != (0, 0))


BOX = st.tuples(
    *[st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda p: (min(p), max(p)) if p[0] != p[1] else (0, 0))] * 2
)


def cells(box: tuple[tuple[int, int], ...]) -> set[tuple[int, ...]]:
    return set(product(*(range(low, high) for low, high in box)))


@given(st.lists(BOX, max_size=4), st.lists(BOX, max_size=4))
def test_difference_is_that_of_sets(
    wanted: list[tuple[tuple[int, int], ...]], have: list[tuple[tuple[int, int], ...]]
) -> None:
    assert difference(wanted, have) == len(set().union(*map(cells, wanted)) - set().union(*map(cells, have)))
    for a, b in product(wanted, have):
        assert inside(a, b) == (cells(a) <= cells(b))
        assert volume(a) == len(cells(a))


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(-5, 5),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_touched_is_the_hull_of_all_indices(
    a: int, b: int, offset: int, i: tuple[int, int], j: tuple[int, int]
) -> None:
    index = Affine((("i", a), ("j", b)), offset)
    # the hull is taken before it is cut to the extent, as the definition says
    reached = [a * x + b * y + offset for x in range(*i) for y in range(*j)]
    low, high = (max(min(reached), 0), min(max(reached) + 1, 8)) if reached else (0, 0)
    assert reached_interval(index, [i, j], 8) == ((low, high) if low < high else (0, 0))
    assert reached_interval(Affine((("i", a),), offset, whole=True), [i], 8) == ((0, 8) if i[0] < i[1] else (0, 0))


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.sampled_from([(2,), (4,), (2, 3), (2, 2, 2), (1, 4)]),
    st.sampled_from(["complete", "two-per-level", "one-per-level", "complete,uneven", "two-per-level,uneven"]),
)
def test_count_is_the_number_of_matrices(extents: list[int], hierarchy: tuple[int, ...], name: str) -> None:
    where = space(name)
    found = matrices(extents, [True] * len(extents), hierarchy, where)
    counter = Counter(hierarchy, where)
    assert counter.count(extents) == found.shape[0]
    assert check_list(found, extents, [True] * len(extents), where, counter) == ""
    # rows merged: an upper bound of the distinct patterns (degrees and strides) of the first row alone
    first = {(row[0].tobytes(), row[1:].prod(axis=0).tobytes()) for row in found}
    assert counter.involving(extents, [True, *[False] * (len(extents) - 1)]) >= len(first)


def test_open_digits_are_primes_most_significant_first() -> None:
    assert open_digits(((2, 6), (1, 1), (3, 2)), [0]) == (Digit(0, 3, 2), Digit(1, 6, 2), Digit(1, 2, 3))
    hierarchy = (6, 12)
    seen = {
        tuple(d.value(device, hierarchy) for d in open_digits(((2, 6), (1, 1), (3, 2)), [0])) for device in range(72)
    }
    assert len(seen) == 12
    assert all(Digit(1, 2, 3).value(Digit(1, 2, 3).device_at_zero(d, hierarchy), hierarchy) == 0 for d in range(72))


def test_draws_depend_on_the_seed_alone() -> None:
    a, b, c = Draw("x"), Draw("x"), Draw("y")
    first = [a.below(1000) for _ in range(20)]
    assert first == [b.below(1000) for _ in range(20)] != [c.below(1000) for _ in range(20)]
    assert len(set(first)) > 15


@pytest.mark.parametrize(
    ("shape", "machine", "name", "what"),
    [
        ((1 << 29, 1 << 29), "cloud-a100:2x4", "complete", "elements"),
        ((8, 8), "cloud-a100:128x64", "complete", "devices"),
        ((1,) * 70, "localhost:2", "complete", "70 dimensions"),
        ((2,) * 30, "summit:8x8x8", "complete", "steps|placements"),
        ((8,) * 12, "cloud-a100:32x32", "complete", "steps|placements"),
    ],
)
def test_absurd_sizes_are_refused_at_once(shape: tuple[int, ...], machine: str, name: str, what: str) -> None:
    g = Builder("big")
    letters = " ".join(f"a{i}" for i in range(len(shape)))
    graph = g.build(g.map("y", "relu", g.input("x", shape), text=f"{letters} -> {letters}"))
    with pytest.raises(TooLarge, match=what):
        check_sizes(graph, load_machine(machine), space(name))
