r"""Fits the shapes that machines share and the six constants of each: least mean relative deviation, by
turns.

    curve      the rows of one machine and one group size, of one operation
    turns      shapes fixed: three factors of every curve;  factors fixed: the rises of the three shapes, all >= 0
    objective  sum over rows | predicted / measured - 1 |, linear in either                            -> LP, LP, ..
    then       shapes fixed: six constants per machine;  c <= w

`latency` rises up to 4 MB and `change` up to 32 MB only: what grows beyond is bandwidth.  A machine with one group size
leaves hops apart from the fixed parts undetermined; the ratios are then those of the machine whose rows of that
group size are most alike (`alike`), and the result says that they are borrowed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...models.cost.collective_profiles import ProfiledTime, Shape, between
from ...models.cost.collective_times import parts
from ...models.text import InputError
from .collective_times import Measured
from .solver import solve

__all__ = ["Profiled", "alike", "profile"]

Floats = NDArray[np.float64]
Name = TypeVar("Name", bound=Hashable)

_TURNS: Final = 5
_SMALL: Final = 4 << 20
_CHANGED: Final = 32 << 20
_UNITS: Final = np.array([1e-6, 1e-12, 1e-6])
"""Of the factors while solving: microseconds, seconds per million megabytes."""


@dataclass(frozen=True)
class Profiled:
    """Constants of one machine, the mean relative deviation on its rows, its least and greatest group size, and
    whether ratios were borrowed.
    """

    time: ProfiledTime
    mean_error: float
    rows: int
    ranks: tuple[int, int]
    borrowed: bool

    def covers(self, ranks: int) -> bool:
        """Shapes are those of group sizes: beyond the machine's own there is nothing to go by."""
        return self.ranks[0] <= ranks <= self.ranks[1]


def profile(rows: Mapping[Name, Sequence[Measured]], least: int = 3) -> dict[Name, Profiled]:
    """Constants by machine from rows of one operation.  Shapes are fitted for group sizes that `least` machines have
    at eight buffer sizes or more; machines without such a group size are left out.
    """
    curves: dict[int, dict[Name, list[Measured]]] = {}
    for name, mine in rows.items():
        for n in {r.group.ranks for r in mine}:
            curve = [r for r in mine if r.group.ranks == n and r.size > 0]
            if len({r.size for r in curve}) >= 8:
                curves.setdefault(n, {})[name] = curve
    shapes = {n: _shape(list(found.values())) for n, found in sorted(curves.items()) if len(found) >= least}
    table = tuple(shapes.items())
    if not table:
        return {}
    held = {name: [r for r in mine if r.group.ranks in shapes] for name, mine in rows.items()}
    several = {name for name, mine in held.items() if len({r.group.ranks for r in mine}) > 1}
    found = {name: _constants(table, held[name], None) for name in several}
    for name, mine in held.items():
        if mine and name not in several:
            near = alike(mine, {other: held[other] for other in several})
            ratios = (0.3, 0.5, 0.3) if near is None else _ratios(found[near].time)
            found[name] = _constants(table, mine, ratios)
    return found


def alike(rows: Sequence[Measured], others: Mapping[Name, Sequence[Measured]]) -> Name | None:
    """Whose rows of the same groups and sizes differ least: by the median |log| of the quotient; None without any."""
    own = _times(rows)
    best, least = None, np.inf
    for name, mine in others.items():
        theirs = _times(mine)
        shared = [abs(np.log(own[key] / theirs[key])) for key in own.keys() & theirs.keys()]
        if shared and (off := float(np.median(shared))) < least:
            best, least = name, off
    return best


def _times(rows: Sequence[Measured]) -> dict[tuple[int, int], float]:
    found: dict[tuple[int, int], list[float]] = {}
    for r in rows:
        found.setdefault((r.group.ranks, r.size), []).append(r.seconds)
    return {key: float(np.median(values)) for key, values in found.items()}


def _ratios(time: ProfiledTime) -> tuple[float, float, float]:
    def over(a: Fraction, b: Fraction) -> float:
        return float(a / b) if b else 1.0

    return over(time.hop, time.fixed), over(time.own, time.wire), over(time.start_hop, time.start)


