"""Operators: a node kind, axes, accesses, and a named function from one table.

    output[o(a)]  =  combine over reduction axes of   function(input_1[i_1(a)], .., input_n[i_n(a)])

Node kinds (`shared/research/runtime-and-frontends.md`, section 4.1):

contract      product of the inputs, summed over the reduction axes (matmul, einsum, convolution, grouped convolution)
map           n-ary elementwise function with broadcast: every axis is parallel
reduce        one input, combined over the reduction axes (sum, max, min; mean is a sum times `scale`)
normalise     one value per element that depends on statistics over the axes named by attribute `over`
              (softmax, layer_norm): these axes are parallel; splitting one makes the operator all-reduce its statistics
window        a function of a window of the input (max_pool, average_pool, local_response): taps are reduction axes that
              are never split
gather        output[.., j] = table[ids[..], j], written as a sum over the table's row axis (one-hot), so that splitting
              the rows leaves partial sums; cost counts only the rows touched
layout        copies elements (transpose, concat, slice, pad, expand): sum of the inputs that are in range

Every other kind (scatter-add, scan) is refused by name until an issue needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from .index import Access, Axis, Combine


class NodeKind(Enum):
    """The kinds of operator."""

    CONTRACT = "contract"
    MAP = "map"
    REDUCE = "reduce"
    NORMALISE = "normalise"
    WINDOW = "window"
    GATHER = "gather"
    LAYOUT = "layout"


@dataclass(frozen=True)
class Function:
    """A row of the function table.

    `flops`: floating-point operations per point of the iteration box.  `statistics`: the combine functions of the
    statistics a normalise operator reduces, in order (each is all-reduced when an `over` axis is split).
    """

    name: str
    kind: NodeKind
    arity: tuple[int, int]
    flops: int
    statistics: tuple[Combine, ...] = ()


_MANY = 1 << 16


def _maps(arity: int, flops: int, *names: str) -> list[Function]:
    return [Function(n, NodeKind.MAP, (arity, arity), flops) for n in names]


_ROWS: Final[list[Function]] = [
    Function("product", NodeKind.CONTRACT, (1, _MANY), 2),
    *_maps(1, 1, "relu", "negate", "identity", "relu_gradient_mask"),
    *_maps(1, 1, "scale"),  # attribute scale: x * scale
    *_maps(1, 8, "tanh", "sigmoid", "exp", "erf", "sqrt"),
    *_maps(1, 12, "gelu"),
    *_maps(2, 1, "add", "subtract", "multiply", "divide", "maximum", "relu_gradient"),
    *_maps(3, 2, "where", "fused_scale_shift"),  # x * a + b
    *_maps(5, 6, "batch_norm"),  # x, gamma, beta, mean, variance; attribute epsilon
    Function("sum_inputs", NodeKind.MAP, (1, _MANY), 1),
    Function("sgd_update", NodeKind.MAP, (2, 2), 2),  # w, gradient; attribute rate
    Function("sum", NodeKind.REDUCE, (1, 1), 1),  # attribute scale (default 1)
    Function("max", NodeKind.REDUCE, (1, 1), 1),
    Function("min", NodeKind.REDUCE, (1, 1), 1),
    Function("softmax", NodeKind.NORMALISE, (1, 1), 12, (Combine.MAX, Combine.SUM)),
    Function("layer_norm", NodeKind.NORMALISE, (1, 3), 8, (Combine.SUM, Combine.SUM)),  # x[, gamma[, beta]]; epsilon
    Function("max_pool", NodeKind.WINDOW, (1, 1), 1),
    Function("average_pool", NodeKind.WINDOW, (1, 1), 1),  # attribute count_include_pad (0 or 1)
    Function("local_response", NodeKind.WINDOW, (1, 1), 4),  # LRN: taps over channels; alpha, beta, bias, size, axis
    Function("embedding", NodeKind.GATHER, (2, 2), 1),  # table, ids; attribute rows = name of the row axis
    Function("copy", NodeKind.LAYOUT, (1, _MANY), 0),
]

FUNCTIONS: Final = MappingProxyType({row.name: row for row in _ROWS})
"""The function table: name -> row.  Backends implement exactly these names."""

Value = int | float | str | tuple[int, ...] | tuple[str, ...]


@dataclass(frozen=True)
class Operator:
    """One node of a graph: see the module docstring.

    `axes` holds every iteration axis once.  `inputs` are the operand accesses in argument order, `output` the only
    result; its index maps are single axes.  `attributes` are sorted (name, value) pairs.
    """

    name: str
    function: str
    axes: tuple[Axis, ...]
    inputs: tuple[Access, ...]
    output: Access
    attributes: tuple[tuple[str, Value], ...] = ()

    @property
    def spec(self) -> Function:
        """Row of the function table."""
        return FUNCTIONS[self.function]

    @property
    def kind(self) -> NodeKind:
        """Node kind of the function."""
        return self.spec.kind

    def axis(self, name: str) -> Axis:
        """The axis called `name`; KeyError if there is none."""
        for a in self.axes:
            if a.name == name:
                return a
        raise KeyError(name)

    def attribute(self, name: str, default: Value) -> Value:
        """Value of an attribute, or the default."""
        return dict(self.attributes).get(name, default)

    @property
    def over(self) -> tuple[str, ...]:
        """Axes over which a normalise operator takes statistics (empty for other kinds)."""
        value = self.attribute("over", ())
        return tuple(str(v) for v in value) if isinstance(value, tuple) else (str(value),)

    @property
    def reduced(self) -> tuple[Axis, ...]:
        """Reduction axes, in order."""
        return tuple(a for a in self.axes if a.combine is not None)
