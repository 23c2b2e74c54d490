"""Writes selection as an integer linear program, for PuLP with HiGHS.

Variables   x[v,a] in {0,1}: vertex v takes choice a;    y[e,r,c] >= 0: edge e sits at row r and column c of its table.
            Forbidden choices and entries have no variable.

    minimise    constant + sum_v sum_a c_v[a] x[v,a] + sum_e sum_{r,c} T_e[r,c] y[e,r,c]                   ->
                objective()
    (F1) one choice per vertex:       sum_a x[v,a] = 1                                                    ->
         one_choice()
    (F2) edge e follows its ends:     sum_c y[e,r,c] = sum_{a: row_e(a) = r} x[u,a]   for every row r
                                      sum_r y[e,r,c] = sum_{b: col_e(b) = c} x[v,b]   for every column c   ->
                                      edge_marginals()
    (F3) resource rows:               sum_{usages live at t} sum_a amount[a] x[v,a] <= limit, at chosen events t   ->
         resource_row()

With x integral, (F1) and (F2) leave y one unit at (row of x_u, column of x_v), so y may stay continuous.  Rows and
columns are those of the shared tables, not pairs of choices: the program is as factored as the problem.  Since (F1) and
(F2) make each group of variables sum to one, its least coefficient is taken out as a constant, which keeps the floats
     of the solver small.

Amounts of a row are divided by its largest one, the least of every vertex taken out: bytes of 10^10 would drown in the
tolerances.  The status word is not believed (PuLP says `Optimal` after a time-out; only its solution status tells); the
caller evaluates the choices exactly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from .....models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem
from ....highs import fresh_pool
from ...model.clock import ANY, Allowance
from . import Reply, all_events, row_terms

if TYPE_CHECKING:
    from pulp import LpAffineExpression, LpProblem, LpVariable

LARGEST_COEFFICIENT: Final = 1 << 20
"""Objectives with larger coefficients are divided: tolerances of HiGHS are absolute (10^-7), and with coefficients of
2^40 six vertices of three choices each were branched on without end."""

GAP: Final = 1e-6
"""Absolute gap of an answer that counts as the cheapest: sums of doubles of that size agree no better."""


@dataclass(eq=False)
class Program:
    """The program and its variables: `x[v][a]`, `y[e][row, column]`."""

    problem: SelectionProblem
    lp: LpProblem
    x: list[dict[int, LpVariable]] = field(default_factory=list)
    y: list[dict[tuple[int, int], LpVariable]] = field(default_factory=list)


def size_of(problem: SelectionProblem) -> int:
    """Number of variables of the program."""
    total = sum(v.cost.size for v in problem.vertices)
    return total + sum(int(np.count_nonzero(_cells(problem, e)[2] < FORBIDDEN)) for e in range(len(problem.edges)))


def solve_ilp(
    problem: SelectionProblem,
    given: Allowance = ANY,
    threads: int = 1,
    events: Sequence[int] | None = None,
) -> Reply:
    """Run HiGHS on `problem` within what is `given`; `events`: the resource rows to state (None: all).  Raises
    `ModuleNotFoundError` when PuLP or highspy is not installed.
    """
    import pulp

    started = time.monotonic()
    program = start(problem)
    if program is None:
        return Reply(None, "infeasible: a vertex or an edge has only forbidden entries", True)
    for t in all_events(problem) if events is None else events:
        resource_row(program, t)
    left = None if given.seconds is None else given.seconds - (time.monotonic() - started)
    if left is not None and left <= 0:
        return Reply(None, "time is over")
    nodes = {} if given.nodes is None else {"mip_max_nodes": given.nodes}
    solver = pulp.HiGHS(
        msg=False,
        timeLimit=left,
        gapRel=0.0,
        gapAbs=GAP,
        threads=threads,
        mip_feasibility_tolerance=1e-9,
        **nodes,
    )
    fresh_pool()  # PuLP would report the refusal as `Not Solved`
    program.lp.solve(solver)
    says = str(pulp.LpSolution[program.lp.sol_status])
    if program.lp.sol_status == pulp.LpSolutionInfeasible:
        return Reply(None, "infeasible", True)
    final = program.lp.sol_status == pulp.LpSolutionOptimal
    choice: list[int] = []
    for xs in program.x:
        values = {a: var.value() for a, var in xs.items()}
        if any(value is None for value in values.values()):
            return Reply(None, says, final)
        choice.append(max(values, key=lambda a: (float(values[a]), -a)))
    return Reply(tuple(choice), says, final)


def start(problem: SelectionProblem) -> Program | None:
    """The program without (F3); None when a vertex or an edge has only forbidden entries."""
    import pulp

    program = Program(problem, pulp.LpProblem("selection", pulp.LpMinimize))
    _variables(program)
    if any(not xs for xs in program.x) or any(not ys for ys in program.y):
        return None
    program.lp += objective(program)
    one_choice(program)
    edge_marginals(program)
    return program


def _cells(problem: SelectionProblem, e: int) -> tuple[Ints, Ints, Ints]:
    """Rows and columns of the table that edge `e` can reach, and the entries there."""
    edge = problem.edges[e]
    table = problem.tables[edge.table]
    rows = np.arange(table.shape[0]) if edge.rows is None else np.unique(edge.rows)
    cols = np.arange(table.shape[1]) if edge.cols is None else np.unique(edge.cols)
    return (
        rows,
        cols,
        table if rows.size == table.shape[0] and cols.size == table.shape[1] else table[np.ix_(rows, cols)],
    )


def _variables(program: Program) -> None:
    problem = program.problem
    new = program.lp.add_variable
    for v, vertex in enumerate(problem.vertices):
        program.x.append({a: new(f"x_{v}_{a}", cat="Binary") for a in np.flatnonzero(vertex.cost < FORBIDDEN).tolist()})
    for e in range(len(problem.edges)):
        rows, cols, cells = _cells(problem, e)
        where = ((int(rows[i]), int(cols[j])) for i, j in np.argwhere(cells < FORBIDDEN).tolist())
        program.y.append({(r, c): new(f"y_{e}_{r}_{c}", lowBound=0, upBound=1) for r, c in where})


def objective(program: Program) -> LpAffineExpression:
    """Costs, each group shifted to start at zero; divided by one power of two when the largest is too large for a
    float solver.
    """
    from pulp import LpAffineExpression

    problem = program.problem
    groups: list[list[tuple[LpVariable, int]]] = []
    for vertex, xs in zip(problem.vertices, program.x, strict=True):
        groups.append([(var, int(vertex.cost[a])) for a, var in xs.items()])
    for edge, ys in zip(problem.edges, program.y, strict=True):
        table = problem.tables[edge.table]
        groups.append([(var, int(table[at])) for at, var in ys.items()])
    least = [min(cost for _, cost in group) for group in groups]
    largest = max((cost - low for group, low in zip(groups, least, strict=True) for _, cost in group), default=0)
    divisor = 1
    while largest // divisor > LARGEST_COEFFICIENT:
        divisor *= 2
    terms = [
        (var, (cost - low) / divisor)
        for group, low in zip(groups, least, strict=True)
        for var, cost in group
        if cost != low
    ]
    return LpAffineExpression(terms)


def one_choice(program: Program) -> None:
    """(F1)."""
    from pulp import lpSum

    for v, xs in enumerate(program.x):
        program.lp += lpSum(xs.values()) == 1, f"one_{v}"


def edge_marginals(program: Program) -> None:
    """(F2)."""
    from pulp import lpSum

    for e, (edge, ys) in enumerate(zip(program.problem.edges, program.y, strict=True)):
        rows, cols, _ = _cells(program.problem, e)
        of_row: dict[int, list[LpVariable]] = {int(r): [] for r in rows}
        of_col: dict[int, list[LpVariable]] = {int(c): [] for c in cols}
        for (r, c), var in ys.items():
            of_row[r].append(var)
            of_col[c].append(var)
        for sums, end, index, name in ((of_row, edge.u, edge.rows, "row"), (of_col, edge.v, edge.cols, "col")):
            users: dict[int, list[LpVariable]] = {k: [] for k in sums}
            for a, var in program.x[end].items():
                users[a if index is None else int(index[a])].append(var)
            for k, group in sums.items():
                program.lp += lpSum(group) == lpSum(users[k]), f"{name}_{e}_{k}"


def resource_row(program: Program, event: int) -> None:
    """(F3) at one step."""
    from pulp import LpAffineExpression

    amounts, left = row_terms(program.problem, event)
    largest = max((int(a.max()) for a in amounts.values()), default=0)
    if left < 0:  # no choice fits: a row that says so
        program.lp += LpAffineExpression() <= -1.0, f"step_{event}"
    elif amounts:
        terms = [
            (program.x[v][a], n / largest)
            for v, amount in amounts.items()
            for a, n in enumerate(amount.tolist())
            if n and a in program.x[v]
        ]
        program.lp += LpAffineExpression(terms) <= left / largest, f"step_{event}"
