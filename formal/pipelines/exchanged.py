"""What stages take and hold for what they send each other once a step (`models.pipelines.exchange`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from ...models.communication.choices import copy_layout, input_layout
from ...models.pipelines.exchange import Exchange, Letter
from ...models.pipelines.pieces import Pieces
from ...models.pipelines.views import send_across
from ...models.pipelines.work import PER_SECOND
from .bounded import Bounded
from .phases import StagePlan, waits


@dataclass(frozen=True)
class Exchanged:
    """`updates[s]`: picoseconds of every round of stage s; `blocks`: letters with the bytes of a device's block."""

    exchange: Exchange
    updates: tuple[tuple[int, ...], ...]
    blocks: tuple[tuple[Letter, int], ...]

    def held(self, stage: int) -> int:
        """Bytes on a device of all that a stage sends or is sent."""
        return sum(size for letter, size in self.blocks if stage in (letter.sender, letter.receiver))


def exchanged(case: Bounded, stages: Sequence[StagePlan]) -> Exchanged:
    """What the rounds of these stages take, and what is sent."""
    pieces, found = case.pieces, case.exchange(tuple(s.end for s in stages))
    scale = pieces.planning.problem.scale
    rows = []
    for s, stage in enumerate(stages):
        units = [stage.seconds.update] + [0] * (found.rounds - 1)
        if found.letters and waits(pieces, stage.first, stage.end):
            units = _by_round(pieces, stage, found)
        for letter in found.letters:
            if letter.sender == s and letter.reader is not None:
                there = stages[letter.receiver].choices
                units[letter.depth] += _brought(pieces, letter.tensor, letter.reader, stage.choices, there)
        rows.append(tuple(-(-PER_SECOND * t // scale) for t in units))
    blocks = tuple((letter, _block(pieces, letter, stages)) for letter in found.letters)
    return Exchanged(found, tuple(rows), blocks)


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


def _brought(pieces: Pieces, tensor: str, reader: int, x: Mapping[int, int], there: Mapping[int, int]) -> int:
    """What a stage with choices x takes to bring a tensor into the layout in which `reader` of another stage, with
    choices `there`, reads it.
    """
    at, operators = pieces.planning.operators, pieces.graph.operators
    ends = {at[operators[i].name] for i in (pieces.writer[tensor], reader)}
    found = [k for k in pieces.edges_between(ends) if pieces.planning.routes[k].tensor == tensor]
    return sum(pieces.moving(k, x, there) for k in found)


def _block(pieces: Pieces, letter: Letter, stages: Sequence[StagePlan]) -> int:
    """Bytes of the largest block of a letter."""
    planning, graph = pieces.planning, pieces.graph
    x, hierarchy = stages[letter.receiver].choices, planning.machine.hierarchy
    if letter.reader is None:
        resting = {value: name for name, value in graph.state}.get(letter.tensor, letter.tensor)
        v = planning.copies[resting]
        layout = copy_layout(resting, graph, planning.decisions[v].placement(x[v]), hierarchy)
    else:
        op = graph.operators[letter.reader]
        v, position = planning.operators[op.name], [a.tensor for a in op.inputs].index(letter.tensor)
        layout = input_layout(op, position, graph, planning.decisions[v].placement(x[v]), hierarchy)
    return int(layout.volumes().max()) * graph.tensor(letter.tensor).element_bytes


def last_ends(case: Bounded, found: Exchanged, ends: Sequence[int], views: int) -> list[int]:
    """Picoseconds until every view has done its last round; `ends`: of its last backward."""
    messages: dict[tuple[int, int, int], int] = {}
    for letter, size in found.blocks:
        way = letter.depth, letter.sender % views, letter.receiver % views
        messages[way] = messages.get(way, 0) + size
    rounds = [list(ends)]
    for n in range(found.exchange.rounds):
        now = list(rounds[-1])
        for (depth, one, other), size in messages.items():
            if depth < n:
                size *= case.machine.devices
                takes = ceil(PER_SECOND * send_across(case.job.machine, views, size, one, other))
                now[other] = max(now[other], rounds[depth + 1][one] + takes)
        rounds.append([t + sum(row[n] for row in found.updates[view::views]) for view, t in enumerate(now)])
    return rounds[-1]
