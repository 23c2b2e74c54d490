"""The options of the phase `bound`: how bounds of factored problems are raised: sweeps, their
acceleration, and the step rule of the multipliers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class BoundOptions:
    """How bounds of factored problems are raised: sweeps, their acceleration, and the step rule of the multipliers."""

    turns: int = 400
    """double sweeps: of one block or window at most"""
    span: int = 8
    """double sweeps: whose joint gain decides whether more follow"""
    flat: int = 50_000
    """one part in so many of the bound: a block has converged when a span gains less"""
    push: float = 0.995
    """factor: largest extrapolation between accelerated sweeps"""
    patience: int = 20
    """double sweeps: without a better bound after which the extrapolation starts again"""
    coarse_cells: int = 1_000_000
    """entries of all edges: from so many on sweeps are made in coarse units and in parts"""
    coarse_largest: int = 1 << 29
    """coarse units: the largest entry: it and two messages fit int32"""
    coarse_bounds: int = 4
    """bounds: the largest entry when units are chosen anew: they are when it is less than half or more than twice of
    that
    """
    coarse_look: int = 8
    """double sweeps: between looks at that"""
    parts: int = 2
    """parts: that are swept at a time; more of them make longer ways for messages through the separators"""
    hub: int = 60
    """edges: vertices with more join everything: distances do not cross them"""
    separator_share: float = 0.2
    """share of the work: in the separator up to which the parts are worth it"""
    step: float = 0.03
    """share of the gap: that the first step of subgradient ascent aims at (Held, Wolfe and Crowder)"""
    least_step: float = 0.003
    """share of the gap: the ascent ends below"""
    step_patience: int = 3
    """steps: without a better bound after which they become smaller, from the best multipliers"""
    step_factor: float = 0.5
    """factor: of the step when the bound has not moved"""
    averaged: float = 0.5
    """share: of the last direction in the next one"""
    guessed_gap: float = 0.1
    """share of the bound: the gap while no solution is known"""
    stride: int = 12
    """double sweeps: between steps of the multipliers"""
    strides: int = 400
    """steps: of an ascent at most: without a time limit it has to end as well"""
    over_price: float = 5.0
    """costs of the dearest column: price of exceeding the limit by itself in the restricted master: more than any
    column that fits costs
    """
    conflict_steps: int = 200
    """subgradient steps: that look for rows in conflict"""
    conflict_multiplier: int = 4096
    """units: largest multiplier of such a conflict: fractions of it are fine enough for conflicts of real plans, and
    small in a record
    """


BOUND: Final = BoundOptions()
"""As they are unless `solve` is told otherwise."""
