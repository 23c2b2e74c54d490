"""What an optimizer adds for one parameter, as it is written: operators, what they write, what is
remembered.

Operators of one name with their result.  What an optimizer remembers is a parameter of the step, in float32 (float64
where the weight is; as the weight, where that is asked for).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ...program.graph import Role, Tensor
from ...program.index import Access, Axis, access
from ...program.operators import Operator, Value

CONDITIONAL: Final = frozenset(
    {"sgd_update", "adam_moment1", "adam_moment2", "adam_update", "adamw_update", "lion_update", "momentum"}
)
"""Updates that take a truth value last: where it is false, the old value (their first operand) stays."""


@dataclass(frozen=True)
class Update:
    """What an optimizer adds for one parameter: tensors, operators in order, and pairs of the state."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    state: tuple[tuple[str, str], ...]


@dataclass
class WeightUpdate:
    """The update of one weight as it grows.  `names`: of its dimensions; `allowed`: see `optimizers.update`; `alike`:
    what is remembered has the type of the weight."""

    weight: Tensor
    names: tuple[str, ...]
    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    allowed: str = ""
    alike: bool = False
    state: list[tuple[str, str]] = field(default_factory=list)

    @property
    def extents(self) -> dict[str, int]:
        """Extent of every dimension of the weight, by name."""
        return dict(zip(self.names, self.weight.shape, strict=True))

    @property
    def wide(self) -> str:
        """The element type of what is remembered."""
        return self.weight.dtype if self.alike or self.weight.dtype == "float64" else "float32"

    def operator(self, name: str, function: str, inputs: tuple[str, ...], dtype: str, /, **attributes: Value) -> str:
        """An elementwise operator on tensors of the weight's shape, and its result."""
        axes = tuple(Axis(a, n) for a, n in self.extents.items())
        return self.operator_result(
            name, function, axes, [access(t, *self.names) for t in inputs], self.names, dtype, **attributes
        )

    def operator_result(
        self,
        name: str,
        function: str,
        axes: Sequence[Axis],
        reads: Sequence[Access],
        out: Sequence[str],
        dtype: str,
        /,
        **attributes: Value,
    ) -> str:
        """Any operator and its result, called alike; `out` names the result's dimensions."""
        if self.allowed and function in CONDITIONAL:
            reads = (*reads, access(self.allowed))
        op = Operator(name, function, tuple(axes), tuple(reads), access(name, *out), tuple(sorted(attributes.items())))
        self.operators.append(op)
        shape = tuple(op.axis(a).extent for a in out)
        source = self.weight.source_shape if tuple(out) == self.names else None
        self.tensors.append(Tensor(name, shape, dtype, Role.VALUE, source))
        return name

    def state_tensor(self, name: str, dimensions: Sequence[str] | None = None) -> tuple[str, str]:
        """A tensor that the optimizer keeps, and its element type.  `dimensions`: those of the weight that it has."""
        has = self.names if dimensions is None else tuple(dimensions)
        full = f"{self.weight.name}.{name}"
        source = self.weight.source_shape if has == self.names else None
        shape = tuple(self.extents[a] for a in has)
        self.tensors.append(Tensor(full, shape, self.wide, Role.PARAMETER, source))
        self.state.append((full, f"{full}.next"))
        return full, self.wide

    def over_root(self, gradient: str, squares: str, dtype: str, epsilon: float) -> str:
        """gradient / (sqrt(squares) + epsilon)"""
        w = self.weight.name
        root = self.operator(f"{w}.root", "sqrt", (squares,), dtype)
        shifted = self.operator(f"{w}.divisor", "shift", (root,), dtype, shift=epsilon)
        return self.operator(f"{w}.scaled", "divide", (gradient, shifted), dtype)

    def done(self) -> Update:
        """The weight's next value comes first in the state."""
        w = self.weight.name
        return Update(tuple(self.tensors), tuple(self.operators), ((w, f"{w}.next"), *self.state))


BETWEEN: Final = (".square", ".root", ".divisor", ".scaled")
"""Behind the weight's name: what stands between a gradient and the update of rmsprop and adagrad."""

INSIDE: Final = (".muon.", ".adafactor.")
"""Behind the weight's name: how the names of what muon and adafactor compute go on."""


def dimensions_of(weight: Tensor, names: Sequence[str], kept: int) -> tuple[tuple[str, ...], ...] | None:
    """The weight's dimensions as its source counts them: those before the last `kept`, then each of these; a dimension
    of the source may be several here.  None where the source has fewer, or is not cut along its dimensions.

    >>> w = Tensor("w", (2, 4, 6), "float32", Role.PARAMETER, (8, 6))
    >>> dimensions_of(w, ("h", "d", "k"), 2)
    ((), ('h', 'd'), ('k',))
    """
    source = weight.shape if weight.source_shape is None else weight.source_shape
    if len(source) < kept:
        return None
    out: list[tuple[str, ...]] = []
    rest = list(zip(names, weight.shape, strict=True))
    for extent in reversed(source[len(source) - kept :]):
        taken: list[str] = []
        left = extent
        while left > 1 and rest and left % rest[-1][1] == 0:
            name, n = rest.pop()
            taken.append(name)
            left //= n
        if not taken and rest and rest[-1][1] == 1:
            taken.append(rest.pop()[0])
        if left > 1:
            return None
        out.append(tuple(reversed(taken)))
    return (tuple(a for a, _ in rest), *reversed(out))
