"""What stages send each other once a step, by name, and when every view has done its last updates.

A tensor that updates alone read and no micro-batch has for itself goes from the stage that writes it to every other one
that reads it, and the next value of a parameter to every other stage that reads the parameter.  It lies there as in the
stage it comes from: in the layout of its copy, which is the same on both sides, or as its one reader wants it, where
the stage it comes from reshards it.

    round of an update  =  the most of 0, the round of what it reads in its own stage, 1 + the round of what it reads
                           of another one; a gradient is of round 0
    round n of a view   =  its updates of round n, with their movements, after the round n - 1 and all messages to it
                           of rounds before n; a message has all that a view sends another behind one round

Memory: all that a stage sends or is sent is on its devices the whole step beside everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from ...models.machine.machine import Machine
from ...proofs.container.effort import OBJECT
from ...proofs.pipelines.certificate import PipelineCertificate
from .bound import PICO, differ, send, send_over
from .leaves import Units

Chosen = Sequence[Mapping[int, int]]


@dataclass(frozen=True)
class Sent:
    """`tensor` from stage to stage behind a round; `reader`: who wants it so, where it has no copy."""

    tensor: str
    source: int
    target: int
    behind: int
    reader: str | None


class Rounds:
    """What the stages of a certificate send each other, and what their rounds take."""

    def __init__(self, c: PipelineCertificate, units: Units) -> None:
        self.c, self.units = c, units
        sizes = 16 * len(c.stages) * len(c.graph.operators) + 4 * len(units.entries.moves)
        units.entries.budget.charge(OBJECT * sizes, "what goes once a step")
        home = {u: s for s, stage in enumerate(c.stages) for u in range(stage.first, stage.end)}
        self.stage = {name: home.get(u) for name, u in units.unit.items()}
        self.round: dict[str, int] = {}
        for op in c.graph.operators:
            if units.phase[op.name] == "U":
                self.round[op.name] = max([0, *(self._after(a.tensor, op.name) for a in op.inputs)])
        self.sent = [x for t in c.graph.tensors for x in self._sent(t.name)]
        self.reshards: dict[tuple[str, str], list[int]] = {}
        for number, move in enumerate(units.entries.moves):
            if move.writer is not None and move.reader is not None:
                self.reshards.setdefault((move.tensor, move.reader), []).append(number)
        self.count = 1 + max([*self.round.values(), *(x.behind + 1 for x in self.sent)], default=0)

    def _after(self, tensor: str, reader: str) -> int:
        """The round in which an update can read a tensor."""
        w = self.units.writer.get(tensor)
        if w is None or self.stage[w] is None:
            return 0
        return self.round.get(w, 0) + (self.stage[w] != self.stage[reader])

    def _sent(self, tensor: str) -> list[Sent]:
        units, w = self.units, self.units.writer.get(tensor)
        if w is None or (source := self.stage[w]) is None or units.phase[w] == "F":
            return []
        behind, found = self.round.get(w, 0), dict[int, Sent]()
        readers = [name for name, _ in units.used[tensor]]
        if all(units.phase[name] == "U" for name in readers):
            for name in readers:
                if (target := self.stage[name]) is not None and target != source:
                    alone = None if self.copy(tensor) in units.planning.copies else name
                    found.setdefault(target, Sent(tensor, source, target, behind, alone))
        for name, _ in units.used[units.next_of[tensor]] if tensor in units.next_of else ():
            if (target := self.stage[name]) is not None and target != source:
                found.setdefault(target, Sent(tensor, source, target, behind, None))
        return list(found.values())

    def copy(self, tensor: str) -> str:
        """In whose copy a tensor rests."""
        return self.units.next_of.get(tensor, tensor)

    def wrong_layouts(self, chosen: Chosen) -> str:
        """Which of them has another layout where it goes than where it comes from; empty if none."""
        copies = self.units.planning.copies
        for x in self.sent:
            v = copies.get(self.copy(x.tensor))
            if x.reader is None and (v is None or chosen[x.source].get(v) != chosen[x.target].get(v)):
                return f"{x.tensor!r} has another layout on stage {x.source} than on stage {x.target}"
        return ""

    def late(self, stage: int) -> bool:
        """Whether a stage has updates of a later round than the first."""
        return any(self.round.get(name) for name, s in self.stage.items() if s == stage)

    def takes(self, chosen: Chosen, s: int, update: int) -> list[int]:
        """Units of the problem of every round of stage s.  `update`: of all of them, where there is only the first."""
        units, stage, problem = self.units, self.c.stages[s], self.units.planning.problem
        total = [update] + [0] * (self.count - 1)
        units.entries.budget.charge(OBJECT * 8 * (len(self.c.graph.operators) + len(units.entries.moves)), "rounds")
        if self.late(s):
            names, copies = units.decisions_of(stage.first, stage.end)
            total[0] = 0
            for name in names & self.round.keys():
                v = units.planning.operators[name]
                total[self.round[name]] += int(problem.vertices[v].cost[chosen[s][v]])
            for number, move in enumerate(units.entries.moves):
                ends = {name for name in (move.writer, move.reader) if name is not None}
                here = ends <= names and (len(ends) == 2 or self.copy(move.tensor) in copies)
                if here and units.updating[number]:
                    n = self.round.get(move.reader or move.writer or "", 0)
                    total[n] += self._time(number, chosen[s], chosen[s])
        for x in self.sent:
            if x.source == s and x.reader is not None:
                for number in self.reshards.get((x.tensor, x.reader), ()):
                    total[x.behind] += self._time(number, chosen[s], chosen[x.target])
        return total

    def _time(self, number: int, x: Mapping[int, int], there: Mapping[int, int]) -> int:
        e = self.units.planning.problem.edges[number]
        row = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
        column = there[e.v] if e.cols is None else int(e.cols[there[e.v]])
        return int(self.units.planning.problem.tables[e.table][row, column])

    def block(self, x: Sent, chosen: Chosen) -> int:
        """Bytes of the largest block of a device."""
        units, there = self.units, chosen[x.target]
        size = units.graph.tensor(x.tensor).element_bytes
        if x.reader is None:
            resting = self.copy(x.tensor)
            return units.entries.layout_at(None, None, resting, there[units.planning.copies[resting]]).largest * size
        position = next(p for name, p in units.used[x.tensor] if name == x.reader)
        v = units.planning.operators[x.reader]
        return units.entries.layout_at(x.reader, position, x.tensor, there[v]).largest * size

    def buffer_bytes(self, s: int, chosen: Chosen) -> int:
        """Bytes on a device of what a stage sends or is sent."""
        return sum(self.block(x, chosen) for x in self.sent if s in (x.source, x.target))

    def ends(self, chosen: Chosen, last: Sequence[int], updates: Sequence[Sequence[int]]) -> list[int]:
        """Picoseconds at which views have done everything: `last` of their last backward, `updates` of the rounds of
        every stage.
        """
        c, devices = self.c, self.units.planning.machine.devices
        now, history = list(last), list[list[int]]()
        sizes: dict[tuple[int, int, int], int] = {}
        for x in self.sent:
            way = x.behind, x.source % c.views, x.target % c.views
            sizes[way] = sizes.get(way, 0) + self.block(x, chosen) * devices
        for n in range(self.count):
            begin = list(now)
            for (behind, source, target), size in sizes.items():
                if behind < n:
                    seconds = self._message(c.machine, size, source, target)
                    begin[target] = max(begin[target], history[behind][source] + ceil(seconds * PICO))
            now = [t + sum(rows[n] for rows in updates[v :: c.views]) for v, t in enumerate(begin)]
            history.append(now)
        return now

    def _message(self, machine: Machine, size: int, source: int, target: int) -> Fraction:
        if source == target:
            return Fraction(0)
        if not self.c.ordered:
            return send(machine, self.c.views, size, True)
        return send_over(machine, self.c.views, size, differ(machine, self.c.views, source, target))
