"""Several plans of one job in one file: that of the least step is the plan, and the least of all bounds is its bound.

    portfolio.json   {"format", "chosen", "plans": [identity, ..]}      `chosen`: number of the plan that is taken
    plans/0.spz ..   containers of plans of whatever other kind, each as it would stand alone

What is claimed: no plan that any of the claims inside is about takes less than the bound.  Freedoms of which no one
search knows all, such as stages and submeshes, meet here: a plan of both together may still take less, and no claim
says otherwise.  Decoding checks types and structure; `verify` says what is true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..container.archive import LIMITS, MANIFEST, Limits, Member, identity, read_container, read_json, write_container
from ..container.canonical import ContainerError, Reader, canonical
from ..container.kinds import PORTFOLIO, require_kind, require_plan

FORMAT: Final = "shardproof-portfolio/1"
MOST_PLANS: Final = 64


@dataclass(frozen=True, eq=False)
class Portfolio:
    """`plans`: members of containers, in a fixed order; `chosen`: which of them is taken."""

    plans: tuple[Mapping[str, Member], ...]
    chosen: int

    @property
    def chosen_members(self) -> Mapping[str, Member]:
        """Members of the plan that is taken."""
        return self.plans[self.chosen]


def write_portfolio(path: Path | str | None, plans: Sequence[bytes], chosen: int) -> bytes:
    """Bytes of an `.spz` file with these plans, which are files themselves."""
    listed = [identity(read_container(plan)) for plan in plans]
    head = {"format": FORMAT, "chosen": chosen, "plans": listed}
    return write_container(path, {PORTFOLIO: canonical(head), **{plan_member(i): plan for i, plan in enumerate(plans)}})


def decode_portfolio(members: Mapping[str, Member], limits: Limits = LIMITS) -> Portfolio:
    """Inverse of `write_portfolio`; `ContainerError` names what is wrong, and for what is inside where that is."""
    require_kind(members, PORTFOLIO)
    head = read_json(members, PORTFOLIO, limits).fields("format", "chosen", "plans")
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    plans = plans_inside(members, PORTFOLIO, head["plans"], limits)
    return Portfolio(plans, head["chosen"].integer(0, len(plans) - 1))


def plans_inside(
    members: Mapping[str, Member], head: str, listed: Reader, limits: Limits
) -> tuple[Mapping[str, Member], ...]:
    """Members of the plans of a file, which are those that its head lists; nothing else is in the file."""
    names = listed.texts(MOST_PLANS)
    if not names or len(set(names)) != len(names):
        listed.fail("must be identities of different plans, one at least")
    wanted = {MANIFEST, head, *(plan_member(i) for i in range(len(names)))}
    if set(members) != wanted:
        odd = min(set(members) ^ wanted)
        raise ContainerError(f"member {odd!r}", "is missing" if odd in wanted else "belongs to no plan of the file")
    plans, left = [], limits.total - sum(len(m) for m in members.values() if isinstance(m, bytes))
    for i, name in enumerate(names):
        content = members[plan_member(i)]
        if not isinstance(content, bytes):
            raise ContainerError(f"member {plan_member(i)!r}", "must be a plan, is an array")
        inner = _read(content, plan_member(i), left, limits)
        left -= sum(len(m) if isinstance(m, bytes) else m.nbytes for m in inner.values())
        if identity(inner) != name:
            listed.fail(f"plan {i} is another one than the file says")
        plans.append(inner)
    return tuple(plans)


def taken_plan(members: Mapping[str, Member]) -> Mapping[str, Member]:
    """Members of the plan that a file is for: of a portfolio the one that is taken."""
    return decode_portfolio(members).chosen_members if PORTFOLIO in members else members


def _read(content: bytes, place: str, room: int, limits: Limits) -> Mapping[str, Member]:
    """A plan inside, which is no portfolio itself, of at most `room` bytes."""
    within = Limits(limits.file, limits.members, max(0, room), limits.ratio, limits.free, limits.json)
    try:
        inner = read_container(content, within)
        require_plan(inner)
    except ContainerError as error:
        raise ContainerError(f"member {place!r}, {error.place}", error.message) from None
    if PORTFOLIO in inner:
        raise ContainerError(f"member {place!r}", "holds several plans itself")
    return inner


def plan_member(i: int) -> str:
    """Where the plan of a number stands."""
    return f"plans/{i}.spz"
