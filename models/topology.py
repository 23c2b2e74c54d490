"""Links of a machine as the cost of collectives sees them: nested subtrees, a rate per link, nodes of any size.

    level l, link v    of[d] = v for the devices d below v; the link carries `rates[v]` bytes/s in and as much out
    innermost level    one link per device
    switch             devices that share a switch inside a node; `rates` bytes/s

A regular machine gives one rate per level.  Uneven nodes and slow links are ordinary here: nodes are lists of devices, and
`[[resource]]` of a machine file with `only = [2]` slows the link of node 2 alone.

>>> from shardproof.models.machine import load_machine
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
from .machine_parts import MachineError, Resource



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
class Topology:
    """Levels outermost first; every level refines the one above; the last has one link per device.  Raises `MachineError`."""

    name: str
    levels: tuple[Links, ...]
    switches: tuple[Switch, ...] = ()

    def __post_init__(self) -> None:
        place = f"machine {self.name!r}"
        if not self.levels or not self.levels[-1].of:
            raise MachineError(place, "has no devices", "give at least one device")
        devices = len(self.levels[-1].of)
        if self.levels[-1].of != tuple(range(devices)):
            raise MachineError(place, "its innermost level must have one link per device, in order of the devices")
        outer: tuple[int, ...] = (0,) * devices
        for part in (*self.levels, *self.switches):
            where = f"{place}, {part.name}"
            if len(part.of) != devices:
                raise MachineError(where, f"covers {len(part.of)} of {devices} devices")
            if any(not 0 <= v < len(part.rates) for v in part.of):
                raise MachineError(where, "a device hangs on a link that has no rate", f"links are 0 .. {len(part.rates) - 1}")
            for v, rate in enumerate(part.rates):
                if rate <= 0:
                    raise MachineError(f"{where}, link {v}", f"bandwidth must be greater than 0, is {rate} bytes/s")
            parent: dict[int, int] = {}
            if isinstance(part, Links):
                if part.latency < 0:
                    raise MachineError(where, f"latency must not be negative, is {part.latency} s")
                if any(parent.setdefault(v, u) != u for v, u in zip(part.of, outer, strict=True)):
                    raise MachineError(where, "one of its links reaches into two subtrees of the level above", "levels must be nested")
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
        """The machine without its other devices, renumbered in the order given: nodes may end up with different sizes."""
        if len(set(devices)) != len(devices) or any(not 0 <= d < self.devices for d in devices):
            raise MachineError(f"machine {self.name!r}", "devices must be distinct and exist", f"devices are 0 .. {self.devices - 1}")
        levels = [replace(x, of=tuple(x.of[d] for d in devices)) for x in self.levels[:-1]]
        last = self.levels[-1]
        levels.append(replace(last, of=tuple(range(len(devices))), rates=tuple(last.rates[d] for d in devices)))
        return Topology(self.name, tuple(levels), tuple(replace(s, of=tuple(s.of[d] for d in devices)) for s in self.switches))


def of_machine(machine: Machine) -> Topology:
    """Links of a machine.  A `[[resource]]` of one level's traffic whose devices are whole subtrees of that level lies in series
    with the link of the subtree; any other is a switch if it joins devices below one innermost subtree.  Raises `MachineError`."""
    hierarchy, devices = machine.hierarchy, machine.devices
    levels = []
    for i, level in enumerate(machine.levels):
        below = prod(hierarchy[i + 1 :])
        levels.append(Links(level.name, tuple(d // below for d in range(devices)), (level.bandwidth,) * (devices // below), level.latency))
    switches = []
    for r in machine.resources:
        where = next((i for i in range(len(levels)) if prod(hierarchy[i + 1 :]) == r.devices and r.traffic == (levels[i].name,)), None)
        if where is not None:
            count = devices // r.devices
            chosen = r.only or tuple(range(count))
            rates = list(levels[where].rates)
            for v in chosen:
                rates[v] = min(rates[v], r.capacity)
            levels[where] = replace(levels[where], rates=tuple(rates))
        elif levels[-1].name in r.traffic and r.devices < hierarchy[-1] and hierarchy[-1] % r.devices == 0 and not r.only:
            switches.append(_switch(r, devices))
        else:
            raise MachineError(
                f"machine {machine.name!r}, resource {r.name!r}", "the cost of collectives does not know such a resource",
                f"either a link in series: traffic = one level, devices = those below one of its links; or a switch: devices divide the {hierarchy[-1]} of a node, no `only`",
            )
    return Topology(machine.name, tuple(levels), tuple(switches))


def _switch(r: Resource, devices: int) -> Switch:
    return Switch(r.name, tuple(d // r.devices for d in range(devices)), (r.capacity,) * (devices // r.devices))


def of_nodes(
    nodes: Sequence[Sequence[int]], link: Fraction, port: Fraction, slow: Mapping[int, Fraction] | None = None, name: str = "nodes"
) -> Topology:
    """Two levels from lists of devices: `link` bytes/s per node, `port` per device, `slow[v]` instead for node v."""
    flat = sorted(d for node in nodes for d in node)
    if flat != list(range(len(flat))) or not flat:
        raise MachineError(f"machine {name!r}", "has no devices" if not flat else "devices must be 0, 1, 2 .. and each in one node", "for example [[0, 1], [2, 3, 4]]")
    of = [0] * len(flat)
    for v, node in enumerate(nodes):
        for d in node:
            of[d] = v
    extra = dict(slow or {})
    for v in extra:
        if not 0 <= v < len(nodes):
            raise MachineError(f"machine {name!r}", f"has no node {v} to be slower", f"nodes are 0 .. {len(nodes) - 1}")
    rates = tuple(extra.get(v, link) for v in range(len(nodes)))
    return Topology(name, (Links("nodes", tuple(of), rates), Links("devices", tuple(range(len(flat))), (port,) * len(flat))))
