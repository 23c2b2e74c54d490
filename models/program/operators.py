"""Operators: a node kind, axes, accesses, and a named function from one table.

    output[o(a)]  =  combine over reduction axes of   function(input_1[i_1(a)], .., input_n[i_n(a)])

Node kinds:

contract      product of the inputs, summed over the reduction axes (matmul, einsum, convolution, grouped convolution);
              `product_sum`:  sum of products of pairs of inputs; `fused_product`: maps of the finished sums
              (`models.program.fused`)
map           n-ary elementwise function with broadcast: every axis is parallel
reduce        one input, combined over the reduction axes (sum, max, min; mean is a sum times `scale`)
normalise     one value per element that depends on statistics over the axes named by attribute `over`
              (softmax, layer_norm): these axes are parallel; splitting one makes the operator all-reduce its
              statistics; functions without statistics (top_k_mask, cumulative_sum, argsort) read those axes whole:
              they are never split
window        a function of a window of the input (max_pool, average_pool, local_response): taps are reduction axes that
              are never split
gather        output[.., j] = table[ids[..], j], written as a sum over the table's row axis (one-hot), so that splitting
              the rows leaves partial sums; cost counts only the rows touched
scatter       output[v, j] = sum (max, min) over b with ids[b] = v of g[b, j], the transpose of a gather: the row axis
              is parallel; cost counts only the points of g
grouped       product of the inputs before the last, where the last, ids, names the group: the sum of products over
              [ids = e] only.  The group axis `rows` is summed (tokens through the experts they chose) or parallel (the
              gradient of the experts); cost counts one group per point, shared evenly by the devices that hold groups
              (attribute load = even, the assumption `even-groups`), as many as were counted for every group (load =
              the counts, of which shares are meant), or all of them on one device (load = any)
attention     softmax of scores of queries and keys times values, without storing scores (`models.program.attention`):
              keys and features are reduction axes, features are never split; splitting the keys all-reduces the
              row maximum and sum; cost counts the pairs of query and key that a mask leaves
scan          a loop with a body (`models.program.scan`): rows are parallel, what a turn carries along all other axes is
              whole; cost counts what the body costs in every turn
layout        copies elements (transpose, concat, slice, pad, expand): sum of the inputs that are in range; iota:
              positions; constant: values of the program; random: numbers by a seed and the
              index; update: a part of an array overwritten
opaque        the user's own function (`models.program.opaque`); axes and accesses come from its reference

Gradients have functions of their own where no other function says them (`models/sources/training`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from .attention import inner, role
from .index import Access, Axis, Combine


class NodeKind(Enum):
    """The kinds of operator."""

    CONTRACT = "contract"
    MAP = "map"
    REDUCE = "reduce"
    NORMALISE = "normalise"
    WINDOW = "window"
    GATHER = "gather"
    SCATTER = "scatter"
    GROUPED = "grouped"
    LAYOUT = "layout"
    ATTENTION = "attention"
    SCAN = "scan"
    OPAQUE = "opaque"


BY_DATA: Final = frozenset({NodeKind.GATHER, NodeKind.SCATTER, NodeKind.GROUPED})
"""Kinds that read or write where data says: along their row axis no index is affine."""

HOST_COPIES: Final = frozenset({"to_host", "from_host"})
"""Functions whose bytes go over a device's link to its host, not to its own memory."""

EVEN: Final = "even"
LOADS: Final = (EVEN, "any")
"""What a grouped product may assume of its groups, first the default: as many points each, or any distribution."""
MOST_COUNTED: Final = (1 << 31) - 1
"""The largest sum of counts of a grouped product, so that shares of it are exact in 64 bits."""


@dataclass(frozen=True)
class Function:
    """A row of the function table.

    `flops`: floating-point operations per point of the iteration box.  `statistics`: the combine functions of the
    statistics a normalise or attention operator reduces, in order (each is all-reduced when an `over` axis is split); a
    normalise function without statistics reads its `over` axes whole, so they are not splittable.  `logical`: the
    result is bool.
    """

    name: str
    kind: NodeKind
    arity: tuple[int, int]
    flops: int
    statistics: tuple[Combine, ...] = ()
    logical: bool = False

    @property
    def combines(self) -> tuple[Combine, ...]:
        """How partial results over reduction axes may be combined, whatever a file says; (): the function has no
        reduction axes.

        >>> FUNCTIONS["max_pool"].combines, FUNCTIONS["relu"].combines
        ((<Combine.MAX: 'max'>,), ())
        """
        return _COMBINES_OF_FUNCTION.get(self.name, _COMBINES_OF_KIND[self.kind])


