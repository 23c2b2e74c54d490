"""Plans of one program for some sizes, which settle all sizes between them.

    sizes.json       {"format", "name", "step", "sizes": [n, ..], "plans": [identity, ..], "taken": [number, ..], "gap"}
    plans/0.spz ..   containers of plans of placements alone, one for each of the sizes, which ascend

`taken`: for each class, between a size and the next, the number of the plan whose placements are taken; `step`: of
what the sizes are multiples; `gap`: in millionths.  What is claimed: for every multiple of `step` from the first size
to the last, no placements cost less than (1 - gap) times what those that are taken cost.  Decoding checks types and
structure; `verify` says what is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from ...models.program.sized import SizedGraph
from ..container.archive import LIMITS, Limits, Member, identity, read_container, read_json, write_container
from ..container.canonical import ContainerError, canonical
from ..container.kinds import SIZES, require_kind
from .file import plan_member, plans_inside

FORMAT: Final = "shardproof-sizes/1"
MILLION: Final = 1_000_000
"""Gaps are in millionths."""
MOST_SIZE: Final = (1 << 31) - 1
"""The largest number that a size may be."""


@dataclass(frozen=True)
class SizesHead:
    """What a file says of its plans: see the module docstring."""

    name: str
    step: int
    sizes: tuple[int, ...]
    taken: tuple[int, ...]
    gap: int

    def holds(self, size: int) -> bool:
        """Whether the file says something of a size."""
        return size % self.step == 0 and self.sizes[0] <= size <= self.sizes[-1]

    def class_of(self, size: int) -> int:
        """The class that a size is in, or at the end of."""
        return next(i for i, high in enumerate(self.sizes[1:]) if size <= high)

    def plan_for(self, size: int) -> int:
        """The plan whose placements a size has: of a size that was planned its own."""
        return self.sizes.index(size) if size in self.sizes else self.taken[self.class_of(size)]

    @property
    def gap_share(self) -> Fraction:
        """The gap that is claimed."""
        return Fraction(self.gap, MILLION)

    @property
    def words(self) -> str:
        """The sizes.

        >>> SizesHead("N", 16, (64, 256), (0,), 10_000).words
        'N = 64..256 in steps of 16'
        """
        return f"{self.name} = {self.sizes[0]}..{self.sizes[-1]} in steps of {self.step}"


@dataclass(frozen=True, eq=False)
class SizedPlans:
    """`plans`: members of containers, one for each of the sizes of `head`."""

    head: SizesHead
    plans: tuple[Mapping[str, Member], ...]


Pick = Callable[[SizesHead, SizedGraph], int]
"""Who says which of the sizes is meant."""


def write_sizes(path: Path | str | None, head: SizesHead, plans: Sequence[bytes]) -> bytes:
    """Bytes of an `.spz` file with these plans, which are files themselves."""
    listed = [identity(read_container(plan)) for plan in plans]
    said = {
        "format": FORMAT,
        "name": head.name,
        "step": head.step,
        "sizes": list(head.sizes),
        "plans": listed,
        "taken": list(head.taken),
        "gap": head.gap,
    }
    return write_container(path, {SIZES: canonical(said), **{plan_member(i): plan for i, plan in enumerate(plans)}})


def decode_sizes(members: Mapping[str, Member], limits: Limits = LIMITS) -> SizedPlans:
    """Inverse of `write_sizes`; `ContainerError` names what is wrong, and for what is inside where that is."""
    require_kind(members, SIZES)
    head = read_json(members, SIZES, limits).fields("format", "name", "step", "sizes", "plans", "taken", "gap")
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    plans = plans_inside(members, SIZES, head["plans"], limits)
    for i, inner in enumerate(plans):
        if "plan.json" not in inner or "joint.json" in inner:
            raise ContainerError(f"member {plan_member(i)!r}", "is no plan of placements alone of one program")
    name, step = head["name"].text(100), head["step"].integer(1, MOST_SIZE)
    if not name.isidentifier():
        head["name"].fail("is no name of a size")
    sizes = tuple(head["sizes"].integers(1, MOST_SIZE, len(plans)))
    if len(sizes) != len(plans) or len(sizes) < 2 or list(sizes) != sorted(set(sizes)):
        head["sizes"].fail("must be two sizes or more, ascending, one for each plan")
    if any(n % step for n in sizes):
        head["sizes"].fail(f"must be multiples of {step}, the step")
    taken = tuple(head["taken"].integers(0, len(plans) - 1, len(plans) - 1))
    if len(taken) != len(sizes) - 1 or any(number not in (i, i + 1) for i, number in enumerate(taken)):
        head["taken"].fail("must name one of the two plans of every class")
    return SizedPlans(SizesHead(name, step, sizes, taken, head["gap"].integer(0, MILLION - 1)), plans)
