"""Writes selection as a constraint program over Booleans, for CP-SAT (OR-Tools).

Variables   x[v,a] in {0,1}: vertex v takes choice a;    y[e,r,c] in {0,1}: edge e sits at row r, column c of its table.

    (C1) one choice per vertex:       exactly one x[v,a]
    (C2) edge e follows its ends:     sum_c y[e,r,c] = sum_{a: row_e(a) = r} x[u,a]   for every row r, columns alike
    (C3) forbidden entries:           x[v,a] = 0,  y[e,r,c] = 0
    (C4) resource rows:               sum amount[a] x[v,a] <= limit, the least amount of every vertex taken out
    cost                              constant + sum_g (m_g + k_g),   k_v >= sum_a (c_v[a] - m_v) x[v,a],  edges alike

with m_g the least entry of a group g, a vertex or an edge.  CP-SAT counts in 63 bits and adds up all entries of a group
to be sure; costs may have more, fine parts included.  So they are written in digits of W bits, W as large as the number
of entries lets it be, and added with carries c:

    sum_g k_g,i + c_(i-1)  =  c_i 2^W + r_i,    0 <= r_i < 2^W,       the cost is (r_n, .., r_0), compared from the left

The cheapest solution is the least r_n, then with it the least r_(n-1), and so on: nothing is rounded.  Mostly there is
one digit, and no carry.  One worker and a fixed seed: equal problems get equal answers.

For proofs (`engines/cp_sat_cores.py`) all but (C1) and (C2) is `guarded`: it holds if a literal of its part does.
Source: Perron, Didier, Gay, "The CP-SAT-LP solver", CP 2023.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from .....models.problem.selection_problem import SelectionProblem
from ...model.clock import ANY, STEPS, Allowance
from . import Reply, all_events, ends_of, exact_costs, row_terms

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, IntVar, LinearExprT

BITS: Final = 60
"""Of a sum: CP-SAT refuses a model whose sums may leave 63 bits, and needs some room."""

SEED: Final = 1

Where = TypeVar("Where", int, tuple[int, int])
"""A choice of a vertex, or row and column of an edge."""


@dataclass(eq=False)
class Program:
    """The model: `x[v][a]` of choices that are stated; `digits` of the cost without `least`, the most significant
    first, each of `width` bits; `parts`: name -> literal and vertices of what is guarded.
    """

    model: CpModel
    width: int
    least: int
    x: list[dict[int, IntVar]] = field(default_factory=list)
    digits: list[IntVar] = field(default_factory=list)
    parts: dict[str, tuple[IntVar, tuple[int, ...]]] = field(default_factory=dict)

    def solution(self, solver: CpSolver) -> tuple[int, ...]:
        """The choices of the last solution; -1 where none is taken."""
        return tuple(next((a for a, x in names.items() if solver.boolean_value(x)), -1) for names in self.x)

    def cost_digits(self, cost: int) -> list[int]:
        """`cost` - `least` in digits; the first takes what is left over."""
        out, rest = [], cost - self.least
        for _ in self.digits[1:]:
            out.append(rest & ((1 << self.width) - 1))
            rest >>= self.width
        return [rest, *out[::-1]]


def size_of(problem: SelectionProblem) -> int:
    """Variables of the program: choices, and entries of the tables."""
    return sum(v.cost.size for v in problem.vertices) + sum(problem.tables[e.table].size for e in problem.edges)


def solve_cp_sat(problem: SelectionProblem, given: Allowance = ANY, events: Sequence[int] | None = None) -> Reply:
    """Ask CP-SAT within what is `given`; `events`: the resource rows to state (None: all).  Raises
    `ModuleNotFoundError` when OR-Tools is not installed.
    """
    from ortools.sat.python import cp_model

    until = None if given.seconds is None else time.monotonic() + given.seconds
    program = start(problem, all_events(problem) if events is None else events, guarded=False)
    left, found, status = given.steps, None, cp_model.UNKNOWN
    for digit in program.digits:
        seconds = None if until is None else until - time.monotonic()
        if seconds is not None and seconds <= 0:
            return Reply(found, "time is over")
        program.model.minimize(digit)
        solver = solver_within(Allowance(seconds, left))
        status = solver.solve(program.model)
        left = None if left is None else max(0, left - steps_of(solver))
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Reply(found, solver.status_name(status).lower(), status == cp_model.INFEASIBLE and found is None)
        found = program.solution(solver)
        if status == cp_model.FEASIBLE:
            break
        program.model.add(digit <= solver.value(digit))
    return Reply(found, solver.status_name(status).lower(), status == cp_model.OPTIMAL)


def solver_within(given: Allowance) -> CpSolver:
    """A solver that says the same again: one worker, one seed, limits as `given`."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    at = solver.parameters
    at.num_workers, at.random_seed, at.linearization_level = 1, SEED, 2
    if given.seconds is not None:
        at.max_time_in_seconds = max(0.0, given.seconds)
    if given.steps is not None:
        at.max_deterministic_time = given.steps / STEPS
    return solver


