"""The options of the phase `primal`: how solutions are improved and made to fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class PrimalOptions:
    """How solutions are improved and made to fit."""

    repair_rounds: int = 12
    """rounds: of moves at one weight of the overflow"""
    repair_weights: int = 40
    """weights: tried, each so many times the last"""
    repair_factor: int = 8
    """factor: between weights"""
    settle_rounds: int = 20
    """rounds: of moves that keep every row"""
    idle: int = 6
    """turns: of local search without gain after which it ends"""
    sizes: tuple[int, ...] = (40, 200)
    """vertices: of one move of local search, turn by turn"""
    savings: tuple[float, ...] = (1.0, 0.5, 0.2, 0.0)
    """factor of the prices: how much usage counts in local search, in turn: memory is saved with much and spent with
    little
    """
    fit_size: int = 12
    """vertices: of one move while a start is made to fit"""
    fit_rounds: int = 60
    """rounds: until a start has to fit"""
    fit_growth: float = 1.5
    """factor: of the extra price of a row that is still exceeded"""
    fit_over: float = 0.1
    """share of the price: added per share by which the limit is exceeded"""
    fit_least: float = 0.01
    """share of the price: added anyway"""
    fit_moves: int = 100
    """moves: of a round, besides two for three vertices"""
    turn_moves: int = 200
    """moves: of a turn at least; rounds of moves at the root of a small network"""
    turn_visits: int = 20
    """visits: of every vertex in a turn"""
    walk_idle: int = 1500
    """moves, 0 and more: of a walk without a better solution after which it ends"""
    walk_tabu: int = 24
    """moves, 1 and more: a label is not taken again for at least so many, and fewer than twice as many"""
    turn_gain: float = 1e-6
    """share of the cost: a smaller gain is none"""


PRIMAL: Final = PrimalOptions()
"""As they are unless `solve` is told otherwise."""
