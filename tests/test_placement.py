"""Placement matrices: the counts of the note, three engines that agree, the appendix, the best placement, clear
errors.
"""

from __future__ import annotations

from itertools import product
from math import prod

import p2_appendix
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.formal.collective_programs.placement import enumerate_matrices, ilp_matrices, smt_matrices
from shardproof.formal.collective_programs.synthesize import Cost, best_placement, synthesize
from shardproof.models.collective_programs.cost import PAYLOAD, m2
from shardproof.models.collective_programs.parallelism import (
    Order,
    ParallelismError,
    PlacementProblem,
    ReductionRequest,
    reduction_groups,
)
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.proofs.collective_programs.certificate import PlacementCertificate, Term
from shardproof.proofs.container.canonical import ContainerError
from shardproof.verify.collective_programs.placement import check_placement, count_matrices

NOTE = [
    ((1, 2, 2, 4), (4, 4), 4),
    ((2, 16), (8, 4), 2),
    ((4, 16), (2, 2, 16), 4),
    ((4, 9), (6, 6), 1),
    ((4, 12, 15), (12, 6, 10), 8),
    ((4, 4, 16), (8, 8, 4), 29),
    ((4, 4, 16, 16), (16, 16, 16), 312),
]


def brute_force(hierarchy: tuple[int, ...], axes: tuple[int, ...]) -> set[tuple[tuple[int, ...], ...]]:
    """By definition: every matrix of divisors."""
    divisors = {h: [d for d in range(1, h + 1) if h % d == 0] for h in hierarchy}
    cells = [divisors[h] for _ in axes for h in hierarchy]
    found = set()
    for values in product(*cells):
        m = tuple(values[i * len(hierarchy) : (i + 1) * len(hierarchy)] for i in range(len(axes)))
        if all(prod(r) == a for r, a in zip(m, axes, strict=True)) and all(
            prod(c) == h for c, h in zip(zip(*m, strict=True), hierarchy, strict=True)
        ):
            found.add(m)
    return found


@pytest.mark.parametrize(
    ("hierarchy", "axes", "matrices", "words"),
    [
        ((), (2,), (), "must be positive and not empty"),
        ((2,), (0,), (), "must be positive and not empty"),
        ((2, 2), (4,), (((2,),),), "must have 1 rows of 2 positive entries"),
        ((2, 2), (4,), (((-2, -2),),), "must have 1 rows of 2 positive entries"),
        ((2, 2), (4,), (((2, 2), (1, 1)),), "must have 1 rows of 2 positive entries"),
        ((2, 2), (4,), (((2, 1),),), "row 0: product 2, the axis has 4"),
        ((2, 2), (4,), (((4, 1),),), "column 0: product 4, the level has 2"),
        ((2, 2), (4,), (((2, 2),), ((2, 2),)), "listed twice"),
        ((2, 2), (2, 2), (((2, 1), (1, 2)),), "1 matrices are listed, there are 2"),
    ],
)
def test_lists_that_are_wrong(
    hierarchy: tuple[int, ...], axes: tuple[int, ...], matrices: tuple[tuple[tuple[int, ...], ...], ...], words: str
) -> None:
    found = check_placement(PlacementCertificate(PlacementProblem(hierarchy, axes), matrices))
    assert found.verdict is Verdict.REFUTED
    assert words in found.reason


def test_more_devices_than_are_counted() -> None:
    with pytest.raises(ContainerError, match="too large to be checked"):
        check_placement(PlacementCertificate(PlacementProblem((1 << 21,), (1 << 21,)), (((1 << 21,),),)))


@pytest.mark.parametrize(("hierarchy", "axes", "count"), NOTE)
def test_counts_of_the_note(hierarchy: tuple[int, ...], axes: tuple[int, ...], count: int) -> None:
    problem = PlacementProblem(hierarchy, axes)
    found = enumerate_matrices(problem)
    assert len(found) == count == count_matrices(hierarchy, axes)
    assert check_placement(PlacementCertificate(problem, found)).verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("hierarchy", "axes"),
    [(h, a) for h, a, n in NOTE if n < 30] + [((32, 2, 3), (12, 16)), ((1,), (1,)), ((2, 1, 3), (1, 6))],
)
def test_three_engines_agree(hierarchy: tuple[int, ...], axes: tuple[int, ...]) -> None:
    problem = PlacementProblem(hierarchy, axes)
    assert enumerate_matrices(problem) == smt_matrices(problem)[0] == ilp_matrices(problem)[0]


@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), min_size=1, max_size=3),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_all_and_only_the_placements(hierarchy: list[int], rows: int, random: object) -> None:
    n = prod(hierarchy)
    axes, rest = [], n
    for i in range(rows - 1):
        axes.append(
            [d for d in range(1, rest + 1) if rest % d == 0][
                (7 * i + n) % sum(rest % d == 0 for d in range(1, rest + 1))
            ]
        )
        rest //= axes[-1]
    axes.append(rest)
    if prod(len([d for d in range(1, h + 1) if h % d == 0]) for h in hierarchy) ** rows > 20_000:
        return
    found = enumerate_matrices(PlacementProblem(tuple(hierarchy), tuple(axes)))
    assert set(found) == brute_force(tuple(hierarchy), tuple(axes)) and len(set(found)) == len(found) == count_matrices(
        hierarchy, axes
    )


