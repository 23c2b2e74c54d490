"""Programs: what every rank does, in order.

    Load     cut a block out of an input or parameter (program boundary; nothing moves between ranks)
    Move     take a value from one layout to another: the steps of `models.communication.resharding`, shared by all
             ranks
    Compute  run an operator on the rank's iteration box; splits of `over` axes bring one Reduction per statistic
    Free     forget a value
    Fused    several Computes as one loop (`backends.lowering.fusion`)
    Start, Finish   the two ends of a Move that other instructions run beside (`backends.lowering.overlap`)

Values live in slots, see `Slots`.  A value is moved to a reader just before the reader runs, so a rank
holds what `models.cost.memory` counts.  Every rank executes the same list with its own boxes, hence collectives match
in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from ...models.communication.choices import (
    Choices,
    Communication,
    communications,
    copy_layout,
    input_layout,
    iteration_box,
    resting_places,
)
from ...models.communication.reduction_programs import chooser_of
from ...models.communication.resharding import Reduction, with_program
from ...models.cost.cost import STATISTIC_BYTES, statistics_digits
from ...models.layout.placement import Placement
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.program.operators import NodeKind, Operator
from .biases import before_biases

Box = tuple[tuple[int, int], ...]


class Slots:
    """Names of slots: the tensor's for where it rests (its copy if it has one, else as written), `t as written` before
    it goes to its copy, `op[j]` for operand j of an operator, `t at the root` where rank 0 alone has it.  A name that a
    tensor or another slot has already gets primes behind it."""

    def __init__(self, graph: Graph) -> None:
        self.tensor_of = {t.name: t.name for t in graph.tensors}
        self.written = {
            op.output.tensor: self._free(f"{op.output.tensor} as written", op.output.tensor) for op in graph.operators
        }
        self.root = {t.name: self._free(f"{t.name} at the root", t.name) for t in graph.tensors}
        self.operand = {
            (op.name, j): self._free(f"{op.name}[{j}]", a.tensor)
            for op in graph.operators
            for j, a in enumerate(op.inputs)
        }

    def _free(self, name: str, tensor: str) -> str:
        while name in self.tensor_of:
            name += "'"
        self.tensor_of[name] = tensor
        return name


@dataclass(frozen=True)
class Load:
    """`slot` := the part `box` of input or parameter `tensor`."""

    slot: str
    tensor: str
    box: Box


@dataclass(frozen=True)
class Move:
    """`target` := `source` resharded by movement number `movement` of the program."""

    source: str
    target: str
    movement: int


@dataclass(frozen=True)
class Compute:
    """`slot` := operator number `operator` on the iteration box (one interval per axis, in the operator's axis order).

    `operands`: (slot, origin) per input.  `statistics`: the all-reduce of every statistic, empty if nothing is split.
    `moments`: under which name mean and deviation are kept, or found (`lowering.moments`).
    """

    slot: str
    operator: int
    box: Box
    operands: tuple[tuple[str, tuple[int, ...]], ...]
    statistics: tuple[Reduction, ...]
    moments: str | None = None


@dataclass(frozen=True)
class Free:
    """Forget a value."""

    slot: str


@dataclass(frozen=True)
class Fused:
    """`members` on one box, in order, as one loop over it.

    `links`: operand slot -> member whose value it is; other operands are slots of the rank.  `results`: slot := value
    of member.  `reuse`: an operand slot that nobody else reads, read at the point that is written: its memory may take
    the (single) result.  `recipes`: generated kernels by layout of the operands, kept by `backends.cuda.group`.
    """

    members: tuple[Compute, ...]
    links: tuple[tuple[str, int], ...]
    results: tuple[tuple[str, int], ...]
    reuse: str | None = None
    recipes: dict[object, object] = field(init=False, repr=False, compare=False, hash=False, default_factory=dict)


@dataclass(frozen=True)
class Start:
    """Begin movement number `movement` of `source`; its `Finish` has the same number."""

    source: str
    movement: int


@dataclass(frozen=True)
class Finish:
    """`target` := what movement number `movement` brings."""

    target: str
    movement: int


Instruction = Load | Move | Compute | Free | Fused | Start | Finish


@dataclass(frozen=True, eq=False)
class Program:
    """`ranks[r]`: instructions of rank r (row-major device number).  `outputs`: (tensor, box per rank), closed
    layouts.  `stored`: blocks are kept in the element types of the graph, and results rounded to them.  `library`: who
    computes operators, numpy (our kernels) or torch.
    """

    graph: Graph
    hierarchy: tuple[int, ...]
    movements: tuple[Communication, ...]
    ranks: tuple[tuple[Instruction, ...], ...]
    outputs: tuple[tuple[str, tuple[Box, ...]], ...]
    stored: bool = False
    library: str = "numpy"

    @cached_property
    def still(self) -> tuple[frozenset[int], ...]:
        """Per rank the movements that leave its block as it is."""
        plans = [(n, m.plan) for n, m in enumerate(self.movements) if not m.plan.steps]
        same = [(n, (p.source.boxes == p.target.boxes).all(axis=(1, 2)).tolist()) for n, p in plans]
        return tuple(frozenset(n for n, ranks in same if ranks[rank]) for rank in range(len(self.ranks)))

    @cached_property
    def unrounded_tensors(self) -> frozenset[str]:
        """Tensors that their reader rounds: `lowering.biases`."""
        return before_biases(self.graph) if self.stored else frozenset()

    def place(self, instruction: Instruction) -> str:
        """The instruction in words, for messages."""
        match instruction:
            case Load(slot=slot, tensor=tensor):
                return f"load {slot!r} of tensor {tensor!r}"
            case Move(movement=n) | Start(movement=n) | Finish(movement=n):
                m = self.movements[n]
                goal = "its copy" if m.reader is None else f"operator {m.reader!r}"
                return f"resharding of tensor {m.tensor!r} to {goal}"
            case Compute(operator=n):
                op = self.graph.operators[n]
                return f"operator {op.name!r}, which writes tensor {op.output.tensor!r}"
            case Fused(members=members):
                names = [self.graph.operators[m.operator].name for m in members]
                written = self.graph.operators[members[-1].operator].output.tensor
                return (
                    f"operator {names[0]!r}, which writes tensor {written!r}"
                    if len(names) == 1
                    else (f"operators {', '.join(map(repr, names))} as one, which write tensor {written!r}")
                )
            case Free(slot=slot):
                return f"free {slot!r}"


def lower(graph: Graph, hierarchy: tuple[int, ...], choices: Choices, machine: Machine | None = None) -> Program:
    """One program per device.  `machine`: whose collective programs reductions take (None: level by level).  Raises
    `ChoicesError` if the choices do not fit the graph and the hierarchy.
    """
    moves = tuple(communications(graph, hierarchy, choices, machine))
    chooser = chooser_of(machine, STATISTIC_BYTES)
    number = {(m.tensor, m.reader, m.position): n for n, m in enumerate(moves)}
    placements, copies = dict(choices.operators), dict(choices.copies)
    devices, writer = prod(hierarchy), graph.writer()
    ranks: list[list[Instruction]] = [[] for _ in range(devices)]
    places, parameter = resting_places(graph), {value: name for name, value in graph.state}
    resting = {t: copy_layout(t, graph, copies[home], hierarchy) for t, home in places.items()}
    last = {a.tensor: i for i, op in enumerate(graph.operators) for a in op.inputs}
    kept, slots = {*graph.results, *parameter.values()}, Slots(graph)

    def everywhere(instruction: Instruction) -> None:
        for program in ranks:
            program.append(instruction)

    for name, layout in resting.items():
        if name not in writer:
            for d, program in enumerate(ranks):
                program.append(Load(name, name, layout.box(d)))
    for i, op in enumerate(graph.operators):
        out, placement = op.output.tensor, placements[op.name]
        layouts = [input_layout(op, j, graph, placement, hierarchy) for j in range(len(op.inputs))]
        for j, a in enumerate(op.inputs):
            slot = slots.operand[op.name, j]
            if a.tensor in writer or a.tensor in copies:
                everywhere(Move(a.tensor, slot, number[a.tensor, op.name, j]))
            else:
                for d, program in enumerate(ranks):
                    program.append(Load(slot, a.tensor, layouts[j].box(d)))
        boxes = [iteration_box(op, placement, hierarchy, d) for d in range(devices)]
        statistics = tuple(
            with_program(step, hierarchy, chooser) for step in _statistics(op, placement, hierarchy, boxes)
        )
        for d, program in enumerate(ranks):
            operands = tuple(
                (slots.operand[op.name, j], tuple(lo for lo, _ in layouts[j].box(d))) for j in range(len(op.inputs))
            )
            slot = slots.written[out] if out in places else out
            program.append(Compute(slot, i, tuple(boxes[d][a.name] for a in op.axes), operands, statistics))
        for j in range(len(op.inputs)):
            everywhere(Free(slots.operand[op.name, j]))
        if out in parameter:  # its storage is the parameter's
            everywhere(Free(parameter[out]))
        if out in places:
            everywhere(Move(slots.written[out], out, number[out, None, 0]))
            everywhere(Free(slots.written[out]))
        for t in dict.fromkeys([*(a.tensor for a in op.inputs), out]):
            if last.get(t, i) == i and t not in kept and (t in writer or t in copies):
                everywhere(Free(t))
    outputs = tuple((t, tuple(resting[t].box(d) for d in range(devices))) for t in graph.results if t in writer)
    return Program(graph, hierarchy, moves, tuple(tuple(p) for p in ranks), outputs)


def _statistics(
    op: Operator, placement: Placement, hierarchy: tuple[int, ...], boxes: list[dict[str, tuple[int, int]]]
) -> tuple[Reduction, ...]:
    """One all-reduce per statistic of a normalise or attention operator, over the digits that split its `over` axes
    (nothing scattered).
    """
    if op.kind not in (NodeKind.NORMALISE, NodeKind.ATTENTION) or not op.spec.statistics:
        return ()
    digits = statistics_digits(op, placement.axes, placement.matrix)
    if not digits:
        return ()
    tiles = tuple(tuple((0, 1) if a in op.over else box[a] for a in op.output.axes) for box in boxes)
    group = prod(d.prime for d in digits)
    largest = max(prod(hi - lo for lo, hi in t) for t in tiles)
    padded = -(-largest // group) * group
    return tuple(Reduction(combine, digits, (False,) * len(digits), tiles, padded) for combine in op.spec.statistics)
