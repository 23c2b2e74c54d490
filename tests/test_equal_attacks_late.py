"""What a second attack of November 2026 got proved by `equal`: infinities that are added, labels that are their own
positions, elements that nobody takes for positions; and what it got refused: sums over positions inside a division.
And a third: logarithms that are minus infinity, and one by infinity, where they are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
from hostile_equalities import Drawn, pair

from shardproof.models.equality.pair import Pair, Part, Relation
from shardproof.models.equality.program import Described, RankProgram, Step
from shardproof.models.problem.claims import Verdict
from shardproof.verify.budget import Budget
from shardproof.verify.equality.certificate import check_pair

F, I, B = "float32", "int64", "bool"
Shape = tuple[int, ...]
Made = Callable[["Program"], tuple[int, ...]]


class Program(Drawn):
    """Steps that say what type they make."""

    def do(self, operator: str, reads: tuple[int, ...], made: Shape, dtype: str = F, /, **words: object) -> int:
        number = len(self.tensors)
        self.tensors.append(Described(made, dtype))
        self.steps.append(Step(operator, reads, (number,), tuple(words.items())))  # type: ignore[arg-type]
        return number

    def full(self, shape: Shape, value: float, dtype: str = F) -> int:
        return self.do("full", (), shape, dtype, shape=shape, value=value, dtype=dtype)

    def places(self, many: int) -> int:
        return self.do("iota", (), (many,), I, n=many, start=0.0, step=1.0, dtype=I)

    def as_numbers(self, condition: int) -> int:
        return self.do("cast", (condition,), self.shape(condition), F, dtype=F, was=B)


def proved(sources: tuple[tuple[Shape, str], ...], one: Made, other: Made, related: tuple[int, ...] = ()) -> bool:
    """Whether what one rank makes is seen to be what the one device makes of the same; `related`: tensors of the rank
    that are said to be those of the same number.
    """
    programs = []
    for make in (one, other):
        drawn = Program(*sources)
        outputs = tuple((f"output{k}", n) for k, n in enumerate(make(drawn)))
        programs.append(RankProgram(tuple(drawn.sources), tuple(drawn.steps), outputs, tuple(drawn.tensors)))
    single, rank = programs
    given = pair(rank).given
    results = tuple((n, Part(n, tuple(((0, 0, k),) for k in rank.tensors[i].shape))) for n, i in rank.outputs)
    relations = tuple(Relation(i, i, tuple(((0, 0, k),) for k in rank.tensors[i].shape)) for i in related)
    about = Pair(single, (rank,), (), given, (results,), (), (relations,))
    return check_pair(about, Budget.with_large()).verdict is Verdict.PROVED


@pytest.mark.parametrize(("number", "elsewhere", "fine"), [(-inf, 0.0, True), (inf, 0.0, False), (inf, 1.0, False)])
def test_an_infinity_that_is_added_does_not_go_away(number: float, elsewhere: float, fine: bool) -> None:
    """exp(x + L) was exp(x), so exp of what is masked with +inf was 1 there."""

    def masked(p: Program) -> tuple[int, ...]:
        return (p.do("exp", (p.do("where", (0, 1, p.full((), number)), (4,)),), (4,)),)

    def chosen(p: Program) -> tuple[int, ...]:
        return (p.do("where", (0, p.do("exp", (1,), (4,)), p.full((), elsewhere)), (4,)),)

    assert proved((((4,), B), ((4,), F)), masked, chosen) is fine


def _added(number: float) -> bool:
    def one(p: Program) -> tuple[int, ...]:
        return (p.do("exp", (p.do("add", (0,), (4,), number=number),), (4,)),)

    return proved((((4,), F),), one, lambda p: (p.do("exp", (0,), (4,)),))


def test_exp_of_an_infinity_is_none_of_a_number() -> None:
    assert _added(0.0) and not _added(inf) and not _added(-inf)


@pytest.mark.parametrize("ignored", [None, -100])
@pytest.mark.parametrize("diagonal", [False, True])
def test_labels_are_not_counted_at_their_own_positions(ignored: int | None, diagonal: bool) -> None:
    """One label equals one of 0, 1, 2, 3; of four labels, how many stand at their own positions is not known."""

    def picked(p: Program) -> int:
        labels = 1
        if ignored is not None:
            labels = p.do("where", (p.do("ne", (1,), (4,), B, number=ignored), 1, p.full((), 0.0, I)), (4,), I)
        return p.do("index", (0, labels), (4, 3), wrap=False)

    def one(p: Program) -> tuple[int, ...]:
        wide = (4,) if diagonal else (4, 4)
        labels = 1 if diagonal else p.do("reshape", (1,), (4, 1), I, shape=(4, 1))
        hits = p.as_numbers(p.do("eq", (labels, p.places(4)), wide, B))
        made = () if diagonal else (4,)
        return picked(p), p.do("sum", (hits,), made, dims=(len(wide) - 1,), keep=False)

    def other(p: Program) -> tuple[int, ...]:
        made = () if diagonal else (4,)
        if ignored is None:
            return picked(p), p.full(made, 1.0)
        label = p.do("slice", (1,), (1,), I, dim=0, start=0, stop=1, step=1) if diagonal else 1
        label = p.do("reshape", (label,), made, I, shape=made)
        return picked(p), p.as_numbers(p.do("ne", (label,), made, B, number=ignored))

    assert proved((((4, 3), F), ((4,), I)), one, other) is not diagonal


@pytest.mark.parametrize(("first", "fine"), [(0, True), (3, False)])
@pytest.mark.parametrize("swapped", [False, True])
def test_what_is_compared_and_no_position_may_be_any_number(first: int, fine: bool, swapped: bool) -> None:
    """Elements 0 to 2 are positions of five, and none is 7; element 3 may be."""

    def picked(p: Program) -> tuple[int, int]:
        three, one = (
            p.do("slice", (1,), (b - a,), I, dim=0, start=a, stop=b, step=1) for a, b in ((0, 3), (first, first + 1))
        )
        return p.do("index", (0, three), (3, 3), wrap=False), one

    def compared(p: Program) -> tuple[int, ...]:
        rows, one = picked(p)
        return rows, p.as_numbers(p.do("eq", (one,), (1,), B, number=7))

    def nothing(p: Program) -> tuple[int, ...]:
        return picked(p)[0], p.full((1,), 0.0)

    programs = (nothing, compared) if swapped else (compared, nothing)
    assert proved((((5, 3), F), ((4,), I)), *programs) is fine


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_positions_inside_a_division_are_no_broken_program(weight: float) -> None:
    """The sum over j of x[i, j] / (1 + [i = j]): its variable was taken for one that a condition's sum binds."""

    def diagonal(p: Program) -> int:
        return p.as_numbers(
            p.do("eq", (p.do("reshape", (p.places(4),), (4, 1), I, shape=(4, 1)), p.places(4)), (4, 4), B)
        )

    def one(p: Program) -> tuple[int, ...]:
        below = p.do("add", (diagonal(p),), (4, 4), number=1.0)
        return (p.do("sum", (p.do("div", (0, below), (4, 4)),), (4,), dims=(1,), keep=False),)

    def two(p: Program) -> tuple[int, ...]:
        own = p.do("mul", (p.do("mul", (0, diagonal(p)), (4, 4)),), (4, 4), number=weight)
        rest = p.do("sub", (0, own), (4, 4))
        return (p.do("sum", (rest,), (4,), dims=(1,), keep=False),)

    assert not proved((((4, 4), F),), one, two) or weight == 0.5  # and raises nothing


