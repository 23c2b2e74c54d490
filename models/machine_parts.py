"""The parts of a machine: levels, the device class, shared resources, and what may be wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Final

MAX_LEVELS: Final = 8
MAX_DEVICES: Final = 1 << 20
MAX_RESOURCES: Final = 64


class MachineError(ValueError):
    """A machine that is not well formed.  `place` names file, table and field; `hint` the next step."""

    def __init__(self, place: str, message: str, hint: str = "") -> None:
        super().__init__(f"{place}: {message}" + (f" ({hint})" if hint else ""))
        self.place, self.message, self.hint = place, message, hint


@dataclass(frozen=True)
class Level:
    """One level: `size` children per parent; `bandwidth` bytes/s per child link, each way; `latency` seconds per phase."""

    name: str
    size: int
    bandwidth: Fraction
    latency: Fraction


@dataclass(frozen=True)
class DeviceClass:
    """A kind of device: `peaks` dtype -> flop/s (sorted), `memory` bytes, `bandwidth` bytes/s, `launch` seconds per operator."""

    name: str
    peaks: tuple[tuple[str, Fraction], ...]
    memory: int
    bandwidth: Fraction
    launch: Fraction = Fraction(0)
    origin: str = field(default="", compare=False, repr=False)  # file it was read from, for messages only

    def peak(self, dtype: str) -> Fraction:
        """Flop/s for `dtype`.  Raises `MachineError` naming the dtype and the file."""
        for name, value in self.peaks:
            if name == dtype:
                return value
        place = f"{self.origin or 'machine'}, [[device_class]] {self.name!r}, peaks"
        raise MachineError(place, f"no peak for {dtype}", f"add {dtype} = \"... Tflop/s\" and its source; there are {', '.join(n for n, _ in self.peaks)}")


@dataclass(frozen=True)
class Resource:
    """A shared link or switch: one for every `devices` consecutive ranks, `capacity` bytes/s, loaded by the traffic of these levels.

    `only`: which of these blocks have it (ascending; empty: all), so that one slow link can be described.
    The cost of reduction programs prices it (`models.topology`); the cost model of selection does not yet.
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


def check_sizes(levels: Sequence[Level], resources: Sequence[Resource], place: str) -> None:
    """Raises `MachineError` when a level or the whole machine is empty or too large, or a resource does not divide it."""
    for i, level in enumerate(levels, start=1):
        if not 1 <= level.size <= MAX_DEVICES:
            raise MachineError(f"{place}, [[level]] {i} {level.name!r}, size", f"must be 1 .. {MAX_DEVICES}, is {level.size}")
    devices = prod(level.size for level in levels)
    if devices > MAX_DEVICES:
        raise MachineError(place, f"has {devices} devices", f"at most {MAX_DEVICES} are supported")
    for i, r in enumerate(resources, start=1):
        if r.devices < 1 or devices % r.devices:
            raise MachineError(f"{place}, [[resource]] {i} {r.name!r}, devices", f"{r.devices} does not divide the {devices} devices")
        if any(v >= devices // r.devices for v in r.only):
            raise MachineError(f"{place}, [[resource]] {i} {r.name!r}, only", f"there are {devices // r.devices} blocks of {r.devices} devices, numbered from 0")
