"""Runs programs of ranks beside one another: which step is next, who waits for whom, and what never ends.

Steps of a rank run in order.  Ranks of a group meet at a collective; a message is received after it was sent, the first
of one sender, receiver and tag first.  What cannot go on is `Stuck`: another collective than the others of the group
have, a message that nobody sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from .program import COLLECTIVES, RankProgram, Step

ROOTS: Final = ("source", "target")
"""Words that name the one rank of a group that sends, or receives."""

Meeting = tuple[tuple[int, Step], ...]
"""Ranks with their steps: one for a local step, all of a group for a collective, sender and receiver of a message."""


@dataclass(frozen=True)
class Stuck(Exception):
    """Ranks that wait for ever, each with the step at which it does."""

    waiting: Meeting
    reason: str

    def __str__(self) -> str:
        places = "; ".join(f"rank {r} at {s.operator}{s.line and f' ({s.line})'}" for r, s in self.waiting[:4])
        return f"{self.reason}: {places}"


@dataclass(frozen=True)
class Race:
    """What a rank does while a collective is under way whose result then depends on the time: why, and its line."""

    reason: str
    line: str


@dataclass(frozen=True)
class Event:
    """A rank calls for a collective or a message, or waits for it: the call is number `call` of the rank; of a message
    `key` is its sender, receiver and tag; of a collective the ranks of its group.  `which` tells groups
    of these ranks apart.
    """

    call: int
    operator: str
    key: tuple[int, ...]
    line: str
    waits: bool = False
    which: int = 0

    def wait(self) -> Event:
        """The wait for it."""
        return replace(self, waits=True)


def stuck_messages(ranks: Sequence[Sequence[Event]]) -> Stuck | None:
    """Ranks that wait for ever if a message is only sent once it is received, as long ones are: two that each send to
    the other before they receive; or where they call groups of the same ranks in different orders.  Waits for
    collectives pass: `meetings` says which of them never come together.

    >>> send = [Event(0, "send", (r, 1 - r, 0), "").wait() for r in (0, 1)]
    >>> recv = [Event(1, "recv", (1 - r, r, 0), "").wait() for r in (0, 1)]
    >>> str(stuck_messages([[send[0], recv[0]], [send[1], recv[1]]]))
    'ranks wait for one another for ever where a send waits until it is received: rank 0 at send; rank 1 at send'
    """
    if (crossed := _crossed(ranks)) is not None:
        return crossed
    at, called = [0] * len(ranks), [dict[int, tuple[str, tuple[int, ...], int]]() for _ in ranks]
    counts: dict[tuple[str, tuple[int, ...]], int] = {}
    moved = True
    while moved:
        moved = False
        for rank, events in enumerate(ranks):
            while at[rank] < len(events):
                event = events[at[rank]]
                mine = called[rank]
                if event.operator in ("send", "recv"):
                    if event.call not in mine:
                        which = counts[event.operator, event.key] = counts.get((event.operator, event.key), 0) + 1
                        mine[event.call] = event.operator, event.key, which
                        moved = True
                    other = "recv" if event.operator == "send" else "send"
                    if event.waits and counts.get((other, event.key), 0) < mine[event.call][2]:
                        break
                at[rank] += 1
                moved = True
    waiting = tuple(
        (r, Step(e[at[r]].operator, (), (), (), e[at[r]].line)) for r, e in enumerate(ranks) if at[r] < len(e)
    )
    if not waiting:
        return None
    return Stuck(waiting, "ranks wait for one another for ever where a send waits until it is received")


def _crossed(ranks: Sequence[Sequence[Event]]) -> Stuck | None:
    """The first collectives of the same ranks, or messages of one sender, receiver and tag, that come together in order
    and are not of one group.
    """
    calls = dict[tuple[bool, tuple[int, ...]], list[tuple[int, list[Event]]]]()
    for rank, events in enumerate(ranks):
        mine = dict[tuple[bool, tuple[int, ...]], list[Event]]()
        for event in events:
            if not event.waits:
                mine.setdefault((event.operator in ("send", "recv"), event.key), []).append(event)
        for key, found in mine.items():
            calls.setdefault(key, []).append((rank, found))
    for members in calls.values():
        (one, first), *others = members
        for rank, found in others:
            for a, b in zip(first, found, strict=False):  # of different lengths: `meetings` says so
                if a.which != b.which:
                    pair = tuple((r, Step(e.operator, (), (), (), e.line)) for r, e in ((one, a), (rank, b)))
                    return Stuck(pair, "ranks call different groups of the same ranks, and may wait for ever")
    return None


def group(step: Step) -> tuple[int, ...]:
    """Ranks of the group of a collective."""
    ranks = step.word("ranks")
    return ranks if isinstance(ranks, tuple) else ()


def meetings(programs: Sequence[RankProgram], work: Callable[[int], None] = lambda looked: None) -> Iterator[Meeting]:
    """Steps in an order in which they can run; `work(ranks)` is told how many ranks are looked at.  Raises `Stuck`."""
    at = [0] * len(programs)
    sent: dict[tuple[object, ...], deque[tuple[int, Step]]] = {}
    while True:
        moved = False
        work(len(programs))
        for rank, program in enumerate(programs):
            while at[rank] < len(program.steps):
                step = program.steps[at[rank]]
                if step.operator == "send":
                    sent.setdefault((rank, step.word("to"), step.word("tag")), deque()).append((rank, step))
                elif step.operator == "recv":
                    queue = sent.get((step.word("of"), rank, step.word("tag")))
                    if not queue:
                        break
                    sender, sent_step = queue.popleft()
                    given, taken = programs[sender].tensors[sent_step.reads[0]], program.tensors[step.makes[0]]
                    if given.dtype != taken.dtype or prod(given.shape) != prod(taken.shape):
                        raise Stuck(((sender, sent_step), (rank, step)), "a message is received as something else")
                    yield (sender, sent_step), (rank, step)
                elif step.operator in COLLECTIVES or step.operator == "barrier":
                    if rank not in group(step) or len(set(group(step))) != len(group(step)):
                        raise Stuck(((rank, step),), "a collective of a group in which the rank is not once")
                    work(len(group(step)))
                    together = _together(programs, at, group(step))
                    if together is None:
                        break
                    if step.operator != "barrier":
                        yield together
                    for other, _ in together:
                        at[other] += 1
                    moved = True
                    continue
                else:
                    yield ((rank, step),)
                at[rank] += 1
                moved = True
        if not moved:
            break
    waiting = tuple((r, p.steps[at[r]]) for r, p in enumerate(programs) if at[r] < len(p.steps))
    if waiting:
        raise Stuck(waiting, "ranks wait for one another for ever")
    if left := [one for queue in sent.values() for one in queue]:
        raise Stuck(tuple(left), "messages are never received")


def _together(programs: Sequence[RankProgram], at: Sequence[int], ranks: tuple[int, ...]) -> Meeting | None:
    """The collective at which all ranks of a group stand; None if one of them is not there yet."""
    found = list[tuple[int, Step]]()
    for rank in ranks:
        if rank >= len(programs) or at[rank] >= len(programs[rank].steps):
            return None
        step = programs[rank].steps[at[rank]]
        if (step.operator not in COLLECTIVES and step.operator != "barrier") or group(step) != ranks:
            return None
        found.append((rank, step))
    first = found[0][1]
    for _, step in found[1:]:
        if step.operator != first.operator or dict(step.words).get("op") != dict(first.words).get("op"):
            raise Stuck(tuple(found), "ranks of a group call different collectives")
        if any(dict(step.words).get(root) != dict(first.words).get(root) for root in ROOTS):
            raise Stuck(tuple(found), "ranks of a group name different ranks that send or receive")
    if len({programs[r].tensors[i].dtype for r, s in found for i in s.reads}) > 1:
        raise Stuck(tuple(found), "ranks of a group send different types")
    if first.operator == "all_to_all" and (pair := _mismatch([s for _, s in found])) is not None:
        raise Stuck((found[pair[0]], found[pair[1]]), "ranks of a group send and receive different sizes")
    if first.reads and first.operator not in ("all_to_all", "all_gather"):
        shapes = {programs[r].tensors[s.reads[0]].shape for r, s in found}
        if len(shapes) > 1:
            raise Stuck(tuple(found), f"ranks of a group send different shapes {sorted(shapes)[:2]}")
    return tuple(found)


def _mismatch(steps: Sequence[Step]) -> tuple[int, int] | None:
    """Positions of the first sender and a receiver that name different sizes, of a group that exchanges rows."""
    sizes = [(dict(s.words).get("send"), dict(s.words).get("receive")) for s in steps]
    for i, pair in enumerate(sizes):
        if any(not isinstance(s, tuple) or len(s) != len(steps) for s in pair):
            return i, i
    sends, receives = zip(*((s, r) for s, r in sizes if isinstance(s, tuple) and isinstance(r, tuple)), strict=True)
    wrong = [  # a column of what is sent at once: of 4,096 ranks there are 16 million pairs
        (next(i for i, (a, b) in enumerate(zip(sent, taken, strict=True)) if a != b), j)
        for j, (sent, taken) in enumerate(zip(zip(*sends, strict=True), receives, strict=True))
        if sent != taken
    ]
    return min(wrong, default=None)
