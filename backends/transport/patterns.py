"""Patterns: which collective the transfers of an exchange amount to, group by group.

Ranks linked by transfers form groups (connected components); each is carried out on its own:

    one sender, the same boxes to all others           broadcast
    one sender, other boxes                            scatter
    all send, each the same boxes to all others        all-gather
    anything else                                      all-to-all
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from ...models.communication import Box, Exchange, Transfer


class PatternKind(Enum):
    """A collective in the sense of MPI."""

    BROADCAST = "broadcast"
    SCATTER = "scatter"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"


@dataclass(frozen=True)
class Pattern:
    """`group`: ascending ranks; `root`: the only sender of a broadcast or scatter, else the lowest rank."""

    kind: PatternKind
    group: tuple[int, ...]
    root: int
    transfers: tuple[Transfer, ...]


@lru_cache(maxsize=1024)
def patterns(step: Exchange) -> tuple[Pattern, ...]:
    """The patterns of one exchange, by lowest rank.

    >>> box = ((0, 2),)
    >>> [(p.kind.value, p.group) for p in patterns(Exchange(0, (Transfer(0, 1, box), Transfer(3, 2, box), Transfer(2, 3, ((2, 4),)))))]
    [('broadcast', (0, 1)), ('all-gather', (2, 3))]
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
    alike = all(
        len(to) == len(group) - 1 and all(boxes == next(iter(to.values())) for boxes in to.values()) for to in sent.values()
    )
    if len(sent) == 1:
        kind = PatternKind.BROADCAST if alike else PatternKind.SCATTER
    else:
        kind = PatternKind.ALL_GATHER if alike and len(sent) == len(group) else PatternKind.ALL_TO_ALL
    return Pattern(kind, group, min(sent), tuple(transfers))
