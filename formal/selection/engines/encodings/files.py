"""Selection as a file for a solver of somebody else's, in exact integers (`answers`: what it says).

    json      our own, which `solve` reads
    lp, mps   the integer linear program of `ilp.py`: x_v_a in {0,1} (vertex v takes choice a), 0 <= y_e_r_c <= 1

                  minimise   constant one + sum_v sum_a c_v[a] x_v_a + sum_e sum_{r,c} T_e[r,c] y_e_r_c     objective()
                  one_v      sum_a x_v_a = 1                                                               one_choice()
                  row_e_r    sum_c y_e_r_c - sum_{a: row_e(a) = r} x_u_a = 0                                marginals()
                  col_e_c    sum_r y_e_r_c - sum_{b: col_e(b) = c} x_v_b = 0                                marginals()
                  step_t     sum_v sum_a amount_v,t[a] x_v_a <= left_t                                      resources()

    opb       the same with y in {0,1}; x1, x2, .. are the variables in the order of the program, choices first
    smt2      the pseudo-Boolean program of `smt.py`, with soft constraints (z3's `assert-soft`)
    wcsp      a cost function network: variable v has all choices of vertex v, forbidden ones at the upper bound; rows
              are `knapsackp`, which toulbar2 has

What a file leaves out of the cost (smt2 and wcsp begin at 0) is `Encoded.shift`.  How they grow: variables of lp, mps,
opb and smt2 are choices and the allowed entries of each edge's table at its own rows and columns; wcsp lists pairs of
choices.  Solvers that count in doubles are exact up to 2^53.

Sources: CPLEX LP and free MPS as HiGHS reads them; Roussel and Manquinho, "Input/Output Format and Solver Requirements
for the Competitions of Pseudo-Boolean Solvers"; the user guide of toulbar2, "WCSP format".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from .....models.problem.selection_problem import SelectionProblem
from .....models.text import InputError
from .....proofs.publishing.publisher import ENCODINGS, Encoded
from .....proofs.selection.problem_file import problem_json
from . import all_events, exact_costs, row_terms, smt

WIDTH: Final = 8
"""Terms on a line of a file: LP readers refuse lines of more than a few hundred characters."""

MOST_PAIRS: Final = 50_000_000
"""Pairs of choices that a wcsp file lists, at some ten bytes each."""


@dataclass(eq=False)
class Row:
    """sum of coefficients times variables = or <= `right`."""

    name: str
    terms: list[tuple[int, str]]
    equal: bool
    right: int


@dataclass(eq=False)
class Program:
    """An integer linear program.  `x`: variables of choices, by vertex and choice; `y`: those of entries."""

    problem: SelectionProblem
    x: list[dict[int, str]] = field(default_factory=list)
    y: list[dict[tuple[int, int], str]] = field(default_factory=list)
    goal: list[tuple[int, str]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def choices(self) -> list[str]:
        """Variables that have to be whole."""
        return [name for names in self.x for name in names.values()]

    @property
    def entries(self) -> list[str]:
        """Variables that are whole where those of choices are."""
        return [name for names in self.y for name in names.values()]

    @property
    def constant(self) -> int:
        """Of every solution's cost."""
        return self.problem.constant << self.problem.fine_bits


def encode_problem(problem: SelectionProblem, to: str) -> Encoded:
    """The file.  Raises `InputError` for a problem that has no solution at sight, and for one that is too large.

    >>> import numpy as np
    >>> from shardproof.models.problem.selection_problem import Edge, Vertex
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))),
    ...                      (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> print(encode_problem(p, "wcsp").text, end="")
    two 2 2 3 16
    2 2
    1 0 1 1
    1 0
    1 1 0 1
    1 5
    2 0 1 0 2
    0 1 9
    1 0 9
    """
    if to == "json":
        return Encoded(problem, problem_json(problem).decode())
    _require_solutions(problem)
    match to:
        case "lp":
            return Encoded(problem, "".join(_lp(program_of(problem))))
        case "mps":
            return Encoded(problem, "".join(_mps(program_of(problem))))
        case "opb":
            return Encoded(problem, "".join(_opb(program_of(problem))))
        case "smt2":
            return _smt2(problem)
        case "wcsp":
            return _wcsp(problem)
        case _:
            raise InputError(f"no encoding {to!r}: {', '.join(ENCODINGS)}")


