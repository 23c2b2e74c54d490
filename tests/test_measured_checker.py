"""The checker's reading of measured forms (`verify/plan/measured.py`), condition by condition, on figures made by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from shardproof.models.machine.machine import load_machine
from shardproof.models.machine.measured import CollectiveForm, ProductForm
from shardproof.models.program.operators import Operator
from shardproof.models.sources.building.builder import Builder
from shardproof.verify.plan.boxes import Digit
from shardproof.verify.plan.measured import (
    Collective,
    Product,
    computing,
    of_fetch,
    of_reduction,
    product_of,
    product_seconds,
    units,
)

FORM = CollectiveForm(*(Fraction(n) for n in (1000, 100, 7, 10, 1, 3)))
"""Seconds: fixed, hop, slow, start, wire, own."""


@pytest.mark.parametrize(
    ("operation", "members", "share", "seconds"),
    [
        ("all_gather", 5, 100, 1000 + 400 + 3 * 10 + 400 + 300),  # three rounds reach five
        ("all_gather", 4, 100, 1000 + 300 + 2 * 10 + 300 + 300),
        ("all_reduce", 5, 100, 1000 + 400 + 3 * 10 + 800 + 300),  # the wire twice
        ("alltoall", 5, 100, 1000 + 400 + 10 + 400 + 300),  # one round
        ("all_gather", 5, 1, 1000 + 400 + min(35, 30 + 4 + 3)),  # slow is quicker
    ],
)
def test_a_collective(operation: str, members: int, share: int, seconds: int) -> None:
    assert Collective(operation, 0, members, share).seconds(FORM, 1) == seconds


def test_levels_without_forms_and_empty_collectives_count_nothing() -> None:
    base = load_machine("cloud-a100:2x4")
    levels = (base.levels[0], replace(base.levels[1], collectives=(FORM,) * 4))
    machine = replace(base, levels=levels)
    some = [Collective("all_gather", 1, 4, 100), Collective("all_gather", 0, 2, 100), Collective("alltoall", 1, 4, 0)]
    assert units(some, 1, machine, 1) == 1000 + 300 + 20 + 300 + 300


def test_every_collective_is_rounded_up() -> None:
    base = load_machine("cloud-a100:2x4")
    thirds = CollectiveForm(*(value / 3 for value in vars(FORM).values()))
    machine = replace(base, levels=(base.levels[0], replace(base.levels[1], collectives=(thirds,) * 4)))
    one = Collective("alltoall", 1, 4, 100)  # 1000 + 300 + 10 + 300 + 300 thirds
    assert units([one], 1, machine, 1) == 637
    assert units([one] * 3, 1, machine, 1) == 3 * 637  # not the 1,910 of their sum


def test_every_operation_has_its_own_form() -> None:
    base = load_machine("cloud-a100:2x4")
    forms = tuple(CollectiveForm(Fraction(n), *(Fraction(0),) * 5) for n in (1, 10, 100, 1000))
    machine = replace(base, levels=(base.levels[0], replace(base.levels[1], collectives=forms)))
    for operation, expected in (("all_gather", 1), ("reduce_scatter", 10), ("all_reduce", 100), ("alltoall", 1000)):
        assert units([Collective(operation, 1, 4, 100)], 1, machine, 1) == expected


def test_a_piece_of_a_reduction_is_rounded_up() -> None:
    found = list(of_reduction((2, 4), (Digit(0, 1, 2), Digit(1, 1, 2)), (True, False), 25))
    assert [(c.operation, c.share) for c in found] == [
        ("reduce_scatter", 4 * 13 * 1),
        ("reduce_scatter", 26),
        ("all_gather", 13),
    ]


def test_a_product_counts_its_batch_its_steps_and_the_bytes_of_cut_sums() -> None:
    zero, one = Fraction(0), Fraction(1)
    form = ProductForm("bf16", 4, ((64, 64, Fraction(10)),), zero, one, 2 * one, 5 * one, one / 16384, zero, zero)
    assert computing(form, 5, 64, 64, 64) == 2 * (10 + 1) + 2  # five blocks on four processors
    assert computing(form, 1, 64, 64, 6400) == 2 * (13 * 10 + 1) + 13 * 2 + 5 + 8  # eight parts of thirteen steps


D = Digit
TWO = (D(0, 1, 2), D(1, 1, 2))
"""A digit of two at either level of 2 x 4."""


@pytest.mark.parametrize(
    ("digits", "scattered", "expected"),
    [
        (TWO[1:], (False,), [("all_reduce", 1, 2, 12)]),
        (TWO[1:], (True,), [("reduce_scatter", 1, 2, 24)]),  # nothing is gathered again
        # all are kept: over the outermost level one all_reduce, inside scatter and gather
        (TWO, (False, False), [("all_reduce", 0, 2, 4 * 6), ("reduce_scatter", 1, 2, 12), ("all_gather", 1, 2, 12)]),
        # the outer digit is scattered: that is no all_reduce, and only the inner one is gathered
        (TWO, (True, False), [("reduce_scatter", 0, 2, 48), ("reduce_scatter", 1, 2, 24), ("all_gather", 1, 2, 12)]),
        (TWO, (False, True), [("all_reduce", 0, 2, 4 * 12), ("reduce_scatter", 1, 2, 24)]),
    ],
)
def test_a_reduction(
    digits: tuple[Digit, ...], scattered: tuple[bool, ...], expected: list[tuple[str, int, int, int]]
) -> None:
    found = list(of_reduction((2, 4), digits, scattered, 24))
    assert [(c.operation, c.level, c.members, c.share) for c in found] == expected


@pytest.mark.parametrize(
    ("hierarchy", "loads", "held", "wanted", "expected"),
    [
        ((2, 8), [0, 12], 4, 16, [("all_gather", 1, 4, 4)]),  # grows by what comes in
        ((2, 8), [0, 10], 4, 14, [("all_gather", 1, 4, 4)]),  # three boxes and a half are four members
        ((2, 8), [0, 12], 4, 15, [("alltoall", 1, 8, 2)]),  # something is sent that another held
        ((2, 8), [0, 7], 8, 8, [("alltoall", 1, 8, 1)]),
        ((2, 8), [6, 12], 4, 16, [("all_gather", 0, 2, 6), ("all_gather", 1, 4, 4)]),  # no more members than there are
        ((2, 8), [0, 2], 8, 10, [("all_gather", 1, 2, 2)]),
        ((2, 8), [0, 4], 16, 20, [("all_gather", 1, 2, 4)]),
        ((2, 8), [0, 4], 0, 8, [("all_gather", 1, 8, 1)]),  # who held nothing
        ((2, 8), [0, 2], 2, 2, [("alltoall", 1, 8, 1)]),
        ((2, 8), [4, 0], 4, 4, [("all_gather", 0, 2, 4)]),  # over the outer link alone, by two at least
        ((2, 1), [4, 4], 4, 8, [("all_gather", 0, 2, 4)]),  # no link where one device is
    ],
)
def test_a_fetch(
    hierarchy: tuple[int, ...], loads: list[int], held: int, wanted: int, expected: list[tuple[str, int, int, int]]
) -> None:
    found = list(of_fetch(hierarchy, loads, held, wanted))
    assert [(c.operation, c.level, c.members, c.share) for c in found] == expected


def contraction(text: str, *shapes: tuple[int, ...]) -> Operator:
    """One operator that sums products of operands in these shapes."""
    g = Builder("one")
    operands = [g.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    (op,) = g.build(g.contract("op", text, *operands)).operators
    return op


def changed(op: Operator, operand: int, place: int, **what: object) -> Operator:
    """With another reading of one dimension."""
    inputs = list(op.inputs)
    index = list(inputs[operand].index)
    index[place] = replace(index[place], **what)  # type: ignore[arg-type]
    inputs[operand] = replace(inputs[operand], index=tuple(index))
    return replace(op, inputs=tuple(inputs))


PLAIN = contraction("m k, k n -> m n", (4, 6), (6, 8))
BATCHED = contraction("b m k, b k n -> b m n", (2, 4, 6), (2, 6, 8))
BIAS = replace(PLAIN.inputs[1], index=PLAIN.inputs[1].index[1:])
SUMMED = replace(PLAIN.inputs[0], index=PLAIN.inputs[0].index[1:])


@pytest.mark.parametrize(
    ("op", "parts"),
    [
        (PLAIN, ((), ("m",), ("n",), ("k",))),
        (BATCHED, (("b",), ("m",), ("n",), ("k",))),
        (contraction("m j k, j k n -> m n", (4, 2, 6), (2, 6, 8)), ((), ("m",), ("n",), ("j", "k"))),
        (replace(PLAIN, function="fused_product", inputs=(*PLAIN.inputs, BIAS)), ((), ("m",), ("n",), ("k",))),
        (replace(PLAIN, function="fused_product", inputs=(*PLAIN.inputs, SUMMED)), None),  # it has an axis of the sum
        (replace(PLAIN, inputs=(*PLAIN.inputs, BIAS)), None),  # three factors
        (replace(PLAIN, inputs=PLAIN.inputs[:1]), None),
        (replace(PLAIN, function="multiply"), None),
        (contraction("m k, k -> m", (4, 6), (6,)), None),  # the right one has nothing of its own
        (contraction("k, k n -> n", (6,), (6, 8)), None),  # nor has the left one
        (contraction("m, n -> m n", (4,), (8,)), None),  # nothing is summed
        (contraction("m k, n -> m n", (4, 6), (8,)), None),  # summed in one factor only
        (changed(PLAIN, 0, 0, terms=(("k", 1),)), None),  # an axis twice in a factor
        (changed(BATCHED, 0, 0, terms=(("m", 1),)), None),
        (changed(PLAIN, 0, 0, terms=(("m", 2),)), None),  # a stride
        (changed(PLAIN, 0, 0, terms=(("m", 1), ("n", 1))), None),  # a window
        (changed(BATCHED, 0, 0, terms=(("b", 2),)), None),  # the other factor reads it plainly
        (changed(BATCHED, 1, 0, terms=()), None),  # a constant place
        (changed(PLAIN, 0, 0, offset=1), None),
        (changed(PLAIN, 0, 0, whole=True), None),
        (replace(PLAIN, axes=(*PLAIN.axes, replace(PLAIN.axes[0], name="z"))), None),  # an axis of neither factor
    ],
)
def test_what_is_read_as_a_matrix_product(op: Operator, parts: tuple[tuple[str, ...], ...] | None) -> None:
    found = product_of(op)
    assert (None if found is None else found.parts) == parts


TILES = ((128, 64, Fraction(5)), (64, 128, Fraction(7)))
PRODUCT = ProductForm("bfloat16", 10, TILES, *(Fraction(n) for n in (1000, 1, 0, 40, 0, 0)), Fraction(1, 2))
"""Launch 1000, tail 1, step 0, split 40, sum 0, result 0; odd sizes take half as long again."""


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ((1, 128, 64, 64), 5 + 1),
        ((1, 128, 64, 640), 10 * 5 + 1),  # one part: 51; more cost 40
        ((1, 128, 64, 64 * 1024), 40 + min(-(-p // 10) * (1024 // p * 5 + 1) for p in (1 << e for e in range(11)))),
        ((1, 128, 65, 64), min(5 + 1, 7 + 1)),
        ((1, 120, 64, 64), 5 + 1),  # odd rows of a small product are not slowed
        ((1, 64 * 20, 128, 64), min(2 * 6, 2 * 8)),
        ((1, 192, 64, 64), 5 + 1),
        ((1, 129, 64, 64), Fraction(15, 2) + 1),
        ((0, 128, 64, 64), 0),
        ((1, 128, 64, 0), 0),
    ],
)
def test_what_a_product_computes(sizes: tuple[int, int, int, int], seconds: Fraction) -> None:
    assert computing(PRODUCT, *sizes) == seconds


def test_no_digit_of_a_tile_is_lost() -> None:
    """Times of tiles have denominators that no other constant has; truncated, they would be too short."""
    fine = replace(PRODUCT, tiles=((128, 64, Fraction(5, 7)), (64, 128, Fraction(7, 11))), odd=Fraction(1, 3))
    assert computing(fine, 1, 128, 64, 64) == min(Fraction(5, 7), Fraction(7, 11)) + 1
    assert computing(fine, 1, 129, 64, 64) == Fraction(4, 3) * min(Fraction(5, 7), Fraction(7, 11)) + 1
    only = replace(fine, tiles=fine.tiles[:1])
    assert computing(only, 1, 128, 64, 640) == Fraction(50, 7) + 1


def test_a_sum_is_cut_into_1024_parts_at_most() -> None:
    many = replace(PRODUCT, processors=1 << 12)
    assert computing(many, 1, 128, 64, 64 * 1024) == 40 + 5 + 1
    assert computing(many, 1, 128, 64, 64 * 2048) == 40 + 2 * 5 + 1


def test_a_product_waits_for_its_bytes_or_computes() -> None:
    sizes = (1, 128, 64, 64)
    assert product_seconds(PRODUCT, sizes, Fraction(2), Fraction(7)) == 1000 + 8
    assert product_seconds(PRODUCT, sizes, Fraction(2), Fraction(9)) == 1000 + 9
    priced = replace(PRODUCT, result=Fraction(1, 128))
    assert product_seconds(priced, sizes, Fraction(0), Fraction(0)) == 1000 + 6 + 64
    assert Product((), ("m",), ("n",), ("k",)).parts == ((), ("m",), ("n",), ("k",))
