"""Which collectives carry out a reduction: one per block of neighbouring levels, known as hierarchical
collectives.

    levels       0 .. L, outermost first;  g_j, r_j, w_i, q as in (L2) of `models.communication.pricing`
    program      the first level of every block; blocks are runs of levels
                 reduce-scatter, block = last .. first:  among the g = prod g_j members of a group, n := n / g
                 all-gather,     block = first .. last:  among the r = prod r_j members,             n := n r
    ring         the members of a group in the order of their numbers, each of which receives (g - 1) n from the one
                 before it.  a: the outermost level of the block with g_j > 1
                 load_i += w_i / (members below a level-i subtree) * (g - 1) n       for i >= a
                 phases_a += 1 where n > 0

    hierarchical every level is a block:  (L2)              library   all levels are one block: one collective of NCCL
    synthesised  the block structure of the least price, rounded up to a picosecond; ties: the one with more blocks,
                 then the one whose blocks are larger inside

In the words of reduction synthesis (P2, MLSys 2022) these are the programs of reduce-scatter and all-gather over nested
groups.  Each is correct: blocks hold every level once, so each sum takes in every part once.  That none of P2's other
programs is cheaper is tested for all groups of built-in machines (`tests/test_plan_reductions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import prod

import numpy as np

from ..layout.layout import subtrees_below
from ..machine.machine import Collectives, Machine
from ..problem.exact import ceil_sum
from ..problem.selection_problem import Ints

Starts = tuple[int, ...]
"""First levels of the blocks of a program, ascending, 0 the first; () where every level is a block."""

_PICOSECOND = Fraction(1, 10**12)

Members = Sequence[int | Ints]
"""Per level a number, of one reduction or of many."""


@dataclass(frozen=True)
class Chooser:
    """What a reduction of elements of one size takes.  `rates`: picoseconds per element and per phase of every
    level.
    """

    collectives: Collectives
    rates: tuple[tuple[Fraction, Fraction], ...]

    def programs(self) -> tuple[Starts, ...]:
        """What there is to choose from, in the order of ties."""
        return programs(len(self.rates), self.collectives)


def chooser_of(machine: Machine | None, element_bytes: int) -> Chooser | None:
    """Of a machine whose reductions have a choice; None: every level is a block.

    >>> from ..machine.machine import load_machine
    >>> machine = load_machine("p2-a100").with_collectives(Collectives.SYNTHESISED)
    >>> chooser_of(machine, 4).programs()
    ((0, 1), (0,))
    """
    if machine is None or machine.collectives is Collectives.HIERARCHICAL:
        return None
    rates = ((element_bytes / x.bandwidth / _PICOSECOND, x.latency / _PICOSECOND) for x in machine.levels)
    return Chooser(machine.collectives, tuple(rates))


def programs(levels: int, collectives: Collectives) -> tuple[Starts, ...]:
    """Block structures of `levels` levels.

    >>> programs(3, Collectives.SYNTHESISED)
    ((0, 1, 2), (0, 1), (0, 2), (0,))
    """
    match collectives:
        case Collectives.HIERARCHICAL:
            return (tuple(range(levels)),)
        case Collectives.LIBRARY:
            return ((0,),)
        case Collectives.SYNTHESISED:
            cuts = (c for n in reversed(range(levels)) for c in combinations(range(1, levels), n))
            return tuple((0, *c) for c in cuts)


def blocks_of(starts: Starts, levels: int) -> tuple[range, ...]:
    """The levels of every block.

    >>> blocks_of((0, 2), 3), blocks_of((), 2)
    ((range(0, 2), range(2, 3)), (range(0, 1), range(1, 2)))
    """
    first = starts or tuple(range(levels))
    return tuple(range(a, b) for a, b in zip(first, (*first[1:], levels), strict=True))


def program_loads(
    starts: Starts, hierarchy: tuple[int, ...], opened: Members, kept: Members, part: Ints
) -> tuple[list[Ints], list[Ints]]:
    """Loads in elements and phases per level.  `opened`, `kept`: g_j and r_j; `part`: q.

    >>> whole = ((4, 8), (4, 8), (4, 8), np.array([1]))
    >>> [[int(x[0]) for n in program_loads(starts, *whole) for x in n] for starts in ((0,), (0, 1))]
    [[62, 62, 2, 0], [48, 62, 2, 2]]
    """
    below = subtrees_below(hierarchy)
    loads, phases = [part * 0] * len(hierarchy), [part * 0] * len(hierarchy)

    def ring(block: range, members: Members, share: Ints) -> None:
        group: int | Ints = prod(members[j] for j in block)
        inside: int | Ints = 1
        for i in reversed(range(block.start, len(hierarchy))):
            crossed = prod(members[j] for j in block if j <= i) > 1
            loads[i] = loads[i] + below[i] // inside * (group - 1) * share * crossed
            if i in block:
                outermost = (members[i] > 1) & (prod(members[j] for j in block if j < i) == 1)
                phases[i] = phases[i] + (outermost & (share > 0))
                inside = inside * members[i]

    blocks, n = blocks_of(starts, len(hierarchy)), part * prod(opened)
    for block in reversed(blocks):
        n = n // prod(opened[j] for j in block)
        ring(block, opened, n)
    for block in blocks:
        ring(block, kept, n)
        n = n * prod(kept[j] for j in block)
    return loads, phases


def chosen_loads(
    chooser: Chooser | None,
    hierarchy: tuple[int, ...],
    opened: Members,
    kept: Members,
    part: Ints,
) -> tuple[list[Ints], list[Ints], Ints]:
    """Loads and phases of what many reductions take, and the number of the program of each."""
    number: Ints = np.zeros(part.shape, dtype=np.int64)
    if chooser is None:
        return (*program_loads((), hierarchy, opened, kept, part), number)
    first, *others = chooser.programs()
    loads, phases = program_loads(first, hierarchy, opened, kept, part)
    least = _price(chooser, loads, phases) if others else number
    for k, starts in enumerate(others, 1):
        found = program_loads(starts, hierarchy, opened, kept, part)
        price = _price(chooser, *found)
        better = price < least
        least, number = np.where(better, price, least), np.where(better, k, number)
        for mine, theirs in zip((loads, phases), found, strict=True):
            mine[:] = [np.where(better, new, old) for new, old in zip(theirs, mine, strict=True)]
    return loads, phases, number


def chosen_program(
    chooser: Chooser | None, hierarchy: tuple[int, ...], opened: Sequence[int], kept: Sequence[int], part: int
) -> Starts:
    """What one reduction takes; () where there is no choice."""
    if chooser is None:
        return ()
    number = chosen_loads(chooser, hierarchy, opened, kept, np.array([part], dtype=np.int64))[2]
    found = chooser.programs()[int(number[0])]
    return () if len(found) == len(hierarchy) else found


def _price(chooser: Chooser, loads: Sequence[Ints], phases: Sequence[Ints]) -> Ints:
    terms = [
        term
        for (element, phase), load, count in zip(chooser.rates, loads, phases, strict=True)
        for term in ((element, load), (phase, count))
    ]
    return ceil_sum(terms)


def program_words(starts: Starts, names: Sequence[str], opened: Sequence[int], kept: Sequence[int]) -> str:
    """The collectives of one program in their order; levels over which nothing is reduced are left out.

    >>> program_words((0, 1), ("nodes", "gpus"), (4, 8), (4, 8))
    'reduce-scatter in gpus, all-reduce in nodes, all-gather in gpus'
    >>> program_words((0,), ("nodes", "gpus"), (4, 8), (1, 8))
    'reduce-scatter in nodes and gpus, all-gather in gpus'
    """
    there, back = list[str](), list[str]()
    blocks = [b for b in blocks_of(starts, len(names)) if prod(opened[j] for j in b) > 1]
    for block in blocks:
        levels, wide = [j for j in block if opened[j] > 1], [j for j in block if kept[j] > 1]
        place = " and ".join(names[j] for j in levels)
        if block is blocks[0] and all(opened[j] == kept[j] for j in block):
            there.append(f"all-reduce in {place}")
            continue
        there.append(f"reduce-scatter in {place}")
        if wide:
            back.append(f"all-gather in {' and '.join(names[j] for j in wide)}")
    return ", ".join([*reversed(there), *back])
