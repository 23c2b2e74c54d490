"""Index notation: iteration axes, affine access maps, and the boxes that follow from them.

An operator iterates over named axes a_1 .. a_d of extents n_1 .. n_d.  Every operand dimension is read (or written) at

    index_k = sum_a  coef_{k,a} * a + offset_k              with coef >= 0

so that a box of iteration space touches an interval of every dimension.  Indices outside [0, extent) touch nothing:
that is how padding, concatenation and slices are written.  `whole` marks a dimension that is read entirely, whatever
the iteration box (opaque views).

Source: thesis on automatic partitioning of array programs, section 3.2 (access maps).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property


class Combine(Enum):
    """How partial results over a reduction axis are combined."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True)
class Axis:
    """An iteration axis.  `combine` is None for a parallel axis (it indexes the output), else the axis is reduced.

    `splittable` is False for axes that are never partitioned (taps of a window; axes of opaque views).
    """

    name: str
    extent: int
    combine: Combine | None = None
    splittable: bool = True


@dataclass(frozen=True)
class Affine:
    """`sum coef * axis + offset`; `terms` in the order written, coefficients >= 1.  `whole`: the full dimension is
    touched.

    >>> Affine.axis("y", 2).plus("ky").shift(-1)
    Affine(terms=(('y', 2), ('ky', 1)), offset=-1, whole=False)
    """

    terms: tuple[tuple[str, int], ...] = ()
    offset: int = 0
    whole: bool = False

    @staticmethod
    def axis(name: str, coef: int = 1) -> Affine:
        """The index `coef * name`."""
        return Affine(((name, coef),))

    @staticmethod
    def everything() -> Affine:
        """A dimension that is always touched entirely."""
        return Affine(whole=True)

    def plus(self, name: str, coef: int = 1) -> Affine:
        """This index plus `coef * name`."""
        return Affine((*self.terms, (name, coef)), self.offset, self.whole)

    def shift(self, offset: int) -> Affine:
        """This index plus a constant."""
        return Affine(self.terms, self.offset + offset, self.whole)

    @property
    def single(self) -> str | None:
        """The axis name if the index is exactly one axis (coefficient 1, no offset), else None."""
        plain = not self.whole and self.offset == 0 and len(self.terms) == 1 and self.terms[0][1] == 1
        return self.terms[0][0] if plain else None

    def interval(self, box: dict[str, tuple[int, int]], extent: int) -> tuple[int, int]:
        """Half-open interval of the dimension touched by the iteration box; (0, 0) when nothing is.

        >>> Affine.axis("y", 2).plus("ky").shift(-1).interval({"y": (0, 4), "ky": (0, 3)}, 224)
        (0, 8)
        """
        if any(box[a][0] >= box[a][1] for a, _ in self.terms):
            return (0, 0)
        if self.whole:
            return (0, extent)
        low, high = self.unclipped_interval(box)
        low, high = max(low, 0), min(high, extent)
        return (low, high) if low < high else (0, 0)

    def unclipped_interval(self, box: dict[str, tuple[int, int]]) -> tuple[int, int]:
        """Like `interval`, before clipping to the dimension (the difference is padding)."""
        low = self.offset + sum(c * box[a][0] for a, c in self.terms)
        high = self.offset + sum(c * (box[a][1] - 1) for a, c in self.terms) + 1
        return low, high


@dataclass(frozen=True)
class Access:
    """Operand `tensor` touched at `index`, one affine map per tensor dimension."""

    tensor: str
    index: tuple[Affine, ...]

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Axes that occur in the access, in order of first occurrence."""
        return tuple(dict.fromkeys(a for i in self.index for a, _ in i.terms))

    @cached_property
    def is_plain(self) -> bool:
        """Whether every dimension is indexed by an axis of its own: dimension k by `axes[k]`."""
        return tuple(i.single for i in self.index) == self.axes


def access(tensor: str, *index: str | Affine) -> Access:
    """Shorthand: `access("x", "b", "k")` reads x[b, k].

    >>> access("x", "b", Affine.axis("y", 2)).axes
    ('b', 'y')
    """
    return Access(tensor, tuple(Affine.axis(i) if isinstance(i, str) else i for i in index))
