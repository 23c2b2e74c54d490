"""How much the tags of a joint problem say, and the tables that this takes.

    SMALL    how often each class is read: few choices, which are eliminated where they are very few
    MIDDLE   the modes of all readers and of the writer of what is copied: hardly more choices, a bound near the optimum
    LARGE    the modes of all neighbours of every class: the tightest bound, several times as many choices

A tag says less where it could say more than `models.joint.choices.MOST_TAGS` things.
"""

from __future__ import annotations

from typing import Final

from ....models.cost.limits import TooLarge
from ....models.cost.selection import Notify
from ....models.cost.structures import Structures
from ....models.joint.egraph import EGraph
from ....models.joint.problem import JointPlanning, JointSubject, build_joint, choices_of
from ...selection.model.clock import Clock

SMALL, MIDDLE, LARGE = 1, 2, 3
MOST_SMALL: Final = 128
"""Choices of one vertex up to which little is tried first."""
MOST_CHOICES: Final = {MIDDLE: 100_000, LARGE: 15_000}
"""Choices of one vertex up to which tags say so much."""
MOST_ENTRIES: Final = {MIDDLE: 1 << 27, LARGE: 1 << 26}
"""Entries of all tables up to which tags say so much."""


def first_level(egraph: EGraph, structures: Structures, memory_limit: int | None) -> int:
    """The tags to begin with: little where that is eliminated, else the modes of all readers, if there is room."""
    if memory_limit is None and max(choices_of(egraph, structures, SMALL)) <= MOST_SMALL:
        return SMALL
    return MIDDLE if max(choices_of(egraph, structures, MIDDLE)) <= MOST_CHOICES[MIDDLE] else SMALL


def larger(small: JointPlanning, library: str, level: int, until: Clock, notify: Notify | None) -> JointPlanning | None:
    """The problem whose tags say more; None where it is too large, or its tables take too long.  `library`: identities
    of the rules.
    """
    try:
        if max(choices_of(small.egraph, small.structures, level)) > MOST_CHOICES[level]:
            return None
        out = build_joint(
            JointSubject(
                small.egraph,
                small.rounds,
                small.machine,
                small.space,
                level=level,
                memory_limit=small.problem.limit,
                library=library,
            ),
            within(until, notify),
            structures=small.structures,
        )
    except (TooLarge, TooLong):
        return None
    return out if sum(t.size for t in out.problem.tables) <= MOST_ENTRIES[level] else None


class TooLong(Exception):
    """Tables took more than their share of the time."""


def within(until: Clock, notify: Notify | None) -> Notify:
    """`notify`, and `TooLong` when the time is over."""

    def report_progress(done: int, total: int) -> None:
        if notify is not None:
            notify(done, total)
        if until.over():
            raise TooLong

    return report_progress
