"""A book is a library of proved rules as joint plans use it: its identity, its title, and its file.

The file goes into the plan, so that who checks the plan sees which rule a step names (`proofs.rewrites.plain`); what
makes the step believed is the comparison of both sides at its place.  `Rewrites` is what is asked of a search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...models.joint.rules import MOST_NODES, ROUNDS
from ..container.archive import Limits, identity, read_container, read_json, write_container
from ..container.canonical import ContainerError

LIMITS: Final = Limits(file=1 << 22, members=16, total=1 << 23)
"""Of a library that plans use: 4 MiB, unpacked 8 (some 5,000 rules)."""
HELD: Final = ("library.json", "rules.json", "derived.json")


@dataclass(frozen=True)
class Book:
    """See the module docstring.  `title`: for people; `data`: the file, without what is no part of a library."""

    identity: str
    title: str
    data: bytes


@dataclass(frozen=True)
class Rewrites:
    """`books`: checked libraries; `rounds`: how often all rules are tried; `nodes`: most operators that they add;
    `seconds` in which that is done at most, None for a share of the time limit.  `none`: no rule is tried, and nothing
    is decided but what is computed again.
    """

    books: tuple[Book, ...] = ()
    rounds: int = ROUNDS
    nodes: int = MOST_NODES
    seconds: float | None = None
    none: bool = False


def read_book(data: bytes) -> Book:
    """The book of a library file.  Raises `ContainerError`."""
    members = read_container(data, LIMITS)
    if missing := [name for name in HELD if name not in members]:
        raise ContainerError(f"member {missing[0]!r}", "is missing")
    kept = write_container(None, {name: members[name] for name in HELD}, LIMITS)
    return Book(identity(read_container(kept, LIMITS)), read_json(members, HELD[0])["title"].text(), kept)
