"""Tests of the table in `invariants` that look at an operator: each yields what is wrong with it at
its position in a
program.  Why it is demanded stands in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from . import attention as attention_operator
from . import fused
from . import scan as scan_operator
from .index import Axis
from .operators import BY_DATA, EVEN, FUNCTIONS, HOST_COPIES, LOADS, MOST_COUNTED, NodeKind, Operator
from .random_numbers import DISTRIBUTIONS
from .tensor import ELEMENT_BYTES, Role, Tensor

if TYPE_CHECKING:
    from .graph import Graph

MOST_AXIS: Final = (1 << 31) - 1
"""Largest extent of one axis: positions along it are int32 in kernels, MPI counts and index tensors."""

MOST_WORK: Final = 1 << 62
"""Most bytes of a tensor, operations of an operator and positions along a dimension: they are computed in int64."""

MOST_SEED: Final = (1 << 53) - 1
"""Largest seed: every JSON reader keeps integers up to it."""

Messages = Iterator[str]


@dataclass(frozen=True)
class Program:
    """A graph, whatever is wrong with it; `writer`: tensor -> position of the first operator that writes it, `named`:
    name -> position of the first operator that has it.
    """

    graph: Graph
    writer: Mapping[str, int]
    named: Mapping[str, int]

    @staticmethod
    def of(graph: Graph) -> Program:
        """The first of each."""
        last_first = [*enumerate(graph.operators)][::-1]
        return Program(graph, {op.output.tensor: i for i, op in last_first}, {op.name: i for i, op in last_first})

    def ready(self, name: str, position: int) -> bool:
        """Whether a tensor has a value before the operator at `position`."""
        if name in self.writer and self.writer[name] < position:
            return True
        return self.graph.holds(name) and self.graph.tensor(name).role is not Role.VALUE


@dataclass(frozen=True)
class Node:
    """An operator at its position in a program."""

    program: Program
    position: int
    op: Operator

    @cached_property
    def axes(self) -> dict[str, Axis]:
        """Axes by name."""
        return {a.name: a for a in self.op.axes}

    def tensor(self, name: str) -> Tensor:
        """A tensor of the program."""
        return self.program.graph.tensor(name)


def too_long(extent: int) -> str:
    return (
        f"has an axis of {extent}, more than int32 can count ({MOST_AXIS}); reshape it into two axes, or plan a "
        f"smaller instance"
    )


def too_large(what: str) -> str:
    return f"{what}, more than 2**62; plan a smaller instance"


def operator_names(n: Node) -> Messages:
    if n.program.named[n.op.name] != n.position:
        yield "name is used twice"


def function(n: Node) -> Messages:
    if n.op.function not in FUNCTIONS:
        yield f"unknown function {n.op.function!r}"


def arity(n: Node) -> Messages:
    low, high = n.op.spec.arity
    if not low <= len(n.op.inputs) <= high:
        yield f"{n.op.function} takes {low}..{high} inputs, got {len(n.op.inputs)}"


def axes(n: Node) -> Messages:
    if len(n.axes) != len(n.op.axes):
        yield "two axes have the same name"
    if any(a.extent < 1 for a in n.op.axes):
        yield "every axis needs an extent of at least 1"
    if any(a.extent > MOST_AXIS for a in n.op.axes):
        yield too_long(max(a.extent for a in n.op.axes))


def accesses(n: Node) -> Messages:
    for a in (*n.op.inputs, n.op.output):
        if not n.program.graph.holds(a.tensor):
            yield f"tensor {a.tensor!r} does not exist"
            return
        t = n.tensor(a.tensor)
        if len(a.index) != len(t.shape):
            yield f"{a.tensor!r} has {len(t.shape)} dimensions, access has {len(a.index)}"
        for index in a.index:
            for name, coef in index.terms:
                if name not in n.axes:
                    yield f"access to {a.tensor!r} uses unknown axis {name!r}"
                if coef < 1:
                    yield f"access to {a.tensor!r}: coefficient {coef} of {name!r} must be at least 1"
            reach = abs(index.offset) + sum(coef * n.axes[name].extent for name, coef in index.terms)
            if reach > MOST_WORK:
                yield too_large(f"reads {a.tensor!r} up to position {reach}")


def order(n: Node) -> Messages:
    for a in n.op.inputs:
        if not n.program.ready(a.tensor, n.position):
            yield f"reads {a.tensor!r} before it is written"


def one_writer(n: Node) -> Messages:
    if n.program.ready(n.op.output.tensor, n.position):
        yield f"writes {n.op.output.tensor!r}, which already has a value"


def output_index(n: Node) -> Messages:
    output = n.op.output
    for k, i in enumerate(output.index):
        extent, single = n.tensor(output.tensor).shape[k], i.single
        if single is None or n.axes[single].combine is not None or n.axes[single].extent != extent:
            yield f"dimension {k} of output {output.tensor!r} must be one parallel axis of extent {extent}"
    written = set(output.axes)
    if len(written) < len(output.index):
        yield f"two dimensions of output {output.tensor!r} have the same axis"
    for axis in n.op.axes:
        if axis.combine is None and axis.name not in written:
            yield f"axis {axis.name!r} is neither reduced nor in the output"


def combine(n: Node) -> Messages:
    op, allowed = n.op, n.op.spec.combines
    ways = {a.combine for a in op.reduction_axes}
    if len(ways) > 1:
        names = ", ".join(a.name for a in op.reduction_axes)
        yield f"reduction axes {names} are combined in {len(ways)} ways; an operator has one"
    for axis in op.reduction_axes:
        if not allowed:
            yield f"{op.function} has no reduction axes, and axis {axis.name!r} is one"
        elif axis.combine not in allowed:
            said = axis.combine.value if axis.combine else None
            yield f"{op.function} combines partial results by {allowed[0].value}, axis {axis.name!r} says {said}"


def taps(n: Node) -> Messages:
    op, named = n.op, {name for a in n.op.inputs for name in a.axes}
    for axis in op.reduction_axes:
        tap = op.kind is NodeKind.WINDOW or (op.function == "strided_gradient" and axis.name not in named)
        if axis.splittable and tap:
            yield f"{op.function} reads whole windows, so the tap axis {axis.name!r} must not be splittable"


def over(n: Node) -> Messages:
    op = n.op
    for name in op.over:
        if name not in n.axes:
            yield f"attribute over names unknown axis {name!r}"
        elif op.kind is NodeKind.NORMALISE and not op.spec.statistics and n.axes[name].splittable:
            yield f"{op.function} reads axis {name!r} whole, so it must not be splittable"


def random(n: Node) -> Messages:
    op = n.op
    if op.function != "random":
        return
    if op.attribute("distribution", "") not in DISTRIBUTIONS:
        yield f"random draws from one of {DISTRIBUTIONS}, not {op.attribute('distribution', '')!r}"
    numbers = (op.attribute("seed", -1), op.attribute("draw", -1))
    if any(type(x) is not int or not 0 <= x <= MOST_SEED for x in numbers):
        yield f"random needs attributes seed and draw: integers from 0 to {MOST_SEED}"
    if n.tensor(op.output.tensor).dtype not in ("float64", "float32"):
        yield "random makes float64 or float32 numbers"
    if op.output.axes != tuple(a.name for a in op.axes):
        yield "random counts elements row by row, so its axes are those of its result, in order"


def host(n: Node) -> Messages:
    op = n.op
    for a in op.inputs:
        if n.tensor(a.tensor).host and op.function != "from_host":
            yield f"{op.function} reads {a.tensor!r}, which lies on hosts: from_host brings it back"
    result = n.tensor(op.output.tensor)
    if result.host != (op.function == "to_host"):
        yield f"{op.output.tensor!r} lies on hosts exactly if to_host writes it"
    if op.function == "from_host" and not all(n.tensor(a.tensor).host for a in op.inputs):
        yield "from_host reads what to_host wrote"
    if op.function in HOST_COPIES and (
        op.attributes
        or [a.index for a in op.inputs] != [op.output.index]
        or {(n.tensor(a.tensor).shape, n.tensor(a.tensor).dtype) for a in op.inputs} != {(result.shape, result.dtype)}
    ):
        yield f"{op.function} copies a tensor element by element"


def rows(n: Node) -> Messages:
    if n.op.kind in BY_DATA and n.op.rows not in n.axes:
        yield f"{n.op.function} needs attribute rows: the name of the row axis"


def groups(n: Node) -> Messages:
    op = n.op
    if op.kind is not NodeKind.GROUPED:
        return
    load = op.attribute("load", EVEN)
    counts = load if isinstance(load, tuple) else ()
    numbers = all(isinstance(x, int) and x >= 0 for x in counts) and 0 < sum(int(x) for x in counts) <= MOST_COUNTED
    counted = op.rows in n.axes and len(counts) == n.axes[op.rows].extent and numbers
    if op.rows in op.inputs[-1].axes or not (load in LOADS or counted):
        yield (
            f"{op.function} needs ids that do not depend on axis {op.rows!r}, and attribute load: one of {LOADS}, or a "
            f"count for every group, 1 to {MOST_COUNTED} in all"
        )


def attention(n: Node) -> Messages:
    if n.op.kind is NodeKind.ATTENTION and (reason := attention_operator.wrong(n.op)):
        yield reason


def scan(n: Node) -> Messages:
    if n.op.kind is NodeKind.SCAN and (reason := scan_operator.wrong(n.op, n.program.graph)):
        yield reason


def pairs(n: Node) -> Messages:
    if n.op.function == "product_sum" and len(n.op.inputs) % 2:
        yield "product_sum takes pairs of inputs"


def epilogue(n: Node) -> Messages:
    if reason := fused.wrong(n.op):
        yield reason


def arithmetic(n: Node) -> Messages:
    """Factors of one type may be summed in a wider one: then `arithmetic` is the type of the factors."""
    graph, op, stated = n.program.graph, n.op, n.op.attribute("arithmetic", "")
    if not stated:
        return
    factors = op.inputs[:-1] if op.kind is NodeKind.GROUPED else op.inputs[: fused.factors(op)]
    result = graph.tensor(op.output.tensor)
    if op.kind not in (NodeKind.CONTRACT, NodeKind.GROUPED) or {graph.tensor(a.tensor).dtype for a in factors} != {
        stated
    }:
        yield f"attribute arithmetic is {stated!r}: it must be the type of every factor of a product"
    elif not result.dtype.startswith("float") or result.element_bytes < ELEMENT_BYTES[str(stated)]:
        yield f"sums {stated!r} in the narrower {result.dtype!r}; leave out attribute arithmetic"


def work(n: Node) -> Messages:
    graph, op = n.program.graph, n.op
    if graph.work(op) > MOST_WORK:
        yield too_large(f"does {graph.work(op)} operations on one device")
    operands = [n.tensor(a.tensor) for a in (*op.inputs, op.output)]
    moved = sum(t.elements * t.element_bytes for t in operands)
    if op.kind is NodeKind.GATHER:  # one element of the table per point
        moved += graph.points(op) * operands[0].element_bytes
    if op.kind is NodeKind.SCAN:
        moved += scan_operator.bytes_moved(op, graph.body(op))
    if moved > MOST_WORK:
        yield too_large(f"reads and writes {moved} bytes")
