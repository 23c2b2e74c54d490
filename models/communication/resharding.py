"""Communication: the steps that take a tensor from layout A to layout B, device by device.

Derived once here; the cost model prices the same steps (`models.communication.pricing` has the loads (L1) to (L4) in
closed form), the plan stores their totals, the backend executes them, the checker tests them with its own set
arithmetic.

    Reduction   open digits are summed (or maximised): hierarchical reduce-scatter, innermost level first, then
                all-gather over the replicated digits, outermost level first; ends with each device holding its tile
    Exchange    one per level, outermost first: elements that a subtree needs and does not hold enter it once;
                inside, the devices that need them get them from the device where they arrived
                (`models.communication.exchange`)

`analyse` gives class and totals without the steps.  `derive` gives [] (nothing to do), or [Reduction], or [Exchange
..], or [Reduction, Exchange ..].  The kind of collective that a step amounts to is `collective()`: all-reduce,
reduce-scatter, all-gather, broadcast, scatter, all-to-all.

Source: thesis on automatic partitioning of array programs, chapters 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from ..layout.layout import Layout, LayoutSet, OpenDigit, OpenDigits
from ..program.index import Combine
from .exchange import exchanges
from .pricing import pair_loads, subtrees
from .reduction_programs import Chooser, Starts, blocks_of, chosen_program, program_loads
from .transfers import Box, Exchange, crossing


@dataclass(frozen=True)
class Reduction:
    """Sum (max, min) over `digits`; see (L2) of `models.communication.pricing`.

    The group of a device: all values of the open digits, other coordinates fixed.  Every member contributes the box
    `boxes[d]` (its tile after scattering); members that agree in the scattered digits want the same tile.
    `padded`: elements of the largest tile, padded to a multiple of the product of the replicated primes: what is
    priced.  Where tiles are unequal or cannot be cut into equal parts, less is sent: `backends.transport.received`.
    `starts`: its program, () for level by level (`reduction_programs`).
    """

    combine: Combine
    digits: OpenDigits
    scattered: tuple[bool, ...]
    tiles: tuple[Box, ...]
    padded: int
    starts: Starts = ()

    def members(self, levels: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """g_j and r_j of every level: members of a group, and how many of them want the same tile."""
        pairs = list(zip(self.digits, self.scattered, strict=True))
        opened = (prod(d.prime for d in self.digits if d.level == j) for j in range(levels))
        kept = (prod(d.prime for d, s in pairs if d.level == j and not s) for j in range(levels))
        return tuple(opened), tuple(kept)

    def blocks(self, levels: int) -> tuple[tuple[int, ...], ...]:
        """Numbers of the digits of every block of the program that has some, outermost block first."""
        found = (
            tuple(k for k, d in enumerate(self.digits) if d.level in block) for block in blocks_of(self.starts, levels)
        )
        return tuple(block for block in found if block)

    def groups(self, hierarchy: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Groups of devices; members in mixed-radix order of the digits, first digit most significant."""
        spread = [[0]]
        for d in self.digits:
            weight = d.stride * prod(hierarchy[d.level + 1 :])
            spread.append([k * weight for k in range(d.prime)])
        offsets = [sum(c) for c in product(*spread)]
        return [
            tuple(r + o for o in offsets)
            for r in range(prod(hierarchy))
            if all(digit_value(r, d, hierarchy) == 0 for d in self.digits)
        ]


Step = Reduction | Exchange


