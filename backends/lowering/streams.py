"""Programs of an overlapped plan: which instructions every task of the schedule runs, and in which
order they begin.

    operator's task        the operator, what it cuts out of blocks that are there, and what moves in no planned time
    resharding's task  one movement

Tasks of a stream begin in the order of their planned starts; a task waits for what it waits for in the plan.  As every
task comes behind what it waits for, and every stream has the same order on all ranks, nobody waits for ever.  A value
is forgotten when the last instruction that reads it has run.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from ...models.schedules.problem import ScheduleProblem
from ...models.text import InputError
from ...proofs.overlap.certificate import OverlapCertificate
from .program import Compute, Free, Instruction, Load, Move, Program, lower

COMPUTE, LINKS = 0, 1


@dataclass(frozen=True)
class StreamTask:
    """`positions`: of the instructions, the same on all ranks.  `waits`: tasks that end before.  `start`, `time`: as
    planned, in units of the schedule.
    """

    name: str
    stream: int
    positions: tuple[int, ...]
    waits: tuple[int, ...]
    start: int
    time: int


@dataclass(frozen=True, eq=False)
class StreamsProgram:
    """`first`: positions that run before everything.  `order[s]`: tasks of stream s as they begin.  `unit`: seconds of
    a unit of the schedule.  `readers[slot]`: instructions that read it; without a number a value stays.
    """

    program: Program
    first: tuple[int, ...]
    tasks: tuple[StreamTask, ...]
    order: tuple[tuple[int, ...], tuple[int, ...]]
    unit: float
    readers: dict[str, int]

    @property
    def makespan(self) -> float:
        """Seconds, as planned."""
        return max((t.start + t.time for t in self.tasks), default=0) * self.unit


def streams_program(c: OverlapCertificate, scale: int, stored: bool = False, library: str = "numpy") -> StreamsProgram:
    """What the ranks of an overlapped plan do.  `scale`: units of its problem per second.  Raises `InputError` where
    the schedule is none of the plan's.
    """
    if c.schedule is None:
        raise InputError("the file says that nothing fits its memory limit: there is nothing to run")
    subject, starts = c.schedule.subject, c.schedule.starts
    if not isinstance(subject, ScheduleProblem) or len(subject.tasks) < len(c.graph.operators):
        raise InputError("the schedule of this file is none of an overlapped plan")
    program = replace(lower(c.graph, c.machine.hierarchy, c.choices, c.machine), stored=stored, library=library)
    moved = _communication_of_tasks(program, subject)
    first, positions = _positions(program, len(subject.tasks), moved)
    waits: list[list[int]] = [[] for _ in subject.tasks]
    for p in subject.precedences:
        waits[p.after].append(p.before)
    tasks = tuple(  # copies to hosts are among operators: ranks that are on a host copy nothing
        StreamTask(
            t.name, LINKS if t.streams == (LINKS,) else COMPUTE, positions[k], tuple(waits[k]), int(starts[k]), t.time
        )
        for k, t in enumerate(subject.tasks)
    )
    return StreamsProgram(program, first, tasks, _ordered(tasks), c.quantum / scale, _readers(program))


def in_order(program: StreamsProgram, starts: tuple[int, ...]) -> StreamsProgram:
    """The same tasks begun in another order: that of these starts, one per task."""
    tasks = tuple(replace(t, start=s) for t, s in zip(program.tasks, starts, strict=True))
    return replace(program, tasks=tasks, order=_ordered(tasks))


def _communication_of_tasks(program: Program, subject: ScheduleProblem) -> dict[int, int]:
    """Number of a movement -> its task: tasks of one name are the movements of that name, in order."""
    named: dict[str, deque[int]] = {}
    for k, t in enumerate(subject.tasks):
        if t.streams == (LINKS,):
            named.setdefault(t.name, deque()).append(k)
    out = {}
    for n, m in enumerate(program.movements):
        left = named.get(f"{m.tensor} to {m.reader or 'its copy'}")
        if left and m.plan.steps:
            out[n] = left.popleft()
    if any(named.values()):
        raise InputError("the schedule of this file moves what the plan does not move")
    return out


def _positions(program: Program, count: int, moved: dict[int, int]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """(positions before everything, those of every task): what stands before an operator and is for it is its own."""
    first: list[int] = []
    mine: list[list[int]] = [[] for _ in range(count)]
    coming: list[int] = []  # for the operator that comes next
    last = -1
    operands = {slot for i in program.ranks[0] if isinstance(i, Compute) for slot, _ in i.operands}
    for position, step in enumerate(program.ranks[0]):
        match step:
            case Load(slot=slot):
                (coming if slot in operands and last >= 0 else first).append(position)
            case Move(movement=n):
                if n in moved:
                    mine[moved[n]].append(position)
                elif program.movements[n].reader is not None:
                    coming.append(position)
                else:
                    mine[last].append(position)
            case Compute(operator=n):
                mine[n] += [*coming, position]
                coming, last = [], n
            case _:
                pass
    return tuple(first), [tuple(p) for p in mine]


def _ordered(tasks: tuple[StreamTask, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tasks of both streams, by start and end; of those that begin together, what waits comes behind."""
    behind: list[list[int]] = [[] for _ in tasks]
    missing = [0] * len(tasks)
    for k, t in enumerate(tasks):
        for b in t.waits:
            behind[b].append(k)
            missing[k] += 1
    heap: list[tuple[int, int, int]] = []
    for k, t in enumerate(tasks):
        if not missing[k]:
            heappush(heap, (t.start, t.start + t.time, k))
    order: tuple[list[int], list[int]] = ([], [])
    while heap:
        _, _, k = heappop(heap)
        order[tasks[k].stream].append(k)
        for b in behind[k]:
            missing[b] -= 1
            if not missing[b]:
                heappush(heap, (tasks[b].start, tasks[b].start + tasks[b].time, b))
    if any(missing):
        raise InputError("tasks of this schedule wait for each other in a circle")
    return tuple(order[0]), tuple(order[1])


def _readers(program: Program) -> dict[str, int]:
    kept = {tensor for tensor, _ in program.outputs}
    count: dict[str, int] = {}
    for step in program.ranks[0]:
        for slot in slots_read(step):
            count[slot] = count.get(slot, 0) + 1
    return {slot: n for slot, n in count.items() if slot not in kept}


def slots_read(step: Instruction) -> tuple[str, ...]:
    """Slots that an instruction of such a program reads, each once."""
    match step:
        case Compute(operands=operands):
            return tuple(dict.fromkeys(slot for slot, _ in operands))
        case Move(source=slot):
            return (slot,)
        case Load() | Free():
            return ()
        case _:
            raise InputError("an instruction that no overlapped plan has")
