"""Virtual ranks: all ranks of a program as threads of one process, moving real arrays and counting them.

    counted(label, level i, rank)  =  elements that reach the rank from a sender outside its level-i subtree
    load_i of a subtree            =  sum over its ranks                        (the loads of `models.pricing`)

A reduce-scatter brings each member n elements from every other member; an all-gather likewise; an all-reduce is one of
each.  Reductions load all subtrees of a level alike (tiles are padded), so one sum per rank serves reductions and exchanges.

Values are combined in group order, so results do not depend on the scheduling of the threads.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from math import prod
from types import ModuleType

from ...models.communication import crossing
from ...models.index import Combine
from ...models.layout import coordinates
from ..kernels import Array, combine_arrays
from . import TransportError
from .patterns import Pattern

Payload = Array | dict[int, Array]


class Hub:
    """Where the ranks meet.  `timeout_s`: how long one waits for its partners before the run is given up."""

    def __init__(self, timeout_s: float = 120.0) -> None:
        self.timeout_s = timeout_s
        self.failed = False
        self._changed = threading.Condition()
        self._slots: dict[tuple[tuple[int, ...], int], dict[int, Payload]] = {}
        self._left: dict[tuple[tuple[int, ...], int], int] = {}

    def abort(self) -> None:
        """Wake everyone: a rank has failed."""
        with self._changed:
            self.failed = True
            self._changed.notify_all()

    def meet(self, rank: int, group: tuple[int, ...], turn: int, payload: Payload) -> list[Payload]:
        """Everyone's payload, in group order, once all members are here for their `turn`-th meeting."""
        key = (group, turn)
        with self._changed:
            slot = self._slots.setdefault(key, {})
            slot[rank] = payload
            if len(slot) == len(group):
                self._changed.notify_all()
            elif not self._changed.wait_for(lambda: self.failed or len(slot) == len(group), self.timeout_s):
                missing = [r for r in group if r not in slot]
                raise TransportError(f"rank {rank} waited {self.timeout_s:g} s for ranks {missing}")
            if len(slot) < len(group):
                raise TransportError("another rank failed")
            self._left[key] = self._left.get(key, 0) + 1
            if self._left[key] == len(group):
                del self._slots[key], self._left[key]
        return [slot[r] for r in group]


class VirtualTransport:
    """The view of one rank.  `received[label]`: elements per level."""

    def __init__(self, hub: Hub, rank: int, hierarchy: tuple[int, ...], xp: ModuleType) -> None:
        self._hub, self._rank, self._xp = hub, rank, xp
        self._at = [tuple(c) for c in coordinates(hierarchy).tolist()]
        self._levels = len(hierarchy)
        self._turns: dict[tuple[int, ...], int] = {}
        self._label = ""
        self.received: dict[str, list[int]] = {}

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self._rank

    def account(self, label: str) -> None:
        """Book what follows under `label`."""
        self._label = label
        self.received.setdefault(label, [0] * self._levels)

    def _count(self, source: int, elements: int) -> None:
        book = self.received[self._label]
        first = crossing(list(self._at[source]), list(self._at[self._rank]))
        for level in range(first, self._levels):
            book[level] += elements

    def _meet(self, group: tuple[int, ...], payload: Payload) -> list[Payload]:
        turn = self._turns.get(group, 0)
        self._turns[group] = turn + 1
        return self._hub.meet(self._rank, group, turn, payload)

    def reduce_scatter(self, group: tuple[int, ...], parts: Array, combine: Combine) -> Array:
        """See `Transport`."""
        mine = group.index(self._rank)
        total: Array | None = None
        for source, other in zip(group, self._meet(group, parts), strict=True):
            row = _array(other)[mine]
            total = row if total is None else combine_arrays(self._xp, total, row, combine)
            self._count(source, int(row.size))
        if total is None:
            raise TransportError("an empty group")
        return self._xp.array(total)  # type: ignore[no-any-return]

    def all_gather(self, group: tuple[int, ...], array: Array) -> Array:
        """See `Transport`."""
        everyone = [_array(p) for p in self._meet(group, array)]
        for source, other in zip(group, everyone, strict=True):
            self._count(source, int(other.size))
        return self._xp.stack(everyone)  # type: ignore[no-any-return]

    def all_reduce(self, group: tuple[int, ...], array: Array, combine: Combine) -> Array:
        """See `Transport`: a reduce-scatter and an all-gather."""
        part = self.reduce_scatter(group, array.reshape(len(group), -1), combine)
        return self.all_gather(group, part).reshape(-1)

    def reduce(self, group: tuple[int, ...], root: int, array: Array, combine: Combine) -> Array | None:
        """See `Transport`."""
        everyone = [_array(p) for p in self._meet(group, array)]
        if self._rank != root:
            return None
        total: Array | None = None
        for source, other in zip(group, everyone, strict=True):
            total = other if total is None else combine_arrays(self._xp, total, other, combine)
            self._count(source, int(other.size))
        if total is None:
            raise TransportError("an empty group")
        return self._xp.array(total)  # type: ignore[no-any-return]

    def exchange(self, pattern: Pattern, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array) -> dict[int, Array]:
        """See `Transport`."""
        everyone = dict(zip(pattern.group, self._meet(pattern.group, dict(outgoing)), strict=True))
        out: dict[int, Array] = {}
        for source, elements in incoming.items():
            payload = everyone[source]
            if not isinstance(payload, dict) or int(payload[self._rank].size) != elements:
                raise TransportError(f"rank {self._rank} expected {elements} elements from rank {source}")
            out[source] = payload[self._rank]
            self._count(source, elements)
        return out


def _array(payload: Payload) -> Array:
    if isinstance(payload, dict):
        raise TransportError("ranks disagree about what they are doing")
    return payload


def loads(received: list[list[int]], hierarchy: tuple[int, ...]) -> tuple[int, ...]:
    """Load of the busiest subtree per level, from every rank's counts under one label.

    >>> loads([[2, 2], [0, 3], [1, 1], [0, 0]], (2, 2))
    (2, 3)
    """
    out = []
    for level in range(len(hierarchy)):
        width = prod(hierarchy[level + 1 :])
        each = [r[level] for r in received]
        out.append(max(sum(each[u : u + width]) for u in range(0, len(each), width)))
    return tuple(out)
