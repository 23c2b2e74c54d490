"""Says what ranks send one another in StableHLO, with the ranks of their groups.

Groups are of partitions (a channel is named) and number the devices as the mesh does.  `collective_permute` is a send
and a receive; a rank that receives nothing has zeros.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ...equality.program import Word
from ..jax.ir import Op, combined_by, integer
from .shardings import Mesh, gather_ranks
from .writer import Writer

REDUCTIONS: Final[Mapping[str, str]] = {
    "stablehlo.add": "sum",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.multiply": "product",
}


GLOBAL: Final = ("stablehlo.all_reduce", "stablehlo.all_gather", "stablehlo.reduce_scatter")
"""Collectives whose groups are of replicas, unless they say that they are of devices."""


@dataclass(frozen=True)
class Place:
    """The rank that is read, how many there are, and the meshes of the module; `ordered`: groups of meshes whose
    devices stand in another order, which the module does not say, by the number of the channel.
    """

    rank: int
    ranks: int
    meshes: Mapping[str, Mesh]
    ordered: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    def group(self, w: Writer, op: Op) -> tuple[int, ...]:
        """The ranks of a collective of which this one is."""
        if "channel_handle" not in op.attributes:
            raise w.refuse("a collective of replicas (without a channel); read are collectives of partitions")
        for row in self._groups(w, op):
            if self.rank in row:
                return row
        raise w.refuse(f"rank {self.rank} is in no group of a collective")

    def _groups(self, w: Writer, op: Op) -> tuple[tuple[int, ...], ...]:
        channel = re.search(r"handle = (\d+)", str(op.attributes["channel_handle"]))
        if self.ordered and channel is None:
            raise w.refuse("a collective whose channel has no number, in a module of devices in another order")
        if channel is not None and int(channel[1]) in self.ordered:
            return self.ordered[int(channel[1])]
        text = str(op.attributes["replica_groups"])
        if (named := re.search(r"mesh = @([\w.$-]+)", text)) is not None:
            if "sub_axis" in text or named[1] not in self.meshes:
                raise w.refuse(f"groups of {text} are not known here")
            return self.meshes[named[1]].groups(re.findall(r'axis_ref<name = "([^"]+)">', text))
        rows = [tuple(int(n) for n in row if n >= 0) for row in np.asarray(op.attributes["replica_groups"])]
        if any(rows) and op.name in GLOBAL and "use_global_device_ids" not in op.attributes:
            raise w.refuse("a collective of all partitions of groups of replicas (without use_global_device_ids)")
        return tuple(row for row in rows if row) or (tuple(range(self.ranks)),)


Handler = Callable[[Place, Writer, Op, Sequence[int]], Sequence[int]]


def _how(w: Writer, op: Op, dtype: str) -> str:
    how = combined_by(op)
    if dtype == "bool" and how in ("stablehlo.or", "stablehlo.and"):
        return "max" if how.endswith("or") else "min"
    if how is None or how not in REDUCTIONS:
        raise w.refuse(f"a reduction over ranks by {how or 'a region of several operators'}")
    return REDUCTIONS[how]


def all_reduce(place: Place, w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """psum, pmax, pmin."""
    group, found = place.group(w, op), []
    for number in given:
        dtype = w.dtype(number)
        how = _how(w, op, dtype)
        if len(group) == 1:
            found.append(number)
            continue
        sent = w.cast(number, "int32") if dtype == "bool" else number
        words: dict[str, Word] = {"op": how, "ranks": group}
        made = w.step("all_reduce", (sent,), words, w.shape(sent), w.dtype(sent))
        found.append(w.cast(made, dtype))
    return found


def all_gather(place: Place, w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Parts of all, one behind another along a dimension."""
    return [gather_ranks(w, number, integer(op, "all_gather_dim"), place.group(w, op)) for number in given]


