"""Virtual ranks: all ranks of a program as threads of one process, moving real arrays and counting
them.

    counted(label, level i, rank)  =  elements that reach the rank from a sender outside its level-i subtree
    load_i of a subtree            =  sum over its ranks                        (the loads of
                                   `models.communication.pricing`)

A reduce-scatter brings each member its part from every other member; an all-gather every other member's; an all-reduce
is one of each, in parts as equal as they can be (`portion`).  They are counted as a ring brings them, from the member
before (the same where a group lies within one level).

Values are combined in group order, so results do not depend on the scheduling of the threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import ModuleType

from ...models.layout.layout import coordinates
from ...models.program.index import Combine
from ..kernels import Array, combine_arrays
from . import TransportError
from .patterns import Pattern
from .received import portion
from .requests import AllGather, AllReduce, Exchanged, Pending, ReduceScatter, Request, Result

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

    def post(self, rank: int, group: tuple[int, ...], turn: int, payload: Payload) -> None:
        """Lay down what this rank brings to the group's meeting number `turn`; does not wait."""
        with self._changed:
            slot = self._slots.setdefault((group, turn), {})
            slot[rank] = payload
            if len(slot) == len(group):
                self._changed.notify_all()

    def collect(self, rank: int, group: tuple[int, ...], turn: int) -> list[Payload]:
        """Everyone's payload, in group order, once all members have posted theirs; this rank has."""
        key = (group, turn)
        with self._changed:
            slot = self._slots[key]
            if len(slot) < len(group) and not self._changed.wait_for(
                lambda: self.failed or len(slot) == len(group), self.timeout_s
            ):
                missing = [r for r in group if r not in slot]
                raise TransportError(f"rank {rank} waited {self.timeout_s:g} s for ranks {missing}")
            if len(slot) < len(group):
                raise TransportError("another rank failed")
            self._left[key] = self._left.get(key, 0) + 1
            if self._left[key] == len(group):
                del self._slots[key], self._left[key]
        return [slot[r] for r in group]


