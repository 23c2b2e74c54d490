"""Rounds the solution of the restricted master to one that exists: of the two columns that it mixes, the
cheaper one on the first k layers or on the last k, the leaner one on the others.

    k        from the proportion in which the plans fit; what ends and interface use is known when they have been
             searched, so the interface moves on, or back
    ends     vertices that the block does not describe, and the two layers at the interface where the plans change:
             searched again at the prices (`search_neighbourhood`)
    limit    the first leaner layer is searched under the limit (`repair_by_prices`), from what exceeds it a little and
             from what leaves some of it; an end, where it is the end that exceeds it, at a moment when no layer comes
             near it

At prices n a rounding x is worth  c(x) + sum_t n_t max(u_t(x) - L, -d),  where d is the usage of one layer more of the
cheaper plan: what it leaves unused counts as far as one layer can use it.  The most promising are searched under the
limit; one that is worth no less than the best solution costs is given up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....models.problem.selection_problem import Ints
from ..bound.restricted_master import Column
from ..model.clock import Clock
from ..model.priced import Floats, priced_problem
from ..tree.neighbourhood import connected_parts, repair_by_prices, search_neighbourhood
from ..tree.run import Run
from .layers import layers
from .quotient import Quotient


def round_master(run: Run, found: Quotient, columns: list[Column], n: Floats, free: set[int]) -> None:
    """Offer roundings of the two columns that are cheapest together, at dearer prices if none fits; of the first and
    the leanest of all if still none.

    `n`: prices over the events; `free`: vertices that the block does not describe.
    """
    rows = run.rows
    assert rows is not None
    until = run.clock.share(run.options.decomposition.roundings_share)
    weight, cheap, lean = pair(columns, rows.limit)
    leanest = min(columns, key=lambda c: float(c.use.max()))
    layer = layers(run.problem, found)
    most = int(layer.max()) + 1
    before = run.incumbent.cost
    for other, dearer in ((lean, 1.0), (lean, run.options.decomposition.dearer), (leanest, 1.0)):
        plans = np.array(found.solution_back(cheap.plan)), np.array(found.solution_back(other.plan))
        step = max(1, int((cheap.use - other.use).max() / most))
        sides = [_Side(*plans, layer, most, step, early) for early in (True, False)]
        candidates = {
            m.choices: m
            for side in sides
            for m in _from_one_side(run, side, int(weight * most), dearer * n, free, until)
        }
        for m in sorted(candidates.values(), key=lambda m: m.worth)[: run.options.decomposition.repaired]:
            if m.worth < run.incumbent.cost:
                below = repair_by_prices(
                    run,
                    m.choices,
                    n,
                    _window(run, m, n, free),
                    run.clock.share(run.options.decomposition.repair_share),
                )
                if below is not None:
                    run.incumbent.offer(below)
        if run.incumbent.cost < before or until.over():
            break


def _window(run: Run, rounded: _Rounded, n: Floats, free: set[int]) -> set[int]:
    """Where the limit can be kept: the leaner layer at the interface, or, where a row without a price is exceeded, the
    end that uses most of it.
    """
    rows = run.rows
    assert rows is not None
    use = rows.use(rounded.choices)
    worst = int(use.argmax())
    ends = connected_parts(run.problem, free)
    if int(use[worst]) <= rows.limit or n[worst] > 0.0 or not ends:
        return rounded.leaner
    at, spare = rows.events[worst], dict.fromkeys(free, 0)
    for u in run.problem.usages:
        if u.vertex in spare and u.start <= at < u.end:
            spare[u.vertex] += int(u.amount[rounded.choices[u.vertex]]) - int(u.amount.min())
    return max(ends, key=lambda part: sum(spare[v] for v in part))


def pair(columns: list[Column], limit: int) -> tuple[float, Column, Column]:
    """Share of the first and the two columns whose mixture in any proportion that fits is cheapest, the cheaper one
    first.

    The leanest column twice if none fits.

    >>> one, two, three = (Column((), cost, np.array([use])) for cost, use in ((10, 8.0), (12, 4.0), (20, 2.0)))
    >>> share, *both = pair([one, two, three], 5)
    >>> share, [column.cost for column in both]
    (0.25, [10, 12])
    """
    leanest = min(columns, key=lambda c: float(c.use.max()))
    best, found = np.inf, (0.0, leanest, leanest)
    for lean in columns:
        if float(lean.use.max()) > limit:
            continue
        for cheap in columns:
            more = cheap.use - lean.use
            dearer = more > 0.0
            weight = min(1.0, float(((limit - lean.use[dearer]) / more[dearer]).min(initial=1.0)))
            cost = weight * cheap.cost + (1.0 - weight) * lean.cost
            if cheap.cost <= lean.cost and cost < best:
                best, found = cost, (weight, cheap, lean)
    return found


@dataclass(frozen=True, eq=False)
class _Side:
    """The cheaper plan on the first layers (`early`) or on the last ones; `step`: what one layer more of it uses."""

    cheap: Ints
    lean: Ints
    layer: Ints
    most: int
    step: int
    early: bool

    def round_at(self, k: int) -> Ints:
        """The cheaper plan on k layers."""
        return np.where(self.layer < k if self.early else self.layer >= self.most - k, self.cheap, self.lean)

    def interface(self, k: int) -> set[int]:
        """Vertices of the two layers between which the plans change."""
        at = k if self.early else self.most - k
        return set(np.flatnonzero((self.layer >= at - 1) & (self.layer <= at)).tolist())

    def leaner(self, k: int) -> set[int]:
        """Vertices of the leaner one of them, of the last layer when there is none."""
        at = min(k, self.most - 1) if self.early else max(self.most - 1 - k, 0)
        return set(np.flatnonzero(self.layer == at).tolist())


@dataclass(frozen=True, eq=False)
class _Rounded:
    """`worth`: see the module docstring; `leaner`: the first leaner layer."""

    worth: float
    choices: tuple[int, ...]
    leaner: set[int]


def _from_one_side(run: Run, side: _Side, k: int, n: Floats, free: set[int], until: Clock) -> list[_Rounded]:
    """Roundings near the limit, the first with the cheaper plan on `k` layers; ends and interface searched again at the
    prices `n`.
    """
    rows = run.rows
    assert rows is not None
    at_prices = priced_problem(rows, n)
    ends: Ints | None = None
    tried: set[int] = set()
    out: list[_Rounded] = []
    while k not in tried and len(tried) <= run.options.decomposition.moves and not until.over():
        tried.add(k)
        rounded = side.round_at(k)
        window = side.interface(k)
        if ends is None or window & free:
            window |= free
        if ends is not None:
            rounded[sorted(free)] = ends[sorted(free)]
        start = tuple(rounded.tolist())
        run.incumbent.offer(start)
        x = search_neighbourhood(
            run, at_prices, start, window, run.clock.share(run.options.decomposition.rounding_share)
        )
        run.incumbent.offer(x)
        run.progress.update("rounding", None, run.upper())
        if any(m.choices == x for m in out):
            break
        use, ends = rows.use(x), np.array(x)
        out.append(
            _Rounded(run.problem.cost_of(x) + float(n @ np.maximum(use - rows.limit, -side.step)), x, side.leaner(k))
        )
        if run.incumbent.solution != x and out[-1].worth >= run.incumbent.cost:
            break
        k = min(side.most, max(0, k + (rows.limit - int(use.max(initial=0))) // side.step))
    return out
