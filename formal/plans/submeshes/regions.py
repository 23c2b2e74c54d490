"""Which regions of a graph are worth a view, and which divisions of the machine are tried on them.

    join       an operator; *shared* is what at least two of its operands depend on, with all that it depends on
    branches   what the join depends on and is not shared, in parts that exchange no tensor: two or more make a region;
               of a training step joins of the forward pass, and what belongs to its branches behind it (`backward`)
    overlap    of two regions with a common operator the one with more operators is taken

    division   the machine in n equal views, outer levels first or one level alone, or in a half and two quarters; the
               branches dealt out by least operator time, longest first, to the view that has least

Nothing of this is believed: the checker looks at the regions themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from ....models.cost.limits import TooLarge
from ....models.cost.selection import Planning
from ....models.layout.submesh import Submesh
from ....models.machine.machine import Machine
from ....models.program.graph import Graph
from ....models.views.regions import Branch, Region
from .backward import forward, tied
from .branches import BranchParts
from .problem import Submeshes, own_of

MOST_REGIONS = 16
MOST_DIVISIONS = 6
MOST_VIEWS = 16


def branches_of(graph: Graph) -> tuple[tuple[Branch, ...], ...]:
    """Branches of every region, in the order of the graph.

    >>> from ....models.sources.zoo import build
    >>> [len(b) for b in branches_of(build("candle-uno", batch=8, width=12, tower=2, layers=2))]
    [5]
    """
    n, writer = len(graph.operators), graph.writer()
    inputs = [sorted({writer[a.tensor] for a in op.inputs if a.tensor in writer}) for op in graph.operators]
    above: list[int] = []  # what an operator depends on, itself included, as a set of bits
    for i in range(n):
        bits = 1 << i
        for j in inputs[i]:
            bits |= above[j]
        above.append(bits)
    found: list[tuple[int, list[list[int]]]] = []
    ahead = forward(graph)
    for i in range(n):
        if len(inputs[i]) < 2 or graph.operators[i].name not in ahead:
            continue
        seen = shared = 0
        for j in inputs[i]:
            shared |= seen & above[j]
            seen |= above[j]
        for j in inputs[i]:  # an operand that another one depends on is no end of a branch
            if any(j != k and above[k] >> j & 1 for k in inputs[i]):
                shared |= above[j]
        parts = _parts([k for k in range(n) if (seen & ~shared) >> k & 1], inputs)
        if len(parts) > 1:
            found.append((i, parts))
    taken = set[int]()
    out: list[tuple[int, tuple[Branch, ...]]] = []
    for i, parts in sorted(found, key=lambda f: (-sum(map(len, f[1])), f[0])):
        mine = {k for part in parts for k in part}
        if not mine & taken and len(out) < MOST_REGIONS:
            taken |= mine
            out.append((i, tuple((tuple(graph.operators[k].name for k in part),) for part in parts)))
    return tuple(parts for _, parts in sorted(out, key=lambda f: f[0]))


def _parts(members: Sequence[int], inputs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Members connected by what they write and read, in order of their first one."""
    parent = {k: k for k in members}

    def root(k: int) -> int:
        while parent[k] != k:
            k = parent[k]
        return k

    for k in members:
        for j in inputs[k]:
            if j in parent:
                a, b = sorted((root(j), root(k)))
                parent[b] = a
    out: dict[int, list[int]] = {}
    for k in members:
        out.setdefault(root(k), []).append(k)
    return list(out.values())


def equal_divisions(hierarchy: Sequence[int], parts: int) -> tuple[int, ...] | None:
    """Level sizes of `parts` equal views, outer levels cut first; None if there are none.

    >>> equal_divisions((4, 8), 2), equal_divisions((4, 8), 8), equal_divisions((4, 8), 3)
    ((2, 8), (1, 4), None)
    """
    sizes = list(hierarchy)
    for j, size in enumerate(sizes):
        if size % parts == 0:
            sizes[j] = size // parts
            return tuple(sizes)
        if parts % size:
            return None
        parts, sizes[j] = parts // size, 1
    return tuple(sizes) if parts == 1 else None