def _logarithms(p: Program) -> int:
    """log of exp(x) where the first input is true, of 0 elsewhere: minus infinity there."""
    return p.do("log", (p.do("where", (0, p.do("exp", (1,), (4,)), p.full((), 0.0)), (4,)),), (4,))


@pytest.mark.parametrize("operator", ["eq", "ne"])
def test_a_logarithm_may_be_minus_infinity(operator: str) -> None:
    """log(t exp(x)) was a number that is no infinity, where t is false too."""

    def compared(p: Program) -> tuple[int, ...]:
        return (p.as_numbers(p.do(operator, (_logarithms(p),), (4,), B, number=-inf)),)

    def masked(p: Program) -> tuple[int, ...]:
        own = p.do("where", (0, _logarithms(p), p.full((), -inf)), (4,))
        return (p.as_numbers(p.do(operator, (own,), (4,), B, number=-inf)),)

    def chosen(p: Program) -> tuple[int, ...]:
        here = p.do("eq", (_logarithms(p),), (4,), B, number=0.0)
        return (p.do("where", (here, p.full((), 0.0), p.full((), 1.0)), (4,)),)

    sources = (((4,), B), ((4,), F))
    for made in (compared, masked):
        assert proved(sources, made, made)
        for number in (0.0, 1.0):
            assert not proved(sources, made, lambda p, number=number: (p.full((4,), number),))
    assert proved(sources, chosen, chosen)


