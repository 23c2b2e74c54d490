"""Selection as linear integer arithmetic, for z3.

Integer variables   X_v: choice of vertex v,    C_v: its cost,    R_e, S_e: row and column of edge e,    D_e: its cost.

    (F1) domains:            0 <= X_v < K_v,  X_v != a for forbidden a                                  -> choices()
    (F2) vertex costs:       X_v = a  ->  C_v = c_v[a]                                                  -> choices()
    (F3) rows and columns:   X_u = a  ->  R_e = row_e(a),   X_v = b  ->  S_e = col_e(b)                 -> edge_costs()
    (F4) edge costs:         R_e = r and S_e = c  ->  D_e = T_e[r, c],  false where forbidden           -> edge_costs()
    (F5) resource rows:      X_v = a  ->  U_k = amount_k[a],   sum of U_k live at t <= limit            -> resource_rows()
    objective                constant + sum_v C_v + sum_e D_e  <  cost of the last solution             -> solve_smt()

The last constraint is tightened until the solver says `unsat` or the time is over; every solution on the way counts.  Identity maps use
X itself for R or S.  z3's integers are unbounded: nothing is rounded.  `unsat` is a hint, the proof is made elsewhere.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ....models.problems import FORBIDDEN, SelectionProblem
from . import Reply

if TYPE_CHECKING:
    from z3 import ArithRef, Solver


def size_of(problem: SelectionProblem) -> int:
    """Number of implications of the encoding."""
    return sum(v.cost.size for v in problem.vertices) + sum(problem.tables[e.table].size for e in problem.edges)


def solve_smt(problem: SelectionProblem, time_limit_s: float | None = None, seed: int = 0) -> Reply:
    """Tighten the cost until unsatisfiable.  Raises `ModuleNotFoundError` when z3 is not installed."""
    import z3

    started = time.monotonic()
    solver = z3.SolverFor("QF_LIA")
    solver.set("random_seed", seed)
    xs, terms = choices(problem, solver)
    terms += edge_costs(problem, solver, xs)
    resource_rows(problem, solver, xs)
    total = z3.Sum([z3.IntVal(problem.constant), *terms])
    best: tuple[int, ...] | None = None
    while True:
        if time_limit_s is not None:
            left = time_limit_s - (time.monotonic() - started)
            if left <= 0:
                return Reply(best, "time is over")
            solver.set("timeout", max(1, int(left * 1000)))
        said = solver.check()
        if said != z3.sat:
            return Reply(best, str(said))
        model = solver.model()
        best = tuple(model.eval(x, model_completion=True).as_long() for x in xs)
        solver.add(total < model.eval(total, model_completion=True))


def choices(problem: SelectionProblem, solver: Solver) -> tuple[list[ArithRef], list[ArithRef]]:
    """(F1) and (F2): the X_v, and the C_v."""
    import z3

    xs: list[ArithRef] = []
    costs: list[ArithRef] = []
    for v, vertex in enumerate(problem.vertices):
        x, c = z3.Int(f"X_{v}"), z3.Int(f"C_{v}")
        allowed = [a for a in range(vertex.cost.size) if vertex.cost[a] < FORBIDDEN]
        solver.add(z3.Or([z3.And(x == a, c == int(vertex.cost[a])) for a in allowed]))
        xs.append(x)
        costs.append(c)
    return xs, costs


def edge_costs(problem: SelectionProblem, solver: Solver, xs: list[ArithRef]) -> list[ArithRef]:
    """(F3) and (F4): the D_e."""
    import z3

    costs: list[ArithRef] = []
    for e, edge in enumerate(problem.edges):
        table = problem.tables[edge.table]
        ends: list[ArithRef] = []
        used: list[list[int]] = []
        for name, vertex, index, size in (("R", edge.u, edge.rows, table.shape[0]), ("S", edge.v, edge.cols, table.shape[1])):
            if index is None:
                ends.append(xs[vertex])
                used.append(list(range(size)))
                continue
            end = z3.Int(f"{name}_{e}")
            solver.add(*(z3.Implies(xs[vertex] == a, end == int(k)) for a, k in enumerate(index)))
            ends.append(end)
            used.append(sorted({int(k) for k in index}))
        d = z3.Int(f"D_{e}")
        for r in used[0]:
            entries = [(c, int(table[r, c])) for c in used[1]]
            solver.add(z3.Implies(ends[0] == r, z3.Or([z3.And(ends[1] == c, d == t) for c, t in entries if t < FORBIDDEN])))
        costs.append(d)
    return costs


def resource_rows(problem: SelectionProblem, solver: Solver, xs: list[ArithRef]) -> None:
    """(F5)."""
    import z3

    if problem.limit is None:
        return
    amounts: list[ArithRef] = []
    for k, usage in enumerate(problem.usages):
        amount = z3.Int(f"U_{k}")
        solver.add(*(z3.Implies(xs[usage.vertex] == a, amount == int(n)) for a, n in enumerate(usage.amount)))
        amounts.append(amount)
    for t in problem.events():
        solver.add(z3.Sum([u for u, usage in zip(amounts, problem.usages, strict=True) if usage.start <= t < usage.end]) <= problem.limit)
