"""Lays the mesh of another framework over a machine.

A foreign mesh lists axes, most significant first; device numbers are row-major over it, as they are over the levels of
the machine.  An axis of size n and stride s covers the strides from s to s n, a sub-axis (m)k of it those from
s n / (m k) to s n / m.  The ends of all axes, sub-axes and levels, in ascending order, are the strides of one mesh of
ours if each divides the next; an axis is then a run of its dimensions:

    machine (2, 8), axes dp 4, tp 4     strides 1 4 8 16     dp = (dp_0, dp_1) of sizes 2 and 2, tp = (tp,)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from ..mesh import Mesh, MeshDimension
from ..sharding import ShardingError

Part = tuple[str, int, int]
"""A part of an axis: its name, what lies before it, its size (Shardy's `"x":(m)k`)."""


@dataclass(frozen=True)
class ForeignMesh:
    """`axes`: names and sizes, most significant first; `mesh`: ours, of which every axis is a run."""

    axes: tuple[tuple[str, int], ...]
    mesh: Mesh

    def size(self, name: str) -> int:
        """Devices along an axis.  Raises `ShardingError` for a name that is none."""
        found = dict(self.axes)
        if name not in found:
            raise ShardingError(f"the mesh has no axis {name[:60]!r}; it has {', '.join(found)}")
        return found[name]

    def stride(self, name: str) -> int:
        """Devices between neighbours along an axis."""
        at = [n for n, _ in self.axes].index(name)
        return prod(size for _, size in self.axes[at + 1 :])

    def names(self, name: str, before: int = 1, size: int | None = None) -> tuple[str, ...]:
        """Our dimensions that are an axis, or the part of `size` behind `before` of it, most significant first."""
        whole = self.size(name)
        size = whole // before if size is None else size
        if before < 1 or size < 1 or whole % (before * size):
            raise ShardingError(f"axis {name!r} of {whole} has no part ({before}){size}")
        low = self.stride(name) * whole // (before * size)
        high = low * size
        strides = self._strides()
        found = tuple(
            d.name
            for d, s in zip(self.mesh.dimensions, strides, strict=True)
            if d.size > 1 and low <= s and s * d.size <= high
        )
        if self.mesh.size(found) != size:
            raise ShardingError(f"the part ({before}){size} of axis {name!r} is no row of the mesh's dimensions")
        return found

    def part(self, dimension: str) -> Part:
        """The axis, and the part of it, that one of our dimensions is."""
        i = self.mesh.names.index(dimension)
        low, size = self._strides()[i], self.mesh.dimensions[i].size
        for name, whole in self.axes:
            s = self.stride(name)
            if s <= low and low * size <= s * whole:
                return name, s * whole // (low * size), size
        raise ShardingError(f"no axis holds the dimension {dimension!r}")

    def _strides(self) -> list[int]:
        """Of every dimension in the number of a device."""
        sizes = self.mesh.sizes
        return [prod(sizes[i + 1 :]) for i in range(len(sizes))]


def foreign_mesh(
    axes: Sequence[tuple[str, int]], hierarchy: tuple[int, ...], parts: Sequence[Part] = ()
) -> ForeignMesh:
    """The axes over a machine; `parts` are to be runs of dimensions too.  Raises `ShardingError` where no mesh of ours
    holds them all.

    >>> found = foreign_mesh([("dp", 4), ("tp", 4)], (2, 8))
    >>> found.mesh.names, found.mesh.sizes, found.names("dp")
    (('dp_0', 'dp_1', 'tp'), (2, 2, 4), ('dp_0', 'dp_1'))
    """
    given = tuple(axes)
    names = [name for name, _ in given]
    if len(set(names)) < len(names) or not all(names):
        raise ShardingError("two axes of the mesh have one name, or one has none")
    if any(size < 1 for _, size in given) or prod(size for _, size in given) != prod(hierarchy):
        said = " x ".join(str(size) for _, size in given) or "nothing"
        raise ShardingError(f"the mesh of {said} devices is not the machine's {' x '.join(map(str, hierarchy))}")
    bare = ForeignMesh(given, Mesh(hierarchy, ()))
    ends = {prod(hierarchy[i:]) for i in range(len(hierarchy) + 1)}
    ends |= {prod(size for _, size in given[i:]) for i in range(len(given) + 1)}
    for name, before, size in parts:
        whole = bare.size(name)
        if before < 1 or size < 1 or whole % (before * size):
            raise ShardingError(f"axis {name!r} of {whole} has no part ({before}){size}")
        low = bare.stride(name) * whole // (before * size)
        ends |= {low, low * size}
    chain = sorted(ends)
    dimensions: list[MeshDimension] = []
    owners: list[str] = []
    for low, high in reversed(list(pairwise(chain))):
        if high % low:
            raise ShardingError(
                f"axes of {', '.join(f'{n} {s}' for n, s in given)} do not fit the levels "
                f"{' x '.join(map(str, hierarchy))}: strides {low} and {high} do not divide each other"
            )
        level = next(j for j in range(len(hierarchy)) if low >= prod(hierarchy[j + 1 :]))
        owners.append(next((n for n, s in given if bare.stride(n) <= low and high <= bare.stride(n) * s), ""))
        dimensions.append(MeshDimension("", level, low // prod(hierarchy[level + 1 :]), high // low))
    count: dict[str, int] = {}
    named = []
    for d, owner in zip(dimensions, owners, strict=True):
        name = owner if owners.count(owner) == 1 else f"{owner}_{count.setdefault(owner, 0)}"
        count[owner] = count.get(owner, 0) + 1
        named.append(MeshDimension(name, d.level, d.stride, d.size))
    if not named:  # one device
        named = [MeshDimension(names[0] if names else "all", 0, 1, 1)]
    return ForeignMesh(given, Mesh(hierarchy, tuple(named)))


def levels_as_axes(mesh: Mesh, levels: Sequence[str]) -> ForeignMesh:
    """The levels of the machine as axes, of which the mesh's dimensions are parts.

    >>> gpus = (MeshDimension("gpu_0", 0, 2, 4), MeshDimension("gpu_1", 0, 1, 2))
    >>> levels_as_axes(Mesh((8,), gpus), ["gpu"]).part("gpu_1")
    ('gpu', 4, 2)
    """
    return ForeignMesh(tuple(zip(levels, mesh.hierarchy, strict=True)), mesh)
