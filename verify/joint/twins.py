"""Congruence, checked on the face of it: two operators that are the same but for names give the same tensor, bit for
bit, so nothing need be known of what they compute, nor of its element type.

    place   f, b1, a1, b2, a2, ..     b and a are the same operator of the same operands; f reads what b1 writes
    node    f, with what b1 writes replaced by what a1 writes, then that of b2 by that of a2, ..

Likewise an operator that runs once more: a new tensor is what it gives, whatever that is.

    place   f
    node    f, writing another tensor of the same shape and element type

And what goes to the host's memory and comes back:

    place   f
    node    a copy to the host of what f writes, a new tensor
    place   f, f once more, that copy
    node    the copy back, writing what f once more writes
"""

from __future__ import annotations

from dataclasses import replace

from ...models.program.graph import Graph
from ...models.program.index import Access
from ...models.program.operators import NodeKind, Operator

NO_AXES = frozenset({"arithmetic", "approximate", "dtype", "epilogue"})
"""Attributes whose text names no axis."""


def wrong_twins(node: Operator, place: list[Operator], graph: Graph) -> str:
    """Why a node is not the first of the place with operands replaced by equal ones; empty if it is."""
    if len(place) < 3 or len(place) % 2 == 0:
        return "its place is not an operator and pairs of equal ones"
    expected = place[0]
    for b, a in zip(place[1::2], place[2::2], strict=True):
        old, new = b.output.tensor, a.output.tensor
        if old == new or not _same(a, b, graph):
            return f"operators {a.name!r} and {b.name!r} are not the same of two tensors"
        if old not in {x.tensor for x in expected.inputs}:
            return f"nothing reads what {b.name!r} writes"
        inputs = tuple(replace(x, tensor=new) if x.tensor == old else x for x in expected.inputs)
        expected = replace(expected, inputs=inputs)
    return "" if node == replace(expected, name=node.name) else f"it is not {place[0].name!r} with equal operands"


def wrong_again(node: Operator, place: list[Operator], graph: Graph) -> str:
    """Why a node is not the only operator of the place once more, writing another tensor; empty if it is."""
    if len(place) != 1:
        return "its place is not one operator"
    op, s, t = place[0], graph.tensor(place[0].output.tensor), graph.tensor(node.output.tensor)
    if op.kind is NodeKind.OPAQUE:
        return f"of {op.name!r} nothing is known, not even that it gives the same twice"
    if (s.shape, s.dtype) != (t.shape, t.dtype):
        return f"{t.name!r} has not the shape and element type of {s.name!r}"
    expected = replace(op, name=node.name, output=replace(op.output, tensor=t.name))
    return "" if node == expected and s.name != t.name else f"it is not {op.name!r} once more"


def wrong_copy(node: Operator, place: list[Operator], graph: Graph) -> str:
    """Why a node is not a copy to the host of what the place writes, or the copy back; empty if it is one."""
    if len(place) not in (1, 3):
        return "its place is not one operator, or that one, what computes it again and the copy on the host"
    first, away = place[0].output.tensor, node.function == "to_host"
    read, written = graph.tensor(node.inputs[0].tensor), graph.tensor(node.output.tensor)
    if node.function not in ("to_host", "from_host") or away != (len(place) == 1):
        return f"{node.function!r} is not the copy that its place calls for"
    if (read.shape, read.dtype) != (written.shape, written.dtype) or written.host != away or read.host == away:
        return f"{written.name!r} is not {read.name!r} elsewhere"
    names = [a.name for a in node.axes]
    box = tuple(((name, 1),) for name in names)
    plain = [tuple(i.terms for i in a.index) for a in (*node.inputs, node.output)] == [box, box]
    if node.attributes or not plain or any(i.offset or i.whole for a in (*node.inputs, node.output) for i in a.index):
        return "it does not copy element by element"
    if away:
        return "" if read.name == first else f"it copies {read.name!r}, not what {place[0].name!r} writes"
    again, copy = place[1:]
    if wrong := wrong_again(again, place[:1], graph):
        return wrong
    if copy.function != "to_host" or copy.inputs[0].tensor != first or copy.output.tensor != read.name:
        return f"{copy.name!r} does not take {first!r} to {read.name!r}"
    return "" if written.name == again.output.tensor else f"{again.name!r} does not write {written.name!r}"


def _same(a: Operator, b: Operator, graph: Graph) -> bool:
    """Whether two operators are one but for the names of their axes, and those may differ only where no attribute can
    speak of an axis.
    """
    s, t = graph.tensor(a.output.tensor), graph.tensor(b.output.tensor)
    if a.kind is NodeKind.OPAQUE or (s.shape, s.dtype) != (t.shape, t.dtype) or len(a.axes) != len(b.axes):
        return False
    names = {y.name: x.name for x, y in zip(a.axes, b.axes, strict=True)}
    if any(x != y for x, y in names.items()):
        for key, value in a.attributes:
            texts = value if isinstance(value, tuple) else (value,)
            if key not in NO_AXES and any(isinstance(v, str) for v in texts):
                return False

    def rename_axes(x: Access) -> Access:
        return replace(x, index=tuple(replace(i, terms=tuple((names[n], c) for n, c in i.terms)) for i in x.index))

    return (
        (a.function, a.attributes) == (b.function, b.attributes)
        and a.axes == tuple(replace(x, name=names[x.name]) for x in b.axes)
        and a.inputs == tuple(rename_axes(x) for x in b.inputs)
        and a.output.index == rename_axes(b.output).index
    )