@dataclass(frozen=True, eq=False)
class CommunicationPlan:
    """Steps from `source` to `target`.  Problem of the claims `Delivers` and `Bytes(n)`."""

    source: Layout
    target: Layout
    steps: tuple[Step, ...]
    chooser: Chooser | None = None

    def loads(self) -> tuple[int, ...]:
        """Largest number of elements that enter a subtree through its link, per level, summed over the steps' phases.

        Reductions use padded tiles (an upper bound of what is sent, equal to it where parts are equal); exchanges count
        every transfer at each link it crosses into the receiver.
        """
        hierarchy = self.source.hierarchy
        total = [0] * len(hierarchy)
        exchanged = [np.zeros(subtrees(hierarchy, i), dtype=np.int64) for i in range(len(hierarchy))]
        for step in self.steps:
            if isinstance(step, Reduction):
                for i, load in enumerate(reduction_load(step, hierarchy)):
                    total[i] += load
            else:
                t, volumes = step.transfers, step.transfers.volumes()
                first = crossing(t.sources, t.targets, hierarchy)
                for i, entered in enumerate(exchanged):
                    np.add.at(entered, t.targets[first <= i] // prod(hierarchy[i + 1 :]), volumes[first <= i])
        return tuple(x + int(e.max()) for x, e in zip(total, exchanged, strict=True))

    def phases(self) -> tuple[int, ...]:
        """Collective phases by outermost level crossed: (L4)."""
        hierarchy = self.source.hierarchy
        count = [0] * len(hierarchy)
        crossed: set[int] = set()
        for step in self.steps:
            if isinstance(step, Reduction):
                for level, phases in enumerate(_program(step, hierarchy)[1]):
                    count[level] += phases
            else:
                first = int(
                    crossing(step.transfers.sources, step.transfers.targets, hierarchy).min(initial=len(hierarchy))
                )
                crossed.update(range(first, len(hierarchy)))
        for level in crossed:
            count[level] += 1
        return tuple(count)

    def collective(self) -> str:
        """What the steps amount to, in the words of MPI."""
        names = [_reduction_name(step.scattered) for step in self.steps if isinstance(step, Reduction)]
        if any(isinstance(s, Exchange) for s in self.steps):
            names.append(_exchange_name(self.source, self.target))
        return " + ".join(names) if names else "none"


def digit_value(device: int, d: OpenDigit, hierarchy: tuple[int, ...]) -> int:
    """Value of a digit of the device number."""
    coordinate = device // prod(hierarchy[d.level + 1 :]) % hierarchy[d.level]
    return coordinate // d.stride % d.prime


def reduction_load(step: Reduction, hierarchy: tuple[int, ...]) -> tuple[int, ...]:
    """(L2): elements entering a subtree through its link, per level."""
    return _program(step, hierarchy)[0]


def _program(step: Reduction, hierarchy: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Loads and phases of the step's program."""
    opened, kept = step.members(len(hierarchy))
    part = np.array([step.padded // prod(kept)], dtype=object)  # of any size
    loads, phases = program_loads(step.starts, hierarchy, opened, kept, part)
    return tuple(int(n[0]) for n in loads), tuple(int(n[0]) for n in phases)


def derive(source: Layout, target: Layout, chooser: Chooser | None = None) -> CommunicationPlan:
    """The steps from `source` to `target` (closed); `chooser`: of the program of the reduction.  Raises ValueError if
    the target is partial or shapes differ.
    """
    if target.open or source.shape != target.shape or source.hierarchy != target.hierarchy:
        raise ValueError("the target must be a closed layout of the same tensor on the same machine")
    return _Derived(source, target, None, chooser)


class _Derived(CommunicationPlan):
    """A plan whose steps are listed when somebody asks for them: between 4,096 devices there are millions of
    transfers.
    """

    def __init__(
        self, source: Layout, target: Layout, steps: tuple[Step, ...] | None = None, chooser: Chooser | None = None
    ) -> None:
        super().__init__(source, target, steps or (), chooser)
        if steps is None:
            del self.__dict__["steps"]

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the module docstring."""
        inside = bool(is_inside(self.target, self.source).all())
        steps: list[Step] = []
        if self.source.open:
            steps.append(_reduction(self.source, self.target, inside, self.chooser))
        if not inside:
            steps.extend(exchanges(self.source, self.target))
        return tuple(steps)


def _boxes(layout: Layout) -> list[Box]:
    """`layout.box(d)` of every device."""
    return [tuple((lo, hi) for lo, hi in box) for box in layout.boxes.tolist()]


def is_inside(inner: Layout, outer: Layout) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Whether every device's box of `inner` is inside its box of `outer`, or empty: shape (devices,)."""
    a, b = inner.boxes, outer.boxes
    within, empty = np.ones(a.shape[0], dtype=bool), np.zeros(a.shape[0], dtype=bool)
    for k in range(a.shape[1]):  # one dimension at a time: reductions over a short last axis are slow
        within &= (b[:, k, 0] <= a[:, k, 0]) & (a[:, k, 1] <= b[:, k, 1])
        empty |= a[:, k, 0] >= a[:, k, 1]
    return np.asarray(within | empty)


def scattered_digits(source: Layout, target: Layout, inside: bool) -> tuple[bool, ...]:
    """(L2): which open digits of `source` are scattered, if `inside` says that every target box is inside its
    source box.
    """
    device = np.arange(prod(source.hierarchy))

    def varies(d: OpenDigit) -> bool:
        weight = d.stride * prod(source.hierarchy[d.level + 1 :])
        value = device // weight % d.prime
        return bool((target.boxes != target.boxes[device - value * weight]).any())

    return tuple(inside and varies(d) for d in source.open)


def _reduction(source: Layout, target: Layout, inside: bool, chooser: Chooser | None) -> Reduction:
    tiles = tuple(_boxes(target if inside else source))
    scattered = scattered_digits(source, target, inside)
    kept = prod(d.prime for d, s in zip(source.open, scattered, strict=True) if not s)
    largest = int((target if inside else source).volumes().max())
    if source.combine is None:
        raise ValueError("a partial layout needs a combine function")
    step = Reduction(source.combine, source.open, scattered, tiles, -(-largest // kept) * kept)
    return with_program(step, source.hierarchy, chooser)


def with_program(step: Reduction, hierarchy: tuple[int, ...], chooser: Chooser | None) -> Reduction:
    """The step with the program that it takes."""
    opened, kept = step.members(len(hierarchy))
    return replace(step, starts=chosen_program(chooser, hierarchy, opened, kept, step.padded // prod(kept)))


@dataclass(frozen=True)
class Analysis:
    """What a resharding is and moves, without its steps: the values of `CommunicationPlan.collective`, `loads`
    and `phases`.
    """

    collective: str
    loads: tuple[int, ...]
    phases: tuple[int, ...]


def analyse(source: Layout, target: Layout, chooser: Chooser | None = None) -> Analysis:
    """Class and totals of a resharding from interval tables alone: the closed forms (L1) to (L4) of
    `models.communication.pricing`.
    """
    inside = bool(is_inside(target, source).all())
    if inside and not source.open:
        nothing = (0,) * len(source.hierarchy)
        return Analysis("none", nothing, nothing)
    names = [_reduction_name(scattered_digits(source, target, inside))] if source.open else []
    prices = pair_loads(_alone(source), _alone(target), (), chooser)
    if not inside:
        names.append(_exchange_name(source, target))
    return Analysis(
        " + ".join(names), tuple(int(x[0, 0]) for x in prices.loads), tuple(int(x[0, 0]) for x in prices.phases)
    )


def _alone(layout: Layout) -> LayoutSet:
    """The layout as the only one of a set."""
    dims = tuple(np.ascontiguousarray(layout.boxes[None, :, k, :]) for k in range(len(layout.shape)))
    zero = np.zeros((1,), dtype=np.int64)
    return LayoutSet(
        layout.hierarchy,
        layout.shape,
        dims,
        np.zeros((1, len(dims)), dtype=np.int64),
        (layout.open,),
        zero,
        zero,
        layout.combine,
        layout.coupled,
    )


def _reduction_name(scattered: tuple[bool, ...]) -> str:
    return "reduce-scatter" if all(scattered) else "all-reduce" if not any(scattered) else "reduce-scatter + all-gather"


def _exchange_name(source: Layout, target: Layout) -> str:
    single = int((source.volumes() > 0).sum()) == 1
    if is_inside(source, target).all():
        return "broadcast" if single else "all-gather"
    return "scatter" if single else "all-to-all"
