"""Which axes and dimensions run over the same thing, and the one order in which all operators put them."""

from __future__ import annotations

from .description import Program

Node = tuple[str, str, object]
"""`("axis", operator, name)` or `("dimension", tensor, number)`."""


def class_orders(program: Program) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[int, ...]]]:
    """Operator -> its axes, tensor -> its dimensions, both by class of first appearance, then by own position (output
    axes first).

    An index joins its dimension and its first axis; a dimension that is read whole joins none, and what no axis joins
    comes last.
    """
    links = _links(program)
    number: dict[Node, int] = {}

    def visit(start: Node) -> None:
        """Number the class of a node, unless it has one."""
        todo, new = [start], len(set(number.values()))
        while todo:
            node = todo.pop()
            if node not in number:
                number[node] = new
                todo += links.get(node, ())

    for op in program.operators:
        for axis in (*op.written, *op.reduced):
            visit(("axis", op.name, axis))
    for tensor in program.tensors.values():
        for k in range(len(tensor.shape)):
            visit(("dimension", tensor.name, k))
    axes = {
        op.name: tuple(sorted((*op.written, *op.reduced), key=lambda a, op=op: number["axis", op.name, a]))
        for op in program.operators
    }
    dimensions = {
        t.name: tuple(sorted(range(len(t.shape)), key=lambda k, t=t: number["dimension", t.name, k]))
        for t in program.tensors.values()
    }
    return axes, dimensions


def _links(program: Program) -> dict[Node, set[Node]]:
    """Which axes and dimensions are joined."""
    out: dict[Node, set[Node]] = {}

    def join(a: Node, b: Node) -> None:
        out.setdefault(a, set()).add(b)
        out.setdefault(b, set()).add(a)

    for op in program.operators:
        for operand in (*op.inputs, op.output):
            for k, index in enumerate(operand.index):
                if index.terms and not index.whole:
                    join(("axis", op.name, index.terms[0][0]), ("dimension", operand.tensor, k))
    for parameter, value in program.state.items():
        for k in range(len(program.tensors[parameter].shape)):
            join(("dimension", parameter, k), ("dimension", value, k))
    return out
