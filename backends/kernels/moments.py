"""Keeps what several operators of a step need of the same rows: mean and deviation of norms, log sums of attention.

    mean = SUM x / n      inverse = 1 / sqrt(SUM (x - mean)^2 / n + epsilon)      rms norms: no mean
    log sum = log SUM exp(s), s: scores of a query with its keys (`models.program.attention`)

A layer's norm needs its moments forwards, and its gradient needs them twice; attention knows its log sums, which its
gradients need.  `lowering.moments` says which operators share them: those of the same tensors on the same boxes on
every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final

from .blocks import Array

MOMENTS: Final[Mapping[str, int]] = {
    "layer_norm": 0,
    "rms_norm": 0,
    "layer_norm_gradient": 1,
    "rms_norm_gradient": 1,
}
"""Functions that need them -> the operand that they are of."""


def centres(function: str) -> bool:
    """Whether the mean is one of the moments (the first statistic, before the squares)."""
    return function.startswith("layer_norm")


@dataclass(frozen=True)
class Moments:
    """Of one box: length 1 along the axes that they are over.  `mean`: None where nothing is centred."""

    mean: Array | None
    inverse: Array


@dataclass
class Kept:
    """The moments of one tensor, by output box: chains pass through their members chunk by chunk; or the log sums of
    one attention, (shared rows.., own rows.., 1, 1) as in `attention_parts`.
    """

    found: dict[tuple[tuple[int, int], ...], Moments] = field(default_factory=dict)
    log_sums: Array | None = None


def moments_of(
    xp: ModuleType, x: Array, total: Callable[[Array], Array], n: int, epsilon: float, centring: bool
) -> tuple[Moments, Array]:
    """The moments and x - mean.  `total`: the sum over n numbers, of all ranks.

    >>> import numpy
    >>> found, centred = moments_of(numpy, numpy.array([1.0, 3.0]), lambda a: a.sum(keepdims=True), 2, 0.0, True)
    >>> found.mean.tolist(), found.inverse.tolist(), centred.tolist()
    ([2.0], [1.0], [-1.0, 1.0])
    """
    mean = total(x) / n if centring else None
    centred = x if mean is None else x - mean
    inverse: Array = 1 / xp.sqrt(total(centred * centred) / n + epsilon)
    return Moments(mean, inverse), centred
