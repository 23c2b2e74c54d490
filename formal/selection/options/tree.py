"""The options of the phase `tree`: how long nodes of the factored search are swept, when labels are
fixed, and what is looked for on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final


@dataclass(frozen=True)
class TreeOptions:
    """How long nodes of the factored search are swept, when labels are fixed, and what is looked for on the way."""

    late: float = 0.4
    """share of the time limit: that sweeps leave for looking for solutions and for fixing"""
    stride: int = 8
    """double sweeps: between looks for a solution"""
    flat: int = 10_000
    """one part in so many of the bound: sweeps end when two strides gain less"""
    converge_share: float = 0.5
    """share of the time limit: of a part, for messages that converge"""
    ascent_share: float = 0.7
    """share of the time left: for multipliers at the root of a large network"""
    ascent_rounds: int = 6
    """rounds: of multiplier ascent at the root, a repaired solution after each"""
    ascent_gain: int = 1_000_000
    """one part in so many of the bound: rounds end when one gains less"""
    repaired: int = 1_000
    """vertices: up to which decoded choices are repaired one by one while multipliers move"""
    again: float = 0.5
    """share of the labels: a node is solved again when fixing leaves at most so many"""
    again_late: float = 0.9
    """share of the labels: the same once elimination of the rest was tried"""
    consistent: int = 50
    """one part in so many of the labels: a round of arc consistency that removes less is left to the sweeps, which take
    more away in its time
    """
    consistent_labels: int = 20_000
    """labels: up to which rounds of arc consistency cost nothing, and are made while they remove anything
    """
    singles: int = 4
    """labels: up to so many are branched on one by one, more in halves"""
    assembly_s: float = 4.0
    """seconds: after the time limit for eliminations anew on what the last incumbent leaves; what takes longer stays
    open
    """
    nodes: int = 12
    """nodes: of the search on a part: without a proof at the end they are only a start"""
    part_gap: Fraction = Fraction(1, 10_000)
    """share of the cost: a neighbourhood is good enough when it is so near its bound, at the prices"""
    dearer: tuple[float, ...] = (1.5, 2.0, 3.0, 5.0)
    """multiples of the prices: tried in turn until what exceeds the limit fits"""
    cheaper: tuple[float, ...] = (0.75, 0.5)
    """multiples of the prices: tried in turn until what fits exceeds the limit"""
    prices_share: float = 0.5
    """share of the time of a repair: for these"""
    least_limit_s: float = 20.0
    """seconds: for the smallest limit that works: a service beside the proof, cut to what is left of the time"""
    least_s: float = 2.0
    """seconds: for it when nothing is left"""
    least_limit_steps: int = 1_000
    """parts of the usage: to which the smallest limit that works is known at the end of a bisection"""


TREE: Final = TreeOptions()
"""As they are unless `solve` is told otherwise."""
