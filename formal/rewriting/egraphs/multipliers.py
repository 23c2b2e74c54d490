"""Multipliers of a relaxation as integers, and the exact bound that the checker will compute from
them.

The multipliers of HiGHS are floats.  Rounded they are still multipliers, and lose little; where costs are decimals of
twenty digits little is too much, and the solution of the basis is refined with exact residuals first (Gleixner,
Steffy, Wolter 2016).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....models.problem.selection_problem import Ints
from ....proofs.egraphs.certificate import Dual
from .reduced import Flags, Reduced
from .relaxation import Floats, Relaxation

SMALLEST_STEP = 1 << 24
"""Multipliers are rounded to at most this part of the greatest common divisor of all costs."""

REFINEMENTS = 4
FRACTION = 1 << 60
WORD = 1 << 61


@dataclass(frozen=True, eq=False)
class Bound:
    """`total` / `denominator` bounds the cost of every extraction of a case.  `theta[n]` is what node n costs beyond
    the rows, `least[c]` the share of a class in the total; all times the denominator.
    """

    total: int
    denominator: int
    theta: np.ndarray
    least: np.ndarray
    multipliers: np.ndarray

    def value(self, step: int) -> int:
        """The bound, a multiple of `step`."""
        return -(-self.total // (self.denominator * step)) * step


class Multipliers:
    """Rows of a relaxation as arrays, so that bounds are computed in one go."""

    def __init__(self, relaxation: Relaxation) -> None:
        p = self._problem = relaxation.problem
        self._relaxation = relaxation
        number = {pair: i for i, pair in enumerate(relaxation.children)}
        self._arc_node, self._arc_kid = p.arcs
        pairs = zip(p.owner[self._arc_node].tolist(), self._arc_kid.tolist(), strict=True)
        self._arc_row = np.array([number[pair] for pair in pairs], dtype=np.int64)
        self._row_kid = np.array([d for _, d in relaxation.children], dtype=np.int64)
        self._parents = np.array(relaxation.parents, dtype=np.int64)
        self.denominator = max(1, -(-SMALLEST_STEP // p.step))

    def round_multipliers(self, multipliers: Floats) -> np.ndarray:
        """Multipliers per row but those of classes, times the denominator, as integers (Python's where they are
        large); none is negative.
        """
        found = np.maximum(multipliers[self._relaxation.size :], 0)
        factor = self._relaxation.unit * self.denominator
        if found.size and found.max() * factor < WORD / 4:
            return np.rint(found * factor).astype(np.int64)
        whole = int(factor)
        return np.array([int(v * FRACTION) * whole // FRACTION for v in found.tolist()], dtype=object)

    def basis_multipliers(self) -> np.ndarray:
        """Multipliers of the basis of the last solution, to a fraction of the denominator."""
        relaxation, p, size = self._relaxation, self._problem, self._relaxation.size
        variables = relaxation.basic_variables()
        place = {int(v): i for i, v in enumerate(variables) if v >= 0}
        exact = [0] * (relaxation.first_cut + len(relaxation.cuts))
        cost = [u * self.denominator for u in p.units]
        for _ in range(REFINEMENTS):
            classes, nodes = self._residual(cost, exact)
            residual = {i: (classes[v] if v < size else nodes[v - size]) for v, i in place.items()}
            largest = max(map(abs, residual.values()), default=0)
            if largest == 0:
                break
            right = np.zeros(len(variables))
            for i, value in residual.items():
                right[i] = value / largest
            step = relaxation.transpose_solve(right)
            exact = [e + int(s * FRACTION) * largest // FRACTION for e, s in zip(exact, step.tolist(), strict=True)]
        return np.array([max(0, e) for e in exact[size:]], dtype=object)

    def _residual(self, cost: list[int], exact: list[int]) -> tuple[list[int], list[int]]:
        """Cost minus rows times multipliers, per class and per node."""
        relaxation, size = self._relaxation, self._relaxation.size
        owner = self._problem.owner.tolist()
        classes = exact[:size]
        nodes = [c - exact[o] for c, o in zip(cost, owner, strict=True)]
        rows = exact[size:]
        for n, row in zip(self._arc_node.tolist(), self._arc_row.tolist(), strict=True):
            nodes[n] += rows[row]
        for row, d in enumerate(self._row_kid.tolist()):
            classes[d] -= rows[row]
        first = len(self._row_kid)
        where = {d: first + i for i, d in enumerate(relaxation.parents)}
        if where:
            for n, d in zip(self._arc_node.tolist(), self._arc_kid.tolist(), strict=True):
                if d in where:
                    nodes[n] -= rows[where[d]]
            for d, row in where.items():
                classes[d] += rows[row]
        first += len(relaxation.parents)
        for i, cut in enumerate(relaxation.cuts):
            if rows[first + i]:
                for n in cut.nodes.tolist():
                    nodes[n] -= rows[first + i]
                classes[cut.top] += rows[first + i]
        return classes, nodes

    def exact_bound(self, rows: np.ndarray, allowed: Flags, needed: Flags) -> Bound:
        """The exact bound of integer multipliers (rows without those of classes) on a case."""
        p, relaxation = self._problem, self._relaxation
        q, owner = self.denominator, p.owner
        most = q * max(map(abs, p.units), default=0) + sum(map(int, rows)) * 2
        kind = np.dtype(np.int64) if most * max(1, len(p.nodes)) < WORD else np.dtype(object)
        rows = rows.astype(kind)
        theta = np.array([q * u for u in p.units], dtype=kind)
        enters = np.zeros(len(p.classes), dtype=kind)
        children = len(self._row_kid)
        np.add.at(theta, self._arc_node, rows[self._arc_row])
        np.add.at(enters, self._row_kid, rows[:children])
        if len(self._parents):
            leaves = np.zeros(len(p.classes), dtype=kind)
            leaves[self._parents] = rows[children : children + len(self._parents)]
            np.subtract.at(theta, self._arc_node, leaves[self._arc_kid])
            enters -= leaves
        for i, cut in enumerate(relaxation.cuts):
            m = rows[children + len(self._parents) + i]
            if m:
                theta[cut.nodes] -= m
                enters[cut.top] -= m
        theta -= enters[owner]
        least = np.zeros(len(p.classes), dtype=kind)
        large = most * 4 + 1
        least[needed] = large
        np.minimum.at(least, owner[allowed], theta[allowed])
        return Bound(int(sum(least.tolist())), q, theta, least, rows)

    def record(self, bound: Bound, then: int | None) -> tuple[Dual, list[int]]:
        """The record of a bound, with cuts numbered as in the relaxation, and which cuts it uses."""
        p, relaxation = self._problem, self._relaxation
        values = bound.multipliers.tolist()
        children = tuple(
            (p.classes[c], p.classes[d], int(m)) for (c, d), m in zip(relaxation.children, values, strict=False) if m
        )
        first = len(relaxation.children)
        parents = tuple((p.classes[d], int(m)) for d, m in zip(relaxation.parents, values[first:], strict=False) if m)
        first += len(relaxation.parents)
        cuts = tuple((i, int(m)) for i, m in enumerate(values[first:]) if m)
        return Dual(bound.denominator, children, parents, cuts, then), [i for i, _ in cuts]


def fix_choices(bound: Bound, problem: Reduced, upper: int, allowed: Flags, needed: Flags) -> tuple[Flags, Flags]:
    """What is left of a case when choices that would cost `upper` or more have left."""
    slack = bound.denominator * (upper - problem.step) - bound.total
    excess = bound.theta - bound.least[problem.owner]
    keep = allowed & np.array(excess <= slack, dtype=bool)
    return keep, needed | np.array(-bound.least > slack, dtype=bool)


def chosen_nodes(x: Floats) -> Ints:
    """Nodes of an integral point."""
    return np.flatnonzero(x > 0.5)
