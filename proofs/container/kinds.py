"""What a container holds, told by its members: so that the wrong kind of file is called by its name, with the verbs
that take it.  Who checks a kind stands a floor higher (`verify.verbs.kinds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .archive import MANIFEST, Member
from .canonical import ContainerError

_PLAN: Final = "run, explain, report, diff, export and check take it"

PORTFOLIO: Final = "portfolio.json"
SIZES: Final = "sizes.json"
JOB: Final = "job.json"

KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "plan.json": ("a plan", "run, explain, report, diff, export, sensitivity and check take it"),
    "library.json": ("a rule library", "rules check, rules show and check take it"),
    "reduction.json": ("reduction programs", "run, export and check take it"),
    "placement.json": ("placements of axes", "check takes it"),
    "pipeline.json": ("a pipelined training step", _PLAN),
    "overlap.json": ("an overlapped plan", _PLAN),
    "views.json": ("a plan with submeshes", _PLAN),
    PORTFOLIO: ("the best of several plans", _PLAN),
    SIZES: ("plans for a range of sizes", "run and check take it; 'plan' with one number for the size makes a plan"),
    "schedule.json": ("a schedule", "check takes it"),
    JOB: ("a plan with its job", "check takes it"),
    "equality.json": ("a proof that two programs are equal", "check takes it"),
    "extraction.json": ("an extraction from an e-graph", "check takes it, with the file of its e-graph beside it"),
    "certificate.json": (
        "a certificate of a selection problem",
        "check takes it, with the file of its problem beside it",
    ),
    "problem.json": ("a selection problem", "solve, audit and check take it"),
}
"""Member that gives a kind away (the first one counts: a plan holds a certificate too) -> what it is, who takes it."""


PLANS: Final = ("plan.json", "pipeline.json", "overlap.json", "views.json", PORTFOLIO)
"""Kinds that are plans: every verb that takes a plan takes these."""


def require_plan(members: Mapping[str, Member]) -> None:
    """Nothing for a plan of whatever kind; else a `ContainerError` that says what the file is."""
    if not any(member in members for member in PLANS):
        require_kind(members, "plan.json")


def require_kind(members: Mapping[str, Member], member: str) -> None:
    """Nothing if `member` is there; else a `ContainerError` that says what the file is."""
    if member in members:
        return
    wanted = KINDS[member][0]
    for other, (what, takers) in KINDS.items():
        if other in members:
            raise ContainerError("file", f"holds {what}, not {wanted}; {takers}")
    names = ", ".join(sorted(set(members) - {MANIFEST})[:5]) or "none"
    raise ContainerError("file", f"does not hold {wanted} (members: {names})")
