"""Times of the nodes of an operator-and-collective graph, in whole nanoseconds, rounded up.

    compute      max( flops / peak, bytes / memory bandwidth ) + launch, as `models.cost.cost` has it; bytes of operands
                 and results, each once.  flops: m n k 2 of a matrix product (`mm`, `bmm`, `grouped_mm`: every row meets
                 the matrix of its group), 4 b h s s d of attention over all pairs of positions (its backward: 10), one
                 per element of the result of any other
    collective   the published time of its table; without one, of the payload B (the whole tensor) on a group of g ranks
                 with n of them in each node:
                     B (1 - n/g) gpus / n / bandwidth of a node's link, if the group leaves the node
                   + B (1 - 1/g) / bandwidth of a device's link
                   + the latency of each of the two that is used;     an all-reduce takes both halves, twice that
                 of an all-to-all B is what one rank holds, and every rank's part crosses its node's link: n times the
                 first term; of a broadcast and a send all of B arrives: 1 in the place of 1 - n/g and 1 - 1/g

Groups are the rows of a mesh, the last one inside the node: ranks of a group are `stride` apart, the product of the
groups after it.  A group that is no row of the mesh is taken to be of consecutive ranks, and named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import ceil, prod
from typing import Final

from ...machine.machine import Machine
from ...text import InputError

NANOSECOND = Fraction(1, 10**9)

DTYPES = {
    "bf16": ("bfloat16", 2),
    "f16": ("float16", 2),
    "f32": ("float32", 4),
    "f64": ("float64", 8),
    "i64": ("int64", 8),
    "i32": ("int32", 4),
    "bool": ("bool", 1),
    "c64": ("float32", 8),
}
"""Type of a graph -> (type whose peak counts, bytes of an element)."""


class Collective(Enum):
    """What the ranks of a group do together, as far as its time goes."""

    GATHER = "every rank gets, or adds up, what the others hold"
    REDUCE = "both"
    EXCHANGE = "every rank sends another part to every other"
    COPY = "every rank gets the same, or one rank's"


COLLECTIVES: Final = {
    "all_gather": Collective.GATHER,
    "reduce_scatter": Collective.GATHER,
    "all_reduce": Collective.REDUCE,
    "allgather": Collective.GATHER,
    "allreduce": Collective.REDUCE,
    "all_to_all": Collective.EXCHANGE,
    "alltoall": Collective.EXCHANGE,
    "broadcast": Collective.COPY,
    "permute_tensor": Collective.COPY,
    "send": Collective.COPY,
    "recv": Collective.COPY,
}
"""Beginning of a name -> what it does."""


@dataclass(frozen=True)
class Shaped:
    """A tensor: its sizes and type."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype][1]


def compute_ns(op: str, inputs: Sequence[Shaped], outputs: Sequence[Shaped], machine: Machine) -> int:
    """Time of a compute node.  Raises `MachineError` if the machine lacks the peak of a type.

    >>> from ...machine.machine import load_machine
    >>> square = Shaped((4096, 4096), "bf16")
    >>> compute_ns("mm.default", (square, square), (square,), load_machine("cloud-a100"))
    916260
    """
    results = sum(prod(t.shape) for t in outputs)
    grouped = "grouped_mm" in op and [len(t.shape) for t in inputs[:2]] == [2, 3]
    if grouped or (op.startswith("bmm.") and len(inputs) == 2):
        work = 2 * prod(inputs[0].shape) * inputs[1].shape[2]
    elif op.startswith("mm.") and len(inputs) == 2:
        work = 2 * inputs[0].shape[0] * inputs[0].shape[1] * inputs[1].shape[1]
    elif "scaled_dot_product" in op and len(inputs[0].shape) == 4:
        queries, keys = inputs[0].shape, inputs[1].shape
        work = (10 if "backward" in op else 4) * prod(queries[:2]) * queries[2] * keys[2] * queries[3]
    else:
        work = results
    floating = [t for t in (*outputs, *inputs) if t.dtype in ("bf16", "f16", "f32", "f64", "c64")]
    dtype = DTYPES[(floating or [*outputs, *inputs, Shaped((), "f32")])[0].dtype][0]
    moved = sum(t.bytes for t in inputs) + sum(t.bytes for t in outputs)
    device = machine.device
    seconds = max(work / device.peak(dtype), moved / device.bandwidth) + device.launch
    return ceil(seconds / NANOSECOND)


@dataclass(frozen=True)
class Span:
    """Ranks of a group, `stride` apart."""

    ranks: int
    stride: int


def spans(group: str, groups: Mapping[str, int], apart: Mapping[str, int]) -> Span:
    """Where a group lies: a row of the mesh, or consecutive ranks where it is none."""
    if group in apart:
        return Span(apart[group], 1)
    names = list(groups)
    return Span(groups[group], prod(groups[n] for n in names[names.index(group) + 1 :]))


def collective_ns(kind: Collective, span: Span, payload: int, machine: Machine) -> int:
    """Time of a collective that has no published one; `payload`: bytes of the whole tensor, of an all-to-all those of
    one rank.

    >>> from ...machine.machine import load_machine
    >>> collective_ns(Collective.GATHER, Span(64, 1), 10**9, load_machine("cloud-a100:8x8"))
    100883056
    """
    if len(machine.levels) != 2:
        raise InputError(f"machine {machine.name!r}: a graph with collectives needs two levels, nodes and devices")
    node, device = machine.levels
    size = span.ranks
    inside = max(1, min(size, device.size // span.stride if span.stride <= device.size else 1))
    away = Fraction(1) if kind is Collective.COPY else Fraction(size - 1, size)
    beyond = Fraction(1) if kind is Collective.COPY else Fraction(size - inside, size)
    groups_of_node = Fraction(device.size) if kind is Collective.EXCHANGE else Fraction(device.size, inside)
    seconds = Fraction(0) if size == 1 else payload * away / device.bandwidth
    if inside > 1:
        seconds += device.latency
    if inside < size:
        seconds += payload * beyond * groups_of_node / node.bandwidth
        seconds += node.latency
    return ceil((2 if kind is Collective.REDUCE else 1) * seconds / NANOSECOND)
