"""One rank at work: its instructions, one after another, over a transport.

Errors leave as `RankError`, which names the rank, the instruction (the operator, or the resharding) and the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import assert_never

from ...models.communication.resharding import Reduction
from ...models.communication.transfers import Box
from ...models.program.index import Combine
from ..cuda import device
from ..cuda.events import EventRecorder
from ..kernels import Array, Block, execute_stored, execute_unrounded, round_to
from ..kernels.library import Library
from ..kernels.moments import Kept
from ..lowering.program import Compute, Finish, Free, Fused, Instruction, Load, Move, Program, Start
from ..trace import Recorder
from ..transport import Transport, TransportError
from ..transport.requests import Steps
from .fused import MemberError, Run, execute_fused, kept_for
from .libraries import library_of
from .live import Meter, alone
from .progress import Table
from .steps import Flight, carry_together, reduction, reshard, reshard_steps, sides

Source = Callable[[str, Box], Array]
"""Gives the part `box` of an input or parameter, in digit shape."""


class RankError(RuntimeError):
    """A rank that failed: `rank`, `place` (the instruction in words), `reason`."""

    def __init__(self, rank: int, place: str, reason: str) -> None:
        super().__init__(f"rank {rank}, {place}: {reason}")
        self.rank, self.place, self.reason = rank, place, reason


class Statistics:
    """`StatisticsReducer` over a transport: the prepared reductions of one operator, in order."""

    def __init__(
        self, xp: ModuleType, transport: Transport, steps: tuple[Reduction, ...], hierarchy: tuple[int, ...]
    ) -> None:
        self._xp, self._transport, self._hierarchy = xp, transport, hierarchy
        self._steps = list(steps)

    def all_reduce(self, array: Array, combine: Combine) -> Array:
        """Combination of `array` over the ranks that share the `over` axes."""
        return self.all_reduce_together([array], combine)[0]

    def all_reduce_together(self, arrays: Sequence[Array], combine: Combine) -> list[Array]:
        """Of several statistics that are known at the same time."""
        rank, under_way = self._transport.rank, list[Steps]()
        for array in arrays:
            if not self._steps or self._steps[0].combine is not combine:
                raise TransportError(f"statistic {combine.value} was not planned")
            step = self._steps.pop(0)
            tile = step.tiles[rank]
            under_way.append(reduction(self._xp, rank, step, self._hierarchy, array.reshape(sides(tile)), tile))
        found = carry_together(self._xp, self._transport, under_way)
        return [part.reshape(array.shape) for part, array in zip(found, arrays, strict=True)]


def move_label(movement: int) -> str:
    """Account of a movement's traffic."""
    return f"movement {movement}"


def statistics_label(operator: str) -> str:
    """Account of an operator's statistics."""
    return f"statistics of {operator}"


def recorder_for(xp: ModuleType, rank: int, origin_s: float | None = None) -> Recorder:
    """A recorder of what runs on arrays of `xp`."""
    return EventRecorder(rank, xp, origin_s) if device.is_device(xp) else Recorder(rank, origin_s)


@dataclass
class Watching:
    """Who looks on: `recorder` gets times, `progress` this rank's instruction numbers, `meter` the blocks held after
    each.

    On a GPU the recorder is one of events (`recorder_for`): nothing waits for the device until the end.
    """

    recorder: Recorder | None = None
    progress: Table | None = None
    meter: Meter | None = None


@dataclass
class _Rank:
    program: Program
    transport: Transport
    source: Source
    xp: ModuleType
    launch: Run | None
    recorder: Recorder | None
    library: Library
    slots: dict[str, Array] = field(default_factory=dict)
    exact: dict[str, Array] = field(default_factory=dict)
    """Slots whose reader rounds them: what it reads in their place (a fused kernel has it in registers)."""
    flights: dict[int, tuple[Flight, float]] = field(default_factory=dict)
    moments: dict[str, Kept] = field(default_factory=dict)
    """What normalisations share within the step."""


