"""Runs an overlapped plan: every rank has a thread per stream, which does its tasks in the planned order.

    operators          this thread; statistics are exchanged on a communicator of their own
    reshardings    a thread beside it, whose collectives do not block (`steps.carry_beside`)
    a task             waits for the tasks that it waits for in the plan, and no longer

`pace`: a task lasts at least so many times its planned time; what is left of that after its work is slept.  Numbers and
bytes are the same with any pace.  With one that dwarfs the work, the time of a step says whether the order and the
waits are those of the plan, and nothing about the computer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Final

import numpy as np

from ..kernels import Array, widen
from ..lowering.program import Move
from ..lowering.streams import COMPUTE, LINKS, StreamsProgram, slots_read
from ..trace import Recorder, Span
from ..transport import Transport
from ..transport.virtual import Hub, VirtualTransport
from .interpreter import Held, RankError, Source, Surroundings, move_label, run_part
from .live import alone
from .reference import as_stored, check_inputs
from .run import Traffic, assemble, slices, traffic
from .steps import carry_beside, reshard_steps

KIND = ("compute", "communication")


@dataclass(frozen=True, eq=False)
class StreamsResult:
    """`outputs`: whole tensors in digit shape; `traffic`: of every movement; `spans`: of every task on every rank."""

    outputs: dict[str, Array]
    traffic: tuple[Traffic, ...]
    spans: tuple[Span, ...]


class _Stopped(Exception):
    """The other stream of this rank has failed."""


class _Rank:
    """One rank: its slots, what is done, and who still reads what."""

    def __init__(self, program: StreamsProgram, rank: int, source: Source, xp: ModuleType, pace: float) -> None:
        self.program, self.rank, self.source, self.xp, self.pace = program, rank, source, xp, pace
        self.held = Held()
        self.done = [threading.Event() for _ in program.tasks]
        self.failed: RankError | None = None
        self._left, self._lock = dict(program.readers), threading.Lock()

    def stop(self, error: RankError) -> None:
        """The first failure counts; nobody waits any more."""
        with self._lock:
            self.failed = self.failed or error
        for event in self.done:
            event.set()

    def forget(self, position: int) -> None:
        """Instruction `position` has run: what nobody reads any more goes."""
        with self._lock:
            for slot in slots_read(self.program.program.ranks[self.rank][position]):
                if slot in self._left:
                    self._left[slot] -= 1
                    if not self._left[slot]:
                        self.held.slots.pop(slot, None)
                        self.held.exact.pop(slot, None)

    def instruction(self, position: int, transport: Transport, beside: bool) -> None:
        """Run one instruction."""
        lowered = self.program.program
        step = lowered.ranks[self.rank][position]
        if not (beside and isinstance(step, Move)):
            around = Surroundings(transport, self.source, self.xp)
            run_part(lowered, self.rank, (position,), around, self.held, self.forget)
            return
        movement = lowered.movements[step.movement]
        transport.account(move_label(step.movement))
        try:
            moved = carry_beside(
                transport, reshard_steps(self.xp, transport.rank, movement.plan, self.held.slots[step.source])
            )
        except Exception as e:
            raise RankError(self.rank, lowered.place(step), f"{type(e).__name__}: {e}") from e
        self.held.slots[step.target] = moved if movement.reader is not None else alone(moved)
        self.forget(position)

    def stream(self, number: int, transport: Transport, recorder: Recorder, told: Callable[[int], None] | None) -> None:
        """All tasks of a stream."""
        for k in self.program.order[number]:
            task = self.program.tasks[k]
            if told is not None:
                told(k)
            for b in task.waits:
                self.done[b].wait()
            if self.failed is not None:
                raise _Stopped
            begun = recorder.now()
            try:
                for position in task.positions:
                    self.instruction(position, transport, number == LINKS)
            except RankError:
                raise
            except Exception as e:
                raise RankError(self.rank, task.name, f"{type(e).__name__}: {e}") from e
            rest = begun + self.pace * task.time * self.program.unit - recorder.now()
            if rest > 0:
                time.sleep(rest)
            recorder.add(task.name, KIND[number], begun)
            self.done[k].set()


@dataclass(frozen=True)
class Signals:
    """What a rank says to others beside its data.  `together`: called when it has its inputs, gives the common start on
    the clock; `told(n)`: before operators' task n; `broken`: at the first failure, so that nobody waits.
    """

    together: Callable[[], float] = time.perf_counter
    told: Callable[[int], None] | None = None
    broken: Callable[[], None] | None = None


ALONE: Final = Signals()
"""Nobody listens."""


def run_streams(
    program: StreamsProgram,
    rank: int,
    transports: Sequence[Transport],
    source: Source,
    xp: ModuleType,
    pace: float = 0.0,
    signals: Signals = ALONE,
) -> tuple[dict[str, Array], list[Span]]:
    """(this rank's blocks of the outputs, its spans).  `transports`: of operators, of reshardings.  Raises
    `RankError`.
    """
    state = _Rank(program, rank, source, xp, pace)
    for position in program.first:
        around = Surroundings(transports[COMPUTE], source, xp)
        run_part(program.program, rank, (position,), around, Held(state.held.slots), lambda _: None)
    origin_s, told = signals.together(), signals.told
    recorders = [Recorder(rank, origin_s) for _ in KIND]

    def work(number: int) -> None:
        try:
            state.stream(number, transports[number], recorders[number], told if number == COMPUTE else None)
        except _Stopped:
            pass
        except RankError as e:
            state.stop(e)
            if signals.broken is not None:
                signals.broken()

    beside = threading.Thread(target=work, args=(LINKS,), name=f"links of rank {rank}", daemon=True)
    beside.start()
    work(COMPUTE)
    beside.join()
    if state.failed is not None:
        raise state.failed
    spans = [s for r in recorders for s in r.spans]
    return {tensor: state.held.slots[tensor] for tensor, _ in program.program.outputs}, spans


def run_streams_virtual(
    program: StreamsProgram, inputs: Mapping[str, Array], pace: float = 0.0, timeout_s: float = 120.0
) -> StreamsResult:
    """Run all ranks as threads of this process.

    Raises `GraphError` for inputs that do not fit, `RankError` naming rank and operator when one fails.
    """
    lowered = program.program
    arrays = check_inputs(lowered.graph, inputs)
    arrays = as_stored(lowered.graph, arrays) if lowered.stored else arrays
    devices = prod(lowered.hierarchy)
    hubs = [Hub(timeout_s) for _ in KIND]
    transports = [[VirtualTransport(hub, r, lowered.hierarchy, np) for hub in hubs] for r in range(devices)]
    blocks: list[dict[str, Array]] = [{} for _ in range(devices)]
    spans: list[list[Span]] = [[] for _ in range(devices)]
    errors: list[RankError] = []
    meeting, clock = threading.Barrier(devices), [0.0]

    def together() -> float:
        if meeting.wait(timeout_s) == 0:
            clock[0] = time.perf_counter()
        meeting.wait(timeout_s)
        return clock[0]

    def abort() -> None:
        meeting.abort()
        for hub in hubs:
            hub.abort()

    def work(rank: int) -> None:
        try:
            blocks[rank], spans[rank] = run_streams(
                program, rank, transports[rank], slices(arrays), np, pace, Signals(together, broken=abort)
            )
        except RankError as e:
            errors.append(e)
            abort()
        except threading.BrokenBarrierError:  # another rank could not even begin
            pass

    threads = [threading.Thread(target=work, args=(r,), name=f"rank {r}", daemon=True) for r in range(devices)]
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    except BaseException:  # interrupted: nobody waits for ranks that wait for each other
        abort()
        raise
    if errors:
        raise min(errors, key=lambda e: "another rank failed" in e.reason)
    outputs = whole(program, arrays, blocks)
    for both in transports:  # labels of the two streams differ
        both[COMPUTE].received.update(both[LINKS].received)
    found = traffic(lowered, [both[COMPUTE] for both in transports])
    return StreamsResult(outputs, found, tuple(s for row in spans for s in row))


def whole(
    program: StreamsProgram, arrays: Mapping[str, Array], blocks: Sequence[Mapping[str, Array]]
) -> dict[str, Array]:
    """The graph's results from the ranks' blocks."""
    lowered = program.program
    written = dict(lowered.outputs)
    return {
        name: assemble(np, name, lowered.graph.tensor(name).shape, written[name], [b[name] for b in blocks])
        if name in written
        else widen(np, np.asarray(arrays[name]))
        for name in lowered.graph.results
    }


def elapsed_seconds(spans: Sequence[Span]) -> float:
    """Seconds from the first task's beginning to the last one's end, over all ranks."""
    return max((s.end_s for s in spans), default=0.0) - min((s.start_s for s in spans), default=0.0)