def steps_of(solver: CpSolver) -> int:
    """Steps of work that the last question took."""
    return max(1, int(solver.response_proto.deterministic_time * STEPS))


def start(problem: SelectionProblem, events: Sequence[int], guarded: bool) -> Program:
    """The program with the resource rows `events`."""
    from ortools.sat.python import cp_model

    choices, entries = exact_costs(problem)
    width = BITS - (1 + sum(map(len, choices)) + sum(map(len, entries))).bit_length()
    program = Program(cp_model.CpModel(), width, problem.constant << problem.fine_bits)
    model = program.model
    groups: list[tuple[IntVar | None, list[tuple[IntVar, int]]]] = []
    for v, vertex in enumerate(problem.vertices):
        names = {a: model.new_bool_var(f"x{v}_{a}") for a in range(vertex.cost.size)}
        model.add_exactly_one(names.values())
        program.x.append(names)
        groups.append(_group(program, f"v{v}", (v,), names, choices[v], guarded))
    for k, e in enumerate(problem.edges):
        groups.append(_group(program, f"e{k}", (e.u, e.v), _edge(program, problem, k), entries[k], guarded))
    _cost(program, groups, guarded)
    for t in events:
        amounts, left = row_terms(problem, t)
        used = [program.x[v][a] * int(n) for v, amount in amounts.items() for a, n in enumerate(amount) if n]
        row = model.add(_sum(used) <= left)
        if guarded:
            row.only_enforce_if(_literal(program, f"t{t}", tuple(amounts)))
    return program


def _edge(program: Program, problem: SelectionProblem, k: int) -> dict[tuple[int, int], IntVar]:
    """(C2) of edge `k`: its y by row and column."""
    e, model = problem.edges[k], program.model
    rows, cols = ends_of(problem, e.u, e.rows), ends_of(problem, e.v, e.cols)
    y = {(r, c): model.new_bool_var(f"y{k}_{r}_{c}") for r in rows for c in cols}
    for r, choices in rows.items():
        model.add(_sum(y[r, c] for c in cols) == _sum(program.x[e.u][a] for a in choices))
    for c, choices in cols.items():
        model.add(_sum(y[r, c] for r in rows) == _sum(program.x[e.v][a] for a in choices))
    return y


def _group(
    program: Program,
    name: str,
    vertices: tuple[int, ...],
    names: dict[Where, IntVar],
    costs: dict[Where, int],
    guarded: bool,
) -> tuple[IntVar | None, list[tuple[IntVar, int]]]:
    """(C3) of a vertex or an edge; its literal, and what its entries cost above the least."""
    literal = _literal(program, name, vertices) if guarded else None
    least = min(costs.values(), default=0)
    program.least += least
    for where, one in names.items():
        if where not in costs and literal is not None:
            program.model.add_implication(literal, ~one)
        elif where not in costs:
            program.model.add(one == 0)
    return literal, [(names[where], cost - least) for where, cost in costs.items() if cost > least]


def _literal(program: Program, name: str, vertices: tuple[int, ...]) -> IntVar:
    literal = program.model.new_bool_var(name)
    program.parts[name] = literal, vertices
    program.model.add_assumption(literal)
    return literal


def _cost(program: Program, groups: list[tuple[IntVar | None, list[tuple[IntVar, int]]]], guarded: bool) -> None:
    """The digits of the cost."""
    model, base = program.model, 1 << program.width
    largest = max((cost for _, terms in groups for _, cost in terms), default=0)
    carry: LinearExprT = 0
    most = 0
    digits: list[IntVar] = []
    count = max(1, -(-largest.bit_length() // program.width))
    for i in range(count):
        parts: list[LinearExprT] = []
        for g, (literal, terms) in enumerate(groups):
            own = [(x, cost >> (i * program.width) & (base - 1)) for x, cost in terms]
            top = max((n for _, n in own), default=0)
            most += top
            total = _sum(x * n for x, n in own if n)
            if guarded and top:
                k = model.new_int_var(0, top, f"k{g}_{i}")
                model.add(k >= total).only_enforce_if(literal)
                total = k
            parts.append(total)
        total = _sum(parts) + carry
        last = i == count - 1
        digit = model.new_int_var(0, most if last else base - 1, f"r{i}")
        most //= base
        carry = 0 if last else model.new_int_var(0, most, f"c{i}")
        model.add(total == digit + carry * base)
        digits.append(digit)
    program.digits = digits[::-1]


def _sum(terms: Iterable[LinearExprT]) -> LinearExprT:
    from ortools.sat.python import cp_model

    return cp_model.LinearExpr.sum(list(terms))
