"""This module holds the options of the phase `tree`: how long nodes of the factored search are swept, when labels are
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
    active_share: float = 0.05
    """share of the time left: the same where columns are active: parts of the domains gain more"""
    active_turns: int = 1_000
    """double sweeps: columns stay active if there is time for so many: a part takes some hundred, and nothing is gained
    before both parts of a domain are swept
    """
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
    window: int = 1
    """layers: around a vertex in which a plan that its part forbids is searched again"""
    window_share: float = 0.01
    """share of the time limit: for that"""
    price_rounds: int = 5
    """prices: tried for one part"""
    part_stride: int = 16
    """double sweeps: of a part between looks"""
    part_flat: int = 5_000
    """one part in so many of the bound: prices of a part are left when a stride gains less"""
    part_look: int = 4
    """strides: after so many, prices may be given up"""
    part_hope: int = 5
    """strides: prices are given up when so many more like the last would not reach the bound of the whole part"""
    part_ahead: int = 10
    """divisor of what is missing: the second part is swept until it is that share above the first: the lower one
    decides
    """
    price_steps: int = 4
    """powers of two: prices are looked for in 2**n steps"""
    part_dearer: float = 1.5
    """multiple of the prices: for a part none of whose columns fits"""
    least_limit_s: float = 20.0
    """seconds: for the smallest limit that works: a service beside the proof, cut to what is left of the time"""
    least_s: float = 2.0
    """seconds: for it when nothing is left"""
    least_limit_steps: int = 1_000
    """parts of the usage: to which the smallest limit that works is known at the end of a bisection"""


TREE: Final = TreeOptions()
"""As they are unless `solve` is told otherwise."""
