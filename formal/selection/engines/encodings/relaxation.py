"""Solves the linear relaxation of the integer program (`ilp.py`) in HiGHS and reads messages off its duals.

The program without integrality, with a slack s_t >= 0 per resource row, and costs shifted by messages m and multipliers
n (integers in units of 1/Q, at first all zero):

    minimise    sum theta_v(a) x[v,a] + sum bracket_e(r,c) y[e,r,c] + sum n_t s_t
    (F1)        sum_a x[v,a] = 1
    (F2)        sum_c y[e,r,c] - sum_{a: row_e(a) = r} x[u,a] = 0,    columns alike                      dual  d_e(r)
    (F3)        sum amount[a] x[v,a] + s_t = limit                                                       dual -k_t

It is the same program for all m and n: what the shift adds is zero by (F2) and (F3).  A dual solution has
theta + sum d + sum k amount >= its (F1) dual, bracket - d - d >= 0 and n + k >= 0, so m + d and n + k are messages and
multipliers whose bound (`proofs/selection/certificates.py`) is the value of the program.  They are rounded to integers;
whatever HiGHS says, they bound the problem, by what an exact sum says they do.

Doubles hold seven digits of it at a time.  The next ones come from the program shifted by what was found, where only
the error is left: iterative refinement.  A domain of a vertex that is cut sets the bounds of its x to zero, and the
basis is kept.  A program without solution gives a ray: its duals, times as much as fits, bound by more than is asked.
Source: Gleixner, Steffy, Wolter, "Iterative refinement for linear programming", INFORMS J. Computing 2016; Werner,
TPAMI 2007 (duals of the relaxation are reparametrisations).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .....models.problem.selection_problem import Ints, SelectionProblem
from .....proofs.selection.certificates import Dual
from ....highs import run_alone, silent_solver
from ...model.clock import Clock
from ...model.factored import INFINITE, Base, Domains
from . import all_events, row_terms

Floats = NDArray[np.float64]

LARGEST: Final = 1 << 20
"""Costs are divided so that none is larger: tolerances of HiGHS are absolute."""

MESSAGES: Final = 1 << 57
"""Messages of a vertex add up to less than this, so that int64 sums cannot wrap."""

PIVOTS: Final = 20
"""Steps of work of an iteration of the simplex method, beside those for the columns that it reads."""

UNBOUNDED: Final = 1e30


@dataclass(frozen=True, eq=False)
class Found:
    """What HiGHS said of one program: its status word; `dual`: messages and multipliers with its duals added (None: it
    named none); `value`: of the program above that of the messages before, in units of 1/Q (infinite: no solution);
    `x[v]`: of the choices of v, None where it named none.
    """

    says: str
    dual: Dual | None
    value: float
    x: tuple[Floats, ...] | None


@dataclass(frozen=True, eq=False)
class _Edge:
    """Columns of y of an edge: entries (`row`, `col`), from column `first` on; rows of (F2) of its table rows."""

    first: int
    row: Ints
    col: Ints
    rows: Ints
    cols: Ints
    row_at: int
    col_at: int


class Relaxation:
    """One HiGHS instance with the program of a problem.

    >>> from .....models.problem.selection_problem import Edge, Vertex
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))),
    ...                      (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> lp = Relaxation(p, Base(p))
    >>> found = lp.solve((np.arange(2), np.arange(2)), lp.nothing(), Clock())
    >>> found.says, found.value
    ('Optimal', 1.0)
    """

    def __init__(self, problem: SelectionProblem, base: Base) -> None:
        self.problem, self.base = problem, base
        self.choices = [np.flatnonzero(c < INFINITE) for c in base.unary]
        starts = np.concatenate(([0], np.cumsum([c.size for c in self.choices], dtype=np.int64)))
        self.first_x: list[int] = starts.tolist()
        degrees = np.zeros(len(problem.vertices) + 1, dtype=np.int64)
        for e in problem.edges:
            degrees[[e.u, e.v]] += 1
        self.largest_message = MESSAGES // (2 + int(degrees.max()))
        amounts = max((int(u.amount.max()) for u in problem.usages), default=0)
        self.largest_multiplier = MESSAGES // max(1, amounts * len(problem.usages) * max(1, len(all_events(problem))))
        self.edges: list[_Edge] = []
        self.rows: list[tuple[int, int]] = []
        """Resource rows: step, and the amount that its coefficients are divided by."""
        self._highs = silent_solver()
        for name, value in (
            ("threads", 1),
            ("dual_feasibility_tolerance", 1e-9),
            ("primal_feasibility_tolerance", 1e-9),
        ):
            self._highs.setOptionValue(name, value)
        self._load()

    def nothing(self) -> Dual:
        """Messages that are all zero, in units of 1/Q."""
        zeros = {n: np.zeros(n, dtype=np.int64) for t in self.problem.tables for n in t.shape}
        shapes = [self.problem.tables[e.table].shape for e in self.problem.edges]
        return Dual(tuple(zeros[r] for r, _ in shapes), tuple(zeros[c] for _, c in shapes), self.base.denominator)

    def _load(self) -> None:
        problem = self.problem
        row_of: list[Ints] = []
        column_of: list[Ints] = []
        value_of: list[Floats] = []

        def add_entries(rows: Ints, columns: Ints, value: float) -> None:
            row_of.append(rows)
            column_of.append(columns)
            value_of.append(np.full(rows.size, value))

        for v, choices in enumerate(self.choices):
            add_entries(np.full(choices.size, v), self.first_x[v] + np.arange(choices.size), 1.0)
        column, row = self.first_x[-1], len(problem.vertices)
        for e in problem.edges:
            ends = []
            for v, index in ((e.u, e.rows), (e.v, e.cols)):
                at = self.choices[v] if index is None else index[self.choices[v]]
                ends.append((v, *np.unique(at, return_inverse=True)))
            (u, rows, row_at), (v, cols, col_at) = ends
            i, j = np.nonzero(self.base.tables[e.table][np.ix_(rows, cols)] < INFINITE)
            made = _Edge(column, rows[i], cols[j], rows, cols, row, row + rows.size)
            add_entries(made.row_at + row_at, self.first_x[u] + np.arange(row_at.size), -1.0)
            add_entries(made.col_at + col_at, self.first_x[v] + np.arange(col_at.size), -1.0)
            add_entries(made.row_at + i, column + np.arange(i.size), 1.0)
            add_entries(made.col_at + j, column + np.arange(j.size), 1.0)
            self.edges.append(made)
            column, row = column + i.size, row + rows.size + cols.size
        self.first_slack = column
        self.first_row = row
        right: list[float] = []
        for t in all_events(problem):
            amounts, left = row_terms(problem, t)
            largest = max((int(a.max()) for a in amounts.values()), default=1)
            self.rows.append((t, largest))
            right.append(left / largest)
            for v, amount in amounts.items():
                used = amount[self.choices[v]]
                some = np.flatnonzero(used)
                row_of.append(np.full(some.size, row))
                column_of.append(self.first_x[v] + some)
                value_of.append(used[some] / largest)
            add_entries(np.array([row]), np.array([column]), 1.0)
            column, row = column + 1, row + 1
        self.columns = column
        rows_, columns_ = np.concatenate([*row_of, []]).astype(np.int64), np.concatenate([*column_of, []])
        order = np.lexsort((rows_, columns_))
        bounds = np.concatenate(
            (np.ones(len(problem.vertices)), np.zeros(self.first_row - len(problem.vertices)), right)
        )
        self._pass_model(rows_[order], columns_[order], np.concatenate([*value_of, []])[order], bounds)

    def _pass_model(self, rows: Ints, columns: Ints, values: Floats, right: Floats) -> None:
        """Entries in the order of their columns, and what every row equals."""
        import highspy

        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = self.columns, right.size
        lp.col_cost_ = np.zeros(self.columns)
        lp.col_lower_, lp.col_upper_ = np.zeros(self.columns), np.full(self.columns, UNBOUNDED)
        lp.row_lower_ = lp.row_upper_ = right
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = np.searchsorted(columns, np.arange(self.columns + 1)).astype(np.int32)
        lp.a_matrix_.index_ = rows.astype(np.int32)
        lp.a_matrix_.value_ = values
        self._highs.passModel(lp)

    def solve(self, domains: Domains, dual: Dual, clock: Clock, cap: int | None = None) -> Found:
        """The program on `domains`, shifted by `dual`; costs above `cap` (in units of 1/Q) count as that."""
        costs = self._costs(domains, dual)
        if costs is None:
            return Found("a vertex or an edge has only forbidden entries", None, float("inf"), None)
        if cap is not None:
            costs = np.minimum(costs, float(cap))
        divisor = 1.0
        while costs.max(initial=0.0) / divisor > LARGEST:
            divisor *= 2
        upper = np.full(self.columns, UNBOUNDED)
        for v, choices in enumerate(self.choices):
            if domains[v].size < choices.size:
                upper[self.first_x[v] : self.first_x[v + 1]][~np.isin(choices, domains[v], assume_unique=True)] = 0.0
        h, every = self._highs, np.arange(self.columns, dtype=np.int32)
        h.changeColsCost(self.columns, every, costs / divisor)
        h.changeColsBounds(self.columns, every, np.zeros(self.columns), upper)
        given = clock.allowance()
        h.setOptionValue(
            "time_limit", UNBOUNDED if given.seconds is None else h.getRunTime() + max(0.01, given.seconds)
        )
        each = PIVOTS + self.columns // 1000
        h.setOptionValue("simplex_iteration_limit", (1 << 31) - 1 if given.steps is None else 1 + given.steps // each)
        status = run_alone(h)
        info = h.getInfo()
        clock.charge(each * (1 + max(0, int(info.simplex_iteration_count))))
        says = h.modelStatusToString(status)
        if says == "Infeasible":
            return Found(says, self._ray(dual, divisor), float("inf"), None)
        solution = h.getSolution()
        duals = np.array(solution.row_dual, dtype=np.float64)
        if duals.size != h.getNumRow() or not np.isfinite(duals).all():
            return Found(says, None, 0.0, None)
        values = np.array(solution.col_value, dtype=np.float64)
        x = tuple(values[a:b] for a, b in zip(self.first_x, self.first_x[1:], strict=False))
        value = float(info.objective_function_value) * divisor
        return Found(says, self.add_duals(dual, duals * divisor), value if says == "Optimal" else 0.0, x)

    def _ray(self, dual: Dual, divisor: float) -> Dual | None:
        """`dual` with a ray of the duals, as long as integers of messages allow; None if HiGHS has none."""
        _, some, ray = self._highs.getDualRay()
        ray = np.array(ray, dtype=np.float64)
        if not some or not np.isfinite(ray).all():
            return None
        most = [float(self.largest_multiplier) * largest for _, largest in self.rows]
        room = np.concatenate((np.full(self.first_row, self.largest_message, dtype=np.float64), most))
        used = float((np.abs(ray) / room)[len(self.problem.vertices) :].max(initial=0.0))
        return None if used == 0.0 else self.add_duals(dual, ray / (2 * used))

    def _costs(self, domains: Domains, dual: Dual) -> Floats | None:
        """Of every column, each group from its least one on; None if a vertex or an edge has none that is allowed."""
        out = np.zeros(self.columns)
        theta = [c[ids].copy() for c, ids in zip(self.base.unary, self.choices, strict=True)]
        n = dict(dual.multipliers)
        for u in self.problem.usages:
            weight = sum(k for t, k in n.items() if u.start <= t < u.end)
            if weight:
                theta[u.vertex] += weight * u.amount[self.choices[u.vertex]]
        for k, e in enumerate(self.problem.edges):
            for v, index, message in ((e.u, e.rows, dual.to_u[k]), (e.v, e.cols, dual.to_v[k])):
                ids = self.choices[v]
                theta[v] += message[ids if index is None else index[ids]]
        for v, cost in enumerate(theta):
            inside = np.isin(self.choices[v], domains[v], assume_unique=True)
            if not inside.any():
                return None
            out[self.first_x[v] : self.first_x[v + 1]] = np.where(inside, cost - int(cost[inside].min()), 0)
        for k, (e, at) in enumerate(zip(self.problem.edges, self.edges, strict=True)):
            cells = self.base.tables[e.table][at.row, at.col] - dual.to_u[k][at.row] - dual.to_v[k][at.col]
            reach = []
            for v, index, named in ((e.u, e.rows, at.row), (e.v, e.cols, at.col)):
                reach.append(np.isin(named, domains[v] if index is None else index[domains[v]]))
            inside = reach[0] & reach[1]
            if not inside.any():
                return None
            out[at.first : at.first + cells.size] = np.where(inside, cells - int(cells[inside].min()), 0)
        for k, (t, largest) in enumerate(self.rows):
            out[self.first_slack + k] = n.get(t, 0) * largest
        return out

    def add_duals(self, dual: Dual, duals: Floats) -> Dual:
        """`dual` with the duals of the rows, in units of 1/Q, added and rounded."""
        to_u: list[Ints] = []
        to_v: list[Ints] = []
        for k, at in enumerate(self.edges):
            for before, ids, start, out in (
                (dual.to_u[k], at.rows, at.row_at, to_u),
                (dual.to_v[k], at.cols, at.col_at, to_v),
            ):
                new = before.copy()
                new[ids] += self._whole(duals[start : start + ids.size])
                out.append(np.clip(new, -self.largest_message, self.largest_message))
        n = dict(dual.multipliers)
        for k, (t, largest) in enumerate(self.rows):
            more = -float(duals[self.first_row + k]) / largest
            n[t] = min(max(0, n.get(t, 0) + round(more)), self.largest_multiplier)
        pairs = tuple((t, k) for t, k in sorted(n.items()) if k > 0)
        return Dual(tuple(to_u), tuple(to_v), dual.denominator, pairs)

    def _whole(self, numbers: Floats) -> Ints:
        return np.rint(np.clip(numbers, -self.largest_message, self.largest_message)).astype(np.int64)
