"""Problems as data: the selection problem.

A selection problem asks for one choice x_v in dom(v) per vertex v, minimising

    F(x) = constant + sum_v  c_v[x_v] + sum_e  T_e[ row_e[x_u], col_e[x_v] ]          e = (u, v)

subject to, at every integer step t,

    sum_{usages a with start_a <= t < end_a}  amount_a[x_{vertex_a}]  <=  limit

All numbers are integers; cost `FORBIDDEN` (or more) means that the choice or the pair is not allowed.
Tables are *factored*: many edges share one table, and each end of an edge maps its choices to the rows or columns
of that table (the layouts of the tensor that travels on the edge).  `rows is None` is the identity map.

Source: V. Elango, "PaSE", IPDPS 2021, section III (objective); ASPLOS/EuroSys 2025 contest (usage intervals).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FORBIDDEN: Final = 1 << 60
"""Cost of a choice or pair that is not allowed.  Any entry >= FORBIDDEN is forbidden; builders write exactly this value."""

FINITE_LIMIT: Final = 1 << 57
"""The sum of the largest |finite| entry of every vertex and edge must stay below this, so that int64 sums cannot wrap."""


class ProblemError(ValueError):
    """A problem that is not well formed.  `place` names the part (`vertex 3 'conv1'`), `hint` the next step."""

    def __init__(self, place: str, message: str, hint: str = "") -> None:
        super().__init__(f"{place}: {message}" + (f" ({hint})" if hint else ""))
        self.place, self.message, self.hint = place, message, hint


@dataclass(frozen=True, eq=False)
class Vertex:
    """One decision.  `cost` has shape (K,), int64, K >= 1 choices."""

    name: str
    cost: Ints


@dataclass(frozen=True, eq=False)
class Edge:
    """A pair cost: `tables[table][rows[x_u], cols[x_v]]`.  `rows`: shape (K_u,), `cols`: shape (K_v,), or None for identity."""

    u: int
    v: int
    table: int
    rows: Ints | None = None
    cols: Ints | None = None


@dataclass(frozen=True, eq=False)
class Usage:
    """`amount[x_vertex]` units of the resource are in use at steps start <= t < end.  `amount`: shape (K,), >= 0."""

    vertex: int
    start: int
    end: int
    amount: Ints
    name: str = ""


@dataclass(frozen=True, eq=False)
class SelectionProblem:
    """See the module docstring.  Costs are in units of 1/`scale` of `unit_name` (1 ps: scale 10**12, 's').

    >>> import numpy as np
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))),
    ...                      (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> p.check().cost_of((0, 0)), p.cost_of((1, 1))
    (1, 5)
    """

    name: str
    vertices: tuple[Vertex, ...]
    tables: tuple[Ints, ...]
    edges: tuple[Edge, ...]
    usages: tuple[Usage, ...] = ()
    limit: int | None = None
    constant: int = 0
    scale: int = 1
    unit_name: str = "units"
    space: str = "as given"
    assumptions: tuple[str, ...] = field(default=())

    def domain_size(self, v: int) -> int:
        """Number of choices of vertex `v`."""
        return int(self.vertices[v].cost.shape[0])

    def check(self) -> SelectionProblem:
        """Return self if well formed; raise `ProblemError` naming the first offending part."""
        total = abs(self.constant)
        for i, vertex in enumerate(self.vertices):
            place = f"vertex {i} {vertex.name!r}"
            if vertex.cost.dtype != np.int64 or vertex.cost.ndim != 1:
                raise ProblemError(place, "costs must be a one-dimensional int64 array")
            if vertex.cost.size == 0:
                raise ProblemError(place, "empty domain", "give the vertex at least one choice or remove it")
            total += _largest_finite(vertex.cost)
        for i, table in enumerate(self.tables):
            if table.dtype != np.int64 or table.ndim != 2:
                raise ProblemError(f"table {i}", "must be a two-dimensional int64 array")
        largest = [_largest_finite(table) for table in self.tables]
        for i, edge in enumerate(self.edges):
            place = f"edge {i} ({edge.u}, {edge.v})"
            if not (0 <= edge.u < len(self.vertices) and 0 <= edge.v < len(self.vertices)) or edge.u == edge.v:
                raise ProblemError(place, "must join two different existing vertices")
            if not 0 <= edge.table < len(self.tables):
                raise ProblemError(place, f"table {edge.table} does not exist")
            shape = self.tables[edge.table].shape
            for end, index, size in ((edge.u, edge.rows, shape[0]), (edge.v, edge.cols, shape[1])):
                k = self.domain_size(end)
                if index is None and k != size:
                    raise ProblemError(place, f"table has {size} entries for vertex {end} with {k} choices")
                if index is not None and (
                    index.dtype != np.int64 or index.shape != (k,) or int(index.min()) < 0 or int(index.max()) >= size
                ):
                    raise ProblemError(place, f"map of vertex {end} must send {k} choices into 0..{size - 1}")
            total += largest[edge.table]
        if total >= FINITE_LIMIT:
            raise ProblemError("costs", f"sum of largest entries {total} is not below 2**57", "use a coarser unit")
        for i, usage in enumerate(self.usages):
            place = f"usage {i} {usage.name!r}"
            if not 0 <= usage.vertex < len(self.vertices):
                raise ProblemError(place, f"vertex {usage.vertex} does not exist")
            if usage.amount.dtype != np.int64 or usage.amount.shape != (self.domain_size(usage.vertex),):
                raise ProblemError(place, f"needs one int64 amount per choice of vertex {usage.vertex}")
            if usage.amount.size and int(usage.amount.min()) < 0:
                raise ProblemError(place, "amounts must not be negative")
        if self.limit is not None and self.limit < 0:
            raise ProblemError("limit", "must not be negative")
        return self

    def cost_of(self, x: tuple[int, ...]) -> int:
        """Cost of the choices `x` in unbounded integers; exactly `FORBIDDEN` if a forbidden entry is used."""
        if len(x) != len(self.vertices):
            raise ProblemError("solution", f"has {len(x)} choices for {len(self.vertices)} vertices")
        for i, (choice, vertex) in enumerate(zip(x, self.vertices, strict=True)):
            if not 0 <= choice < vertex.cost.size:
                raise ProblemError(f"solution, vertex {i} {vertex.name!r}", f"choice {choice} is not in 0..{vertex.cost.size - 1}")
        entries = [int(v.cost[a]) for v, a in zip(self.vertices, x, strict=True)]
        for e in self.edges:
            r = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
            c = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
            entries.append(int(self.tables[e.table][r, c]))
        if any(entry >= FORBIDDEN for entry in entries):  # not by the sum: negative entries could hide one
            return FORBIDDEN
        return self.constant + sum(entries)

    def events(self) -> list[int]:
        """Steps at which the set of live usages changes to a larger one: it is enough to test the rows at these."""
        return sorted({u.start for u in self.usages if u.end > u.start})

    def peak_of(self, x: tuple[int, ...]) -> tuple[int, int]:
        """(largest total usage over all steps, first step where it occurs); (0, 0) without usages."""
        change: dict[int, int] = {}
        for u in self.usages:
            if u.start < u.end:
                amount = int(u.amount[x[u.vertex]])
                change[u.start] = change.get(u.start, 0) + amount
                change[u.end] = change.get(u.end, 0) - amount
        best, when, now = 0, 0, 0
        for t in sorted(change):
            now += change[t]
            if now > best:
                best, when = now, t
        return best, when

    def is_feasible(self, x: tuple[int, ...]) -> bool:
        """True when no forbidden entry is used and every resource row holds."""
        return self.cost_of(x) < FORBIDDEN and (self.limit is None or self.peak_of(x)[0] <= self.limit)

    def sha256(self) -> str:
        """Identity of the problem: hash over canonical content (names, numbers, structure)."""
        h = hashlib.sha256()
        head = {
            "name": self.name, "constant": self.constant, "scale": self.scale, "unit": self.unit_name,
            "space": self.space, "assumptions": list(self.assumptions), "limit": self.limit,
            "vertices": [v.name for v in self.vertices],
            "edges": [[e.u, e.v, e.table, e.rows is not None, e.cols is not None] for e in self.edges],
            "usages": [[u.vertex, u.start, u.end, u.name] for u in self.usages],
        }
        h.update(json.dumps(head, sort_keys=True, separators=(",", ":")).encode())
        digests: dict[int, bytes] = {}  # arrays are shared by reference: hash each once

        def add(a: Ints | None) -> None:
            if a is None:
                return
            if id(a) not in digests:
                one = hashlib.sha256(str(a.shape).encode())
                one.update(np.ascontiguousarray(a, dtype="<i8").tobytes())
                digests[id(a)] = one.digest()
            h.update(digests[id(a)])

        for v in self.vertices:
            add(v.cost)
        for t in self.tables:
            add(t)
        for e in self.edges:
            add(e.rows)
            add(e.cols)
        for u in self.usages:
            add(u.amount)
        return h.hexdigest()


def _largest_finite(a: Ints) -> int:
    if a.size == 0:
        return 0
    high = int(a.max())
    if high >= FORBIDDEN:
        finite = a[a < FORBIDDEN]
        if finite.size == 0:
            return 0
        high = int(finite.max())
    return max(abs(high), abs(int(a.min())))
