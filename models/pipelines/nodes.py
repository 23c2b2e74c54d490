"""Problems in which every node of a view is one device: lower bounds that cost next to nothing.

A view of n nodes, each of k devices, becomes a machine of n devices with k times the arithmetic and k times the memory
bandwidth, joined by the links between nodes.  Every placement X on the view has one here, X', that splits over nodes as
X does (the outermost column of every matrix), and no entry of X' is above that of X:

    operators   the boxes of a node's devices cover the box of X', so the largest of k devices does at least a k-th
    fetches     what enters a node is the same; what moves inside a node costs nothing here
    reductions  w_0 q >= q': a node's share of a sum is all that its devices have of it.  Where what is read lies
                inside what is there on every node, but not on every device, X reduces the whole, X' at most as much

This holds for even splits, a number of nodes that is a power of two, and indices that are one axis of its own with a
shift, a constant or the whole dimension.  Edges to accesses that a shift cuts (`plain`) cost nothing here.  Entries are
rounded up once each, so a leaf counts one unit less per entry.  `docs/certificate-format.md` says it in full.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ..cost.selection import DecisionKind, Planning
from ..layout.placement import Space
from ..machine.machine import Machine
from ..program.graph import Graph
from ..program.index import Access
from ..program.operators import Operator


def nodes(view: Machine, where: Space) -> Machine | None:
    """The view with every node as one device; None where that says nothing, or is no bound.

    >>> from ..layout.placement import space
    >>> from ..machine.machine import load_machine
    >>> whole = nodes(load_machine("cloud-a100:4x8"), space("complete"))
    >>> whole.hierarchy, int(whole.device.peak("bfloat16") / 10**12)
    ((4,), 1200)
    """
    n, k = view.hierarchy[0], prod(view.hierarchy[1:])
    if n < 2 or n & (n - 1) or k == 1 or where.uneven or where.vocabulary:
        return None
    if view.others or view.profiles or view.device.products or view.device.attentions or view.levels[0].collectives:
        return None
    device = replace(
        view.device,
        peaks=tuple((dtype, rate * k) for dtype, rate in view.device.peaks),
        bandwidth=view.device.bandwidth * k,
    )
    return replace(view, levels=view.levels[:1], device=device, resources=(), reduction=None)


def single(graph: Graph) -> bool:
    """Whether every index is one axis with a shift, a constant, or the whole dimension, and no access has an axis in
    two of them: the boxes of a node's devices then make one box.
    """
    return all(_single(a) for op in graph.operators for a in (*op.inputs, op.output))


def _single(access: Access) -> bool:
    terms = [index.terms for index in access.index if not index.whole and index.terms]
    names = {term[0][0] for term in terms}
    return len(names) == len(terms) and all(len(term) == 1 and term[0][1] == 1 for term in terms)


def loose(planning: Planning) -> frozenset[int]:
    """Edges of a problem of nodes that cost nothing: to or from an access that is not plain."""
    by_name = {op.name: op for op in planning.graph.operators}
    known: dict[tuple[str, int | None], bool] = {}

    def wrong(vertex: int, position: int | None) -> bool:
        d = planning.decisions[vertex]
        if d.kind is DecisionKind.COPY:
            return False
        if (d.name, position) not in known:
            op = by_name[d.name]
            known[d.name, position] = not plain(
                planning.graph, op, op.output if position is None else op.inputs[position]
            )
        return known[d.name, position]

    return frozenset(
        e
        for e, r in enumerate(planning.routes)
        if wrong(r.source, None) or (r.input_position is not None and wrong(r.target, r.input_position))
    )


def plain(graph: Graph, op: Operator, access: Access) -> bool:
    """Whether a `single` access cuts nothing off, so that all boxes are of one size."""
    shape = graph.tensor(access.tensor).shape
    return all(
        index.whole or 0 <= index.offset <= size - prod(op.axis(name).extent for name, _ in index.terms)
        for index, size in zip(access.index, shape, strict=True)
    )
