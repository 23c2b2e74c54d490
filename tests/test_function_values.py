"""Bounds of elementwise functions hold the true value, by a second evaluation in decimal arithmetic of the standard
library.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.models.rewrites.enclosures import Enclosure, NotDecided, apply, bounds, differ, largest
from shardproof.models.rewrites.functions import FUNCTIONS

SLACK = Decimal(10) ** -70
rationals = st.fractions(min_value=-7, max_value=7, max_denominator=12)


def decimal(v: Fraction) -> Decimal:
    return Decimal(v.numerator) / Decimal(v.denominator)


def erf_part(x: Decimal) -> Decimal:
    """Sum of (-1)^n x^(2n+1) / (2^n n! (2n+1)), 400 terms."""
    total, power = Decimal(0), x
    for n in range(400):
        total += power / (2 * n + 1)
        power = -power * x * x / (2 * (n + 1))
    return total


with localcontext(prec=80):
    ROOT_2_PI = (
        2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")
    ).sqrt()
TRUE = {
    "exp": lambda x: x.exp(),
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "tanh": lambda x: ((2 * x).exp() - 1) / ((2 * x).exp() + 1),
    "gelu": lambda x: x * (Decimal("0.5") + erf_part(x) / ROOT_2_PI),
}


@pytest.mark.parametrize("name", TRUE)
@settings(max_examples=40, deadline=None)
@given(v=rationals)
def test_bounds_hold_the_value_and_are_narrow(name: str, v: Fraction) -> None:
    low, high = bounds(apply(name, (), (v,), {}))
    with localcontext(prec=80):
        true = TRUE[name](decimal(v))
        assert decimal(low) - SLACK <= true <= decimal(high) + SLACK
    assert high - low < Fraction(1, 10**25) * max(1, abs(high))
    assert float(low) == pytest.approx(
        {"exp": math.exp, "tanh": math.tanh}.get(name, lambda x: float(true))(float(v)), abs=1e-12, rel=1e-12
    )


@pytest.mark.parametrize("v", [-(10**6), -401, -9, 9, 401, 10**6])
def test_far_out(v: int) -> None:
    for name in ("sigmoid", "tanh", "gelu"):
        low, high = bounds(apply(name, (), (v,), {}))
        limit = {"sigmoid": 0 if v < 0 else 1, "tanh": -1 if v < 0 else 1, "gelu": max(v, 0)}[name]
        assert low <= high and abs(low - limit) < Fraction(1, 100) and abs(high - limit) < Fraction(1, 100)
    if v > 400:
        with pytest.raises(NotDecided):
            apply("exp", (), (v,), {})


@settings(max_examples=100, deadline=None)
@given(v=rationals, w=rationals, name=st.sampled_from(sorted(set(FUNCTIONS) - {"hit", "root"})))
def test_properties_of_the_table_hold(name: str, v: Fraction, w: Fraction) -> None:
    """Each property that proofs use, on values."""
    f, keys = FUNCTIONS[name], {}
    v, w = sorted((v, w))
    (a, b), (_, d) = (bounds(apply(name, (), (x,), keys)) for x in (v, w))
    zero = bounds(apply(name, (), (0,), keys))
    assert not f.not_negative or (b >= 0 and d >= 0)
    assert not f.monotone or a <= d
    assert not f.keeps_zero or zero[0] <= 0 <= zero[1]
    assert not f.keeps_sign or (b >= 0 if v >= 0 else a <= 0)


def test_what_is_equal_and_what_is_not() -> None:
    keys: dict[tuple[object, ...], int] = {}
    one, other = apply("exp", (), (1,), keys), apply("exp", (), (2,), keys)
    assert isinstance(one, Enclosure) and differ(one, other) is True and differ(one, 3) is True
    assert differ(one * one, other) is None, "equal, but bounds cannot say so"
    assert differ(one + 1, 1 + one) is False
    assert largest((one, other, 3), keys) is other and largest((one, 3), keys) == 3
    assert apply("reciprocal", (), (0,), keys) == 0
    with pytest.raises(NotDecided):
        apply("reciprocal", (), (one * one + other * -1,), keys)
    with pytest.raises(NotDecided):
        apply("frobnicate", (), (1,), keys)
