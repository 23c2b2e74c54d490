"""Looks for weights whose mean of lines says most: the dual of the least largest line over all cuts.

A linear program has the weights, and a row for every cut that was found:  mean of its lines >= t,  t as large as it can
be.  The cut of the least mean for weights between the best ones and the program's is the next row (Kelley 1960; in-out
separation: Ben-Ameur and Neto 2007), until t is hardly more than what the best weights say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....models.pipelines.bound import IMPOSSIBLE
from ....models.pipelines.cuts import Hops, Passes
from ....models.pipelines.interleaved import Floats, Shape, weighted_bound
from ...highs import run_alone, silent_solver

ROUNDS = 120
"""Cuts that are found at most."""

NEAR = 2e-4
"""How far the program may be above the best weights, in parts."""

INWARDS = 0.5
"""How far towards the program's weights the next ones lie."""

WHOLE = 1 << 14
"""What weights add up to, about."""

MOST_POLISHED = 6000
"""Cuts that are looked at while units are moved from chunk to chunk: half a second."""

INFINITE = 1e30


@dataclass(frozen=True)
class Weighed:
    """The best bound that was found, its weights, and cuts whose largest line is small, with units moved from chunk to
    chunk until none helps: from the mean of the cuts that the weights are from, and from equally many units.
    """

    bound: int
    weights: tuple[int, ...]
    cuts: tuple[tuple[int, ...], ...]


def weigh(known: Passes, hops: Hops, shape: Shape) -> Weighed:
    """Weights of a good bound, in parts of `WHOLE`."""
    tables, count = _Tables(known, hops, shape), len(shape.counts)
    kept = np.array([1.0 if k == n == 0 else 0.0 for _, k, n in shape.lines] + [1.0] * shape.groups)
    kept /= kept.sum()
    best, found = tables.least(kept)
    if not found:
        return Weighed(IMPOSSIBLE, (1,) * count, ())
    program = _Program(count, max(1.0, best))
    seen: list[tuple[int, ...]] = []
    for _ in range(ROUNDS):
        there = tables.lines(found)
        seen.append(found)
        outer, most = program.with_cut(there)
        if most <= best * (1 + NEAR):
            break
        weights = kept + INWARDS * (outer - kept)
        value, found = tables.least(weights)
        if value > best:
            best, kept = value, weights
        if (there == tables.lines(found)).all():  # nothing new between them
            value, found = tables.least(outer)
            if value > best:
                best, kept = value, outer
    whole = tuple(int(x) for x in np.rint(kept * WHOLE))
    middle = rising((program.mixture() @ np.array(seen, dtype=np.float64)).tolist(), tables.units)
    even = rising([k * tables.units / shape.parts for k in range(shape.parts)], tables.units)
    cuts = dict.fromkeys(polish(cut, tables) for cut in (middle, even))
    return Weighed(weighted_bound(known, hops, shape, whole), whole, tuple(cuts))


def neighbour_cuts(cut: tuple[int, ...], units: int) -> list[tuple[int, ...]]:
    """Cuts with one unit more in one chunk and one less in another.

    >>> neighbour_cuts((0, 1), 4)
    [(0, 2)]
    """
    parts, out = len(cut), []
    sizes = [b - a for a, b in zip(cut, (*cut[1:], units), strict=True)]
    for a in range(parts):
        for b in range(a + 1, parts):
            for step in (1, -1):
                if sizes[b if step > 0 else a] > 1:
                    out.append((*cut[: a + 1], *(c + step for c in cut[a + 1 : b + 1]), *cut[b + 1 :]))
    return out


def polish(cut: tuple[int, ...], tables: _Tables) -> tuple[int, ...]:
    """The cut with units moved while its largest line becomes less."""
    value, looked = float(tables.lines(cut).max()), 0
    while looked < MOST_POLISHED:
        around = neighbour_cuts(cut, tables.units)
        looked += len(around)
        best = min(((float(tables.lines(c).max()), c) for c in around), default=(value, cut))
        if best[0] >= value:
            break
        value, cut = best
    return cut


def rising(places: Sequence[float], units: int) -> tuple[int, ...]:
    """Whole numbers near these, each above the one before it, none empty behind the last.

    >>> rising([0.0, 0.4, 3.6, 3.7], 5)
    (0, 1, 3, 4)
    """
    out: list[int] = []
    for k, place in enumerate(places):
        least = out[-1] + 1 if out else 0
        out.append(min(max(least, round(place)), units - len(places) + k))
    return tuple(out)


