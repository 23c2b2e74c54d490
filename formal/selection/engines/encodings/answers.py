"""What a solver of somebody else's answers, read back as choices of a selection problem.

    a list of numbers      ours (`solve --json`), toulbar2's, or anybody's: one choice per vertex
    names with values      `x_3_1 1` of a linear program, z3's model: variables of `files.encode_problem`
    literals               lines `v x1 -x2 ..` of a pseudo-Boolean solver: of the export, or of the user's own file

Lists and literals may be about the variables of the user's own file (`.wcsp`, `.uai`, `.opb`), which come first:
vertices that its reader added take the only choice that goes with them (`extend_values`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from .....models.files.json_text import JsonError, parse_json
from .....models.problem.selection_problem import FORBIDDEN, Edge, SelectionProblem
from .....models.text import InputError
from .files import allowed_costs

_NAMED: Final = re.compile(r"\bx_?(\d+)_(\d+)\b\s*(?:\(\s*\)\s*Bool)?\s*=?\s*(true|false|[-+]?\d[\d.eE+-]*)", re.ASCII)
_VARIABLE: Final = re.compile(r"x\d+", re.ASCII)
_LITERAL: Final = re.compile(r"([-~]?)x(\d+)", re.ASCII)


def read_answer(text: str, problem: SelectionProblem) -> tuple[int, ...]:
    """The choices that a file holds.  Raises `InputError` naming the vertex that has no choice, or several."""
    listed = _listed(text)
    if listed is not None:
        return require_solution(extend_values(listed, problem), problem)
    literals = _LITERAL.findall(" ".join(line[1:] for line in text.splitlines() if line.startswith("v ")))
    choices, _ = allowed_costs(problem)
    taken: dict[int, set[int]] = {}
    if literals:
        places = [(v, a) for v, costs in enumerate(choices) for a in costs]
        values = {f"x{number}": int(not sign) for sign, number in literals}
        own = _own_variables(problem)
        if len(values) < len(places) and {*own} >= {*values}:  # fewer than the choices that an export numbers
            return require_solution(extend_values(_own_values(values, own), problem), problem)
        for sign, number in literals:
            if not sign and 1 <= int(number) <= len(places):
                v, a = places[int(number) - 1]
                taken.setdefault(v, set()).add(a)
    else:
        for v, a, value in _NAMED.findall(text):
            if value == "true" or (value != "false" and float(value) > 0.5):
                taken.setdefault(int(v), set()).add(int(a))
    if not taken:
        raise InputError("no choices are in it: a list of numbers, names with values or lines 'v x1 -x2 ..' are read")
    for v in range(len(problem.vertices)):
        if len(taken.get(v, ())) != 1:
            raise InputError(f"vertex {v} {problem.vertices[v].name!r} takes {len(taken.get(v, ()))} choices, not one")
    return require_solution([min(taken[v]) for v in range(len(problem.vertices))], problem)


def _own_variables(problem: SelectionProblem) -> list[str]:
    """Names of the variables of a pseudo-Boolean file, which come first."""
    names = [x.name for x in problem.vertices]
    return names[: next((v for v, name in enumerate(names) if not _VARIABLE.fullmatch(name)), len(names))]


def _own_values(values: dict[str, int], own: Sequence[str]) -> list[int]:
    if missing := [name for name in own if name not in values]:
        raise InputError(f"{len(missing)} variables have no value, {missing[0]} is the first")
    return [values[name] for name in own]


def extend_values(values: Sequence[int], problem: SelectionProblem) -> list[int]:
    """A solution that begins with `values`: every further vertex takes the only choice that goes with those before it
    (the hidden vertices of `models.problem.cost_functions`).  As they are where one of them has several, or none.

    >>> import numpy as np
    >>> from shardproof.models.problem.selection_problem import Edge, Vertex
    >>> two = Vertex("x", np.array([0, 1])), Vertex("x is 0, or 1", np.array([5, 7]))
    >>> equal = np.array([[0, FORBIDDEN], [FORBIDDEN, 0]])
    >>> extend_values([1], SelectionProblem("one", two, (equal,), (Edge(0, 1, 0),)))
    [1, 1]
    """
    out, found = [*values], len(problem.vertices)
    near: dict[int, list[tuple[int, bool, Edge]]] = {}
    for e in problem.edges:
        for v, u, first in ((e.u, e.v, True), (e.v, e.u, False)):
            if v >= len(values) and u < v:
                near.setdefault(v, []).append((u, first, e))
    for v in range(len(values), found):
        allowed = problem.vertices[v].cost < FORBIDDEN
        for u, first, e in near.get(v, []):
            if not 0 <= out[u] < problem.domain_size(u):
                return [*values]
            table = problem.tables[e.table] if first else problem.tables[e.table].T
            mine, other = (e.rows, e.cols) if first else (e.cols, e.rows)
            line = table[:, out[u] if other is None else int(other[out[u]])]
            allowed = allowed & ((line if mine is None else line[mine]) < FORBIDDEN)
        choices = np.flatnonzero(allowed)
        if choices.size != 1:
            return [*values]
        out.append(int(choices[0]))
    return out


def _listed(text: str) -> list[int] | None:
    words = text.split()
    if words and all(re.fullmatch(r"\d{1,9}", w, re.ASCII) for w in words):
        return [int(w) for w in words]
    if not words or words[0][0] not in "[{":
        return None
    try:
        data = parse_json(text)
    except JsonError as error:
        raise InputError(str(error)) from None
    if isinstance(data, dict):
        data = data.get("solution")
    if isinstance(data, list) and all(isinstance(a, int) and not isinstance(a, bool) for a in data):
        return [a for a in data if isinstance(a, int)]
    raise InputError("it is no list of numbers, and has none as 'solution'")


def require_solution(choices: Sequence[int], problem: SelectionProblem) -> tuple[int, ...]:
    """The choices, one for every vertex.  Raises `InputError` for what is no solution, naming the vertex."""
    if len(choices) != len(problem.vertices):
        raise InputError(f"{len(choices)} choices for {len(problem.vertices)} vertices")
    for v, a in enumerate(choices):
        if not 0 <= a < problem.domain_size(v):
            raise InputError(
                f"vertex {v} {problem.vertices[v].name!r} has no choice {a}: they are 0 to {problem.domain_size(v) - 1}"
            )
    x = tuple(choices)
    if problem.cost_of(x) >= FORBIDDEN:
        raise InputError(f"these choices are forbidden: {_forbidden(problem, x)}")
    if not problem.is_feasible(x):
        raise InputError("these choices do not fit the limit")
    return x


def _forbidden(problem: SelectionProblem, x: tuple[int, ...]) -> str:
    """The first choice, or pair of choices, that is not allowed."""

    def words_of(v: int) -> str:
        return f"choice {x[v]} of vertex {v} {problem.vertices[v].name!r}"

    for v, vertex in enumerate(problem.vertices):
        if int(vertex.cost[x[v]]) >= FORBIDDEN:
            return f"{words_of(v)} is not allowed"
    for number, e in enumerate(problem.edges):
        if problem.edge_cost(number, x) >= FORBIDDEN:
            return f"{words_of(e.u)} and {words_of(e.v)} are not allowed together"
    return "their costs add up to more than any allowed solution has"
