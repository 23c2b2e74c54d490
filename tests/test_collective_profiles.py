"""Shapes of collectives that machines share: never falling, found again from rows, and only where a machine has rows."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.formal.calibration.collective_profiles import Profiled, alike, profile
from shardproof.formal.calibration.collective_times import Measured
from shardproof.models.cost.collective_profiles import ProfiledTime, Shape
from shardproof.models.cost.collective_times import Group, Operation

SIZES = tuple(1 << b for b in range(9, 29, 2))
REDUCE = Operation.ALL_REDUCE


def shape(ranks: int) -> Shape:
    """A library that slows buffers below 4 MB and changes its protocol at 1 MB."""
    latency = tuple(Fraction(1) if b < 8192 else Fraction(6, 5) for b in SIZES)
    volume = tuple(Fraction(b + min(b, 1 << 22) // ranks) for b in SIZES)
    change = tuple(Fraction(b >= 1 << 20) for b in SIZES)
    return Shape(SIZES, latency, tuple(v * SIZES[-1] / volume[-1] for v in volume), change)


SHAPES = ((2, shape(2)), (8, shape(8)))
MACHINES = {
    name: ProfiledTime(SHAPES, *(Fraction(x) for x in constants))
    for name, constants in {
        "a": ("5e-6", "8e-7", "3e-12", "1e-12", "1e-5", "1e-6"),
        "b": ("4e-6", "6e-7", "2e-12", "5e-13", "2e-5", "2e-6"),
        "c": ("8e-6", "1e-6", "1e-12", "2e-13", "8e-6", "8e-7"),
    }.items()
}


def rows(name: str, *ranks: int) -> list[Measured]:
    """What the machine would measure."""
    time = MACHINES[name]
    return [Measured(REDUCE, Group(n), b, float(time.seconds(REDUCE, Group(n), b))) for n in ranks for b in SIZES]


def worst(found: Profiled, name: str, ranks: int, sizes: tuple[int, ...] = SIZES) -> float:
    """Largest relative error on a group size."""
    true = MACHINES[name]
    return max(
        abs(float(found.time.seconds(REDUCE, Group(ranks), b) / true.seconds(REDUCE, Group(ranks), b) - 1))
        for b in sizes
    )


def test_constants_and_shapes_are_found_again() -> None:
    found = profile({name: rows(name, 2, 8) for name in MACHINES})
    for name, mine in found.items():
        assert (mine.ranks, mine.borrowed, mine.rows) == ((2, 8), False, 2 * len(SIZES))
        assert mine.mean_error < 0.02
        assert worst(mine, name, 2) < 0.15 and worst(mine, name, 8) < 0.15
        assert worst(mine, name, 4) < 0.25, "between two group sizes that were measured"
        assert [mine.covers(n) for n in (2, 4, 8, 16)] == [True, True, True, False]


def test_a_machine_with_one_group_size_borrows_and_says_so() -> None:
    given_rows = {"a": rows("a", 2, 8), "b": rows("b", 2, 8), "c": rows("c", 2)}
    found = profile(given_rows)
    assert found["c"].borrowed and found["c"].ranks == (2, 2)
    assert not found["c"].covers(8) and worst(found["c"], "c", 2) < 0.15
    assert alike(rows("a", 2), {k: v for k, v in given_rows.items() if k != "c"}) == "a"


def test_too_few_machines_share_nothing() -> None:
    assert profile({"a": rows("a", 2, 8), "b": rows("b", 2, 8)}) == {}


@given(st.lists(st.integers(0, 1 << 30), min_size=2, max_size=12), st.sampled_from([2, 3, 4, 6, 8, 16]))
def test_a_time_never_falls_with_bytes(sizes: list[int], ranks: int) -> None:
    times = [MACHINES["a"].seconds(REDUCE, Group(ranks), b) for b in sorted(sizes)]
    assert times == sorted(times) and all(isinstance(t, Fraction) for t in times)


@pytest.mark.parametrize(
    ("sizes", "latency", "says"),
    [
        ((1,), (1,), "two buffer sizes"),
        ((1, 2), (1,), "two buffer sizes"),
        ((2, 2), (1, 1), "must rise"),
        ((1, 2), (2, 1), "must not fall"),
        ((1, 2), (-1, 1), "must not fall"),
    ],
)
def test_a_shape_that_could_fall_is_refused(sizes: tuple[int, ...], latency: tuple[int, ...], says: str) -> None:
    zeros = (Fraction(0),) * len(sizes)
    with pytest.raises(ValueError, match=says):
        Shape(sizes, tuple(map(Fraction, latency)), zeros, zeros)