def _shape(curves: Sequence[Sequence[Measured]]) -> Shape:
    """By turns, from a first guess: latency a tenth higher from 8 KB on, bytes up to 4 MB twice, a change at 16 MB."""
    sizes = sorted({r.size for curve in curves for r in curve})
    knots = np.array(sizes, dtype=np.float64)
    weights = [_weights(sizes, curve) for curve in curves]
    seconds = [np.array([r.seconds for r in curve]) for curve in curves]
    rises = [[i for i, b in enumerate(sizes) if i == 0 or b <= most] for most in (_SMALL, sizes[-1], _CHANGED)]
    below = np.tril(np.ones((len(sizes), len(sizes))))
    steps = [below[:, i] for i in rises]  # from the rises of a shape to its values
    shapes = [
        np.where(knots >= 8192, 1.1, 1.0),
        knots + np.minimum(knots, _SMALL),
        np.where(knots >= 1 << 21, 1.0, 0.0) + np.where(knots >= 1 << 24, 1.0, 0.0),
    ]
    for _ in range(_TURNS):
        rows = [
            np.stack([w @ shape for shape in shapes], 1) * _UNITS / t[:, None]
            for w, t in zip(weights, seconds, strict=True)
        ]
        factors = _blocks(rows) * _UNITS
        rows = [
            np.concatenate([(w @ step) * f for step, f in zip(steps, factor, strict=True)], 1) / t[:, None]
            for w, t, factor in zip(weights, seconds, factors, strict=True)
        ]
        whole = np.concatenate(rows)
        found = np.split(_least(whole), np.cumsum([step.shape[1] for step in steps])[:-1])
        shapes = [step @ x for step, x in zip(steps, found, strict=True)]
    latency, volume, change = shapes
    return Shape(
        tuple(sizes),
        _exact(latency / (latency[0] or 1.0)),
        _exact(volume / (volume[-1] or 1.0) * sizes[-1]),
        _exact(change / (change[-1] or 1.0)),
    )


def _exact(values: Floats) -> tuple[Fraction, ...]:
    """Four digits, and never falling."""
    out: list[Fraction] = []
    for value in values:
        out.append(max(Fraction(f"{max(value, 0.0):.3e}"), out[-1] if out else Fraction(0)))
    return tuple(out)


def _weights(sizes: Sequence[int], rows: Sequence[Measured]) -> Floats:
    """Per row the weights of the two buffer sizes around it: here every size is one of them."""
    place = {size: i for i, size in enumerate(sizes)}
    out = np.zeros((len(rows), len(sizes)))
    out[np.arange(len(rows)), [place[r.size] for r in rows]] = 1
    return out


def _constants(
    table: tuple[tuple[int, Shape], ...], rows: Sequence[Measured], ratios: tuple[float, float, float] | None
) -> Profiled:
    known = [n for n, _ in table]
    linear = np.zeros((len(rows), 6))
    for i, r in enumerate(rows):
        x, hops = parts(r.operation, r.group, 1), r.group.ranks - 1
        first, second, share = between(known, r.group.ranks)
        low, high = table[first][1].at(r.size), table[second][1].at(r.size)
        latency, volume, change = (float(a + (b - a) * share) for a, b in zip(low, high, strict=True))
        wire, own = float(x.wire) * volume, float(x.own) * volume
        linear[i] = latency, latency * hops, wire, own, change, change * hops
    units = np.repeat(_UNITS, 2)
    linear = linear * units / np.array([r.seconds for r in rows])[:, None]
    tie = np.eye(6)
    if ratios is not None:
        tie = np.zeros((6, 3))
        for column, ratio in enumerate(ratios):
            tie[2 * column : 2 * column + 2, column] = 1, ratio
    values = tie @ _least(linear @ tie, ratios is None) * units
    time = ProfiledTime(table, *(Fraction(f"{v:.4e}") for v in values))
    off = np.abs([float(time.seconds(r.operation, r.group, r.size)) / r.seconds - 1 for r in rows])
    ends = min(r.group.ranks for r in rows), max(r.group.ranks for r in rows)
    return Profiled(time, float(off.mean()), len(rows), ends, ratios is not None)


def _least(linear: Floats, inside: bool = False) -> Floats:
    """x >= 0 of least sum | linear x - 1 |; `inside`: no more of column 3 than of column 2."""
    import cvxpy

    scale = np.abs(linear).max(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    x = cvxpy.Variable(linear.shape[1], nonneg=True)
    rules = [x[3] / scale[3] <= x[2] / scale[2]] if inside else []
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm1(linear / scale @ x - 1) + 1e-7 * cvxpy.sum(x)), rules)
    status = solve(problem)
    if x.value is None:
        raise InputError(f"the fit failed: the solver says {status}")
    found: Floats = np.maximum(np.asarray(x.value), 0.0) / scale
    return found


def _blocks(rows: Sequence[Floats]) -> Floats:
    """Three factors of every curve, all curves as one problem."""
    from scipy.sparse import block_diag

    scales = [np.where(block.max(axis=0) > 0, block.max(axis=0), 1.0) for block in rows]
    import cvxpy

    matrix = block_diag([block / scale for block, scale in zip(rows, scales, strict=True)], format="csr")
    x = cvxpy.Variable(matrix.shape[1], nonneg=True)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm1(matrix @ x - 1) + 1e-7 * cvxpy.sum(x)))
    status = solve(problem)
    if x.value is None:
        raise InputError(f"the fit failed: the solver says {status}")
    found: Floats = np.maximum(np.asarray(x.value), 0.0).reshape(-1, 3) / np.array(scales)
    return found
