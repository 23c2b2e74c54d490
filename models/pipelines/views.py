"""Views of the machine: equal parts, one per stage, and what sending between neighbours takes.

P stages share the children of the outermost level, P dividing their number, or each child is shared by several stages,
whose number divides the next level.  A tensor of S bytes that crosses a cut is split evenly over the devices of both
views; every level that it crosses carries an even share of it over the links of one view:

    send = sum over the levels l from the outermost that is crossed inwards of  S / links_l / bandwidth_l + latency_l

    links_l   children of level l in one view (one, if the view is a part of a child)

No layouts make a link carry less: every element enters the next view at least once.  Stage s lies on the s-th part in
the machine's order, so neighbours are in one node where they can be (`boundary_level`).
"""

from __future__ import annotations

from fractions import Fraction
from math import prod

from ..machine.machine import Machine
from ..machine.parts import MachineError
from ..text import InputError


def submesh_sizes(machine: Machine, stages: int) -> tuple[int, ...] | None:
    """Level sizes of one of `stages` equal views; None if there are none.

    >>> from ..machine.machine import load_machine
    >>> [submesh_sizes(load_machine("4x8"), p) for p in (1, 2, 4, 8, 3, 64)]
    [(4, 8), (2, 8), (1, 8), (1, 4), None, None]
    """
    sizes = list(machine.hierarchy)
    for level, size in enumerate(sizes):
        if size % stages == 0:
            sizes[level] = size // stages
            return tuple(sizes)
        if stages % size:
            return None
        stages //= size
        sizes[level] = 1
    return None


def equal_submesh(machine: Machine, stages: int) -> Machine | None:
    """The sub-machine of one stage; None if the machine has no such equal parts.

    Raises `InputError` for a machine of several device classes.
    """
    if machine.others:
        raise InputError(
            f"machine {machine.name!r} has several classes of devices; stages of a pipeline lie on equal parts"
        )
    sizes = submesh_sizes(machine, stages)
    if sizes is None:
        return None
    try:
        return machine.resized(sizes)
    except MachineError:  # a shared link would be cut through
        return None


def send_time(machine: Machine, stages: int, size: int, outermost: bool) -> Fraction:
    """Seconds for `size` bytes between neighbouring views; `outermost`: between two children of the outermost level
    where views are parts of one.

    >>> from ..machine.machine import load_machine
    >>> [round(1e6 * send_time(load_machine("cloud-a100:4x8"), p, 9 * 10**6, True)) for p in (2, 4, 8)]  # microseconds
    [517, 1019, 1023]
    """
    levels = cut_levels(machine, stages)
    return _time(machine, stages, size, 0 if not levels else levels[0] if outermost else levels[-1])


def send_between(machine: Machine, stages: int, size: int, boundary: int) -> Fraction:
    """Seconds for `size` bytes between stages `boundary` - 1 and `boundary`, which lie on parts that follow each other.

    >>> from ..machine.machine import load_machine
    >>> [round(1e6 * send_between(load_machine("cloud-a100:4x8"), 8, 9 * 10**6, s)) for s in (1, 2, 3)]  # microseconds
    [13, 1023, 13]
    """
    return _time(machine, stages, size, boundary_level(machine, stages, boundary))


def send_across(machine: Machine, stages: int, size: int, one: int, other: int) -> Fraction:
    """Seconds for `size` bytes between parts `one` and `other`, in the machine's order; none within a part.

    >>> from ..machine.machine import load_machine
    >>> [round(1e6 * send_across(load_machine("cloud-a100:4x8"), 8, 9 * 10**6, 0, s)) for s in (0, 1, 7)]  # us
    [0, 13, 1023]
    """
    if one == other:
        return Fraction(0)
    between = range(min(one, other) + 1, max(one, other) + 1)
    return _time(machine, stages, size, min(boundary_level(machine, stages, b) for b in between))


def boundary_level(machine: Machine, stages: int, boundary: int) -> int:
    """The outermost level that separates parts `boundary` - 1 and `boundary`."""
    sizes = submesh_sizes(machine, stages)
    assert sizes is not None
    inside = stages
    for level in cut_levels(machine, stages):
        inside //= machine.hierarchy[level] // sizes[level]
        if boundary % inside == 0:
            return level
    return 0


def cut_levels(machine: Machine, stages: int) -> list[int]:
    """Levels of which a part has fewer children than the machine, outermost first."""
    sizes = submesh_sizes(machine, stages)
    assert sizes is not None
    return [level for level, (a, b) in enumerate(zip(sizes, machine.hierarchy, strict=True)) if a != b]


def _time(machine: Machine, stages: int, size: int, first: int) -> Fraction:
    sizes = submesh_sizes(machine, stages)
    assert sizes is not None
    total = Fraction(0)
    for level in range(first, len(sizes)):
        links = prod(sizes[: level + 1])
        total += Fraction(size, links) / machine.levels[level].bandwidth + machine.levels[level].latency
    return total
