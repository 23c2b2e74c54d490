"""What kind of plan a file is, before anybody believes it: for the options that a verb has for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..container.archive import LIMITS, member_names, read_container, read_file
from ..container.canonical import ContainerError
from ..container.kinds import PORTFOLIO, SIZES
from ..portfolio.file import taken_plan

_WORDS: Final = {
    "pipeline.json": "pipelined",
    "overlap.json": "overlapped",
    "views.json": "views",
    "reduction.json": "reduction",
    SIZES: "sizes",
}


def plan_kind(path: Path) -> str | None:
    """What kind of plan a file is (`models.terminal.combinations.PLAN_KINDS`), from the names of its members, of
    several plans the one that is taken: "other" for what is none; None for what cannot be read, which its reader says
    better.
    """
    try:
        data = read_file(path, LIMITS.file)
        names = member_names(data) if data[:2] == b"PK" else frozenset()
        if PORTFOLIO in names:
            names = frozenset(taken_plan(read_container(data)))
    except ContainerError:
        return None
    if "plan.json" in names:
        return "joint" if "joint.json" in names else "plan"
    return next((word for member, word in _WORDS.items() if member in names), "other")
