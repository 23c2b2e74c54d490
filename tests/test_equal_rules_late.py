"""Rules of `equal`'s checker that jobs of strangers needed, each beside programs that a slip in it would call equal:
every n-th position written, sums that cancel, logarithms of nothing, greatest values that are chosen, conditions on sums,
squares of absolute values, positions that are factors.
"""

from __future__ import annotations

from math import inf

import pytest
from test_equal_attacks_late import B, F, Made, Program, proved

X, Y, Z = 0, 1, 2
VECTORS = (((4,), F), ((4,), F), ((4,), F))


def _written(start: int, stop: int, by: int) -> Made:
    """Zeros of six positions of which some are those of X."""

    def make(p: Program) -> tuple[int, ...]:
        words = {"dim": 0, "start": start, "stop": stop, "step": by}
        return (p.do("slice_scatter", (p.full((6,), 0.0), X), (6,), **words),)

    return make


def _beside(first: bool) -> Made:
    """X and zeros, one number of each after the other."""

    def make(p: Program) -> tuple[int, ...]:
        one = p.do("reshape", (X,), (3, 1), shape=(3, 1))
        pair = (one, p.full((3, 1), 0.0)) if first else (p.full((3, 1), 0.0), one)
        return (p.do("reshape", (p.do("cat", pair, (3, 2), dim=1),), (6,), shape=(6,)),)

    return make


@pytest.mark.parametrize(
    ("start", "stop", "first", "fine"),
    [(0, 6, True, True), (0, 5, True, True), (1, 6, False, True), (1, 6, True, False), (0, 6, False, False)],
)
def test_every_second_position_is_written(start: int, stop: int, first: bool, fine: bool) -> None:
    assert proved((((3,), F),), _written(start, stop, 2), _beside(first)) is fine


def test_every_fourth_position_of_six_is_not_known() -> None:
    assert not proved((((2,), F),), _written(0, 6, 4), _written(0, 6, 4))


def _sum(p: Program, a: int, b: int) -> int:
    return p.do("add", (a, b), (4,))


def _times(p: Program, below: int, more: bool = False) -> int:
    """(x + y) (z / below), or (x + y) (z / below + x)."""
    part = p.do("div", (Z, below), (4,))
    return p.do("mul", (_sum(p, X, Y), _sum(p, part, X) if more else part), (4,))


@pytest.mark.parametrize("turned", [False, True])
def test_a_sum_cancels_with_itself_alone(turned: bool) -> None:
    def is_z(make: Made, times: float = 1.0) -> bool:
        pair = (make, lambda p: (p.do("mul", (Z,), (4,), number=times),))
        return proved(VECTORS, *(pair[::-1] if turned else pair))

    def doubled(p: Program) -> tuple[int, ...]:
        both = _sum(p, _sum(p, X, X), _sum(p, Y, Y))
        return (p.do("mul", (both, p.do("div", (Z, _sum(p, X, Y)), (4,))), (4,)),)

    assert is_z(lambda p: (_times(p, _sum(p, X, Y)),)) and is_z(lambda p: (_times(p, _sum(p, Y, X)),))
    assert not is_z(lambda p: (_times(p, p.do("sub", (X, Y), (4,))),))
    assert not is_z(lambda p: (_times(p, _sum(p, X, Z)),))
    assert is_z(doubled, 2.0) and not is_z(doubled)


def test_a_sum_cancels_only_where_all_is_divided_by_it() -> None:
    def wrong(p: Program) -> tuple[int, ...]:
        return (_sum(p, Z, X),)

    def right(p: Program) -> tuple[int, ...]:
        return (_sum(p, Z, p.do("mul", (X, _sum(p, X, Y)), (4,))),)

    def one(p: Program) -> tuple[int, ...]:
        return (_times(p, _sum(p, X, Y), True),)

    assert proved(VECTORS, one, right)
    assert not proved(VECTORS, one, wrong)


@pytest.mark.parametrize(("number", "fine"), [(-inf, True), (inf, False), (0.0, False), (-1.0, False)])
def test_the_logarithm_of_nothing_is_minus_infinity(number: float, fine: bool) -> None:
    def one(p: Program) -> tuple[int, ...]:
        return (p.do("log", (p.do("sub", (X, X), (4,)),), (4,)),)

    assert proved(VECTORS, one, lambda p: (p.full((4,), number),)) is fine