def allowed_costs(problem: SelectionProblem) -> tuple[list[dict[int, int]], list[dict[tuple[int, int], int]]]:
    """Exact costs of choices that are allowed, and of the entries that these reach."""
    choices, entries = exact_costs(problem)
    reached: list[dict[tuple[int, int], int]] = []
    for edge, cells in zip(problem.edges, entries, strict=True):
        rows = {a if edge.rows is None else int(edge.rows[a]) for a in choices[edge.u]}
        cols = {a if edge.cols is None else int(edge.cols[a]) for a in choices[edge.v]}
        reached.append({(r, c): n for (r, c), n in cells.items() if r in rows and c in cols})
    return choices, reached


def groups_of(choices: Sequence[dict[int, int]], entries: Sequence[dict[tuple[int, int], int]]) -> list[list[int]]:
    """Costs of every vertex, then of every edge."""
    return [list(costs.values()) for costs in choices] + [list(cells.values()) for cells in entries]


def _require_solutions(problem: SelectionProblem) -> None:
    if not problem.vertices:
        raise InputError(f"{problem.name}: has no vertices, nothing to ask")
    choices, entries = allowed_costs(problem)
    for kind, groups in (("vertex", choices), ("edge", entries)):
        for i, group in enumerate(groups):
            if not group:
                raise InputError(
                    f"{problem.name}: {kind} {i} has no entry that is allowed: no solution, nothing to ask"
                )
    for t in all_events(problem):
        if row_terms(problem, t)[1] < 0:
            raise InputError(f"{problem.name}: nothing fits the limit at step {t}: no solution, nothing to ask")


# ---------------------------------------------------------------------------------- the linear program


def program_of(problem: SelectionProblem) -> Program:
    """The program, its rows in the order of the module docstring."""
    program = Program(problem)
    choices, entries = allowed_costs(problem)
    for v, costs in enumerate(choices):
        program.x.append({a: f"x_{v}_{a}" for a in costs})
    for e, cells in enumerate(entries):
        program.y.append({(r, c): f"y_{e}_{r}_{c}" for r, c in cells})
    program.goal = list(objective(program, choices, entries))
    program.rows = [*one_choice(program), *marginals(program), *resources(program)]
    return program


def objective(
    program: Program, choices: Sequence[dict[int, int]], entries: Sequence[dict[tuple[int, int], int]]
) -> Iterator[tuple[int, str]]:
    """Costs of choices and entries; the constant is the cost of `one`, which is 1."""
    for names, costs in zip(program.x, choices, strict=True):
        yield from ((costs[a], name) for a, name in names.items() if costs[a])
    for cells, prices in zip(program.y, entries, strict=True):
        yield from ((prices[at], name) for at, name in cells.items() if prices[at])
    if program.constant:
        yield program.constant, "one"


def one_choice(program: Program) -> Iterator[Row]:
    """One choice per vertex."""
    for v, names in enumerate(program.x):
        yield Row(f"one_{v}", [(1, name) for name in names.values()], True, 1)


def marginals(program: Program) -> Iterator[Row]:
    """Entries of an edge follow its ends."""
    for e, (edge, cells) in enumerate(zip(program.problem.edges, program.y, strict=True)):
        for place, kind, end, index in ((0, "row", edge.u, edge.rows), (1, "col", edge.v, edge.cols)):
            sums: dict[int, list[tuple[int, str]]] = {}
            for a, name in program.x[end].items():
                sums.setdefault(a if index is None else int(index[a]), []).append((-1, name))
            for at, name in cells.items():
                sums.setdefault(at[place], []).append((1, name))
            for k in sorted(sums):
                yield Row(f"{kind}_{e}_{k}", sums[k], True, 0)


