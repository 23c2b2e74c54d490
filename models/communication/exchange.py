"""Exchanges: elements that a subtree of devices needs and does not hold enter it once, level by
level, outermost first.

Along each dimension the end points of all intervals of source A and target B cut the extent into segments; a cell is a
product of segments.  Every box is a union of cells, so who holds and who needs is decided once per cell.  With H the
holders of a cell and W those that need it and do not hold it, at level i:

    new        a subtree below level i with a member in W and none in H; the lowest such member receives the cell
    sender     the holder under the same subtree of level i whose lower coordinates differ least from the receiver's;
               then the next one around the level; then the lowest: replicas are used evenly
    then       the receivers join H

Cells that go from one device to the same other and abut become one box.  All of it is arrays of pairs (cell, device),
sorted by cell.

Source: thesis on automatic partitioning of array programs, chapters 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..layout.layout import Layout, coordinates
from ..problem.selection_problem import Ints
from .transfers import Exchange, Transfers

MOST_JOINED: Final = 1 << 22
"""Pairs of a receiver and a holder that are compared at a time."""

Pairs = tuple[Ints, Ints]
"""Cells and devices of pairs, sorted by (cell, device)."""


def exchanges(source: Layout, target: Layout) -> list[Exchange]:
    """(L1) of `models.communication.pricing` as transfers: see the module docstring.

    Raises ValueError if an element is needed and held by no device, or the tensor is too finely cut for cells to be
    numbered.
    """
    hierarchy = source.hierarchy
    cuts = [
        np.unique(np.concatenate([side.boxes[:, k].reshape(-1) for side in (source, target)]))
        for k in range(len(source.shape))
    ]
    if prod(cut.size - 1 for cut in cuts) * prod(hierarchy) >= 1 << 62:  # pairs of a cell and a device are numbered
        raise ValueError(f"a tensor of shape {source.shape} is too finely cut between {prod(hierarchy)} devices")
    needing = _cells(target, cuts)
    holders = _cells(source, cuts, np.unique(needing[0]))
    wanting = _without(needing, holders, prod(hierarchy))
    out = []
    for level in range(len(hierarchy)):
        cells, senders, receivers = _arrivals(holders, wanting, hierarchy, level)
        if cells.size:
            out.append(Exchange(level, merge_transfers(Transfers(senders, receivers, _boxes(cells, cuts)))))
            arrived = (cells, receivers)
            holders, wanting = (
                _sorted(np.concatenate([holders[0], cells]), np.concatenate([holders[1], receivers])),
                _without(wanting, arrived, prod(hierarchy)),
            )
    return out


def _cells(layout: Layout, cuts: list[Ints], among: Ints | None = None) -> Pairs:
    """Pairs of a device and each cell of its box (`among`: only these, ascending); cells are numbered in row-major
    order of the segments.
    """
    boxes, which = np.unique(
        layout.boxes.reshape(layout.boxes.shape[0], -1), axis=0, return_inverse=True
    )  # replicas are cut once
    boxes = boxes.reshape(-1, *layout.boxes.shape[1:])
    number, cells = np.arange(boxes.shape[0]), np.zeros(boxes.shape[0], dtype=np.int64)
    full = (boxes[:, :, 0] < boxes[:, :, 1]).all(axis=1)
    number, cells = number[full], cells[full]
    for k, cut in enumerate(cuts):
        first, last = (np.searchsorted(cut, boxes[number, k, side]) for side in (0, 1))
        counts = last - first
        number, cells, first = np.repeat(number, counts), np.repeat(cells, counts), np.repeat(first, counts)
        cells = cells * (cut.size - 1) + first + _ranks(counts)
    if among is not None:
        wanted = _among(cells, among)
        number, cells = number[wanted], cells[wanted]
    replicas = np.argsort(which.reshape(-1), kind="stable")  # devices, box by box
    many = np.bincount(which.reshape(-1), minlength=boxes.shape[0])
    counts = many[number]
    devices = replicas[np.repeat((np.cumsum(many) - many)[number], counts) + _ranks(counts)]
    return _sorted(np.repeat(cells, counts), devices)


def _sorted(cells: Ints, devices: Ints) -> Pairs:
    order = np.lexsort((devices, cells))
    return cells[order], devices[order]


def _ranks(counts: Ints) -> Ints:
    """0 .. n - 1 for every n of `counts`, one after another.

    >>> _ranks(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if ends.size else 0) - np.repeat(ends - counts, counts)


def _without(pairs: Pairs, others: Pairs, devices: int) -> Pairs:
    left = ~_among(pairs[0] * devices + pairs[1], others[0] * devices + others[1])
    return pairs[0][left], pairs[1][left]


