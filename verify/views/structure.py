"""Which decisions and movements belong to which branch, and why regions may be taken as they are
stated.

own        an operator that the branch names; the copy of a tensor whose every writer and reader the branch names,
           and which is not asked for
inner      a movement between two decisions of one branch; crossing: between one and the outside
sound      branches name operators of the graph, each once over all regions; they hang together by inner movements;
           nothing moves between two of them, and no operator of a phase reads what another branch writes in it, or
           has to come before it because a parameter is replaced; with every phase of a region taken as one
           operator the graph has no circle: so a phase can begin when all that enters is there, all its branches
           side by side, and all that leaves can wait for the last of them
divisions  views are boxes of the machine, aligned; two views of one division are equal or meet nowhere
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ...models.layout.submesh import Submesh
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.views.regions import Region
from ...proofs.container.effort import OBJECT
from ..budget import Budget
from ..plan.structure import replaces
from ..plan.used_entries import Entries

Place = tuple[int, int]
"""Region and branch."""


@dataclass(frozen=True, eq=False)
class Parts:
    """`place`: of every vertex that belongs to a branch; `phase`: of every operator of a branch.  `inner`, `crossing`:
    edges per branch.
    """

    place: dict[int, Place]
    phase: dict[str, int]
    inner: dict[Place, list[int]]
    crossing: dict[Place, list[int]]

    def members(self, place: Place) -> list[int]:
        """Vertices of a branch, ascending."""
        return self._members[place]

    @cached_property
    def _members(self) -> dict[Place, list[int]]:
        found: dict[Place, list[int]] = {at: [] for at in self.inner}
        for v in sorted(self.place):
            found[self.place[v]].append(v)
        return found


def parts_of(entries: Entries, regions: Sequence[Region]) -> Parts:
    """What belongs to whom; `regions` name operators of the graph, each once (`wrong_names`)."""
    where: dict[str, Place] = {}
    phase: dict[str, int] = {}
    for r, region in enumerate(regions):
        for b, branch in enumerate(region.branches):
            for p, names in enumerate(branch):
                where |= dict.fromkeys(names, (r, b))
                phase |= dict.fromkeys(names, p)
    place = {entries.planning.operators[name]: at for name, at in where.items()}
    users: dict[int, set[Place | None]] = {}
    asked: set[int] = set()
    for m in entries.moves:
        for name, other in ((m.writer, m.reader), (m.reader, m.writer)):
            if name is None and other is not None:
                copy = entries.vertex(None, m.tensor)
                users.setdefault(copy, set()).add(where.get(other))
                if m.tensor in entries.graph.outputs:
                    asked.add(copy)
    for copy, touched in users.items():
        only = next(iter(touched))
        if len(touched) == 1 and only is not None and copy not in asked:
            place[copy] = only
    inner: dict[Place, list[int]] = {at: [] for at in where.values()}
    crossing: dict[Place, list[int]] = {at: [] for at in where.values()}
    for number, m in enumerate(entries.moves):
        ends = [place.get(entries.vertex(name, m.tensor)) for name in (m.writer, m.reader)]
        if ends[0] is not None and ends[0] == ends[1]:
            inner[ends[0]].append(number)
        else:
            for at in ends:
                if at is not None:
                    crossing[at].append(number)
    return Parts(place, phase, inner, crossing)


def wrong_names(graph: Graph, regions: Sequence[Region]) -> str:
    """Why regions do not name operators of the graph; empty if they do."""
    known, seen = {op.name for op in graph.operators}, set[str]()
    if not regions:
        return "there are no regions"
    for r, region in enumerate(regions):
        for branch in region.branches:
            for name in (n for names in branch for n in names):
                if name not in known or name in seen:
                    return f"region {r}: {name!r} is no operator, or belongs to two branches"
                seen.add(name)
            if not any(branch):
                return f"region {r}: a branch has no operators"
    return ""


def wrong_divisions(machine: Machine, regions: Sequence[Region], budget: Budget | None = None) -> str:
    """Why a division is none of the machine; empty if all are."""
    budget = Budget.with_large() if budget is None else budget
    if machine.others:
        return "submeshes of a machine with several classes of devices have no price"
    for r, region in enumerate(regions):
        for m, views in enumerate(region.divisions):
            for view in views:
                if wrong := wrong_submesh(view, machine.hierarchy):
                    return f"region {r}, division {m}: {wrong}"
            distinct = list(dict.fromkeys(views))
            levels = len(machine.hierarchy)
            budget.charge(OBJECT * 8 * levels * len(distinct) * (1 + len(distinct)), f"region {r}, division {m}")
            for k, one in enumerate(distinct):
                if any(meet(one, other) for other in distinct[:k]):
                    return f"region {r}, division {m}: two of its submeshes share devices and are not equal"
        if any(level.collectives for level in machine.levels) and shares_links([region], machine.hierarchy):
            return f"region {r}: a submesh has a part of links whose collectives were measured whole"
        if len(set(region.divisions)) < len(region.divisions):
            return f"region {r}: a division is listed twice"
    return ""


def meet(one: Submesh, other: Submesh) -> bool:
    """Whether two boxes of a machine have devices in common: on every level their children do.

    >>> meet(Submesh((0, 0), (2, 2)), Submesh((1, 0), (1, 4))), meet(Submesh((0, 0), (2, 2)), Submesh((0, 2), (2, 2)))
    (True, False)
    """
    ends = zip(one.starts, one.counts, other.starts, other.counts, strict=True)
    return all(a < c + n and c < a + k for a, k, c, n in ends)


def wrong_submesh(view: Submesh, hierarchy: tuple[int, ...]) -> str:
    """Why a view is no aligned box of the machine; empty if it is."""
    if len(view.starts) != len(hierarchy) or len(view.counts) != len(hierarchy):
        return f"a submesh has {len(view.starts)} starts and {len(view.counts)} counts for {len(hierarchy)} levels"
    for start, count, size in zip(view.starts, view.counts, hierarchy, strict=True):
        if count < 1 or size % count or start % count or not 0 <= start <= size - count:
            return f"{count} children from {start} on are no aligned part of {size}"
    return ""


def devices(view: Submesh, machine: Machine) -> list[int]:
    """Device numbers of a view, ascending.

    >>> from ...models.machine.machine import load_machine
    >>> devices(Submesh((1, 0), (1, 2)), load_machine("2x4"))
    [4, 5]
    """
    found = []
    for device in range(machine.devices):
        rest, inside = device, True
        for start, count, size in reversed(list(zip(view.starts, view.counts, machine.hierarchy, strict=True))):
            rest, at = divmod(rest, size)
            inside = inside and start <= at < start + count
        if inside:
            found.append(device)
    return found


def wrong_regions(entries: Entries, regions: Sequence[Region], parts: Parts) -> str:
    """Why a region cannot run side by side; empty if all can."""
    graph = entries.graph
    region_of = {name: (at[0], at[1]) for name, at in _operators(entries, parts).items()}
    for number, m in enumerate(entries.moves):
        ends = [parts.place.get(entries.vertex(name, m.tensor)) for name in (m.writer, m.reader)]
        if None not in ends and ends[0] != ends[1]:
            return f"{m.tensor!r} moves from one branch to another (movement {number})"
    for at, inner in parts.inner.items():
        members = parts.members(at)
        beside: dict[int, list[int]] = {v: [] for v in members}
        for number in inner:
            m = entries.moves[number]
            u, v = entries.vertex(m.writer, m.tensor), entries.vertex(m.reader, m.tensor)
            beside[u].append(v)
            beside[v].append(u)
        linked, todo = {members[0]}, [members[0]]
        while todo:
            new = set(beside[todo.pop()]) - linked
            linked |= new
            todo += new
        if len(linked) < len(members):
            return f"region {at[0]}: branch {at[1]} does not hang together"
    before = _before(graph)
    for first, second in before:
        a, b = region_of.get(first), region_of.get(second)
        together = a is not None and b is not None and a[0] == b[0] and a[1] != b[1]
        if together and parts.phase[first] == parts.phase[second]:
            return f"{second!r} has to wait for {first!r}, which is in another branch of the same phase"
    return _circle(graph, before, region_of, parts.phase)


def _operators(entries: Entries, parts: Parts) -> dict[str, Place]:
    return {name: parts.place[v] for name, v in entries.planning.operators.items() if v in parts.place}


def _before(graph: Graph) -> set[tuple[str, str]]:
    """Pairs of operators of which the second waits for the first."""
    writer = {op.output.tensor: op.name for op in graph.operators}
    found = {(writer[a.tensor], op.name) for op in graph.operators for a in op.inputs if a.tensor in writer}
    for value, parameter in replaces(graph).items():
        readers = {op.name for op in graph.operators for a in op.inputs if a.tensor == parameter}
        found |= {(name, writer[value]) for name in readers - {writer[value]}}
    return found


def _circle(graph: Graph, before: set[tuple[str, str]], region_of: dict[str, Place], phase: dict[str, int]) -> str:
    """A phase that would have to wait for itself; empty if there is none."""

    def node(name: str) -> object:
        return (region_of[name][0], phase[name]) if name in region_of else name

    nodes = dict.fromkeys(node(op.name) for op in graph.operators)
    after: dict[object, set[object]] = {n: set() for n in nodes}
    waits = dict.fromkeys(nodes, 0)
    for first, second in before:
        a, b = node(first), node(second)
        if a != b and b not in after[a]:
            after[a].add(b)
            waits[b] += 1
    free = [n for n, k in waits.items() if not k]
    done = 0
    while free:
        n = free.pop()
        done += 1
        for other in after[n]:
            waits[other] -= 1
            if not waits[other]:
                free.append(other)
    if done == len(nodes):
        return ""
    stuck = next(n for n in nodes if waits[n] and isinstance(n, tuple))
    return f"region {stuck[0]}: phase {stuck[1]} would have to wait for itself"


def shares_links(regions: Sequence[Region], hierarchy: tuple[int, ...]) -> bool:
    """Whether a view crosses links of which other devices have a part."""
    for view in (v for r in regions for views in r.divisions for v in views):
        for level in range(len(hierarchy)):
            if prod(view.counts[: level + 1]) > 1 and tuple(view.counts[level + 1 :]) != hierarchy[level + 1 :]:
                return True
    return False
