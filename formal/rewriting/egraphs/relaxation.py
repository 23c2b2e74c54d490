"""Solves the linear relaxation of an extraction, in HiGHS: x_n per node, y_c per class, rows of the
certificate plus cuts.

    min sum cost(n) x_n     sum of x_n over nodes of c = y_c,     0 <= x, y <= 1,     y_root = 1,
    child rows, cuts, and parent rows where costs may be negative (`proofs.egraphs.certificate`)

The rows of y_c have no multiplier in the certificate: there X_c stands for the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from ....models.problem.selection_problem import Ints
from ...highs import run_alone, silent_solver
from ...selection.model.clock import Clock
from .reduced import Flags, Reduced

Floats = NDArray[np.float64]
INFINITE = 1e30
COLUMNS = 10
"""Columns of a linear program that an iteration of the simplex method goes through in a step of work."""

LARGEST = 1e4
"""Costs are scaled so that the largest one is at most this, and not at all where they are small integers."""


@dataclass(frozen=True, eq=False)
class Point:
    """A solution of the relaxation: `value` in units of the relaxation; `nodes` is x, `classes` y, `multipliers` a
    number per row, `reduced` the reduced costs of the nodes.  All None but `value` (infinite) if there is none.
    """

    value: float
    nodes: Floats
    classes: Floats
    multipliers: Floats
    reduced: Floats


@dataclass(frozen=True, eq=False)
class Landmark:
    """A cut: classes inside, top, nodes of D(S)."""

    top: int
    inside: Ints
    nodes: Ints


class Relaxation:
    """One HiGHS instance; rows are added, bounds change from node to node of the tree."""

    def __init__(self, problem: Reduced) -> None:
        self.problem = problem
        self.size = len(problem.classes)
        largest = max(map(abs, problem.units), default=0) // problem.step
        small = largest <= 10**6
        self.unit: float = float(problem.step) if small else float(max(map(abs, problem.units))) / LARGEST
        """Units of the e-graph in one unit of the relaxation."""
        self.exact = small
        self.cost = np.array([u / problem.step if small else u / self.unit for u in problem.units], dtype=np.float64)
        self.cuts: list[Landmark] = []
        self.impossible = False
        self.children: list[tuple[int, int]] = []
        self.parents: list[int] = []
        self._highs = silent_solver()
        for name, value in (("threads", 1), ("dual_feasibility_tolerance", 1e-9)):
            self._highs.setOptionValue(name, value)
        self._load()

    @property
    def first_cut(self) -> int:
        """Number of the row of the first cut."""
        return self.size + len(self.children) + len(self.parents)

    def _load(self) -> None:
        p, classes, nodes = self.problem, self.size, len(self.problem.nodes)
        starts, index, value = [0], [], []
        lower: list[float] = []
        upper: list[float] = []

        def row(columns: list[int], values: list[float], low: float, high: float) -> None:
            index.extend(columns)
            value.extend(values)
            starts.append(len(index))
            lower.append(low)
            upper.append(high)

        for c in range(classes):
            members = [classes + int(n) for n in p.members_of(c)]
            row([c, *members], [-1.0] + [1.0] * len(members), 0.0, 0.0)
        for c in range(classes):
            users: dict[int, list[int]] = {}
            for n in p.members_of(c):
                for d in p.kids_of(int(n)):
                    users.setdefault(int(d), []).append(classes + int(n))
            for d, found in users.items():
                self.children.append((c, d))
                row([d, *found], [1.0] + [-1.0] * len(found), 0.0, INFINITE)
        if p.egraph.has_negative_cost:
            roots = set(p.roots.tolist())
            for d in range(classes):
                if d not in roots:
                    found = [classes + int(n) for n in p.parents[1][p.parents[0][d] : p.parents[0][d + 1]]]
                    self.parents.append(d)
                    row([d, *found], [-1.0] + [1.0] * len(found), 0.0, INFINITE)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = classes + nodes, len(lower)
        lp.col_cost_ = np.concatenate([np.zeros(classes), self.cost])
        lp.col_lower_, lp.col_upper_ = np.zeros(classes + nodes), np.ones(classes + nodes)
        lp.row_lower_, lp.row_upper_ = np.array(lower), np.array(upper)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(starts)
        lp.a_matrix_.index_ = np.array(index)
        lp.a_matrix_.value_ = np.array(value)
        self._highs.passModel(lp)

    def restrict(self, allowed: Flags, needed: Flags) -> None:
        """Bounds of a case."""
        columns = np.arange(self.size + len(allowed), dtype=np.int32)
        lower = np.concatenate([needed.astype(float), np.zeros(len(allowed))])
        upper = np.concatenate([np.ones(self.size), allowed.astype(float)])
        self._highs.changeColsBounds(len(columns), columns, lower, upper)

    def add(self, cuts: list[Landmark]) -> None:
        """Rows of cuts."""
        for cut in cuts:
            row = dict.fromkeys((self.size + cut.nodes).tolist(), 1.0)
            row[cut.top] = -1.0
            columns = np.fromiter(row, dtype=np.int32, count=len(row))
            self._highs.addRow(0.0, INFINITE, len(row), columns, np.fromiter(row.values(), dtype=np.float64))
            self.cuts.append(cut)

    def basis(self) -> highspy.HighsBasis:
        """The basis of the last solution."""
        found: highspy.HighsBasis = self._highs.getBasis()
        return found

    def start_from(self, basis: highspy.HighsBasis) -> None:
        """The basis that the next solution starts from; rows that it does not know are basic."""
        missing = self.first_cut + len(self.cuts) - len(basis.row_status)
        if missing > 0:
            basis.row_status = [*basis.row_status, *[highspy.HighsBasisStatus.kBasic] * missing]
        self._highs.setBasis(basis)

    def solve(self, clock: Clock, iterations: int | None = None) -> Point | None:
        """The optimum of the relaxation; None if there is none, or the limits were too short.  `impossible` tells
        which.
        """
        given, each = clock.allowance(), 1 + (self.size + len(self.problem.nodes)) // COLUMNS
        if given.seconds is not None:
            self._highs.setOptionValue("time_limit", self._highs.getRunTime() + max(0.01, given.seconds))
        most = 2**31 - 1 if given.steps is None else min(2**31 - 1, given.steps // each + 1)
        within = most if iterations is None else min(iterations, most)
        self._highs.setOptionValue("simplex_iteration_limit", within)
        status = run_alone(self._highs)
        clock.charge(each * max(1, self._highs.getInfo().simplex_iteration_count))
        self.impossible = status in (
            highspy.HighsModelStatus.kInfeasible,
            highspy.HighsModelStatus.kUnboundedOrInfeasible,
        )
        limited = iterations is not None and within == iterations and status == highspy.HighsModelStatus.kIterationLimit
        if status != highspy.HighsModelStatus.kOptimal and not limited:
            return None
        found = self._highs.getSolution()
        columns = np.array(found.col_value)
        return Point(
            self._highs.getInfo().objective_function_value,
            np.clip(columns[self.size :], 0, 1),
            np.clip(columns[: self.size], 0, 1),
            np.array(found.row_dual),
            np.array(found.col_dual)[self.size :],
        )

    def ray(self) -> Floats | None:
        """Multipliers that show that the last case has no solution, if HiGHS has them."""
        _, there, found = self._highs.getDualRay()
        values = np.array(found, dtype=np.float64)
        return values if there and len(values) == self.first_cut + len(self.cuts) and np.abs(values).max() > 0 else None

    def transpose_solve(self, right: Floats) -> Floats:
        """The solution z of (basis)^T z = right; `right` follows the order of basic variables."""
        return np.array(self._highs.getBasisTransposeSolve(right)[1], dtype=np.float64)

    def basic_variables(self) -> Ints:
        """Basic variables in the order of the basis matrix: columns, and -1 - row for rows."""
        return np.array(self._highs.getBasicVariables()[1], dtype=np.int64)

    def propose(self, clock: Clock, start: Ints | None) -> Floats | None:
        """x of the best integral point that HiGHS finds with the cuts there are; it may have circles.

        `start`: nodes of an extraction to start from.
        """
        columns = self.size + len(self.problem.nodes)
        other = silent_solver()
        given = clock.allowance()
        for name, value in (("threads", 1), ("mip_rel_gap", 0.0)):
            other.setOptionValue(name, value)
        if given.seconds is not None:
            other.setOptionValue("time_limit", max(0.1, given.seconds))
        if given.nodes is not None:
            other.setOptionValue("mip_max_nodes", given.nodes)
            clock.charge(given.steps or 0)
        other.passModel(self._highs.getLp())
        kinds = np.full(columns, int(highspy.HighsVarType.kInteger), dtype=np.uint8)
        other.changeColsIntegrality(columns, np.arange(columns, dtype=np.int32), kinds)
        if start is not None:
            known = highspy.HighsSolution()
            values = np.zeros(columns)
            values[self.problem.owner[start]] = values[self.size + start] = 1.0
            known.col_value = values.tolist()
            other.setSolution(known)
        run_alone(other)
        if other.getInfo().primal_solution_status != 2:
            return None
        return np.array(other.getSolution().col_value)[self.size :]
