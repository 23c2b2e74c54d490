"""Placement matrices and the spaces of them that are searched.

    machine hierarchy  H = [h_0 .. h_L]
    operator           axes a_1 .. a_d in class order (`models.layout.classes`)
    placement          X[i][j] >= 1, rows a_1 .. a_d and a last row of replication, columns the levels
                       product of column j = h_j;   product of row i = degree of axis a_i

Device numbers are row-major over levels; inside level j the coordinate is a mixed-radix number whose digits belong to
the rows in order, first row most significant (flag `class-order`).  So row i has, at level j, degree X[i][j] and
stride prod_{i' > i} X[i'][j].

Spaces: `complete` all matrices; `two-per-level` at most two rows differ from 1 in a column; `one-per-level` at most
one.  `even-splits` (default, dropped by adding `,uneven`): the degree of an axis divides its extent; otherwise degree
<= extent.  `,dtensor` and `,jax`: of these, the placements that the framework can say (`models.cost.vocabulary`); the
others are listed and forbidden.

Source: P2 (MLSys 2022) section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ..problem.selection_problem import Ints
from .submesh import Submesh


class SpaceError(ValueError):
    """An unknown space, or a placement outside the space; the message names the nearest placement inside."""


@dataclass(frozen=True)
class Space:
    """A named set of placements.  `rows_per_level`: how many rows may differ from 1 in one column (None: any
    number).  `vocabulary`: the framework that must be able to say them, or empty.
    """

    base: str
    rows_per_level: int | None
    uneven: bool = False
    vocabulary: str = ""

    @property
    def name(self) -> str:
        """`complete`, `two-per-level,uneven`, `complete,dtensor`, .."""
        return self.base + (",uneven" if self.uneven else "") + (f",{self.vocabulary}" if self.vocabulary else "")

    @property
    def without_vocabulary(self) -> Space:
        """The space of which the vocabulary says a part."""
        return replace(self, vocabulary="")

    @property
    def flags(self) -> tuple[str, ...]:
        """Restrictions that every claim over this space states."""
        return (
            "class-order",
            "closed-reads",
            *(() if self.uneven else ("even-splits",)),
            "one-copy-per-tensor",
            *((f"said-by-{self.vocabulary}",) if self.vocabulary else ()),
            "whole-taps",
        )


VOCABULARIES = ("dtensor", "jax")
"""Frameworks to whose layouts a space can be restricted."""

_BASES = {"complete": None, "two-per-level": 2, "one-per-level": 1}
SPACES = tuple(_BASES)
"""Names of the spaces without their additions."""


def space(name: str) -> Space:
    """Space by name; `SpaceError` lists the names.

    >>> space("two-per-level").rows_per_level, space("complete,dtensor").vocabulary
    (2, 'dtensor')
    """
    base, *options = name.split(",")
    if base in _BASES and options in ([], ["uneven"]):
        return Space(base, _BASES[base], bool(options))
    if base in _BASES and len(options) == 1 and options[0] in VOCABULARIES:
        return Space(base, _BASES[base], False, options[0])
    raise SpaceError(
        f"unknown space {name!r}; choose one of {', '.join(_BASES)}, optionally with ',uneven' or one of "
        f"{', '.join(',' + v for v in VOCABULARIES)}"
    )


def columns(size: int, rows: int, most: int | None) -> list[tuple[int, ...]]:
    """All tuples of `rows` positive integers with product `size`, at most `most` of them above 1, in ascending order.

    >>> columns(4, 2, None)
    [(1, 4), (2, 2), (4, 1)]
    """
    if rows == 0:
        return [()] if size == 1 else []
    out: list[tuple[int, ...]] = []
    for first in range(1, size + 1):
        if size % first == 0 and not (first > 1 and most == 0):
            left = most if most is None or first == 1 else most - 1
            out.extend((first, *rest) for rest in columns(size // first, rows - 1, left))
    return out


@lru_cache(maxsize=4096)
def _column_array(size: int, rows: int, most: int | None) -> Ints:
    return np.array(columns(size, rows, most), dtype=np.int64).reshape(-1, rows)


def matrices(extents: Sequence[int], splittable: Sequence[bool], hierarchy: Sequence[int], where: Space) -> Ints:
    """All placements of an operator: int64, shape (K, len(extents) + 1, levels), lexicographic by column.

    >>> matrices((8, 3), (True, True), (2,), space("complete"))[:, :, 0].tolist()
    [[1, 1, 2], [2, 1, 1]]
    """
    free = [i for i, s in enumerate(splittable) if s]
    limit = np.array([extents[i] for i in free], dtype=np.int64)
    partial = np.ones((1, len(free) + 1, 0), dtype=np.int64)
    for size in hierarchy:
        column = _column_array(size, len(free) + 1, where.rows_per_level)
        k, c = partial.shape[0], column.shape[0]
        wide = np.empty((k, c, len(free) + 1, partial.shape[2] + 1), dtype=np.int64)
        wide[..., :-1] = partial[:, None]
        wide[..., -1] = column[None]
        partial = wide.reshape(k * c, len(free) + 1, -1)
        degree = partial[:, :-1, :].prod(axis=2)
        partial = partial[((degree <= limit) if where.uneven else (limit % degree == 0)).all(axis=1)]
    full = np.ones((partial.shape[0], len(extents) + 1, len(hierarchy)), dtype=np.int64)
    full[:, [*free, len(extents)], :] = partial
    return full


@dataclass(frozen=True)
class Placement:
    """One placement: `axes` in class order, `matrix` with one row per axis and the replication row last.  `view`: the
    part of the machine that the columns of the matrix split (None: all of it); other devices have nothing to do.
    """

    axes: tuple[str, ...]
    matrix: tuple[tuple[int, ...], ...]
    view: Submesh | None = None

    def degree(self, axis: str) -> int:
        """Number of blocks the axis is cut into."""
        return int(np.prod(self.matrix[self.axes.index(axis)]))

    def words(self, levels: Sequence[str]) -> str:
        """`b over node, h over gpu`; rows that are not split are left out.

        >>> Placement(("b", "h"), ((4, 1), (1, 8), (1, 1))).words(("node", "gpu"))
        'b over node, h over gpu'
        """
        parts = []
        for j, level in enumerate(levels):
            total = int(np.prod([row[j] for row in self.matrix]))
            for i, row in enumerate(self.matrix):
                if row[j] > 1:
                    name = self.axes[i] if i < len(self.axes) else "replicated"
                    parts.append(f"{name} over {level}" if row[j] == total else f"{name} over {row[j]} of {level}")
        return ", ".join(parts) if parts else "one device"
