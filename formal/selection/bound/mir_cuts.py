"""Finds cutting planes of the resource rows of a dense problem, known as mixed integer rounding (MIR)
cuts: rounded rows that the relaxed solution breaks, used in the ascent like any other row.

For a row t, a modulus g and a reference label z_v of every vertex (proofs/selection/certificates.py, `Rounded`), with
d_v(a) = u_v(a) - u_v(z_v), C = L - sum_v u_v(z_v) and r = C mod g:

    sum_v F(d_v(x_v)) <= F(C),     F(d) = (g - r) floor(d / g) + max(0, d mod g - r)                 (mixed integer
                                   rounding)

Between multiples of g F is flat at first and then rises faster than d: a relaxed solution that mixes two labels of one
vertex so that the row is just full breaks the rounded row when one of the two leaves room that nothing of size g can
fill.  The reference makes the labels that the relaxed solution has decided on drop out: what is rounded is only the
room that they leave.  F (g / (g - r)) has slope one on average: in these units multipliers of rows and MIR cuts are
alike.
Source: L. Wolsey, "Integer Programming", 8.7 (mixed integer rounding); H. Marchand and L. Wolsey, "Aggregation and
mixed integer rounding", 2001.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....models.problem.selection_problem import Ints
from ....proofs.selection.certificates import Rounded
from ..model.dense import DenseProblem, Floats, offsets
from ..options.dense import DENSE, DenseOptions
from . import dense_kernels as kernels

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Cut:
    """Row `row` (number in the dense problem) rounded by `modulus`; `reference[v]`: label position of vertex v."""

    row: int
    modulus: int
    reference: Ints


@dataclass(frozen=True, eq=False)
class Cuts:
    """`kinds[c]` has coefficient coef[i] at label at[i] for cut[c] <= i < cut[c+1] (0 elsewhere), and limit[c].

    Coefficients are F less its least value over the labels of the vertex, which the limit has lost as well.  `slope[c]`
    = (g - r) / g.
    """

    kinds: tuple[Cut, ...]
    cut: Ints
    at: Ints
    coef: Ints
    limit: Ints
    slope: Floats
    unit: Floats
    """Coefficients over slope."""

    @property
    def count(self) -> int:
        """Number of cuts."""
        return len(self.kinds)

    @cached_property
    def owner(self) -> Ints:
        """The cut of every coefficient."""
        return np.repeat(np.arange(self.count), np.diff(self.cut))

    def weigh(self, k: Floats, weight: Floats) -> None:
        """Add multipliers `k` (in units of slope one) to the label costs `weight`."""
        np.add.at(weight, self.at, k[self.owner] * self.unit)

    def over(self, labels: Ints) -> Floats:
        """Use less limit of every cut at the chosen labels (numbers over all vertices), in units of slope one."""
        on = np.zeros(max(int(self.at.max(initial=0)), int(labels.max(initial=0))) + 1)
        on[labels] = 1.0
        return self.expected_over(on)

    def expected_over(self, shares: Floats) -> Floats:
        """The same for shares of labels in place of chosen ones."""
        return np.bincount(self.owner, self.unit * shares[self.at], minlength=self.count) - self.limit / self.slope

    def offset(self, k: Floats) -> float:
        """What the multipliers take off the bound."""
        return float(k @ (self.limit / self.slope))

    def exact(self, k: Floats, q: int) -> tuple[list[int], Ints, int]:
        """(integer multipliers of F, what they add to every label up to the last one touched, what they take off)
        over denominator `q`.
        """
        numbers = [int(x) for x in np.rint(k / self.slope * q)]
        added = np.zeros(int(self.at.max(initial=-1)) + 1, dtype=np.int64)
        for c, number in enumerate(numbers):
            part = slice(int(self.cut[c]), int(self.cut[c + 1]))
            added[self.at[part]] += number * self.coef[part]
        return (
            numbers,
            added,
            sum(number * int(limit) for number, limit in zip(numbers, self.limit.tolist(), strict=True)),
        )

    def records(self, flat: DenseProblem, numbers: list[int]) -> tuple[Rounded, ...]:
        """Rows of a record with the integer multipliers of `exact`."""
        choices: dict[int, Ints] = {}
        out = []
        for cut, number in zip(self.kinds, numbers, strict=True):
            if number > 0:
                reference = choices.setdefault(id(cut.reference), flat.choice[flat.label[:-1] + cut.reference])
                out.append(Rounded(int(flat.events[cut.row]), number, cut.modulus, reference))
        return tuple(out)

    def restrict_to(self, keep: Flags) -> Cuts:
        """The same rows where only labels with `keep` are left, numbered anew: for bounds, not for records."""
        number = np.cumsum(keep) - 1
        stays = keep[self.at]
        cut = offsets(np.bincount(self.owner[stays], minlength=self.count))
        return Cuts(self.kinds, cut, number[self.at[stays]], self.coef[stays], self.limit, self.slope, self.unit[stays])


def build(flat: DenseProblem, kinds: tuple[Cut, ...]) -> Cuts:
    """Coefficients of the rows."""
    cut, at, coef, limit, slope = [0], [], [], [], []
    of = np.repeat(np.arange(flat.vertices), np.diff(flat.label))
    for kind in kinds:
        use = usage_of(flat, kind.row)
        base = use[flat.label[:-1] + kind.reference]
        cap = flat.limit - int(base.sum())
        g, r = kind.modulus, cap % kind.modulus
        value = _rounded(use - base[of], g, r)
        least = np.minimum.reduceat(value, flat.label[:-1])
        value -= least[of]
        touched = np.flatnonzero(value)
        at.append(touched)
        coef.append(value[touched])
        cut.append(cut[-1] + touched.size)
        limit.append((g - r) * (cap // g) - int(least.sum()))
        slope.append((g - r) / g)
    slopes = np.array(slope)
    coefs = np.concatenate([np.zeros(0, dtype=np.int64), *coef])
    cuts = np.array(cut, dtype=np.int64)
    unit = coefs / np.repeat(slopes, np.diff(cuts)) if kinds else np.zeros(0)
    return Cuts(
        tuple(kinds),
        cuts,
        np.concatenate([np.zeros(0, dtype=np.int64), *at]),
        coefs,
        np.array(limit, dtype=np.int64),
        slopes,
        unit,
    )


def separate(
    flat: DenseProblem,
    n: Floats,
    often: Floats,
    known: tuple[Cut, ...],
    incumbent: Ints | None = None,
    options: DenseOptions = DENSE,
) -> list[Cut]:
    """Rows that the relaxed solution `often` (shares of labels) breaks beyond what it breaks of the plain row, best
    first.

    References are the labels with the largest shares, and the positions of the incumbent if given.  A row is worth its
    violation times the multiplier of the plain row.  Ties: smaller row, then smaller modulus, then the first reference.
    """
    total = np.add.reduceat(often, flat.label[:-1])
    if not flat.events.size or not (total > 0).all():
        return []
    of = np.repeat(np.arange(flat.vertices), np.diff(flat.label))
    share = often / total[of]
    largest = np.flatnonzero(share == np.maximum.reduceat(share, flat.label[:-1])[of])
    references = [largest[np.searchsorted(of[largest], np.arange(flat.vertices))] - flat.label[:-1]]
    if incumbent is not None:
        references.append(incumbent)
    order = np.argsort(-n, kind="stable")[: options.cut_rows]
    found: list[tuple[float, int, int, int]] = []
    for row in order[n[order] > 0].tolist():
        use = usage_of(flat, row)
        old = [cut for cut in known if cut.row == row]
        for which, reference in enumerate(references):
            base = use[flat.label[:-1] + reference]
            cap = flat.limit - int(base.sum())
            d = use - base[of]
            live = np.flatnonzero((d != 0) & (share > options.cut_share))
            d, weights = d[live], share[live]
            here = []
            sizes = np.unique(np.abs(d))
            for g in np.unique(np.concatenate([sizes // part for part in options.modulus_parts])).tolist():
                if (
                    g == 0
                    or (r := cap % g) + options.cut_narrow * g > g
                    or any(cut.modulus == g and np.array_equal(cut.reference, reference) for cut in old)
                ):
                    continue
                broken = (float(_rounded(d, g, r) @ weights) - (g - r) * (cap // g)) * (g / (g - r))
                gain = broken - (float(d @ weights) - cap)
                if gain > options.cut_gain * flat.limit:
                    here.append((-gain * float(n[row]), row, g, which))
            here.sort()
            found += here[: options.cuts_per_row]
    found.sort()
    return [Cut(row, g, references[which]) for _, row, g, which in found]


def usage_of(flat: DenseProblem, row: int) -> Ints:
    """Usage of every label at the row."""
    out = np.zeros(flat.labels, dtype=np.int64)
    kernels.price_labels(flat, out, (np.arange(flat.events.size) == row).astype(np.int64), out)
    return out


def _rounded(d: Ints, g: int, r: int) -> Ints:
    out: Ints = (d // g) * (g - r) + np.maximum(0, d % g - r)
    return out


NONE: Final = Cuts(
    (),
    np.zeros(1, dtype=np.int64),
    np.zeros(0, dtype=np.int64),
    np.zeros(0, dtype=np.int64),
    np.zeros(0, dtype=np.int64),
    np.zeros(0),
    np.zeros(0),
)
"""No MIR cuts."""
