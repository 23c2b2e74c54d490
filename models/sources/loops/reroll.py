"""Rolls loops up that somebody unrolled (loop rerolling): equal turns of a program become one `scan`.

    h1 = f(h0, x[0]),  h2 = f(h1, x[1]),  ..,  y = [h1, h2, ..]      ->      y = scan(f; h0, x)

Where turns begin and what they read is found by `repeats` and `turns`; what does not fit stays as it is.  Readers of a
turn's value read a slice of all of them, and a copy that puts such slices side by side is one copy (`stack_slices`).

Source: LLVM, pass LoopReroll (2013), for the name and the idea of matching turns operator by operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...program.graph import Graph, GraphError, Tensor
from ...program.index import Access, Affine, Axis
from ...program.operators import Operator, Value
from ..building.lifting import Lifted
from ..patterns.recognise import recognise
from .recurrence import NoLoop, Recurrence, Written, write
from .repeats import stretches
from .stacked import stack_slices
from .turns import Turns, turns


def reroll_loops(graph: Graph) -> Graph:
    """The graph with its unrolled loops as operators.

    >>> from ..building.builder import Builder
    >>> g = Builder("sums")
    >>> h, x = g.input("h", (4, 3)), g.input("x", (8, 4, 3))
    >>> for k in range(8):
    ...     now = Access(x, (Affine(offset=k), Affine.axis("b"), Affine.axis("f")))
    ...     axes = [Axis("b", 4), Axis("f", 3)]
    ...     s = g.operator(f"s{k}", "multiply", axes, [Access(h, now.index[1:]), now], ("b", "f"))
    ...     h = g.map(f"h{k}", "tanh", s)
    >>> [op.function for op in reroll_loops(g.build(h)).operators]
    ['scan', 'copy', 'copy']
    """
    while (found := _once(graph)) is not None:
        graph = found
    return graph


def _once(graph: Graph) -> Graph | None:
    """The graph with its first loop rolled up."""
    for stretch in stretches(graph):
        for found in turns(graph, stretch):
            try:
                return _replaced(graph, found)
            except (NoLoop, GraphError):
                continue
    return None


class _Emitted:
    """Operators in the place of a stretch."""

    def __init__(self, graph: Graph) -> None:
        self.tensors = {t.name: t for t in graph.tensors}
        self.operators: list[Operator] = []

    def __call__(
        self,
        name: str,
        function: str,
        axes: Sequence[Axis],
        inputs: Sequence[Access],
        out: Sequence[str],
        attributes: Sequence[tuple[str, Value]] = (),
        dtype: str = "",
    ) -> str:
        free, k = name, 1
        while free in self.tensors:
            k += 1
            free = f"{name}#{k}"
        extent = {a.name: a.extent for a in axes}
        self.tensors[free] = Tensor(free, tuple(extent[n] for n in out), dtype)
        written = Access(free, tuple(map(Affine.axis, out)))
        self.operators.append(Operator(free, function, tuple(axes), tuple(inputs), written, tuple(sorted(attributes))))
        return free


def _replaced(graph: Graph, found: Turns) -> Graph:
    """The graph with a loop in the place of the turns.  Raises `NoLoop`, `GraphError`."""
    emitted, r = _Emitted(graph), _recognised(found.recurrence)
    made = write(r, emitted, emitted.tensors.__getitem__)
    gone = {op.output.tensor for op in graph.operators[found.start : found.stop]}
    places = {
        name: _place(made, r.carries, own, r.turns - 1 - k if r.reverse else k, r.turn)
        for name, (own, k) in found.read.items()
    }
    behind, writer = list[Operator](), dict[str, Operator]()
    for op in graph.operators[found.stop :]:
        inputs = tuple(_moved(a, places) if a.tensor in places else a for a in op.inputs)
        behind.append(stack_slices(replace(op, inputs=inputs), emitted.tensors, writer))
        writer[op.output.tensor] = behind[-1]
    kept = []
    for name in dict.fromkeys(graph.results):  # what the user wants keeps its name
        if name in places:
            t = graph.tensor(name)
            axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(t.shape))
            index = tuple(Affine.axis(a.name) for a in axes)
            kept.append(Operator(name, "copy", axes, (_moved(Access(name, index), places),), Access(name, index)))
    wanted = {*graph.results}
    tensors = tuple(t for t in emitted.tensors.values() if t.name not in gone or t.name in wanted)
    operators = (*graph.operators[: found.start], *emitted.operators, *kept, *behind)
    return _used(replace(graph, tensors=tensors, operators=operators, specified=())).check()


def _recognised(r: Recurrence) -> Recurrence:
    """The recurrence with compositions in its body as named functions."""
    wanted = dict.fromkeys((*(n for _, n in r.carries), *r.each))
    body = recognise(replace(r.body, outputs=tuple(wanted)).check()).graph
    return replace(r, body=replace(body, outputs=()))


Place = tuple[Lifted, str, int]


def _place(made: Written, carries: Sequence[tuple[str, str]], own: str, k: int, turn: str) -> Place:
    """Where the value `own` of turn k stands: the access, the axis of turns and the place along it."""
    ends = {n: c for c, n in carries}
    return (made.each[own], turn, k) if own in made.each else (made.last[ends[own]], turn, 0)


def _moved(a: Access, places: dict[str, Place]) -> Access:
    """A read of one turn's value as a read of where it stands."""
    value, turn, k = places[a.tensor]
    at = {turn: Affine(offset=k), **dict(zip(value.names, a.index, strict=True))}
    index = []
    for i in value.access.index:
        if not i.terms:
            index.append(i)
        else:
            (name, c), *more = i.terms
            if more or c != 1 or i.offset:
                raise NoLoop("a value of every iteration does not stand axis by axis")
            index.append(at[name])
    return Access(value.access.tensor, tuple(index))


def _used(graph: Graph) -> Graph:
    """The graph without operators that nobody reads."""
    alive, kept = {*graph.results}, []
    for op in reversed(graph.operators):
        if op.output.tensor in alive:
            kept.append(op)
            alive |= {a.tensor for a in op.inputs}
    written = {op.output.tensor for op in graph.operators}
    tensors = tuple(t for t in graph.tensors if t.name in alive or t.name not in written)
    return replace(graph, tensors=tensors, operators=tuple(reversed(kept)))
