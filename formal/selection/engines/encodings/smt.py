"""Writes selection as pseudo-Boolean optimisation, for z3.

Boolean variables   x[v,a]: vertex v takes choice a;    r[e,k], s[e,l]: edge e sits at row k, at column l of its table.

    (P1) one choice per vertex:   at least and at most one x[v,a]                                                   ->
         one_choice()
    (P2) rows and columns:        r[e,k] = or of the x[u,a] with row_e(a) = k;  s alike, once per vertex and map     ->
         ends()
    (P3) forbidden entries:       r[e,k] -> or of the s[e,l] with T_e[k,l] allowed, and the other way round          ->
         edges()
    (P4) resource rows:           sum amount[a] x[v,a] <= limit, the least amount of every vertex taken out          ->
         resource_rows()
    soft clauses                  not x[v,a]                 weight c_v[a] - min c_v                                 ->
                                  one_choice()
                                  not y[e,k,l]               weight T_e[k,l] - min T_e,  r[e,k] and s[e,l] -> y[e,k,l]
                                  -> edges()

What is violated weighs what the choices cost above the sum of the minima, so the cheapest violation is the cheapest
solution.  z3 finds it by its core-guided search: quick where few clauses have to be violated, which is what costs
shifted by messages look like (`engines/consult.py`).  Weights are unbounded integers, fine parts of costs included:
nothing is rounded.  Soft constraints are literals: for soft clauses of two literals z3 5.4.1 calls a dearer solution
optimal (seed 47 of `tests/test_engines_agree.py`, whatever its options).

The program is handed over as SMT-LIB text: calls from Python, one per term, took 72 s for 217,000 parts, the text takes
6.
Source: Narodytska, Bacchus, "Maximum satisfiability using core-guided MaxSAT resolution", AAAI 2014; Bjorner, Phan,
Fleckenstein, "nuZ", TACAS 2015.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from .....models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem
from ...model.clock import ANY, Allowance
from . import Reply, all_events, row_terms

Names = dict[int, str]
"""Row, column or choice -> its variable."""


def size_of(problem: SelectionProblem) -> int:
    """Parts of the encoding: choices, and table entries that are allowed."""
    return sum(v.cost.size for v in problem.vertices) + sum(
        int(np.count_nonzero(problem.tables[e.table] < FORBIDDEN)) for e in problem.edges
    )


def solve_smt(problem: SelectionProblem, given: Allowance = ANY, events: Sequence[int] | None = None) -> Reply:
    """Ask z3 within what is `given`; `events`: the resource rows to state (None: all).  Raises `ModuleNotFoundError`
    when z3 is not installed.
    """
    import z3

    started = time.monotonic()
    text = program(problem, all_events(problem) if events is None else events)
    if text is None:
        return Reply(None, "unsat: a vertex or an edge has only forbidden entries", True)
    optimize = z3.Optimize(ctx=z3.Context())
    optimize.from_string(text)
    if given.seconds is not None:
        left = given.seconds - (time.monotonic() - started)
        if left <= 0:
            return Reply(None, "time is over")
        optimize.set("timeout", max(1, int(left * 1000)))
    if given.resources is not None:
        if given.resources <= 0:
            return Reply(None, "its work is done")
        optimize.set("rlimit", given.resources)
    said = optimize.check()
    if said == z3.unsat:
        return Reply(None, "unsat", True)
    if said != z3.sat:
        return Reply(None, f"unknown ({optimize.reason_unknown()})")
    model = optimize.model()
    true = {d.name() for d in model if z3.is_true(model[d])}
    return Reply(
        tuple(next((a for a in range(v.cost.size) if _x(i, a) in true), 0) for i, v in enumerate(problem.vertices)),
        "sat, nothing cheaper",
        True,
    )


def program(problem: SelectionProblem, events: Sequence[int]) -> str | None:
    """The SMT-LIB text; None when a vertex or an edge has only forbidden entries."""
    lines: list[str] = []
    xs = one_choice(problem, lines)
    if xs is None or not edges(problem, xs, lines):
        return None
    for t in events:
        resource_row(problem, t, xs, lines)
    return "\n".join(lines)


def one_choice(problem: SelectionProblem, lines: list[str]) -> list[Names] | None:
    """(P1) and the soft clauses of choices: the x[v,a] of allowed choices."""
    fine = problem.fine_parts()
    out: list[Names] = []
    for v, vertex in enumerate(problem.vertices):
        allowed = np.flatnonzero(vertex.cost < FORBIDDEN).tolist()
        if not allowed:
            return None
        names = {a: _x(v, a) for a in allowed}
        one_of(lines, list(names.values()))
        costs = {a: _exact(vertex.cost[a], fine[v][a] if fine else 0, problem.fine_bits) for a in allowed}
        least = min(costs.values())
        lines += [f"(assert-soft (not {names[a]}) :weight {cost - least})" for a, cost in costs.items() if cost > least]
        out.append(names)
    return out


def one_of(lines: list[str], names: list[str]) -> None:
    """Exactly one of these Booleans."""
    lines += [f"(declare-const {name} Bool)" for name in names]
    _any(lines, names)
    if len(names) > 1:
        lines.append(f"(assert ((_ at-most 1) {' '.join(names)}))")


def ends(problem: SelectionProblem, xs: list[Names], lines: list[str]) -> list[tuple[Names, Names]]:
    """(P2): the variables of rows and columns of every edge; edges that map a vertex alike share them."""
    known: dict[tuple[int, bytes], Names] = {}

    def end(v: int, index: Ints | None) -> Names:
        if index is None:
            return xs[v]
        key = v, index.tobytes()
        if key not in known:
            groups: dict[int, list[str]] = {}
            for a, name in xs[v].items():
                groups.setdefault(int(index[a]), []).append(name)
            known[key] = {}
            for k, group in groups.items():
                if len(group) == 1:
                    known[key][k] = group[0]
                    continue
                name = known[key][k] = f"r{len(known)}_{k}"
                lines.extend((f"(declare-const {name} Bool)", f"(assert (= {name} (or {' '.join(group)})))"))
        return known[key]

    return [(end(e.u, e.rows), end(e.v, e.cols)) for e in problem.edges]


def edges(problem: SelectionProblem, xs: list[Names], lines: list[str]) -> bool:
    """(P3) and the soft clauses of table entries; False when an edge has only forbidden entries."""
    fine = problem.fine_parts()
    for n, (e, (rows, cols)) in enumerate(zip(problem.edges, ends(problem, xs, lines), strict=True)):
        at = np.ix_(list(rows), list(cols))
        table = problem.tables[e.table][at]
        allowed = table < FORBIDDEN
        if not allowed.any():
            return False
        names = list(rows.values()), list(cols.values())
        for i in np.flatnonzero(~allowed.all(axis=1)).tolist():
            _any(lines, [f"(not {names[0][i]})", *(names[1][j] for j in np.flatnonzero(allowed[i]).tolist())])
        for j in np.flatnonzero(~allowed.all(axis=0)).tolist():
            _any(lines, [f"(not {names[1][j]})", *(names[0][i] for i in np.flatnonzero(allowed[:, j]).tolist())])
        digits = fine[len(problem.vertices) + e.table][at] if fine else np.zeros_like(table)
        entries = [
            (i, j, _exact(table[i, j], digits[i, j], problem.fine_bits)) for i, j in np.argwhere(allowed).tolist()
        ]
        least = min(cost for _, _, cost in entries)
        for i, j, cost in entries:
            if cost > least:
                lines.append(f"(declare-const y{n}_{i}_{j} Bool)")
                _any(lines, [f"y{n}_{i}_{j}", f"(not {names[0][i]})", f"(not {names[1][j]})"])
                lines.append(f"(assert-soft (not y{n}_{i}_{j}) :weight {cost - least})")
    return True


def resource_row(problem: SelectionProblem, event: int, xs: list[Names], lines: list[str]) -> None:
    """(P4) at one step."""
    amounts, left = row_terms(problem, event)
    terms = [
        (int(n), xs[v][a]) for v, amount in amounts.items() for a, n in enumerate(amount.tolist()) if n and a in xs[v]
    ]
    if left < 0:
        lines.append("(assert false)")
    elif terms:
        lines.append(
            f"(assert ((_ pble {left} {' '.join(str(n) for n, _ in terms)}) {' '.join(name for _, name in terms)}))"
        )


def _x(v: int, a: int) -> str:
    return f"x{v}_{a}"


def _exact(coarse: np.int64, fine: np.unsignedinteger | int, bits: int) -> int:
    return (int(coarse) << bits) + int(fine)


def _any(lines: list[str], names: list[str]) -> None:
    lines.append(f"(assert (or {' '.join(names)}))")
