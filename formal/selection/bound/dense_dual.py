"""Bounds a dense problem from below: ascent over messages (TRW-S) and multipliers (subgradient steps) in
floats, and the exact integer value of what they reach.

    LB(m, n, k) = constant + sum_v min theta_v + sum_e min bracket_e - L sum_t n_t - sum_c k_c limit_c
    (proofs/selection/certificates.py, `Dual`)

(c: MIR cuts, `bound/mir_cuts.py`.)  A step is a forward and a backward sweep, then a projected subgradient step on
n and k (direction averaged with the last one).  `quantise` writes messages and multipliers as integers over Q = 2^k
and evaluates them in int64: rounding moves the bound by at most one unit of 1/Q per message, and by n's rounding times
the slack of the rows, which is small because n is only positive where rows are nearly tight.  Entries are clipped at
2^60 / Q: every label that needs a clipped entry has a reduced cost beyond any gap, so the labels that `fix` keeps are
exactly those that a checker keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints
from ....proofs.selection.certificates import Dual
from ..model.clock import Clock
from ..model.dense import DenseProblem, Floats, sides
from ..model.factored import INFINITE
from ..options.dense import DENSE, DenseOptions
from . import dense_kernels as kernels
from .dual import Score, spread
from .mir_cuts import NONE, Cuts, build, separate
from .multipliers import StepRule, subgradient_ascent
from .sweep_kernels import FAR, sweep

LARGEST_SHIFT: Final = 30


@dataclass(eq=False)
class State:
    """Messages and multipliers (floats) with the bound they had in the last sweep."""

    messages: Floats
    n: Floats
    bound: float = -np.inf
    step: float = DENSE.step
    k: Floats = field(default_factory=lambda: np.zeros(0))
    """Multipliers of the MIR cuts."""

    def dual(self, flat: DenseProblem) -> Dual:
        """The messages in the shape of a record, not yet integers."""
        to_u, to_v = sides(flat.graph, cast(Ints, self.messages))
        return Dual(tuple(to_u), tuple(to_v))

    def copy(self) -> State:
        return State(self.messages.copy(), self.n.copy(), self.bound, self.step, self.k.copy())


class Begin(NamedTuple):
    """Positions, row multipliers and what MIR cuts add to the prices of the labels."""

    x: Ints
    n: Floats
    rounded: Floats


class DenseBounder:
    """Sweeps on `flat`; costs above `big` count as `big` (any value is valid; at least a few times the incumbent to be
    useful).

    `often`: how often each label was decoded lately, a guess at the relaxed solution.
    """

    def __init__(self, flat: DenseProblem, big: int, options: DenseOptions = DENSE) -> None:
        self.flat, self.options = flat, options
        self.cost, self.cells = flat.clip(big)
        self.entries = 2 * flat.entries
        self.order = np.arange(flat.vertices, dtype=np.int64)
        self.weight = self.cost.copy()
        self.x = np.zeros(flat.vertices, dtype=np.int64)
        self.often = np.zeros(flat.labels)
        self.use = np.zeros(flat.events.size, dtype=np.int64)
        self.cuts = NONE

    def apply(self, state: State) -> None:
        """Put multipliers into the vertex costs."""
        kernels.price_labels(self.flat, self.cost, state.n, self.weight)
        self.cuts.weigh(state.k, self.weight)

    def offset(self, state: State) -> float:
        """What a sweep's value lacks to be the bound."""
        return float(self.flat.problem.constant) - self.flat.limit * float(state.n.sum()) - self.cuts.offset(state.k)

    def sweep(self, messages: Floats, forward: bool, soft: tuple[float, float, Floats] | None = None) -> float:
        """One pass; the bound without constant and rows.  `soft`: see `bound/sweep_kernels.py`."""
        return float(
            sweep(
                (self.order, self.order, forward),
                self.flat.graph,
                None,
                self.weight,
                self.cells,
                messages,
                None,
                soft,
            )
        )

    def decode_backward(self, messages: Floats) -> Ints:
        """Positions decoded after a backward sweep; leaves their usage in `self.use`.

        Not the least theta of every vertex: a sweep hands excess on until most vertices have ties, and ties broken
        apart from their neighbours say nothing about usage.
        """
        f = self.flat
        kernels.decode(f.graph, self.weight, self.cells, messages, self.x)
        kernels.usage(self.x, f.spans, self.use)
        return self.x

    def local_search_start(self, state: State) -> Begin:
        """Where the messages of `state` say that a local search should begin."""
        rounded = np.zeros(self.flat.labels)
        self.cuts.weigh(state.k, rounded)
        self.apply(state)
        messages = state.messages.copy()
        for forward in (True, False):
            self.sweep(messages, forward)
        return Begin(self.decode_backward(messages).copy(), state.n.copy(), rounded)

    def tighten(self, state: State, most: int, incumbent: Ints | None = None) -> int:
        """Drop MIR cuts without a multiplier, add up to `most` that the relaxed solution breaks; how many were
        added.

        The bound of `state` does not change.
        """
        active = np.flatnonzero(state.k > 0)
        kept = tuple(self.cuts.kinds[c] for c in active.tolist())
        fresh = separate(self.flat, state.n, self.often, kept, incumbent, self.options)[:most]
        if fresh or len(kept) < self.cuts.count:
            self.cuts = build(self.flat, (*kept, *fresh))
            state.k = np.concatenate([state.k[active], np.zeros(len(fresh))])
        return len(fresh)

    def subgradient_ascent(
        self, state: State, target: float, steps: int, clock: Clock, stop: float = np.inf, beyond: float = 0.0
    ) -> State:
        """Best state met from `state` in up to `steps` steps; ends early at a bound of at least `stop` or when steps
        have become tiny.

        Steps aim at `target` and the share `beyond` of it above: best at 0 when the incumbent is good, but then some
        runs stall.
        """
        ascent = _Ascent(self, state, target, clock, stop, beyond)
        at = self.options
        rule = StepRule(at.step_factor, at.least_step, at.patience, at.averaged, endless=True)
        rho = subgradient_ascent(ascent, rule, state.step, steps)
        ascent.best.step = max(rho, at.next_step)
        return ascent.best


