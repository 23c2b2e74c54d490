"""Lists the collective programs that the reductions of a plan take, known as its collective algorithms.

row   reductions of tensors and of operators' statistics that take the same collectives among as many members of
      every level: how many they are, and the bytes that a device holds before the smallest and the largest
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...models.communication.choices import communications, single
from ...models.communication.reduction_programs import Starts, chooser_of, chosen_program, program_words
from ...models.communication.resharding import Reduction
from ...models.cost.cost import STATISTIC_BYTES, shared_statistics
from ...models.cost.forms import operator_form
from ...models.cost.selection import Planning
from ...models.machine.machine import Collectives
from ...models.text import bytes_text


@dataclass(frozen=True)
class ProgramRow:
    """`program`: its collectives in words; `members`: of a group, per level; bytes of the smallest and the largest."""

    program: str
    members: tuple[int, ...]
    count: int
    least: int
    most: int

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "program": self.program,
            "members": list(self.members),
            "count": self.count,
            "bytes": [self.least, self.most],
        }


def program_rows(planning: Planning, x: tuple[int, ...]) -> tuple[ProgramRow, ...]:
    """The rows of a plan whose machine lets reductions choose, the most frequent first; none on other machines."""
    if planning.machine.collectives is Collectives.HIERARCHICAL:
        return ()
    found: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for key, size in (*_of_tensors(planning, x), *_of_statistics(planning, x)):
        found.setdefault(key, []).append(size)
    rows = [ProgramRow(*key, len(sizes), min(sizes), max(sizes)) for key, sizes in found.items()]
    return tuple(sorted(rows, key=lambda r: (-r.count, r.program, r.members)))


def program_lines(planning: Planning, rows: tuple[ProgramRow, ...]) -> list[str]:
    """The same as text."""
    out = []
    for r in rows:
        size = bytes_text(r.least) + ("" if r.least == r.most else f" to {bytes_text(r.most)}")
        group = "x".join(map(str, r.members))
        out.append(f"  {r.count} of {size} in groups of {group}: {r.program}")
    return [f"reductions, {planning.machine.collectives.value} collectives:", *out] if out else []


_Used = Iterator[tuple[tuple[str, tuple[int, ...]], int]]


def _of_tensors(planning: Planning, x: tuple[int, ...]) -> _Used:
    graph, machine = planning.graph, planning.machine
    for m in communications(graph, machine.hierarchy, planning.choices(x), machine):
        if not m.plan.source.open:
            continue
        step = next(s for s in m.plan.steps if isinstance(s, Reduction))
        opened, kept = step.members(len(machine.levels))
        tiles = step.padded * len({step.tiles[d] for d in step.groups(machine.hierarchy)[0]})
        yield _key(planning, step.starts, opened, kept), tiles * graph.tensor(m.tensor).element_bytes


def _of_statistics(planning: Planning, x: tuple[int, ...]) -> _Used:
    machine, chooser = planning.machine, chooser_of(planning.machine, STATISTIC_BYTES)
    for v in planning.operators.values():
        decision = planning.decisions[v]
        op = planning.graph.operator(decision.name)
        form = operator_form(op, planning.graph, decision.axes)
        if not form.spec.statistics:
            continue
        part, shared = shared_statistics(form.over, single(form.axes, decision.placement(x[v]), machine.hierarchy))
        members = tuple(int(n) for n in shared[0])
        if max(members) > 1:
            starts = chosen_program(chooser, machine.hierarchy, members, members, int(part[0]))
            size = int(part[0] * shared[0].prod()) * STATISTIC_BYTES
            for _ in form.spec.statistics:
                yield _key(planning, starts, members, members), size


def _key(
    planning: Planning, starts: Starts, opened: tuple[int, ...], kept: tuple[int, ...]
) -> tuple[str, tuple[int, ...]]:
    return program_words(starts, [level.name for level in planning.machine.levels], opened, kept), opened
