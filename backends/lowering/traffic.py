"""Computes bytes that a program moves, beside the least that any program with the same schedule must move.

    moved    for every tensor, what its ranks receive in all its reshardings, counted from the communication steps
    bound    what ranks must receive and do not hold, element by element; W = ranks whose operators want it, w = |W|
               whole values      ranks of W that do not hold it
               partial values    g ranks hold parts:  g - 1 + w, one less if a rank of W holds a part  (whoever first
                                 knows the sum has taken in all other parts; every other rank of W must still hear of
                                 it; with one holder per part this is attained)
             A part from an empty share of a reduction counts for nothing.  A gather at constant positions wants the
             picked rows only.

Where more is moved than the bound, `reasons` says why.  Cells: along each dimension the ends of all boxes cut the
extent into segments, so that every set above is constant on a product of segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from ...models.communication.choices import (
    Choices,
    Communication,
    communications,
    copy_layout,
    input_layout,
    iteration_box,
    output_layout,
    resting_places,
)
from ...models.communication.resharding import Reduction
from ...models.communication.transfers import Box
from ...models.layout.layout import OpenDigits, coordinates
from ...models.program.graph import Graph
from ...models.program.operators import NodeKind, Operator
from ..transport.received import receives, reduction_receives
from .program import Compute, Program

REPLICAS = "each replica of the sum is reduced on its own"
Masks = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]
Boxes = npt.NDArray[np.int64]
"""Shape (ranks, dimensions, 2)."""


@dataclass(frozen=True)
class TensorTraffic:
    """Elements of one tensor (or of one operator's statistics) received by all ranks together."""

    tensor: str
    collectives: tuple[str, ...]
    moved: int
    bound: int
    element_bytes: int
    reasons: tuple[str, ...] = ()


def traffic(graph: Graph, hierarchy: tuple[int, ...], choices: Choices) -> list[TensorTraffic]:
    """One entry per tensor that moves, or would have to, in execution order."""
    by_tensor: dict[str, list[Communication]] = {}
    for m in communications(graph, hierarchy, choices):
        by_tensor.setdefault(m.tensor, []).append(m)
    found = [_tensor(graph, hierarchy, choices, name, moves) for name, moves in by_tensor.items()]
    return [t for t in found if t.moved or t.bound]


def least(graph: Graph, hierarchy: tuple[int, ...], choices: Choices, movement: Communication) -> int:
    """The bound for one resharding on its own: what its target boxes need and its source boxes do not hold."""
    source, target = movement.plan.source, movement.plan.target
    cells = _Cells(source.shape, [source.boxes, target.boxes], [])
    held, need = cells.inside(_Want(source.boxes)), cells.inside(_Want(target.boxes))
    writer = next((op for op in graph.operators if op.name == movement.writer), None)
    if writer is None or not source.open:
        return cells.count((need & ~held).sum(axis=-1))
    return cells.count(_partial(held & _busy(writer, choices, hierarchy), need, _parts(hierarchy, source.open)))


def _busy(op: Operator, choices: Choices, hierarchy: tuple[int, ...]) -> Masks:
    """Ranks whose share of the operator's iteration space is not empty."""
    boxes = (iteration_box(op, choices.of_operator(op.name), hierarchy, r) for r in range(prod(hierarchy)))
    return np.array([all(lo < hi for lo, hi in box.values()) for box in boxes])


def statistics_traffic(program: Program) -> list[TensorTraffic]:
    """One entry per normalise operator whose statistics are all-reduced; each must reach every rank of its group."""
    out = []
    for step in program.ranks[0]:
        if isinstance(step, Compute) and step.statistics:
            moved = sum(sum(map(sum, reduction_receives(s, program.hierarchy))) for s in step.statistics)
            bound = 0
            for s in step.statistics:
                g = prod(d.prime for d in s.digits)
                bound += sum(_volume(t) for t in s.tiles) // g * 2 * (g - 1)
            reasons = (REPLICAS,) if moved > bound else ()
            out.append(
                TensorTraffic(
                    f"statistics of {program.graph.operators[step.operator].name}",
                    ("all-reduce",),
                    moved,
                    bound,
                    4,
                    reasons,
                )
            )
    return out


def table(entries: Sequence[TensorTraffic]) -> str:
    """The entries as text: bytes moved, bound, and why they differ."""
    lines = [f"{'tensor':<24} {'collectives':<34} {'bytes moved':>12} {'bound':>12}"]
    for t in entries:
        why = f"  {'; '.join(t.reasons)}" if t.reasons else ""
        names = ", ".join(dict.fromkeys(c for c in t.collectives if c != "none"))
        lines.append(f"{t.tensor:<24} {names:<34} {t.moved * t.element_bytes:>12} {t.bound * t.element_bytes:>12}{why}")
    return "\n".join(lines)


def received_elements(movement: Communication) -> list[int]:
    """Elements that every rank receives in one resharding."""
    return [levels[-1] for levels in receives(movement.plan)]


def _volume(box: Box) -> int:
    return prod(hi - lo for lo, hi in box)


@dataclass(frozen=True, eq=False)
class _Want:
    """Boxes that ranks want; `picked[r]`: the only rows of dimension `dim` that rank r needs (constant gathers)."""

    boxes: Boxes
    dim: int = -1
    picked: tuple[frozenset[int], ...] = ()


def _tensor(
    graph: Graph, hierarchy: tuple[int, ...], choices: Choices, name: str, moves: Sequence[Communication]
) -> TensorTraffic:
    placements, copies = dict(choices.operators), dict(choices.copies)
    writer = next((op for op in graph.operators if op.output.tensor == name), None)
    rests = resting_places(graph).get(name)
    copied = copy_layout(name, graph, copies[rests], hierarchy) if rests is not None else None
    wants = [_wanted(graph, hierarchy, choices, graph.operators[i], j) for i, j in graph.readers()[name]]
    if writer is None:
        source = copied or input_layout(
            graph.operators[graph.readers()[name][0][0]],
            graph.readers()[name][0][1],
            graph,
            placements[moves[0].reader or ""],
            hierarchy,
        )
    else:
        source = output_layout(writer, graph, placements[writer.name], hierarchy)
        if copied is not None and name in graph.results:
            wants.append(_Want(copied.boxes))
    shape, have = graph.tensor(name).shape, source.boxes
    cells = _Cells(shape, [have, *(w.boxes for w in wants)], wants)
    held, need, hull = cells.inside(_Want(have)), cells.union(wants), cells.union([_Want(w.boxes) for w in wants])
    busy: Masks = np.ones(prod(hierarchy), dtype=bool)
    if source.open and writer is not None:
        busy = _busy(writer, choices, hierarchy)
        parts = _parts(hierarchy, source.open)
        bound = cells.count(_partial(held & busy, need, parts))
        hull_bound = cells.count(_partial(held & busy, hull, parts))
    else:
        bound, hull_bound = cells.count((need & ~held).sum(axis=-1)), cells.count((hull & ~held).sum(axis=-1))
    moved = sum(sum(received_elements(m)) for m in moves)
    reasons = _reasons(cells, moves, wants, moved, hull_bound, hull, busy) if moved > hull_bound else []
    if hull_bound > bound:
        reasons.append(f"{hull_bound - bound} elements lie between the rows that a gather picks (over-approximation)")
    return TensorTraffic(
        name, tuple(m.plan.collective() for m in moves), moved, bound, graph.tensor(name).element_bytes, tuple(reasons)
    )


def _wanted(graph: Graph, hierarchy: tuple[int, ...], choices: Choices, op: Operator, position: int) -> _Want:
    placement = dict(choices.operators)[op.name]
    boxes = input_layout(op, position, graph, placement, hierarchy).boxes
    if op.kind is not NodeKind.GATHER or position != 0:
        return _Want(boxes)
    ids = next((o for o in graph.operators if o.output.tensor == op.inputs[1].tensor), None)
    rows = str(op.attribute("rows", ""))
    dim = next(k for k, i in enumerate(op.inputs[0].index) if i.single == rows)
    if ids is None or ids.function != "constant":
        return _Want(boxes)
    listed = ids.attribute("values", ())
    values = np.array([int(v) for v in listed] if isinstance(listed, tuple) else []).reshape(
        graph.tensor(ids.output.tensor).shape
    )
    seen = input_layout(op, 1, graph, placement, hierarchy).boxes
    picked = []
    for r, box in enumerate(seen.tolist()):
        low, high = boxes[r, dim].tolist()
        inside = values[tuple(slice(lo, hi) for lo, hi in box)]
        picked.append(frozenset(int(v) for v in np.unique(inside) if low <= v < high))
    return _Want(boxes, dim, tuple(picked))


class _Cells:
    """Products of segments; every mask has shape (segments of dimension 0, .., ranks)."""

    def __init__(self, shape: tuple[int, ...], boxes: Sequence[Boxes], wants: Sequence[_Want]) -> None:
        self.ranks = boxes[0].shape[0]
        self.low, self.high = [], []
        volume: Counts = np.ones((), dtype=np.int64)
        for k, extent in enumerate(shape):
            ends = {0, extent, *(int(e) for b in boxes for e in b[:, k, :].reshape(-1))}
            ends |= {e for w in wants if w.dim == k for rows in w.picked for i in rows for e in (i, i + 1)}
            points = np.array(sorted(ends), dtype=np.int64)
            self.low.append(points[:-1])
            self.high.append(points[1:])
            volume = volume[..., None] * (points[1:] - points[:-1])
        self.volume = volume

    def inside(self, want: _Want) -> Masks:
        """Cells inside every rank's box (and picked rows)."""
        out: Masks = np.ones((self.ranks,), dtype=bool)
        for k, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            mask = (want.boxes[:, k, 0] <= low[:, None]) & (want.boxes[:, k, 1] >= high[:, None])
            if k == want.dim:
                mask &= np.array([[int(p) in rows for rows in want.picked] for p in low])
            out = out[..., None, :] & mask
        return out

    def union(self, wants: Sequence[_Want]) -> Masks:
        """Cells that some want of a rank contains."""
        out: Masks = np.zeros((*self.volume.shape, self.ranks), dtype=bool)
        for w in wants:
            out |= self.inside(w)
        return out

    def count(self, each: Counts) -> int:
        """Sum over the elements."""
        return int((each * self.volume).sum())


def _parts(hierarchy: tuple[int, ...], digits: OpenDigits) -> Counts:
    """Number of the part that every rank holds."""
    at = coordinates(hierarchy)
    part = np.zeros(at.shape[0], dtype=np.int64)
    for d in digits:
        part = part * d.prime + at[:, d.level] // d.stride % d.prime
    return part


def _partial(held: Masks, need: Masks, parts: Counts) -> Counts:
    """Messages per element of a partial tensor."""
    g = sum(
        (held[..., parts == p].any(axis=-1).astype(np.int64) for p in np.unique(parts)),
        np.zeros(held.shape[:-1], dtype=np.int64),
    )
    w = need.sum(axis=-1)
    return np.where((w > 0) & (g > 0), np.maximum(g - 1 + w - (held & need).any(axis=-1), 0), 0)


def _reasons(
    cells: _Cells,
    moves: Sequence[Communication],
    wants: Sequence[_Want],
    moved: int,
    bound: int,
    need: Masks,
    busy: Masks,
) -> list[str]:
    """`busy`: the ranks whose share of the writer's iteration space is not empty."""
    out = []
    reductions = [s for m in moves for s in m.plan.steps if isinstance(s, Reduction)]
    targets = [cells.inside(_Want(w.boxes)) for w in wants]
    if sum(cells.count(t.sum(axis=-1)) for t in targets) > cells.count(need.sum(axis=-1)) and len(targets) > 1:
        out.append("several readers receive the same elements")
    stop = [m for m in moves if m.reader is None and m.writer is not None]
    if stop and any(cells.count((_within(cells, m) & ~need).sum(axis=-1)) for m in stop):
        out.append("the shared copy holds elements that its rank does not read")
    if reductions and not out:
        idle = int((~busy).sum())
        out.append(f"{idle} ranks without a part take part in the sum" if idle else REPLICAS)
    return out or [f"{moved - bound} elements more than needed"]


def _within(cells: _Cells, movement: Communication) -> Masks:
    """Cells that touch the target boxes of a movement."""
    out: Masks = np.ones((cells.ranks,), dtype=bool)
    boxes = movement.plan.target.boxes
    for k, (low, high) in enumerate(zip(cells.low, cells.high, strict=True)):
        out = out[..., None, :] & ((boxes[:, k, 0] < high[:, None]) & (boxes[:, k, 1] > low[:, None]))
    return out
