"""Finds messages for a long row of blocks from a short one with the same ends, known as a two-grid cycle:
coarsen, sweep, prolong.

The best messages differ from block to block, for what the ends cost reaches every one of them: over H blocks, in H^2
sweeps.  A row of h blocks with the same ends needs (h / H)^2 of the sweeps and h / H of the time for each.

    coarsen    blocks 0 .. h/2 - 1 and H - h/2 .. H - 1 stay; edges that leave the first part lead to the same classes
               in the second
    prolong   an edge of block l takes the messages of its kind at place  l (h - 1) / (H - 1)  of the short row,
               between blocks by interpolation

What interpolation gets wrong is wrong inside blocks, where few sweeps put it right; nothing is believed, any messages
bound.

Measured (BERT-Large with Adam, batch 64, 4x8, limit 4 GiB; ms): after 9 s on 6 blocks, 15 turns over 24 reach 101.5,
and plain sweeps from the ring's messages 99.3.
Source: the two-grid cycle of A. Brandt, "Multi-level adaptive solutions to boundary-value problems", Mathematics of
Computation 1977, with blocks for points.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import numpy as np

from ....models.problem.selection_problem import Edge, Ints, SelectionProblem
from ....proofs.selection.certificates import Dual
from ..options.decomposition import DECOMPOSITION, DecompositionOptions
from .quotient import Quotient

Kind = tuple[int, int, int, int, int, int | None, int]
"""Classes of the ends, table, row and column map, blocks between the ends, number among the alike edges of a block."""


@dataclass(frozen=True, eq=False)
class Coarse:
    """`problem`: the short row; `vertices[i]`, `edges[k]`: where its vertices and edges come from in the long one."""

    long: SelectionProblem
    problem: SelectionProblem
    vertices: tuple[int, ...]
    edges: tuple[int, ...]
    block: Ints
    """Block of every vertex of the long row."""
    kinds: tuple[Kind, ...]
    places: tuple[int, ...]
    """Kind and block of every edge of the long row."""
    blocks: int
    kept: int
    """Blocks of the long row, and of the short one."""

    def prolong(self, short: Dual, denominator: int) -> Dual:
        """Messages of the short row at every block of the long one, in units of 1/`denominator`; zero on edges of
        kinds that the short row lacks.
        """
        scale = denominator / short.denominator
        known: dict[Kind, list[tuple[int, int]]] = defaultdict(list)
        for k, e in enumerate(self.edges):
            place = self.places[e]
            known[self.kinds[e]].append((place if place < self.kept // 2 else place - self.blocks + self.kept, k))
        to_u: list[Ints] = []
        to_v: list[Ints] = []
        zeros: dict[int, Ints] = {}
        for e, edge in enumerate(self.long.edges):
            there = sorted(known.get(self.kinds[e], ()))
            rows, columns = self.long.tables[edge.table].shape
            if not there:
                to_u.append(zeros.setdefault(rows, np.zeros(rows, dtype=np.int64)))
                to_v.append(zeros.setdefault(columns, np.zeros(columns, dtype=np.int64)))
                continue
            at = self.places[e] * (self.kept - 1) / (self.blocks - 1)
            before = max((x for x in there if x[0] <= at), default=there[0])
            after = min((x for x in there if x[0] >= at), default=there[-1])
            part = 0.0 if before[0] >= after[0] else (at - before[0]) / (after[0] - before[0])
            for side, out in ((short.to_u, to_u), (short.to_v, to_v)):
                low, high = side[before[1]], side[after[1]]
                out.append(
                    low
                    if part == 0.0 and scale == 1
                    else np.rint(scale * ((1.0 - part) * low + part * high)).astype(np.int64)
                )
        return Dual(tuple(to_u), tuple(to_v), denominator)


def coarsen(
    problem: SelectionProblem, found: Quotient, block: Ints, options: DecompositionOptions = DECOMPOSITION
) -> Coarse | None:
    """The short row of `problem` without its resource rows (prices may be in its costs); None when it has too few
    blocks.  `block`: see `decomposition/layers.py`.
    """
    blocks = int(block.max()) + 1
    if blocks <= options.coarse_worth * options.kept:
        return None
    repeated = found.frequent_classes
    first, last = options.kept // 2, blocks - options.kept + options.kept // 2
    kept = [v for v, b in enumerate(block.tolist()) if b < first or b >= last]
    place = {w: i for i, w in enumerate(kept)}
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for w, c in enumerate(found.of_vertex):
        members[c, int(block[w])].append(w)

    def beyond(v: int, w: int) -> int | None:
        """Where an edge from `v`, in the first part, to `w`, left out, leads in the short row; None: nowhere."""
        b = int(block[w])
        if (
            block[v] >= first
            or b - int(block[v]) > options.coarse_near
            or not {found.of_vertex[v], found.of_vertex[w]} <= repeated
        ):
            return None
        alike, there = members[found.of_vertex[w], b], members.get((found.of_vertex[w], b + last - first), [])
        number = alike.index(w)
        return place.get(there[number]) if number < len(there) else None

    edges: list[Edge] = []
    origin: list[int] = []
    for k, e in enumerate(problem.edges):
        u: int | None
        v: int | None
        u, v = place.get(e.u), place.get(e.v)
        if u is not None and v is None:
            v = beyond(e.u, e.v)
        elif v is not None and u is None:
            u = beyond(e.v, e.u)
        if u is not None and v is not None:
            edges.append(replace(e, u=u, v=v))
            origin.append(k)
    kinds, places = _kinds(problem, found, block, repeated)
    short = SelectionProblem(
        f"{problem.name}, {options.kept} of {blocks} blocks",
        tuple(problem.vertices[v] for v in kept),
        problem.tables,
        tuple(edges),
        constant=problem.constant,
    )
    return Coarse(problem, short, tuple(kept), tuple(origin), block, kinds, places, blocks, options.kept)


def _kinds(
    problem: SelectionProblem, found: Quotient, block: Ints, repeated: frozenset[int]
) -> tuple[tuple[Kind, ...], tuple[int, ...]]:
    """Kind and block of every edge: the block of its first end whose class is repeated."""
    maps: dict[bytes | None, int] = {}
    seen: Counter[tuple[Kind, int]] = Counter()
    kinds: list[Kind] = []
    places: list[int] = []
    for e in problem.edges:
        c, d = found.of_vertex[e.u], found.of_vertex[e.v]
        rows, cols = (maps.setdefault(None if x is None else x.tobytes(), len(maps)) for x in (e.rows, e.cols))
        both = c in repeated and d in repeated
        kind: Kind = (c, d, e.table, rows, cols, int(block[e.u] - block[e.v]) if both else None, 0)
        at = int(block[e.u if c in repeated or d not in repeated else e.v])
        kinds.append((*kind[:6], seen[kind, at]))
        places.append(at)
        seen[kind, at] += 1
    return tuple(kinds), tuple(places)
