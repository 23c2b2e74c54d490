"""Recomputes times of attention by a machine's measured forms, a second time.

    form      of the class, for the type of the first operand: `forward` for attention and attention_lse, `backward` for
              every gradient
    seconds   launch + the larger one of   W (pace f + pair) + row R   and the bytes' time
              f operations per pair;  R, K the device's lengths multiplied over rows and over keys;  P pairs in the band
              W = P + 128 processors K (wave, and band as well where there is a band of keys), nothing without pairs

Written from docs/certificate-format.md (section 9.5); shares no formula with `models/cost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ...models.machine.measured import AttentionForm
from ...models.machine.parts import DeviceClass
from ...models.program.operators import NodeKind, Operator
from .bands import attribute_axes, bounds_of


@dataclass(frozen=True)
class Attended:
    """Which form an attention asks for, whether it has a band, and its axes: rows (queries and what goes with them) and
    keys.
    """

    backward: bool
    banded: bool
    rows: tuple[str, ...]
    keys: tuple[str, ...]


def attention_axes(op: Operator) -> Attended | None:
    """An attention operator's axes; None for others."""
    if op.kind is not NodeKind.ATTENTION:
        return None
    keys = attribute_axes(op, "key")
    no_rows = {
        *keys,
        *attribute_axes(op, "feature"),
        *attribute_axes(op, "value_feature"),
        *attribute_axes(op, "packed"),
    }
    rows = tuple(a.name for a in op.axes if a.name not in no_rows)
    backward = op.function not in {"attention", "attention_lse"}
    return Attended(backward, bounds_of(op) is not None, rows, keys)


def form_of(at: DeviceClass, dtype: str, backward: bool) -> AttentionForm | None:
    """The form that a class of devices has for it."""
    wanted = "backward" if backward else "forward"
    return next((f for f in at.attentions if f.dtype == dtype and f.direction == wanted), None)


def attention_seconds(
    form: AttentionForm, amounts: Sequence[int], operations: int, banded: bool, transfer: Fraction
) -> Fraction:
    """`amounts`: pairs, rows, keys; `transfer`: seconds of the bytes.

    >>> form = AttentionForm("float16", "forward", 2, *map(Fraction, (1000, 3, 2, 7, 2, 1)))
    >>> [int(attention_seconds(form, (p, 5, 10), 4, True, Fraction(0))) for p in (0, 6)]
    [1035, 108639]
    """
    pairs, rows, keys = amounts
    uneven = form.wave + form.band if banded else form.wave
    work = Fraction(0) if pairs == 0 else pairs + uneven * (128 * form.processors * keys)
    return form.launch + max(work * form.pace * operations + work * form.pair + form.row * rows, transfer)
