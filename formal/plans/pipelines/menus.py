"""Finds placements of single units between even layouts at their cuts, for several prices of memory: menus
of time and bytes.

    option of unit u at price n:   min over x of  cost_u(x) + n (fixed_u(x) + (p - 1) kept_u(x))

    fixed_u   bytes between the forward and the backward pass: parameters, states, sums of gradients, one activation
    kept_u    bytes of every further activation that is kept

A stage takes one option per unit: first the fastest ones, then, until it fits, the exchange that loses least time per
byte.  Where stages are cut under a memory limit is found by the same prices (`cut_within`):

    time of units i .. j-1 with p activations in M bytes   >=   max over n of  sum of their options at price n  -  n M

Units side by side agree at their cuts, and in what several units read (constants), which the first solution
settles; equal units share their options.  Whether a stage fits is looked up in all rows of memory, not in these sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from ....models.pipelines.pieces import Chain, Part, Pieces
from ....models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem, Usage, Vertex
from .channels import whole_chain

PRICES = (0.0, 5.0, 0.1, 0.03, 0.3, 0.01, 1.0, 0.003)
"""What a full memory costs, in times of the whole step: after the fastest options those that hold least, so that stages
fit before the time is over, then those between.
"""

CUT_PRICES = (0.0, *(10.0 ** (k / 8) for k in range(-28, 17)))
"""The same where cuts are chosen: options are looked up, not searched."""

AS_SLOW = 1 + 1 / 64
"""Times the slowest stage: all stages may take so long; then their sum counts."""

Known = list[tuple[int, ...]]

Solve = Callable[[Callable[[], SelectionProblem], Known], tuple[int, ...] | None]
"""Of a problem, which is made only if there is time for it."""


Row = tuple[tuple[int, ...], int, int, int]
"""Choices of a unit's vertices in order, cost, bytes as in `Option`."""


@dataclass(frozen=True, eq=False)
class Option:
    """Choices of a unit's vertices, what they cost, and bytes between the passes with one activation and per further
    one.
    """

    choices: dict[int, int]
    cost: int
    fixed: int
    kept: int

    def live_bytes(self, activations: int) -> int:
        """Bytes between the passes."""
        return self.fixed + (activations - 1) * self.kept


@dataclass(frozen=True, eq=False)
class Sizes:
    """Of a unit, per vertex (its number in the part) and choice: bytes between the passes, and of a further activation;
    `digest`: of both, which equal units share.
    """

    fixed: Mapping[int, Ints]
    kept: Mapping[int, Ints]
    digest: bytes


