"""One rank at work: its instructions, one after another, over a transport.

Errors leave as `RankError`, which names the rank and the instruction (the operator, or the redistribution).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import assert_never

from ..models.communication import Box, Reduction
from ..models.graph import Graph
from ..models.index import Combine
from .kernels import Array, Block, execute
from .program import Compute, Free, Instruction, Load, Move, Program
from .steps import redistribute, reduce, sides
from .transport import Transport, TransportError

Source = Callable[[str, Box], Array]
"""Gives the part `box` of an input or parameter, in digit shape."""


class RankError(RuntimeError):
    """A rank that failed: `rank`, `place` (the instruction in words), `reason`."""

    def __init__(self, rank: int, place: str, reason: str) -> None:
        super().__init__(f"rank {rank}, {place}: {reason}")
        self.rank, self.place, self.reason = rank, place, reason


class Statistics:
    """`StatisticsReducer` over a transport: the prepared reductions of one operator, in order."""

    def __init__(self, xp: ModuleType, transport: Transport, steps: tuple[Reduction, ...], hierarchy: tuple[int, ...]) -> None:
        self._xp, self._transport, self._hierarchy = xp, transport, hierarchy
        self._steps = list(steps)

    def all_reduce(self, array: Array, combine: Combine) -> Array:
        """Combination of `array` over the ranks that share the `over` axes."""
        if not self._steps or self._steps[0].combine is not combine:
            raise TransportError(f"statistic {combine.value} was not planned")
        step = self._steps.pop(0)
        tile = step.tiles[self._transport.rank]
        return reduce(self._xp, self._transport, step, self._hierarchy, array.reshape(sides(tile)), tile).reshape(array.shape)


def move_label(movement: int) -> str:
    """Account of a movement's traffic."""
    return f"movement {movement}"


def statistics_label(operator: str) -> str:
    """Account of an operator's statistics."""
    return f"statistics of {operator}"


def run_rank(program: Program, rank: int, transport: Transport, source: Source, xp: ModuleType) -> dict[str, Array]:
    """This rank's blocks of the program's outputs.  Raises `RankError`."""
    slots: dict[str, Array] = {}
    for instruction in program.ranks[rank]:
        try:
            _step(program, instruction, slots, transport, source, xp)
        except Exception as e:
            raise RankError(rank, program.place(instruction), f"{type(e).__name__}: {e}") from e
    return {tensor: slots[tensor] for tensor, _ in program.outputs}


def _step(
    program: Program, instruction: Instruction, slots: dict[str, Array], transport: Transport, source: Source, xp: ModuleType
) -> None:
    match instruction:
        case Load(slot=slot, tensor=tensor, box=box):
            slots[slot] = source(tensor, box)
        case Move(source=start, target=slot, movement=n):
            transport.account(move_label(n))
            slots[slot] = redistribute(xp, transport, program.movements[n].plan, slots[start])
        case Compute():
            slots[instruction.slot] = _compute(program.graph, program.hierarchy, instruction, slots, transport, xp)
        case Free(slot=slot):
            del slots[slot]
        case _:
            assert_never(instruction)


def _compute(
    graph: Graph, hierarchy: tuple[int, ...], step: Compute, slots: dict[str, Array], transport: Transport, xp: ModuleType
) -> Array:
    op = graph.operators[step.operator]
    box = {a.name: interval for a, interval in zip(op.axes, step.box, strict=True)}
    blocks = [Block(slots[slot], origin) for slot, origin in step.operands]
    if not step.statistics:
        return execute(xp, op, graph, box, blocks)
    transport.account(statistics_label(op.name))
    return execute(xp, op, graph, box, blocks, Statistics(xp, transport, step.statistics, hierarchy))
