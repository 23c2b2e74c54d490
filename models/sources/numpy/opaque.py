"""Translates opaque kernels: a user's function stands for a pure NumPy reference, which is what gets
analysed.

    @opaque(reference=softmax)
    def fast_softmax(x): ..            # any implementation that computes what `softmax` computes

The reference is traced on its own.  An output dimension may be split if splitting its class of axes everywhere in the
reference needs no communication inside (schedule consistency up to renaming of axes, thesis section 4.6):

    every access to a dimension of the class is one axis of the class over its full extent; no operator reduces over the
    class, takes statistics over it, or has two axes of it

An argument dimension of such a class is read as the output is split; every other one is read whole.  A reference that
is one contraction keeps its summed axes, which leave partial sums.

Source: thesis on automatic partitioning of array programs, sections 4.6 and 4.6.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import ParamSpec, TypeVar

from ...layout.classes import copy_key, operator_key
from ...program.graph import Graph, Role
from ...program.index import Access, Affine, Axis
from ...program.opaque import qualified_name, register
from ...program.operators import NodeKind, Operator, Value
from .array import TracedArray
from .recorder import Recorder, TraceError, place
from .write import materialise

P = ParamSpec("P")
R = TypeVar("R")
Node = tuple[str, str]
"""(`copy_key` of a tensor, dimension) or (`operator_key`, axis)."""


def opaque(reference: Callable[..., object]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function of arrays as opaque, with a pure NumPy function that computes the same."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        name = qualified_name(function)

        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            found = next((a for a in args if isinstance(a, TracedArray)), None)
            if found is None:
                return function(*args, **options)
            if options or not all(isinstance(a, TracedArray) for a in args):
                raise TraceError(place(), f"{name}: an opaque kernel takes traced arrays by position, nothing else")
            return found.record(lambda: _recorded(found.recorder, name, reference, list(args)))  # type: ignore[return-value, arg-type]

        register(name, call)
        return call

    return mark


def _recorded(
    recorder: Recorder, name: str, reference: Callable[..., object], args: Sequence[TracedArray]
) -> TracedArray:
    views = [materialise(recorder, a.view) for a in args]
    inner = Recorder(name)
    names = [f"argument{k}" for k in range(len(args))]
    result = reference(
        *[
            TracedArray.of(inner, inner.input(n, v.shape, recorder.dtype(v).name, Role.INPUT))
            for n, v in zip(names, views, strict=True)
        ]
    )
    if not isinstance(result, TracedArray):
        raise TraceError(place(), f"{name}: its reference must return one array")
    graph, (out,) = inner.finish([result.view], ["result"])
    axes, reads = _single(graph, names) or _composite(graph, out, names)
    work = sum(graph.flops_per_point(op) * prod(a.extent for a in op.axes) for op in graph.operators)
    attributes: dict[str, Value] = {
        "kernel": name,
        "flops": -(-work // prod(a.extent for a in axes)),
        "positional": tuple(a.name for a in axes),
    }
    inputs = [Access(v.tensor, index) for v, index in zip(views, reads, strict=True)]
    kept = [a.name for a in axes if a.combine is None]
    made = recorder.emit(
        "opaque", name.rpartition(":")[2].rpartition(".")[2], axes, inputs, kept, inner.dtype(result.view), attributes
    )
    return TracedArray.of(recorder, made)


Signature = tuple[tuple[Axis, ...], list[tuple[Affine, ...]]]
"""Axes of the opaque operator, and the index of every argument."""


def _single(graph: Graph, names: Sequence[str]) -> Signature | None:
    """A reference of one contraction, each argument read once along whole dimensions: its own axes and accesses."""
    if len(graph.operators) != 1 or graph.operators[0].kind is not NodeKind.CONTRACT:
        return None
    op = graph.operators[0]
    found = {a.tensor: a for a in op.inputs}
    if sorted(a.tensor for a in op.inputs) != sorted(names):
        return None
    if any(
        i.single is None or op.axis(i.single).extent != n
        for a in op.inputs
        for i, n in zip(a.index, graph.tensor(a.tensor).shape, strict=True)
    ):
        return None
    return op.axes, [found[n].index for n in names]


def _composite(graph: Graph, out: str, names: Sequence[str]) -> Signature:
    """The output's dimensions as axes; see the module docstring."""
    find = _classes(graph)
    broken = {find(n) for op in graph.operators for n in _broken(op, graph, find)}
    axes: list[Axis] = []
    of_class: dict[Node, str] = {}
    for k, n in enumerate(graph.tensor(out).shape):
        node = find((copy_key(out), str(k)))
        free = node not in broken and node not in of_class
        axes.append(Axis(f"i{k}", n, None, free))
        if free:
            of_class[node] = f"i{k}"
    reads = []
    for name in names:
        dims = [of_class.get(find((copy_key(name), str(k)))) for k in range(len(graph.tensor(name).shape))]
        reads.append(tuple(Affine.everything() if a is None else Affine.axis(a) for a in dims))
    return tuple(axes), reads


def _classes(graph: Graph) -> Callable[[Node], Node]:
    """Dimensions and axes joined through accesses: the representative of each."""
    parent: dict[Node, Node] = {}

    def find(x: Node) -> Node:
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x

    for op in graph.operators:
        for a in (*op.inputs, op.output):
            for k, index in enumerate(a.index):
                for name, _ in index.terms:
                    parent[find((operator_key(op.name), name))] = find((copy_key(a.tensor), str(k)))
    return find


def _broken(op: Operator, graph: Graph, find: Callable[[Node], Node]) -> list[Node]:
    """Axes and dimensions whose class cannot be split without communication inside the reference."""
    out: list[Node] = []
    rows = op.attribute("rows", "")
    classes = [find((operator_key(op.name), a.name)) for a in op.axes]
    for a, c in zip(op.axes, classes, strict=True):
        if (
            a.combine is not None
            or a.name in op.over
            or a.name == rows
            or not a.splittable
            or classes.count(c) > 1
            or op.kind is NodeKind.LAYOUT
            and not op.inputs
        ):
            out.append((operator_key(op.name), a.name))
    for access in (*op.inputs, op.output):
        dims = [find((copy_key(access.tensor), str(k))) for k in range(len(access.index))]
        for k, (index, n) in enumerate(zip(access.index, graph.tensor(access.tensor).shape, strict=True)):
            if index.single is None or op.axis(index.single).extent != n or dims.count(dims[k]) > 1:
                out.append((copy_key(access.tensor), str(k)))
    return out