def reduce_scatter(place: Place, w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """The sum, of which every rank has its block of a dimension."""
    (number,), dim, group = given, integer(op, "scatter_dimension"), place.group(w, op)
    if len(group) == 1:
        return [number]
    many = len(w.shape(number))
    front = [dim, *(d for d in range(many) if d != dim)]
    number = w.permute(number, front)
    shape = w.shape(number)
    words: dict[str, Word] = {"op": _how(w, op, w.dtype(number)), "ranks": group}
    part = (shape[0] // len(group), *shape[1:])
    made = w.step("reduce_scatter", (number,), words, part, w.dtype(number))
    return [w.permute(made, [front.index(d) for d in range(many)])]


def all_to_all(place: Place, w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """Blocks of one dimension sent to the ranks of the group; what is received stands one behind another along another
    dimension.  Of several operands one goes to each rank.
    """
    group = place.group(w, op)
    if len(given) > 1:  # of XLA's: one whole operand for each rank
        return _exchanged_whole(w, given, group)
    (number,) = given
    split, concat = integer(op, "split_dimension"), integer(op, "concat_dimension")
    many, count = len(w.shape(number)), len(group)
    if integer(op, "split_count") != count:
        raise w.refuse("an exchange of other blocks than its group has ranks")
    if count == 1:
        return [number]
    front = [split, *(d for d in range(many) if d != split)]
    number = w.permute(number, front)
    shape = w.shape(number)
    each = shape[0] // count
    words: dict[str, Word] = {"ranks": group, "send": (each,) * count, "receive": (each,) * count}
    number = w.step("all_to_all", (number,), words, shape, w.dtype(number))
    back = [front.index(d) for d in range(many)]
    blocks = [w.permute(w.slice(number, 0, i * each, (i + 1) * each), back) for i in range(count)]
    return [w.cat(blocks, concat)]


def _exchanged_whole(w: Writer, given: Sequence[int], group: tuple[int, ...]) -> Sequence[int]:
    if len(given) != len(group):
        raise w.refuse("an exchange of another number of tensors than its group has ranks")
    shape, dtype, count = w.shape(given[0]), w.dtype(given[0]), len(group)
    stacked = w.cat([w.reshape(n, (1, *shape)) for n in given], 0)
    words: dict[str, Word] = {"ranks": group, "send": (1,) * count, "receive": (1,) * count}
    made = w.step("all_to_all", (stacked,), words, (count, *shape), dtype)
    return [w.reshape(w.slice(made, 0, i, i + 1), shape) for i in range(count)]


def collective_permute(place: Place, w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """ppermute: from each source to one target."""
    (number,), w.messages = given, w.messages + 1
    if "channel_handle" not in op.attributes:
        raise w.refuse("messages of replicas (without a channel); read are messages of partitions")
    rows = [(int(a), int(b)) for a, b in np.asarray(op.attributes["source_target_pairs"]).reshape(-1, 2)]
    targets = [b for a, b in rows if a == place.rank]
    sources = [a for a, b in rows if b == place.rank]
    if len(targets) > 1 or len(sources) > 1:
        raise w.refuse("a rank sends or receives twice in one permutation")
    if sources == [place.rank]:
        return [number]
    shape, dtype = w.shape(number), w.dtype(number)
    if targets:
        w.steps_of("send", (number,), {"to": targets[0], "tag": w.messages}, ())
    if not sources:
        return [w.full(shape, 0.0, dtype)]
    return [w.step("recv", (), {"of": sources[0], "tag": w.messages}, shape, dtype)]


def partition_id(place: Place, w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """The rank's number."""
    return [w.full((), place.rank, "uint32")]


def replica_id(place: Place, w: Writer, op: Op, given: Sequence[int]) -> Sequence[int]:
    """There is one replica."""
    return [w.full((), 0, "uint32")]


COLLECTIVES: Final[Mapping[str, Handler]] = {
    "stablehlo.all_reduce": all_reduce,
    "stablehlo.all_gather": all_gather,
    "stablehlo.reduce_scatter": reduce_scatter,
    "stablehlo.all_to_all": all_to_all,
    "mhlo.all_to_all": all_to_all,
    "stablehlo.collective_permute": collective_permute,
    "stablehlo.partition_id": partition_id,
    "stablehlo.replica_id": replica_id,
}