_SUM: Final = (Combine.SUM,)
_COMBINES_OF_KIND: Final[Mapping[NodeKind, tuple[Combine, ...]]] = MappingProxyType(
    {
        NodeKind.CONTRACT: _SUM,
        NodeKind.MAP: (),
        NodeKind.REDUCE: _SUM,
        NodeKind.NORMALISE: (),
        NodeKind.WINDOW: _SUM,
        NodeKind.GATHER: _SUM,
        NodeKind.SCATTER: _SUM,
        NodeKind.GROUPED: _SUM,
        NodeKind.LAYOUT: (),
        NodeKind.ATTENTION: _SUM,
        NodeKind.SCAN: _SUM,  # of nothing: axes besides its rows are never split
        NodeKind.OPAQUE: tuple(Combine),  # as its reference does, which no file holds
    }
)
_COMBINES_OF_FUNCTION: Final[Mapping[str, tuple[Combine, ...]]] = MappingProxyType(
    {
        "max": (Combine.MAX,),
        "min": (Combine.MIN,),
        "max_pool": (Combine.MAX,),
        "scatter_max": (Combine.MAX,),
        "scatter_min": (Combine.MIN,),
        "copy_gradient": _SUM,  # repeated elements add up
        "attention_lse": (Combine.MAX,),  # every part has the statistics of all keys
    }
)
"""Functions that differ from their kind.  Statistics of a normalise operator are no reduction axes: see
`Function.statistics`.
"""


_MANY = 1 << 16


def _maps(arity: int, flops: int, *names: str) -> list[Function]:
    return [Function(n, NodeKind.MAP, (arity, arity), flops) for n in names]


def _logical(low: int, high: int, *names: str) -> list[Function]:
    return [Function(n, NodeKind.MAP, (low, high), 1, logical=True) for n in names]


