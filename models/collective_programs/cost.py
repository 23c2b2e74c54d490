"""What a step of a reduction program costs: bandwidth with contention, latency, a copy (model M2 and
its relatives).

    step     = max over links, switches and buses of  load / rate    (`additive`: sum over levels of the level's
             largest)
               + 2 max S / copy + latency of the outermost level crossed * phases,    AllReduce 2 phases, others 1
    program  = sum of its steps

Loads are those of `models.collective_programs.loads`, S in bytes.  All constants are exact rationals; a step is rounded
up once to the unit.

    m2(machine)      the note's model: no latency
    m0(machine)      the paper's constants, 8 GB/s per node shared by the groups; no copy, flow limit or switch
    m1(machine)      m0, but every group has the NIC for itself
    linked(machine)  M2 with the machine's latencies: alpha-beta with contention, the default for our own machines
    planned(machine) the reading of `models.communication.pricing`: levels one after another, a level carries what
    enters further out as well

>>> from shardproof.models.machine.machine import load_machine
>>> cost = m2(load_machine("p2-a100:2x16"), 10 << 31, Algorithm.RING)
>>> step = LoweredStep(Collective.ALL_REDUCE, tuple(tuple(range(j, 32, 4)) for j in range(4)), (8,) * 4, 8)
>>> round(cost.step_time(step) / cost.scale, 2)      # measured: 16.84 s
16.73
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Final

from ..machine.machine import Machine
from ..machine.parts import MachineError, ReductionConstants
from ..machine.topology import Topology, of_machine
from .collectives import Collective, LoweredStep
from .loads import Algorithm, step_loads

__all__ = [
    "PAYLOAD",
    "PRESETS",
    "SCALE",
    "Algorithm",
    "LinkCost",
    "custom",
    "link_cost",
    "m0",
    "m1",
    "m2",
    "planner_cost",
    "preset",
]

SCALE: Final = 10**12
"""Costs are in picoseconds."""

PAYLOAD: Final = 10 << 31
"""Bytes per device of the published times: ten runs of 2^29 float32."""

PRESETS: Final = ("m2", "linked", "m0", "m1", "planned")
"""Names that `preset` knows."""

_ONE: Final = Fraction(1)


@dataclass(frozen=True)
class LinkCost:
    """A `CollectiveCost`; see the module docstring.  `payload`: bytes per device."""

    label: str
    topology: Topology
    payload: int
    algorithm: Algorithm
    tree_flow: Fraction | None = None
    copy: Fraction | None = None
    quad: Fraction = _ONE
    shared: bool = True
    additive: bool = False
    through: bool = False
    _known: dict[object, tuple[Fraction, Fraction]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        place = f"cost model {self.label!r}"
        if self.payload <= 0:
            raise MachineError(place, f"payload must be at least 1 byte, is {self.payload}")
        for name, value in (("tree_flow", self.tree_flow), ("copy", self.copy)):
            if value is not None and value <= 0:
                raise MachineError(
                    place, f"{name} must be greater than 0, is {value} bytes/s", "leave it out for no limit"
                )
        if self.quad < 0:
            raise MachineError(place, f"switch_quad must not be negative, is {self.quad}")

    @property
    def name(self) -> str:
        """Label, algorithm, payload and a hash of every constant."""
        parts = (
            self.topology,
            self.tree_flow,
            self.copy,
            self.quad,
            self.shared,
            self.additive,
            self.through,
        )
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()
        return f"{self.label}/{self.algorithm.value}/{self.payload}B/{digest[:16]}"

    @property
    def scale(self) -> int:
        """Units per second."""
        return SCALE

    def step_time(self, step: LoweredStep) -> int:
        """Picoseconds of one step, rounded up once.  Raises `MachineError` for a device that the machine does not
        have.
        """
        return ceil(self.step_seconds(step) * SCALE)

    def step_seconds(self, step: LoweredStep) -> Fraction:
        """The exact time."""
        if not step.groups:
            return Fraction(0)
        same = all(r == step.rows[0] for r in step.rows)
        key = (step.collective, step.groups) if same else (step.collective, step.groups, step.rows)
        if key not in self._known:
            if max(max(g) for g in step.groups) >= self.topology.devices or min(min(g) for g in step.groups) < 0:
                raise MachineError(
                    f"machine {self.topology.name!r}",
                    f"has {self.topology.devices} devices, a step names others",
                    "resize the machine: name:4x16",
                )
            self._known[key] = self._price(step.collective, step.groups, (1,) * len(step.groups) if same else step.rows)
        per_row, constant = self._known[key]
        times = step.rows[0] if same else 1
        return per_row * times * Fraction(self.payload, step.chunks) + constant

    def _price(
        self, collective: Collective, groups: tuple[tuple[int, ...], ...], rows: tuple[int, ...]
    ) -> tuple[Fraction, Fraction]:
        """Seconds per byte of a row, and constant seconds."""
        if self.shared:
            busy = self._busy(collective, groups, rows)
        else:
            busy = max(self._busy(collective, (g,), (r,)) for g, r in zip(groups, rows, strict=True))
        if self.copy is not None:
            busy += 2 * max(rows) / self.copy
        phases = 2 if collective is Collective.ALL_REDUCE else 1
        crossed = [self._crossed(g) for g in groups]
        return busy, max(self.topology.levels[l].latency for l in crossed) * phases

    def _busy(self, collective: Collective, groups: tuple[tuple[int, ...], ...], rows: tuple[int, ...]) -> Fraction:
        t = self.topology
        loads = step_loads(t, collective, groups, rows, self.algorithm, self.quad, self.through)
        per_level = [
            max(Fraction(max(a, b)) / rate for a, b, rate in zip(into, out, level.rates, strict=True))
            for into, out, level in zip(loads.into, loads.out, t.levels, strict=True)
        ]
        others = [
            Fraction(load) / rate
            for at, s in zip(loads.switches, t.switches, strict=True)
            for load, rate in zip(at, s.rates, strict=True)
        ]
        others += [
            Fraction(load) / rate
            for at, b in zip(loads.buses, t.buses, strict=True)
            for load, rate in zip(at, b.rates, strict=True)
        ]
        if self.tree_flow is not None:
            others.append(loads.flow / self.tree_flow)
        total = max([sum(per_level, Fraction(0)), *others]) if self.additive else max([*per_level, *others])
        return total / loads.denominator

    def _crossed(self, group: tuple[int, ...]) -> int:
        """Outermost level that the group crosses."""
        return next(l for l, level in enumerate(self.topology.levels) if len({level.of[d] for d in group}) > 1)


def m2(machine: Machine, payload: int = PAYLOAD, algorithm: Algorithm = Algorithm.RING) -> LinkCost:
    """The note's model M2 with the constants of the machine."""
    return custom("M2", _silent(of_machine(machine)), payload, algorithm, machine.reduction)