def _chosen(plus: str, left: bool = False) -> Made:
    """exp(x + m [z > 0]) for the greatest m of y, at once or as factors: m everywhere where `left`."""

    def make(p: Program) -> tuple[int, ...]:
        most = p.do("expand", (p.do("amax", (Y,), (1,), dims=(0,), keep=True),), (4,), shape=(4,))
        if not left:
            most = p.do("mul", (most, p.as_numbers(p.do("gt", (Z,), (4,), B, number=0))), (4,))
        if plus == "inside":
            return (p.do("exp", (_sum(p, X, most),), (4,)),)
        return (p.do("mul", (p.do("exp", (X,), (4,)), p.do("exp", (most,), (4,))), (4,)),)

    return make


def test_a_greatest_value_that_is_chosen_is_a_factor() -> None:
    assert proved(VECTORS, _chosen("inside"), _chosen("outside"))
    assert not proved(VECTORS, _chosen("inside"), _chosen("outside", True))
    assert not proved(VECTORS, _chosen("inside"), lambda p: (p.do("exp", (X,), (4,)),))


def _above(inside: bool, each: bool) -> Made:
    """[sum of x times t > 0] for a truth value t, of the row or of `each` element; t outside where not `inside`."""

    def make(p: Program) -> tuple[int, ...]:
        t = p.as_numbers(p.do("gt", (Y,), (2, 4) if each else (2, 1), B, number=0))
        x = p.do("mul", (X, t), (2, 4)) if inside else X
        found = p.do("gt", (p.do("sum", (x,), (2, 1), dims=(1,), keep=True),), (2, 1), B, number=0)
        if inside:
            return (p.as_numbers(found),)
        t = p.do("amax", (t,), (2, 1), dims=(1,), keep=True) if each else t
        return (p.do("mul", (p.as_numbers(found), t), (2, 1)),)

    return make


def test_a_condition_on_a_sum_goes_by_what_the_sum_does_not_run_over() -> None:
    row, each = (((2, 4), F), ((2, 1), F)), (((2, 4), F), ((2, 4), F))
    assert proved(row, _above(True, False), _above(False, False))
    assert not proved(each, _above(True, True), _above(False, True))
    assert not proved(row, _above(True, False), lambda p: (p.do("mul", (Y,), (2, 1), number=1.0),))


@pytest.mark.parametrize(("power", "fine"), [(1, False), (2, True), (3, False), (4, True)])
def test_even_powers_of_absolute_values_are_those_of_numbers(power: int, fine: bool) -> None:
    def one(p: Program) -> tuple[int, ...]:
        return (p.do("pow", (p.do("abs", (_sum(p, X, Y),), (4,)),), (4,), number=power),)

    assert proved(VECTORS, one, lambda p: (p.do("pow", (_sum(p, X, Y),), (4,), number=power),)) is fine


def _turned(first: int, cut: bool) -> Made:
    """cos(p s) at positions from `first` on: counted from there, or cut out of all eight."""

    def make(p: Program) -> tuple[int, ...]:
        many = 8 if cut else 4
        start = 0.0 if cut else float(first)
        places = p.do("iota", (), (many,), "int64", n=many, start=start, step=1.0, dtype="int64")
        real = p.do("cast", (places,), (many,), F, dtype=F, was="int64")
        wide = p.do("reshape", (real,), (many, 1), shape=(many, 1))
        made = p.do("cos", (p.do("mul", (wide, p.do("reshape", (X,), (1, 4), shape=(1, 4))), (many, 4)),), (many, 4))
        if not cut:
            return (made,)
        return (p.do("slice", (made,), (4, 4), dim=0, start=first, stop=first + 4, step=1),)

    return make


@pytest.mark.parametrize(("here", "there"), [(0, 0), (3, 3), (4, 4), (3, 4), (0, 1)])
def test_positions_that_are_factors_begin_where_they_say(here: int, there: int) -> None:
    assert proved((((4,), F),), _turned(here, False), _turned(there, True)) is (here == there)