class _Ascent:
    """Sweeps of a `DenseBounder` at the multipliers of rows and MIR cuts; usage of a decoded solution."""

    def __init__(
        self, bounder: DenseBounder, state: State, target: float, clock: Clock, stop: float, beyond: float
    ) -> None:
        self.bounder, self.target, self.clock, self.stop, self.beyond = bounder, target, clock, stop, beyond
        self.now, self.best, self.anchor = state.copy(), state.copy(), -np.inf
        self.best.bound = -np.inf
        bounder.apply(self.now)

    @property
    def size(self) -> int:
        """Cuts are cuts of rows: no rows, no multipliers."""
        rows = self.bounder.flat.events.size
        return rows + self.bounder.cuts.count if rows else 0

    def sweep(self) -> float:
        bounder, now = self.bounder, self.now
        self.clock.read(bounder.entries)
        bounder.sweep(now.messages, True)
        now.bound = bounder.sweep(now.messages, False) + bounder.offset(now)
        return now.bound

    def note(self, bound: float) -> bool:
        if bound > self.best.bound:
            self.best = self.now.copy()
        if self.best.bound > self.anchor + self.bounder.options.step_gain * max(1.0, self.target - self.best.bound):
            self.anchor = self.best.bound
            return True
        return False

    def is_enough(self, bound: float) -> bool:
        return self.best.bound >= self.stop or self.clock.over()

    def over(self) -> Floats:
        bounder = self.bounder
        chosen = bounder.flat.label[:-1] + bounder.decode_backward(self.now.messages)
        bounder.often *= bounder.options.memory
        bounder.often[chosen] += 1.0 - bounder.options.memory
        return np.concatenate([bounder.use.astype(np.float64) - bounder.flat.limit, bounder.cuts.over(chosen)])

    def aim(self, bound: float, rho: float) -> float:
        gap = max(self.target - max(bound, self.best.bound), 0.0) + (self.beyond + 1e-7) * abs(self.target)
        return rho * gap

    def multipliers(self) -> Floats:
        return np.concatenate([self.now.n, self.now.k])

    def price(self, n: Floats) -> None:
        rows = self.bounder.flat.events.size
        self.now.n, self.now.k = n[:rows], n[rows:]
        self.bounder.apply(self.now)

    def restore(self) -> None:
        self.now = self.best.copy()
        self.bounder.apply(self.now)