def _among(keys: Ints, known: Ints) -> NDArray[np.bool_]:
    """Which of `keys` are in `known`, which is sorted."""
    if known.size == 0:
        return np.zeros(keys.size, dtype=bool)
    return np.asarray(known[np.minimum(np.searchsorted(known, keys), known.size - 1)] == keys)


def _arrivals(holders: Pairs, wanting: Pairs, hierarchy: tuple[int, ...], level: int) -> tuple[Ints, Ints, Ints]:
    """Cells, senders and receivers of what enters subtrees below `level`."""
    subtrees, children = prod(hierarchy[:level]), prod(hierarchy[: level + 1])
    around, below = prod(hierarchy[level:]), prod(hierarchy[level + 1 :])
    child = wanting[0] * children + wanting[1] // below
    first = np.ones(child.size, dtype=bool)
    first[1:] = child[1:] != child[:-1]
    first &= ~_among(child, holders[0] * children + holders[1] // below)
    cells, receivers = wanting[0][first], wanting[1][first]
    if not cells.size:
        return cells, cells, cells
    at = holders[0] * subtrees + holders[1] // around
    parent = cells * subtrees + receivers // around
    begin, end = np.searchsorted(at, parent), np.searchsorted(at, parent, side="right")
    if (begin == end).any():
        raise ValueError(
            f"an element is needed by device {int(receivers[np.argmax(begin == end)])} and held by no device"
        )
    senders = [
        _nearest(holders[1], begin[part], end[part], receivers[part], hierarchy, level) for part in _parts(end - begin)
    ]
    return cells, np.concatenate(senders), receivers


def _parts(counts: Ints) -> Iterator[slice]:
    """Ranges of receivers that are compared with their holders at a time."""
    share = np.cumsum(counts) // MOST_JOINED
    starts = np.flatnonzero(np.diff(share, prepend=-1)).tolist()
    for begin, end in zip(starts, [*starts[1:], counts.size], strict=True):
        yield slice(begin, end)


def _nearest(holders: Ints, begin: Ints, end: Ints, receivers: Ints, hierarchy: tuple[int, ...], level: int) -> Ints:
    """The sender for every receiver, of its holders `holders[begin:end]`: see the module docstring."""
    counts = end - begin
    one = np.repeat(np.arange(counts.size), counts)
    sender = holders[np.repeat(begin, counts) + _ranks(counts)]
    at = coordinates(hierarchy)
    here, there = at[receivers[one]], at[sender]
    apart = (here[:, level + 1 :] != there[:, level + 1 :]).sum(axis=1)
    key = (apart * hierarchy[level] + (here[:, level] - there[:, level]) % hierarchy[level]) * prod(hierarchy) + sender
    best = np.minimum.reduceat(key, np.cumsum(counts) - counts)
    return np.asarray(best % prod(hierarchy))


def _boxes(cells: Ints, cuts: list[Ints]) -> Ints:
    """The boxes of cells: shape (cells, dimensions, 2)."""
    out = np.empty((cells.size, len(cuts), 2), dtype=np.int64)
    for k in reversed(range(len(cuts))):
        cells, at = np.divmod(cells, cuts[k].size - 1)
        out[:, k, 0], out[:, k, 1] = cuts[k][at], cuts[k][at + 1]
    return out


def merge_transfers(transfers: Transfers) -> Transfers:
    """Boxes of the same (target, source) that abut along one dimension become one, last dimension first; sorted by
    (target, source, box).
    """
    sources, targets, boxes = transfers.sources, transfers.targets, transfers.boxes
    dimensions = boxes.shape[1]
    if dimensions == 0:
        order = np.lexsort((sources, targets))
        return Transfers(sources[order], targets[order], boxes[order])
    for k in reversed(range(dimensions)):
        others = [boxes[:, i, side] for i in range(dimensions) if i != k for side in (0, 1)]
        order = np.lexsort((boxes[:, k, 0], *reversed(others), sources, targets))
        sources, targets, boxes = sources[order], targets[order], boxes[order]
        begins = np.ones(sources.size, dtype=bool)
        begins[1:] = (
            (targets[1:] != targets[:-1]) | (sources[1:] != sources[:-1]) | (boxes[1:, k, 0] != boxes[:-1, k, 1])
        )
        for i in range(dimensions):
            if i != k:
                begins[1:] |= (boxes[1:, i] != boxes[:-1, i]).any(axis=1)
        first = np.flatnonzero(begins)
        high = boxes[np.append(first[1:], sources.size) - 1, k, 1]
        sources, targets, boxes = sources[first], targets[first], boxes[first]
        boxes[:, k, 1] = high
    return Transfers(sources, targets, boxes)
