"""Reads Chrome traces: PyTorch's profiler (collectives, products, elementwise operators), and those of our
own runs.

    PyTorch   events `cat` "kernel" with "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype"
              (and "Process Group Ranks") are collectives; kernels whose "External id" is that of a `cpu_op` aten::mm,
              addmm, bmm are products of its "Input Dims"; of an elementwise one, bytes read and written
    ours      `cat` "compute": an operator's name and duration; what it computed stands in the plan, so `run --trace`
              files are read together with the plan (`own.py`)

A collective's kernel also waits for its partners, so of equal calls the fastest counts; of equal products the median.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final

from ....models.cost.collective_times import Operation
from ....models.text import InputError
from .observation import WIDTH, Collective, Observation, Product, Touched, dtype_of

_COLLECTIVES: Final = {
    "allreduce": (Operation.ALL_REDUCE, "In msg nelems"),
    "allreduce_coalesced": (Operation.ALL_REDUCE, "In msg nelems"),
    "allgather": (Operation.ALL_GATHER, "Out msg nelems"),
    "_allgather_base": (Operation.ALL_GATHER, "Out msg nelems"),
    "allgather_into_tensor_coalesced": (Operation.ALL_GATHER, "Out msg nelems"),
    "reduce_scatter": (Operation.REDUCE_SCATTER, "In msg nelems"),
    "_reduce_scatter_base": (Operation.REDUCE_SCATTER, "In msg nelems"),
    "reduce_scatter_tensor_coalesced": (Operation.REDUCE_SCATTER, "In msg nelems"),
    "all_to_all": (Operation.ALL_TO_ALL, "In msg nelems"),
    "all_to_allv": (Operation.ALL_TO_ALL, "In msg nelems"),
}
_ELEMENTWISE: Final = re.compile(
    r"aten::(add|sub|mul|div|copy|relu|gelu|silu|sigmoid|tanh|neg|exp|sqrt|rsqrt|pow|clone|gelu_backward|silu_backward)_?"
)

Event = Mapping[str, object]


def looks_like(data: object) -> bool:
    """Is this a Chrome trace?"""
    events = data.get("traceEvents") if isinstance(data, dict) else data
    return isinstance(events, list) and any(isinstance(e, dict) and "ph" in e for e in events[:100])


def events_of(data: object, place: str) -> list[Event]:
    """Complete events (`ph` X).  Raises `InputError` for what is no trace."""
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise InputError(f"{place}: has no list traceEvents; export the trace with prof.export_chrome_trace(FILE)")
    out: list[Event] = []
    for number, e in enumerate(events):
        if not isinstance(e, dict):
            raise InputError(f"{place}, traceEvents {number}: is no object")
        if e.get("ph") == "X":
            length = e.get("dur", 0)
            if isinstance(length, bool) or not isinstance(length, int | float) or not 0 <= length < 1e15:
                raise InputError(f"{place}, traceEvents {number}: dur is no number of microseconds")
            out.append(e)
    return out


def is_own(events: Iterable[Event]) -> bool:
    """Is it a trace of `shardproof run --trace`?"""
    return {str(e.get("cat")) for e in events} <= {"compute", "communication", "data"}


def read(data: object, place: str, per_node: int) -> list[Observation]:
    """Rows of a trace of PyTorch's profiler; `per_node`: devices of a node, by which ranks are on one.  Raises
    `InputError` if nothing in it can be priced.
    """
    events = events_of(data, place)
    collectives: dict[tuple[Collective, str], list[tuple[float, int]]] = {}
    work: dict[Product | Touched, list[float]] = {}
    kernels: dict[object, float] = {}
    for number, e in enumerate(events):
        if e.get("cat") != "kernel":
            continue
        args = _args(e)
        if "Collective name" in args:
            found = _collective(args, per_node)
            if found is not None:
                collectives.setdefault(found, []).append((_seconds(e), number))
        elif "External id" in args:
            kernels[args["External id"]] = kernels.get(args["External id"], 0.0) + _seconds(e)
    for e in events:
        args = _args(e)
        if e.get("cat") == "cpu_op" and args.get("External id") in kernels:
            what = _operator(str(e.get("name")), args)
            if what is not None:
                work.setdefault(what, []).append(kernels[args["External id"]])
    out = [
        Observation(what, min(times)[0], f"{place}, event {min(times)[1]}", (("kind", "collective"), ("dtype", dtype)))
        for (what, dtype), times in collectives.items()
        if min(times)[0] > 0
    ]
    out += [
        Observation(w, median(t), f"{place}, {_words(w)}", (("kind", type(w).__name__.lower()),))
        for w, t in work.items()
        if median(t) > 0
    ]
    if not out:
        raise InputError(
            f"{place}: the trace has no collective, product or elementwise kernel of known size; record it with "
            f"torch.profiler.profile(record_shapes=True) and CUDA activities"
        )
    return out


def _args(e: Event) -> Mapping[str, object]:
    args = e.get("args")
    return args if isinstance(args, dict) else {}


def _seconds(e: Event) -> float:
    value = e.get("dur", 0)
    assert isinstance(value, int | float)
    return value * 1e-6


def _words(what: Product | Touched) -> str:
    if isinstance(what, Product):
        return f"product {what.m} x {what.k} x {what.n} {what.dtype}"
    return f"elementwise operator of {what.size} bytes"


def _collective(args: Mapping[str, object], per_node: int) -> tuple[Collective, str] | None:
    known = _COLLECTIVES.get(str(args["Collective name"]))
    dtype = dtype_of(str(args.get("dtype", "")))
    ranks = args.get("Group size")
    if known is None or dtype is None or not isinstance(ranks, int) or ranks < 2:
        return None
    operation, field = known
    elements = args.get(field)
    if not isinstance(elements, int) or elements < 1:
        return None
    listed = [int(x) for x in re.findall(r"\d+", str(args.get("Process Group Ranks", "")))]
    if len(listed) != ranks:  # cut short in long lists
        listed = list(range(ranks))
    nodes = len({r // per_node for r in listed})
    if ranks % nodes:
        return None
    return Collective(operation, ranks, nodes, elements * WIDTH[dtype], max(1, per_node * nodes // ranks)), dtype


def _operator(name: str, args: Mapping[str, object]) -> Product | Touched | None:
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list) or not dims or len(dims) != len(types):
        return None
    dtype = dtype_of(str(types[0]))
    shapes = [d for d in dims if isinstance(d, list) and all(isinstance(x, int) and x > 0 for x in d)]
    if dtype is None or len(shapes) != len(dims):
        return None
    factors = {"aten::mm": dims[0:2], "aten::addmm": dims[1:3], "aten::bmm": dims[0:2]}.get(name)
    if factors is not None and len(factors) == 2:
        a, b = factors
        if len(a) == len(b) == 2 and a[1] == b[0]:
            return Product(a[0], b[1], a[1], dtype)
        if len(a) == len(b) == 3 and a[0] == b[0] and a[2] == b[1]:
            return Product(a[1], b[2], a[2], dtype, a[0])
        return None
    if _ELEMENTWISE.fullmatch(name):
        size = 0
        for shape, kind in zip(dims, types, strict=True):
            own = dtype_of(str(kind))
            if shape and own is not None:
                count = 1
                for n in shape:
                    count *= n
                size += count * WIDTH[own]
        count = 1
        for n in dims[0]:
            count *= n
        return Touched(size + count * WIDTH[dtype]) if dims[0] else None
    return None
