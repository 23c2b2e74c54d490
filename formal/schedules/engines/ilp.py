"""Writes a shop as an integer linear program, for HiGHS (Manne 1960: disjunctive constraints).

    s(t) in [head(t), H - tail(t) - time(t)]  start of task t,      C  makespan,      H  a makespan that is possible
    y(a, b) in {0, 1}   for every open pair: 1 if a is before b

    minimise C,   C >= s(t) + time(t) + tail(t),   s(b) >= s(a) + time(a) + lag    for every link
    s(b) >= s(a) + time(a) - H (1 - y),   s(a) >= s(b) + time(b) - H y             for every open pair
    memory, for every task t that takes some:   sum over holdings  amount (p + q - 1) <= limit
        p = 0  ->  s(first) >= s(t) + 1 (it has not begun),     q = 0  ->  s(t) >= s(l) + time(l) for all its last tasks

Floats say only which of the two holds: the starts handed over are the least integers that obey all these differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...highs import run_alone, silent_solver
from ...selection.model.clock import Allowance
from .question import Question, Reply

INFINITE = 1e30


@dataclass(eq=False)
class Program:
    """Columns (cost 0 but for C, bounds, whether whole) and rows  sum coefficient * column >= least."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    rows: list[tuple[float, dict[int, float]]] = field(default_factory=list)

    def column(self, lower: float, upper: float, whole: bool = False) -> int:
        """A new column."""
        if whole:
            self.whole.append(len(self.lower))
        self.lower.append(lower)
        self.upper.append(upper)
        return len(self.lower) - 1


def solve_ilp(asked: Question, given: Allowance, threads: int) -> Reply:
    """Ask HiGHS within what is `given`; `Allowance.nodes` of its tree."""
    n, most = len(asked.times), asked.most
    program = Program()
    for t, time in enumerate(asked.times):
        program.column(asked.head[t], most - asked.tail[t] - time)
    makespan = program.column(0, most)
    choices: list[tuple[int, int, int, int, int, int, int]] = []  # column, then links of 1 and of 0: (a, b, distance)
    for t, time in enumerate(asked.times):
        program.rows.append((time + asked.tail[t], {makespan: 1, t: -1}))
    for a, b, lag in asked.links:
        program.rows.append((asked.times[a] + lag, {b: 1, a: -1}))
    for a, b in asked.pairs:
        y = program.column(0, 1, True)
        program.rows.append((asked.times[a] - most, {b: 1, a: -1, y: -most}))
        program.rows.append((asked.times[b], {a: 1, b: -1, y: most}))
        choices.append((y, a, b, asked.times[a], b, a, asked.times[b]))
    ends = _memory(asked, program)
    values, says, bound = _run(program, makespan, given, threads)
    if values is None:
        return Reply(None, says, bound)
    links = list(asked.links)
    for y, a, b, first, c, d, second in choices:
        links.append((a, b, first - asked.times[a]) if values[y] > 0.5 else (c, d, second - asked.times[c]))
    for column, taken in ends:
        if values[column] < 0.5:
            links += taken
    starts = _least(asked.times, links, n)
    return Reply([round(v) for v in values[:n]] if starts is None else starts, says, bound)


def _memory(asked: Question, program: Program) -> list[tuple[int, list[tuple[int, int, int]]]]:
    """Rows of memory; per column the links (a, b, lag) that hold where it is 0."""
    ends: list[tuple[int, list[tuple[int, int, int]]]] = []
    most = asked.most
    for t, store in asked.takers:
        terms: dict[int, float] = {}
        limit = float(asked.limits[store])
        for h in asked.held:
            if h.store != store:
                continue
            limit += h.amount
            if h.first is None or h.first == t:
                limit -= h.amount
            else:
                p = program.column(0, 1, True)
                terms[p] = -h.amount
                program.rows.append((1, {h.first: 1, t: -1, p: most + 1}))
                ends.append((p, [(t, h.first, 1 - asked.times[t])]))
            if not h.last or t in h.last:
                limit -= h.amount
            else:
                q = program.column(0, 1, True)
                terms[q] = -h.amount
                program.rows += [(asked.times[last], {t: 1, last: -1, q: most}) for last in h.last]
                ends.append((q, [(last, t, 0) for last in h.last]))
        scale = max((-x for x in terms.values()), default=1.0)
        program.rows.append((-limit / scale, {k: x / scale for k, x in terms.items()}))
    return ends


def _run(program: Program, makespan: int, given: Allowance, threads: int) -> tuple[list[float] | None, str, int | None]:
    """Values of the columns (None: none were found), what HiGHS says, and the bound that it claims."""
    import highspy

    solver = silent_solver()
    count = len(program.lower)
    solver.addVars(count, np.array(program.lower, dtype=float), np.array(program.upper, dtype=float))
    solver.changeColCost(makespan, 1.0)
    whole = np.array(program.whole, dtype=np.int32)
    kinds = np.full(len(whole), highspy.HighsVarType.kInteger)
    if len(whole):
        solver.changeColsIntegrality(len(whole), whole, kinds)
    for least, terms in program.rows:
        index = np.array(list(terms), dtype=np.int32)
        solver.addRow(float(least), INFINITE, len(index), index, np.array(list(terms.values()), dtype=float))
    if given.seconds is not None:
        solver.setOptionValue("time_limit", given.seconds)
    if given.nodes is not None:
        solver.setOptionValue("mip_max_nodes", given.nodes)
    solver.setOptionValue("threads", threads)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 0.999)
    status = run_alone(solver)
    info = solver.getInfo()
    claimed = info.mip_dual_bound if len(whole) else info.objective_function_value
    bound = int(np.ceil(claimed - 1e-6)) if np.isfinite(claimed) and abs(claimed) < 1 << 60 else None
    says = str(solver.modelStatusToString(status))
    if info.primal_solution_status != 2:  # kSolutionStatusFeasible
        return None, says, bound
    return list(solver.getSolution().col_value), says, bound


def _least(times: tuple[int, ...], links: list[tuple[int, int, int]], n: int) -> list[int] | None:
    """The least starts that obey differences  s(b) >= s(a) + time(a) + lag;  None if they run in a circle."""
    starts = [0] * n
    for _ in range(n + 1):
        changed = False
        for a, b, lag in links:
            value = starts[a] + times[a] + lag
            if value > starts[b]:
                starts[b], changed = value, True
        if not changed:
            return starts
    return None
