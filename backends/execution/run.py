"""Runs a program on virtual ranks, and counts what it moved.

Every rank is a thread with its own view of the transport.  Outputs are put together from the ranks' blocks at the end;
replicas must agree up to rounding (not bit for bit: vectorised functions round differently on differently strided
blocks).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from types import ModuleType
from typing import Final

import numpy as np

from ...models.communication.resharding import Reduction, reduction_load
from ...models.communication.transfers import Box
from ...models.program.graph import GraphError
from ..kernels import Array, is_half, widen
from ..lowering.program import Compute, Program
from ..trace import Span
from ..transport.received import is_even, receives, reduction_receives
from ..transport.virtual import Hub, VirtualTransport, loads
from .interpreter import RankError, Source, Watching, move_label, recorder_for, run_rank, statistics_label
from .live import Meter
from .reference import as_stored, check_inputs

_ROUNDING: Final = 1e-3
"""Replicas may differ by this much, relative to 1 + their size, before they count as different values (float32 and
deep graphs).
"""

_HALF_ROUNDING: Final = 2.0**-6
"""The same for numbers of 16 bits: two places of bfloat16."""


@dataclass(frozen=True)
class Traffic:
    """What one resharding (or one operator's statistics) moved: elements that entered the busiest subtree, per
    level.

    `exact`: the same numbers from the steps (`backends.transport.received`).  `priced`: those of the cost model, equal
    to `exact` where parts are equal (`even`), and never less: the price of a sum is that of its largest part for
    everybody.
    """

    place: str
    collective: str
    counted: tuple[int, ...]
    exact: tuple[int, ...]
    priced: tuple[int, ...]
    even: bool
    element_bytes: int

    @property
    def fits(self) -> bool:
        """Counted is what the steps say, and priced as it moved, or, with unequal parts, for no less."""
        bounded = all(n <= p for n, p in zip(self.counted, self.priced, strict=True))
        return self.counted == self.exact and bounded and (not self.even or self.counted == self.priced)

    @property
    def bytes(self) -> tuple[int, ...]:
        """Counted bytes per level, with the element size of the graph (also when float64 is executed)."""
        return tuple(n * self.element_bytes for n in self.counted)


@dataclass(frozen=True, eq=False)
class RunResult:
    """`outputs`: whole tensors in digit shape.  `traffic`: one entry per movement, then per operator with split
    statistics.

    `spans`: times of all ranks, `peaks`: most bytes of live blocks per rank (`backends.execution.live`), if they were
    asked for.
    """

    outputs: dict[str, Array]
    traffic: tuple[Traffic, ...]
    spans: tuple[Span, ...] = ()
    peaks: tuple[int, ...] = ()


def slices(arrays: Mapping[str, Array]) -> Source:
    """A source of blocks of whole arrays."""

    def read(tensor: str, box: Box) -> Array:
        return arrays[tensor][tuple(slice(lo, hi) for lo, hi in box)]

    return read


def copies(arrays: Mapping[str, Array]) -> Source:
    """A source of blocks in buffers of their own, as on a machine of their own."""

    def read(tensor: str, box: Box) -> Array:
        return arrays[tensor][tuple(slice(lo, hi) for lo, hi in box)].copy()

    return read


def run_virtual(
    program: Program,
    inputs: Mapping[str, Array],
    xp: ModuleType = np,
    timeout_s: float = 120.0,
    trace: bool = False,
    measure: bool = False,
) -> RunResult:
    """Run all ranks in this process; `measure`: count live blocks; `trace`: record times (threads share the cores, so
    they are those of a crowded machine).

    Raises `GraphError` for inputs that do not fit, `RankError` naming rank and operator when one fails.
    """
    given = check_inputs(program.graph, inputs)
    arrays = {n: xp.asarray(v) for n, v in (as_stored(program.graph, given) if program.stored else given).items()}
    devices = prod(program.hierarchy)
    hub = Hub(timeout_s)
    transports = [VirtualTransport(hub, r, program.hierarchy, xp) for r in range(devices)]
    blocks: list[dict[str, Array]] = [{} for _ in range(devices)]
    errors: list[RankError] = []
    origin_s = time.perf_counter()
    meters = [Meter(program.graph) if measure else None for _ in range(devices)]
    recorders = [recorder_for(xp, r, origin_s) if trace else None for r in range(devices)]

    def work(rank: int) -> None:
        try:
            blocks[rank] = run_rank(
                program,
                rank,
                transports[rank],
                copies(arrays) if measure else slices(arrays),
                xp,
                Watching(recorders[rank], meter=meters[rank]),
            )
        except RankError as e:
            if not hub.failed:
                errors.append(e)
            hub.abort()

    run_threads(work, devices, hub.abort)
    if errors:
        raise errors[0]
    outputs = {
        name: assemble(xp, name, program.graph.tensor(name).shape, boxes, [b[name] for b in blocks])
        for name, boxes in program.outputs
    }
    for name in program.graph.results:
        if name not in outputs:
            outputs[name] = widen(xp, arrays[name])
    return RunResult(
        {n: outputs[n] for n in program.graph.results},
        traffic(program, transports),
        tuple(s for r in recorders if r is not None for s in r.spans),
        tuple(m.peak for m in meters if m is not None),
    )


def run_threads(work: Callable[[int], None], ranks: int, abort: Callable[[], None]) -> None:
    """`work(rank)` of every rank on a thread of its own.  `abort`: nobody waits for ranks that wait for each other."""
    threads = [threading.Thread(target=work, args=(r,), name=f"rank {r}", daemon=True) for r in range(ranks)]
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    except BaseException:  # interrupted
        abort()
        raise


def assemble(xp: ModuleType, name: str, shape: tuple[int, ...], boxes: tuple[Box, ...], blocks: list[Array]) -> Array:
    """The whole tensor from its blocks, in float32 where they have 16 bits.  Raises `GraphError` if an element is
    missing or replicas differ.
    """
    rounding = _HALF_ROUNDING if is_half(blocks[0]) else _ROUNDING
    blocks = [widen(xp, b) for b in blocks]
    out: Array = xp.zeros(shape, dtype=blocks[0].dtype)
    seen = xp.zeros(shape, dtype=bool)
    for rank, (box, block) in enumerate(zip(boxes, blocks, strict=True)):
        where = tuple(slice(lo, hi) for lo, hi in box)
        if block.shape != tuple(hi - lo for lo, hi in box):
            raise GraphError(f"tensor {name!r}", f"rank {rank} returned a block of shape {block.shape} for {box}")
        other = out[where]
        if block.dtype.kind == "f":
            with np.errstate(invalid="ignore", over="ignore"):  # infinities are compared by themselves
                near = (
                    (abs(other - block) <= rounding * (1 + abs(block)))
                    | (other == block)
                    | (xp.isnan(other) & xp.isnan(block))
                )
        else:
            near = other == block
        if not bool(xp.all(near | ~seen[where])):
            raise GraphError(f"tensor {name!r}", f"rank {rank} holds another value than a replica of it")
        out[where], seen[where] = block, True
    if not bool(xp.all(seen)):
        raise GraphError(f"tensor {name!r}", "some elements are held by no rank")
    return out


def traffic(
    program: Program, transports: Sequence[VirtualTransport], times: Mapping[str, int] | None = None
) -> tuple[Traffic, ...]:
    """What every movement and statistic moved; `times[label]`: how often it ran (None: once each; those that it does
    not name did not run).
    """
    levels = len(program.hierarchy)
    nothing = [0] * levels

    def link_loads(label: str) -> tuple[int, ...]:
        return loads([t.received.get(label, nothing) for t in transports], program.hierarchy)

    def often(label: str, amounts: tuple[int, ...]) -> tuple[int, ...]:
        return amounts if times is None else tuple(n * times[label] for n in amounts)

    out = []
    for n, m in enumerate(program.movements):
        if times is not None and move_label(n) not in times:
            continue
        goal = "its copy" if m.reader is None else f"input {m.position} of {m.reader}"
        size = program.graph.tensor(m.tensor).element_bytes
        exact, even = (
            loads(receives(m.plan), program.hierarchy),
            _even([s for s in m.plan.steps if isinstance(s, Reduction)], program.hierarchy),
        )
        out.append(
            Traffic(
                f"{m.tensor} to {goal}",
                m.plan.collective(),
                link_loads(move_label(n)),
                often(move_label(n), exact),
                often(move_label(n), m.plan.loads()),
                even,
                size,
            )
        )
    for step in program.ranks[0]:
        if isinstance(step, Compute) and step.statistics:
            op = program.graph.operators[step.operator]
            label = statistics_label(op.name)
            if times is not None and label not in times:
                continue
            each = [reduction_load(s, program.hierarchy) for s in step.statistics]
            priced = tuple(sum(e[i] for e in each) for i in range(levels))
            parts = [[list(accumulate(n)) for n in reduction_receives(s, program.hierarchy)] for s in step.statistics]
            exact = loads(
                [[sum(column) for column in zip(*rows, strict=True)] for rows in zip(*parts, strict=True)],
                program.hierarchy,
            )
            even = _even(step.statistics, program.hierarchy)
            out.append(
                Traffic(label, "all-reduce", link_loads(label), often(label, exact), often(label, priced), even, 4)
            )
    return tuple(out)


def _even(steps: Sequence[Reduction], hierarchy: tuple[int, ...]) -> bool:
    return all(is_even(s, group) for s in steps for group in s.groups(hierarchy))