def test_the_42_groups_of_the_appendix_are_complete() -> None:
    groups: dict[object, set[object]] = {}
    for row in p2_appendix.rows():
        groups.setdefault(row.group, set()).add(row.matrix)
    assert len(groups) == 42
    for (_, hierarchy, axes, _), matrices in groups.items():  # type: ignore[misc]
        assert set(enumerate_matrices(PlacementProblem(hierarchy, axes))) == matrices


@given(
    st.sampled_from([((1, 2, 2, 4), (4, 4)), ((4, 12, 15), (12, 6, 10)), ((2, 3), (3, 2)), ((4, 4), (2, 2, 4))]),
    st.data(),
)
def test_groups_follow_the_definition(case: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject) -> None:
    """Devices by their digits, one by one, against the closed form with offsets."""
    hierarchy, axes = case
    matrix = data.draw(st.sampled_from(enumerate_matrices(PlacementProblem(hierarchy, axes))))
    reduce = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(axes))), min_size=1))))
    for order in Order:
        levels = range(len(hierarchy))
        cells = (
            [(i, j) for i in reduce for j in levels]
            if order is Order.ROW_MAJOR
            else [(i, j) for j in levels for i in reduce]
        )
        groups: dict[object, list[tuple[object, int]]] = {}
        for device, values in enumerate(product(*(range(matrix[i][j]) for j in levels for i in range(len(axes))))):
            at = dict(zip([(i, j) for j in levels for i in range(len(axes))], values, strict=True))
            rest = tuple(v for (i, _), v in at.items() if i not in reduce)
            groups.setdefault(rest, []).append((tuple(at[c] for c in cells), device))
        expected = sorted(tuple(d for _, d in sorted(g)) for g in groups.values())
        assert sorted(reduction_groups(matrix, reduce, order)) == expected


def test_orders_agree_exactly_where_the_note_says() -> None:
    """Two levels: same device groups of every pattern iff one axis, or x[r1][1] = 1, or x[r2][0] = 1 (all 104 rows)."""
    for row in p2_appendix.rows():
        same = reduction_groups(row.matrix, row.reduce) == reduction_groups(row.matrix, row.reduce, Order.ALIGNED)
        real = [i for i in row.reduce]
        assert same == (len(real) == 1 or row.matrix[real[0]][1] == 1 or row.matrix[real[1]][0] == 1)


@pytest.mark.parametrize(
    ("hierarchy", "axes", "words"),
    [
        ((4, 16), (4, 8), "2 divides 32 5 times and 64 6 times"),
        ((4, 9), (6, 5), "2 divides 30 1 times and 36 2 times"),
        ((), (1,), "hierarchy: empty"),
        ((4,), (), "axes: empty"),
        ((4, 0), (4,), "entry 1: 0"),
        ((4,), (-4, -1), "entry 0: -4"),
        ((1 << 17,), (1 << 17,), "are more than"),
    ],
)
def test_impossible_requests_say_why(hierarchy: tuple[int, ...], axes: tuple[int, ...], words: str) -> None:
    for engine in (enumerate_matrices, smt_matrices, ilp_matrices):
        with pytest.raises(ParallelismError, match=words):
            engine(PlacementProblem(hierarchy, axes))


def test_best_placement_for_two_reductions_is_the_best_of_all() -> None:
    """Data parallel gradients are large, parameter shards small: the weighted sum decides, against a sum made by
    hand here.
    """
    problem = PlacementProblem((4, 16), (4, 16))
    placement = PlacementCertificate(problem, enumerate_matrices(problem))
    machine = load_machine("p2-a100:4x16")
    costs = [Cost(0, m2(machine, PAYLOAD)), Cost(1, m2(machine, PAYLOAD // 1000))]
    winners = []
    for weights in ((1, 1), (1, 10**6)):
        terms = [Term((0,), 0, weights[0]), Term((1,), 1, weights[1])]
        best, _, _ = best_placement(placement, costs, terms, [Order.ROW_MAJOR])
        by_hand = [
            sum(
                t.weight * (synthesize(ReductionRequest((4, 16), m, t.reduce), costs[t.model].model).cost or 0)
                for t in terms
            )
            for m in placement.matrices
        ]
        assert best.cost == min(by_hand) == by_hand[best.matrix]
        winners.append(placement.matrices[best.matrix])
    assert winners == [((1, 4), (4, 4)), ((4, 1), (1, 16))]


def test_summit() -> None:
    problem = PlacementProblem((32, 2, 3), (12, 16))
    assert enumerate_matrices(problem) == (((2, 2, 3), (16, 1, 1)), ((4, 1, 3), (8, 2, 1)))
