r"""Fits the six constants of a collective: least mean relative deviation, the protocol of each row found
with it.

    unknowns    a0, a1, s, t, w, c >= 0  of `models.cost.collective_times`;  c <= w inside a node
    row         L e + min( slow, quick ):  linear in the unknowns once its protocol is chosen
    objective   sum over rows | predicted / measured - 1 |                                                   -> LP

Each round fixes the protocol that is faster at the present constants, solves the linear problem with cvxpy, and repeats
until no row changes; several starts, best kept.  A local optimum: nothing rests on it but the residuals that are shown.

What no row separates is not fitted: rows of one group size leave a0 apart from a1, and w from c, undetermined.  Then
the caller's ratios a1 / a0 and c / w hold (from other machines), and the result names them as borrowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...models.cost.collective_times import CollectiveTime, Group, Operation, parts, ramp_position
from ...models.text import InputError
from .solver import solve

__all__ = ["Fitted", "Measured", "Ratios", "fit"]

Floats = NDArray[np.float64]

_ROUNDS = 12
_SECONDS, _BYTES = 1e-6, 1e-12
"""Units of the unknowns while solving: microseconds, and seconds per million megabytes."""


@dataclass(frozen=True)
class Measured:
    """One collective and its seconds."""

    operation: Operation
    group: Group
    size: int
    seconds: float


@dataclass(frozen=True)
class Ratios:
    """What stands in where rows of one group size separate nothing: hop over fixed start-up, own share over wire."""

    hop: float
    own: float


@dataclass(frozen=True)
class Fitted:
    """Constants, the mean relative deviation on the rows fitted, their number, and whether ratios were borrowed."""

    time: CollectiveTime
    mean_error: float
    rows: int
    borrowed: bool


def fit(rows: Sequence[Measured], ratios: Ratios, ramp: Fraction = Fraction(0), late: bool = False) -> Fitted:
    """The constants of one operation on one level; `ratios` are used only where the rows need them; `late`: links that
    slow down for large buffers.  Raises `InputError` without rows or if the solver fails.

    >>> true = CollectiveTime(*(Fraction(x) for x in ("4e-6", "1e-6", "1e-11", "1e-5", "3e-12", "1e-12")))
    >>> at = [(Group(n), 1 << b) for n in (2, 4, 8) for b in range(10, 30, 2)]
    >>> rows = [Measured(Operation.ALL_GATHER, g, b, float(true.seconds(Operation.ALL_GATHER, g, b))) for g, b in at]
    >>> found = fit(rows, Ratios(0.3, 0.5))
    >>> found.mean_error < 1e-3, found.borrowed, float(found.time.wire)
    (True, False, 3e-12)
    """
    if not rows:
        raise InputError("no collective is left to fit")
    slow, quick = _matrices(rows, ramp)
    if late:
        quick[:, 3] *= -1
    seconds = np.array([r.seconds for r in rows])
    tie, borrowed = np.eye(6), len({r.group for r in rows}) < 2
    if borrowed:
        tie = np.zeros((6, 4))
        tie[[0, 2, 3, 4], range(4)] = 1
        tie[1, 0], tie[5, 2 + 1] = ratios.hop, ratios.own
    inside = any(r.group.nodes == 1 and r.group.unlinked is None for r in rows) and not borrowed
    slow, quick = slow @ tie / seconds[:, None], quick @ tie / seconds[:, None]
    best, error = None, np.inf
    for start in _starts(rows, borrowed, late):
        x, off = _alternate(slow, quick, start, inside, late)
        if off < error:
            best, error = x, off
    assert best is not None
    values = tie @ best * np.array([_SECONDS, _SECONDS, _BYTES, _SECONDS, _BYTES, _BYTES])
    time = replace(CollectiveTime(*(Fraction(f"{v:.4e}") for v in values)), ramp=ramp, late=late)
    return Fitted(time, float(error), len(rows), borrowed)


def _matrices(rows: Sequence[Measured], ramp: Fraction) -> tuple[Floats, Floats]:
    """Per row the linear forms of the slow and of the quick protocol, in the units of solving."""
    slow, quick = np.zeros((len(rows), 6)), np.zeros((len(rows), 6))
    for i, r in enumerate(rows):
        x = parts(r.operation, r.group, r.size)
        ease = float(1 + ramp * ramp_position(r.size))
        for m in (slow, quick):
            m[i, :2] = float(x.fixed) * ease * _SECONDS, float(x.hops) * ease * _SECONDS
        slow[i, 2] = float(x.slow) * _BYTES
        quick[i, 3:] = float(x.depth) * _SECONDS, float(x.wire) * _BYTES, float(x.own) * _BYTES
    return slow, quick


def _starts(rows: Sequence[Measured], borrowed: bool, late: bool) -> list[Floats]:
    least = min(r.seconds for r in rows) / _SECONDS
    per_byte = max(r.seconds for r in rows) / max(1, max(r.size for r in rows)) / _BYTES
    out = []
    pairs = [(2.0, 2.0), (5.0, 2.0), (5.0, 0.5), (20.0, 1.0)]
    for steep, start in pairs + [(1 / a, b) for a, b in pairs if late]:  # late links begin with the smaller slope
        x = [least, least / 3, steep * per_byte, start * least, per_byte, per_byte]
        out.append(np.array(x)[[0, 2, 3, 4]] if borrowed else np.array(x))
    return out


def _alternate(slow: Floats, quick: Floats, x: Floats, inside: bool, late: bool) -> tuple[Floats, float]:
    best, error, seen = x, np.inf, set()
    for _ in range(_ROUNDS):
        fast = (quick @ x < slow @ x) != late
        linear = np.where(fast[:, None], quick, slow)
        off = float(np.abs(linear @ x - 1).mean())
        if off < error:
            best, error = x, off
        key = fast.tobytes()
        if key in seen:
            break
        seen.add(key)
        x = _solved(linear, x, inside)
    return best, error


def _solved(linear: Floats, before: Floats, inside: bool) -> Floats:
    import cvxpy

    scale = np.abs(linear).max(axis=0)
    used = scale > 0
    scale = np.where(used, scale, 1.0)
    x = cvxpy.Variable(linear.shape[1], nonneg=True)
    rules = [x[5] / scale[5] <= x[4] / scale[4]] if inside else []
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm1(linear / scale @ x - 1) + 1e-7 * cvxpy.sum(x)), rules)
    solve(problem)
    if x.value is None:
        raise InputError(f"the fit failed: the solver says {problem.status}")
    return np.where(used, np.maximum(np.asarray(x.value), 0.0) / scale, before)
