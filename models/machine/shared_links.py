"""Prices shared and oversubscribed links in plans: rates of levels as they are when all devices send.

    link    a resource in series with one link of a level:  rate of the level = min(bandwidth, capacity)
    bus     k links of a level go through it:               rate of the level = min(bandwidth, capacity / k)
    switch  joins devices inside a node, for groups that leave a ring (also one of a whole node that other levels load,
            too): no rate of a level says it; it stays in the machine, and plans state it as `unpriced-resources`

A plan's price of a level is its busiest link's, so k links carry at most k times that: what is priced is never less
than what the resource takes, and equal where all links of a block carry as much, as in collectives of all devices.
One slow link (`only`) is everybody's: whoever waits for the slowest device waits for it.  Levels that are priced by
measured forms keep them, and their resources stay unpriced.  What a plan is priced with is the machine in its file,
which the checker reads.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod
from pathlib import Path

from .machine import Collectives, Machine, load_machine
from .parts import Resource
from .quantities import show
from .topology import part_of


def with_shared_links(machine: Machine, collectives: Collectives | None = None) -> tuple[Machine, tuple[str, ...]]:
    """The machine whose levels have the rates that their shared links leave, without the resources that are then
    priced; a note for each level that became slower.  `collectives`: programs of reductions that take the place of
    what the machine says.

    >>> from .machine import load_machine
    >>> box = load_machine("cloud-a100:4x8")
    >>> spine = Resource("spine", 16, box.levels[0].bandwidth, ("nodes",))
    >>> slow, notes = with_shared_links(replace(box, resources=(spine,)))
    >>> slow.levels[0].bandwidth == box.levels[0].bandwidth / 2, slow.resources, len(notes)
    (True, (), 1)
    """
    machine = machine if collectives is None else machine.with_collectives(collectives)
    levels, sources, bars = list(machine.levels), dict(machine.sources), dict(machine.bars)
    kept, notes = list[Resource](), list[str]()
    for r in machine.resources:
        inside = r.devices <= machine.hierarchy[-1] and machine.levels[-1].name in r.traffic and len(r.traffic) > 1
        switch = part_of(machine, r)[0] == "switch" or inside
        measured = [x.name for x in machine.levels if x.name in r.traffic and x.collectives]
        if switch or measured:
            kept.append(r)
        if switch:
            continue
        for j, level in enumerate(levels):
            if level.name not in r.traffic or level.collectives:
                continue
            links = r.devices // prod(machine.hierarchy[j + 1 :])
            rate = Fraction(r.capacity) / links
            if rate >= level.bandwidth:
                continue
            levels[j] = replace(level, bandwidth=rate)
            path, own = f"level.{level.name}.bandwidth", f"resource.{r.name}.capacity"
            shared = f"{show(r.capacity, 'rate')} of resource {r.name}"
            shared += f", shared by {links} links" if links > 1 else ""
            sources[path] = f"{shared}: {dict(machine.sources).get(own, 'no source')}"
            bars.pop(path, None)
            if own in bars:
                bars[path] = bars[own]
            notes.append(f"level {level.name} is priced at {show(rate, 'rate')} a link, {shared}")
    gone = {f"resource.{r.name}.capacity" for r in machine.resources if r not in kept}
    return (
        replace(
            machine,
            levels=tuple(levels),
            resources=tuple(kept),
            sources=tuple(sorted((k, v) for k, v in sources.items() if k not in gone)),
            bars=tuple(sorted((k, v) for k, v in bars.items() if k not in gone)),
        ),
        tuple(notes),
    )


def planned_machine(spec: Machine | str | Path) -> Machine:
    """The machine that plans of `spec` are priced with: a machine, or what `load_machine` takes."""
    return with_shared_links(spec if isinstance(spec, Machine) else load_machine(str(spec)))[0]
