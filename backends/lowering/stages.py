"""Programs of a pipelined step: what a stage does forward, backward and once per step, out of one
program per view.

The program of a whole micro-batch on a view (`lower`) is the same list of instructions on every rank; a stage runs
those of its operators, a movement where both its ends are the stage's:

    F   forward operators, once per micro-batch        then the tensor of the right cut is sent
    B   backward operators, once per micro-batch       then the gradient of the left cut is sent
    U   updates, and the way of finished gradients to them, once per step

Where updates read what another stage has, they run round by round: what comes, instructions, what goes
(`models.pipelines.exchange`).

Where reshardings run beside operators, the instructions of a phase run in the order in which its tasks begin as
planned, on one thread: an order of both streams at once.

What U reads of F and B adds up over the micro-batches as it is written, open sums included.  Values live until the
stage's last reader of them; blocks of inputs are cut out when they are first read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ...models.communication.choices import Choices
from ...models.layout.placement import Placement
from ...models.pipelines.exchange import Exchange, exchange
from ...models.pipelines.micro import micro_batch
from ...models.pipelines.views import submesh_sizes
from ...models.program.graph import Graph
from ...models.schedules.pipeline import Pipeline
from ...models.text import InputError
from ...proofs.pipelines.certificate import PipelineCertificate
from .program import Box, Compute, Free, Instruction, Load, Move, Program, Slots, lower

PHASES = ("F", "B", "U")


@dataclass(frozen=True)
class ExchangeEnd:
    """What goes between two stages once a step: `tensor`, which lies in `slot` on both sides; `stage`: the other one;
    `number`: of it among all of the step; `elements`: of the blocks of all ranks.
    """

    tensor: str
    slot: str
    stage: int
    number: int
    elements: int


@dataclass(frozen=True)
class Round:
    """Updates that need no more than what comes before them: positions of instructions."""

    arrives: tuple[ExchangeEnd, ...]
    steps: tuple[int, ...]
    leaves: tuple[ExchangeEnd, ...]


@dataclass(frozen=True, eq=False)
class StageProgram:
    """`program`: of a whole micro-batch on the view.  `steps[phase]`: positions of the instructions that this stage
    runs in it, the same on all ranks.  `loads[rank][slot]`: how a slot that nobody writes is filled.  `summed`: slots
    that add up over micro-batches for the updates; `kept`: slots of the last micro-batch that the updates read as they
    are.  `arrives`, `leaves`: per phase F and B the tensor received before it and sent behind it, None at the ends.
    `rounds`: the updates again, with what comes and goes; as many on every stage.
    """

    program: Program
    steps: dict[str, tuple[int, ...]]
    loads: tuple[dict[str, Load], ...]
    summed: tuple[str, ...]
    kept: tuple[str, ...]
    arrives: dict[str, str | None]
    leaves: dict[str, str | None]
    rounds: tuple[Round, ...]
    results: dict[str, tuple[str, ...]]
    """Results of the graph that the stage has: of F and B (of every micro-batch), of U (of the step)."""

    def used(self, rank: int, position: int) -> tuple[str, ...]:
        """Slots that an instruction reads."""
        return _reads(self.program.ranks[rank][position])

    def boxes(self, tensor: str) -> tuple[Box, ...]:
        """The blocks of a result."""
        return dict(self.program.outputs)[tensor]


@dataclass(frozen=True, eq=False)
class StagedProgram:
    """`order[v]`: (stage, "F" or "B", micro-batch) in the order in which the schedule starts them on view v, which has
    stages v, v + `views`, ..  `batched[t]`: the dimension of a tensor that micro-batches cut, for those that have one.
    `added`: results that are sums over the micro-batches.  `seconds[s][phase]`, `sends[s]`: of a task of stage s and of
    a send in front of it, as planned.
    """

    graph: Graph
    micro: int
    stages: tuple[StageProgram, ...]
    order: tuple[tuple[tuple[int, str, int], ...], ...]
    batched: dict[str, int]
    added: frozenset[str]
    seconds: tuple[dict[str, float], ...]
    sends: tuple[float, ...]

    @property
    def views(self) -> int:
        """Parts of the machine."""
        return len(self.order)

    def stages_of(self, view: int) -> range:
        """The stages of a view."""
        return range(view, len(self.stages), self.views)

    @property
    def hierarchy(self) -> tuple[int, ...]:
        """Of one view."""
        return self.stages[0].program.hierarchy

    @property
    def devices(self) -> int:
        """Of one view."""
        return prod(self.hierarchy)

    def box(self, tensor: str, box: Box, micro_batch: int) -> Box:
        """Where a block of a micro-batch lies in the whole tensor."""
        if tensor not in self.batched:
            return box
        k = self.batched[tensor]
        shift = micro_batch * (self.graph.tensor(tensor).shape[k] // self.micro)
        return tuple((lo + shift, hi + shift) if d == k else (lo, hi) for d, (lo, hi) in enumerate(box))


def staged_program(c: PipelineCertificate, stored: bool = False, library: str = "numpy") -> StagedProgram:
    """What all stages do, and in which order; `stored`, `library`: see `Program`.  Raises `InputError` where the batch
    cannot be cut.
    """
    graph = micro_batch(c.graph, c.micro)
    hierarchy = submesh_sizes(c.machine, c.views)
    pipe = c.schedule.subject
    if hierarchy is None or not isinstance(pipe, Pipeline):
        raise InputError("the stages are no equal parts of the machine, or its schedule is none of a pipeline")
    starts = c.schedule.starts.reshape(3, len(c.stages), c.micro)
    times = np.array(pipe.times, dtype=np.int64).T[:, :, None]
    ends = starts + times
    order = []
    for view in range(c.views):
        mine = range(view, len(c.stages), c.views)
        tasks = [
            (int(starts[k, s, i]), int(ends[k, s, i]), k, (1 - 2 * k) * s, i)
            for s in mine for k in (0, 1) for i in range(c.micro)
        ]  # fmt: skip
        order.append(tuple((abs(s), "FB"[k], i) for _, _, k, s, i in sorted(tasks)))
    batched = {}
    for t in c.graph.tensors:
        small = graph.tensor(t.name).shape
        if different := [k for k, n in enumerate(t.shape) if n != small[k]]:
            batched[t.name] = different[0]
    once = exchange(graph, c.division, tuple(stage.end for stage in c.stages))
    stages = tuple(_stage(c, s, graph, hierarchy, (stored, library), once) for s in range(len(c.stages)))
    unit = c.quantum / 1e12
    seconds = tuple({phase: t * unit for phase, t in zip("FB", stage, strict=False)} for stage in pipe.times)
    sends = 0.0, *(pipe.lag(s) * unit for s in range(1, len(c.stages)))
    return StagedProgram(c.graph, c.micro, stages, tuple(order), batched, _added(c.graph, batched), seconds, sends)


def _added(graph: Graph, batched: dict[str, int]) -> frozenset[str]:
    """Results without a batch that depend on one."""
    touched = set(batched)
    for op in graph.operators:
        if any(a.tensor in touched for a in op.inputs):
            touched.add(op.output.tensor)
    return frozenset(t for t in graph.results if t in touched and t not in batched)


def _stage(
    c: PipelineCertificate, s: int, graph: Graph, hierarchy: tuple[int, ...], how: tuple[bool, str], once: Exchange
) -> StageProgram:
    mine = c.stages[s].choices
    program = lower(graph, hierarchy, _completed(c, s), c.machine)
    program = Program(graph, hierarchy, program.movements, program.ranks, program.outputs, *how)
    names, copies = {n for n, _ in mine.operators}, {n for n, _ in mine.copies}
    phase = dict(zip((op.name for op in graph.operators), c.division.phase, strict=True))
    steps: dict[str, list[int]] = {p: [] for p in PHASES}
    for position, instruction in enumerate(program.ranks[0]):
        where = _phase(program, instruction, names, copies, phase)
        if where:
            steps[where].append(position)
    first = program.ranks[0]
    if c.overlap is not None:
        steps = {p: _begun(program, found, c.overlap.of(s, p)) for p, found in steps.items()}
    rounds = _rounds(program, s, steps["U"], names, once)
    steps["U"] = [p for found in rounds for p in found.steps]
    early = [p for x in "FB" for p in steps[x]]
    written: dict[str, str] = {}
    for p in early:
        match first[p]:
            case Compute(slot=slot, operator=n):
                written[slot] = graph.operators[n].name
            case Move(target=slot, movement=n):
                written[slot] = program.movements[n].writer or ""
            case _:
                pass
    late: list[str] = []
    own: set[str] = set()
    for p in steps["U"]:
        late += [slot for slot in _reads(first[p]) if slot not in own]
        own.add(_writes(first[p]))
    unit = dict(zip((op.name for op in graph.operators), c.division.unit, strict=True))
    read = [slot for slot in dict.fromkeys(late) if slot in written]
    summed = tuple(slot for slot in read if unit.get(written[slot], -1) >= 0)
    cuts, stage = c.division.cuts, c.stages[s]
    left = cuts[stage.first - 1] if s else (None, None)
    right = cuts[stage.end - 1] if s + 1 < len(c.stages) else (None, None)
    results: dict[str, list[str]] = {p: [] for p in PHASES}
    for name in graph.results:
        at = graph.writer().get(name)
        if at is not None and (writer := graph.operators[at]).name in names:
            shared = unit[writer.name] == -1 and s > 0  # every stage computes it, the first one gives it
            results[phase[writer.name]] += [] if shared else [name]
    return StageProgram(
        program,
        {p: tuple(found) for p, found in steps.items()},
        tuple({x.slot: x for x in rank if isinstance(x, Load)} for rank in program.ranks),
        summed,
        tuple(slot for slot in read if slot not in summed),
        {"F": left[0], "B": right[1]},
        {"F": right[0], "B": left[1]},
        rounds,
        {p: tuple(found) for p, found in results.items()},
    )


def _rounds(program: Program, s: int, positions: Sequence[int], names: set[str], once: Exchange) -> tuple[Round, ...]:
    """The updates of stage s in rounds, with what brings messages into the layout of their readers behind each."""
    graph, slots, writer = program.graph, Slots(program.graph), program.graph.writer()
    at = {op.name: i for i, op in enumerate(graph.operators)}
    found: list[tuple[list[ExchangeEnd], list[int], list[ExchangeEnd]]] = [([], [], []) for _ in range(once.rounds)]
    for p in positions:
        match program.ranks[0][p]:
            case Compute(operator=n):
                found[once.depth.get(n, 0)][1].append(p)
            case Move(movement=n):
                m = program.movements[n]
                found[once.depth.get(at[m.reader or m.writer or ""], 0)][1].append(p)
            case _:
                pass
    for number, x in enumerate(once.messages):
        slot, moved = x.tensor, None
        if x.reader is not None:
            op = graph.operators[x.reader]
            j = [a.tensor for a in op.inputs].index(x.tensor)
            slot, moved = slots.operand[op.name, j], (graph.operators[writer[x.tensor]].name, op.name)
        elements = sum(prod(hi - lo for lo, hi in box) for box in _boxes(program, x.tensor, slot))
        if x.sender == s:
            for p, instruction in enumerate(program.ranks[0]) if moved is not None else ():
                if isinstance(instruction, Move) and instruction.target == slot:
                    found[x.depth][1].append(p)
            found[x.depth][2].append(ExchangeEnd(x.tensor, slot, x.receiver, number, elements))
        if x.receiver == s:
            readers = [i for i, _ in graph.readers()[x.tensor] if graph.operators[i].name in names]
            before = min((once.depth[i] for i in readers if i in once.depth), default=x.depth + 1)
            found[before][0].append(ExchangeEnd(x.tensor, slot, x.sender, number, elements))
    return tuple(Round(tuple(a), tuple(p), tuple(b)) for a, p, b in found)


def _boxes(program: Program, tensor: str, slot: str) -> list[Box]:
    """Where the blocks lie that all ranks have in a slot that is moved to."""
    for instruction in program.ranks[0]:
        if isinstance(instruction, Move) and instruction.target == slot:
            layout = program.movements[instruction.movement].plan.target
            return [layout.box(d) for d in range(len(program.ranks))]
    raise InputError(f"{tensor!r} is sent to another stage and nothing brings it there")


def _begun(program: Program, positions: list[int], order: tuple[int, ...]) -> list[int]:
    """Instructions of a phase as its tasks begin: operators in the graph's order are the first tasks, then come
    movements in theirs.
    """
    number = {}
    for position in positions:
        match program.ranks[0][position]:
            case Compute(operator=n):
                number[0, n] = position
            case Move(movement=n):
                number[1, n] = position
            case _:
                pass
    tasks = [number[key] for key in sorted(number)]
    if order and sorted(order) != list(range(len(tasks))):
        raise InputError("an order of this file does not list the tasks of its phase")
    return [tasks[t] for t in order] if order else positions


def _completed(c: PipelineCertificate, s: int) -> Choices:
    """The stage's choices, and any others for what it does not run."""
    operators: dict[str, Placement] = {}
    copies: dict[str, Placement] = {}
    for k in (s, *(k for k in range(len(c.stages)) if k != s)):
        operators = {**dict(c.stages[k].choices.operators), **operators}
        copies = {**dict(c.stages[k].choices.copies), **copies}
    return Choices(
        tuple((op.name, operators[op.name]) for op in c.graph.operators if op.name in operators),
        tuple((t.name, copies[t.name]) for t in c.graph.tensors if t.name in copies),
    )


