"""The parts of a machine: levels, the device class, shared resources, and what may be wrong with
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import Final

from ..program.operators import HOST_COPIES
from .measured import AttentionForm, CollectiveForm, ProductForm

MAX_LEVELS: Final = 8
MAX_DEVICES: Final = 1 << 20
MAX_RESOURCES: Final = 64
MAX_PROFILES: Final = 4096
MOST_BLOCKS: Final = 4
"""Levels over which programs of reductions are weighed: 2^3 programs for every reduction."""
STEP: Final = "step"
"""Names the one error bound that belongs to no constant: that of what the model lacks."""


class MachineError(ValueError):
    """A machine that is not well formed.  `place` names file, table and field; `hint` the next step."""

    def __init__(self, place: str, message: str, hint: str = "") -> None:
        super().__init__(f"{place}: {message}" + (f" ({hint})" if hint else ""))
        self.place, self.message, self.hint = place, message, hint


class Collectives(StrEnum):
    """Which programs the reductions of a plan take (`models.communication.reduction_programs`)."""

    HIERARCHICAL = "hierarchical"
    """Reduce-scatter level by level from the inside, all-gather back: what every plan had before there was a choice."""
    LIBRARY = "library"
    """One collective over the whole group, as a call of NCCL or MPI."""
    SYNTHESISED = "synthesised"
    """The cheapest of one collective per block of neighbouring levels."""


@dataclass(frozen=True)
class Level:
    """One level: `size` children per parent; `bandwidth` bytes/s per child link, each way; `latency` seconds per
    phase.  `collectives`: measured forms of the operations of `measured.COLLECTIVES`, in that order; empty: none.
    """

    name: str
    size: int
    bandwidth: Fraction
    latency: Fraction
    collectives: tuple[CollectiveForm, ...] = ()


@dataclass(frozen=True)
class DeviceClass:
    """A kind of device: `peaks` dtype -> flop/s (sorted), `memory` bytes, `bandwidth` bytes/s, `launch` seconds per
    operator.

    `blocks`: which children of the outermost level consist of it (ascending; empty: all that no other class names).
    `products`: measured forms of matrix products, at most one per element type, sorted.  `attentions`: those of
    attention, at most one per element type and direction, sorted.  `host`: bytes/s between a device and its host's
    memory, each way; None: not stated, and nothing can be copied there.
    """

    name: str
    peaks: tuple[tuple[str, Fraction], ...]
    memory: int
    bandwidth: Fraction
    launch: Fraction = Fraction(0)
    blocks: tuple[int, ...] = ()
    origin: str = field(default="", compare=False, repr=False)  # file it was read from, for messages only
    products: tuple[ProductForm, ...] = ()
    attentions: tuple[AttentionForm, ...] = ()
    host: Fraction | None = None

    def carrier(self, function: str) -> tuple[str, Fraction]:
        """The constant whose link carries the bytes of a function, and bytes/s.  Raises `MachineError` where copies to
        the host have none.

        >>> DeviceClass("d", (), 1, Fraction(8)).carrier("relu")
        ('bandwidth', Fraction(8, 1))
        """
        if function not in HOST_COPIES:
            return "bandwidth", self.bandwidth
        if self.host is None:
            raise MachineError(
                f"{self.origin or 'machine'}, [[device_class]] {self.name!r}",
                "states no link to the host, over which tensors are offloaded",
                'add host = "25 GB/s", or plan with --offload 25GB/s',
            )
        return "host", self.host

    def peak(self, dtype: str) -> Fraction:
        """Flop/s for `dtype`.  Raises `MachineError` naming the dtype and the file."""
        for name, value in self.peaks:
            if name == dtype:
                return value
        place = f"{self.origin or 'machine'}, [[device_class]] {self.name!r}, peaks"
        raise MachineError(
            place,
            f"no peak for {dtype}",
            f'add {dtype} = "... Tflop/s" and its source; there are {", ".join(n for n, _ in self.peaks)}',
        )

    def product(self, dtype: str) -> ProductForm | None:
        """The measured form of products of this type, if there is one."""
        return next((p for p in self.products if p.dtype == dtype), None)

    def attention(self, dtype: str, direction: str) -> AttentionForm | None:
        """The measured form of attention in this type and direction, if there is one."""
        return next((a for a in self.attentions if (a.dtype, a.direction) == (dtype, direction)), None)


@dataclass(frozen=True)
class Resource:
    """A shared link or switch: one for every `devices` consecutive ranks, `capacity` bytes/s, loaded by the traffic of
    these levels.

    `only`: which of these blocks have it (ascending; empty: all), so that one slow link can be described.
    The cost of reduction programs prices it (`models.machine.topology`); plans are priced with the rates that it leaves
    (`models.machine.shared_links`).
    """

    name: str
    devices: int
    capacity: Fraction
    traffic: tuple[str, ...]
    only: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReductionConstants:
    """What reduction programs need beyond the links; None: no such limit or term.

    `tree_flow`: bytes/s of one tree across the outermost level; `copy`: bytes/s of the copy after every step;
    `switch_quad`: weight of a pair of devices under different switches when the group is one contiguous quad.
    """

    tree_flow: Fraction | None = None
    copy: Fraction | None = None
    switch_quad: Fraction | None = None


@dataclass(frozen=True)
class Profile:
    """A measured time: `seconds` (whole picoseconds) of `function` with results of type `dtype` on a box of these local
    `extents`.

    Extents are those of the output's axes in its order, then those of the reduction axes.  The time replaces the
    roofline and the launch of every operator of the function with such a box on a device, whatever its accesses.
    """

    function: str
    dtype: str
    extents: tuple[int, ...]
    seconds: Fraction

    @property
    def path(self) -> str:
        """Name of the constant, as in [sources]."""
        return f"profile.{self.function}.{self.dtype}.{'x'.join(map(str, self.extents))}"


def check_classes(levels: Sequence[Level], classes: Sequence[DeviceClass], place: str) -> None:
    """Raises `MachineError` unless every child of the outermost level has exactly one class, and exactly one class
    is the rest.
    """
    rest = [c.name for c in classes if not c.blocks]
    if len(rest) != 1:
        raise MachineError(
            f"{place}, [[device_class]]",
            f"{len(rest)} of {len(classes)} classes have no blocks ({', '.join(rest)}); exactly one must be what "
            f"the others leave",
            f"give every other class blocks = [..], numbers of {levels[0].name!r} from 0",
        )
    seen: dict[int, str] = {}
    for c in classes:
        for b in c.blocks:
            if b >= levels[0].size:
                raise MachineError(
                    f"{place}, [[device_class]] {c.name!r}, blocks",
                    f"there is no {levels[0].name!r} {b}",
                    f"they are numbered 0 to {levels[0].size - 1}",
                )
            if b in seen:
                raise MachineError(
                    f"{place}, [[device_class]] {c.name!r}, blocks", f"{b} belongs to {seen[b]!r} already"
                )
            seen[b] = c.name
    if len(seen) == levels[0].size:
        raise MachineError(
            f"{place}, [[device_class]] {rest[0]!r}",
            "no device is left for it",
            "leave out its blocks' owners, or give it a block",
        )


def check_sizes(levels: Sequence[Level], resources: Sequence[Resource], place: str) -> None:
    """Raises `MachineError` when a level or the whole machine is empty or too large, or a resource does not divide
    it.
    """
    for i, level in enumerate(levels, start=1):
        if not 1 <= level.size <= MAX_DEVICES:
            raise MachineError(
                f"{place}, [[level]] {i} {level.name!r}, size", f"must be 1 .. {MAX_DEVICES}, is {level.size}"
            )
    devices = prod(level.size for level in levels)
    if devices > MAX_DEVICES:
        raise MachineError(place, f"has {devices} devices", f"at most {MAX_DEVICES} are supported")
    for i, r in enumerate(resources, start=1):
        if r.devices < 1 or devices % r.devices:
            raise MachineError(
                f"{place}, [[resource]] {i} {r.name!r}, devices", f"{r.devices} does not divide the {devices} devices"
            )
        if any(v >= devices // r.devices for v in r.only):
            raise MachineError(
                f"{place}, [[resource]] {i} {r.name!r}, only",
                f"there are {devices // r.devices} blocks of {r.devices} devices, numbered from 0",
            )


def check_collectives(
    collectives: Collectives, levels: Sequence[Level], bars: Sequence[tuple[str, Fraction]], place: str
) -> None:
    """Raises `MachineError` where reductions have no choice of programs: levels with measured forms price one program
    alone, and error bounds are proved of prices that no choice changes.
    """
    if collectives is Collectives.HIERARCHICAL:
        return
    measured = [level.name for level in levels if level.collectives]
    if measured:
        raise MachineError(
            f"{place}, collectives",
            f"{collectives.value!r} prices collectives that span levels by their links, and collectives in "
            f"{', '.join(measured)} have measured forms, which are of one level",
            "plan with 'hierarchical', or for a machine without measured forms",
        )
    if len(levels) > MOST_BLOCKS:
        raise MachineError(
            f"{place}, collectives",
            f"{collectives.value!r} weighs programs over at most {MOST_BLOCKS} levels, not {len(levels)}",
            "plan with 'hierarchical'",
        )
    if bars:
        raise MachineError(
            f"{place}, collectives",
            f"{collectives.value!r} chooses programs by price, and error bounds are of programs that stay",
            "leave out [bars], or plan with 'hierarchical'",
        )


def collectives_of(
    value: object, levels: Sequence[Level], bars: Sequence[tuple[str, Fraction]], place: str
) -> Collectives:
    """The programs of that name.  Raises `MachineError` for an unknown name, and as `check_collectives`."""
    known = [c.value for c in Collectives]
    if not isinstance(value, str) or value not in known:
        raise MachineError(f"{place}, collectives", f"{str(value)[:40]!r} is unknown", f"choose {', '.join(known)}")
    check_collectives(Collectives(value), levels, bars, place)
    return Collectives(value)