def run_rank(
    program: Program, rank: int, transport: Transport, source: Source, xp: ModuleType, watching: Watching | None = None
) -> dict[str, Array]:
    """This rank's blocks of the program's outputs.  Raises `RankError`."""
    watching = watching or Watching()
    launch = device.launch if device.is_device(xp) else None
    state = _Rank(program, transport, source, xp, launch, watching.recorder, library_of(program.library))
    last = -1
    for number, instruction in enumerate(program.ranks[rank]):
        if watching.progress is not None:
            watching.progress[rank, 1] = number
        try:
            if number > last:
                last = _advance(state, rank, number)
            if state.flights and isinstance(instruction, Compute | Fused):  # nothing else takes long
                for flight, _ in state.flights.values():
                    flight.poll()
            if watching.meter is not None:
                watching.meter.look(state.slots, number)
        except MemberError as e:
            place = program.place(instruction.members[e.member] if isinstance(instruction, Fused) else instruction)
            raise RankError(rank, place, f"{type(e.reason).__name__}: {e.reason}") from e
        except Exception as e:
            raise RankError(rank, program.place(instruction), f"{type(e).__name__}: {e}") from e
    if watching.recorder is not None:
        watching.recorder.settle()
    if watching.progress is not None:
        watching.progress[rank, 1] = len(program.ranks[rank])
    return {tensor: state.slots[tensor] for tensor, _ in program.outputs}


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What a rank reaches: the others, blocks of the inputs, the module of its arrays, who looks on."""

    transport: Transport
    source: Source
    xp: ModuleType
    recorder: Recorder | None = None


@dataclass(frozen=True, eq=False)
class Held:
    """What a rank holds: blocks by slot, and what some of them hold before it is rounded (`exact`)."""

    slots: dict[str, Array] = field(default_factory=dict)
    exact: dict[str, Array] = field(default_factory=dict)


def run_part(
    program: Program,
    rank: int,
    positions: Iterable[int],
    around: Surroundings,
    held: Held,
    behind: Callable[[int], None],
) -> None:
    """Run some of a rank's instructions on what it holds; `behind(position)` is called after each.

    Raises `RankError`.
    """
    library = library_of(program.library)
    transport, source, xp = around.transport, around.source, around.xp
    state = _Rank(program, transport, source, xp, None, around.recorder, library, held.slots, held.exact)
    for position in positions:
        instruction = program.ranks[rank][position]
        try:
            _step(state, instruction)
        except Exception as e:
            raise RankError(rank, program.place(instruction), f"{type(e).__name__}: {e}") from e
        behind(position)


def _advance(state: _Rank, rank: int, number: int) -> int:
    """Run instruction `number`, and the reshardings next to it that need nothing of each other; the last that ran."""
    program, transport, xp, slots = state.program, state.transport, state.xp, state.slots
    instruction = program.ranks[rank][number]
    moves = adjacent_moves(program, rank, number) if isinstance(instruction, Move) and transport.merges else []
    if len(moves) < 2:
        _step(state, instruction)
        return number
    start = 0.0 if state.recorder is None else state.recorder.now()
    transport.account(move_label(moves[0].movement))
    plans = [program.movements[m.movement] for m in moves]
    steps = [reshard_steps(xp, rank, p.plan, slots[m.source]) for m, p in zip(moves, plans, strict=True)]
    found = carry_together(xp, transport, steps)
    for move, moved, block in zip(moves, plans, found, strict=True):
        slots[move.target] = block if moved.reader is not None else alone(block)
        if state.recorder is not None:
            state.recorder.add(program.place(move), "communication", start)
            start = state.recorder.now()  # the time of all stands at the first
    return number + len(moves) - 1


def adjacent_moves(program: Program, rank: int, number: int) -> list[Move]:
    """Reshardings from instruction `number` on, none of which starts from what another brings."""
    out: list[Move] = []
    for instruction in islice(program.ranks[rank], number, None):
        if not isinstance(instruction, Move) or not program.movements[instruction.movement].plan.steps:
            break
        if instruction.source in [m.target for m in out]:
            break
        out.append(instruction)
    return out


def _step(state: _Rank, instruction: Instruction) -> None:
    program, transport, xp, slots, recorder = state.program, state.transport, state.xp, state.slots, state.recorder
    start = 0.0 if recorder is None or isinstance(instruction, Free) else recorder.now()
    kind = "data"
    match instruction:
        case Load(slot=slot, tensor=tensor, box=box):
            slots[slot] = state.source(tensor, box)
        case Free(slot=slot):
            del slots[slot]
            state.exact.pop(slot, None)
        case Move(source=begin, target=slot, movement=n):
            plan = program.movements[n].plan
            kind = "communication" if plan.steps else "data"
            if n in program.still[transport.rank]:
                moved = slots[begin]
            else:
                transport.account(move_label(n))
                moved = reshard(xp, transport, plan, slots[begin])
            if begin in state.exact and not plan.steps:
                state.exact[slot] = reshard(xp, transport, plan, state.exact[begin])
            slots[slot] = (
                moved if program.movements[n].reader is not None else alone(moved)
            )  # what rests outlives what it was cut from
        case Start(source=begin, movement=n):
            transport.account(move_label(n))
            state.flights[n] = (
                Flight(transport, reshard_steps(xp, transport.rank, program.movements[n].plan, slots[begin])),
                start,
            )
        case Finish(target=slot, movement=n):
            kind = "communication"
            flight, begun = state.flights.pop(n)
            transport.account(move_label(n))
            slots[slot] = flight.finish() if program.movements[n].reader is not None else alone(flight.finish())
            if recorder is not None:
                recorder.add(program.place(instruction), "flight", begun)
        case Compute():
            kind = "compute"
            slots[instruction.slot] = alone(_compute(state, instruction))
        case Fused():
            kind = "compute"
            slots.update(
                execute_fused(xp, program.graph, instruction, slots, state.library, state.launch, state.moments)
            )
        case _:
            assert_never(instruction)
    if recorder is not None and not isinstance(instruction, Free):
        recorder.add(program.place(instruction), kind, start)


def _compute(state: _Rank, step: Compute) -> Array:
    program, transport, xp = state.program, state.transport, state.xp
    graph, one = program.graph, state.library.execute
    op = graph.operators[step.operator]
    box = {a.name: interval for a, interval in zip(op.axes, step.box, strict=True)}
    blocks = [Block(state.exact.get(slot, state.slots[slot]), origin) for slot, origin in step.operands]
    if op.output.tensor in program.unrounded_tensors:
        exact = execute_unrounded(xp, op, graph, box, blocks, run=one)
        state.exact[step.slot] = exact
        return round_to(xp, exact, graph.tensor(op.output.tensor).dtype)
    reducer = None
    if step.statistics:
        transport.account(statistics_label(op.name))
        reducer = Statistics(xp, transport, step.statistics, program.hierarchy)
    if program.stored:
        return execute_stored(xp, op, graph, box, blocks, reducer, one)
    return one(xp, op, graph, box, blocks, reducer, kept_for(state.moments, step))
