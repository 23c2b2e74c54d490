"""Times of matrix products by the measured forms of a device class (`models.machine.measured`), for
many boxes at once.

    a product is  one operator that multiplies two operands and sums, perhaps with an epilogue that reads others, which
    have no axis of the sum; both operands touched at single axes:
    k   axes that are summed, in both operands (one at least)
    m   axes of the result in the first operand only;   n  in the second only (one each at least);   b  in both

Other products (convolutions, sums of several products, experts, products with vectors, which wait for their bytes) keep
the roofline.  The exact form is rounded up once:
rounding commutes with the minimum over tiles and the maximum with the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..machine.measured import DEPTH, SPLITS, ProductForm
from ..problem.exact import ceil_sum
from ..problem.selection_problem import Ints
from ..program import fused
from .forms import OperatorForm

LARGE = 128
"""Rows beyond which a size that is no multiple of `DEPTH` is slower."""


@dataclass(frozen=True)
class ProductAxes:
    """Axes of a product, by their number in the form."""

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]


def product_axes(form: OperatorForm) -> ProductAxes | None:
    """The axes of a matrix product; None for any other operator."""
    fits = {"product": len(form.inputs) == 2, fused.FUSED: len(form.inputs) >= 2}
    if not fits.get(form.function, False) or not form.flops:
        return None
    if any(name in form.reduced for operand in form.inputs[2:] for name in operand.access.axes):
        return None
    touched: list[set[str]] = []
    for operand in form.inputs[:2]:
        names = {i.single for i in operand.index if i.single is not None}
        if len(names) < len(operand.index):  # an offset, a stride, or a diagonal
            return None
        touched.append(names)
    batch, m, n, k = list[int](), list[int](), list[int](), list[int]()
    for i, axis in enumerate(form.axes):
        match (axis.name in form.reduced, axis.name in touched[0], axis.name in touched[1]):
            case (True, True, True):
                k.append(i)
            case (False, True, True):
                batch.append(i)
            case (False, True, False):
                m.append(i)
            case (False, False, True):
                n.append(i)
            case _:
                return None
    return ProductAxes(tuple(batch), tuple(m), tuple(n), tuple(k)) if k and m and n else None


def product_times(table: ProductForm, sizes: Ints, finish: Ints, peak: Fraction, unit: Fraction) -> Ints:
    """Units of products without their bytes: `sizes` (boxes, 4): b, m, n, k; `finish`: operations of the epilogue at
    `peak`.  The time of a box is the larger one of this and of `result_times` with its bytes.

    >>> form = ProductForm("float16", 100, ((128, 128, Fraction("1e-6")),), launch=Fraction("3e-6"), split=Fraction(1))
    >>> sizes = np.array([[1, 128 * tiles, 128, 8192] for tiles in (1, 100, 101)])  # one wave, one wave, two
    >>> product_times(form, sizes, np.zeros(3, dtype=np.int64), Fraction(1), Fraction("1e-6")).tolist()
    [131, 131, 259]
    """
    b, m, n, k = (sizes[:, i] for i in range(4))
    one = np.ones_like(b)
    rest = [(table.launch / unit, one), (table.result / unit, b * m * n), (1 / peak / unit, finish)]
    slowed = (m > LARGE) & (m % DEPTH != 0)
    found: list[Ints] = []
    for rows, columns, time in table.tiles:
        count = b * -(-m // rows) * -(-n // columns)
        for parts in SPLITS:
            steps = -(-k // (DEPTH * parts))
            waves = -(-count * parts // table.processors)
            terms = [(time / unit, waves * steps), (table.tail / unit, waves), (table.step / unit, steps)]
            if table.odd:
                terms.append((time * table.odd / unit, waves * steps * slowed))
            if parts > 1:
                terms += [(table.split / unit, one), (table.sum * 4 * rows * columns / unit, count * parts)]
            found.append(ceil_sum([*terms, *rest]))
    return np.where(b * m * n * k > 0, np.minimum.reduce(found), ceil_sum(rest))


def result_times(table: ProductForm, sizes: Ints, moved: Ints, bandwidth: Fraction, unit: Fraction) -> Ints:
    """Units of products that wait for their bytes."""
    results = sizes[:, :3].prod(axis=1)
    return ceil_sum(
        [
            (table.launch / unit, np.ones_like(results)),
            (table.result / unit, results),
            (1 / bandwidth / unit, moved),
        ]
    )
