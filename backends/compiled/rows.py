"""Fusion for compiled loops: maps and reductions over the last dimension become one instruction, row by row.

A chain goes over one box,  rows x columns,  columns its last dimension.  On every rank each member is

    full        a map on the box                                              y[r, c]
    reduction   of one operand on the box, over the columns                   y[r]
    row         a map on the rows: of reductions, or of smaller tensors       y[r]

and reads values of earlier members at the point, or at the row, that it writes itself.  Softmax, a norm, distances of
all pairs are then one pass: a row stays in cache from its maximum to its quotient.  No traffic in between, as in
`lowering.fusion`, whose chains these are otherwise; what leaves its tensor somewhere is read by full members alone.
"""

from __future__ import annotations

from enum import Enum

from ...models.program.graph import Graph
from ...models.program.index import Affine
from ...models.program.operators import NodeKind, Operator
from ..lowering.fusion import Chain, Link, output_box
from ..lowering.program import Compute, Instruction
from .texts import has_text

Interval = tuple[int, int]


class Form(Enum):
    """What a member is in a chain: see the module docstring."""

    FULL = "full"
    REDUCTION = "reduction"
    ROW = "row"


def dimensions(op: Operator, form: Form, rows: int) -> tuple[str, ...]:
    """The axes of a member that walk the box's dimensions: of the rows, and of the columns unless it is a row."""
    if form is Form.REDUCTION:
        return (*op.output.axes, op.reduction_axes[0].name)
    return op.output.axes[:rows] if form is Form.ROW else op.output.axes


def box_of(graph: Graph, step: Compute, form: Form, rows: int) -> tuple[Interval, ...]:
    """The box of a member over its `dimensions`."""
    op = graph.operators[step.operator]
    box = dict(zip((a.name for a in op.axes), step.box, strict=True))
    return tuple(box[a] for a in dimensions(op, form, rows))


def form_of(graph: Graph, step: Compute, box: tuple[Interval, ...]) -> Form | None:
    """What an operator with a text would be in a chain over a box; None: no member of it."""
    op = graph.operators[step.operator]
    if op.kind is NodeKind.REDUCE:
        return Form.REDUCTION if box_of(graph, step, Form.REDUCTION, 0) == box else None
    mine = output_box(graph, step)
    if mine == box:
        return Form.FULL
    spare = mine[len(box) - 1 :]
    return Form.ROW if mine[: len(box) - 1] == box[:-1] and spare in ((), ((0, 1),)) else None


def reads_in_place(op: Operator, position: int, form: Form, source: Form, rows: int) -> bool:
    """Whether a member reads another's value at the point, or the row, that it writes."""
    walk, index = dimensions(op, form, rows), op.inputs[position].index
    if source is Form.FULL:
        return form is not Form.ROW and tuple(i.single for i in index) == walk
    if form is Form.REDUCTION:
        return False
    spare = index[rows:]
    unit = op.output.axes[rows] if form is Form.ROW and len(op.output.axes) > rows else None
    same = tuple(i.single for i in index[:rows]) == walk[:rows]
    return same and (not spare or (len(spare) == 1 and (spare[0] == Affine() or spare[0].single == unit is not None)))


def leaves_its_tensor(graph: Graph, step: Compute, position: int) -> bool:
    """Whether an operand is read outside of its tensor somewhere on the box."""
    op = graph.operators[step.operator]
    box = dict(zip((a.name for a in op.axes), step.box, strict=True))
    if any(low >= high for low, high in step.box):
        return False
    access = op.inputs[position]
    spans = (i.unclipped_interval(box) for i in access.index)
    return any(lo < 0 or hi > n for (lo, hi), n in zip(spans, graph.tensor(access.tensor).shape, strict=True))


class RowChain(Chain):
    """A chain of the module docstring; its box is that of the first member."""

    def _is_worth_it(self) -> bool:
        return True

    def _boxes(self) -> list[tuple[Interval, ...]]:
        form = Form.REDUCTION if self.operator(self.members[0]).kind is NodeKind.REDUCE else Form.FULL
        return [box_of(self.program.graph, _compute(r[self.members[0]]), form, 0) for r in self.ranks]

    def _form(self, at: int) -> Form | None:
        """The one form that a member has on all ranks."""
        found = {
            form_of(self.program.graph, _compute(r[at]), box) for r, box in zip(self.ranks, self._boxes(), strict=True)
        }
        return found.pop() if len(found) == 1 else None

    def _is_padded(self, at: int) -> bool:
        count = len(self.operator(at).inputs)
        return any(leaves_its_tensor(self.program.graph, _compute(r[at]), j) for r in self.ranks for j in range(count))

    def _fusible(self, at: int) -> bool:
        op = self.operator(at)
        if not has_text(op, self.program.graph) or not op.output.axes:
            return False
        if self._is_padded(at):  # a box with margins is cut at them, dimension by dimension
            return op.kind is NodeKind.MAP and all(len(i.terms) < 2 for a in op.inputs for i in a.index)
        return True

    def _fits(self, at: int) -> Form | None:
        """The form that the operator there would have, if rows and margins go together."""
        if not self._fusible(at) or self._dtype(at) != self._dtype(self.members[0]):
            return None
        have = (*self.members, *self.beside)
        form, margins = self._form(at), any(self._is_padded(k) for k in (*have, at))
        whole = form is Form.FULL and all(self._form(k) is Form.FULL for k in have)
        return form if whole or not margins else None

    def _dtype(self, at: int) -> str:
        return self.program.graph.tensor(self.operator(at).output.tensor).dtype

    def _stands_beside(self, at: int, links: dict[str, Link]) -> bool:
        reads = any(slot in links for slot, _ in _compute(self.ranks[0][at]).operands)
        return not reads and self._fits(at) is not None

    def _joins(self, at: int, links: dict[str, Link]) -> bool:
        form = self._fits(at)
        if form is None:
            return False
        op, rows = self.operator(at), len(self._boxes()[0]) - 1
        reads = [j for j, (slot, _) in enumerate(_compute(self.ranks[0][at]).operands) if slot in links]
        if not reads:
            return False
        for j in reads:
            link = links[_compute(self.ranks[0][at]).operands[j][0]]
            source = self._form([*self.members, *self.beside][link.member])
            if not link.alive or source is None or not reads_in_place(op, j, form, _value(source), rows):
                return False
        return True


def _value(form: Form) -> Form:
    return Form.FULL if form is Form.FULL else Form.ROW


def _compute(step: Instruction) -> Compute:
    if not isinstance(step, Compute):
        raise TypeError("only a Compute is a member")
    return step
