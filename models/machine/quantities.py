"""Reads physical constants as text: a small grammar, read exactly.

    quantity = number [ [ space ] unit ]
    number   = digits [ "." digits ] [ ("e" | "E") [ "+" | "-" ] digits ]          value = number * factor(unit), a
             `Fraction`

No sign, at most 40 characters and |exponent| <= 30, so that a hostile text cannot ask for a number of a million digits.
Without a unit the base unit of the dimension is meant, and refused where that is absurd: a link of "400" is not one of
400 bytes a second ("4e2" is).  A float never enters: `9e9` is exactly 9000000000.

>>> parse("270 GB/s", "rate"), parse("9e9", "rate"), parse("5 us", "time")
(Fraction(270000000000, 1), Fraction(9000000000, 1), Fraction(1, 200000))
>>> show(Fraction(1, 200000), "time"), show(Fraction(80 << 30), "bytes")
('5 us', '80 GiB')
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final, Literal

from ..text import did_you_mean

Dimension = Literal["rate", "time", "bytes", "flops", "number"]

_DECIMAL: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}

UNITS: Final[dict[Dimension, dict[str, Fraction]]] = {
    "rate": {f"{p}B/s": Fraction(f) for p, f in (*_DECIMAL.items(), *_BINARY.items())},
    "time": {"s": Fraction(1), **{u: Fraction(1, 1000**k) for k, u in enumerate(("ms", "us", "ns", "ps"), start=1)}},
    "bytes": {f"{p}B": Fraction(f) for p, f in (*_DECIMAL.items(), *_BINARY.items())},
    "flops": {f"{p}flop/s": Fraction(f) for p, f in _DECIMAL.items()},
    "number": {"": Fraction(1)},
}
"""Dimension -> unit -> factor to the base unit (B/s, s, B, flop/s; a plain number has none)."""

_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:[eE]([+-]?[0-9]{1,3}))?(?: ?([A-Za-z/]+))?", re.ASCII)
_EXACT: Final = re.compile(r"(0|[1-9][0-9]{0,79})(?:/([1-9][0-9]{0,79}))?", re.ASCII)


class QuantityError(ValueError):
    """Text that is not a quantity; `hint` says what would be one."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message} ({hint})")
        self.message, self.hint = message, hint


def parse(text: str, dimension: Dimension) -> Fraction:
    """The exact value of `text` in the base unit of `dimension`.  Raises `QuantityError`."""
    units = UNITS[dimension]
    shown = text if len(text) <= 40 else text[:37] + "..."
    match = _QUANTITY.fullmatch(text) if len(text) <= 40 else None
    if match is None:
        raise QuantityError(
            f"{shown!r} is not a decimal number with a unit", f"write for example {_EXAMPLE[dimension]!r}"
        )
    number, exponent, unit = match.groups()
    power = int(exponent or 0)
    if abs(power) > 30:
        raise QuantityError(f"{shown!r} has an exponent beyond +-30", f"write for example {_EXAMPLE[dimension]!r}")
    if unit and unit not in units:
        bits = dimension == "rate" and re.fullmatch(r"[KkMGTP]?(bps|b/s|[Bb]its?(/s)?)", unit)
        hint = "a byte is 8 bits: 400 Gb/s are '50 GB/s'; " if bits else ""
        raise QuantityError(
            f"{shown!r} has the unknown unit {unit!r}{did_you_mean(unit, units)}",
            f"{hint}units: {', '.join(units) or 'none'}",
        )
    value = Fraction(number) * Fraction(10) ** power * (units[unit] if unit else 1)
    if (
        unit is None
        and exponent is None
        and value
        and (value >= 1 if dimension == "time" else value < _LEAST_BARE[dimension])
    ):
        raise QuantityError(
            f"{shown!r} without a unit is {shown} {next(iter(units))}, which no machine has",
            f"write for example {_EXAMPLE[dimension]!r}, or name the unit: '{shown} {next(iter(units))}'",
        )
    return value


