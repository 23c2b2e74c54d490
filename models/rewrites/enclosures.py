"""Values of elementwise functions: exact where they are rational, else between two rational bounds.

    relu, hit, reciprocal of a rational number are rational; exp, sigmoid, tanh, gelu, root have bounds of about 100
    bits an enclosure's `key` says how it was computed: equal keys are equal numbers; disjoint bounds are different
    numbers; else nothing is known

Two sides of a rule may be called different only on such evidence: no rational number is ever put in place of an
irrational one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Final

Exact = int | Fraction
SCALE: Final = 1 << 160
"""Bounds are multiples of 1 / SCALE."""
MOST_EXPONENT: Final = 400
"""exp of more is not evaluated; exp of less than minus that is between 0 and 2^-570."""
SQRT_2_PI: Final = (
    Fraction(39894228040143267793994605993438186847, 10**38),
    Fraction(39894228040143267793994605993438186848, 10**38),
)
"""1 / sqrt(2 pi) lies between."""
TAIL: Final = 8
"""The normal distribution has less than 10^-15 beyond."""
EPSILONS: Final = (Fraction(1, 10**12), Fraction(1, 10**3))


class NotDecided(ValueError):
    """A value that bounds do not determine: a comparison, or a quotient by what may be 0."""


class Enclosure:
    """A real number between `low` and `high`, known by its key."""

    __slots__ = ("high", "key", "keys", "low")

    def __init__(
        self, low: Fraction, high: Fraction, made: tuple[object, ...], keys: dict[tuple[object, ...], int]
    ) -> None:
        self.low, self.high = _down(low), _up(high)
        self.keys = keys
        self.key = keys.setdefault(made, len(keys))

    def __add__(self, other: Number) -> Number:
        if not isinstance(other, Enclosure) and not other:
            return self
        (a, b), (c, d) = bounds(self), bounds(other)
        return Enclosure(a + c, b + d, ("+", *sorted((_key(self), _key(other)))), self.keys)

    __radd__ = __add__

    def __mul__(self, other: Number) -> Number:
        if not isinstance(other, Enclosure) and other in (0, 1):
            return self if other else 0
        (a, b), (c, d) = bounds(self), bounds(other)
        corners = (a * c, a * d, b * c, b * d)
        return Enclosure(min(corners), max(corners), ("*", *sorted((_key(self), _key(other)))), self.keys)

    __rmul__ = __mul__


Number = int | Fraction | Enclosure


def bounds(v: Number) -> tuple[Fraction, Fraction]:
    """Bounds of a number."""
    return (v.low, v.high) if isinstance(v, Enclosure) else (Fraction(v), Fraction(v))


def differ(v: Number, w: Number) -> bool | None:
    """Whether two numbers are different; None if bounds do not tell.

    >>> keys = {}
    >>> differ(apply("exp", (), (1,), keys), apply("exp", (), (2,), keys)), differ(1, 1), differ(apply("exp", (), (1,),
    ...     keys), apply("exp", (), (1,), keys))
    (True, False, False)
    """
    if not isinstance(v, Enclosure) and not isinstance(w, Enclosure):
        return v != w
    if isinstance(v, Enclosure) and isinstance(w, Enclosure) and v.key == w.key:
        return False
    (a, b), (c, d) = bounds(v), bounds(w)
    return True if b < c or d < a else None


def largest(values: Sequence[Number], keys: dict[tuple[object, ...], int]) -> Number:
    """Maximum of at least one number."""
    exact = [v for v in values if not isinstance(v, Enclosure)]
    rough = [v for v in values if isinstance(v, Enclosure)]
    if not rough:
        return max(exact)
    ends = [bounds(v) for v in values]
    low, high = max(a for a, _ in ends), max(b for _, b in ends)
    best = max(exact, default=None)
    if best is not None and best >= max(v.high for v in rough):
        return best
    certain = [
        v for v in rough if v.low >= max((b for w in values if w is not v for b in (bounds(w)[1],)), default=v.low)
    ]
    return certain[0] if certain else Enclosure(low, high, ("max", *sorted({_key(v) for v in values})), keys)


def apply(
    function: str, index: Sequence[int], arguments: Sequence[Number], keys: dict[tuple[object, ...], int]
) -> Number:
    """Value of a function of the table (`functions.FUNCTIONS`); `NotDecided` if bounds do not determine it, or the
    function is arbitrary.
    """
    v = arguments[0]
    if function == "relu":
        return largest((v, 0), keys)
    if function == "hit":
        different = differ(v, index[0])
        if different is None:
            raise NotDecided("whether a number is an index")
        return 0 if different else 1
    if function == "reciprocal":
        if not isinstance(v, Enclosure):
            return Fraction(1) / v if v else 0
        if v.low <= 0 <= v.high:
            raise NotDecided("the reciprocal of a number that may be 0")
        return Enclosure(1 / v.high, 1 / v.low, ("reciprocal", v.key), keys)
    if function not in _BOUNDS:
        raise NotDecided(f"{function} is arbitrary")
    low, high = bounds(v)
    return Enclosure(*_bounds_of(function, low, high), (function, _key(v)), keys)


@lru_cache(maxsize=1 << 14)
def _bounds_of(function: str, low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    return _BOUNDS[function](low, high)


def _key(v: Number) -> str:
    return f"#{v.key}" if isinstance(v, Enclosure) else f"={v}"


def _down(v: Fraction) -> Fraction:
    return Fraction(v.numerator * SCALE // v.denominator, SCALE)


def _up(v: Fraction) -> Fraction:
    return Fraction(-(-v.numerator * SCALE // v.denominator), SCALE)


def _exp(v: Fraction) -> tuple[Fraction, Fraction]:
    """Bounds of e ^ v: the series of v / 2^m with |v / 2^m| <= 1/2, then m squarings."""
    if v > MOST_EXPONENT:
        raise NotDecided(f"exp of more than {MOST_EXPONENT}")
    if v < 0:
        low, high = _exp(min(-v, Fraction(MOST_EXPONENT)))
        return (1 / high if -v <= MOST_EXPONENT else Fraction(0)), 1 / low
    m = 0
    while v > Fraction(1 << m, 2):
        m += 1
    small = v / (1 << m)
    low = high = least = most = Fraction(1)
    k = 0
    while most * SCALE > 1:
        k += 1
        least, most = _down(least * small / k), _up(most * small / k)
        low, high = low + least, high + most
    high += most  # the rest of the series is below its last term: each is at most half of the one before
    for _ in range(m):
        low, high = _down(low * low), _up(high * high)
    return low, high


def _sigmoid(low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    def at(v: Fraction) -> tuple[Fraction, Fraction]:
        a, b = _exp(-abs(v))
        small = a / (1 + a), b / (1 + b)  # sigmoid(-|v|), monotone in exp
        return small if v <= 0 else (1 - small[1], 1 - small[0])

    return at(low)[0], at(high)[1]


def _tanh(low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    a, b = _sigmoid(2 * low, 2 * high)
    return 2 * a - 1, 2 * b - 1


def _normal(v: Fraction) -> tuple[Fraction, Fraction]:
    """Bounds of the probability that a standard normal number is below v: 1/2 + sum (-1)^n v^(2n+1) / (2^n n!
    (2n+1)) / sqrt(2 pi).
    """
    if abs(v) > TAIL:
        small = Fraction(1, 10**15)
        return (Fraction(0), small) if v < 0 else (1 - small, Fraction(1))
    w = abs(v)
    low = high = least = most = w
    n = 0
    while (
        most * SCALE > 1 or w * w > 2 * n + 2
    ):  # an alternating series: once terms shrink, the rest is below the last one
        n += 1
        least, most = _down(least * w * w / (2 * n)), _up(most * w * w / (2 * n))
        if n % 2:
            low, high = low - most / (2 * n + 1), high - least / (2 * n + 1)
        else:
            low, high = low + least / (2 * n + 1), high + most / (2 * n + 1)
    low, high = low - most, high + most
    a, b = max(low, Fraction(0)) * SQRT_2_PI[0], max(high, Fraction(0)) * SQRT_2_PI[1]
    half = Fraction(1, 2)
    return (half + a, half + b) if v >= 0 else (half - b, half - a)


def _gelu(low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    a, b = _normal(low)[0], _normal(high)[1]
    corners = (low * a, low * b, high * a, high * b)
    return min(corners), max(corners)


def _root(low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    if high < 0 or low + EPSILONS[0] <= 0:
        raise NotDecided("root of what may be negative")

    def sqrt(v: Fraction) -> tuple[Fraction, Fraction]:
        found = isqrt(v.numerator * SCALE * SCALE // v.denominator)
        return Fraction(found, SCALE), Fraction(found + 1, SCALE)

    return 1 / sqrt(high + EPSILONS[1])[1], 1 / sqrt(low + EPSILONS[0])[0]


_BOUNDS: Final[dict[str, Callable[[Fraction, Fraction], tuple[Fraction, Fraction]]]] = {
    "exp": lambda low, high: (_exp(low)[0], _exp(high)[1]),
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "gelu": _gelu,
    "root": _root,
}
"""Bounds of f over an interval."""
