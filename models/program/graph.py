"""Defines the language of programs, the computation graph, as data:

    graph     ::=  name  tensor*  operator*  outputs: tensor*  state: (parameter -> next value)*  leading: dimension*
    tensor    ::=  name  [extent, ..]  element-type  role                  shape in digits: 1024 = 16 heads x 64
    role      ::=  input  |  parameter  |  value                           values have one writer, the others none
    operator  ::=  access = [combine axis ..:] function(access, ..; attribute = value, ..)    axis < extent [whole], ..
    axis      ::=  parallel: it indexes the output, once  |  reduced: partial results are combined
    combine   ::=  sum  |  max  |  min                                     follows from the function
    access    ::=  tensor[index, ..]                                       an index per dimension
    index     ::=  coefficient axis + .. + offset  |  :                    monotone; what is out of range is not read
    function  ::=  a row of `operators.FUNCTIONS`, of kind
                   contract | map | reduce | normalise | window | gather | scatter | grouped | layout | attention
                   | scan | opaque

For example a convolution with stride 2, over a sequence with one element of padding:

    y[n, o, h] = sum c r: product(x[n, c, 2 h + r - 1], w[o, c, r])    n < 8, o < 16, h < 32, c < 4, r < 3

Control flow, aliases and strides do not exist: every tensor is written once, by one operator, in every point.  What
else is demanded is the table `invariants.INVARIANTS`; what functions mean stands in `operators`; `notation` prints
operators like this, `graph_file` writes graphs as JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from types import MappingProxyType

from . import attention, attention_pairs, scan
from .graph_file import graph_fields, graph_text
from .invariants import Broken, first_broken
from .operators import NodeKind, Operator
from .specified import Specified
from .tensor import ELEMENT_BYTES, STATED, GraphError, Role, Tensor, UnsupportedOperators

__all__ = ["ELEMENT_BYTES", "STATED", "Graph", "GraphError", "Role", "Tensor", "UnsupportedOperators"]


@dataclass(frozen=True)
class Graph:
    """A program: see the module's first lines.  `outputs`: tensors the user wants, in order.

    `state`: pairs (parameter, tensor that holds its next value).  The next value is stored where the parameter was, in
    the layout that the parameter has at the start of the step, so that steps can follow each other.

    `leading`: pairs (tensor, dimension) whose axes come first in the order of axes (`models.layout.classes`): of a
    program that was made from another one, whose order it keeps.

    `specified`: which tensors the user's own operators define (`models.program.specified`).
    """

    name: str
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    outputs: tuple[str, ...]
    state: tuple[tuple[str, str], ...] = ()
    leading: tuple[tuple[str, int], ...] = ()
    specified: tuple[Specified, ...] = ()
    _by_name: dict[str, Tensor] = field(init=False, repr=False, compare=False, hash=False, default_factory=dict)
    _by_operator: dict[str, Operator] = field(init=False, repr=False, compare=False, hash=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name.update({t.name: t for t in self.tensors})
        self._by_operator.update({op.name: op for op in self.operators})

    def holds(self, name: str) -> bool:
        """Whether there is a tensor called `name`."""
        return name in self._by_name

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`; KeyError if there is none."""
        return self._by_name[name]

    def operator(self, name: str) -> Operator:
        """The operator called `name`; KeyError if there is none."""
        return self._by_operator[name]

    def flops_per_point(self, op: Operator) -> int:
        """Floating-point operations of `op` per point of its iteration space (attention: per pair of query and key):
        none where the result is integer or logical.
        """
        if not self.tensor(op.output.tensor).dtype.startswith(("float", "bfloat")):
            return 0
        if op.kind is NodeKind.OPAQUE:  # what its reference does
            flops = op.attribute("flops", op.spec.flops)
            return flops if isinstance(flops, int) and flops >= 0 else op.spec.flops
        if op.kind is NodeKind.ATTENTION:
            return attention.operations(op)
        if op.kind is NodeKind.SCAN:
            return scan.operations(op, self.body(op))
        return op.spec.flops * (len(op.inputs) // 2 if op.function == "product_sum" else 1)

    def computed_in(self, op: Operator) -> str:
        """The element type whose peak counts for `op`: its result's; attention computes in its first operand's, a
        product with attribute `arithmetic` in that of its factors.
        """
        stated = op.attribute("arithmetic", "")
        if stated:
            return str(stated)
        return self.tensor((op.inputs[0] if op.kind is NodeKind.ATTENTION else op.output).tensor).dtype

    def points(self, op: Operator) -> int:
        """Points of the iteration space of `op` that cost: all, but one row of a table that rows are picked from or
        added to, and one group of a grouped product; of attention the pairs of query and key that its band leaves, of a
        scan its rows.
        """
        if op.kind is NodeKind.ATTENTION:
            return attention_pairs.points(op)
        if op.kind is NodeKind.SCAN:
            return prod(op.axis(name).extent for name in scan.rows(op))
        return prod(a.extent for a in op.axes if a.name != op.rows)

    def work(self, op: Operator) -> int:
        """Floating-point operations of `op` on one device."""
        return self.points(op) * self.flops_per_point(op)

    def body(self, op: Operator) -> Graph:
        """The body of a scan.  Raises `GraphError` if its text is none."""
        return body_of(str(op.attribute("body", "")))

    @property
    def results(self) -> tuple[str, ...]:
        """What running the graph gives: its outputs, then the next values of its state."""
        return tuple(dict.fromkeys((*self.outputs, *(value for _, value in self.state))))

    def writer(self) -> Mapping[str, int]:
        """Tensor name -> position of the operator that writes it."""
        return self._writer

    def readers(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        """Tensor name -> ((operator position, input position), ..), in order."""
        return self._readers

    @cached_property  # asked for every tensor of a plan: found once
    def _writer(self) -> Mapping[str, int]:
        return MappingProxyType({op.output.tensor: i for i, op in enumerate(self.operators)})

    @cached_property
    def _readers(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        out: dict[str, list[tuple[int, int]]] = {t.name: [] for t in self.tensors}
        for i, op in enumerate(self.operators):
            for j, a in enumerate(op.inputs):
                out[a.tensor].append((i, j))
        return MappingProxyType({name: tuple(found) for name, found in out.items()})

    def check(self) -> Graph:
        """Return self if every invariant of `invariants.INVARIANTS` holds, else raise `GraphError`; its note is the
        operator in index notation.
        """
        if self._broken is not None:
            raise GraphError(self._broken.place, self._broken.message, self._broken.notation)
        return self

    @cached_property  # everybody who is given a graph asks
    def _broken(self) -> Broken | None:
        return first_broken(self)

    def to_json(self) -> str:
        """Canonical JSON text (sorted keys, no spaces): equal graphs give equal bytes."""
        return self._text

    @cached_property  # its bytes and its hash are asked for in turn
    def _text(self) -> str:
        return graph_text(self)

    def sha256(self) -> str:
        """Hash of the canonical JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @staticmethod
    def from_json(text: str) -> Graph:
        """Read `to_json` text.  Raises `GraphError` naming the place of the first problem."""
        return Graph(*graph_fields(text)).check()


class SameGraph:
    """A graph by identity: the key of what is remembered about it, which its content would take long to compare."""

    __slots__ = ("graph",)

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameGraph) and self.graph is other.graph

    def __hash__(self) -> int:
        return id(self.graph)


@lru_cache(maxsize=256)
def body_of(text: str) -> Graph:
    """The graph of a text, read once: equal loops have equal bodies."""
    return Graph.from_json(text)
