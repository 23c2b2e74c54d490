"""The options of the phase `decomposition`: how repeated structure is found, and how the time is
divided over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final


@dataclass(frozen=True)
class DecompositionOptions:
    """How repeated structure is found, and how the time is divided over it."""

    vertices: int = 200
    """vertices: from which looking for repetitions pays"""
    rounds: int = 8
    """rounds: of colour refinement: enough to tell the operands of one operator apart, few enough that layers near the
    ends join the others
    """
    worth: int = 3
    """divisor of the vertices: a quotient is used when it has at most that share of them"""
    twins: int = 4
    """edges: of one vertex, alike, up to which they are told apart by their order: the two moments of a weight are not
    one vertex met twice
    """
    symmetric_share: float = 0.4
    """share of the time limit: for the symmetric solution"""
    ring_share: float = 0.1
    """share of the time limit: for messages of one block without prices"""
    reach: int = 1
    """edges: between what the block does not describe and the first vertex that keeps the block's choice"""
    interface_share: float = 0.12
    """share of the time limit: for messages near the interfaces, or of the whole from those of a coarse row"""
    coarse_share: float = 0.22
    """share of the time limit: for the coarse row"""
    nearly: int = 100_000
    """one part in so many of the cost: messages are swept until that is left: fixing and elimination close it sooner
    than sweeps
    """
    kept: int = 6
    """blocks: of the coarse row"""
    coarse_worth: int = 2
    """factor: the row must have more than so many times as many"""
    coarse_near: int = 2
    """blocks: edges between the first part and what is left out are led on if their ends are at most so many apart"""
    prices_share: float = 0.3
    """share of the time limit: for prices of resource rows"""
    column_share: float = 0.3
    """share of that time: for one symmetric solution at given prices"""
    columns: int = 12
    """columns: at most"""
    idle: int = 2
    """columns: without gain after which prices stay"""
    column_gap: Fraction = Fraction(1, 1_000)
    """share of the cost: a column is good enough when it is so near its bound"""
    priced_ring_share: float = 0.08
    """share of the time limit: for messages of one block at the best prices"""
    steep: float = 0.5
    """costs of the solution without prices: first price of the whole limit"""
    steeper: float = 1.6
    """factor: of the second one, cubed for the third, to the sixth for the fourth, until some column fits: near first,
    then far in a few columns
    """
    close: float = 0.002
    """share of the bound: prices are good enough when the master program is so near it"""
    rounding_share: float = 0.06
    """share of the time limit: for ends and interface of one rounding"""
    repair_share: float = 0.05
    """share of the time limit: for one interface under the limit"""
    repaired: int = 3
    """roundings: whose interfaces are searched under the limit"""
    moves: int = 2
    """times: that the interface moves"""
    dearer: float = 1.25
    """multiple of the prices: for ends and interfaces when nothing fits at them"""
    roundings_share: float = 0.4
    """share of the time limit: after which no other rounding is begun"""
    idle_gain: float = 0.001
    """share of the cost: columns that gain at most that gain nothing"""
    uniform_vertices: int = 5_000
    """vertices: from so many on repeated structure gives a plan and a bound before any search"""
    uniform_vertices_in_a_hurry: int = 2_000
    """vertices: the same with resource rows where less than `uniform_s` is left: with more the search's own beginning
    finds better plans (BERT-Large, 4,548 vertices, 3.5 GiB, 30 s: gap 3.1 % without the start, 8 to 11 % after it)
    """
    uniform_share: float = 0.25
    """share of the time limit: for that"""
    uniform_s: float = 23.0
    """seconds: of that at least, beyond its part of the limit: nothing else finds a plan"""
    uniform_late_s: float = 8.0
    """seconds: the same where the time of the whole command is over before"""


DECOMPOSITION: Final = DecompositionOptions()
"""As they are unless `solve` is told otherwise."""
