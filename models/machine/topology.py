"""Links of a machine as the cost of collectives sees them: nested subtrees, a rate per link, nodes of
any size.

    level l, link v    of[d] = v for the devices d below v; the link carries `rates[v]` bytes/s in and as much out
    innermost level    one link per device
    switch             devices that share a switch inside a node; `rates` bytes/s
    bus                a block of devices whose links of some levels share `rates` bytes/s (memory of one computer, a
                       spine)

A regular machine gives one rate per level.  Uneven nodes and slow links are ordinary here: nodes are lists of devices,
and `[[resource]]` of a machine file with `only = [2]` slows the link of node 2 alone.

>>> from shardproof.models.machine.machine import load_machine
>>> t = of_machine(load_machine("p2-v100:2x8"))
>>> [len(level.rates) for level in t.levels], [s.name for s in t.switches], t.devices
([2, 16], ['pcie-switch'], 16)
>>> of_nodes([[0, 1], [2, 3, 4]], Fraction(9 * 10**9), Fraction(27 * 10**10), {1: Fraction(10**9)}).levels[0].rates
(Fraction(9000000000, 1), Fraction(1000000000, 1))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from .machine import Machine
from .parts import MachineError, Resource


@dataclass(frozen=True)
class Links:
    """One level: the link of each device, bytes/s per link each way, seconds per phase that crosses it."""

    name: str
    of: tuple[int, ...]
    rates: tuple[Fraction, ...]
    latency: Fraction = Fraction(0)


@dataclass(frozen=True)
class Switch:
    """A switch between devices of one node: `of[d]` its number, `rates` bytes/s per switch."""

    name: str
    of: tuple[int, ...]
    rates: tuple[Fraction, ...]


@dataclass(frozen=True)
class Bus:
    """`of[d]`: block of a device, -1 for none; the traffic entering all links of the `levels` of a block adds up on
    it.
    """

    name: str
    of: tuple[int, ...]
    rates: tuple[Fraction, ...]
    levels: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """Levels outermost first; every level refines the one above; the last has one link per device.  Raises
    `MachineError`.
    """

    name: str
    levels: tuple[Links, ...]
    switches: tuple[Switch, ...] = ()
    buses: tuple[Bus, ...] = ()

    def __post_init__(self) -> None:
        place = f"machine {self.name!r}"
        if not self.levels or not self.levels[-1].of:
            raise MachineError(place, "has no devices", "give at least one device")
        devices = len(self.levels[-1].of)
        if self.levels[-1].of != tuple(range(devices)):
            raise MachineError(place, "its innermost level must have one link per device, in order of the devices")
        outer: tuple[int, ...] = (0,) * devices
        parts: tuple[Links | Switch | Bus, ...] = (*self.levels, *self.switches, *self.buses)
        for part in parts:
            where = f"{place}, {part.name}"
            if len(part.of) != devices:
                raise MachineError(where, f"covers {len(part.of)} of {devices} devices")
            if any(not (-1 if isinstance(part, Bus) else 0) <= v < len(part.rates) for v in part.of):
                raise MachineError(
                    where, "a device hangs on a link that has no rate", f"links are 0 .. {len(part.rates) - 1}"
                )
            for v, rate in enumerate(part.rates):
                if rate <= 0:
                    raise MachineError(f"{where}, link {v}", f"bandwidth must be greater than 0, is {rate} bytes/s")
            parent: dict[int, int] = {}
            if isinstance(part, Links):
                if part.latency < 0:
                    raise MachineError(where, f"latency must not be negative, is {part.latency} s")
                if any(parent.setdefault(v, u) != u for v, u in zip(part.of, outer, strict=True)):
                    raise MachineError(
                        where, "one of its links reaches into two subtrees of the level above", "levels must be nested"
                    )
                outer = part.of

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.levels[-1].of)

    def with_rate(self, level: int, link: int, rate: Fraction) -> Topology:
        """The same links with another rate for one of them.  Raises `MachineError` when there is no such link."""
        if not 0 <= level < len(self.levels) or not 0 <= link < len(self.levels[level].rates):
            raise MachineError(f"machine {self.name!r}", f"has no link {link} at level {level}")
        old = self.levels[level]
        new = replace(old, rates=(*old.rates[:link], rate, *old.rates[link + 1 :]))
        return replace(self, levels=(*self.levels[:level], new, *self.levels[level + 1 :]))

    def only(self, devices: Sequence[int]) -> Topology:
        """The machine without its other devices, renumbered in the order given: nodes may end up with different
        sizes.
        """
        if len(set(devices)) != len(devices) or any(not 0 <= d < self.devices for d in devices):
            raise MachineError(
                f"machine {self.name!r}", "devices must be distinct and exist", f"devices are 0 .. {self.devices - 1}"
            )
        levels = [replace(x, of=tuple(x.of[d] for d in devices)) for x in self.levels[:-1]]
        last = self.levels[-1]
        levels.append(replace(last, of=tuple(range(len(devices))), rates=tuple(last.rates[d] for d in devices)))
        switches = tuple(replace(s, of=tuple(s.of[d] for d in devices)) for s in self.switches)
        return Topology(
            self.name,
            tuple(levels),
            switches,
            tuple(replace(b, of=tuple(b.of[d] for d in devices)) for b in self.buses),
        )


def part_of(machine: Machine, r: Resource) -> tuple[str, int]:
    """What a `[[resource]]` is: ("link", level) if its devices are those below one link of the only level whose traffic
    loads it, in series with that link; ("switch", -1) if it joins devices of one node, the innermost level among its
    traffic; else ("bus", -1).  Raises `MachineError` if it is none of these."""
    hierarchy, names = machine.hierarchy, [x.name for x in machine.levels]
    below = [prod(hierarchy[i + 1 :]) for i in range(len(names))]
    if len(r.traffic) == 1 and below[names.index(r.traffic[0])] == r.devices:
        return "link", names.index(r.traffic[0])
    if names[-1] in r.traffic and r.devices < hierarchy[-1] and hierarchy[-1] % r.devices == 0 and not r.only:
        return "switch", -1
    if all(r.devices % below[names.index(t)] == 0 for t in r.traffic):
        return "bus", -1
    raise MachineError(
        f"machine {machine.name!r}, resource {r.name!r}",
        f"{r.devices} devices cut through the links of {', '.join(r.traffic)}",
        f"devices of whole subtrees: {', '.join(f'{b} for {n}' for n, b in zip(names, below, strict=True))}, or a "
        f"multiple",
    )


def of_machine(machine: Machine) -> Topology:
    """Links of a machine, resources as `part_of` says.  Raises `MachineError`."""
    hierarchy, devices = machine.hierarchy, machine.devices
    levels = []
    for i, level in enumerate(machine.levels):
        below = prod(hierarchy[i + 1 :])
        levels.append(
            Links(
                level.name,
                tuple(d // below for d in range(devices)),
                (level.bandwidth,) * (devices // below),
                level.latency,
            )
        )
    switches, buses = [], []
    for r in machine.resources:
        kind, l = part_of(machine, r)
        blocks = devices // r.devices
        of, rates = tuple(d // r.devices for d in range(devices)), (r.capacity,) * blocks
        if kind == "link":
            chosen = set(r.only or range(blocks))
            levels[l] = replace(
                levels[l], rates=tuple(min(x, r.capacity) if v in chosen else x for v, x in enumerate(levels[l].rates))
            )
        elif kind == "switch":
            switches.append(Switch(r.name, of, rates))
        else:
            loaded = tuple(i for i, x in enumerate(machine.levels) if x.name in r.traffic)
            buses.append(Bus(r.name, tuple(b if not r.only or b in r.only else -1 for b in of), rates, loaded))
    return Topology(machine.name, tuple(levels), tuple(switches), tuple(buses))


def of_nodes(
    nodes: Sequence[Sequence[int]],
    link: Fraction,
    port: Fraction,
    slow: Mapping[int, Fraction] | None = None,
    name: str = "nodes",
) -> Topology:
    """Two levels from lists of devices: `link` bytes/s per node, `port` per device, `slow[v]` instead for node v."""
    flat = sorted(d for node in nodes for d in node)
    if flat != list(range(len(flat))) or not flat:
        raise MachineError(
            f"machine {name!r}",
            "has no devices" if not flat else "devices must be 0, 1, 2 .. and each in one node",
            "for example [[0, 1], [2, 3, 4]]",
        )
    of = [0] * len(flat)
    for v, node in enumerate(nodes):
        for d in node:
            of[d] = v
    extra = dict(slow or {})
    for v in extra:
        if not 0 <= v < len(nodes):
            raise MachineError(f"machine {name!r}", f"has no node {v} to be slower", f"nodes are 0 .. {len(nodes) - 1}")
    rates = tuple(extra.get(v, link) for v in range(len(nodes)))
    return Topology(
        name, (Links("nodes", tuple(of), rates), Links("devices", tuple(range(len(flat))), (port,) * len(flat)))
    )
