"""Cuts a problem down to the choices whose reduced cost is within a cutoff, and shifts its costs by
messages: what another solver is asked about (`engines/consult.py` has the theorem).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ....models.problem.selection_problem import FORBIDDEN, Edge, Fine, Ints, SelectionProblem, Usage, Vertex, fine_type
from ....proofs.selection.certificates import Dual
from ..bound.dual import Score, gather
from ..model.factored import INFINITE, Base, Domains, build
from ..options.engines import EngineOptions


@dataclass(frozen=True, eq=False)
class Columns:
    """A problem on some columns, costs shifted by messages; `kept[v]`: the choices of v, ascending; `complete`: the
    cutoff left nothing out.
    """

    problem: SelectionProblem
    kept: tuple[Ints, ...]
    complete: bool

    def back(self, x: Sequence[int]) -> tuple[int, ...]:
        """A solution of `problem` as one of the whole."""
        return tuple(int(d[a]) for d, a in zip(self.kept, x, strict=True))


@dataclass(frozen=True, eq=False)
class Shifted:
    """A problem with the messages that shift it; everything in units of 1/Q, `theta[v]` without multipliers."""

    problem: SelectionProblem
    base: Base
    record: Dual
    score: Score
    domains: Domains
    theta: tuple[Ints, ...]


def columns(shifted: Shifted, bound: int, cutoff: int | None, options: EngineOptions) -> Columns | None:
    """The columns within `cutoff` of `bound` (None: all), as a problem of its own in units of 1/Q; None when there
    are too many to look at.
    """
    problem, base = shifted.problem, shifted.base
    within = shifted.domains if cutoff is None else shifted.score.fix(shifted.domains, bound + cutoff + 1)
    kept = tuple(_undominated(shifted, within))
    network = build(base, kept, cut=True)
    if network.pair_cells() > options.cells:
        return None
    complete = all(
        np.count_nonzero(x < INFINITE) == d.size for x, d in zip(shifted.score.reduced_costs, within, strict=True)
    )
    fine = problem.fine_parts()
    constant = base.constant
    digits: list[NDArray[np.unsignedinteger]] = []
    vertices = []
    for v, d in enumerate(kept):
        cost = shifted.theta[v][np.searchsorted(shifted.domains[v], d)]
        least = int(cost.min(initial=FORBIDDEN)) if d.size else 0
        constant += least
        vertices.append(Vertex(problem.vertices[v].name, cost - least))
        if fine:
            digits.append(fine[v][d].reshape(-1))
    tables: list[Ints] = []
    edges: list[Edge] = []
    for e, arc, to_u, to_v in zip(problem.edges, network.arcs, *gather(network, shifted.record), strict=True):
        cells = network.tables[arc.table]
        forbidden = cells >= INFINITE
        cells = cells - to_u[:, None] - to_v
        least = int(cells.min(where=~forbidden, initial=INFINITE))
        if least < INFINITE:
            constant += least
            cells = cells - least
        if cutoff is not None:
            dear = cells > cutoff * base.denominator
            complete = complete and not (dear & ~forbidden).any()
            forbidden |= dear
        cells[forbidden] = FORBIDDEN
        edges.append(Edge(e.u, e.v, len(tables), arc.rows, arc.cols))
        tables.append(cells)
        if fine:
            assert arc.row_ids is not None and arc.col_ids is not None
            part = fine[len(problem.vertices) + e.table][np.ix_(arc.row_ids, arc.col_ids)]
            part[forbidden] = 0
            digits.append(part.reshape(-1))
    exact = None
    if problem.fine is not None:
        exact = Fine(problem.fine.bits, np.concatenate(digits).astype(fine_type(problem.fine.bits)))
    usages = tuple(Usage(u.vertex, u.start, u.end, u.amount[kept[u.vertex]], u.name) for u in problem.usages)
    part_of = replace(
        problem,
        vertices=tuple(vertices),
        tables=tuple(tables),
        edges=tuple(edges),
        usages=usages,
        constant=constant,
        fine=exact,
    )
    return Columns(part_of, kept, complete or cutoff is None)


def _undominated(shifted: Shifted, kept: Sequence[Ints]) -> list[Ints]:
    """Of choices that every edge and every row sees alike the cheapest, the first among equals."""
    problem = shifted.problem
    seen: list[list[Ints | None]] = [[] for _ in problem.vertices]
    for e in problem.edges:
        seen[e.u].append(e.rows)
        seen[e.v].append(e.cols)
    for u in problem.usages:
        seen[u.vertex].append(u.amount)
    fine = problem.fine_parts()
    out = []
    for v, d in enumerate(kept):
        if d.size < 2 or any(index is None for index in seen[v]):
            out.append(d)
            continue
        cost = shifted.theta[v][np.searchsorted(shifted.domains[v], d)]
        keys = [
            *(index[d] for index in seen[v] if index is not None),
            cost,
            *([fine[v][d].astype(np.int64)] if fine else []),
        ]
        order = np.lexsort(keys[::-1])
        same = np.stack(keys[: len(seen[v])], axis=1)[order] if seen[v] else np.zeros((d.size, 1), dtype=np.int64)
        first = np.concatenate(([True], (same[1:] != same[:-1]).any(axis=1)))
        out.append(np.sort(d[order[first]]))
    return out
