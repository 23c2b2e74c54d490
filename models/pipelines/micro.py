"""The graph of one micro-batch: a training step with its batch axis shortened, everything else as it
was.

The batch is the first dimension of the inputs.  Dimensions of tensors and axes of operators that run along with it are
found by joining whatever an index that is one axis alone joins; all of them are shortened by the same factor:

    gradient of the step  =  sum over the micro-batches of the gradient of theirs

because attributes stay as they are: a mean over the batch keeps the factor 1/batch of the whole.  That holds where
elements of the batch meet nowhere but in sums, those of weight gradients and of the loss: whoever checks a pipeline
looks for that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

from ..program.attention import role
from ..program.graph import Graph, Role, Tensor
from ..program.index import Access
from ..program.operators import NodeKind, Operator
from ..text import InputError

Place = tuple[str, str, str]
"""("tensor", name, dimension) or ("axis", operator, name)."""


Along = Callable[[Place], bool]
Length = Callable[[int, Place, str], int]


class Joined:
    """Classes of things that are joined pair by pair."""

    def __init__(self) -> None:
        self._above: dict[Hashable, Hashable] = {}

    def find(self, item: Hashable) -> Hashable:
        """The representative of an item's class."""
        path = []
        while (above := self._above.get(item, item)) != item:
            path.append(item)
            item = above
        for p in path:
            self._above[p] = item
        return item

    def items(self) -> set[Hashable]:
        """Whatever was joined."""
        return {*self._above, *self._above.values()}

    def join(self, a: Hashable, b: Hashable) -> None:
        """Make two classes one."""
        self._above[self.find(a)] = self.find(b)


def batch_of(graph: Graph) -> int:
    """The batch size: the first dimension of the first input that is no constant.

    Raises `InputError` if there is none.
    """
    for t in _inputs(graph):
        if t.shape:
            return t.shape[0]
    raise InputError(f"graph {graph.name!r} has no input with a batch dimension: it cannot be cut into micro-batches")


def micro_batch(graph: Graph, count: int, along: Along | None = None) -> Graph:
    """The graph of one of `count` equal micro-batches; `along`: what `batch_test` says of the graph, where it is known.

    Raises `InputError` that names what stands in the way.

    >>> from ..sources.zoo import build
    >>> micro_batch(build("mlp-unity", batch=32), 4).tensor("fc2").shape
    (8, 10)
    """
    if count == 1:
        return graph
    batch = batch_of(graph)
    if batch % count:
        raise InputError(f"a batch of {batch} cannot be cut into {count} equal micro-batches; take a divisor")
    along = along or batch_test(graph)

    def length(extent: int, place: Place, what: str) -> int:
        if not along(place):
            return extent
        if extent != batch:
            raise InputError(f"{what} runs along the batch of {batch} and has {extent} elements: no micro-batches")
        return extent // count

    tensors = tuple(_tensor(t, length, along) for t in graph.tensors)
    operators = tuple(_operator(op, length, along) for op in graph.operators)
    return replace(graph, tensors=tensors, operators=operators, specified=()).check()


def batch_test(graph: Graph) -> Along:
    """What says of a dimension or an axis whether it runs along the batch."""
    batch = batch_of(graph)
    joined = Joined()
    for op in graph.operators:
        for a in (*op.inputs, op.output):
            for k, index in enumerate(a.index):
                if index.single is not None:
                    joined.join(("tensor", a.tensor, str(k)), ("axis", op.name, index.single))
    for parameter, value in graph.state:
        for k in range(len(graph.tensor(parameter).shape)):
            joined.join(("tensor", parameter, str(k)), ("tensor", value, str(k)))
    first = {("tensor", t.name, "0") for t in _inputs(graph) if t.shape and t.shape[0] == batch}
    roots = {joined.find(place) for place in first}
    return frozenset({*first, *(place for place in joined.items() if joined.find(place) in roots)}).__contains__


def _inputs(graph: Graph) -> Iterator[Tensor]:
    return (t for t in graph.tensors if t.role is Role.INPUT and t.contents is None)


def _tensor(t: Tensor, length: Length, along: Along) -> Tensor:
    places = [("tensor", t.name, str(k)) for k in range(len(t.shape))]
    if not any(along(p) for p in places):
        return t
    if t.role is Role.PARAMETER or t.contents is not None:
        what = "parameter" if t.contents is None else "constant"
        raise InputError(f"{what} {t.name!r} has a dimension along the batch: no micro-batches")
    if sum(map(along, places)) > 1:
        raise InputError(f"tensor {t.name!r} has two dimensions along the batch (examples in pairs): no micro-batches")
    shape = tuple(length(n, p, f"tensor {t.name!r}") for n, p in zip(t.shape, places, strict=True))
    return replace(t, shape=shape, source_shape=None)


def _operator(op: Operator, length: Length, along: Along) -> Operator:
    for a in (*op.inputs, op.output):
        _plain(op, a, along)
    short = {a.name for a in op.axes if along(("axis", op.name, a.name))}
    if not short:
        return op
    if len(short) > 1:
        raise InputError(f"operator {op.name!r} ({op.function}) takes examples in pairs: no micro-batches")
    summed = any(a.name in short for a in op.reduction_axes)
    more = op.kind is NodeKind.WINDOW or op.function == "fused_product"
    if short & {*op.over, op.rows} or op.kind in (NodeKind.OPAQUE, NodeKind.SCAN) or (summed and more):
        raise InputError(f"operator {op.name!r} ({op.function}) looks at the whole batch: no micro-batches")
    if short & _positional(op):
        raise InputError(f"operator {op.name!r} ({op.function}) knows where in the batch it is: no micro-batches")
    axes = tuple(
        replace(a, extent=length(a.extent, ("axis", op.name, a.name), f"operator {op.name!r}")) for a in op.axes
    )
    return replace(op, axes=axes)


def _positional(op: Operator) -> set[str]:
    """Axes along which a position matters by itself: of constants, of parts that are overwritten, of masks."""
    if op.function in ("constant", "random", "update"):
        return {a.name for a in op.axes}
    positions = {str(op.attribute("along", "")), *role(op, "query")}
    if op.function == "copy_gradient":
        at = op.attribute("at", ())
        positions |= {name for k, name in enumerate(op.output.axes) if isinstance(at, tuple) and k in at}
    return positions


def _plain(op: Operator, a: Access, along: Along) -> None:
    for k, index in enumerate(a.index):
        batch = any(along(("axis", op.name, name)) for name, _ in index.terms)
        if index.single is None and (batch or along(("tensor", a.tensor, str(k)))):
            raise InputError(
                f"operator {op.name!r} reads {a.tensor!r} along the batch at more than one place, or at one of its "
                f"own: no micro-batches"
            )
