"""Messages of one phase: boxes of a tensor that go from device to device.

Between a thousand devices there are a million of them, so that they are kept as arrays; whoever needs one gets it as a
`Transfer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from ..problem.selection_problem import Ints

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Transfer:
    """`box` of the tensor goes from device `source` to device `target`."""

    source: int
    target: int
    box: Box


@dataclass(frozen=True, eq=False, repr=False)
class Transfers(Sequence[Transfer]):
    """`sources`, `targets`: int64, shape (transfers,); `boxes`: int64, shape (transfers, dimensions, 2), half-open.
    Equal where all are.

    >>> some = Transfers.of([Transfer(0, 1, ((0, 2),)), Transfer(2, 1, ((2, 4),))])
    >>> len(some), some[1].source, some.boxes.shape, some.volumes().tolist()
    (2, 2, (2, 1, 2), [2, 2])
    """

    sources: Ints
    targets: Ints
    boxes: Ints

    @staticmethod
    def of(transfers: Iterable[Transfer]) -> Transfers:
        """The transfers in this order.  Raises ValueError if their boxes do not have the same dimensions."""
        items = list(transfers)
        sources, targets = (np.array([getattr(t, end) for t in items], dtype=np.int64) for end in ("source", "target"))
        dimensions = len(items[0].box) if items else 0
        if any(len(t.box) != dimensions for t in items):
            raise ValueError("the boxes of the transfers of one phase have different numbers of dimensions")
        return Transfers(
            sources, targets, np.array([t.box for t in items], dtype=np.int64).reshape(len(items), dimensions, 2)
        )

    def volumes(self) -> Ints:
        """Elements of every box: shape (transfers,)."""
        return np.asarray((self.boxes[:, :, 1] - self.boxes[:, :, 0]).prod(axis=1))

    def __len__(self) -> int:
        return int(self.sources.size)

    def __iter__(self) -> Iterator[Transfer]:
        for source, target, box in zip(self.sources.tolist(), self.targets.tolist(), self.boxes.tolist(), strict=True):
            yield Transfer(source, target, tuple((low, high) for low, high in box))

    @overload
    def __getitem__(self, index: int) -> Transfer: ...

    @overload
    def __getitem__(self, index: slice) -> Transfers: ...

    def __getitem__(self, index: int | slice) -> Transfer | Transfers:
        if isinstance(index, slice):
            return Transfers(self.sources[index], self.targets[index], self.boxes[index])
        return Transfer(
            int(self.sources[index]),
            int(self.targets[index]),
            tuple((low, high) for low, high in self.boxes[index].tolist()),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transfers) and all(
            np.array_equal(a, b)
            for a, b in ((self.sources, other.sources), (self.targets, other.targets), (self.boxes, other.boxes))
        )

    @cached_property
    def _content(self) -> int:
        return hash((self.sources.tobytes(), self.targets.tobytes(), self.boxes.tobytes()))

    def __hash__(self) -> int:
        return self._content  # executors look up the pattern of an exchange at every step

    def __repr__(self) -> str:
        return f"Transfers.of({list(self)!r})"


@dataclass(frozen=True)
class Exchange:
    """Point-to-point transfers of one phase, sorted by (target, source, box); `level` is the outermost link they
    cross.
    """

    level: int
    transfers: Transfers


def crossing(sources: Ints, targets: Ints, hierarchy: tuple[int, ...]) -> Ints:
    """Outermost level at which the coordinates of two devices differ, per pair (number of levels if they are the same
    device).

    >>> crossing(np.array([0, 0, 0]), np.array([4, 1, 0]), (2, 4)).tolist()
    [0, 1, 2]
    """
    out = np.zeros(np.shape(sources), dtype=np.int64)
    below, same = 1, []
    for size in reversed(hierarchy):
        same.append(sources // below == targets // below)
        below *= size
    for equal in same:  # subtrees are nested: each that both are in is one level more
        out += equal
    return out