_LEAST_BARE: Final[dict[Dimension, Fraction]] = {
    "rate": Fraction(10**6),
    "bytes": Fraction(1 << 20),
    "flops": Fraction(10**6),
    "number": Fraction(0),
}
"""Less without a unit is taken for a unit that was forgotten; so is a time of a second and more."""


_EXAMPLE: Final[dict[Dimension, str]] = {
    "rate": "9 GB/s",
    "time": "5 us",
    "bytes": "80 GiB",
    "flops": "150 Tflop/s",
    "number": "0.5",
}


def show(value: Fraction, dimension: Dimension) -> str:
    """`value` in the unit in which it is shortest; `~` in front when five digits do not say it exactly."""
    ranked: list[tuple[bool, int, int, str]] = []
    for order, (unit, factor) in enumerate(UNITS[dimension].items()):
        scaled = value / factor
        text = f"{float(scaled):.5g}"
        exact = Fraction(text) == scaled
        # shortest exact text wins; readable magnitudes (1 .. 9999) come before others; ties go to the earlier unit
        length = len(text) + (0 if 1 <= scaled < 10000 or value == 0 else 10)
        ranked.append((not exact, length, order, f"{'' if exact else '~'}{text} {unit}".rstrip()))
    return min(ranked)[3]


def exact_text(value: Fraction) -> str:
    """`p` or `p/q` in lowest terms: the canonical form in JSON.

    >>> exact_text(Fraction(1, 200000)), exact_text(Fraction(9))
    ('1/200000', '9')
    """
    return str(value)


def exact_from(text: str) -> Fraction:
    """Inverse of `exact_text`; refuses every other spelling.  Raises `QuantityError`."""
    match = _EXACT.fullmatch(text) if len(text) <= 161 else None
    value = Fraction(int(match[1]), int(match[2] or 1)) if match else None
    if value is None or str(value) != text:
        raise QuantityError(
            f"{text[:40]!r} is not an exact rational in lowest terms",
            "the canonical forms are '9000000000' and '1/200000'",
        )
    return value


MOST_BAR: Final = Fraction(10)
"""A constant that may be off by more than a factor of eleven is not known."""


def parse_error_bound(text: str) -> Fraction:
    """An error bound, `10 %`, as a share: the constant lies between value / 1.1 and value x 1.1.

    Raises `QuantityError`.

    >>> parse_error_bound("2.5 %"), error_bound_text(parse_error_bound("2.5 %"))
    (Fraction(1, 40), '2.5 %')
    """
    number = text.removesuffix("%").rstrip(" ") if text.endswith("%") else ""
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", number, re.ASCII) or not 0 < Fraction(number) / 100 <= MOST_BAR:
        raise QuantityError(
            f"{text[:40]!r} is not an error bound",
            "write a share in percent, more than 0 % and at most 1000 %, such as '10 %': from value / 1.1 to value x "
            "1.1",
        )
    return Fraction(number) / 100


def exact_error_bound(text: str) -> Fraction:
    """Inverse of `error_bound_text`; refuses every other spelling.  Raises `QuantityError`."""
    value = parse_error_bound(text)
    if error_bound_text(value) != text:
        raise QuantityError(
            f"{text[:40]!r} is not the canonical text of an error bound", f"write {error_bound_text(value)!r}"
        )
    return value


def error_bound_text(bar: Fraction) -> str:
    """Inverse of `parse_error_bound`, as short as it is exact."""
    return f"{_short_decimal(100 * bar)} %"


def _short_decimal(value: Fraction) -> str:
    digits = next((d for d in range(7) if (value * 10**d).denominator == 1), None)
    if digits is None:
        raise ValueError(f"{value} has more than six decimals")
    return f"{int(value * 10**digits) / 10**digits:.{digits}f}" if digits else str(int(value))
