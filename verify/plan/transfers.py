"""Checks transfers of exchanges, and whether every device ends with its target box: the part of `Delivers`
that is about messages.

Between a thousand devices an exchange has a million transfers, so each test is one over arrays; what it names is the
first transfer that fails it.  Which tests these are: see `verify/plan/communication.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...models.communication.transfers import Exchange, Transfers
from .boxes import Box

MOST_CELLS = 1 << 24
MOST_PAIRS = 1 << 20
"""Boxes that are sent against boxes that were received before, at a time."""

Counts = NDArray[np.int64]
Boxes = NDArray[np.int64]
"""Half-open boxes: shape (boxes, dimensions, 2)."""
Flags = NDArray[np.bool_]


class Refuted(Exception):
    """A step that is wrong; the message names rank and box."""


class Arrivals:
    """What devices hold while exchanges go on: `have`, one box per device before the first, and what they received
    since.

    `shape` is that of the tensor.  Raises ValueError if it has too many elements to be counted.
    """

    def __init__(self, hierarchy: tuple[int, ...], shape: tuple[int, ...], have: Sequence[Box]) -> None:
        if prod(shape) >= 1 << 62:
            raise ValueError(f"a tensor of shape {shape} has too many elements to be counted")
        self.hierarchy, self.shape = hierarchy, shape
        self.have = _array(have, len(shape))
        self.targets: Counts = np.zeros(0, dtype=np.int64)
        self.boxes: Boxes = np.zeros((0, len(shape), 2), dtype=np.int64)

    def add(self, step: Exchange) -> None:
        """Test every transfer of one exchange, then add it to what its target received.  Raises `Refuted`."""
        hierarchy, ranks, t = self.hierarchy, len(self.have), step.transfers
        if not 0 <= step.level < len(hierarchy):
            raise Refuted(f"exchange over level {step.level}, which does not exist")
        if len(t) == 0:
            return
        if t.boxes.shape != (len(t), len(self.shape), 2) or t.targets.shape != t.sources.shape:
            raise Refuted(f"transfers of shape {t.boxes.shape}: they are no boxes of the tensor of shape {self.shape}")
        refuse(
            t,
            (t.sources < 0) | (t.sources >= ranks) | (t.targets < 0) | (t.targets >= ranks),
            f"there are {ranks} ranks",
        )
        low, high = t.boxes[:, :, 0], t.boxes[:, :, 1]
        extent = np.array(self.shape, dtype=np.int64)
        refuse(
            t,
            np.asarray(((low < 0) | (low > high) | (high > extent)).any(axis=1)),
            f"it is not a box of the tensor of shape {self.shape}",
        )
        refuse(t, np.asarray((low == high).any(axis=1)), "nothing is sent")
        around, child = prod(hierarchy[step.level :]), prod(hierarchy[step.level + 1 :])
        crosses = (t.sources // around == t.targets // around) & (t.sources // child != t.targets // child)
        refuse(t, ~crosses, f"level {step.level} is not the first one it crosses")
        unheld = np.flatnonzero(~_within(t.boxes, self.have[t.sources]))
        lost = np.zeros(len(t), dtype=bool)
        lost[unheld[~self._received(t.sources[unheld], t.boxes[unheld])]] = True
        refuse(t, lost, f"the sender does not hold it at the start of the exchange over level {step.level}")
        self.targets = np.concatenate([self.targets, t.targets])
        self.boxes = np.concatenate([self.boxes, t.boxes])

    def _received(self, senders: Counts, boxes: Boxes) -> Flags:
        """Which boxes are inside the union of what their sender had and received."""
        found = np.zeros(senders.size, dtype=bool)
        mine = _groups(self.targets, len(self.have))
        for sender, at in enumerate(_groups(senders, len(self.have))):
            if at.size and mine[sender].size:
                earlier = self.boxes[mine[sender]]
                for part in np.array_split(at, -(-at.size * len(earlier) // MOST_PAIRS)):
                    found[part] = _within(boxes[part][:, None], earlier[None]).any(axis=1)
                for k in at[~found[at]].tolist():
                    found[k] = _covered(boxes[k], np.concatenate([self.have[sender : sender + 1], earlier]))
        return found

    def check(self, target: Sequence[Box]) -> None:
        """What every device had and what it received make up its target box, without overlap.  Raises `Refuted`."""
        needs, seen = _array(target, len(self.shape)), set[tuple[bytes, ...]]()
        for device, at in enumerate(_groups(self.targets, len(self.have))):
            mine, need, received = self.have[device], needs[device], self.boxes[at]
            origin = need[:, :1]
            here = tuple((ends - origin).tobytes() for ends in (need, _common(need, mine[None]), received))
            if here not in seen:  # devices that differ by where their boxes lie only are tested once
                _check_arrived(device, mine, need, received)
                seen.add(here)


def refuse(transfers: Transfers, wrong: Flags, why: str) -> None:
    """Raise `Refuted` for the first transfer that is `wrong`."""
    if wrong.any():
        t = transfers[int(np.argmax(wrong))]
        raise Refuted(f"transfer of {t.box} from rank {t.source} to rank {t.target}: {why}")


def _array(boxes: Sequence[Box], dimensions: int) -> Boxes:
    return np.array(boxes, dtype=np.int64).reshape(len(boxes), dimensions, 2)


def _box(ends: NDArray[np.int64]) -> Box:
    return tuple((low, high) for low, high in ends.tolist())


def _within(inner: Boxes, outer: Boxes) -> Flags:
    """Every element of `inner` is in `outer`, box by box; the inner ones are not empty."""
    return np.asarray(((outer[..., 0] <= inner[..., 0]) & (inner[..., 1] <= outer[..., 1])).all(axis=-1))


def _groups(ranks: Counts, count: int) -> list[Counts]:
    """Positions of 0, of 1, .., of `count` - 1 in `ranks`, each ascending."""
    order = np.argsort(ranks, kind="stable")
    return np.split(order, np.searchsorted(ranks[order], np.arange(1, count)))


def _check_arrived(device: int, mine: NDArray[np.int64], need: NDArray[np.int64], received: Boxes) -> None:
    outside = ~_within(received, need[None])
    if outside.any():
        raise Refuted(
            f"rank {device} receives {_box(received[int(np.argmax(outside))])}, which is not in its target box "
            f"{_box(need)}"
        )
    parts = np.concatenate([_common(need, mine[None]), received])
    wanted = prod(max(0, high - low) for low, high in need.tolist())
    total = sum((parts[:, :, 1] - parts[:, :, 0]).prod(axis=1).tolist())
    if total < wanted:
        raise Refuted(f"rank {device} lacks {wanted - total} elements of its target box {_box(need)}")
    if len(parts) < 2:
        return
    cuts = [np.unique(parts[:, k]) for k in range(parts.shape[1])]
    if prod(c.size - 1 for c in cuts) > MOST_CELLS:
        raise Refuted(f"rank {device} receives {len(received)} boxes, too finely cut to be checked")
    if (_cover(parts, cuts) > 1).any():
        again = next(k for k in range(1, len(parts)) if (_cover(parts[: k + 1], cuts) > 1).any())
        raise Refuted(f"rank {device} receives elements of {_box(parts[again])} that it already has")


def _covered(want: NDArray[np.int64], pieces: Boxes) -> bool:
    """Every element of `want` is in one of `pieces`."""
    pieces = _common(want, pieces)
    cuts = [np.unique(np.append(pieces[:, k], want[k])) for k in range(len(want))]
    if prod(c.size - 1 for c in cuts) > MOST_CELLS:
        raise Refuted(f"{_box(want)} is sent from {len(pieces)} boxes, too finely cut to be checked")
    return bool((_cover(pieces, cuts)[(slice(-1),) * len(cuts)] > 0).all())


def _common(box: NDArray[np.int64], others: Boxes) -> Boxes:
    """What each of `others` has in common with `box`, where that is anything."""
    both = np.stack([np.maximum(others[:, :, 0], box[:, 0]), np.minimum(others[:, :, 1], box[:, 1])], axis=2)
    return np.asarray(both[(both[:, :, 0] < both[:, :, 1]).all(axis=1)])


def _cover(boxes: Boxes, cuts: list[Counts]) -> Counts:
    """How many of the boxes cover every cell of the grid: sums over what begins and ends before it, dimension by
    dimension.
    """
    if not cuts:
        return np.full((), len(boxes))
    grid = np.zeros([c.size for c in cuts], dtype=np.int64)
    ends = np.stack([np.searchsorted(c, boxes[:, k]) for k, c in enumerate(cuts)], axis=1)
    for corner in _corners(len(cuts)):
        np.add.at(grid, tuple(ends[:, k, side] for k, side in enumerate(corner)), -1 if sum(corner) % 2 else 1)
    for k in range(len(cuts)):
        np.cumsum(grid, axis=k, out=grid)
    return grid


def _corners(dimensions: int) -> Iterator[tuple[int, ...]]:
    """Low (0) or high (1) end along every dimension."""
    for bits in range(1 << dimensions):
        yield tuple(bits >> k & 1 for k in range(dimensions))
