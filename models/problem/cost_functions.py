"""A cost function network as a selection problem: functions of any number of variables, exactly.

    F(x) = constant + sum_f  f(x_s(f))            x_i in 0 .. d_i - 1, costs are integers, or FORBIDDEN

    one variable       added to the costs of its vertex
    two variables      a table and an edge
    three and more     a vertex of its own whose choices are the allowed tuples, with their costs; an edge to every
                       variable of the scope forbids all values but the tuple's.  This is the hidden-variable encoding:
                       every x of the network has exactly one extension of finite cost, of the same cost, or none

Linear constraints are rows at steps of their own (`rows_under_limit`).  All rows of a selection problem share one
limit, the largest, so that a last vertex with one choice uses what the smaller ones have less.

The vertices of the variables come first, in their order, so that a solution begins with the values of the variables.
Source: Larrosa and Dechter, "On the dual representation of non-binary semiring-based CSPs", 2000.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from .selection_problem import (
    FINITE_LIMIT,
    FORBIDDEN,
    USAGE_LIMIT,
    Edge,
    Ints,
    ProblemError,
    SelectionProblem,
    Usage,
    Vertex,
)

MOST_CELLS: Final = 1 << 22
"""Entries of the table of one function: a file of a few bytes can ask for any number of them."""

MOST_ALL: Final = 1 << 26
"""Entries of the tables of all functions together: 512 MiB."""

MOST_VALUES: Final = 1 << 16
"""Values of one variable."""


@dataclass(frozen=True, eq=False)
class CostFunction:
    """`costs[k]` is the cost of the values `tuples[k]` of the variables `scope`; tuples that are not listed are
    forbidden.

    `tuples`: shape (n, len(scope)), int64, distinct rows; `costs`: shape (n,), int64, below 2**57 in size.
    """

    scope: tuple[int, ...]
    tuples: Ints
    costs: Ints


@dataclass(frozen=True, eq=False)
class AtMostOne:
    """At most one of the variables of `scope` takes one of its `values`: a clique of exclusions as one function."""

    scope: tuple[int, ...]
    values: tuple[Ints, ...]


@dataclass(frozen=True, eq=False)
class LimitedRow:
    """sum_v amounts[v][x_v] <= `most`.  `amounts[v]`: per value of the variable, 0 or more."""

    amounts: Mapping[int, Ints]
    most: int


@dataclass(frozen=True, eq=False)
class Limited:
    """Rows as usages under one limit (None without rows); `more`: the vertex that uses what a row has less, if any."""

    usages: tuple[Usage, ...]
    more: tuple[Vertex, ...]
    limit: int | None


REST: Final = "rest of the limit"
"""Name of the vertex that uses what a row has less than the largest."""


def rows_under_limit(rows: Sequence[LimitedRow], variables: int) -> Limited:
    """The rows of a problem of so many variables.  Raises `ProblemError` for amounts that are too large.

    >>> made = rows_under_limit([LimitedRow({0: np.array([0, 2])}, 1), LimitedRow({1: np.array([1, 3])}, 3)], 2)
    >>> made.limit, [(u.vertex, u.start, u.amount.tolist()) for u in made.usages], [v.name for v in made.more]
    (3, [(0, 0, [0, 2]), (2, 0, [2]), (1, 1, [1, 3])], ['rest of the limit'])
    """
    limit = max((row.most for row in rows), default=0)
    if min((row.most for row in rows), default=0) < 0:  # even the least of its left side is too much
        limit = max(limit, 0)
    together = sum(sum(int(a.max()) for a in row.amounts.values()) + limit - min(row.most, limit) for row in rows)
    if together >= USAGE_LIMIT or limit >= USAGE_LIMIT:
        raise ProblemError("constraints", "their coefficients sum to 2**62 or more", "divide every one by one number")
    usages: list[Usage] = []
    for t, row in enumerate(rows):
        usages += [Usage(v, t, t + 1, amount) for v, amount in sorted(row.amounts.items())]
        if limit > row.most:
            usages.append(Usage(variables, t, t + 1, np.array([limit - row.most], dtype=np.int64)))
    rest = (Vertex(REST, np.zeros(1, dtype=np.int64)),) if any(u.vertex == variables for u in usages) else ()
    return Limited(tuple(usages), rest, limit if usages else None)


def dense_function(scope: tuple[int, ...], costs: Ints) -> CostFunction:
    """The function whose table is `costs`, one axis per variable of the scope; entries >= FORBIDDEN are left out.

    >>> dense_function((0, 2), np.array([[1, FORBIDDEN]])).tuples.tolist()
    [[0, 0]]
    """
    where = costs < FORBIDDEN
    return CostFunction(scope, np.argwhere(where).astype(np.int64).reshape(-1, len(scope)), costs[where])


class Room:
    """Counts entries of tables before they are made."""

    def __init__(self) -> None:
        self._all = 0

    def take(self, sizes: Sequence[int], place: str) -> int:
        """The entries of a table of these sizes.  Raises `ProblemError` naming `place` where they are too many."""
        cells = prod(sizes)
        self._all += cells
        if cells > MOST_CELLS or self._all > MOST_ALL:
            raise ProblemError(
                place,
                f"has a table of {' x '.join(map(str, sizes[:8]))}{' x ..' if len(sizes) > 8 else ''} entries",
                f"at most {MOST_CELLS} are read of one function and {MOST_ALL} of all",
            )
        return cells


def network_problem(
    name: str,
    domains: Sequence[int],
    functions: Sequence[CostFunction | AtMostOne],
    *,
    constant: int = 0,
    names: Sequence[str] | None = None,
    limited: Limited | None = None,
    assumptions: tuple[str, ...] = (),
) -> SelectionProblem:
    """The selection problem of a network.  `limited`: rows of its variables, whose vertex stands behind
    theirs.

    >>> f = dense_function((0, 1, 2), np.arange(8).reshape(2, 2, 2)[::-1, ::-1, ::-1].copy())
    >>> p = network_problem("three", [2, 2, 2], [f])
    >>> [v.name for v in p.vertices], p.cost_of((1, 1, 1, 7)), p.cost_of((1, 1, 1, 6)) == FORBIDDEN
    (['x0', 'x1', 'x2', 'function 0 of x0 x1 x2'], 0, True)
    """
    named = [f"x{i}" for i in range(len(domains))] if names is None else list(names)
    own = [np.zeros(d, dtype=np.int64) for d in domains]
    vertices: list[Vertex] = []
    edges: list[Edge] = []
    tables = _Tables()
    usages, more, limit = ((), (), None) if limited is None else (limited.usages, limited.more, limited.limit)
    first = len(domains) + len(more)
    for k, f in enumerate(functions):
        here = f"function {k} of {' '.join(named[i] for i in f.scope[:8])}{' ..' if len(f.scope) > 8 else ''}"
        match f:
            case AtMostOne():
                edges += _clique(f, domains, first + len(vertices), tables)
                vertices.append(Vertex(here, np.zeros(len(f.scope) + 1, dtype=np.int64)))
            case CostFunction(scope=(v,)):
                whole = np.full(domains[v], FORBIDDEN, dtype=np.int64)
                whole[f.tuples[:, 0]] = f.costs
                own[v] = _sum(own[v], whole)
            case CostFunction(scope=(u, v)):
                table = np.full((domains[u], domains[v]), FORBIDDEN, dtype=np.int64)
                table[f.tuples[:, 0], f.tuples[:, 1]] = f.costs
                edges.append(Edge(u, v, tables.number(table)))
            case CostFunction():
                hidden = first + len(vertices)
                if not f.costs.size:  # a vertex has a choice, even where nothing is allowed
                    vertices.append(Vertex(here, np.array([FORBIDDEN])))
                    continue
                vertices.append(Vertex(here, f.costs))
                for i, v in enumerate(f.scope):
                    if domains[v] > 1:
                        rows = np.ascontiguousarray(f.tuples[:, i])
                        edges.append(Edge(hidden, v, tables.equality(domains[v]), rows))
    variables = tuple(Vertex(named[i], cost) for i, cost in enumerate(own))
    return SelectionProblem(
        name,
        (*variables, *more, *vertices),
        tuple(tables.all),
        tuple(edges),
        usages,
        limit,
        constant,
        assumptions=assumptions,
    ).check()


class _Tables:
    """Tables, equal ones once."""

    def __init__(self) -> None:
        self.all: list[Ints] = []
        self._numbers: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._equal: dict[int, int] = {}

    def number(self, table: Ints) -> int:
        """Which of all tables it is."""
        key = (table.shape, table.tobytes())
        if key not in self._numbers:
            self._numbers[key] = len(self.all)
            self.all.append(table)
        return self._numbers[key]

    def equality(self, size: int) -> int:
        """The table that forbids two different values."""
        if size not in self._equal:
            table = np.full((size, size), FORBIDDEN, dtype=np.int64)
            np.fill_diagonal(table, 0)
            self._equal[size] = self.number(table)
        return self._equal[size]


def _clique(f: AtMostOne, domains: Sequence[int], hidden: int, tables: _Tables) -> list[Edge]:
    """Choice 0 of the vertex `hidden`: none takes such a value; choice i + 1: the variable scope[i] alone does."""
    edges = []
    for i, (v, values) in enumerate(zip(f.scope, f.values, strict=True)):
        table = np.zeros((2, domains[v]), dtype=np.int64)
        table[1] = FORBIDDEN
        table[0, values], table[1, values] = FORBIDDEN, 0
        rows = np.zeros(len(f.scope) + 1, dtype=np.int64)
        rows[i + 1] = 1
        edges.append(Edge(hidden, v, tables.number(table), rows))
    return edges


def _sum(a: Ints, b: Ints) -> Ints:
    """The sum of costs, FORBIDDEN where one of them is; `ProblemError` where it does not fit."""
    forbidden = (a >= FORBIDDEN) | (b >= FORBIDDEN)
    total = np.where(forbidden, 0, np.minimum(a, FINITE_LIMIT) + np.minimum(b, FINITE_LIMIT))
    if total.size and int(np.abs(total).max()) >= FINITE_LIMIT:
        raise ProblemError("costs", "the costs of one value sum to 2**57 or more", "divide every cost by one number")
    return np.where(forbidden, FORBIDDEN, total)