@dataclass(frozen=True)
class _Later:
    """A posted request: what is left to do once the partners have come."""

    finish: Callable[[], Result]

    def poll(self) -> bool:
        """Threads need no help."""
        return True

    def wait(self) -> Result:
        """See `Pending`."""
        return self.finish()


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

    @property
    def name(self) -> str:
        """What carries the messages."""
        return "virtual"

    @property
    def merges(self) -> bool:
        """See `Transport`."""
        return False

    def account(self, label: str) -> None:
        """Book what follows under `label`."""
        self._label = label
        self.received.setdefault(label, [0] * self._levels)

    def _count(self, source: int, elements: int) -> None:
        book = self.received[self._label]
        first = next(
            (i for i, (s, t) in enumerate(zip(self._at[source], self._at[self._rank], strict=True)) if s != t),
            self._levels,
        )
        for level in range(first, self._levels):
            book[level] += elements

    def _count_ring(self, group: tuple[int, ...], source: int, elements: int) -> None:
        """What is of `source` comes from the member before this one."""
        if source != self._rank:
            ring = sorted(group)
            self._count(ring[ring.index(self._rank) - 1], elements)

    def _post(self, group: tuple[int, ...], payload: Payload) -> Callable[[], list[Payload]]:
        """Post, and how to collect."""
        turn = self._turns.get(group, 0)
        self._turns[group] = turn + 1
        self._hub.post(self._rank, group, turn, payload)
        return lambda: self._hub.collect(self._rank, group, turn)

    def reduce_scatter(
        self, group: tuple[int, ...], parts: Array, combine: Combine, counts: tuple[int, ...] | None = None
    ) -> Array:
        """See `Transport`."""
        return self._combined(group, self._post(group, parts)(), combine, counts)

    def _combined(
        self, group: tuple[int, ...], everyone: list[Payload], combine: Combine, counts: tuple[int, ...] | None
    ) -> Array:
        mine = group.index(self._rank)
        part = mine if counts is None else slice(sum(counts[:mine]), sum(counts[: mine + 1]))
        total: Array | None = None
        for source, other in zip(group, everyone, strict=True):
            row = _array(other)[part]
            total = row if total is None else combine_arrays(self._xp, total, row, combine)
            self._count_ring(group, source, int(row.size))
        if total is None:
            raise TransportError("an empty group")
        return self._xp.array(total)  # type: ignore[no-any-return]

    def all_gather(self, group: tuple[int, ...], array: Array, counts: tuple[int, ...] | None = None) -> Array:
        """See `Transport`."""
        return self._gathered(group, self._post(group, array)(), counts)

    def _gathered(self, group: tuple[int, ...], payloads: list[Payload], counts: tuple[int, ...] | None) -> Array:
        everyone = [_array(p) for p in payloads]
        if counts is not None and [int(other.size) for other in everyone] != list(counts):
            raise TransportError(f"rank {self._rank} expected {list(counts)} elements from {list(group)}")
        for source, other in zip(group, everyone, strict=True):
            self._count_ring(group, source, int(other.size))
        return self._xp.stack(everyone) if counts is None else self._xp.concatenate(everyone)  # type: ignore[no-any-return]

    def all_reduce(self, group: tuple[int, ...], array: Array, combine: Combine) -> Array:
        """See `Transport`: a reduce-scatter and an all-gather."""
        counts = portions(int(array.size), len(group))
        return self.all_gather(group, self.reduce_scatter(group, array, combine, counts), counts)

    def start(self, request: Request) -> Pending:
        """See `Transport`.  Posts at once; the second half of an all-reduce is posted when the first is waited for."""
        label = self._label

        def under_own_label(finish: Callable[[], Result]) -> Pending:
            def under_label() -> Result:
                before, self._label = self._label, label
                try:
                    return finish()
                finally:
                    self._label = before

            return _Later(under_label)

        match request:
            case ReduceScatter(group=group, parts=parts, combine=combine, counts=counts):
                collect = self._post(group, parts)
                return under_own_label(lambda: self._combined(group, collect(), combine, counts))
            case AllGather(group=group, array=array, counts=counts):
                collect = self._post(group, array)
                return under_own_label(lambda: self._gathered(group, collect(), counts))
            case AllReduce(group=group, array=array, combine=combine):
                collect, each = self._post(group, array), portions(int(array.size), len(group))
                return under_own_label(
                    lambda: self.all_gather(group, self._combined(group, collect(), combine, each), each)
                )
            case Exchanged(pattern=pattern, incoming=incoming):
                collect = self._post(pattern.group, dict(request.outgoing))
                return under_own_label(lambda: self._arrived(pattern, collect(), incoming))

    def reduce(self, group: tuple[int, ...], root: int, array: Array, combine: Combine) -> Array | None:
        """See `Transport`."""
        everyone = [_array(p) for p in self._post(group, array)()]
        if self._rank != root:
            return None
        total: Array | None = None
        for source, other in zip(group, everyone, strict=True):
            total = other if total is None else combine_arrays(self._xp, total, other, combine)
            self._count(source, int(other.size))
        if total is None:
            raise TransportError("an empty group")
        return self._xp.array(total)  # type: ignore[no-any-return]

    def exchange(
        self, pattern: Pattern, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array
    ) -> dict[int, Array]:
        """See `Transport`."""
        return self._arrived(pattern, self._post(pattern.group, dict(outgoing))(), incoming)

    def _arrived(self, pattern: Pattern, payloads: list[Payload], incoming: Mapping[int, int]) -> dict[int, Array]:
        everyone = dict(zip(pattern.group, payloads, strict=True))
        out: dict[int, Array] = {}
        for source, elements in incoming.items():
            payload = everyone[source]
            if not isinstance(payload, dict) or int(payload[self._rank].size) != elements:
                raise TransportError(f"rank {self._rank} expected {elements} elements from rank {source}")
            out[source] = payload[self._rank]
            self._count(source, elements)
        return out


def portions(elements: int, members: int) -> tuple[int, ...]:
    """Sizes of the parts of `elements` in `members` parts."""
    return tuple(high - low for low, high in (portion(elements, k, members) for k in range(members)))


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
