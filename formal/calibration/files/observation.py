r"""One measured time, and what the cost model makes of it: sums and maxima of constants of a machine.

    collective   of B bytes over n ranks on N nodes, p = n / N on each, m groups sharing a node's port (sizes as in
                 nccl-tests: all_gather the result, reduce_scatter the input, alltoall what a rank holds)
                   all_gather, reduce_scatter   (n-1)/n B / gpus  +  m (N-1)/N B / nodes  +  a phase per level
                   all_reduce                   twice that
                   alltoall                     (n-1)/n B / gpus  +  m p (n-p)/n B / nodes + a phase per level
                   send_recv                    B / gpus          +  m B / nodes, if it leaves the node
    product      max( flops / peak, bytes / memory ) + launch
    touched      bytes / memory + launch
    step         of Megatron: no sum of terms; `formal.calibration.files.steps`

Terms name constants as in [sources]; what multiplies a rate's term is in bytes or flops, a time's in times.  These are
the counts of the cost model (`models.cost.cost`, `models.communication.pricing`) for whole groups: what is fitted here
is what plans are priced with.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ....models.cost.collective_times import Operation
from ....models.machine.machine import Machine
from ....models.text import InputError

WIDTH: Final = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int8": 1, "uint8": 1, "int32": 4, "int64": 8}
"""Bytes of the element types that files name (`dtype_of`)."""

_NAMES: Final = {
    "half": "float16",
    "fp16": "float16",
    "c10::half": "float16",
    "bf16": "bfloat16",
    "c10::bfloat16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
    "char": "int8",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
}


def dtype_of(name: str) -> str | None:
    """Our name of an element type as nccl-tests, PyTorch's traces and tables write it; None if it is none of them.

    >>> dtype_of("c10::BFloat16"), dtype_of("half"), dtype_of("complex")
    ('bfloat16', 'float16', None)
    """
    low = name.strip().lower()
    found = _NAMES.get(low, low)
    return found if found in WIDTH else None


@dataclass(frozen=True)
class Collective:
    """`size`: bytes as in the module; `nodes`: that the group spans; `sharing`: groups at one node's port."""

    operation: Operation
    ranks: int
    nodes: int
    size: int
    sharing: int = 1


@dataclass(frozen=True)
class Product:
    """`count` products (m, k) x (k, n)."""

    m: int
    n: int
    k: int
    dtype: str
    count: int = 1


@dataclass(frozen=True)
class Touched:
    """An operator that does nothing but read and write `size` bytes."""

    size: int


@dataclass(frozen=True)
class Step:
    """A training step of Megatron; `recompute` 0 or 1."""

    gpus: int
    global_batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    seq: int
    tp: int
    dp: int
    pp: int
    recompute: int
    vocabulary: int
    dtype: str


Term = tuple[str, float]
"""A constant and what multiplies its inverse (a rate) or itself (a time)."""


@dataclass(frozen=True)
class Terms:
    """sum over `steps` of the largest of their pieces, plus `added`."""

    steps: tuple[tuple[Term, ...], ...]
    added: tuple[Term, ...]


@dataclass(frozen=True)
class Observation:
    """What was measured, its seconds, where it stands (file and line), and the columns by which rows are chosen."""

    what: Collective | Product | Touched | Step | Terms
    seconds: float
    place: str
    columns: tuple[tuple[str, str], ...] = ()


def terms(seen: Observation, machine: Machine) -> Terms:
    """What the cost model makes of it on `machine`.  Raises `InputError` naming the place for what does not fit."""
    what = seen.what
    match what:
        case Collective():
            return _collective(what, machine, seen.place)
        case Product():
            path = _peak(machine, what.dtype, seen.place)
            flops = 2.0 * what.count * what.m * what.n * what.k
            moved = WIDTH[what.dtype] * what.count * (what.m * what.k + what.k * what.n + what.m * what.n)
            device = f"device_class.{machine.device.name}"
            return Terms((((path, flops), (f"{device}.bandwidth", float(moved))),), ((f"{device}.launch", 1.0),))
        case Touched():
            device = f"device_class.{machine.device.name}"
            return Terms((((f"{device}.bandwidth", float(what.size)),),), ((f"{device}.launch", 1.0),))
        case Step():
            raise InputError(f"{seen.place}: steps are fitted by their own law, apart from single times (`steps`)")
        case Terms():
            return what


def _peak(machine: Machine, dtype: str, place: str) -> str:
    if all(name != dtype for name, _ in machine.device.peaks):
        have = ", ".join(name for name, _ in machine.device.peaks)
        raise InputError(
            f"{place}: machine {machine.name!r} has no peak of {dtype} (it has {have}); add one to its file, with the "
            f"data sheet's figure as a start"
        )
    return f"device_class.{machine.device.name}.peaks.{dtype}"


def _collective(what: Collective, machine: Machine, place: str) -> Terms:
    n, nodes, size = what.ranks, what.nodes, what.size
    if n % nodes:
        raise InputError(f"{place}: {n} ranks on {nodes} nodes are not equally many on each")
    per = n // nodes
    if nodes > 1 and len(machine.levels) < 2:
        raise InputError(
            f"{place}: the group spans {nodes} nodes, and machine {machine.name!r} has one level; name a machine with "
            f"nodes, such as dgx-a100"
        )
    away = Fraction(n - 1, n)
    inside, outside = away * size, Fraction(nodes - 1, nodes) * size
    if what.operation is Operation.ALL_TO_ALL:
        outside = per * Fraction(n - per, n) * size
    elif what.operation is Operation.SEND_RECV:
        inside, outside = Fraction(size), Fraction(size)
    times = 2 if what.operation is Operation.ALL_REDUCE else 1
    inner, outer = machine.levels[-1].name, machine.levels[0].name
    added: list[Term] = [(f"level.{inner}.bandwidth", float(times * inside))]
    if per > 1 or what.operation is not Operation.ALL_REDUCE:
        added.append((f"level.{inner}.latency", float(times)))
    if nodes > 1:
        added.append((f"level.{outer}.bandwidth", float(times * outside * what.sharing)))
        added.append((f"level.{outer}.latency", float(times)))
    return Terms((), tuple(added))