@pytest.mark.parametrize("operator", ["eq", "ne", "gt", "ge", "lt", "le"])
@pytest.mark.parametrize("changed", ["add", "mul"])
def test_logarithms_of_nothing_have_no_difference(operator: str, changed: str) -> None:
    """log(0) = log(0) + 1 = 2 log(0); their difference was taken for 1 and for the logarithm."""

    def compared(p: Program) -> tuple[int, ...]:
        one = _logarithms(p)
        other = p.do(changed, (one,), (4,), number=1.0 if changed == "add" else 2.0)
        return (p.as_numbers(p.do(operator, (one, other), (4,), B)),)

    def known(p: Program) -> tuple[int, ...]:
        if changed == "mul":
            return (p.as_numbers(p.do(operator, (p.full((), 0.0), _logarithms(p)), (4,), B)),)
        return (p.full((4,), float(operator in ("ne", "lt", "le"))),)

    sources = (((4,), B), ((4,), F))
    assert proved(sources, compared, compared)
    assert not proved(sources, compared, known)


@pytest.mark.parametrize(("number", "fine"), [(-inf, True), (0.0, False)])
def test_a_logarithm_of_what_is_above_zero_is_a_number(number: float, fine: bool) -> None:
    """log_softmax is minus infinity exactly where it is masked."""

    def masked(p: Program) -> tuple[int, ...]:
        total = p.do("sum", (p.do("exp", (1,), (4,)),), (1,), dims=(0,), keep=True)
        own = p.do("sub", (1, p.do("log", (total,), (1,))), (4,))
        own = p.do("where", (0, own, p.full((), -inf)), (4,))
        return (p.as_numbers(p.do("ne", (own,), (4,), B, number=number)),)

    assert proved((((4,), B), ((4,), F)), masked, lambda p: (p.as_numbers(0),)) is fine


def test_nothing_is_known_of_one_by_infinity() -> None:
    """1 / L, which is 0, was taken for an infinity that no number is."""

    def compared(p: Program) -> tuple[int, ...]:
        none = p.do("reciprocal", (p.full((), inf),), ())
        return (p.as_numbers(p.do("eq", (0, none), (4,), B)),)

    assert not proved((((4,), F),), compared, lambda p: (p.full((4,), 0.0),))


