"""Finds feasible solutions of a dense problem by local search: `Improver` makes a start fit, then lowers
its cost (moves: `primal/tree_moves.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ....models.problem.selection_problem import Ints
from ..bound import dense_kernels as kernels
from ..model.clock import Clock
from ..model.dense import DenseProblem, Floats
from ..options.primal import PRIMAL, PrimalOptions
from . import tree_moves

EXACT: Final = 1 << 50
"""Forbidden entries count as this much: sums of what matters stay exact in floats, and one forbidden entry
outweighs any saving.
"""


MOVE: Final = 1
"""Steps of work per vertex of a move."""


class Improver:
    """Search state on `flat`; `best` holds the cheapest positions that fit (None so far)."""

    def __init__(self, flat: DenseProblem, seed: int = 0, options: PrimalOptions = PRIMAL) -> None:
        self.flat, self.options = flat, options
        self.cost, self.cells = flat.clip(EXACT)
        self.price = np.zeros(flat.labels)
        self.rounded = np.zeros(flat.labels)
        """What MIR cuts add to the memory prices."""
        self.state = np.array([0x9E3779B97F4A7C15 ^ (seed * 0x5851F42D4C957F2D + 1) & (1 << 64) - 1], dtype=np.uint64)
        self.pool = np.flatnonzero(np.diff(flat.label) > 1)
        self.x = np.zeros(flat.vertices, dtype=np.int64)
        self.slack = np.zeros(flat.events.size, dtype=np.int64)
        self.value = 0.0
        self.best: Ints | None = None
        self.best_value = np.inf

    def prices(self, n: Floats) -> None:
        """Memory prices per row."""
        kernels.price_labels(self.flat, np.zeros(self.flat.labels), n, self.price)
        self.price += self.rounded

    def usage(self, x: Ints) -> Ints:
        """Usage per row."""
        f = self.flat
        use = np.zeros(f.events.size, dtype=np.int64)
        kernels.usage(x, f.spans, use)
        return use

    def set(self, x: Ints) -> None:
        """Continue from `x`; rows over the limit keep their usage as room."""
        f = self.flat
        self.x = x.copy()
        use = self.usage(x)
        self.slack = np.maximum(f.limit - use, 0)
        self.value = tree_moves.value_of(f.graph, self.cost, self.cells, self.x)

    def offer(self, x: Ints) -> bool:
        """Keep `x` if it fits and is cheaper."""
        f = self.flat
        if f.events.size and int(self.usage(x).max()) > f.limit:
            return False
        value = float(tree_moves.value_of(f.graph, self.cost, self.cells, x))
        if value >= min(self.best_value, EXACT):
            return False
        self.best, self.best_value = x.copy(), value
        return True

    def move_vertices(self, count: int, size: int, s: float) -> int:
        """`count` moves from the present positions; the number taken."""
        f = self.flat
        if not self.pool.size:
            return 0
        keep = self.x.copy()
        fits = not f.events.size or int(self.usage(self.x).max()) <= f.limit
        known = self.value if fits else -np.inf
        priced = tree_moves.Priced(f.graph, f.spans, self.cost, self.price, self.cells)
        at = tree_moves.Position(self.x, self.slack, keep, self.state)
        self.value, found, taken = tree_moves.moves(count, size, s, self.pool, priced, at, self.value, known)
        if fits and found < self.best_value:
            self.offer(keep)
        return int(taken)

    def fit(self, x: Ints, n: Floats, clock: Clock, rounds: int | None = None) -> bool:
        """Bring `x` under the limit: prices of rows that are over grow until they fit.  True when the present
        positions fit.
        """
        f, at = self.flat, self.options
        self.set(x)
        if not f.events.size:
            self.offer(self.x)
            return True
        rate = max(float(n.max()), max(1.0, abs(self.value)) / max(1, f.limit) * 1e-3)
        extra = np.zeros(f.events.size)
        for _ in range(self.options.fit_rounds if rounds is None else rounds):
            use = self.usage(self.x)
            over = use > f.limit
            if not over.any():
                self.set(self.x)  # rows that were over the limit had more room
                self.offer(self.x)
                return self.value < EXACT
            if clock.over():
                return False
            extra = np.where(
                over,
                at.fit_growth * extra + rate * at.fit_over * (use - f.limit) / max(1, f.limit) + rate * at.fit_least,
                extra,
            )
            self.prices(n + extra)
            self.set(self.x)
            moves = 2 * self.pool.size // 3 + at.fit_moves
            clock.charge(MOVE * moves * self.options.fit_size)
            self.move_vertices(moves, self.options.fit_size, 1.0)
        return False

    def search(self, n: Floats, clock: Clock, turns: int) -> None:
        """Up to `turns` turns of saving and spending memory, from the present positions; ends when several have
        found nothing or the clock is over.
        """
        self.prices(n)
        self.set(self.x)
        idle, turn, least = 0, 0, np.inf
        while turn < turns and idle < self.options.idle and not clock.over():
            low = np.inf
            for s in self.options.savings:
                size = self.options.sizes[turn % len(self.options.sizes)]
                moves = max(self.options.turn_moves, self.options.turn_visits * self.pool.size // size)
                clock.charge(MOVE * moves * size)
                self.move_vertices(moves, size, s)
                low = min(low, self.value)
                if clock.over():
                    break
            idle = 0 if low < least * (1 - self.options.turn_gain) else idle + 1
            least = min(least, low)
            turn += 1

    def deepen(self, n: Floats, clock: Clock, turns: int) -> None:
        """The same from the best positions."""
        if self.best is not None:
            self.set(self.best)
            self.search(n, clock, turns)
