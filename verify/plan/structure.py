"""Which choices, movements and memory rows a graph asks for: the skeleton that a selection problem
must have.

    choice     one per operator, and one per tensor that has a copy: tensors with several uses, computed ones that the
               user wants, and parameters that get a next value; that value has no copy of its own: it replaces the
               parameter in the parameter's copy
    movement   writer -> copy and copy -> every use, or writer -> the only use; an input or parameter without a copy
               starts where its only reader wants it and never moves
    usage      at step t the t-th operator runs, of T; a tensor occupies
                 its copy               from its writer (or 0) to its last use, to T if it is wanted or a parameter
                 the writer's output    at the writer's step only if there is a copy, it replaces a parameter, or
                                        nothing uses it, else to the last use
                 the reader's operand   if it has neither writer nor copy: from 0 to its last use, to T for a parameter
               and at every step the operands of its operator that have a writer or a copy, each as it is read, in
               buffers of their own

Movements stand in the order of execution: inputs and parameters first, then operator by operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...models.program.graph import Graph, Role


@dataclass(frozen=True)
class Move:
    """`tensor` goes from operator `writer` (None: from its copy) to input `position` of operator `reader` (None, 0:
    to its copy).
    """

    tensor: str
    writer: str | None
    reader: str | None
    position: int


@dataclass(frozen=True)
class Kept:
    """`tensor` is in memory at steps start <= t < end, as operator `writer` leaves it, as input `position` of
    `reader`, or (neither) as its copy.
    """

    tensor: str
    writer: str | None
    reader: str | None
    position: int
    start: int
    end: int


@dataclass(frozen=True)
class Received:
    """The inputs `positions` of operator `reader`, in memory at step `start` only."""

    reader: str
    positions: tuple[int, ...]
    start: int

    @property
    def end(self) -> int:
        return self.start + 1


def uses(graph: Graph) -> dict[str, list[tuple[str, int]]]:
    """Tensor -> (operator, input position) of every use."""
    found: dict[str, list[tuple[str, int]]] = {t.name: [] for t in graph.tensors}
    for op in graph.operators:
        for position, a in enumerate(op.inputs):
            found[a.tensor].append((op.name, position))
    return found


def copied_tensors(graph: Graph) -> list[str]:
    """Tensors that have a copy, in the graph's order."""
    used, computed = uses(graph), {op.output.tensor for op in graph.operators}
    wanted = (set(graph.outputs) & computed) | {parameter for parameter, _ in graph.state}
    replacing = set(replaces(graph))
    return [t.name for t in graph.tensors if (len(used[t.name]) > 1 or t.name in wanted) and t.name not in replacing]


def replaces(graph: Graph) -> dict[str, str]:
    """Next value -> the parameter in whose copy it is stored."""
    return {value: parameter for parameter, value in graph.state}


def wrong_state(graph: Graph) -> str:
    """Why storing next values in place of their parameters is not sound; empty if it is."""
    computed = {op.output.tensor: i for i, op in enumerate(graph.operators)}
    last_read = {a.tensor: i for i, op in enumerate(graph.operators) for a in op.inputs}
    names = [name for pair in graph.state for name in pair]
    if len(set(names)) != len(names):
        return "a tensor occurs in two pairs of the state"
    for parameter, value in graph.state:
        old, new = graph.tensor(parameter), graph.tensor(value)
        if old.role is not Role.PARAMETER or value not in computed or (old.shape, old.dtype) != (new.shape, new.dtype):
            return f"{value!r} cannot be the next value of {parameter!r}"
        if last_read.get(parameter, -1) > computed[value]:
            return f"{parameter!r} is read after {value!r} has replaced it"
    return ""


def moves(graph: Graph) -> Iterator[Move]:
    """Every movement, in order."""
    used, copies = uses(graph), {*copied_tensors(graph), *replaces(graph)}
    for t in graph.tensors:
        if t.role is not Role.VALUE and t.name in copies:
            for reader, position in used[t.name]:
                yield Move(t.name, None, reader, position)
    for op in graph.operators:
        name = op.output.tensor
        if name in copies:
            yield Move(name, op.name, None, 0)
        for reader, position in used[name]:
            yield Move(name, None if name in copies else op.name, reader, position)


def memory_rows(graph: Graph) -> Iterator[Kept | Received]:
    """Every usage, tensor by tensor, the copy before the original; then what every operator receives."""
    used, copies = uses(graph), set(copied_tensors(graph))
    step = {op.name: i for i, op in enumerate(graph.operators)}
    writer = {op.output.tensor: op.name for op in graph.operators}
    wanted, replacing = set(graph.outputs), set(replaces(graph))
    for t in graph.tensors:
        begin = step[writer[t.name]] if t.name in writer else 0
        end = (
            len(step)
            if t.name in wanted or t.role is Role.PARAMETER
            else max([begin, *(step[reader] for reader, _ in used[t.name])]) + 1
        )
        if t.name in copies:
            yield Kept(t.name, None, None, 0, begin, end)
        if t.name in writer:
            yield Kept(
                t.name, writer[t.name], None, 0, begin, begin + 1 if t.name in copies or t.name in replacing else end
            )
        elif t.name not in copies and used[t.name]:
            reader, position = used[t.name][0]
            yield Kept(t.name, None, reader, position, 0, end)
    for i, op in enumerate(graph.operators):
        moved = tuple(j for j, a in enumerate(op.inputs) if a.tensor in writer or a.tensor in copies)
        if moved:
            yield Received(op.name, moved, i)
