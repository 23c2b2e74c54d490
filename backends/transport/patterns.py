"""Recognises patterns: which collective the transfers of an exchange amount to, group by group.

Ranks linked by transfers form groups (connected components); each is carried out on its own, by the first line that
fits:

    one sender, one receiver                           neighbours: a single message
    one sender, the same boxes to all others           broadcast
    one sender, other boxes                            scatter
    one receiver                                       gather
    every sender sends the same boxes to all others    all-gather (some members may have nothing to send)
    nobody talks to everybody, at most 8 partners      neighbours (halos): point to point
    anything else                                      all-to-all
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from ...models.communication.transfers import Box, Exchange, Transfer

PARTNERS: Final = 8
"""Neighbours of a cell in two dimensions: beyond that many, one collective is cheaper than single messages."""


class PatternKind(Enum):
    """A collective in the sense of MPI; neighbours: single messages."""

    BROADCAST = "broadcast"
    SCATTER = "scatter"
    GATHER = "gather"
    ALL_GATHER = "all-gather"
    NEIGHBOURS = "neighbours"
    ALL_TO_ALL = "all-to-all"


@dataclass(frozen=True)
class Pattern:
    """`group`: ascending ranks; `root`: the only sender or receiver where there is one, else the lowest sender.

    `reason`: which test of the module docstring decided, with its numbers.
    """

    kind: PatternKind
    group: tuple[int, ...]
    root: int
    transfers: tuple[Transfer, ...]
    reason: str = ""


@lru_cache(maxsize=1024)
def patterns(step: Exchange) -> tuple[Pattern, ...]:
    """The patterns of one exchange, by lowest rank.

    >>> from ...models.communication.transfers import Transfers
    >>> box = ((0, 2),)
    >>> [(p.kind.value, p.group) for p in patterns(Exchange(0, Transfers.of([Transfer(0, 1, box), Transfer(3, 2, box),
    ...     Transfer(2, 3, ((2, 4),))])))]
    [('neighbours', (0, 1)), ('all-gather', (2, 3))]
    """
    parent: dict[int, int] = {}

    def find(x: int) -> int:
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x

    for t in step.transfers:
        a, b = find(t.source), find(t.target)
        parent[max(a, b)] = min(a, b)
    groups: dict[int, list[Transfer]] = {}
    for t in step.transfers:
        groups.setdefault(find(t.source), []).append(t)
    return tuple(_pattern(transfers) for _, transfers in sorted(groups.items()))


def _pattern(transfers: list[Transfer]) -> Pattern:
    group = tuple(sorted({r for t in transfers for r in (t.source, t.target)}))
    sent: dict[int, dict[int, list[Box]]] = {}
    for t in transfers:
        sent.setdefault(t.source, {}).setdefault(t.target, []).append(t.box)
    receivers = {t.target for t in transfers}
    others = len(group) - 1
    alike = all(
        len(to) == others and all(boxes == next(iter(to.values())) for boxes in to.values()) for to in sent.values()
    )
    kind, reason = _kind(sent, receivers, alike, group)
    root = next(iter(receivers)) if kind is PatternKind.GATHER else min(sent)
    return Pattern(kind, group, root, tuple(transfers), reason)


def _kind(
    sent: dict[int, dict[int, list[Box]]], receivers: set[int], alike: bool, group: tuple[int, ...]
) -> tuple[PatternKind, str]:
    others = len(group) - 1
    if len(sent) == 1:
        if others == 1:
            return PatternKind.NEIGHBOURS, "one message"
        if alike:
            return PatternKind.BROADCAST, f"one sender, the same to all {others} others"
        return PatternKind.SCATTER, f"one sender, other boxes to its {others} receivers"
    if len(receivers) == 1:
        return PatternKind.GATHER, f"one receiver of {len(sent)} senders"
    if alike:
        return PatternKind.ALL_GATHER, f"{len(sent)} of {len(group)} members send, each the same to all others"
    partners: dict[int, set[int]] = {}
    for source, to in sent.items():
        for target in to:
            partners.setdefault(source, set()).add(target)
            partners.setdefault(target, set()).add(source)
    most = max(map(len, partners.values()))
    if min(map(len, partners.values())) < others and most <= PARTNERS:
        return PatternKind.NEIGHBOURS, f"at most {most} of {others} others are partners of a rank"
    return PatternKind.ALL_TO_ALL, f"{len(sent)} senders, other boxes to each of up to {most} partners"
