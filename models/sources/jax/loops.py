"""Reads a `stablehlo.while` of the shape that `lax.scan` and `fori_loop` make as one loop.

    counters          end the loop and say places: run ahead (`scalars`)
    returned as is    the same in every turn: weights, and arrays of which a turn reads slice i or n - 1 - i
    overwritten       an array of which a turn writes slice i and reads nothing: results of every turn
    all else          is carried

The body is recorded once, on a recorder of its own, with a slice of every array that is read in slices as an input;
`sources.loops` makes an operator of it.  Loops of another shape are recorded turn by turn (None).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...program.graph import Graph, GraphError, Role
from ...program.index import Access, Affine, Axis
from ...program.operators import Value as Attribute
from ..building.lifting import Lifted
from ..loops.recurrence import NoLoop, Recurrence, write
from ..numpy.array import TracedArray
from ..numpy.recorder import Recorder, TraceError
from ..numpy.views import View
from .ir import Block, Op, Result
from .operators import Array, Machine, Value, cast_array, dtype_of
from .scalars import Counted, Differs, Number, count_turns, progression

TURN = "turn"


@dataclass
class Watch:
    """What a turn does with parts of arrays while its body is recorded; `next`: how many parts it has met."""

    m: Machine
    outside: Recorder
    places: tuple[tuple[tuple[int, ...], ...] | None, ...]
    bound: dict[str, Array] = field(default_factory=dict)
    known: dict[str, Lifted] = field(default_factory=dict)
    stacks: dict[str, int] = field(default_factory=dict)
    written: dict[int, tuple[int, Value]] = field(default_factory=dict)
    directions: set[int] = field(default_factory=set)
    next: int = 0

    def here(self) -> tuple[tuple[int, ...], ...] | None:
        """Places of the part that is met now."""
        self.next += 1
        return self.places[self.next - 1]

    def moving(self, at: tuple[tuple[int, ...], ...], shape: Sequence[int], sizes: Sequence[int]) -> int | None:
        """The dimension along which a part goes on, None if it stays.  Raises `Differs`."""
        inside = [tuple(max(0, min(p, n - s)) for p in ps) for ps, n, s in zip(at, shape, sizes, strict=True)]
        found = [d for d, ps in enumerate(inside) if len({*ps}) > 1]
        if not found:
            return None
        step = progression(inside[found[0]])
        if len(found) > 1 or not step or sizes[found[0]] != 1:
            raise Differs("parts that go on unevenly")
        self.directions.add(1 if step > 0 else -1)
        return found[0]

    def slice(self, x: Value, sizes: Sequence[int]) -> list[Value] | None:
        """A part of an array that is the same in every turn; None: an ordinary one."""
        at = self.here()
        if at is None:
            raise Differs("a part at a place that is data")
        d = self.moving(at, x.array.shape, sizes)
        if d is None:
            return None
        source = self._source(x.array)
        if source is None:
            raise Differs("slices of an array that an iteration makes")
        places = sorted(max(0, min(p, source.shape[d] - 1)) for p in at[d])
        step = places[1] - places[0]
        index = [slice(a := max(0, min(p[0], n - s)), a + s) for p, n, s in zip(at, source.shape, sizes, strict=True)]
        index[d] = slice(places[0], places[-1] + 1, step)
        name = f"slice{len(self.known)}"
        names = [f"d{k}" for k in range(source.ndim - 1)]
        along: list[str | None] = [*names[:d], TURN, *names[d:]]
        self.known[name] = _lifted(self.outside, source[tuple(index)], along, tuple(names))
        shape = [n for k, n in enumerate(sizes) if k != d]
        made = TracedArray.of(self.m.recorder, self.m.recorder.input(name, shape, _name(source), Role.INPUT))
        return [Value(cast_array(np.expand_dims(made, d)))]

    def update(self, x: Value, part: Value) -> list[Value] | None:
        """A slice of an array that only takes results; None: an ordinary one."""
        at = self.here()
        stack = x.array.view.tensor if isinstance(x.array, TracedArray) else ""
        if stack not in self.stacks:
            if at is None or self.moving(at, x.array.shape, part.array.shape) is not None:
                raise Differs("a part of a carried array")
            return None
        d = None if at is None else self.moving(at, x.array.shape, part.array.shape)
        turns = len(at[0]) if at else 0
        if d is None or at is None or sorted(at[d]) != [*range(x.array.shape[d])] or turns != x.array.shape[d]:
            raise Differs("results that do not fill their array")
        if any(n != x.array.shape[k] for k, n in enumerate(part.array.shape) if k != d):
            raise Differs("results that do not fill their array")
        self.written[self.stacks[stack]] = (d, part)
        return [x]

    def bind(self, array: Array) -> Array:
        """An array from outside of the loop, in the body."""
        if not isinstance(array, TracedArray):
            return array
        for name, known in self.bound.items():
            if known is array:
                return TracedArray.of(self.m.recorder, self.m.recorder.plain(name))
        name = f"given{len(self.bound)}"
        self.bound[name] = array
        view = self.m.recorder.input(name, array.shape, _name(array), Role.INPUT)
        names = [f"d{k}" for k in range(array.ndim)]
        self.known[name] = _lifted(self.outside, array, names, tuple(names))
        return TracedArray.of(self.m.recorder, view)

    def _source(self, array: Array) -> TracedArray | None:
        """What an array of the body is outside."""
        if isinstance(array, TracedArray):
            found = self.bound.get(array.view.tensor) if array.view.identity else None
            return found if isinstance(found, TracedArray) else None
        before, self.m.recorder = self.m.recorder, self.outside
        try:
            return TracedArray.of(self.outside, self.m.view(array))
        finally:
            self.m.recorder = before


def _name(array: TracedArray) -> str:
    return array.recorder.tensors[array.view.tensor].dtype


def _lifted(outside: Recorder, array: TracedArray, along: Sequence[str | None], names: tuple[str, ...]) -> Lifted:
    """An array that is read along axes; where its view is not axis by axis, through a copy."""
    found = array.view.access(along)
    extents = dict(zip(along, array.shape, strict=True))

    def is_plain(index: Affine, n: int) -> bool:
        if index.whole or not index.terms:
            return not index.whole
        return [t for t, _ in index.terms] == [TURN] or (index.single in names and extents[index.single] == n)

    pairs = zip(found.index, array.view.extents, strict=True)
    plain = not array.view.has_padding and all(is_plain(i, n) for i, n in pairs)
    if not plain:
        axes = [Axis(str(a), n) for a, n in zip(along, array.shape, strict=True)]
        label = [a.name for a in axes]
        view = outside.emit("copy", "copy", axes, [found], label, np.dtype(array.dtype))
        found = view.access(label)
    return Lifted(names, found)


def loop(m: Machine, op: Op, operands: list[Value], held: dict[Result, Value]) -> list[Value] | None:
    """Results of a while loop as one operator, or None; what was recorded till then serves nothing."""
    recorder, place, watch = m.recorder, m.place, m.watch
    try:
        found = count_turns(op, _numbers(operands), _known(held), m.functions, 1 << 20)
        return _loop(m, op, operands, held, found) if found.turns > 1 else None
    except (Differs, NoLoop, GraphError, TraceError):
        return None
    finally:
        m.recorder, m.place, m.watch = recorder, place, watch


def _numbers(operands: Sequence[Value]) -> dict[int, Number]:
    return {k: n for k, v in enumerate(operands) if (n := _number(v.array)) is not None}


def _known(held: Mapping[Result, Value]) -> dict[Result, Number]:
    return {k: n for k, v in held.items() if (n := _number(v.array)) is not None}


def _number(array: Array) -> Number | None:
    """A whole number that is known."""
    if isinstance(array, TracedArray) or array.ndim or array.dtype.kind not in "iub":
        return None
    return int(str(array.astype(np.int64)))


def _loop(m: Machine, op: Op, operands: list[Value], held: dict[Result, Value], found: Counted) -> list[Value]:
    """The loop, once its turns are known."""
    outside, body = m.recorder, op.regions[1].blocks[0]
    returned = next(iter(o for v in body.operations if (o := v.operation).name == "stablehlo.return")).operands
    inside = Recorder(outside.name)
    m.recorder, m.watch = inside, Watch(m, outside, found.places)
    watch = m.watch
    given, fixed, carried = _given(inside, watch, body, returned, operands, found)
    free = {r: Value(watch.bind(held[r].array)) for r in _free(body, held)}
    results = m.block(body, given, free)
    carried = [k for k in carried if k not in watch.written]
    _refuse_unlike(inside, watch, results, given)
    parts = {k: _without(part, d) for k, (d, part) in watch.written.items()}
    wanted = [*(results[k].array for k in carried), *parts.values()]
    names = [_computed(inside, m.view(a)) for a in wanted]
    graph, following = inside.finish([inside.plain(n) for n in names], [f"next{n}" for n in range(len(names))])
    m.recorder, m.watch = outside, None
    if len(watch.directions) > 1:
        raise Differs("slices in two orders")
    carries = tuple(zip((f"carry{k}" for k in carried), following, strict=False))
    read = {a.tensor for o in graph.operators for a in o.inputs} | {c for c, _ in carries}
    tensors = tuple(t for t in graph.tensors if t.role is not Role.INPUT or t.name in read)
    starts = [_start(m, outside, operands[k].array) for k in carried]
    written = dict(zip(parts, following[len(carried) :], strict=True))
    recurrence = Recurrence(
        "loop",
        Graph("body", tensors, graph.operators, ()),
        carries,
        tuple(starts),
        {n: v for n, v in watch.known.items() if n in read},
        tuple(dict.fromkeys(written.values())),
        tuple(c for c, _ in carries),
        TURN,
        found.turns,
        watch.directions == {-1},
    )
    made = write(recurrence, _Emitter(outside), outside.tensors.__getitem__)
    out = []
    for k, value in enumerate(operands):
        if k in found.counters:
            out.append(Value(np.asarray(found.counters[k], value.array.dtype)))
        elif k in fixed:
            out.append(value)
        elif k in written:
            d = watch.written[k][0]
            lifted, rank = made.each[written[k]], len(body.arguments[k].type.shape)
            rest = iter(lifted.names)
            out.append(
                Value(_seen(outside, lifted, [TURN if n == d else next(rest) for n in range(rank)], found.turns))
            )
        else:
            lifted = made.last[f"carry{k}"]
            out.append(Value(_seen(outside, lifted, lifted.names, found.turns)))
    return out


def _given(
    inside: Recorder, watch: Watch, body: Block, returned: Sequence[Result], operands: list[Value], found: Counted
) -> tuple[list[Value], set[int], list[int]]:
    """(values of the body's arguments; which stay the same in every turn or are counted; which are carried)."""
    given, fixed, carried = list[Value](), set[int](), list[int]()
    for k, (argument, value) in enumerate(zip(body.arguments, operands, strict=True)):
        same = returned[k] == argument
        if k in found.counters or (same and not isinstance(value.array, TracedArray)):
            fixed |= {k}
            given.append(value)
        elif same:
            fixed |= {k}
            given.append(Value(watch.bind(value.array)))
        else:
            name, dtype = f"carry{k}", dtype_of(argument.type)
            shape = tuple(argument.type.shape)
            given.append(Value(TracedArray.of(inside, inside.input(name, shape, dtype, Role.INPUT))))
            carried.append(k)
            if _only_written(body, argument):
                watch.stacks[name] = k
    return given, fixed, carried


def _refuse_unlike(inside: Recorder, watch: Watch, results: list[Value], given: list[Value]) -> None:
    """`Differs` for a body that is no loop of ours."""
    if inside.unsupported or watch.next != len(watch.places):
        raise Differs("operators that are not known")
    results_only = {f"carry{k}" for k in watch.written}
    if any(a.tensor in results_only for made in inside.made for a in made.inputs):
        raise Differs("results that an iteration reads")
    if any(results[k].array is not given[k].array for k in watch.written):
        raise Differs("results that are made anew")


def _start(m: Machine, outside: Recorder, array: Array) -> Lifted:
    """What a carried value is before the first turn."""
    start = array if isinstance(array, TracedArray) else TracedArray.of(outside, m.view(array))
    dims = [f"d{n}" for n in range(start.ndim)]
    return _lifted(outside, start, dims, tuple(dims))


def _only_written(body: Block, argument: Result) -> bool:
    """Whether an argument is read by one operator of the body."""
    return sum(o == argument for v in body.operations for o in v.operation.operands) == 1


def _free(block: Block, held: dict[Result, Value]) -> Iterator[Result]:
    """Values around a block that it reads."""
    seen = set()
    for view in block.operations:
        for value in view.operation.operands:
            if value in held and value not in seen:
                seen.add(value)
                yield value
        for region in view.operation.regions:
            for inner in region.blocks:
                yield from _free(inner, held)


def _without(part: Value, d: int) -> Array:
    """A part without the dimension along which it is written."""
    index = tuple(0 if k == d else slice(None) for k in range(part.array.ndim))
    return part.array[index] if isinstance(part.array, TracedArray) else np.asarray(part.array[index])


def _computed(recorder: Recorder, view: View) -> str:
    """A tensor that the body computes and that is what a view shows."""
    if view.identity and recorder.tensors[view.tensor].role is Role.VALUE:
        return view.tensor
    names = [f"i{k}" for k in range(len(view.shape))]
    axes = [Axis(a, n) for a, n in zip(names, view.shape, strict=True)]
    return recorder.emit("copy", "copy", axes, [view.access(names)], names, recorder.dtype(view)).tensor


def _seen(recorder: Recorder, value: Lifted, order: Sequence[str], turns: int) -> TracedArray:
    """A result as an array whose dimensions are the axes in `order`; what is the same in all `turns` is repeated."""
    number = {name: str(k) for k, name in enumerate(order)}
    t = recorder.tensors[value.access.tensor]
    index = tuple(Affine(tuple((number[n], c) for n, c in i.terms), i.offset) for i in value.access.index)
    extent = {i.terms[0][0]: n for i, n in zip(value.access.index, t.shape, strict=True) if i.terms}
    return TracedArray.of(
        recorder, View(t.name, index, tuple(turns if n == TURN else extent[n] for n in order), t.shape)
    )


class _Emitter:
    """Operators of a loop on the recorder of the program."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __call__(
        self,
        name: str,
        function: str,
        axes: Sequence[Axis],
        inputs: Sequence[Access],
        out: Sequence[str],
        attributes: Sequence[tuple[str, Attribute]] = (),
        dtype: str = "",
    ) -> str:
        kind = np.dtype(dtype)
        return self.recorder.emit(function, name, axes, inputs, out, kind, dict(attributes)).tensor


__all__ = ["Watch", "loop"]