_ROWS: Final[list[Function]] = [
    Function("product", NodeKind.CONTRACT, (1, _MANY), 2),
    *_maps(1, 1, "relu", "negate", "identity", "relu_gradient_mask"),
    *_maps(1, 1, "scale"),  # attribute scale: x * scale
    *_maps(1, 1, "shift"),  # attribute shift: x + shift
    *_maps(1, 1, "abs", "sign", "floor", "reciprocal"),
    *_maps(1, 1, "ceil", "round", "trunc"),  # round: halves to the even neighbour
    *_maps(1, 2, "clip"),  # attributes low, high; tie: the share of the gradient that x has at them, else all of it
    *_maps(1, 0, "to_host", "from_host"),  # x, in the memory of the device's host; and back
    *_maps(1, 0, "stop_gradient"),  # x, from which no gradient comes back
    *_maps(1, 0, "cast"),  # attribute dtype, the element type of the result
    *_maps(1, 8, "tanh", "sigmoid", "exp", "erf", "sqrt", "rsqrt", "log", "cos", "sin", "atan"),
    *_maps(1, 12, "gelu", "silu"),
    *_maps(1, 16, "power", "softplus"),  # power: attribute exponent
    *_maps(2, 1, "add", "subtract", "multiply", "divide", "maximum", "minimum", "relu_gradient"),
    *_maps(2, 1, "mask_fill"),  # x, mask; attribute value: x where mask != 0, else value
    Function("remainder", NodeKind.MAP, (1, 2), 4),  # of the sign of the divisor; one input: attribute value divides
    Function("fmod", NodeKind.MAP, (1, 2), 4),  # of the sign of the dividend
    *_logical(
        1, 2, "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"
    ),  # one input: against attribute value
    *_logical(2, 2, "logical_and", "logical_or"),
    *_logical(1, 1, "logical_not"),
    Function("floor_divide", NodeKind.MAP, (1, 2), 2),  # the greatest integer not above x / y; y or attribute value
    *_maps(3, 2, "where", "fused_scale_shift"),  # x * a + b
    *_maps(5, 6, "batch_norm"),  # x, gamma, beta, mean, variance; attribute epsilon
    Function("sum_inputs", NodeKind.MAP, (1, _MANY), 1),
    Function("sgd_update", NodeKind.MAP, (2, 3), 2),  # w, gradient[, allowed]; attribute rate
    Function("sum", NodeKind.REDUCE, (1, 1), 1),  # attribute scale (default 1)
    Function("max", NodeKind.REDUCE, (1, 1), 1),
    Function("min", NodeKind.REDUCE, (1, 1), 1),
    Function("softmax", NodeKind.NORMALISE, (1, 1), 12, (Combine.MAX, Combine.SUM)),
    Function("layer_norm", NodeKind.NORMALISE, (1, 3), 8, (Combine.SUM, Combine.SUM)),  # x[, gamma[, beta]]; epsilon
    Function("log_softmax", NodeKind.NORMALISE, (1, 1), 12, (Combine.MAX, Combine.SUM)),
    Function("rms_norm", NodeKind.NORMALISE, (1, 2), 6, (Combine.SUM,)),  # x[, gamma]; attribute epsilon
    Function(
        "top_k_mask", NodeKind.NORMALISE, (1, 1), 8, logical=True
    ),  # attribute k: true at the k largest, ties to the lower index
    Function(
        "cumulative_sum", NodeKind.NORMALISE, (1, 1), 1
    ),  # over one axis; attribute exclusive = 1: without the element itself
    Function(
        "argsort", NodeKind.NORMALISE, (1, 1), 8
    ),  # over one axis: positions in ascending order, equal ones by position; attribute descending = 1
    Function("max_pool", NodeKind.WINDOW, (1, 1), 1),
    Function("average_pool", NodeKind.WINDOW, (1, 1), 1),  # attribute count_include_pad (0 or 1)
    Function("local_response", NodeKind.WINDOW, (1, 1), 4),  # LRN: taps over channels; alpha, beta, bias, size, axis
    Function("embedding", NodeKind.GATHER, (2, 2), 1),  # table, ids; attribute rows = name of the row axis
    *(
        Function(f"scatter_{how}", NodeKind.SCATTER, (2, 2), 1) for how in ("add", "max", "min")
    ),  # values, ids; attribute rows; where nothing goes: 0, or the least (greatest) number of the element type
    Function("grouped_product", NodeKind.GROUPED, (2, _MANY), 2),  # factors, ids; attributes rows, load
    Function("copy", NodeKind.LAYOUT, (1, _MANY), 0),
    Function(
        "constant", NodeKind.LAYOUT, (0, 0), 0
    ),  # attribute values: row-major integers, or floats as hexadecimal text
    Function(
        "update", NodeKind.LAYOUT, (2, 2), 0
    ),  # old, value; attributes start, stop, positional (axes that are never cut into digits)
    Function("opaque", NodeKind.OPAQUE, (1, _MANY), 1),  # attributes kernel, flops (per point), positional
    Function(
        "iota", NodeKind.LAYOUT, (0, 0), 0
    ),  # attributes along (an axis), start (0), step (1): start + step * index
    Function(
        "random", NodeKind.LAYOUT, (0, 0), 12
    ),  # attributes distribution, seed, draw: numbers of `models.program.random_numbers`, by the row-major index
    # attention: operands and attributes in `models.program.attention`; flops of a pair besides its features
    Function("attention", NodeKind.ATTENTION, (3, 4), 12, (Combine.MAX, Combine.SUM)),
    Function("attention_lse", NodeKind.ATTENTION, (2, 3), 12, (Combine.MAX, Combine.SUM)),
    Function("attention_value_gradient", NodeKind.ATTENTION, (4, 5), 10),
    Function("attention_query_gradient", NodeKind.ATTENTION, (6, 7), 14),
    Function("attention_key_gradient", NodeKind.ATTENTION, (6, 7), 14),
    Function("attention_mask_gradient", NodeKind.ATTENTION, (7, 7), 14),
    Function("attention_gradients", NodeKind.ATTENTION, (6, 7), 14),
    Function("scan", NodeKind.SCAN, (1, _MANY), 0),  # `models.program.scan`; flops are those of its body
    # training: gradients (first input: the incoming gradient), losses, updates; formulas in
    # backends/kernels/gradients.py
    Function("product_sum", NodeKind.CONTRACT, (2, _MANY), 2),  # inputs 0 * 1 + 2 * 3 + ..; flops per pair
    Function("strided_gradient", NodeKind.CONTRACT, (2, 2), 2),  # g, other factor; windows as attributes
    Function("fused_product", NodeKind.CONTRACT, (1, _MANY), 2),  # `models.program.fused`: maps of every finished sum
    *_maps(1, 0, "fill"),  # attribute value: a constant in the shape of x
    *_maps(2, 1, "mask_clear"),  # x, mask: x where mask = 0, else 0
    *_maps(
        2,
        2,
        "squared_difference",
        "abs_gradient",
        "clip_gradient",
        "sqrt_gradient",
        "rsqrt_gradient",
        "reciprocal_gradient",
    ),
    *_maps(2, 3, "tanh_gradient", "sigmoid_gradient"),  # g, y
    *_maps(3, 3, "remainder_gradient", "fmod_gradient"),  # g, dividend, divisor: the gradient of the divisor
    *_maps(2, 10, "erf_gradient", "cos_gradient", "sin_gradient", "softplus_gradient"),  # g, x
    *_maps(2, 4, "atan_gradient"),  # g, x
    *_maps(2, 16, "gelu_gradient", "silu_gradient", "power_gradient"),  # g, x
    *_maps(3, 3, "squared_difference_gradient", "maximum_gradient", "minimum_gradient", "divide_gradient"),
    *_maps(3, 4, "batch_norm_gradient"),  # g, gamma, variance
    *_maps(4, 5, "batch_norm_scale_gradient"),  # g, x, mean, variance
    # updates may take a truth value last: where it is false, their first operand stays
    Function("adam_moment1", NodeKind.MAP, (2, 3), 3),  # m, g; attribute beta1
    Function("adam_moment2", NodeKind.MAP, (2, 3), 4),  # v, g; attribute beta2
    *_maps(2, 2, "decayed_gradient"),  # g, w; decay
    Function("momentum", NodeKind.MAP, (2, 3), 2),  # m, g; momentum: momentum * m + g
    *_maps(1, 12, "clip_factor"),  # sum of squares; attribute clip: the largest norm
    Function("adamw_update", NodeKind.MAP, (3, 4), 10),  # as adam_update; attribute decay: of the weight, times rate
    Function("lion_update", NodeKind.MAP, (3, 4), 8),  # w, m, g; attributes rate, beta1, decay
    Function("adam_update", NodeKind.MAP, (3, 4), 8),  # w, next m, next v; attributes rate, beta1, beta2, epsilon, step
    Function("softmax_gradient", NodeKind.NORMALISE, (2, 2), 4, (Combine.SUM,)),  # g, y
    Function("log_softmax_gradient", NodeKind.NORMALISE, (2, 2), 12, (Combine.SUM,)),  # g, y
    Function("layer_norm_gradient", NodeKind.NORMALISE, (2, 3), 16, (Combine.SUM,) * 4),  # g, x[, gamma]; epsilon
    Function("rms_norm_gradient", NodeKind.NORMALISE, (2, 3), 10, (Combine.SUM,) * 2),  # g, x[, gamma]; epsilon
    Function(
        "extreme_gradient", NodeKind.NORMALISE, (3, 3), 3, (Combine.SUM,)
    ),  # g, x, y: shared by the elements of x equal to y
    Function("reverse_cumulative_sum", NodeKind.NORMALISE, (1, 1), 1),  # over one axis; attribute exclusive
    Function("max_pool_gradient", NodeKind.WINDOW, (2, 2), 2),  # g, x
    Function("average_pool_gradient", NodeKind.WINDOW, (1, 1), 1),  # g
    Function("local_response_gradient", NodeKind.WINDOW, (2, 2), 8),  # g, x
    Function("embedding_gradient", NodeKind.SCATTER, (2, 2), 1),  # g, ids; attribute rows = name of the row axis
    Function("copy_gradient", NodeKind.LAYOUT, (1, 1), 1),  # g; index map of the copy as attributes
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
        """Axes that the statistics of a normalise or attention operator do not have (empty for other kinds)."""
        if self.kind is NodeKind.ATTENTION:
            return (*role(self, "key"), *inner(self))
        value = self.attribute("over", ())
        return tuple(str(v) for v in value) if isinstance(value, tuple) else (str(value),)

    @property
    def rows(self) -> str:
        """The axis that ids point along, of a gather, scatter or grouped product; else empty."""
        return str(self.attribute("rows", "")) if self.kind in BY_DATA else ""

    @property
    def even(self) -> bool:
        """Whether the groups of a grouped product are assumed to have equally many points (`even-groups`)."""
        return self.kind is NodeKind.GROUPED and self.attribute("load", EVEN) == EVEN

    @property
    def loads(self) -> tuple[int, ...]:
        """Points of every group of a grouped product, as they were counted; empty where something is assumed."""
        value = self.attribute("load", EVEN) if self.kind is NodeKind.GROUPED else EVEN
        return tuple(int(n) for n in value) if isinstance(value, tuple) else ()

    @property
    def reduction_axes(self) -> tuple[Axis, ...]:
        """Reduction axes, in order."""
        return tuple(a for a in self.axes if a.combine is not None)
