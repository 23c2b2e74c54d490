"""What stages take and hold for what they send each other once a step (`models.pipelines.exchange`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from ....models.communication.choices import copy_layout, input_layout
from ....models.pipelines.exchange import Exchange, Message
from ....models.pipelines.pieces import Pieces
from ....models.pipelines.views import send_across
from ....models.pipelines.work import PER_SECOND
from .bounded import Bounded
from .phases import StagePlan, waits


@dataclass(frozen=True)
class ExchangeCosts:
    """`updates[s]`: picoseconds of every round of stage s; `blocks`: messages with the bytes of a device's block."""

    exchange: Exchange
    updates: tuple[tuple[int, ...], ...]
    blocks: tuple[tuple[Message, int], ...]

    def buffer_bytes(self, stage: int) -> int:
        """Bytes on a device of all that a stage sends or is sent."""
        return sum(size for message, size in self.blocks if stage in (message.sender, message.receiver))


def exchange_costs(case: Bounded, stages: Sequence[StagePlan]) -> ExchangeCosts:
    """What the rounds of these stages take, and what is sent."""
    pieces, found = case.pieces, case.exchange(tuple(s.end for s in stages))
    scale = pieces.planning.problem.scale
    rows = []
    for s, stage in enumerate(stages):
        units = [stage.seconds.update] + [0] * (found.rounds - 1)
        if found.messages and waits(pieces, stage.first, stage.end):
            units = _by_round(pieces, stage, found)
        for message in found.messages:
            if message.sender == s and message.reader is not None:
                there = stages[message.receiver].choices
                units[message.depth] += _resharding(pieces, message.tensor, message.reader, stage.choices, there)
        rows.append(tuple(-(-PER_SECOND * t // scale) for t in units))
    blocks = tuple((message, _block(pieces, message, stages)) for message in found.messages)
    return ExchangeCosts(found, tuple(rows), blocks)


def _by_round(pieces: Pieces, stage: StagePlan, found: Exchange) -> list[int]:
    """What the updates of a stage take, round by round, in units of the problem."""
    whole, total, x = pieces.planning.problem, [0] * found.rounds, stage.choices
    inside = set(pieces.stage_vertices(stage.first, stage.end))
    for i in pieces.stage_operators(stage.first, stage.end):
        if i in found.depth:
            v = pieces.planning.operators[pieces.graph.operators[i].name]
            total[found.depth[i]] += int(whole.vertices[v].cost[x[v]])
    for k in pieces.edges_between(inside):
        if pieces.once[k]:
            a, b = pieces.ends(k)
            at = a if b is None else b
            total[0 if at is None else found.depth.get(at, 0)] += pieces.moving(k, x, x)
    return total


def _resharding(pieces: Pieces, tensor: str, reader: int, x: Mapping[int, int], there: Mapping[int, int]) -> int:
    """What a stage with choices x takes to bring a tensor into the layout in which `reader` of another stage, with
    choices `there`, reads it.
    """
    at, operators = pieces.planning.operators, pieces.graph.operators
    ends = {at[operators[i].name] for i in (pieces.writer[tensor], reader)}
    found = [k for k in pieces.edges_between(ends) if pieces.planning.routes[k].tensor == tensor]
    return sum(pieces.moving(k, x, there) for k in found)


def _block(pieces: Pieces, message: Message, stages: Sequence[StagePlan]) -> int:
    """Bytes of the largest block of a message."""
    planning, graph = pieces.planning, pieces.graph
    x, hierarchy = stages[message.receiver].choices, planning.machine.hierarchy
    if message.reader is None:
        resting = {value: name for name, value in graph.state}.get(message.tensor, message.tensor)
        v = planning.copies[resting]
        layout = copy_layout(resting, graph, planning.decisions[v].placement(x[v]), hierarchy)
    else:
        op = graph.operators[message.reader]
        v, position = planning.operators[op.name], [a.tensor for a in op.inputs].index(message.tensor)
        layout = input_layout(op, position, graph, planning.decisions[v].placement(x[v]), hierarchy)
    return int(layout.volumes().max()) * graph.tensor(message.tensor).element_bytes


def last_ends(case: Bounded, found: ExchangeCosts, ends: Sequence[int], views: int) -> list[int]:
    """Picoseconds until every view has done its last round; `ends`: of its last backward."""
    together: dict[tuple[int, int, int], int] = {}
    for message, size in found.blocks:
        way = message.depth, message.sender % views, message.receiver % views
        together[way] = together.get(way, 0) + size
    rounds = [list(ends)]
    for n in range(found.exchange.rounds):
        now = list(rounds[-1])
        for (depth, one, other), size in together.items():
            if depth < n:
                size *= case.machine.devices
                takes = ceil(PER_SECOND * send_across(case.job.machine, views, size, one, other))
                now[other] = max(now[other], rounds[depth + 1][one] + takes)
        rounds.append([t + sum(row[n] for row in found.updates[view::views]) for view, t in enumerate(now)])
    return rounds[-1]