def resources(program: Program) -> Iterator[Row]:
    """What is in use at a step, the least of every vertex taken off both sides."""
    for t in all_events(program.problem):
        amounts, left = row_terms(program.problem, t)
        terms = [
            (int(amount[a]), name)
            for v, amount in sorted(amounts.items())
            for a, name in program.x[v].items()
            if amount[a]
        ]
        if terms:
            yield Row(f"step_{t}", terms, False, left)


def _head(problem: SelectionProblem, mark: str) -> Iterator[str]:
    unit = f"1/{problem.scale << problem.fine_bits} {problem.unit_name}"
    yield f"{mark} selection problem of shardproof: {problem.sha256()}\n"
    yield f"{mark} {len(problem.vertices)} vertices, {len(problem.edges)} edges; costs in {unit}\n"


def _sum(terms: Sequence[tuple[int, str]]) -> str:
    words = [f"{'+' if n >= 0 else '-'} {abs(n)} {name}" for n, name in terms]
    return "\n  ".join(" ".join(words[i : i + WIDTH]) for i in range(0, len(words), WIDTH))


def _lines(names: Sequence[str]) -> Iterator[str]:
    for i in range(0, len(names), WIDTH):
        yield f" {' '.join(names[i : i + WIDTH])}\n"


def _lp(program: Program) -> Iterator[str]:
    yield from _head(program.problem, "\\")
    yield f"Minimize\n obj: {_sum(program.goal) or f'0 {program.choices[0]}'}\nSubject To\n"
    for row in program.rows:
        yield f" {row.name}: {_sum(row.terms)} {'=' if row.equal else '<='} {row.right}\n"
    yield "Bounds\n"
    yield from (f" 0 <= {name} <= 1\n" for name in program.entries)
    if program.constant:
        yield " one = 1\n"
    yield "Binaries\n"
    yield from _lines(program.choices)
    yield "End\n"


def _mps(program: Program) -> Iterator[str]:
    yield from _head(program.problem, "*")
    yield "NAME selection\nROWS\n N obj\n"
    columns: dict[str, list[tuple[str, int]]] = {}
    for n, name in program.goal:
        columns.setdefault(name, []).append(("obj", n))
    for row in program.rows:
        yield f" {'E' if row.equal else 'L'} {row.name}\n"
        for n, name in row.terms:
            columns.setdefault(name, []).append((row.name, n))
    yield "COLUMNS\n"
    whole = program.choices
    for words, names in (("'INTORG'", whole), ("'INTEND'", [*program.entries, *(["one"] if program.constant else [])])):
        yield f" MARKER 'MARKER' {words}\n"
        for name in names:
            yield from (f" {name} {row} {n}\n" for row, n in columns.get(name, [("obj", 0)]))
    yield "RHS\n"
    yield from (f" rhs {row.name} {row.right}\n" for row in program.rows if row.right)
    yield "BOUNDS\n"
    yield from (f" BV bound {name}\n" for name in whole)
    yield from (f" UP bound {name} 1\n" for name in program.entries)
    if program.constant:
        yield " FX bound one 1\n"
    yield "ENDATA\n"


def _opb(program: Program) -> Iterator[str]:
    names = [*program.choices, *program.entries, *(["one"] if program.constant else [])]
    number = {name: f"x{k}" for k, name in enumerate(names, 1)}
    count = len(program.rows) + bool(program.constant)
    yield f"* #variable= {len(names)} #constraint= {count}\n"
    yield from _head(program.problem, "*")

    def words(terms: Sequence[tuple[int, str]]) -> str:
        return " ".join(f"{n:+d} {number[name]}" for n, name in terms)

    yield f"min: {words(program.goal)} ;\n" if program.goal else f"min: +0 {number[names[0]]} ;\n"
    for row in program.rows:
        if row.equal:
            yield f"{words(row.terms)} = {row.right} ;\n"
        else:  # the competitions know = and >= alone
            yield f"{words([(-n, name) for n, name in row.terms])} >= {-row.right} ;\n"
    if program.constant:
        yield f"+1 {number['one']} = 1 ;\n"


