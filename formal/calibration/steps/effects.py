r"""What a formula leaves, divided among the things that rows share: machine, precision, software,
model, size.

    r_i = log(measured / formula)_i = sum over factors f  a_f(v_f(i))  +  e_i,    a_f ~ N(0, s_f^2 K_f), e ~ N(0, s_0^2)

      same    K = 1 where two rows have the same value, else 0        (a kind of machine, a release)
      linear  K = the product of two numbers                          (a slope)
      near    K = exp( - (difference / reach)^2 / 2 )                 (a smooth curve)

Small families leave most effects undetermined; each is shrunk towards 0 by its scale s, so that a row of an unseen
machine is the formula's, and a row seen before is what was measured.  The answer is the best linear unbiased predictor
(C. R. Henderson, Biometrics 31, 1975) and its variance; scales start as given and climb the marginal likelihood of
the rows fitted, a factor of two at a time, held by a prior of one such factor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from .robust import Floats

Row = dict[str, Hashable]
"""What is known of a row before it is measured, by name."""

_STEPS: Final = (-3, -2, -1, 0, 1, 2)
"""Powers of two of a scale that the search may reach from its start."""


@dataclass(frozen=True)
class Factor:
    """One thing that rows share: `value` of a row; `scale` of its effect (0.1: ten percent); `reach` for `near`.

    A row whose value is None takes no part in the factor.
    """

    name: str
    kind: Literal["same", "linear", "near"]
    value: Callable[[Row], Hashable]
    scale: float
    reach: float = 1.0

    def kernel(self, left: Sequence[Row], right: Sequence[Row]) -> Floats:
        """K between two lists of rows."""
        a, b = [self.value(r) for r in left], [self.value(r) for r in right]
        there = [np.array([x is not None for x in side], dtype=bool) for side in (a, b)]
        known = there[0][:, None] & there[1][None, :]
        if self.kind == "same":
            numbers: dict[Hashable, int] = {}
            ia, ib = (np.array([numbers.setdefault(x, len(numbers)) for x in side], dtype=int) for side in (a, b))
            return np.asarray(known & (ia[:, None] == ib[None, :]), dtype=np.float64)
        xa, xb = (np.array([0.0 if x is None else float(str(x)) for x in side], dtype=float) for side in (a, b))
        if self.kind == "linear":
            return np.asarray(np.outer(xa, xb) * known)
        return np.asarray(np.exp(-(((xa[:, None] - xb[None, :]) / self.reach) ** 2) / 2) * known)


@dataclass(frozen=True)
class Effects:
    """Factors with their scales, the rows fitted, and what solves for them."""

    factors: tuple[Factor, ...]
    scales: tuple[float, ...]
    noise: float
    rows: tuple[Row, ...]
    solution: Floats
    inverse: Floats

    def predict(self, rows: Sequence[Row]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of log(measured / formula) of new rows.  Without rows fitted: 0 and the sum of
        the scales.
        """
        prior = np.full(len(rows), self.noise**2)
        for f, s in zip(self.factors, self.scales, strict=True):
            prior += s**2 * np.array([f.kernel([r], [r])[0, 0] for r in rows])
        if not self.rows:
            return np.zeros(len(rows)), np.sqrt(prior)
        cross = _covariance(self.factors, self.scales, rows, self.rows)
        known = np.einsum("ij,jk,ik->i", cross, self.inverse, cross)
        return cross @ self.solution, np.sqrt(np.maximum(prior - known, self.noise**2))


def fit(
    rows: Sequence[Row], left: Floats, factors: Sequence[Factor], noise: float = 0.02, climb: bool = True
) -> Effects:
    """Effects of `rows` whose formula left `left`.

    >>> rows = [{"machine": m} for m in "aabb"]
    >>> found = fit(rows, np.array([0.1, 0.1, -0.1, -0.1]), [Factor("machine", "same", lambda r: r["machine"], 0.1)])
    >>> mean, sd = found.predict([{"machine": "a"}, {"machine": "c"}])
    >>> mean.round(2).tolist(), bool(sd[0] < sd[1])
    ([0.1, 0.0], True)
    """
    factors, start = tuple(factors), [f.scale for f in factors]
    if not len(rows):
        return Effects(factors, tuple(start), noise, (), np.zeros(0), np.zeros((0, 0)))
    kernels = [f.kernel(rows, rows) for f in factors]
    power = [0] * (len(factors) + 1)

    def scales(at: Sequence[int]) -> list[float]:
        return [s * 2.0**p for s, p in zip([*start, noise], at, strict=True)]

    def likelihood(at: Sequence[int]) -> float:
        s = scales(at)
        k = sum((s[n] ** 2 * kernels[n] for n in range(len(kernels))), s[-1] ** 2 * np.eye(len(rows)))
        lower = np.linalg.cholesky(k + 1e-10 * np.eye(len(rows)))
        z = np.linalg.solve(lower, left)
        return float(-z @ z / 2 - np.log(np.diag(lower)).sum() - sum(p * p for p in at) / 2)

    best = likelihood(power)
    improved = climb
    while improved:
        improved = False
        for n in range(len(power)):
            for step in (-1, 1):
                tried = [*power]
                tried[n] += step
                if tried[n] in _STEPS and (value := likelihood(tried)) > best + 1e-9:
                    power, best, improved = tried, value, True
    *chosen, rest = scales(power)
    k = _covariance(factors, chosen, rows, rows) + (rest**2 + 1e-10) * np.eye(len(rows))
    inverse: Floats = np.asarray(np.linalg.inv(k), np.float64)
    solution: Floats = np.asarray(inverse @ left, np.float64)
    return Effects(factors, tuple(chosen), rest, tuple(rows), solution, inverse)


def _covariance(
    factors: Sequence[Factor], scales: Sequence[float], left: Sequence[Row], right: Sequence[Row]
) -> Floats:
    out = np.zeros((len(left), len(right)))
    for f, s in zip(factors, scales, strict=True):
        out += s**2 * f.kernel(left, right)
    return out
