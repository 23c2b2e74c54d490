"""Two plans of one block over many layers: the cheaper one on the first k layers or on the last k, the leaner one on the others.

    k        as many layers as fit; what the ends need is known when they have been searched, so the seam moves on, or back
    ends     vertices that the block does not describe, and the two layers at the seam where the plans change: searched again at the prices (`mend`)
    limit    the first leaner layer is searched under the limit (`tighten`), from what exceeds it a little and from what leaves some of it

At prices n a mixture x is worth  c(x) + sum_t n_t max(u_t(x) - L, -d),  where d is the usage of one layer more of the cheaper plan: what it leaves
unused counts as far as one layer can use it.  The most promising are searched under the limit; one that is worth no less than the best solution costs
is given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...models.problems import Ints
from .mend import Make, mend, tighten
from .mixtures import Column, Floats, layers, priced
from .repeat import Quotient
from .search import Search

MIXTURE_SHARE: Final = 0.06
"""Of the time limit, for ends and seam of one mixture."""

TIGHT_SHARE: Final = 0.05
"""Of the time limit, for one seam under the limit."""

TIGHTENED: Final = 3
"""Mixtures whose seams are searched under the limit."""

SEAMS: Final = 2
"""How often the seam moves."""


def mix(search: Search, make: Make, found: Quotient, columns: list[Column], n: Floats, free: set[int]) -> None:
    """Offer mixtures of the two columns that are cheapest together, of the first and the leanest of all if no such mixture fits.

    `n`: prices over the events; `free`: vertices that the block does not describe.
    """
    rows = search.rows
    assert rows is not None
    cheap, lean = pair(columns, rows.limit)
    layer = layers(search.problem, found)
    most = int(layer.max()) + 1
    for other in (lean, min(columns, key=lambda c: float(c.use.max()))):
        plans = np.array(found.expand(cheap.plan)), np.array(found.expand(other.plan))
        step = max(1, int((cheap.use - other.use).max() / most))
        sides = [_from_one_side(search, make, _Side(*plans, layer, most, step, early), n, free) for early in (True, False)]
        candidates = sorted((m for side in sides for m in side), key=lambda m: m.worth)
        for m in candidates[:TIGHTENED]:
            if m.worth < search.incumbent.cost:
                below = tighten(search, make, m.choices, n, m.leaner, search.clock.share(TIGHT_SHARE))
                if below is not None:
                    search.incumbent.offer(below)
        if candidates:
            break


def pair(columns: list[Column], limit: int) -> tuple[Column, Column]:
    """The two columns whose mixture in any proportion that fits is cheapest, the cheaper one first; the leanest column twice if none fits.

    >>> one, two, three = (Column((), cost, np.array([use])) for cost, use in ((10, 8.0), (12, 4.0), (20, 2.0)))
    >>> [column.cost for column in pair([one, two, three], 5)]
    [10, 12]
    """
    leanest = min(columns, key=lambda c: float(c.use.max()))
    best, found = np.inf, (leanest, leanest)
    for lean in columns:
        if float(lean.use.max()) > limit:
            continue
        for cheap in columns:
            more = cheap.use - lean.use
            dearer = more > 0.0
            weight = min(1.0, float(((limit - lean.use[dearer]) / more[dearer]).min(initial=1.0)))
            cost = weight * cheap.cost + (1.0 - weight) * lean.cost
            if cheap.cost <= lean.cost and cost < best:
                best, found = cost, (cheap, lean)
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

    def mixture(self, k: int) -> Ints:
        """The cheaper plan on k layers."""
        return np.where(self.layer < k if self.early else self.layer >= self.most - k, self.cheap, self.lean)

    def seam(self, k: int) -> set[int]:
        """Vertices of the two layers between which the plans change."""
        at = k if self.early else self.most - k
        return set(np.flatnonzero((self.layer >= at - 1) & (self.layer <= at)).tolist())

    def leaner(self, k: int) -> set[int]:
        """Vertices of the leaner one of them, of the last layer when there is none."""
        at = min(k, self.most - 1) if self.early else max(self.most - 1 - k, 0)
        return set(np.flatnonzero(self.layer == at).tolist())


@dataclass(frozen=True, eq=False)
class _Mixture:
    """`worth`: see the module docstring; `leaner`: the first leaner layer."""

    worth: float
    choices: tuple[int, ...]
    leaner: set[int]


def _from_one_side(search: Search, make: Make, side: _Side, n: Floats, free: set[int]) -> list[_Mixture]:
    """Mixtures near the limit, ends and seam searched again; none if not even the leaner plan alone fits."""
    rows = search.rows
    assert rows is not None
    at_prices = priced(search.problem, rows.events, n)

    def left(x: tuple[int, ...]) -> int:
        return rows.limit - int(rows.use(x).max(initial=0))

    k = next((k for k in range(side.most, -1, -1) if left(tuple(side.mixture(k).tolist())) >= 0), None)
    if k is None:
        return []
    ends: Ints | None = None
    tried: set[int] = set()
    out: list[_Mixture] = []
    while k not in tried and 0 <= k <= side.most and len(tried) <= SEAMS:
        tried.add(k)
        mixture = side.mixture(k)
        window = side.seam(k)
        if ends is None or window & free:
            window |= free
        if ends is not None:
            mixture[sorted(free)] = ends[sorted(free)]
        start = tuple(mixture.tolist())
        search.incumbent.offer(start)
        x = mend(search, make, at_prices, start, window, search.clock.share(MIXTURE_SHARE))
        search.incumbent.offer(x)
        search.progress.update("mixture", None, search.upper())
        worth = search.problem.cost_of(x) + float(n @ np.maximum(rows.use(x) - rows.limit, -side.step))
        out.append(_Mixture(worth, x, side.leaner(k)))
        if search.incumbent.solution != x and out[-1].worth >= search.incumbent.cost:
            break
        ends, unused = np.array(x), left(x)
        k += unused // side.step if unused >= 0 else -1
    return out
