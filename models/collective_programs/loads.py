"""Bytes that one step of a reduction program puts on every link, as exact multiples of one row (one
chunk of the payload).

For a group of m devices with r rows, S = r rows.  "Crosses level l below parent p" = has devices under at least two
links of level l inside p; "spans" = crosses the outermost level that it crosses at all.  Loads of concurrent groups add
up.

(C1) ring volume       AllReduce 2 (m-1)/m S;  ReduceScatter, AllGather (m-1)/m S;  Reduce, Broadcast S           ->
     volume()
(C2) outer link        ring: V in and V out of every link that is crossed.  Reduce, Broadcast: a chain over the links in
     order
                       of the group, S per hop (Reduce from last to first, Broadcast from first to last)            ->
                       _chain()
(C3) tree AllReduce    double binary tree over the links of the level that the group spans, S/2 up and S/2 down every
     edge;
                       links further inside: S                                                                      ->
                       tree_edges()
(C4) device link       V; tree AllReduce: S if the group spans a level further out, else (5/2 - 3/(2m)) S
(C5) switch            a group with 2 <= q members in a node of N devices, not all under one switch: if q = N nothing
     (the NVLink
                       ring of the whole node); else every consecutive pair under different switches adds w V to both,
                       the pair (last, first) too if the group stays in the node (q > 2), else the first and the last
                       member's switches get w V.  V of a tree AllReduce: 2 S, or S if q = 2.  w = `quad` if the group
                       is one aligned quad (tree: 0), else 1
(C6) flow              tree AllReduce, outermost level: the largest load of one link by one group alone
(C7) bus               what enters all links of its levels inside its block

`through` charges a level further inside for what crosses a level further out, as `models.communication.pricing` does;
P2's systems show that their GPU links do not notice.

Fitted to the times that P2 (MLSys 2022) publishes.  Levels between the
outermost and the innermost are our extension of the two-level model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import lcm
from typing import assert_never

from ..machine.topology import Bus, Switch, Topology
from .collectives import Collective


class Algorithm(Enum):
    """How a collective of NCCL moves data; only AllReduce differs."""

    RING = "ring"
    TREE = "tree"


@dataclass(frozen=True)
class Loads:
    """Loads in rows times 1/`denominator`; [level][link], in and out; [switch or bus][number]; `flow`, `copied` =
    max S.
    """

    denominator: int
    into: tuple[tuple[int, ...], ...]
    out: tuple[tuple[int, ...], ...]
    switches: tuple[tuple[int, ...], ...]
    buses: tuple[tuple[int, ...], ...]
    flow: int
    copied: int


def volume(collective: Collective, members: int) -> Fraction:
    """(C1): ring volume as a multiple of S.

    >>> [str(volume(c, 4)) for c in Collective]
    ['3/2', '3/4', '3/4', '1', '1']
    """
    match collective:
        case Collective.ALL_REDUCE:
            return Fraction(2 * (members - 1), members)
        case Collective.REDUCE_SCATTER | Collective.ALL_GATHER:
            return Fraction(members - 1, members)
        case Collective.REDUCE | Collective.BROADCAST:
            return Fraction(1)
        case _:
            assert_never(collective)


@lru_cache(maxsize=1024)
def tree_edges(nodes: int) -> tuple[int, ...]:
    """(C3): edges at each node of the double binary tree, both trees together.

    The parent of r clears r's lowest set bit b and sets 2b, or only clears b if that node does not exist; the second
    tree is the first one mirrored (even) or shifted by one (odd).

    >>> tree_edges(2), tree_edges(4), tree_edges(3)
    ((2, 2), (2, 4, 4, 2), (3, 2, 3))
    """
    degree = [0] * nodes
    for r in range(1, nodes):
        b = r & -r
        parent = (r & ~b) | 2 * b
        if parent >= nodes:
            parent = r & ~b
        for end in (r, parent):
            degree[end] += 1
            degree[nodes - 1 - end if nodes % 2 == 0 else (end + 1) % nodes] += 1
    return tuple(degree)


def step_loads(
    topology: Topology,
    collective: Collective,
    groups: Sequence[Sequence[int]],
    rows: Sequence[int],
    algorithm: Algorithm,
    quad: Fraction,
    through: bool = False,
) -> Loads:
    """(C1) to (C7) for all `groups` at once; `rows[g]` rows each."""
    tree = algorithm is Algorithm.TREE and collective is Collective.ALL_REDUCE
    unit = 2 * quad.denominator * lcm(*(len(g) for g in groups))  # makes every load below a whole number
    into = [[0] * len(level.rates) for level in topology.levels]
    out = [[0] * len(level.rates) for level in topology.levels]
    switches = [[0] * len(s.rates) for s in topology.switches]
    flow = 0
    last = len(topology.levels) - 1
    for group, r in zip(groups, rows, strict=True):
        s = r * unit
        v = int(s * volume(collective, len(group)))
        span: int | None = None
        for l, level in enumerate(topology.levels):
            above = topology.levels[l - 1].of if l else None
            parts: dict[int, dict[int, None]] = {}  # parent -> its links, in the order of the group
            for d in group:
                parts.setdefault(above[d] if above else 0, {})[level.of[d]] = None
            for links in parts.values():
                crossed = len(links) > 1
                if not crossed and (span is None or not through):
                    continue
                if crossed and span is None:
                    span = l
                outermost = span == l
                if tree and outermost and l < last:
                    loads = [s * e // 2 for e in tree_edges(len(links))]
                    arriving = leaving = loads
                    if l == 0:
                        flow = max(flow, *loads)
                elif tree:
                    each = s if not outermost else (5 * s * len(group) - 3 * s) // (2 * len(group))
                    arriving = leaving = [each] * len(links)
                elif l < last and crossed and collective in (Collective.REDUCE, Collective.BROADCAST):
                    arriving, leaving = _chain(v, len(links), collective is Collective.REDUCE)
                else:
                    arriving = leaving = [v] * len(links)
                for link, a, b in zip(links, arriving, leaving, strict=True):
                    into[l][link] += a
                    out[l][link] += b
        for at, switch in zip(switches, topology.switches, strict=True):
            _switch_load(at, topology, switch, group, 2 * s if tree else v, tree, quad)
    most = unit * max(rows, default=0)
    buses = tuple(_bus_load(topology, bus, into) for bus in topology.buses)
    return Loads(unit, tuple(map(tuple, into)), tuple(map(tuple, out)), tuple(map(tuple, switches)), buses, flow, most)


def _bus_load(topology: Topology, bus: Bus, into: list[list[int]]) -> tuple[int, ...]:
    """(C7)."""
    at = [0] * len(bus.rates)
    for l in bus.levels:
        for block, link in dict.fromkeys((b, v) for b, v in zip(bus.of, topology.levels[l].of, strict=True) if b >= 0):
            at[block] += into[l][link]
    return tuple(at)


def _chain(volume: int, links: int, inward: bool) -> tuple[list[int], list[int]]:
    """(C2): arriving and leaving loads of a chain; `inward`: towards the first link."""
    first = [0] + [volume] * (links - 1)
    final = [volume] * (links - 1) + [0]
    return (final, first) if inward else (first, final)


def _switch_load(
    at: list[int], topology: Topology, switch: Switch, group: Sequence[int], v: int, tree: bool, quad: Fraction
) -> None:
    """(C5)."""
    if len(topology.levels) < 2:
        node_of: Sequence[int] = [0] * topology.devices
    else:
        node_of = topology.levels[-2].of
    nodes: dict[int, list[int]] = {}
    for d in group:
        nodes.setdefault(node_of[d], []).append(d)
    inside = len(nodes) == 1
    for node, found in nodes.items():
        members = sorted(found)
        q = len(members)
        if q < 2 or q == node_of.count(node) or len({switch.of[d] for d in members}) == 1:
            continue
        if q == 4 and members[0] % 4 == 0 and members[3] == members[0] + 3:
            if tree:
                continue
            amount = int(v * quad)
        else:
            amount = v // 2 if tree and q == 2 else v
        pairs = list(pairwise(members))
        if inside:
            pairs.append((members[-1], members[0]))
        for a, b in pairs:
            if switch.of[a] != switch.of[b]:
                at[switch.of[a]] += amount
                at[switch.of[b]] += amount
        if not inside:
            at[switch.of[members[0]]] += amount
            at[switch.of[members[-1]]] += amount
