"""How the times of a problem grow with a size, where they grow in one way from one end of a range to the other.

    H                 devices; every extent that grows is a multiple of H at every size of the range, of H^2 where
                      parts of sums of it are brought together: so every block of every placement has one length, no
                      number is rounded up on the way, and the placements are the same for all sizes
    index             of whatever grows: one axis that grows too, or the whole dimension; of the rest one axis, the
                      whole dimension, or one position.  Then boxes of all devices are equal, and what two layouts have
                      in common has c n^q elements
    time of a vertex  alpha + max(F, B): F flops and B bytes, sums of c n^q, c >= 0
    time of an edge   alpha + beta n^q
    degree p          no q is above it: the most axes of an operator, or dimensions of a tensor, that grow

So every time is convex in n, and above every line in n^p through two values of alpha + F, or of alpha + B.  What would
break this is refused by name: windows, bands, groups, loops and kernels of the user's own, measured times, classes of
devices, programs of collectives, spaces with blocks of unequal length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain
from math import gcd, lcm
from typing import Final

from ..layout.placement import Space
from ..machine.machine import Collectives, Machine
from ..program.index import Affine
from ..program.operators import HOST_COPIES, NodeKind, Operator
from ..program.sized import SizedGraph
from .selection import Planning

EVEN_KINDS: Final = frozenset(
    {
        NodeKind.CONTRACT,
        NodeKind.MAP,
        NodeKind.REDUCE,
        NodeKind.NORMALISE,
        NodeKind.GATHER,
        NodeKind.SCATTER,
        NodeKind.LAYOUT,
    }
)
"""Kinds whose work is a product of lengths."""


@dataclass(frozen=True)
class SizedJob:
    """Programs of every size of a range, on a machine, over a space."""

    programs: SizedGraph
    machine: Machine
    space: Space

    @cached_property
    def degree(self) -> int:
        """Power of the size that no time grows faster than."""
        axes, dimensions = self.programs.grown_axes(), self.programs.grown_dimensions()
        return max((len(names) for names in (*axes.values(), *dimensions.values())), default=0)

    @cached_property
    def step(self) -> int:
        """Sizes that are multiples of it have equal blocks."""
        grown = self.programs.grown_dimensions()
        sums = any(op.reduction_axes and grown[op.output.tensor] for op in self.programs.low.operators)
        parts = self.machine.devices ** (2 if sums else 1)
        shares = [Fraction(n, self.programs.ends[0]) for n in self.programs.extents()]
        return lcm(*(s.denominator * parts // gcd(s.denominator * parts, s.numerator) for s in shares), 1)

    @property
    def reason_against(self) -> str:
        """Why times are not known to grow as said above; empty where they do."""
        return next(chain(self._of_machine(), self._of_space(), self._of_program()), "")

    def _of_machine(self) -> Iterator[str]:
        machine = self.machine
        if machine.profiles or any(c.products or c.attentions for c in machine.classes):
            yield f"machine {machine.name}: has measured times, which do not grow in one way"
        if any(level.collectives for level in machine.levels) or machine.collectives is not Collectives.HIERARCHICAL:
            yield f"machine {machine.name}: its collectives are measured or chosen, which changes with their size"
        if len(machine.classes) > 1 or machine.bars:
            yield f"machine {machine.name}: has several classes of devices, or error bounds"

    def _of_space(self) -> Iterator[str]:
        if self.space.uneven or self.space.vocabulary:
            yield f"space {self.space.name}: its blocks or their words depend on the size"

    def _of_program(self) -> Iterator[str]:
        g, grown, axes = self.programs.low, self.programs.grown_dimensions(), self.programs.grown_axes()
        if g.specified:
            yield "an operator of the user's own has a formula, which is of one size"
        if not self.programs.extents():
            yield f"nothing in the program grows with {self.programs.name}"
        for op in g.operators:
            if op.kind not in EVEN_KINDS or op.function in HOST_COPIES:
                yield f"operator {op.name!r}: the work of {op.function!r} does not grow in one way"
            if g.flops_per_point(op) != self.programs.high.flops_per_point(self.programs.high.operator(op.name)):
                yield f"operator {op.name!r}: its work per point grows with {self.programs.name}"
            for access in (*op.inputs, op.output):
                shape = g.tensor(access.tensor).shape
                for k, index in enumerate(access.index):
                    if not _is_even(op, index, shape[k] if k in grown[access.tensor] else None, axes[op.name]):
                        yield _odd_index(op, access.tensor, k)


@dataclass(frozen=True, eq=False)
class SizeEnd:
    """One size: its problem, a solution of it (None: no choices), and what was shown that no solution is below."""

    size: int
    planning: Planning
    solution: tuple[int, ...] | None
    bound: int

    @property
    def cost(self) -> int:
        """What the solution costs; 0 without one."""
        return 0 if self.solution is None else self.planning.problem.cost_of(self.solution)

    @property
    def gap(self) -> Fraction:
        """How far the solution is from the best at most, as a share."""
        return Fraction(self.cost - self.bound, self.cost) if self.cost > 0 else Fraction(0)


def _is_even(op: Operator, index: Affine, grown: int | None, axes: frozenset[str]) -> bool:
    """Whether boxes along a dimension are equal on all devices, and grow with it; `grown`: its length, if it does."""
    if index.whole:
        return True
    if index.single is not None:
        same = grown is None or op.axis(index.single).extent == grown  # else what is padded is cut off, or some is left
        return (index.single in axes) == (grown is not None) and same
    return not index.terms and grown is None


def _odd_index(op: Operator, tensor: str, dimension: int) -> str:
    return (
        f"operator {op.name!r}: reads {tensor!r}, dimension {dimension}, in another way than along one axis (a window, "
        "a part, or what lies side by side)"
    )
