"""Both ends of every movement of a graph, bounded from above: layouts, intervals and blocks of an operand.

A layout depends only on the rows that it involves and on what the rows between them multiply to (`limits.Counter`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ..communication.choices import resting_places
from ..layout.classes import operator_key
from ..layout.layout import is_coupled
from ..program.graph import Graph, Role
from ..program.index import Access
from ..program.operators import Operator

Involving = Callable[[Sequence[int], Sequence[bool]], int]
"""At most so many layouts of axes with these limits depend on these of them (`limits.Counter.involving`)."""


@dataclass(frozen=True)
class End:
    """One end of a movement, bounded from above: `layouts`, and per dimension the `intervals` and the `blocks` of
    one layout; `gaps`: whether unions of intervals may have some.
    """

    key: object
    layouts: int
    intervals: tuple[int, ...]
    blocks: tuple[int, ...]
    merged: tuple[bool, ...]
    gaps: tuple[bool, ...]
    coupled: bool


@dataclass(frozen=True)
class Ends:
    """Ends by what they depend on, each bounded once.  `operators`, `orders`, `limits`: of an owner, by its key: the
    operator, its axes in order, and how far each may be split.
    """

    involving: Involving
    devices: int
    uneven: bool
    operators: Mapping[str, Operator]
    orders: Mapping[str, tuple[str, ...]]
    limits: Mapping[str, list[int]]
    known: dict[object, End] = field(default_factory=dict)

    def of(self, access: Access | None, owner: str) -> End:
        """The end at an operand of an operator; None: at the copy of a tensor."""
        order, bound = self.orders[owner], self.limits[owner]
        written = owner in self.operators and access is self.operators[owner].output
        combined = tuple(a.name for a in self.operators[owner].axes if a.combine is not None) if written else ()
        known = (None if access is None else access.index, order, tuple(bound), combined)
        if known not in self.known:
            self.known[known] = self._bounded(access, order, bound, set(combined))
        return self.known[known]

    def _bounded(self, access: Access | None, order: tuple[str, ...], bound: list[int], reduced: set[str]) -> End:
        if access is None:
            touched, whole = [{k} for k in sorted(order, key=int)], [True] * len(order)
        else:
            touched = [{name for name, _ in index.terms} for index in access.index]
            whole = [len(i.terms) < 2 and all(c == 1 for _, c in i.terms) and not i.offset for i in access.index]
        involved = reduced.union(*touched)
        pattern = [n in involved for n in order]
        parts = [[n in names for n in order] for names in touched]
        coupled = access is not None and is_coupled(access)
        devices = self.devices
        return End(
            (tuple(bound), tuple(pattern), tuple(map(tuple, parts)), coupled),
            self.involving(bound, pattern),
            tuple(self.involving(bound, p) for p in parts),
            tuple(min(devices, prod(n for n, mine in zip(bound, part, strict=True) if mine)) for part in parts),
            tuple(len(names) > 1 for names in touched),
            tuple(self.uneven or not plain for plain in whole),
            coupled,
        )


def coupled_cells(a: End, b: End, hierarchy: tuple[int, ...]) -> int:
    """Cells of all pairs of layouts, for every device, at every level that has subtrees of several devices."""
    if not (a.coupled or b.coupled):
        return 0
    ends = prod(m + n for m, n in zip(a.blocks, b.blocks, strict=True))
    levels = sum(prod(hierarchy[j + 1 :]) > 1 for j in range(len(hierarchy)))
    return a.layouts * b.layouts * ends * prod(hierarchy) * levels


def communication_edges(graph: Graph) -> Iterator[tuple[str, str, str, int]]:
    """(tensor, writer, reader, input position) of every movement, keys of axis orders; empty for a copy: see
    `models.cost.selection`.
    """
    readers, resting = graph.readers(), resting_places(graph)
    for t in graph.tensors:
        if t.role is not Role.VALUE and t.name in resting:
            yield from (
                (t.name, "", operator_key(graph.operators[i].name), position) for i, position in readers[t.name]
            )
    for op in graph.operators:
        name = op.output.tensor
        if name in resting:
            yield name, operator_key(op.name), "", 0
        yield from (
            (name, "" if name in resting else operator_key(op.name), operator_key(graph.operators[i].name), position)
            for i, position in readers[name]
        )
