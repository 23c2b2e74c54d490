"""Counts what a reduction moves, member by member: its program is one collective per block of
neighbouring levels.

    program   reduce-scatter over the digits of each block, innermost block first; all-gather over those not scattered,
              outermost block first
    ring      members of a group in the order of their numbers; each receives from the one before it all parts but one
    entering  of a level: subtrees of it that a ring comes into, at the subtree that most rings come into

    hierarchical: every level is a block; library: all levels are one; synthesised: the blocks of the least price in
    picoseconds, rounded up; ties: most blocks, then the first in the order of their first levels

Blocks that hold every level once sum every part once, so that any of these programs is correct.  Written from
docs/certificate-format/plans.md; `models/communication/reduction_programs` has closed forms, which are what is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, prod

import numpy as np

from ...models.machine.machine import Machine
from .boxes import Digit

Loads = tuple[tuple[int, ...], tuple[int, ...]]
"""Elements and phases per level."""


@dataclass(frozen=True)
class Choice:
    """Which programs reductions of one element size take: the word of the machine; picoseconds of an element and of a
    phase per level.
    """

    word: str
    rates: tuple[tuple[Fraction, Fraction], ...]


@lru_cache(maxsize=64)
def choice_of(machine: Machine, element_bytes: int) -> Choice | None:
    """None: level by level."""
    word = machine.collectives.value
    if word == "hierarchical":
        return None
    return Choice(
        word, tuple((Fraction(element_bytes * 10**12) / x.bandwidth, x.latency * 10**12) for x in machine.levels)
    )


def reduction(
    hierarchy: tuple[int, ...],
    digits: tuple[Digit, ...],
    scattered: tuple[bool, ...],
    elements: int,
    choice: Choice | None = None,
) -> Loads:
    """What the reduction over `digits` moves by the program that it takes.

    `elements`: of the largest tile that a device keeps.  It is padded to a multiple of the number of devices that keep
    the same tile.

    >>> # an all-reduce of 8 elements over 4 devices: 6 in, 6 in
    >>> reduction((4,), (Digit(0, 2, 2), Digit(0, 1, 2)), (False, False), 8)
    ((12,), (2,))
    """
    levels = len(hierarchy)
    if choice is None:
        return moved_by(hierarchy, digits, scattered, elements, tuple(range(levels)))
    if choice.word == "library":
        return moved_by(hierarchy, digits, scattered, elements, (0,))
    found: list[tuple[int, Loads]] = []
    for starts in _structures(levels):
        loads = moved_by(hierarchy, digits, scattered, elements, starts)
        price = sum(a * n + b * p for (a, b), n, p in zip(choice.rates, *loads, strict=True))
        found.append((ceil(price), loads))
    return min(found, key=lambda each: each[0])[1]


@lru_cache(maxsize=16)
def _structures(levels: int) -> tuple[tuple[int, ...], ...]:
    """First levels of blocks: every subset of the levels that holds the outermost one."""
    subsets = [tuple(j for j in range(levels) if j == 0 or chosen >> j & 1) for chosen in range(0, 1 << levels, 2)]
    return tuple(sorted(subsets, key=lambda starts: (-len(starts), starts)))


def is_structure(starts: tuple[int, ...], levels: int) -> bool:
    """Whether these are first levels of blocks that hold every level once."""
    return starts[:1] == (0,) and list(starts) == sorted({*starts}) and starts[-1] < levels


def moved_by(
    hierarchy: tuple[int, ...],
    digits: tuple[Digit, ...],
    scattered: tuple[bool, ...],
    elements: int,
    starts: tuple[int, ...],
) -> Loads:
    """Loads and phases of one program, given by the first levels of its blocks."""
    kept = tuple(d for d, gone in zip(digits, scattered, strict=True) if not gone)
    loads, phases = [0] * len(hierarchy), [0] * len(hierarchy)

    def receive(members: tuple[Digit, ...], each: int) -> None:
        others = prod(d.prime for d in members) - 1
        if others and each:
            phases[min(d.level for d in members)] += 1
            for i, rings in enumerate(_entering(hierarchy, members)):
                loads[i] += rings * others * each

    def inside(members: tuple[Digit, ...], block: int) -> tuple[Digit, ...]:
        end = starts[block + 1] if block + 1 < len(starts) else len(hierarchy)
        return tuple(d for d in members if starts[block] <= d.level < end)

    size = -(-elements // prod(d.prime for d in kept)) * prod(d.prime for d in digits)
    for block in reversed(range(len(starts))):
        here = inside(digits, block)
        size //= prod(d.prime for d in here)
        receive(here, size)
    for block in range(len(starts)):
        here = inside(kept, block)
        receive(here, size)
        size *= prod(d.prime for d in here)
    return tuple(loads), tuple(phases)


@lru_cache(maxsize=1 << 12)
def _entering(hierarchy: tuple[int, ...], members: tuple[Digit, ...]) -> tuple[int, ...]:
    """Rings that come into the subtree that most come into, per level."""
    device = np.arange(prod(hierarchy), dtype=np.int64)
    leader = device.copy()
    for d in members:
        weight = d.stride * prod(hierarchy[d.level + 1 :])
        leader -= device // weight % d.prime * weight
    order = np.lexsort((device, leader))
    before = np.empty_like(device)
    size = prod(d.prime for d in members)
    rings = order.reshape(-1, size)  # groups have one size; members ascend
    before[rings] = np.roll(rings, 1, axis=1)
    found = []
    for level in range(len(hierarchy)):
        below = prod(hierarchy[level + 1 :])
        comes_in = device // below != before // below
        found.append(int(np.bincount(device // below, comes_in).max()))
    return tuple(found)
