"""Running a program on virtual ranks, and what it moved.

Every rank is a thread with its own view of the transport.  Outputs are put together from the ranks' blocks at the end;
replicas must agree up to rounding (not bit for bit: vectorised functions round differently on differently strided blocks).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Final

import numpy as np

from ..models.communication import Box, reduction_load
from ..models.graph import GraphError
from .interpreter import RankError, Source, move_label, run_rank, statistics_label
from .kernels import Array
from .program import Compute, Program
from .reference import check_inputs
from .transport.virtual import Hub, VirtualTransport, loads

_ROUNDING: Final = 1e-3
"""Replicas may differ by this much, relative to 1 + their size, before they count as different values (float32 and deep graphs)."""


@dataclass(frozen=True)
class Traffic:
    """What one redistribution (or one operator's statistics) moved: elements that entered the busiest subtree, per level.

    `priced`: the same numbers from the communication plan, which the cost model prices.
    """

    place: str
    collective: str
    counted: tuple[int, ...]
    priced: tuple[int, ...]
    element_bytes: int

    @property
    def bytes(self) -> tuple[int, ...]:
        """Counted bytes per level, with the element size of the graph (also when float64 is executed)."""
        return tuple(n * self.element_bytes for n in self.counted)


@dataclass(frozen=True, eq=False)
class RunResult:
    """`outputs`: whole tensors in digit shape.  `traffic`: one entry per movement, then per operator with split statistics."""

    outputs: dict[str, Array]
    traffic: tuple[Traffic, ...]


def slices(arrays: Mapping[str, Array]) -> Source:
    """A source of blocks of whole arrays."""

    def read(tensor: str, box: Box) -> Array:
        return arrays[tensor][tuple(slice(lo, hi) for lo, hi in box)]

    return read


def run_virtual(program: Program, inputs: Mapping[str, Array], xp: ModuleType = np, timeout_s: float = 120.0) -> RunResult:
    """Run all ranks in this process.

    Raises `GraphError` for inputs that do not fit, `RankError` naming rank and operator when one fails.
    """
    arrays = {n: xp.asarray(v) for n, v in check_inputs(program.graph, inputs).items()}
    devices = prod(program.hierarchy)
    hub = Hub(timeout_s)
    transports = [VirtualTransport(hub, r, program.hierarchy, xp) for r in range(devices)]
    blocks: list[dict[str, Array]] = [{} for _ in range(devices)]
    errors: list[RankError] = []

    def work(rank: int) -> None:
        try:
            blocks[rank] = run_rank(program, rank, transports[rank], slices(arrays), xp)
        except RankError as e:
            if not hub.failed:
                errors.append(e)
            hub.abort()

    threads = [threading.Thread(target=work, args=(r,), name=f"rank {r}") for r in range(devices)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    outputs = {name: assemble(xp, name, program.graph.tensor(name).shape, boxes, [b[name] for b in blocks]) for name, boxes in program.outputs}
    for name in program.graph.outputs:
        if name not in outputs:
            outputs[name] = arrays[name]
    return RunResult({n: outputs[n] for n in program.graph.outputs}, _traffic(program, transports))


def assemble(xp: ModuleType, name: str, shape: tuple[int, ...], boxes: tuple[Box, ...], blocks: list[Array]) -> Array:
    """The whole tensor from its blocks.  Raises `GraphError` if an element is missing or replicas differ."""
    out: Array = xp.zeros(shape, dtype=blocks[0].dtype)
    seen = xp.zeros(shape, dtype=bool)
    for rank, (box, block) in enumerate(zip(boxes, blocks, strict=True)):
        where = tuple(slice(lo, hi) for lo, hi in box)
        if block.shape != tuple(hi - lo for lo, hi in box):
            raise GraphError(f"tensor {name!r}", f"rank {rank} returned a block of shape {block.shape} for {box}")
        other = out[where]
        if block.dtype.kind == "f":
            near = (abs(other - block) <= _ROUNDING * (1 + abs(block))) | (other == block) | (xp.isnan(other) & xp.isnan(block))
        else:
            near = other == block
        if not bool(xp.all(near | ~seen[where])):
            raise GraphError(f"tensor {name!r}", f"rank {rank} holds another value than a replica of it")
        out[where], seen[where] = block, True
    if not bool(xp.all(seen)):
        raise GraphError(f"tensor {name!r}", "some elements are held by no rank")
    return out


def _traffic(program: Program, transports: list[VirtualTransport]) -> tuple[Traffic, ...]:
    levels = len(program.hierarchy)
    nothing = [0] * levels

    def counted(label: str) -> tuple[int, ...]:
        return loads([t.received.get(label, nothing) for t in transports], program.hierarchy)

    out = []
    for n, m in enumerate(program.movements):
        goal = "its copy" if m.reader is None else f"input {m.position} of {m.reader}"
        size = program.graph.tensor(m.tensor).element_bytes
        out.append(Traffic(f"{m.tensor} to {goal}", m.plan.collective(), counted(move_label(n)), m.plan.loads(), size))
    for step in program.ranks[0]:
        if isinstance(step, Compute) and step.statistics:
            op = program.graph.operators[step.operator]
            each = [reduction_load(s, program.hierarchy) for s in step.statistics]
            priced = tuple(sum(e[i] for e in each) for i in range(levels))
            out.append(Traffic(f"statistics of {op.name}", "all-reduce", counted(statistics_label(op.name)), priced, 4))
    return tuple(out)
