"""Memory per device: which tensor is held while which operators run.  Step t is the t-th operator."""

from __future__ import annotations

from dataclasses import dataclass

from .description import Program


@dataclass(frozen=True)
class Held:
    """`tensor` is there at the steps `start` <= t < `end`, in the layout of the result of an operator, of an
    operand, or of its copy.
    """

    tensor: str
    start: int
    end: int
    writer: str | None = None
    reader: tuple[str, int] | None = None


def copied(program: Program) -> dict[str, str]:
    """Tensor -> tensor whose copy it rests in: several readers, wanted by the user and computed, or a parameter
    that gets a next value.
    """
    computed = {op.output.tensor for op in program.operators}
    reads = [operand.tensor for op in program.operators for operand in op.inputs]
    own = {
        name
        for name in program.tensors
        if reads.count(name) > 1 or name in computed & {*program.outputs} or name in program.state
    }
    parameter_of = {value: name for name, value in program.state.items()}
    return {name: parameter_of.get(name, name) for name in program.tensors if name in own or name in parameter_of}


def held(program: Program) -> list[Held]:
    """Every interval of steps in which something is in memory."""
    end = len(program.operators)
    rests = copied(program)
    written = {op.output.tensor: t for t, op in enumerate(program.operators)}
    reads: dict[str, list[tuple[int, str, int]]] = {name: [] for name in program.tensors}
    for t, op in enumerate(program.operators):
        for position, operand in enumerate(op.inputs):
            reads[operand.tensor].append((t, op.name, position))
    out = []
    for tensor in program.tensors.values():
        last = max((t for t, _, _ in reads[tensor.name]), default=None)
        forever = tensor.role == "parameter" or (tensor.name in program.outputs and tensor.name in rests)
        start = written.get(tensor.name, 0)
        until = end if forever else start + 1 if last is None else last + 1
        if tensor.name in written:
            writer = program.operators[start].name
            out.append(Held(tensor.name, start, start + 1 if tensor.name in rests else until, writer=writer))
        if tensor.name in rests:
            if rests[tensor.name] == tensor.name:
                out.append(Held(tensor.name, start, until))
        elif tensor.name not in written and reads[tensor.name]:
            ((_, reader, position),) = reads[tensor.name]
            out.append(Held(tensor.name, start, until, reader=(reader, position)))
        if tensor.name in rests or tensor.name in written:
            out += [
                Held(tensor.name, t, t + 1, reader=(reader, position)) for t, reader, position in reads[tensor.name]
            ]
    return out
