r"""Fits measured forms of a machine file from rows of measurements, each with what it errs: on its rows,
and
held out.

    collective   six constants per operation (`collective_times.fit`, without the ramp), rounded to four digits.
                 Held out: the constants of all group sizes but one, judged on that one; with rows of two sizes the
                 ratios that a single size leaves open (hop / fixed, own / wire) are those of the whole table
    product      tiles in waves (`matmul_times.fit`); a step of a tile in seconds.  Held out: the constants of one half
                 of the pairs (n, k), judged on the other half
    attention    six constants per direction (`attention_times.fit`).  Held out: the constants of all sequences but one,
                 judged on that one

The error bound of a form is the mean |predicted / measured - 1| held out, where there is one.

>>> row = Residual(0.05, 0.3, 84, 0.07)
>>> row.words()
'84 rows: mean error 5.0 %, worst 30.0 %, held out 7.0 %'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256

from ...models.cost.collective_times import CollectiveTime
from ...models.machine.measured import DEPTH, AttentionForm, CollectiveForm, ProductForm
from . import attention_times, collective_times, matmul_times

__all__ = ["Residual", "attention_form", "collective_form", "product_form"]


@dataclass(frozen=True)
class Residual:
    """Fractions: mean and worst on the rows fitted, and mean on rows left out (None: nothing could be)."""

    mean: float
    worst: float
    rows: int
    held_out: float | None

    def words(self) -> str:
        """For a source."""
        more = "" if self.held_out is None else f", held out {100 * self.held_out:.1f} %"
        return f"{self.rows} rows: mean error {100 * self.mean:.1f} %, worst {100 * self.worst:.1f} %{more}"


def collective_form(
    rows: Sequence[collective_times.Measured], ratios: collective_times.Ratios
) -> tuple[CollectiveForm, Residual]:
    """The form of one operation on one level of one kind of link.  `ratios`: for rows of one group size.

    >>> from ...models.cost.collective_times import Group, Operation
    >>> true = CollectiveTime(*(Fraction(x) for x in ("4e-6", "1e-6", "1e-11", "1e-5", "3e-12", "1e-12")))
    >>> at = [(Group(n), 1 << b) for n in (2, 4, 8) for b in range(10, 30, 2)]
    >>> rows = [(g, b, float(true.seconds(Operation.ALL_GATHER, g, b))) for g, b in at]
    >>> measured = [collective_times.Measured(Operation.ALL_GATHER, *row) for row in rows]
    >>> form, residual = collective_form(measured, collective_times.Ratios(0.3, 0.5))
    >>> form.wire == Fraction("3e-12"), residual.held_out < 0.01
    (True, True)
    """
    time = _four_digits(collective_times.fit(rows, ratios).time)
    sizes = sorted({r.group.ranks for r in rows})
    own = collective_times.Ratios(_ratio(time.hop, time.fixed), _ratio(time.own, time.wire))
    off: list[float] = []
    for n in sizes if len(sizes) > 1 else ():
        rest = collective_times.fit([r for r in rows if r.group.ranks != n], own).time
        off += [_off(rest, r) for r in rows if r.group.ranks == n]
    errors = [_off(time, r) for r in rows]
    held_out = sum(off) / len(off) if off else None
    return (
        CollectiveForm(time.fixed, time.hop, time.slow, time.start, time.wire, time.own),
        Residual(sum(errors) / len(errors), max(errors), len(rows), held_out),
    )


def _off(time: CollectiveTime, row: collective_times.Measured) -> float:
    return abs(float(time.seconds(row.operation, row.group, row.size)) / row.seconds - 1)


def _ratio(a: Fraction, b: Fraction) -> float:
    return float(a / b) if b else 0.0


def _four_digits(time: CollectiveTime) -> CollectiveTime:
    return CollectiveTime(*(_rounded(x) for x in (time.fixed, time.hop, time.slow, time.start, time.wire, time.own)))


def _rounded(value: Fraction) -> Fraction:
    """Four significant digits; nothing below 10^-18 s."""
    return Fraction(f"{float(value):.3e}") if value >= Fraction(1, 10**18) else Fraction(0)


def product_form(
    dtype: str, rows: Sequence[matmul_times.Product], device: matmul_times.Device
) -> tuple[ProductForm, Fraction, Residual]:
    """The form of one element type, the bytes/s that belong to it, and what it errs."""
    halves = [[r for r in rows if sha256(f"{r.n} {r.k}".encode()).digest()[0] % 2 == side] for side in (0, 1)]
    off: list[float] = []
    if all(halves):
        for known, asked in (halves, halves[::-1]):
            time = matmul_times.fit(known, device).time
            off += [abs(float(time.seconds(r.m, r.n, r.k)) / r.seconds - 1) for r in asked]
    time = matmul_times.fit(rows, device).time
    tiles = zip(time.tiles, time.rates, strict=True)
    form = ProductForm(
        dtype,
        time.processors,
        tuple(sorted((a, b, _rounded(2 * a * b * DEPTH / rate)) for (a, b), rate in tiles)),
        _rounded(time.launch),
        _rounded(time.tail),
        _rounded(time.step * DEPTH),
        _rounded(time.split),
        _rounded(time.sum),
        _rounded(time.result),
        _rounded(time.odd),
    )
    errors = [abs(float(time.seconds(r.m, r.n, r.k)) / r.seconds - 1) for r in rows]
    held_out = sum(off) / len(off) if off else None
    residual = Residual(sum(errors) / len(errors), max(errors), len(rows), held_out)
    return form, _rounded(time.bandwidth), residual


def attention_form(
    dtype: str, direction: str, rows: Sequence[attention_times.Attention], processors: int
) -> tuple[AttentionForm, Residual]:
    """The form of one element type and direction, and what it errs."""

    def off(known: AttentionForm, row: attention_times.Attention) -> float:
        return abs(float(attention_times.seconds(known, row)) / row.seconds - 1)

    sequences = sorted({r.sequence for r in rows})
    left: list[float] = []
    for n in sequences if len(sequences) > 1 else ():
        rest = attention_times.fit([r for r in rows if r.sequence != n], dtype, direction, processors)
        left += [off(rest, r) for r in rows if r.sequence == n]
    form = attention_times.fit(rows, dtype, direction, processors)
    errors = [off(form, r) for r in rows]
    held_out = sum(left) / len(left) if left else None
    return form, Residual(sum(errors) / len(errors), max(errors), len(rows), held_out)
