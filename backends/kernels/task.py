"""One operator on one iteration box, with what its kernel may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from ...models.program.graph import Graph
from ...models.program.operators import Operator
from .blocks import Array, Block, KernelError, StatisticsReducer, align, cover, lengths, view
from .moments import Kept, Moments


@dataclass(frozen=True)
class Task:
    """One operator on one box."""

    xp: ModuleType
    op: Operator
    graph: Graph
    box: dict[str, tuple[int, int]]
    operands: Sequence[Block]
    collectives: StatisticsReducer | None
    kept: Kept | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return lengths(self.box, self.op.output.axes)

    @property
    def idle(self) -> bool:
        """The box is empty: the rank is outside of the view that the operator runs on, or its blocks are empty."""
        return any(low >= high for low, high in self.box.values())

    @property
    def whole(self) -> bool:
        """The box holds all of the `over` axes."""
        return all(self.box[a] == (0, self.op.axis(a).extent) for a in self.op.over)

    @property
    def moments(self) -> Moments | None:
        """Those that another operator kept."""
        return None if self.kept is None else self.kept.found.get(self._output_box)

    def keep(self, moments: Moments) -> None:
        """Leave them to the operators that share them, if any."""
        if self.kept is not None:
            self.kept.found[self._output_box] = moments

    @property
    def _output_box(self) -> tuple[tuple[int, int], ...]:
        return tuple(self.box[a] for a in self.op.output.axes)

    @property
    def place(self) -> str:
        """For messages."""
        return f"operator {self.op.name!r}"

    def operand(self, j: int, fill: float = 0) -> Array:
        """Input j, one dimension per output axis (length 1 where it lacks the axis)."""
        a = self.op.inputs[j]
        seen = view(
            self.xp, self.operands[j], a, self.box, self.graph.tensor(a.tensor).shape, fill, f"{self.place}, input {j}"
        )
        return align(seen, a.axes, self.op.output.axes)

    def spans(self, j: int) -> list[tuple[int, int]]:
        """What input j is read on, in its own dimensions: from below 0, or to behind the tensor, with padding."""
        a = self.op.inputs[j]
        shape = self.graph.tensor(a.tensor).shape
        return [(0, n) if i.whole else i.unclipped_interval(self.box) for i, n in zip(a.index, shape, strict=True)]

    def part(self, j: int, padded: bool = True) -> Array:
        """Input j in its own dimensions: whole ones entirely, single axes as in the box; without `padded` what lies
        inside the tensor.
        """
        a, spans = self.op.inputs[j], self.spans(j)
        shape = self.graph.tensor(a.tensor).shape
        if not padded:
            spans = [(max(lo, 0), min(hi, n)) for (lo, hi), n in zip(spans, shape, strict=True)]
        return cover(
            self.xp,
            self.operands[j],
            [s[0] for s in spans],
            [s[1] for s in spans],
            shape,
            0,
            f"{self.place}, input {j}",
        )

    def integers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a tuple of integers."""
        value = self.op.attribute(name, ())
        if not isinstance(value, tuple) or any(type(x) is not int for x in value):
            raise KernelError(self.place, f"attribute {name} must be a tuple of integers, not {value!r}")
        return tuple(int(x) for x in value)
