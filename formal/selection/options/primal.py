"""This module holds the options of the phase `primal`: how solutions are improved and made to fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .option import option


@dataclass(frozen=True)
class PrimalOptions:
    """How solutions are improved and made to fit."""

    pair_cells: int = option(1 << 14, "joint labels", "pairs of vertices with at most so many are moved together")
    descent_rounds: int = option(20, "rounds", "of moves of single vertices at most")
    repair_rounds: int = option(12, "rounds", "of moves at one weight of the overflow")
    repair_weights: int = option(40, "weights", "tried, each so many times the last")
    repair_factor: int = option(8, "factor", "between weights")
    settle_rounds: int = option(20, "rounds", "of moves that keep every row")
    idle: int = option(6, "turns", "of local search without gain after which it ends")
    sizes: tuple[int, ...] = option((40, 200), "vertices", "of one move of local search, turn by turn")
    savings: tuple[float, ...] = option(
        (1.0, 0.5, 0.2, 0.0),
        "factor of the prices",
        "how much usage counts in local search, in turn: memory is saved with much and spent with little",
    )
    fit_size: int = option(12, "vertices", "of one move while a start is made to fit")
    fit_rounds: int = option(60, "rounds", "until a start has to fit")
    fit_growth: float = option(1.5, "factor", "of the extra price of a row that is still exceeded")
    fit_over: float = option(0.1, "share of the price", "added per share by which the limit is exceeded")
    fit_least: float = option(0.01, "share of the price", "added anyway")
    fit_moves: int = option(100, "moves", "of a round, besides two for three vertices")
    turn_moves: int = option(200, "moves", "of a turn at least")
    turn_visits: int = option(20, "visits", "of every vertex in a turn")
    turn_gain: float = option(1e-6, "share of the cost", "a smaller gain is none")


PRIMAL: Final = PrimalOptions()
"""As they are unless `solve` is told otherwise."""
