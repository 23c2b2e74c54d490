"""Chooses the weights of leaves whose reshardings run beside operators, and the chains that they count.

A phase takes at least the weighted mean of C (operators), M (reshardings) and P (a chain with what moves along it),
for any weights.  Those whose least mean over all placements is largest are looked for on runs of one unit, one of every
class of equal ones but rare ones: after every round of solutions come the weights that would be best if the known ones
were all there are (Kelley 1960), with each of forward, backward and updates in eighths.

The chain is the one whose operators take longest when each takes its least: what it says is proved whatever it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ....models.cost.selection import DecisionKind, Planning
from ....models.pipelines.channels import Channels
from ....models.pipelines.pieces import Chain, Pieces
from ....models.problem.selection_problem import FORBIDDEN, ProblemError
from ...selection.model.clock import Clock
from ...selection.solve import solve

WHOLE = 8
MOST_CLASSES = 3
"""Of equal units, the most frequent first."""

TIE = 1e-4
"""Weights that say as much but for this part are equal."""

ROUNDS = 8
NEAR = Fraction(1, 200)
"""By how much the best weights could say more than those that were tried, at the end."""

FIRST = Channels((4, 1, 3), (4, 1, 3), (3, 5, 0))
GAP = Fraction(1, 200)
SECONDS = 4.0
"""For one solution."""

GRID = [(c, m, WHOLE - c - m) for c in range(WHOLE + 1) for m in range(WHOLE + 1 - c)]
PLAIN = [(c, WHOLE - c, 0) for c in range(WHOLE + 1)]

Names = tuple[tuple[str, ...], tuple[str, ...]]


def chains(pieces: Pieces, first: int, end: int) -> Names:
    """Operators of the chain forward and backward of units first .. end-1, from cut to cut; none where there is no
    way.
    """
    if not pieces.joins:
        return (), ()
    return _chain(pieces, first, end, "F"), _chain(pieces, first, end, "B")


def _chain(pieces: Pieces, first: int, end: int, phase: str) -> tuple[str, ...]:
    cuts, graph, planning = pieces.division.cuts, pieces.graph, pieces.planning
    left = cuts[first - 1]["FB".index(phase)] if first else None
    right = cuts[end - 1]["FB".index(phase)] if end <= len(cuts) else None
    came, goes = (left, right) if phase == "F" else (right, left)
    reach: dict[str, tuple[int, str | None]] = {}  # what an operator writes -> the longest way to it, from where
    named: dict[str, str] = {}
    for op, u, p in zip(graph.operators, pieces.division.unit, pieces.division.phase, strict=True):
        if p != phase or not first <= u < end:
            continue
        ways = [(reach[a.tensor][0], a.tensor) for a in op.inputs if a.tensor in reach]
        if came is None or came in {a.tensor for a in op.inputs}:
            ways.append((0, ""))
        if ways:
            length, source = max(ways)
            cost = planning.problem.vertices[planning.operators[op.name]].cost
            reach[op.output.tensor] = length + int(cost.min()) + 1, source or None
            named[op.output.tensor] = op.name
    if not reach or (goes is not None and goes not in reach):
        return ()
    at: str | None = goes if goes is not None else max(reach, key=lambda t: (reach[t][0], t))
    names = []
    while at is not None:
        names.append(named[at])
        at = reach[at][1]
    return tuple(reversed(names))


@dataclass(frozen=True, eq=False)
class Ways:
    """Edges of a problem by what they move.  `fills[t]`: into the copy of a tensor; `reads[t, op]`: the first that an
    operator reads it by; `of[t]`: all of a tensor, with the operators at their ends.
    """

    fills: Mapping[str, int]
    reads: Mapping[tuple[str, str], int]
    of: Mapping[str, Sequence[tuple[int, frozenset[str]]]]


_KNOWN: Final[WeakKeyDictionary[Planning, Ways]] = WeakKeyDictionary()
"""Of problems that still are: tables are given back between cases."""


def ways_of(planning: Planning) -> Ways:
    """Those of a problem, made once: every unit asks for them with all weights."""
    if planning not in _KNOWN:
        _KNOWN[planning] = _ways(planning)
    return _KNOWN[planning]


def _ways(planning: Planning) -> Ways:
    fills: dict[str, int] = {}
    reads: dict[tuple[str, str], int] = {}
    of: dict[str, list[tuple[int, frozenset[str]]]] = {}
    for k, route in enumerate(planning.routes):
        ends = [planning.decisions[v] for v in (route.source, route.target)]
        named = frozenset(d.name for d in ends if d.kind is DecisionKind.OPERATOR)
        of.setdefault(route.tensor, []).append((k, named))
        if ends[1].kind is DecisionKind.COPY:
            fills[route.tensor] = k
        else:
            reads.setdefault((route.tensor, ends[1].name), k)
    return Ways(fills, reads, of)


def chain_of(pieces: Pieces, names: Names) -> Chain:
    """Vertices and edges of these chains."""
    planning, position = pieces.planning, pieces.position
    ways, edges = ways_of(planning), set[int]()
    for chain in names:
        for a, b in pairwise(chain):
            tensor = pieces.graph.operators[position[a]].output.tensor
            edge = ways.reads[tensor, b]
            copied = planning.decisions[planning.routes[edge].source].kind is DecisionKind.COPY
            edges |= {edge, ways.fills[tensor]} if copied else {edge}
    return Chain(frozenset(planning.operators[name] for chain in names for name in chain), frozenset(edges))


def whole_chain(pieces: Pieces, first: int, end: int) -> Chain:
    """The chains of a run of units, with what moves at its cuts on their way."""
    names, of = chains(pieces, first, end), ways_of(pieces.planning).of
    inner = chain_of(pieces, names)
    ends = {row[0] for row in names if row} | {row[-1] for row in names if row}
    crossing = {k for tensor in pieces.crossing(first, end) for k, named in of.get(tensor, ()) if named & ends}
    return Chain(inner.vertices, inner.edges | crossing)


def weights(pieces: Pieces, micro: int, clock: Clock) -> list[Channels]:
    """Weights of a step in so many micro-batches: first those whose bound is largest, then others that were tried."""
    units = pieces.division.units
    alike: dict[object, list[int]] = {}
    for u in range(units):
        alike.setdefault(pieces.weighed_key(u, u + 1, True), []).append(u)
    runs = sorted(alike.values(), key=lambda us: (-len(us), us[0]))[:MOST_CLASSES]
    classes = [(us[0], len(us), chain_of(pieces, chains(pieces, us[0], us[0] + 1))) for us in runs]
    best, chosen, now = Fraction(-1), FIRST, FIRST
    tried, known = set[Channels](), [list[NDArray[np.float64]]() for _ in classes]
    often = np.array([micro, micro, 1.0])[:, None]
    for _ in range(ROUNDS):
        tried.add(now)
        value = Fraction(0)
        for (unit, count, chain), rows in zip(classes, known, strict=True):
            try:
                part = pieces.weighing(now).leaf(unit, unit + 1, micro, 1, chain)
            except ProblemError:
                return [chosen, *sorted(tried - {chosen})]
            answer = solve(part.problem, clock=clock.at_most(SECONDS), gap=GAP)
            if answer.solution is None or answer.lower_bound is None:
                return [chosen, *sorted(tried - {chosen})]
            value += Fraction(count * answer.lower_bound, WHOLE)
            x = dict(zip(part.vertices, answer.solution, strict=True))
            rows.append(sums(pieces, x, chain) * often * count)
        if value > best:
            best, chosen = value, now
        following, most = _best(known)
        if following in tried or clock.over() or most <= best * (1 + NEAR):
            break
        now = following
    return [chosen, *sorted(tried - {chosen})]


def sums(pieces: Pieces, x: Mapping[int, int], chain: Chain) -> NDArray[np.float64]:
    """[F, B, U][C, M, P] of the vertices that are chosen, and the edges between them."""
    problem, found = pieces.planning.problem, np.zeros((3, 3))
    for v in x:
        time = int(problem.vertices[v].cost[x[v]])
        row = found["FBU".index(pieces.phase[v])]
        row[0] += time if time < FORBIDDEN else 0
        row[2] += time if v in chain.vertices and time < FORBIDDEN else 0
    for k in pieces.edges_between(set(x)):
        e = problem.edges[k]
        r = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
        c = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
        row = found["FBU".index("U" if pieces.once[k] else pieces.edge_phase[k])]
        row[1] += int(problem.tables[e.table][r, c])
        row[2] += int(problem.tables[e.table][r, c]) if k in chain.edges else 0
    return found


def _best(known: Sequence[Sequence[NDArray[np.float64]]]) -> tuple[Channels, float]:
    """The weights whose least mean over what is known of every class of units, added up, is largest, and that; of
    equal ones those that count more of all operators.
    """
    grid, plain = np.array(GRID, dtype=np.float64), np.array(PLAIN, dtype=np.float64)
    total = np.zeros((len(grid), len(grid), len(plain)))
    for rows in known:
        f, b = (np.stack([grid @ row[k] for row in rows], axis=1) for k in (0, 1))
        u = np.stack([plain @ row[2] for row in rows], axis=1)
        total += (f[:, None, None, :] + b[None, :, None, :] + u[None, None, :, :]).min(axis=3)
    near = np.argwhere(total >= total.max() * (1 - TIE))
    i, j, k = (int(n) for n in near[np.argmax(grid[near[:, 0], 0] + grid[near[:, 1], 0])])
    return Channels(GRID[i], GRID[j], PLAIN[k]), float(total[i, j, k]) / WHOLE
