"""A selection problem on restricted domains as a factored cost function network: tables are shared
between edges and cut down to what is still reachable.

For domains D_v (ascending choices of the original problem) the network keeps, in units of 1/Q,

    unary[v][i] = Q c_v[D_v[i]]          pair(e)[i, j] = tables[t_e][ rows_e[i], cols_e[j] ] = Q T_e[row(D_u[i]),
                                         col(D_v[j])]

A table is copied down to its reachable rows and columns when that makes it at least four times smaller (or it is small
anyway); otherwise the original array is shared and unreachable rows are masked.  `row_ids`, `col_ids` name the original
rows and columns that the kept ones come from.  Every forbidden entry is exactly `FORBIDDEN` here, whatever Q is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem

INFINITE: Final = FORBIDDEN >> 1
"""Sums at or above this contain a forbidden entry: finite sums stay below 2**58 (see `Base`), FORBIDDEN is 2**60."""

Domains = tuple[Ints, ...]

SMALL_TABLE: Final = 1 << 16


def saturate(a: Ints) -> Ints:
    """Write exactly FORBIDDEN wherever a sum contains a forbidden entry; in place, returned for chaining."""
    a[a >= INFINITE] = FORBIDDEN
    return a


@dataclass(frozen=True, eq=False)
class Arc:
    """Edge `u`-`v`: `rows` sends positions in D_u to rows of the kept table (None: identity); `row_ids` are
    original rows.
    """

    u: int
    v: int
    table: int
    rows: Ints | None
    cols: Ints | None
    row_ids: Ints | None
    col_ids: Ints | None
    live_rows: Ints | None
    live_cols: Ints | None


class Base:
    """The numbers of a problem in units of 1/Q, shared by all networks of one run."""

    def __init__(self, problem: SelectionProblem, denominator: int = 1) -> None:
        self.problem = problem
        self.denominator = denominator
        cache: dict[int, Ints] = {}
        self.tables = [self._scaled(t, cache) for t in problem.tables]
        self.unary = [self._scaled(v.cost, cache) for v in problem.vertices]
        self.constant = problem.constant * denominator
        self._holes: dict[int, bool] = {}

    def _scaled(self, a: Ints, cache: dict[int, Ints]) -> Ints:
        if id(a) in cache:
            return cache[id(a)]
        high = int(a.max()) if a.size else 0
        out = a
        if self.denominator != 1:
            out = np.where(a >= FORBIDDEN, FORBIDDEN, np.where(a >= FORBIDDEN, 0, a) * self.denominator)
        elif high > FORBIDDEN:
            out = np.minimum(a, FORBIDDEN)
        if not out.flags.c_contiguous:
            out = np.ascontiguousarray(out)
        cache[id(a)] = out
        return out


@dataclass(eq=False)
class Network:
    """See the module docstring.  Built by `build`."""

    base: Base
    domains: Domains
    unary: list[Ints]
    tables: list[Ints]
    arcs: list[Arc]
    around: list[list[int]] = field(default_factory=list)
    """around[v]: numbers of the arcs at v, ascending."""

    @property
    def labels(self) -> int:
        """Number of choices left over all vertices."""
        return sum(d.size for d in self.domains)

    def solution(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The choices of the problem at positions in the domains."""
        return tuple(int(d[i]) for d, i in zip(self.domains, choice, strict=True))

    def positions(self, solution: Sequence[int]) -> list[int]:
        """Inverse of `solution`."""
        return [int(np.searchsorted(d, a)) for d, a in zip(self.domains, solution, strict=True)]

    def pair_cells(self) -> int:
        """Entries touched by one pass over all edges."""
        return sum(self.tables[a.table].size for a in self.arcs)


def whole(problem: SelectionProblem) -> Domains:
    """Every choice of every vertex."""
    cache: dict[int, Ints] = {}
    out = []
    for v in problem.vertices:
        k = int(v.cost.shape[0])
        if k not in cache:
            cache[k] = np.arange(k, dtype=np.int64)
        out.append(cache[k])
    return tuple(out)


