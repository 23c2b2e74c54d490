"""Seconds of one collective of a group of devices that is spread over the levels of a machine.

    members     g_j of every level, outermost first: the group is their product
    sharing     u_j devices of a child of level j send through its link at once, each for a group of its own
    gather      from the outermost level inwards: s bytes of everyone, times what the levels before brought together
    scatter     the same backwards;   all_reduce: scatter inside, all_reduce at the outermost level, gather inside
    level       its measured form (`collectives`), else  u_j (g_j - 1) s / bandwidth + latency

These are the collectives of (L2) in `models.communication.pricing`, for a group that is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, prod

import numpy as np

from ..communication.collective_steps import Step
from ..machine.machine import Machine
from .collectives import step_times
from .cost import UNIT

__all__ = ["group_seconds", "level_seconds", "send_seconds"]


def group_seconds(
    machine: Machine, members: Sequence[int], operation: str, size: Fraction | int, below: Sequence[int] | None = None
) -> Fraction:
    """Seconds of `operation` on a buffer of `size` bytes (all_gather: the result, reduce_scatter: the input, all_reduce
    and alltoall: what every device holds).  `below`: devices of a child of each level that are in groups of their own
    at the same time (None: all that are not in this one).

    >>> from ..machine.machine import load_machine
    >>> box = load_machine("dgx-h100:2x8")
    >>> [float(round(group_seconds(box, (1, 8), name, 1 << 28), 6)) for name in ("all_gather", "all_reduce")]
    [0.000723, 0.001172]
    >>> group_seconds(box, (1, 1), "all_gather", 1 << 28)
    Fraction(0, 1)
    """
    return sum(level_seconds(machine, members, operation, size, below).values(), Fraction(0))


def level_seconds(
    machine: Machine, members: Sequence[int], operation: str, size: Fraction | int, below: Sequence[int] | None = None
) -> dict[int, Fraction]:
    """The same, by the level whose links are waited for.

    >>> from ..machine.machine import load_machine
    >>> sorted(level_seconds(load_machine("dgx-h100:2x8"), (2, 4), "all_reduce", 1 << 28))
    [0, 1]
    """
    n = prod(members)
    if n == 1 or not size:
        return {}
    inside = list(below) if below is not None else [prod(machine.hierarchy[j + 1 :]) for j in range(len(members))]
    levels = [j for j, g in enumerate(members) if g > 1]
    found = dict[int, Fraction]()
    if operation == "alltoall":
        for j in levels:  # what a device holds for devices on other children of the level
            away = Fraction(size) / prod(members[:j])
            found[j] = _level(machine, j, members[j], "alltoall", away / members[j], inside[j])
        return found
    outer, rest = levels[0], levels[1:]
    if operation == "all_reduce":
        for j in rest:
            found[j] = _gathered(machine, members, j, levels, Fraction(size), inside) * 2
        share = Fraction(size) / prod(members[j] for j in rest)
        found[outer] = _level(machine, outer, members[outer], "all_reduce", share / members[outer], inside[outer])
        return found
    held = Fraction(size) / n
    for j in levels:
        found[j] = _level(machine, j, members[j], operation, held, inside[j])
        held *= members[j]
    return found


def _gathered(
    machine: Machine, members: Sequence[int], level: int, levels: Sequence[int], size: Fraction, inside: Sequence[int]
) -> Fraction:
    """A gather at one of the inner levels of an all_reduce."""
    share = size / prod(members[j] for j in levels if j >= level)
    return _level(machine, level, members[level], "all_gather", share, inside[level])


def _level(machine: Machine, level: int, members: int, operation: str, share: Fraction, sharing: int) -> Fraction:
    """`share`: bytes that each of the members contributes."""
    here = machine.levels[level]
    load = share * sharing
    if here.collectives:
        one = np.ones(1, dtype=np.int64)
        step = Step(operation, level, one * members, one * ceil(load))
        return int(step_times([step], (1,), 1, machine, UNIT)[0]) * UNIT
    passes = 2 if operation == "all_reduce" else 1
    return passes * ((members - 1) * load / here.bandwidth + here.latency)


def send_seconds(machine: Machine, level: int, size: Fraction | int, sharing: int = 1) -> Fraction:
    """Seconds in which a device sends `size` bytes to one on another child of a level, `sharing` of them at once.

    >>> from ..machine.machine import load_machine
    >>> float(send_seconds(load_machine("dgx-h100:2x8"), 0, 4 * 10**8, 8))
    0.00801
    """
    here = machine.levels[level]
    return Fraction(size) * sharing / here.bandwidth + here.latency