class Menus:
    """Options of every unit of `pieces`.  `layouts`: choices of what crosses cuts; `times`: how often forward and
    backward count; `activations`: for which prices hold; `solve`: placements of a selection problem, none worse
    than those that are known.
    """

    def __init__(
        self, pieces: Pieces, layouts: Mapping[str, int], times: int, activations: int, summed: bool, solve: Solve
    ) -> None:
        self.pieces, self.layouts, self.times, self.summed, self.solve = pieces, layouts, times, summed, solve
        self.activations = activations
        self.settled: dict[int, int] = {}
        self.known: dict[object, list[Row]] = {}
        self.solved: set[object] = set()
        self.options: dict[int, list[Option]] = {}
        self.parts: list[Part] = []
        self.names: list[str] = []
        self.shared: set[int] = set()
        self.sizes: dict[int, Sizes] = {}
        self.made: dict[int, tuple[object, int, int]] = {}
        self.extended = False

    def prepare(self) -> bool:
        """Find the fastest option of every unit; False if one has none."""
        units = self.pieces.division.units
        self.parts = [self.pieces.stage(u, u + 1, self.times, 1, self.layouts, self.chain(u)) for u in range(units)]
        count = Counter(v for part in self.parts for v in part.vertices)
        self.shared = {v for v, n in count.items() if n > 1} - {self.pieces.planning.copies[t] for t in self.layouts}
        digests = dict[int, bytes]()  # units share their tables, of which there may be gigabytes
        self.names = [part.problem.sha256(digests) for part in self.parts]
        return self._add(PRICES[:1], 0.0)

    def chain(self, unit: int) -> Chain | None:
        """What counts more with weights of channels; everything may, where there are none."""
        return None if self.pieces.channels is None else whole_chain(self.pieces, unit, unit + 1)

    def extend(self, limit: int) -> None:
        """Add the options of all prices; `limit`: bytes of a device."""
        self.extended = True
        for price in PRICES:  # of all units before the next
            self._add((price,), self._unit(limit))

    def _unit(self, limit: int) -> float:
        """Cost of a byte where a full memory costs the whole step once."""
        return max(1, sum(options[0].cost for options in self.options.values())) / limit

    def cut_within(self, activations: Sequence[int], limit: int) -> tuple[float, tuple[int, ...]] | None:
        """First units of stages that keep so many activations in `limit` bytes, so that the slowest is fast, then that
        all are, and about what the slowest takes; None where there are too few units.
        """
        units = len(self.options)
        if units < len(activations):
            return None
        times = {n: self._run_times(n, limit) for n in set(activations)}
        slowest = np.full(units + 1, np.inf)
        slowest[units] = 0.0
        total = slowest.copy()
        for n in reversed(activations):
            slowest = np.maximum(times[n], slowest[None, :]).min(axis=1)
        steps = []
        for n in reversed(activations):
            sums = np.where(times[n] <= AS_SLOW * slowest[0], times[n], np.inf) + total[None, :]
            steps.append(sums.argmin(axis=1))
            total = sums.min(axis=1)
        starts = [0]
        for step in reversed(steps[1:]):
            starts.append(int(step[starts[-1]]))
        return float(slowest[0]), tuple(starts)

    def _run_times(self, activations: int, limit: int) -> NDArray[np.float64]:
        """[i][j]: about what units i .. j-1 take, fitted into `limit` bytes; infinity where there are none."""
        units = len(self.options)
        rows = [[(o.cost, o.live_bytes(activations)) for o in self.options[u]] for u in range(units)]
        best = np.zeros((units + 1, units + 1))
        for price in CUT_PRICES:
            rate = price * self._unit(limit)
            sums = np.cumsum([0.0, *(min(cost + rate * held for cost, held in row) for row in rows)])
            best = np.maximum(best, sums[None, :] - sums[:, None] - rate * limit)
        best[np.tril_indices(units + 1)] = np.inf
        return best

    def _add(self, prices: tuple[float, ...], unit: float) -> bool:
        for u, part in enumerate(self.parts):
            options = self._of(u, part, prices, unit)
            if not options:
                return False
            self.options[u] = options
        return True

    def _of(self, u: int, part: Part, prices: tuple[float, ...], unit: float) -> list[Option]:
        if u not in self.sizes:  # a walk over all memory rows of the step, and every stage that is fitted asks again
            self.sizes[u] = self._bytes(u, part)
        fixed, kept = self.sizes[u].fixed, self.sizes[u].kept
        held, same = self._held(part), self._class(u, part)
        rows = self.known.setdefault(same, [])
        for price in prices:
            if (same, price) in self.solved:
                continue
            x = self.solve(partial(self._priced, part, fixed, kept, price * unit, held), [row[0] for row in rows])
            if x is None:
                continue
            self.solved.add((same, price))  # not where the time was over: later there may be more
            cost = part.problem.cost_of(x)
            between, more = (sum(int(size[k][x[k]]) for k in size) for size in (fixed, kept))
            row = x, cost, between, more
            if cost < FORBIDDEN and row not in rows:
                rows.append(row)
        made = same, len(rows), len(self.settled)
        if self.made.get(u) == made:  # every stage that is fitted asks again
            return self.options[u]
        options = [Option(dict(zip(part.vertices, x, strict=True)), c, a, b) for x, c, a, b in rows]
        if options:  # what other units read too is settled by the first of them
            for v in self.shared & set(part.vertices):
                self.settled.setdefault(v, options[0].choices[v])
            now = self._class(u, part)
            if now != same and len(rows) == 1:  # which stays the best one
                self.known[now] = rows
                self.solved |= {(now, price) for price in prices if (same, price) in self.solved}
        self.made[u] = made
        return [o for o in options if all(o.choices.get(v, c) == c for v, c in self.settled.items())]

    def _held(self, part: Part) -> dict[int, int]:
        """Of vertices of a part that are settled by other units the choices."""
        return {k: self.settled[v] for k, v in enumerate(part.vertices) if v in self.settled}

    def _class(self, u: int, part: Part) -> tuple[str, bytes, tuple[tuple[int, int], ...]]:
        """Units of equal ones have the same options."""
        return self.names[u], self.sizes[u].digest, tuple(sorted(self._held(part).items()))

    def _bytes(self, u: int, part: Part) -> Sizes:
        local = {v: k for k, v in enumerate(part.vertices)}
        operators = self.pieces.stage_operators(u, u + 1)
        between = sum(self.pieces.division.phase[i] == "F" for i in operators)

        def live_bytes(activations: int) -> dict[int, Ints]:
            out: dict[int, Ints] = {}
            for row in self.pieces.usages(u, u + 1, activations, self.summed):
                if _alive(row, between):
                    k = local[row.vertex]
                    out[k] = out[k] + row.amount if k in out else row.amount
            return out

        one, two = live_bytes(1), live_bytes(2)
        kept = {k: two[k] - one[k] for k in one}
        digest = sha256()
        for k in sorted(one):
            digest.update(b"%d:%d:" % (k, one[k].size) + one[k].tobytes() + kept[k].tobytes())
        return Sizes(one, kept, digest.digest())

    def _priced(
        self, part: Part, fixed: Mapping[int, Ints], kept: Mapping[int, Ints], rate: float, held: Mapping[int, int]
    ) -> SelectionProblem:
        """The unit with memory as a cost, and what is settled."""
        p = part.problem
        vertices = []
        for k, vertex in enumerate(p.vertices):
            cost = vertex.cost
            if rate and k in fixed:
                more = np.rint(rate * (fixed[k] + (self.activations - 1) * kept[k]).astype(np.float64))
                free = cost < FORBIDDEN
                cost = np.where(free, np.where(free, cost, 0) + np.minimum(more, FORBIDDEN >> 4).astype(np.int64), cost)
            if k in held:
                only = np.full_like(cost, FORBIDDEN)
                only[held[k]] = cost[held[k]]
                cost = only
            vertices.append(Vertex(vertex.name, cost))
        return SelectionProblem(
            p.name, tuple(vertices), p.tables, p.edges, scale=p.scale, unit_name=p.unit_name, space=p.space
        ).check()

    def choose_within(self, first: int, end: int, activations: int, limit: int | None) -> dict[int, int] | None:
        """Choices of a stage whose units hold at most `limit` bytes between the passes; None if there are none."""
        picked = {u: min(self.options[u], key=lambda o: (o.cost, o.live_bytes(activations))) for u in range(first, end)}
        total = sum(o.live_bytes(activations) for o in picked.values())
        while limit is not None and total > limit:
            best: tuple[Fraction, int, Option] | None = None
            for u, now in picked.items():
                for other in self.options[u]:
                    saved = now.live_bytes(activations) - other.live_bytes(activations)
                    if saved > 0:
                        useful = min(saved, total - limit)  # more than is wanted is worth nothing
                        rate = Fraction(max(0, other.cost - now.cost), useful)
                        if best is None or rate < best[0]:
                            best = rate, u, other
            if best is None:
                return None
            _, u, other = best
            total += other.live_bytes(activations) - picked[u].live_bytes(activations)
            picked[u] = other
        return {v: x for o in picked.values() for v, x in o.choices.items()}


def _alive(row: Usage, moment: int) -> bool:
    """Whether a row is there between steps `moment` - 1 and `moment`."""
    return row.start < max(1, moment) and row.end >= moment + 1 or row.start == 0 and row.end > moment