def _smt2(problem: SelectionProblem) -> Encoded:
    text = smt.program(problem, all_events(problem))
    if text is None:
        raise InputError(f"{problem.name}: a vertex or an edge allows nothing: no solution, nothing to ask")
    choices, entries = allowed_costs(problem)
    shift = sum(min(costs) for costs in groups_of(choices, entries)) + (problem.constant << problem.fine_bits)
    head = "".join(_head(problem, ";")) + f"; a solution costs {shift} more than what is violated\n"
    return Encoded(problem, f"{head}{text}\n(check-sat)\n(get-objectives)\n(get-model)\n", shift)


# ---------------------------------------------------------------------------------- the cost function network


def _wcsp(problem: SelectionProblem) -> Encoded:
    pairs = sum(problem.domain_size(e.u) * problem.domain_size(e.v) for e in problem.edges)
    if pairs > MOST_PAIRS:
        raise InputError(
            f"{problem.name}: a wcsp file lists {pairs:,} pairs of choices, at most {MOST_PAIRS:,}: write lp, mps, opb "
            "or smt2, whose tables are shared"
        )
    choices, entries = allowed_costs(problem)
    groups = groups_of(choices, entries)
    least = [min(costs) for costs in groups]
    shift = sum(least) + (problem.constant << problem.fine_bits)
    top = 1 + sum(max(costs) - low for costs, low in zip(groups, least, strict=True))
    functions: list[str] = []
    for v, costs in enumerate(choices):
        all_costs = [costs[a] - least[v] if a in costs else top for a in range(problem.domain_size(v))]
        functions.append(_function((v,), [((a,), n) for a, n in enumerate(all_costs)]))
    for e, edge in enumerate(problem.edges):
        low, cells = least[len(choices) + e], entries[e]
        rows = _index(edge.rows, problem.domain_size(edge.u))
        cols = _index(edge.cols, problem.domain_size(edge.v))
        prices = {at: n - low for at, n in cells.items()}
        functions.append(
            _function(
                (edge.u, edge.v),
                [((a, b), prices.get((r, c), top)) for a, r in enumerate(rows) for b, c in enumerate(cols)],
            )
        )
    for t in all_events(problem):
        amounts, left = row_terms(problem, t)
        if amounts:
            functions.append(_knapsack({v: [int(n) for n in a] for v, a in sorted(amounts.items())}, left))
    sizes = [problem.domain_size(v) for v in range(len(problem.vertices))]
    name = re.sub(r"\W+", "_", problem.name) or "selection"
    functions = [f for f in functions if f]
    head = f"{name} {len(sizes)} {max(sizes, default=0)} {len(functions)} {top}\n{' '.join(map(str, sizes))}\n"
    return Encoded(problem, head + "".join(functions), shift)


def _index(index: np.ndarray | None, size: int) -> Sequence[int]:
    return range(size) if index is None else [int(k) for k in index]


def _function(scope: tuple[int, ...], costs: list[tuple[tuple[int, ...], int]]) -> str:
    """The most frequent cost is that of tuples which are not listed; nothing where all is free."""
    default = Counter(n for _, n in costs).most_common(1)[0][0]
    listed = [(at, n) for at, n in costs if n != default]
    if not listed and not default:
        return ""
    words = " ".join(map(str, scope))
    return f"{len(scope)} {words} {default} {len(listed)}\n" + "".join(
        f"{' '.join(map(str, at))} {n}\n" for at, n in listed
    )


def _knapsack(amounts: dict[int, list[int]], left: int) -> str:
    """sum of amounts <= left, said as the sum of their negatives >= -left."""
    words = [f"{len(values)} {' '.join(f'{a} {-n}' for a, n in enumerate(values))}" for values in amounts.values()]
    return f"{len(amounts)} {' '.join(map(str, amounts))} -1 knapsackp {-left} {' '.join(words)}\n"
