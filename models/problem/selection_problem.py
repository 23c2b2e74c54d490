"""Problems as data: the selection problem.

A selection problem asks for one choice x_v in dom(v) per vertex v, minimising

    F(x) = constant + sum_v  c_v[x_v] + sum_e  T_e[ row_e[x_u], col_e[x_v] ]          e = (u, v)

subject to, at every integer step t,

    sum_{usages a with start_a <= t < end_a}  amount_a[x_{vertex_a}]  <=  limit

All numbers are integers; cost `FORBIDDEN` (or more) means that the choice or the pair is not allowed.
Tables are *factored*: many edges share one table, and each end of an edge maps its choices to the rows or columns
of that table (the layouts of the tensor that travels on the edge).  `rows is None` is the identity map.

Costs that need more than 57 bits (floats of very different size, scaled exactly) come in two parts, an int64 `coarse`
one, which is what
`Vertex.cost` and `tables` hold, and a `Fine` one:   cost = 2**bits * coarse + fine,   0 <= fine < 2**bits,   so that
for every x

    2**bits * F_coarse(x)  <=  F(x)  <  2**bits * (F_coarse(x) + number of vertices and edges).

Source: V. Elango, "PaSE", IPDPS 2021, section III (objective); ASPLOS/EuroSys 2025 contest (usage intervals).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FORBIDDEN: Final = 1 << 60
"""Cost of a choice or pair that is not allowed.  Any entry >= FORBIDDEN is forbidden; builders write exactly this
value.
"""

FINITE_LIMIT: Final = 1 << 57
"""The sum of the largest |finite| entry of every vertex and edge must stay below this, so that int64 sums cannot
wrap.
"""

USAGE_LIMIT: Final = 1 << 62
"""The sum of the largest amount of every usage must stay below this, and so must steps and the limit in size: int64
sums cannot wrap.
"""

TOGETHER: Final = 1 << 12
"""Arrays of at most so many entries are measured together."""

MOST_FINE_BITS: Final = 52
"""Most bits of a cost behind its int64 part."""


class ProblemError(ValueError):
    """A problem that is not well formed.  `place` names the part (`vertex 3 'conv1'`), `hint` the next step."""

    def __init__(self, place: str, message: str, hint: str = "") -> None:
        super().__init__(f"{place}: {message}" + (f" ({hint})" if hint else ""))
        self.place, self.message, self.hint = place, message, hint


class TooFine(ProblemError):
    """Costs that do not fit int64 in their unit: their largest entries sum to at least `total`."""

    def __init__(self, total: int) -> None:
        super().__init__(
            "costs", f"sum of largest entries {total} is not below 2**57", "divide every cost by the same number"
        )
        self.total = total


@dataclass(frozen=True, eq=False)
class Vertex:
    """One decision.  `cost` has shape (K,), int64, K >= 1 choices."""

    name: str
    cost: Ints


@dataclass(frozen=True, eq=False)
class Edge:
    """A pair cost: `tables[table][rows[x_u], cols[x_v]]`.  `rows`: shape (K_u,), `cols`: shape (K_v,), or None for
    identity.
    """

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
class Fine:
    """The last `bits` bits of every cost (see the module docstring); 0 where a choice is forbidden.

    `digits`: of every vertex's costs, then of every table's entries row by row, one after another; shape (sum of
    sizes,), the least unsigned type that holds `bits` bits.
    """

    bits: int
    digits: NDArray[np.unsignedinteger]


@dataclass(frozen=True, eq=False)
class SelectionProblem:
    """See the module docstring.  Costs (with their fine part) are in units of 1/`scale` of `unit_name` (1 ps: scale
    10**12, 's').

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
    fine: Fine | None = None

    @property
    def fine_bits(self) -> int:
        """Bits of a cost behind its int64 part."""
        return 0 if self.fine is None else self.fine.bits

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
        for i, table in enumerate(self.tables):
            if table.dtype != np.int64 or table.ndim != 2:
                raise ProblemError(f"table {i}", "must be a two-dimensional int64 array")
        arrays = self._arrays()
        sizes, holes = largest_finite(arrays)
        total += sum(sizes[: len(self.vertices)])
        largest = sizes[len(self.vertices) :]
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
            raise TooFine(total)
        self._check_usages()
        if self.fine is not None:
            self._check_fine(self.fine, arrays, holes)
        return self

    def _check_usages(self) -> None:
        in_use = 0
        for i, usage in enumerate(self.usages):
            place = f"usage {i} {usage.name!r}"
            if not 0 <= usage.vertex < len(self.vertices):
                raise ProblemError(place, f"vertex {usage.vertex} does not exist")
            if usage.amount.dtype != np.int64 or usage.amount.shape != (self.domain_size(usage.vertex),):
                raise ProblemError(place, f"needs one int64 amount per choice of vertex {usage.vertex}")
            if usage.amount.size and int(usage.amount.min()) < 0:
                raise ProblemError(place, "amounts must not be negative")
            if not -USAGE_LIMIT < usage.start < USAGE_LIMIT or not -USAGE_LIMIT < usage.end < USAGE_LIMIT:
                raise ProblemError(place, "steps must lie between -2**62 and 2**62", "number the steps from 0")
            in_use += int(usage.amount.max()) if usage.amount.size else 0
        if in_use >= USAGE_LIMIT:
            raise ProblemError("usages", f"sum of largest amounts {in_use} is not below 2**62", "use a coarser unit")
        if self.limit is not None and self.limit < 0:
            raise ProblemError("limit", "must not be negative")
        if self.limit is not None and self.limit > USAGE_LIMIT:
            raise ProblemError(
                "limit", "must not be above 2**62", "use a coarser unit, or leave it out: all amounts together are less"
            )

    def _check_fine(self, fine: Fine, arrays: list[Ints], holes: list[int]) -> None:
        if not 1 <= fine.bits <= MOST_FINE_BITS:
            raise ProblemError("fine part", f"has {fine.bits} bits, not 1 to {MOST_FINE_BITS}")
        size = sum(a.size for a in arrays)
        if fine.digits.dtype != fine_type(fine.bits) or fine.digits.shape != (size,):
            raise ProblemError(
                "fine part",
                f"must have shape ({size},) {fine_type(fine.bits)}, not {fine.digits.shape} {fine.digits.dtype}",
            )
        if size and int(fine.digits.max()) >> fine.bits:
            raise ProblemError("fine part", f"has digits of more than {fine.bits} bits")
        if holes:
            parts = self.fine_parts()
            if any(parts[i][arrays[i] >= FORBIDDEN].any() for i in holes):
                raise ProblemError("fine part", "must be 0 where a choice is forbidden")

    def _arrays(self) -> list[Ints]:
        return [*(v.cost for v in self.vertices), *self.tables]

    def fine_parts(self) -> list[NDArray[np.unsignedinteger]]:
        """The fine part of every vertex's costs, then of every table, as views; empty without one."""
        if self.fine is None:
            return []
        out, at = [], 0
        for a in self._arrays():
            out.append(self.fine.digits[at : at + a.size].reshape(a.shape))
            at += a.size
        return out

    def cost_of(self, x: tuple[int, ...]) -> int:
        """Cost of the choices `x` in unbounded integers; exactly `FORBIDDEN` (times 2**bits of a fine part) if a
        forbidden entry is used.
        """
        if len(x) != len(self.vertices):
            raise ProblemError("solution", f"has {len(x)} choices for {len(self.vertices)} vertices")
        for i, (choice, vertex) in enumerate(zip(x, self.vertices, strict=True)):
            if not 0 <= choice < vertex.cost.size:
                raise ProblemError(
                    f"solution, vertex {i} {vertex.name!r}", f"choice {choice} is not in 0..{vertex.cost.size - 1}"
                )
        entries = [int(v.cost[a]) for v, a in zip(self.vertices, x, strict=True)]
        for e in self.edges:
            r = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
            c = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
            entries.append(int(self.tables[e.table][r, c]))
        if any(entry >= FORBIDDEN for entry in entries):  # not by the sum: negative entries could hide one
            return FORBIDDEN << self.fine_bits
        return ((self.constant + sum(entries)) << self.fine_bits) + self._fine_cost(x)

    def vertex_cost(self, v: int, a: int) -> int:
        """Cost of choice `a` of vertex `v`, with its fine part."""
        fine = 0 if self.fine is None else int(self.fine_parts()[v][a])
        return (int(self.vertices[v].cost[a]) << self.fine_bits) + fine

    def edge_cost(self, e: int, x: tuple[int, ...]) -> int:
        """Cost of edge `e` under the choices `x`, with its fine part."""
        edge = self.edges[e]
        r = x[edge.u] if edge.rows is None else int(edge.rows[x[edge.u]])
        c = x[edge.v] if edge.cols is None else int(edge.cols[x[edge.v]])
        fine = 0 if self.fine is None else int(self.fine_parts()[len(self.vertices) + edge.table][r, c])
        return (int(self.tables[edge.table][r, c]) << self.fine_bits) + fine

    def _fine_cost(self, x: tuple[int, ...]) -> int:
        if self.fine is None:
            return 0
        starts = list(accumulate((a.size for a in self._arrays()), initial=0))
        digits = self.fine.digits
        total = sum(int(digits[at + a]) for at, a in zip(starts, x, strict=False))
        for e in self.edges:
            r = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
            c = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
            total += int(digits[starts[len(x) + e.table] + r * self.tables[e.table].shape[1] + c])
        return total

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
        return self.cost_of(x) < FORBIDDEN << self.fine_bits and (
            self.limit is None or self.peak_of(x)[0] <= self.limit
        )

    def sha256(self, known: dict[int, bytes] | None = None) -> str:
        """Identity of the problem: hash over canonical content (names, numbers, structure).  `known`: digests of arrays
        by `id`, kept by whoever keeps the arrays of several problems.
        """
        h = hashlib.sha256()
        head = {
            "name": self.name,
            "constant": self.constant,
            "scale": self.scale,
            "unit": self.unit_name,
            "space": self.space,
            "assumptions": list(self.assumptions),
            "limit": self.limit,
            "vertices": [v.name for v in self.vertices],
            "edges": [[e.u, e.v, e.table, e.rows is not None, e.cols is not None] for e in self.edges],
            "usages": [[u.vertex, u.start, u.end, u.name] for u in self.usages],
        }
        h.update(json.dumps(head, sort_keys=True, separators=(",", ":")).encode())
        digests = {} if known is None else known  # arrays are shared by reference: hash each once

        def add(a: Ints) -> None:
            if id(a) not in digests:
                one = hashlib.sha256(str(a.shape).encode())
                one.update(np.ascontiguousarray(a, dtype="<i8").data)
                digests[id(a)] = one.digest()
            h.update(digests[id(a)])

        for v in self.vertices:
            add(v.cost)
        for t in self.tables:
            add(t)
        for e in self.edges:
            if e.rows is not None:
                add(e.rows)
            if e.cols is not None:
                add(e.cols)
        for u in self.usages:
            add(u.amount)
        if self.fine is not None:
            h.update(f"fine {self.fine.bits}".encode())
            h.update(np.ascontiguousarray(self.fine.digits, dtype=self.fine.digits.dtype.newbyteorder("<")).data)
        return h.hexdigest()