def grids(hierarchy: tuple[int, ...], branches: int) -> Iterator[tuple[Submesh, ...]]:
    """Lists of views without common devices, at most one per branch, each once."""
    seen = set[tuple[Submesh, ...]]()
    sizes: list[tuple[int, ...]] = []
    for parts in range(2, min(branches, MOST_VIEWS) + 1):
        if (counts := equal_divisions(hierarchy, parts)) is not None:
            sizes.append(counts)
    for parts in range(2, min(branches, MOST_VIEWS) + 1):
        for j, size in enumerate(hierarchy):
            if size % parts == 0:
                sizes.append((*hierarchy[:j], size // parts, *hierarchy[j + 1 :]))
    more = next((p for p in range(branches + 1, MOST_VIEWS + 1) if equal_divisions(hierarchy, p) is not None), None)
    if more is not None:  # idle views cost nothing where small ones do best
        sizes.append(equal_divisions(hierarchy, more) or hierarchy)
    for counts in sizes:
        boxes = _boxes(hierarchy, counts)
        if boxes not in seen:
            seen.add(boxes)
            yield boxes
    two, four = equal_divisions(hierarchy, 2), equal_divisions(hierarchy, 4)
    if branches > 2 and two is not None and four is not None:
        half = _boxes(hierarchy, two)[0]
        rest = [v for v in _boxes(hierarchy, four) if not v.meets(half)]
        if len(rest) == 2:
            yield (half, *rest)


def _boxes(hierarchy: tuple[int, ...], counts: tuple[int, ...]) -> tuple[Submesh, ...]:
    """All boxes of one size."""
    starts = product(*(range(0, h, c) for h, c in zip(hierarchy, counts, strict=True)))
    return tuple(Submesh(start, counts) for start in starts)


def regions_of(
    planning: Planning,
    branches: Sequence[tuple[Branch, ...]],
    views: Submeshes | None = None,
    over: Callable[[], bool] = lambda: False,
) -> tuple[Region, ...]:
    """Regions with their divisions; those that are too large to be tabulated are left out, those that come when the
    time is `over` (but for the first), and regions without any.  `views`: prices of the planning, which are kept there.
    """
    out: list[Region] = []
    hierarchy, views = planning.machine.hierarchy, views or Submeshes(planning)
    for parts in tied(planning.graph, branches):
        weights = [
            sum(int(planning.problem.vertices[planning.operators[n]].cost.min()) for phase in b for n in phase)
            for b in parts
        ]
        own = own_of(planning, (Region(parts, ()),))[0]
        if not all(is_connected(planning, one) for one in own):
            continue
        divisions: list[tuple[Submesh, ...]] = []
        for boxes in grids(hierarchy, len(parts)):
            division = _dealt(weights, boxes)
            if divided_measured(planning.machine, boxes) or ((out or divisions) and over()):
                continue
            try:
                for view, members in Region(parts, (division,)).groups(0):
                    views.group(view, members, own)
            except TooLarge:
                continue
            if division not in divisions:
                divisions.append(division)
        if divisions:
            out.append(Region(parts, tuple(divisions[:MOST_DIVISIONS])))
    return tuple(out)


def is_connected(planning: Planning, own: BranchParts) -> bool:
    """Whether a branch hangs together by its own movements, so that all of it is on one view."""
    links = [(planning.problem.edges[e].u, planning.problem.edges[e].v) for e in own.inner]
    near: dict[int, list[int]] = {v: [] for v in own.vertices}
    for u, v in links:
        near[u].append(v)
        near[v].append(u)
    seen, left = {own.vertices[0]}, [own.vertices[0]]
    while left:
        new = {w for w in near[left.pop()] if w not in seen}
        seen |= new
        left += new
    return len(seen) == len(own.vertices)


def divided_measured(machine: Machine, boxes: Sequence[Submesh]) -> bool:
    """Whether a view would have a part of links whose collectives were measured whole."""
    return any(level.collectives for level in machine.levels) and any(v.divides_links(machine.hierarchy) for v in boxes)


def _dealt(weights: Sequence[int], boxes: Sequence[Submesh]) -> tuple[Submesh, ...]:
    """A view for every branch: longest first, each to the view that is ready first."""
    size = [_volume(b) for b in boxes]
    load = [0] * len(boxes)
    out: dict[int, Submesh] = {}
    for i in sorted(range(len(weights)), key=lambda k: (-weights[k], k)):
        g = min(range(len(boxes)), key=lambda b: ((load[b] + weights[i]) * size[0] // size[b], b))
        load[g] += weights[i]
        out[i] = boxes[g]
    return tuple(out[i] for i in range(len(weights)))


def _volume(view: Submesh) -> int:
    total = 1
    for count in view.counts:
        total *= count
    return total
