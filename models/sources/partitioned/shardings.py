"""Reads where tensors lie on a mesh of devices, as Shardy writes it, and cuts and joins them accordingly.

<["x"=2, "y"=4]>                 a mesh: rank r has the coordinates of r in row-major order
<@mesh, [{"x", "y"}, {}]>        dimension 0 in blocks over x and y, x outermost; dimension 1 whole
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ...equality.captured import Unreadable
from .hlo import instructions
from .writer import Writer

_AXIS = re.compile(r'"([^"]+)"\s*=\s*(\d+)')
_ONE = re.compile(r"<@([\w.$-]+), \[((?:\{[^{}]*\}(?:p\d+)?(?:, )?)*)\]([^<>]*)>")

_ORDER = re.compile(r"replica_groups=mesh\[([^\]]*)\],device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\)\{([^}]*)\}")


@dataclass(frozen=True)
class Mesh:
    """Axes in order, and their sizes."""

    axes: tuple[tuple[str, int], ...]

    def place(self, rank: int) -> dict[str, int]:
        """Coordinates of a rank.

        >>> Mesh((("x", 2), ("y", 4))).place(6)
        {'x': 1, 'y': 2}
        """
        found = dict[str, int]()
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        return {name: found[name] for name, _ in self.axes}

    def groups(self, axes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Ranks that differ in these axes alone, the first of them outermost.

        >>> Mesh((("x", 2), ("y", 2))).groups(["x"])
        ((0, 2), (1, 3))
        """
        many = 1
        for _, size in self.axes:
            many *= size
        rows: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
        for rank in range(many):
            at = self.place(rank)
            rest = tuple(n for name, n in at.items() if name not in axes)
            rows.setdefault(rest, []).append((tuple(at[a] for a in axes), rank))
        return tuple(tuple(r for _, r in sorted(row)) for row in rows.values())


@dataclass(frozen=True)
class Sharding:
    """Axes of every dimension, the first outermost."""

    mesh: Mesh
    dims: tuple[tuple[str, ...], ...]

    def blocks(self, dim: int, rank: int) -> tuple[int, int]:
        """Which block of how many a rank has of a dimension."""
        sizes, at, block, many = dict(self.mesh.axes), self.mesh.place(rank), 0, 1
        for axis in self.dims[dim]:
            block, many = block * sizes[axis] + at[axis], many * sizes[axis]
        return block, many

    def part(self, shape: Sequence[int], rank: int) -> tuple[slice, ...]:
        """What a rank has of a tensor of this shape.  Raises `Unreadable` for one that is not cut evenly."""
        found = []
        for dim, n in enumerate(shape):
            block, many = self.blocks(dim, rank)
            if n % many:
                raise Unreadable(f"a dimension of {n} in {many} blocks is not cut evenly")
            found.append(slice(block * n // many, (block + 1) * n // many))
        return tuple(found)

    def cut(self, w: Writer, number: int, rank: int) -> int:
        """The rank's part of a whole tensor."""
        for dim, part in enumerate(self.part(w.shape(number), rank)):
            number = w.slice(number, dim, part.start, part.stop)
        return number

    def join(self, w: Writer, number: int, rank: int) -> int:
        """The whole tensor of all ranks' parts."""
        for dim, axes in enumerate(self.dims):
            if axes:
                group = next(g for g in self.mesh.groups(axes) if rank in g)
                number = gather_ranks(w, number, dim, group)
        return number


def gather_ranks(w: Writer, number: int, dim: int, group: tuple[int, ...]) -> int:
    """The tensors of a group, one behind another along a dimension."""
    if len(group) == 1:
        return number
    many = len(w.shape(number))
    front = [dim, *(d for d in range(many) if d != dim)]
    number = w.permute(number, front)
    shape = w.shape(number)
    whole = (len(group) * shape[0], *shape[1:])
    made = w.step("all_gather", (number,), {"ranks": group}, whole, w.dtype(number))
    return w.permute(made, [front.index(d) for d in range(many)])


def mesh_of(text: str) -> Mesh:
    """A mesh as MLIR writes it.  Raises `Unreadable` for devices in another order.

    >>> mesh_of('#sdy.mesh<["x"=2, "y"=4]>').axes
    (('x', 2), ('y', 4))
    """
    if "device_ids" in text:
        raise Unreadable(f"a mesh of devices in an order of its own ({text}) is not known here")
    return Mesh(tuple((name, int(size)) for name, size in _AXIS.findall(text)))


def ordered_groups(text: str) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Groups of the collectives of an HLO module whose devices stand in another order than their numbers, by channel.
    Raises `Unreadable` for orders and axes that are not known here.

    >>> order = "replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}"
    >>> ordered_groups(f"channel_id=7, {order}")
    {7: ((0, 1), (2, 3))}
    """
    found: dict[int, tuple[tuple[int, ...], ...]] = {}
    if "device_ids" not in text:
        return found
    plain = list[str]()
    for line in instructions(text):
        channels, order = re.findall(r"\bchannel_id=(\d+)", line), _ORDER.search(line)
        if not (said := re.findall(r"\bdevice_ids=", line)):
            plain += channels
            continue
        if len(channels) != 1 or order is None or len(said) != 1:
            raise Unreadable(f"groups of devices in an order that is not known here: {line.strip()[:300]}")
        sizes = [int(n) for n in order[2].split(",")]
        turned = [int(n) for n in order[3].split(",")]
        mesh = Mesh(tuple((name, int(size)) for name, size in re.findall(r"'([^']+)'=(\d+)", order[1])))
        devices = np.arange(prod(sizes)).reshape(sizes).transpose(turned).reshape(-1).tolist()
        axes = re.findall(r"'([^']+)'", order[4])
        if (
            len(devices) != prod(n for _, n in mesh.axes)
            or ":" in order[4]
            or not set(axes) <= {a for a, _ in mesh.axes}
        ):
            raise Unreadable(f"groups of devices in an order that is not known here: {line.strip()[:300]}")
        groups = tuple(tuple(int(devices[r]) for r in row) for row in mesh.groups(axes))
        if found.setdefault(int(channels[0]), groups) != groups:
            raise Unreadable(f"channel {channels[0]} has groups of two kinds")
    if shared := [n for n in plain if int(n) in found]:
        raise Unreadable(f"channel {shared[0]} has groups of two kinds, with device_ids and without")
    return found


def shardings_of(text: str, meshes: Mapping[str, Mesh]) -> list[Sharding]:
    """Shardings of values, one behind another.  Raises `Unreadable` for what is not known here.

    >>> mesh = Mesh((("x", 2),))
    >>> shardings_of('[<@mesh, [{}, {"x"}]>, <@mesh, []>]', {"mesh": mesh})[0].dims
    ((), ('x',))
    """
    found = []
    for name, dims, more in _ONE.findall(text):
        if (more and not more.startswith(", replicated")) or name not in meshes or ":(" in dims:
            raise Unreadable(f"a sharding that is not known here: <@{name}, [{dims}]{more}>")
        rows = re.findall(r"\{([^{}]*)\}", dims)
        found.append(Sharding(meshes[name], tuple(tuple(re.findall(r'"([^"]+)"', row)) for row in rows)))
    if len(found) != text.count("<@") + text.count("mesh<["):  # the latter: a mesh without a name
        raise Unreadable(f"a sharding that is not known here: {text[:200]}")
    return found