@pytest.mark.parametrize("operator", ["gt", "eq"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_condition_does_not_leave_the_sum_whose_variable_it_is_about(operator: str, turned: bool) -> None:
    """[sum of t_i x_ij > 0] is not [sum of t_j x_ij > 0]; outside of their sums both t have the same name."""

    def make(rows: bool) -> Made:
        wide = (3, 1) if rows else (1, 3)

        def made(p: Program) -> tuple[int, ...]:
            one = p.do("mul", (p.do("reshape", (p.as_numbers(0),), wide, shape=wide), 1), (3, 3))
            total = p.do("sum", (one,), (), dims=(0, 1), keep=False)
            return (p.as_numbers(p.do(operator, (total,), (), B, number=0.0)),)

        return made

    sources = (((3,), B), ((3, 3), F))
    assert proved(sources, make(True), make(not turned)) is not turned


INFINITE = (("eq", -inf, False), ("gt", -inf, True), ("ge", -inf, True), ("lt", inf, True), ("le", inf, True))
"""Comparisons with an infinity, and what they are of every number."""


@pytest.mark.parametrize(("operator", "number", "holds"), INFINITE)
@pytest.mark.parametrize("start", ["log", "log1p", "scaled", "neg", "whole", "input", "softmax"])
@pytest.mark.parametrize("related", [False, True])
def test_a_logarithm_that_may_be_of_zero_is_no_number_where_it_is_cut_off(
    operator: str, number: float, holds: bool, start: str, related: bool
) -> None:
    """Where a relation said what z = log(p) is, z = -infinity was taken for false: z is any tensor there."""

    def begin(p: Program) -> int:
        if start == "input":
            return p.do("mul", (0, 0), (4,))
        if start == "softmax":
            total = p.do("sum", (p.do("exp", (0,), (4,)),), (1,), dims=(0,), keep=True)
            return p.do("sub", (0, p.do("log", (total,), (1,))), (4,))
        if start == "whole":  # what is above 0 and below 1 is 0 as a whole number
            whole = p.do("cast", (p.do("exp", (0,), (4,)),), (4,), "int64", dtype="int64", was=F)
            return p.do("log", (p.do("cast", (whole,), (4,), dtype=F, was="int64"),), (4,))
        z = p.do("log1p" if start == "log1p" else "log", (p.do("maximum", (0,), (4,), number=0.0),), (4,))
        if start == "log1p":
            return z
        return p.do("mul", (z,), (4,), number=2.0) if start == "scaled" else p.do("neg", (z,), (4,))

    def chosen(p: Program) -> tuple[int, ...]:
        z = begin(p)
        truth = p.do(operator, (z,), (4,), B, number=number)
        pair = (z, p.full((), 0.0)) if holds else (p.full((), 0.0), z)
        return (p.do("where", (truth, *pair), (4,)),)

    z = begin(Program(((4,), F)))
    made = proved((((4,), F),), lambda p: (begin(p),), chosen, (z,) if related else ())
    assert made is (start in ("input", "softmax"))


@pytest.mark.parametrize(("operator", "number"), [("gt", inf), ("ge", inf), ("lt", -inf), ("le", -inf)])
def test_no_number_is_beyond_an_infinity(operator: str, number: float) -> None:
    def compared(p: Program) -> tuple[int, ...]:
        return (p.as_numbers(p.do(operator, (0,), (4,), B, number=number)),)

    assert proved((((4,), F),), compared, lambda p: (p.full((4,), 0.0),))
    assert not proved((((4,), F),), compared, lambda p: (p.full((4,), 1.0),))


@pytest.mark.parametrize(("inside", "fine"), [("exp", True), ("log", False), ("sub", False), ("masked", True)])
def test_what_is_above_zero_is_its_own_size(inside: str, fine: bool) -> None:
    def made(p: Program, size: bool) -> tuple[int, ...]:
        e = p.do("exp", (0,), (4,))
        if inside == "log":
            e = p.do("log", (p.do("add", (e,), (4,), number=1.0),), (4,))
            e = p.do("sub", (e,), (4,), number=1.0)
        if inside == "sub":
            e = p.do("sub", (e, p.do("exp", (1,), (4,))), (4,))
        if inside == "masked":
            e = p.do("exp", (p.do("add", (0, p.full((), -inf)), (4,)),), (4,))
        total = p.do("sum", (e,), (), dims=(0,), keep=False)
        return (p.do("abs", (total,), ()) if size else total,)

    sources = (((4,), F), ((4,), F))
    assert proved(sources, lambda p: made(p, True), lambda p: made(p, False)) is fine