def link_cost(machine: Machine, payload: int, algorithm: Algorithm = Algorithm.RING) -> LinkCost:
    """M2 with latencies."""
    return custom("linked", of_machine(machine), payload, algorithm, machine.reduction)


def m0(machine: Machine, payload: int = PAYLOAD, algorithm: Algorithm = Algorithm.RING) -> LinkCost:
    """The paper's own constants: 8 GB/s per node, the machine's inner links."""
    t = of_machine(machine)
    nic = replace(t.levels[0], rates=(Fraction(8 * 10**9),) * len(t.levels[0].rates))
    return custom("M0", _silent(Topology(t.name, (nic, *t.levels[1:]))), payload, algorithm, None)


def m1(machine: Machine, payload: int = PAYLOAD, algorithm: Algorithm = Algorithm.RING) -> LinkCost:
    """M0 without contention between groups."""
    return replace(m0(machine, payload, algorithm), label="M1", shared=False, _known={})


def planner_cost(machine: Machine, payload: int) -> LinkCost:
    """The reading of `models.communication.pricing`, (L2): what `plan` charges for a reduction."""
    t = of_machine(machine)
    return LinkCost("planned", Topology(t.name, t.levels), payload, Algorithm.RING, additive=True, through=True)


def preset(
    name: str, machine: Machine, payload: int, algorithm: Algorithm = Algorithm.RING, devices: Sequence[int] = ()
) -> LinkCost:
    """A cost model by name, on all devices or on some of them (renumbered in the order given).  Raises `MachineError`.

    >>> from shardproof.models.machine.machine import load_machine
    >>> preset("m2", load_machine("p2-a100"), 1 << 30, devices=(0, 1, 16)).topology.devices
    3
    """
    match name:
        case "m2":
            cost = m2(machine, payload, algorithm)
        case "m0":
            cost = m0(machine, payload, algorithm)
        case "m1":
            cost = m1(machine, payload, algorithm)
        case "linked":
            cost = link_cost(machine, payload, algorithm)
        case "planned":
            cost = planner_cost(machine, payload)
        case _:
            raise MachineError(f"cost model {name[:40]!r}", "is unknown", f"choose one of {', '.join(PRESETS)}")
    return replace(cost, topology=cost.topology.only(devices), _known={}) if devices else cost


def custom(
    label: str, topology: Topology, payload: int, algorithm: Algorithm, constants: ReductionConstants | None
) -> LinkCost:
    """Any links, such as uneven nodes or a slow one, with the constants beyond links."""
    c = constants or ReductionConstants()
    return LinkCost(
        label, topology, payload, algorithm, c.tree_flow, c.copy, _ONE if c.switch_quad is None else c.switch_quad
    )


def _silent(t: Topology) -> Topology:
    return replace(t, levels=tuple(replace(level, latency=Fraction(0)) for level in t.levels))
