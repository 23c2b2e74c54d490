"""Factors a machine into a mesh of named dimensions, so that layouts can be written dimension by dimension.

A level of h devices is cut at strides that divide each other, 1 = b_0 | b_1 | .. | b_n = h.  Between two neighbouring
strides lies one mesh dimension:

    size  b_{i+1} / b_i        coordinate of device r at level j   (c_j(r) // b_i) % (b_{i+1} / b_i)

Dimensions stand in the order of the device number, most significant first: device numbers are row-major over the mesh,
which is what DTensor's `init_device_mesh`, JAX's `Mesh` and Shardy's `@mesh` take.  A row of a placement with degree x
and stride s covers the strides from s to s x; a mesh holds a set of placements if all of these are among its strides.
Strides of six devices cut as 2 x 3 and as 3 x 2 do not divide each other: no mesh holds both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from ..problem.selection_problem import Ints
from .placement import Placement


class MeshError(ValueError):
    """Placements that no common mesh holds; the message names both and the level."""


@dataclass(frozen=True)
class MeshDimension:
    """`size` devices of `level`, `stride` apart inside it."""

    name: str
    level: int
    stride: int
    size: int


@dataclass(frozen=True)
class Mesh:
    """`dimensions`, most significant first; their sizes multiply to the machine's devices."""

    hierarchy: tuple[int, ...]
    dimensions: tuple[MeshDimension, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the dimensions."""
        return tuple(d.name for d in self.dimensions)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices along each dimension."""
        return tuple(d.size for d in self.dimensions)

    @property
    def devices(self) -> int:
        """Devices of the machine."""
        return prod(self.hierarchy)

    def size(self, names: Iterable[str]) -> int:
        """Devices along several dimensions together."""
        return prod(d.size for d in self.dimensions for n in names if d.name == n)

    def coordinates(self) -> Ints:
        """Coordinate of every device along every dimension: int64, shape (devices, dimensions).

        >>> mesh((4,), ("gpu",), [Placement(("i",), ((2,), (2,)))]).coordinates().tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
        """
        return np.indices(self.sizes, dtype=np.int64).reshape(len(self.dimensions), -1).T


def mesh(hierarchy: tuple[int, ...], levels: Sequence[str], placements: Iterable[Placement]) -> Mesh:
    """The coarsest mesh that holds every placement.  `levels`: their names; a level that is cut calls its parts
    `gpu_0`, `gpu_1`, .. from the most significant on.  Raises `MeshError` if there is none.

    >>> [(d.name, d.size) for d in mesh((2, 8), ("node", "gpu"), [Placement(("i",), ((1, 4), (2, 2)))]).dimensions]
    [('node', 2), ('gpu_0', 4), ('gpu_1', 2)]
    """
    strides: list[dict[int, Placement | None]] = [{1: None, size: None} for size in hierarchy]
    for placement in dict.fromkeys(placements):
        for j in range(len(hierarchy)):
            below = 1
            for row in reversed(placement.matrix):
                below *= row[j]
                strides[j].setdefault(below, placement)
    dimensions = []
    for j, found in enumerate(strides):
        chain = sorted(found)
        for low, high in pairwise(chain):
            if high % low:
                said = [p.words(levels) for s in (low, high) if (p := found[s]) is not None]
                raise MeshError(
                    f"level {levels[j]} of {hierarchy[j]} devices is cut at strides {low} and {high}, of which neither "
                    f"divides the other ({'; '.join(said)}): no mesh holds both"
                )
        parts = [(low, high // low) for low, high in pairwise(chain)][::-1] or [(1, 1)]
        dimensions += [
            MeshDimension(levels[j] if len(parts) == 1 else f"{levels[j]}_{i}", j, low, size)
            for i, (low, size) in enumerate(parts)
        ]
    return Mesh(hierarchy, tuple(dimensions))