def shift_for(upper: float) -> int:
    """k of Q = 2^k: finer than the costs, and 2^k times the incumbent stays below 2^54."""
    return max(0, min(LARGEST_SHIFT, 54 - int(max(1.0, abs(upper))).bit_length()))


def quantise(flat: DenseProblem, state: State, upper: float, cuts: Cuts = NONE) -> tuple[Dual, Score] | None:
    """The state in integers as a record, and what it says.

    None if its numbers are too large for int64 sums (then nothing is lost but this record).
    """
    sums = np.zeros(flat.labels)  # of magnitudes of the messages of every label
    kernels.reach(flat.graph, np.abs(state.messages), sums)
    most = float(sums.max(initial=0.0)) + _usage_bound(flat, state, cuts)
    for shift in range(shift_for(upper), -1, -1):
        q = 1 << shift
        if most * q < 2.0**59 and float(state.n.sum()) * q < 2.0**62:
            return _evaluate(
                flat,
                q,
                np.rint(state.messages * q).astype(np.int64),
                np.rint(state.n * q).astype(np.int64),
                state.k,
                cuts,
            )
    return None


def prices(flat: DenseProblem, state: State, cuts: Cuts) -> Floats:
    """What the multipliers add to the cost of every label."""
    weight = np.zeros(flat.labels)
    kernels.price_labels(flat, weight, state.n, weight)
    cuts.weigh(state.k, weight)
    return weight


def _usage_bound(flat: DenseProblem, state: State, cuts: Cuts) -> float:
    """Largest sum of multipliers times use of one label."""
    return float(prices(flat, state, cuts).max(initial=0.0))


def _evaluate(flat: DenseProblem, q: int, messages: Ints, n: Ints, k: Floats, cuts: Cuts) -> tuple[Dual, Score]:
    cap = FAR // q
    weight = np.empty(flat.labels, dtype=np.int64)
    kernels.price_labels(flat, np.minimum(flat.cost, cap) * q, n, weight)
    numbers, added, taken = cuts.exact(k, q)
    weight[: added.size] += added
    low, least = np.zeros(flat.vertices, dtype=np.int64), np.zeros(flat.graph.u.size, dtype=np.int64)
    excess = np.empty(flat.labels, dtype=np.int64)
    kernels.score(flat.graph, weight, np.minimum(flat.cells, cap) * q, messages, low, least, excess)
    rows = 0 if flat.limit >= FORBIDDEN else flat.limit * sum(n.tolist())
    bound = q * flat.problem.constant + sum(low.tolist()) + sum(least.tolist()) - rows - taken
    pairs = tuple((int(flat.events[t]), int(n[t])) for t in np.flatnonzero(n))
    to_u, to_v = spread(flat.network, *sides(flat.graph, messages))
    record = Dual(to_u, to_v, q, pairs, rounded=cuts.records(flat, numbers))
    np.minimum(excess, INFINITE - 1, out=excess)  # clipped entries are dear, not forbidden
    return record, Score(bound, tuple(np.split(excess, flat.label[1:-1])), q)
