"""Times of attention by the measured forms of a device class (`models.machine.measured`), for many
boxes at once.

    every operator of kind attention: the result and its normaliser by the form forward, each gradient, and all of them
    at once, by the form backward, with the operations per pair of its own function
    pairs   pairs of query and key in the band, over all rows;   keys   over the axes that attribute key names
    rows    over all axes but those inside a pair and the keys: queries, heads, batch

The exact form is rounded up once, with the statistics of keys that are split; rounding commutes with the maximum with
the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..layout.layout import AxisTables
from ..layout.volumes import device_volumes
from ..machine.measured import AttentionForm
from ..machine.parts import DeviceClass
from ..problem.exact import ceil_sum
from ..problem.rows import distinct_rows
from ..problem.selection_problem import Ints
from ..program.attention import FORWARD
from ..program.operators import NodeKind
from .forms import OperatorForm


def direction(form: OperatorForm) -> str:
    """Which measured form prices an operator: forward or backward; empty for what computes no attention.

    >>> from ..sources.zoo import build as zoo
    >>> from .forms import operator_form
    >>> graph = zoo("mlp-unity")
    >>> direction(operator_form(graph.operators[0], graph, [a.name for a in graph.operators[0].axes]))
    ''
    """
    if form.spec.kind is not NodeKind.ATTENTION or not form.flops:
        return ""
    return "forward" if form.function in FORWARD else "backward"


@dataclass(frozen=True, eq=False)
class AttentionBoxes:
    """Amounts of an attention, each of shape (placements, devices of the tables)."""

    direction: str
    operations: int
    banded: bool
    pairs: Ints
    rows: Ints
    keys: Ints
    moved: Ints

    def times(
        self,
        form: AttentionForm,
        device: DeviceClass,
        ranks: Ints,
        extra: Sequence[tuple[Fraction, Ints]],
        unit: Fraction,
    ) -> tuple[Ints, Ints]:
        """Units (placements, ranks) of waiting for the bytes, and of computing; `extra`: terms of placements.  Equal
        boxes are priced once.
        """
        amounts = [x[:, ranks] for x in (self.pairs, self.rows, self.keys, self.moved)]
        shape = amounts[0].shape
        columns = [*amounts, *(np.broadcast_to(n[:, None], shape) for _, n in extra)]
        distinct, of = distinct_rows(np.stack(columns, axis=2).reshape(-1, len(columns)))
        pairs, rows, keys, moved, *more = distinct.T
        each = form.each(self.operations) / unit
        both = [(form.launch / unit, np.ones_like(pairs)), *((c, n) for (c, _), n in zip(extra, more, strict=True))]
        waits = ceil_sum([*both, (1 / device.bandwidth / unit, moved)])
        idle = form.idle(self.banded) * each
        computes = ceil_sum([*both, (each, pairs), (idle, keys * (pairs > 0)), (form.row / unit, rows)])
        return waits[of].reshape(shape), computes[of].reshape(shape)


def attention_boxes(form: OperatorForm, tables: AxisTables, points: Ints, moved: Ints) -> AttentionBoxes | None:
    """The boxes of an attention whose pairs are `points`; None for any other operator."""
    which = direction(form)
    if not which:
        return None
    keys = [i for i, a in enumerate(form.axes) if a.name in form.over and a.name not in form.inner]
    rows = [i for i, a in enumerate(form.axes) if a.name not in form.over]
    along_rows, along_keys = (
        device_volumes(tables.tables, tables.codes, axes, points.shape[1]) for axes in (rows, keys)
    )
    return AttentionBoxes(which, form.flops, form.band is not None, points, along_rows, along_keys, moved)