def allowed_domains(problem: SelectionProblem) -> Domains:
    """Every choice that its own cost does not forbid: rows of dead choices never get a message, which would spoil
    the minima of their edges.
    """
    return tuple(
        d if int(v.cost.max(initial=0)) < FORBIDDEN else np.flatnonzero(v.cost < FORBIDDEN)
        for d, v in zip(whole(problem), problem.vertices, strict=True)
    )


def build(base: Base, domains: Domains, apart: bool = False, cut: bool = False) -> Network:
    """The network of `base` on `domains`.  `apart`: rows and columns are labels, no maps; `cut`: every table is copied
    down to what is reached.
    """
    problem = base.problem
    full = [d.size == problem.domain_size(v) for v, d in enumerate(domains)]
    unary = [c if full[v] else c[domains[v]] for v, c in enumerate(base.unary)]
    tables: list[Ints] = []
    known: dict[tuple[int, bytes | None, bytes | None], int] = {}
    maps: dict[tuple[int, bytes | None], _End] = {}
    arcs: list[Arc] = []
    for e in problem.edges:
        source = base.tables[e.table]
        ends = []
        for vertex, index, size in ((e.u, e.rows, source.shape[0]), (e.v, e.cols, source.shape[1])):
            key = (id(index) if index is not None else -1 - size, None if full[vertex] else domains[vertex].tobytes())
            if key not in maps:
                maps[key] = _End(index, None if full[vertex] else domains[vertex], size)
            ends.append(maps[key])
        r, c = ends
        if apart and not (r.plain is None and c.plain is None):
            arcs.append(Arc(e.u, e.v, len(tables), None, None, r.plain, c.plain, None, None))
            tables.append(source[np.ix_(*(x.ids if x.plain is None else x.plain for x in ends))])
            continue
        small = r.ids.size * c.ids.size
        if cut or small * 4 <= source.size or (source.size <= SMALL_TABLE and small < source.size):
            ident = (e.table, r.tag, c.tag)
            if ident not in known:
                known[ident] = len(tables)
                tables.append(np.ascontiguousarray(source[np.ix_(r.ids, c.ids)]))
            arcs.append(Arc(e.u, e.v, known[ident], r.compact, c.compact, r.ids, c.ids, None, None))
        else:
            uncut = (e.table, None, None)
            if uncut not in known:
                known[uncut] = len(tables)
                tables.append(source)
            arcs.append(
                Arc(
                    e.u,
                    e.v,
                    known[uncut],
                    r.plain,
                    c.plain,
                    None,
                    None,
                    None if r.ids.size == source.shape[0] else r.ids,
                    None if c.ids.size == source.shape[1] else c.ids,
                )
            )
    around: list[list[int]] = [[] for _ in problem.vertices]
    for i, a in enumerate(arcs):
        around[a.u].append(i)
        around[a.v].append(i)
    return Network(base, domains, unary, tables, arcs, around)


class _End:
    """One end of an edge: original rows in use, and the map of the domain before and after cutting."""

    def __init__(self, index: Ints | None, domain: Ints | None, size: int) -> None:
        plain = index if domain is None else (domain if index is None else index[domain])
        self.plain = plain  # None: identity
        if plain is None:
            self.ids = np.arange(size, dtype=np.int64)
            self.compact: Ints | None = None
        else:
            self.ids, inverse = np.unique(plain, return_inverse=True)
            inverse = inverse.astype(np.int64).reshape(-1)
            same = inverse.size == self.ids.size and bool(np.array_equal(inverse, np.arange(inverse.size)))
            self.compact = None if same else inverse
        self.tag = self.ids.tobytes()


def exact_cost(problem: SelectionProblem, x: tuple[int, ...]) -> int | None:
    """Cost of `x` in units of the coarse tables, rounded up; None when it uses a forbidden entry (also next to
    negative costs) or breaks a resource row.
    """
    cost = -(-problem.cost_of(x) >> problem.fine_bits)
    if cost >= INFINITE or (problem.limit is not None and problem.peak_of(x)[0] > problem.limit):
        return None
    return cost