def fine_type(bits: int) -> np.dtype[np.unsignedinteger]:
    """The least unsigned type of at least `bits` bits."""
    return np.dtype(
        next(kind for kind in (np.uint8, np.uint16, np.uint32, np.uint64) if bits <= 8 * np.dtype(kind).itemsize)
    )


def forbids(arrays: Sequence[Ints]) -> bool:
    """True when an entry of one of the arrays is forbidden."""
    return any(high >= FORBIDDEN for _, high in _ranges(arrays))


def largest_finite(arrays: Sequence[Ints]) -> tuple[list[int], list[int]]:
    """(the largest |allowed entry| of each array, 0 without one; numbers of the arrays with forbidden entries)."""
    out, holes = [], []
    for i, (a, (low, high)) in enumerate(zip(arrays, _ranges(arrays), strict=True)):
        if high >= FORBIDDEN:
            holes.append(i)
            finite = a[a < FORBIDDEN]
            low, high = (int(finite.min()), int(finite.max())) if finite.size else (0, 0)
        out.append(max(abs(low), abs(high)))
    return out, holes


def _ranges(arrays: Sequence[Ints]) -> list[tuple[int, int]]:
    """(least, largest entry) of each array, (0, 0) for an empty one; small arrays are looked at together, a call
    costs more than they do.
    """
    out = [(0, 0)] * len(arrays)
    small = [i for i, a in enumerate(arrays) if 0 < a.size <= TOGETHER]
    if small:
        flat = np.concatenate([arrays[i].reshape(-1) for i in small])
        starts = list(accumulate((arrays[i].size for i in small[:-1]), initial=0))
        for i, low, high in zip(
            small, np.minimum.reduceat(flat, starts).tolist(), np.maximum.reduceat(flat, starts).tolist(), strict=True
        ):
            out[i] = low, high
    for i, a in enumerate(arrays):
        if a.size > TOGETHER:
            out[i] = int(a.min()), int(a.max())
    return out