def _phase(program: Program, instruction: Instruction, names: set[str], copies: set[str], phase: dict[str, str]) -> str:
    """The phase of the stage in which it runs an instruction; empty if it does not."""
    match instruction:
        case Compute(operator=n):
            name = program.graph.operators[n].name
            return phase[name] if name in names else ""
        case Move(movement=n):
            m = program.movements[n]
            ends = [name for name in (m.writer, m.reader) if name is not None]
            following = {value: name for name, value in program.graph.state}
            resting = following.get(m.tensor, m.tensor)
            if not set(ends) <= names or (len(ends) < 2 and resting not in copies):
                return ""
            if "U" in {phase[name] for name in ends} or _finished(program.graph, m.tensor, phase):
                return "U"
            return phase[ends[-1]]
        case _:
            return ""


def _finished(graph: Graph, tensor: str, phase: dict[str, str]) -> bool:
    """A gradient that updates alone read: it goes to them once a step."""
    at = graph.writer().get(tensor)
    readers = {phase[graph.operators[i].name] for i, _ in graph.readers()[tensor]}
    return at is not None and phase[graph.operators[at].name] == "B" and readers == {"U"}


def _reads(instruction: Instruction) -> tuple[str, ...]:
    match instruction:
        case Compute(operands=operands):
            return tuple(slot for slot, _ in operands)
        case Move(source=slot):
            return (slot,)
        case _:
            return ()


def _writes(instruction: Instruction) -> str:
    match instruction:
        case Compute(slot=slot) | Move(target=slot) | Load(slot=slot) | Free(slot=slot):
            return slot
        case _:
            return ""


def last_uses(stage: StageProgram, pinned: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """Per position of F and B the slots that nobody of the stage reads later; `pinned` stay."""
    last: dict[str, int] = {}
    for p in (p for x in "FB" for p in stage.steps[x]):
        for slot in (*stage.used(0, p), _writes(stage.program.ranks[0][p])):
            last[slot] = p
    out: dict[int, list[str]] = {}
    for slot, p in last.items():
        if slot not in {*pinned, *stage.leaves.values()}:
            out.setdefault(p, []).append(slot)
    return {p: tuple(slots) for p, slots in out.items()}