class _Program:
    """The largest t that no known cut's mean of lines is below."""

    def __init__(self, count: int, unit: float) -> None:
        self.solver, self.count, self.unit = silent_solver(), count, unit
        self.solver.setOptionValue("threads", 1)
        self.solver.addVars(count + 1, np.zeros(count + 1), np.full(count + 1, INFINITE))
        self.solver.changeColCost(count, -1.0)
        columns = np.arange(count, dtype=np.int32)
        self.solver.addRow(1.0, 1.0, count, columns, np.ones(count))

    def with_cut(self, lines: Floats) -> tuple[Floats, float]:
        """Weights, and t, with one cut more."""
        index = np.arange(self.count + 1, dtype=np.int32)
        self.solver.addRow(0.0, INFINITE, len(index), index, np.append(lines / self.unit, -1.0))
        run_alone(self.solver)
        values = np.array(self.solver.getSolution().col_value)
        weights = np.maximum(values[:-1], 0.0)
        return weights / max(1e-12, float(weights.sum())), float(values[-1]) * self.unit

    def mixture(self) -> Floats:
        """How much of every cut the program's weights are from."""
        duals = np.abs(np.array(self.solver.getSolution().row_dual)[1:])
        found: Floats = duals / max(1e-12, float(duals.sum()))
        return found


class _Tables:
    """Times as arrays of floats, [i, j]: they guide the weights and prove nothing."""

    def __init__(self, known: Passes, hops: Hops, shape: Shape) -> None:
        f, b, a, w, v = (
            np.array([[min(x, IMPOSSIBLE) for x in row] for row in rows], dtype=np.float64)
            for rows in (known.forward, known.backward, known.one, known.updated, known.step)
        )
        self.shape, self.units = shape, len(known.one) - 1
        self.forward, self.backward, self.both, self.step = f, b, np.maximum(a, f + b), v
        self.updated = np.maximum(w, self.both)
        self.empty = np.tril(np.ones((self.units + 1, self.units + 1), dtype=np.bool_))
        self.there, self.back = (
            [np.zeros(self.units + 1), *(np.array([*row, 0], dtype=np.float64) for row in ways[1:])]
            for ways in (hops.there, hops.back)
        )

    def least(self, weights: Floats) -> tuple[float, tuple[int, ...]]:
        """The least weighted sum over all cuts, and its cut; an empty one if there is none."""
        counts = np.einsum("l,lcw->cw", weights, self.shape.counts)
        rest = np.full(self.units + 1, np.inf)
        rest[self.units] = 0.0
        chosen: list[NDArray[np.int64]] = []
        for r in range(self.shape.parts - 1, -1, -1):
            forward, backward, update, step, there, back = (float(x) for x in counts[r])
            both = min(forward, backward)
            joint = min(both, update)
            cost = joint * self.updated + (both - joint) * self.both + step * self.step
            cost += (forward - both) * self.forward + (backward - both) * self.backward
            if r + 1 < self.shape.parts:
                cost = cost + there * self.there[r + 1] + back * self.back[r + 1]
            cost[self.empty] = np.inf
            total = cost + rest
            chosen.append(total.argmin(axis=1))
            rest = total.min(axis=1)
        if rest[0] >= float(IMPOSSIBLE) / 2:
            return 0.0, ()
        cut = [0]
        for row in reversed(chosen[1:]):
            cut.append(int(row[cut[-1]]))
        return float(rest[0]), tuple(cut)

    def lines(self, cut: Sequence[int]) -> Floats:
        """What every line says of a cut; `cut`: first units of the chunks."""
        runs = list(zip(cut, (*cut[1:], self.units), strict=True))
        f, b, both, updated, step = (
            np.array([rows[i, j] for i, j in runs])
            for rows in (self.forward, self.backward, self.both, self.updated, self.step)
        )
        there, back = ([*(way[c][i] for c, i in enumerate(cut[1:], 1)), 0.0] for way in (self.there, self.back))
        columns = np.stack([f, np.maximum(b, both - f), updated - both, step, np.array(there), np.array(back)], axis=1)
        found: Floats = np.einsum("lcw,cw->l", self.shape.counts, columns)
        return found
