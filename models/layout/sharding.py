"""Writes a layout as a sharding: which mesh dimensions cut which dimension of a tensor, and along which
the tensor is a partial result.

    layout    a box per device and open digits             (`models.layout.layout`)
    sharding  per dimension of the tensor a list of mesh dimensions, major first; the mesh dimensions that are open

    block of rank r of D devices on a dimension of extent n:   [r c, min(n, (r+1) c)),  c = ceil(n / D)

where r is the mixed-radix number of the device's coordinates along the listed mesh dimensions.  `sharding` recognises
a layout by its boxes, `layout_of` is the way back, and what `sharding` returns has been taken back and compared, device
by device.  Not every layout is a sharding: boxes that overlap (halos), or start anywhere else than at a block, are
refused by name.

`unfold` says the same of the shape that the user knows, where one dimension holds several digits: 1024 = 16 heads x 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..problem.selection_problem import Ints
from ..program.index import Combine
from .layout import Layout, OpenDigit, prime_digits
from .mesh import Mesh


class ShardingError(ValueError):
    """A layout that no sharding over the mesh says."""


@dataclass(frozen=True)
class Sharding:
    """`splits[k]`: mesh dimensions that cut dimension k, major first.  `partial`: those along which devices hold parts
    of a sum (or of what `combine` says), in mesh order.  All others hold copies.
    """

    splits: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()
    combine: Combine | None = None

    def __str__(self) -> str:
        """
        >>> print(Sharding((("node", "gpu"), ()), ("rank",), Combine.SUM))
        [node x gpu, *] partial sum over rank
        """
        cut = ", ".join(" x ".join(names) or "*" for names in self.splits)
        return f"[{cut}]" + (
            f" partial {self.combine.value} over {' x '.join(self.partial)}" if self.partial and self.combine else ""
        )


def sharding(layout: Layout, mesh: Mesh) -> Sharding:
    """The layout over the dimensions of the mesh.  Raises `ShardingError` for what is none."""
    if layout.hierarchy != mesh.hierarchy:
        raise ShardingError(f"the layout is over {layout.hierarchy}, the mesh over {mesh.hierarchy}")
    at = mesh.coordinates()
    splits = tuple(_split(layout.boxes[:, k, :], n, mesh, at, k) for k, n in enumerate(layout.shape))
    found = Sharding(splits, _open(layout.open, mesh), layout.combine if layout.open else None)
    if layout_of(found, layout.shape, mesh) != layout:  # an empty box of one dimension, written as a box of another
        raise ShardingError("its boxes are no product of blocks of its dimensions")
    return found


def layout_of(sharding: Sharding, shape: Sequence[int], mesh: Mesh) -> Layout:
    """The boxes and open digits that a sharding means."""
    at = mesh.coordinates()
    boxes = np.zeros((mesh.devices, len(shape), 2), dtype=np.int64)
    for k, (names, extent) in enumerate(zip(sharding.splits, shape, strict=True)):
        boxes[:, k, :] = _blocks(names, extent, mesh, at)
    digits = [
        digit
        for d in mesh.dimensions
        if d.name in sharding.partial
        for digit in prime_digits(d.level, d.size, d.stride)
    ]
    digits.sort(key=lambda d: (d.level, -d.stride))
    return Layout(mesh.hierarchy, tuple(shape), boxes, tuple(digits), sharding.combine if digits else None)


def unfold(sharding: Sharding, digits: Sequence[int], shape: Sequence[int], mesh: Mesh) -> Sharding:
    """The sharding of a tensor of `digits` in terms of `shape`, of which it is a row-major view.

    A dimension of several digits is cut at its first; at a later one only where every digit before it is cut into
    single positions, for otherwise a device holds positions that do not lie together.  Raises `ShardingError`.

    >>> from .mesh import MeshDimension
    >>> gpus = Mesh((4,), (MeshDimension("gpu", 0, 1, 4),))
    >>> unfold(Sharding(((), ("gpu",), ())), (8, 16, 64), (8, 1024), gpus)
    Sharding(splits=((), ('gpu',)), partial=(), combine=None)
    """
    splits = []
    groups = digit_groups(digits, shape)
    if groups is None:
        raise ShardingError(f"digits {tuple(digits)} are not the dimensions {tuple(shape)} cut into parts")
    for k, group in enumerate(groups):
        names: tuple[str, ...] = ()
        whole = True
        for i in group:
            cut, parts = sharding.splits[i], mesh.size(sharding.splits[i])
            rest = prod(digits[j] for j in group if j > i)
            even = (
                digits[i] % parts == 0  # blocks of the next position of a digit before begin where these end
                if names
                else -(-digits[i] // parts) * rest == -(-digits[i] * rest // parts)
            )
            if cut and not (whole and even):
                raise ShardingError(
                    f"dimension {k} of {shape[k]} is {' x '.join(str(digits[j]) for j in group)}, of which the "
                    f"{digits[i]} is cut into {parts}: a device holds positions that do not lie together"
                )
            names += cut
            whole = whole and parts == digits[i]
        splits.append(names)
    return Sharding(tuple(splits), sharding.partial, sharding.combine)


def digit_groups(digits: Sequence[int], shape: Sequence[int]) -> list[list[int]] | None:
    """Positions of the digits that make up every dimension of `shape`; None if they do not.

    >>> digit_groups((8, 16, 64), (8, 1024)), digit_groups((8, 3), (4, 6))
    ([[0], [1, 2]], None)
    """
    groups: list[list[int]] = []
    i = 0
    for n in shape:
        group: list[int] = []
        while prod(digits[j] for j in group) < n and i < len(digits):
            group.append(i)
            i += 1
        while i < len(digits) and digits[i] == 1:
            group.append(i)
            i += 1
        if prod(digits[j] for j in group) != n:
            return None
        groups.append(group)
    return groups if i == len(digits) else None


def _split(box: Ints, extent: int, mesh: Mesh, at: Ints, k: int) -> tuple[str, ...]:
    """Mesh dimensions that cut one dimension: those along which its interval changes."""
    table = box.reshape(*mesh.sizes, 2)
    names = tuple(
        d.name for i, d in enumerate(mesh.dimensions) if d.size > 1 and not (table == np.take(table, [0], axis=i)).all()
    )
    if not names and 0 <= box[0, 0] < box[0, 1]:
        if (box[0] != (0, extent)).any():
            raise ShardingError(
                f"slice: dimension {k} of {extent} is touched from {box[0, 0]} to {box[0, 1]} on every device, taken "
                f"where it lies"
            )
        return names
    if not np.array_equal(_blocks(names, extent, mesh, at), box):
        raise ShardingError(
            f"dimension {k} of {extent} is no row of equal blocks over {' x '.join(names) or 'nothing'} "
            f"(device 0 holds {box[0].tolist()}, device {mesh.devices - 1} {box[-1].tolist()})"
        )
    return names


def _blocks(names: Sequence[str], extent: int, mesh: Mesh, at: Ints) -> Ints:
    rank = np.zeros(mesh.devices, dtype=np.int64)
    total = 1
    for name in names:
        i = mesh.names.index(name)
        rank, total = rank * mesh.sizes[i] + at[:, i], total * mesh.sizes[i]
    size = -(-extent // total)
    low, high = np.minimum(rank * size, extent), np.minimum((rank + 1) * size, extent)
    out = np.stack([low, high], axis=1)
    out[low >= high] = 0
    return out


def _open(digits: Sequence[OpenDigit], mesh: Mesh) -> tuple[str, ...]:
    left = set(digits)
    names = []
    for d in mesh.dimensions:
        own = set(prime_digits(d.level, d.size, d.stride))
        if own and own <= left:
            names.append(d.name)
            left -= own
    if left:
        first = min(left)
        raise ShardingError(
            f"it is partial along the digit of size {first.prime} and stride {first.stride} of level {first.level}, "
            f"which is no dimension of the mesh"
        )
    return tuple(names)
