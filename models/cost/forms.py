"""Describes an operator up to names: everything that its placements, layouts and times depend on, and
nothing else.

What prices an operator is given its form and not the operator, so it cannot read what the form lacks, and equal forms
have equal prices.  Axes are called by their number in class order (`models.layout.classes`); tensors are known by shape
and element type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from ..layout.classes import operator_key
from ..program import fused, scan
from ..program.attention import Band, band, inner
from ..program.graph import ELEMENT_BYTES, Graph, SameGraph
from ..program.index import Access, Affine, Axis
from ..program.operators import FUNCTIONS, Function, NodeKind, Operator


@dataclass(frozen=True)
class OperandForm:
    """A tensor of `shape` and `dtype`, touched at `index`; `host`: it lies on hosts."""

    index: tuple[Affine, ...]
    shape: tuple[int, ...]
    dtype: str
    host: bool = False

    @property
    def access(self) -> Access:
        """The access, to a tensor without a name."""
        return Access("", self.index)

    @property
    def element_bytes(self) -> int:
        """Bytes of a device's memory per element."""
        return 0 if self.host else ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class OperatorForm:
    """`axes` in class order, called '0', '1', ..; `reduced`: those that are summed away, in the operator's own order
    (profiles list extents so).

    `over`: axes of statistics; `rows`: the row axis of a gather, scatter or grouped product, else empty; `flops` per
    point of the iteration space; `even`: the points of a grouped product are shared evenly by its groups; `loads`: as
    these numbers are.  Attention:
    `inner` axes lie inside a point, which is a pair of query and key; `band` of the keys that a query sees.
    `arithmetic`: the type of factors that are summed in a wider one, else empty.  `finish`: operations of
    an epilogue per element of the result.  Scan: `inner` axes are no rows, `traffic`: bytes that the body moves for
    every row of some axes, `launches`: operators that run one after another.
    """

    function: str
    axes: tuple[Axis, ...]
    reduced: tuple[str, ...]
    inputs: tuple[OperandForm, ...]
    output: OperandForm
    over: tuple[str, ...]
    rows: str
    flops: int
    even: bool = False
    inner: tuple[str, ...] = ()
    band: Band | None = None
    arithmetic: str = ""
    finish: int = 0
    traffic: tuple[tuple[tuple[str, ...], int], ...] = ()
    launches: int = 1
    loads: tuple[int, ...] = ()

    @property
    def spec(self) -> Function:
        """Row of the function table."""
        return FUNCTIONS[self.function]

    @property
    def computed_in(self) -> str:
        """The element type whose peak counts: the result's; attention computes in that of its first operand, a product
        that sums in a wider type in that of its factors.
        """
        if self.arithmetic:
            return self.arithmetic
        return self.inputs[0].dtype if self.spec.kind is NodeKind.ATTENTION else self.output.dtype

    @property
    def profile_axes(self) -> tuple[str, ...]:
        """Axes in the order of a profile's extents: the output's, then the reduced ones."""
        return (*self.output.access.axes, *self.reduced)


@dataclass(frozen=True)
class LayoutForm:
    """Layouts of a tensor of `shape` touched at `index`, open in the axes `reduced`; only these have a combine function
    here.

    `copy`: of a tensor's copy, whose axes are its dimensions.
    """

    axes: tuple[Axis, ...]
    index: tuple[Affine, ...]
    shape: tuple[int, ...]
    reduced: tuple[str, ...]
    copy: bool = False

    @property
    def access(self) -> Access:
        """The access, to a tensor without a name."""
        return Access("", self.index)


def operator_form(op: Operator, graph: Graph, order: Sequence[str]) -> OperatorForm:
    """The form of an operator whose axes have this class order."""
    number = {name: str(i) for i, name in enumerate(order)}

    def operand(a: Access) -> OperandForm:
        tensor = graph.tensor(a.tensor)
        return OperandForm(_renamed(a.index, number), tensor.shape, tensor.dtype, tensor.host)

    attention, loop = op.kind is NodeKind.ATTENTION, op.kind is NodeKind.SCAN
    seen = band(op) if attention else None
    hidden = inner(op) if attention else scan.inner(op) if loop else ()
    return OperatorForm(
        op.function,
        tuple(Axis(number[n], a.extent, a.combine, a.splittable) for n in order for a in (op.axis(n),)),
        tuple(number[a.name] for a in op.reduction_axes),
        tuple(operand(a) for a in op.inputs),
        operand(op.output),
        tuple(sorted(number[n] for n in op.over if n in number)),
        number.get(op.rows, ""),
        graph.flops_per_point(op),
        op.even,
        tuple(number[n] for n in hidden),
        None if seen is None else replace(seen, query=number[seen.query], key=number[seen.key]),
        str(op.attribute("arithmetic", "")),
        fused.operations(op) if graph.flops_per_point(op) else 0,
        tuple((tuple(number[r] for r in t.rows), t.bytes) for t in scan.traffic(op, graph.body(op))) if loop else (),
        scan.launches(op, graph.body(op)) if loop else 1,
        op.loads,
    )


def operator_forms(graph: Graph, orders: Mapping[str, tuple[str, ...]]) -> Mapping[str, OperatorForm]:
    """Operator -> its form, for class orders as `axis_orders` gives them; equal forms are one object."""
    return _operator_forms(SameGraph(graph), tuple(orders[operator_key(op.name)] for op in graph.operators))


@lru_cache(maxsize=4)
def _operator_forms(same: SameGraph, orders: tuple[tuple[str, ...], ...]) -> Mapping[str, OperatorForm]:
    graph, known = same.graph, dict[OperatorForm, OperatorForm]()

    def one(form: OperatorForm) -> OperatorForm:
        return known.setdefault(form, form)

    return MappingProxyType(
        {op.name: one(operator_form(op, graph, order)) for op, order in zip(graph.operators, orders, strict=True)}
    )


def layout_form(form: OperatorForm, position: int | None) -> LayoutForm:
    """Layouts in which an operator reads its input `position`, or (None) leaves its output, open in the reduced
    axes.
    """
    operand = form.output if position is None else form.inputs[position]
    reduced = form.reduced if position is None else ()
    axes = tuple(Axis(a.name, a.extent, a.combine if a.name in reduced else None, a.splittable) for a in form.axes)
    return LayoutForm(axes, operand.index, operand.shape, reduced)


def copy_form(shape: tuple[int, ...], order: Sequence[str]) -> LayoutForm:
    """Layouts of the copy of a tensor whose dimensions have this class order."""
    number = {name: str(i) for i, name in enumerate(order)}
    index = tuple(Affine.axis(number[str(k)]) for k in range(len(shape)))
    return LayoutForm(tuple(Axis(number[n], shape[int(n)]) for n in order), index, shape, (), copy=True)


def _renamed(index: Sequence[Affine], number: dict[str, str]) -> tuple[Affine, ...]:
    return tuple(Affine(tuple((number[n], c) for n, c in i.terms), i.offset, i.whole) for i in index)
