"""Finds all placements of axes over a hierarchy, three ways.

    unknowns   e_q[i][j] >= 0, the exponent of prime q in entry (i, j)
    (P1)  for all i, q:  sum_j e_q[i][j] = v_q(p_i)         (products become sums)         -> _exponent_sums()
    (P2)  for all j, q:  sum_i e_q[i][j] = v_q(h_j)
    (P3)  SMT: for every matrix found so far, some e differs                            -> smt_matrices()
    (P4)  ILP: binaries y[q, i, j, k] = (e_q[i][j] = k), one per (q, i, j);  for every matrix found so far not all its y
         -> ilp_matrices()

`enumerate_matrices` needs neither: every prime is a transportation problem of its own; its solutions are listed by
recursion over rows and combined by products.  All three give the same list, in lexicographic order.

Source: P2 (MLSys 2022) section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import assert_never

from ...models.collective_programs.parallelism import Matrix, ParallelismError, PlacementProblem, factors
from ..highs import without_banner
from .asked import Engine, EngineAnswer

MAX_MATRICES = 100_000


def enumerate_matrices(problem: PlacementProblem) -> tuple[Matrix, ...]:
    """All placements, lexicographic.  `ParallelismError` if there is none, or more than `MAX_MATRICES`.

    >>> enumerate_matrices(PlacementProblem((2, 16), (8, 4)))
    (((1, 8), (2, 2)), ((2, 4), (1, 4)))
    """
    problem.check()
    per_prime = []
    total = 1
    for q, rows, columns in _exponent_sums(problem):
        tables = transportation(rows, columns)
        per_prime.append([[[q**e for e in row] for row in table] for table in tables])
        total *= len(tables)
        if total > MAX_MATRICES:
            raise ParallelismError(f"more than {MAX_MATRICES} placements; use fewer axes or levels")
    out = []
    for choice in product(*per_prime):
        matrix = [[1] * len(problem.hierarchy) for _ in problem.axes]
        for table in choice:
            matrix = [[a * b for a, b in zip(x, y, strict=True)] for x, y in zip(matrix, table, strict=True)]
        out.append(tuple(map(tuple, matrix)))
    return tuple(sorted(out))


def find_matrices(
    problem: PlacementProblem, engine: Engine = "native"
) -> tuple[tuple[Matrix, ...], EngineAnswer | None]:
    """All placements by the chosen engine, and what it was asked."""
    match engine:
        case "native":
            return enumerate_matrices(problem), None
        case "smt":
            return smt_matrices(problem)
        case "ilp":
            return ilp_matrices(problem)
        case _:
            assert_never(engine)


def transportation(rows: Sequence[int], columns: Sequence[int]) -> list[tuple[tuple[int, ...], ...]]:
    """Non-negative integer tables with these row and column sums.

    >>> len(transportation((1, 1, 2), (2, 2)))
    4
    """
    if not rows:
        return [()] if not any(columns) else []
    return [
        (first, *rest)
        for first in _bounded(rows[0], columns)
        for rest in transportation(rows[1:], [c - f for c, f in zip(columns, first, strict=True)])
    ]


def _bounded(total: int, limits: Sequence[int]) -> list[tuple[int, ...]]:
    if not limits:
        return [()] if total == 0 else []
    return [(v, *rest) for v in range(min(total, limits[0]) + 1) for rest in _bounded(total - v, limits[1:])]


def _exponent_sums(problem: PlacementProblem) -> list[tuple[int, list[int], list[int]]]:
    """(prime, row sums, column sums), primes ascending."""
    axes, levels = [factors(p) for p in problem.axes], [factors(h) for h in problem.hierarchy]
    primes = sorted({q for f in (*axes, *levels) for q in f})
    return [(q, [f.get(q, 0) for f in axes], [f.get(q, 0) for f in levels]) for q in primes]


def _matrix(problem: PlacementProblem, exponents: dict[tuple[int, int, int], int]) -> Matrix:
    matrix = [[1] * len(problem.hierarchy) for _ in problem.axes]
    for (q, i, j), e in exponents.items():
        matrix[i][j] *= q**e
    return tuple(map(tuple, matrix))


def smt_matrices(problem: PlacementProblem) -> tuple[tuple[Matrix, ...], EngineAnswer | None]:
    """All placements by z3 with blocking clauses (P3); the last answer, unsat, says that there is no other."""
    import z3

    problem.check()
    solver = z3.SolverFor("QF_LIA")
    unknowns: dict[tuple[int, int, int], z3.ArithRef] = {}
    for q, rows, columns in _exponent_sums(problem):
        for i in range(len(rows)):
            for j in range(len(columns)):
                unknowns[q, i, j] = z3.Int(f"e_{q}_{i}_{j}")
                solver.add(unknowns[q, i, j] >= 0)
        for i, r in enumerate(rows):
            solver.add(z3.Sum([unknowns[q, i, j] for j in range(len(columns))]) == r)
        for j, c in enumerate(columns):
            solver.add(z3.Sum([unknowns[q, i, j] for i in range(len(rows))]) == c)
    found = []
    while (answer := solver.check()) == z3.sat:
        model = solver.model()
        values = {key: model.eval(x, model_completion=True).as_long() for key, x in unknowns.items()}
        found.append(_matrix(problem, values))
        if len(found) > MAX_MATRICES:
            raise ParallelismError(f"more than {MAX_MATRICES} placements; use fewer axes or levels")
        solver.add(z3.Or([unknowns[key] != v for key, v in values.items()]))
    if answer != z3.unsat:
        raise ParallelismError(
            f"z3 could not say whether there are other placements than the {len(found)} found; use the native engine"
        )
    return tuple(sorted(found)), EngineAnswer(
        "smt", "placements", len(unknowns), len(found) + 1, str(answer), len(found)
    )


def ilp_matrices(problem: PlacementProblem) -> tuple[tuple[Matrix, ...], EngineAnswer | None]:
    """All placements by repeated integer programs with no-good cuts (P4)."""
    import pulp

    problem.check()
    model = pulp.LpProblem("placements", pulp.LpMinimize)
    model += 0
    y: dict[tuple[int, int, int, int], pulp.LpVariable] = {}
    for q, rows, columns in _exponent_sums(problem):
        for i, r in enumerate(rows):
            for j, c in enumerate(columns):
                for k in range(min(r, c) + 1):
                    y[q, i, j, k] = pulp.LpVariable(f"y_{q}_{i}_{j}_{k}", cat="Binary")
                model += pulp.lpSum(y[q, i, j, k] for k in range(min(r, c) + 1)) == 1
        for i, r in enumerate(rows):
            model += (
                pulp.lpSum(k * y[q, i, j, k] for j in range(len(columns)) for k in range(min(r, columns[j]) + 1)) == r
            )
        for j, c in enumerate(columns):
            model += pulp.lpSum(k * y[q, i, j, k] for i in range(len(rows)) for k in range(min(rows[i], c) + 1)) == c
    if not y:  # one device: no prime, no unknown
        return enumerate_matrices(problem), None
    solver = pulp.HiGHS(msg=False)
    found: list[Matrix] = []
    while True:
        with without_banner():
            model.solve(solver)
        if model.status == pulp.LpStatusInfeasible:
            says = str(pulp.LpStatus[model.status])
            return tuple(sorted(found)), EngineAnswer("ilp", "placements", len(y), len(found) + 1, says, len(found))
        if model.status != pulp.LpStatusOptimal:
            raise ParallelismError(
                f"HiGHS ended with {pulp.LpStatus[model.status]!r} after {len(found)} placements; use the native engine"
            )
        chosen = [key for key, variable in y.items() if round(variable.varValue) == 1]
        matrix = problem.require(_matrix(problem, {key[:3]: key[3] for key in chosen}))
        if matrix in found or len(found) > MAX_MATRICES:
            raise ParallelismError(f"HiGHS repeats placement {matrix}; use the native engine")
        found.append(matrix)
        model += pulp.lpSum(y[key] for key in chosen) <= len(chosen) - 1
