"""Translates StableHLO operators, carried out on traced arrays.

A value is a traced array, or a NumPy array where it depends on no argument: constants, counters of loops and masks of
positions are computed here and now.  Compositions that JAX writes for one function of the table become that function:

    exp(x - max x) / sum of it                  -> softmax            (jax.nn.softmax)
    (x - max x) - log(sum of exp of it)         -> log_softmax        (jax.nn.log_softmax)

Source: the StableHLO specification (openxla.org/stablehlo/spec), operator by operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from ...program.graph import Role
from ...program.index import Axis, Combine
from ..numpy.array import TracedArray
from ..numpy.elementwise import cast, elementwise
from ..numpy.recorder import Recorder, TraceError, same_bits
from ..numpy.views import View
from .ir import Block, Op, Plain, Result, Type, text

if TYPE_CHECKING:
    from .loops import Watch

Array = TracedArray | Plain

MOST_TURNS: Final = 10_000
MOST_ELEMENTS: Final = 4096
"""Elements of a constant that is kept as its values."""


@dataclass(frozen=True, eq=False)
class Value:
    """`array`, and the operator that made it of its operands; `again`: the NumPy function that does so."""

    array: Array
    kind: str = ""
    operands: tuple[Value, ...] = ()
    detail: tuple[int, ...] = ()
    again: Callable[..., object] | None = None


class Machine:
    """Carries out the functions of a module by `handlers`, operator name -> what it does, and `loop`, what becomes of a
    `stablehlo.while` as a whole; `place` is what runs now, for messages.
    """

    def __init__(
        self, recorder: Recorder, functions: Mapping[str, Op], handlers: Mapping[str, Handler], loop: Loop
    ) -> None:
        self.recorder, self.functions, self.place, self.within = recorder, functions, "main", ""
        self.handlers, self.loop = handlers, loop
        self.watch: Watch | None = None

    def call(self, name: str, arguments: Sequence[Array]) -> list[Array]:
        """Results of a function.  Raises `TraceError`; unknown operators are collected by the recorder."""
        return [v.array for v in self.enter(name, [Value(a) for a in arguments])]

    def enter(self, name: str, arguments: Sequence[Value]) -> list[Value]:
        """`call` on values that know where they come from."""
        return self.block(self.functions[name].regions[0].blocks[0], arguments, {})

    def block(self, block: Block, arguments: Sequence[Value], outer: dict[Result, Value]) -> list[Value]:
        """The operators of a block, one after another; what it returns.  `outer`: values of the blocks around it."""
        held = {**outer, **dict(zip(block.arguments, arguments, strict=True))}
        for op in block.operations:
            inner = op.operation
            operands = [held[o] for o in inner.operands]
            if inner.name in ("func.return", "stablehlo.return"):
                return operands
            before, self.place = self.place, f"{inner.name}{_line(inner)}"
            results = self.one(inner, operands, held)
            self.place = before
            held.update(zip(inner.results, results, strict=True))
        return []

    def one(self, op: Op, operands: list[Value], held: dict[Result, Value]) -> list[Value]:
        """One operator."""
        name = op.name
        if name in ("func.call", "call"):
            before, self.within = self.within, _line(op) or self.within
            results = self.enter(text(op, "callee"), operands)
            self.within = before
            return results
        if name == "stablehlo.while":
            return self.turns(op, operands, held)
        if name in ("stablehlo.composite", "stablehlo.custom_call"):
            name = f"{name} {text(op, 'name' if name.endswith('composite') else 'call_target_name')}"
        handler = self.handlers.get(name)
        if handler is None:
            self.recorder.unsupported.setdefault(name, []).append((_line(op) or self.within).strip() or "main")
            return [Value(self.stand_in(r.type)) for r in op.results]
        made = handler(self, op, operands)
        wanted = [tuple(r.type.shape) for r in op.results]
        if [tuple(v.array.shape) for v in made] != wanted:
            raise TraceError(self.place, f"made shapes {[v.array.shape for v in made]} instead of {wanted}")
        return [self._typed(v, r.type) for v, r in zip(made, op.results, strict=True)]

    def _typed(self, value: Value, kind: Type) -> Value:
        """A result in the element type that the operator says.  Raises `TraceError` for one of another kind."""
        own, wanted = value.array.dtype, np.dtype(dtype_of(kind))
        if own == wanted:
            return value
        if own.kind != wanted.kind:
            raise TraceError(self.place, f"makes {own.name} instead of {wanted.name}")
        array = value.array
        cast = self.map_cast(array, wanted.name) if isinstance(array, TracedArray) else array.astype(wanted)
        return replace(value, array=cast)

    def stand_in(self, kind: Type) -> Array:
        """An array in the place of a result that cannot be computed, so that all such operators are found at once."""
        shape, dtype = tuple(kind.shape), dtype_of(kind)
        return TracedArray.of(
            self.recorder, self.recorder.input(f"?{len(self.recorder.tensors)}", shape, dtype, Role.INPUT)
        )

    def turns(self, op: Op, operands: list[Value], held: dict[Result, Value]) -> list[Value]:
        """A loop: one operator where its turns do all the same (`loops`), else turn by turn, where its condition
        depends on no argument.
        """
        if (made := self.loop(self, op, operands, held)) is not None:
            return made
        before, self.watch = self.watch, None
        made = self._turn_by_turn(op, operands, held)
        self.watch = before
        return made

    def _turn_by_turn(self, op: Op, operands: list[Value], held: dict[Result, Value]) -> list[Value]:
        condition, body = (r.blocks[0] for r in op.regions)
        now = operands
        for _ in range(MOST_TURNS):
            (going,) = self.block(condition, now, held)
            if isinstance(going.array, TracedArray):
                raise TraceError(
                    self.place,
                    "a loop whose number of iterations depends on data; give it a number (lax.fori_loop, scan)",
                )
            if not bool(going.array):
                return now
            now = self.block(body, now, held)
        raise TraceError(self.place, f"a loop of more than {MOST_TURNS} iterations; they are recorded one by one")

    def map(self, function: str, arrays: Sequence[Array], dtype: str = "") -> TracedArray:
        """A function of the table, element by element."""
        views = [self.view(a) for a in arrays]
        kind = np.dtype(dtype) if dtype else self.recorder.dtype(views[0])
        return TracedArray.of(self.recorder, elementwise(self.recorder, function, function, views, kind))

    def map_cast(self, array: TracedArray, dtype: str) -> TracedArray:
        """Another element type."""
        return TracedArray.of(self.recorder, cast(self.recorder, array.view, np.dtype(dtype)))

    def pick(self, table: Array, ids: Array) -> TracedArray:
        """table[b.., ids[b.., j..]]: one element of the last dimension per position."""
        left, right = self.view(table), self.view(ids)
        batch = [f"i{k}" for k in range(len(left.shape) - 1)]
        names = [*batch, *(f"j{k}" for k in range(len(right.shape) - len(batch)))]
        axes = [
            *(Axis(a, n) for a, n in zip(names, right.shape, strict=True)),
            Axis("rows", left.shape[-1], Combine.SUM),
        ]
        reads = [left.access([*batch, "rows"]), right.access(names)]
        made = self.recorder.emit("embedding", "take", axes, reads, names, self.recorder.dtype(left), {"rows": "rows"})
        return TracedArray.of(self.recorder, made)

    def view(self, array: Array) -> View:
        """What an array shows; a plain one becomes a constant of the program, without what it only repeats."""
        if isinstance(array, TracedArray):
            return array.view
        core = once_each(array)
        flat = np.ascontiguousarray(core).reshape([n for n in core.shape if n > 1])
        made = TracedArray.of(self.recorder, self.recorder.constant(flat))
        if flat.shape != core.shape:
            made = made[tuple(slice(None) if n > 1 else None for n in core.shape)]
        return made.view if core.shape == array.shape else cast_array(np.broadcast_to(made, array.shape)).view

    def trace_value(self, value: Value) -> TracedArray:
        """A value as a traced array.  A large constant (a mask of positions) is recorded as it was computed."""
        if isinstance(value.array, TracedArray):
            return value.array
        if value.again is not None and once_each(value.array).size > MOST_ELEMENTS and uniform(value.array) is None:
            operands = [o.array if uniform(o.array) is not None else self.trace_value(o) for o in value.operands]
            numbers = [a if (n := uniform(a)) is None else n for a in operands]
            return cast_array(value.again(*numbers))
        return TracedArray.of(self.recorder, self.view(value.array))


def once_each(array: Plain) -> Plain:
    """A plain array without what it only repeats: extent 1 where it was broadcast.

    >>> once_each(np.broadcast_to(np.arange(3)[:, None], (3, 4))).shape
    (3, 1)
    """
    return array[tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)]


def cast_array(found: object) -> TracedArray:
    """What a NumPy function made of traced arrays."""
    if not isinstance(found, TracedArray):
        raise TypeError(f"{type(found).__name__} instead of a traced array")
    return found


def _line(op: Op) -> str:
    """Where the user's program wrote it, as far as JAX says."""
    at = str(op.location).split('"')
    files = [f"{a.rpartition('/')[2]}{b.split(' ')[0]}" for a, b in pairwise(at) if a.endswith(".py")]
    return f" at {files[0]}" if files else ""


def dtype_of(kind: Type) -> str:
    """The element type of a tensor type.  Raises `TraceError` for one that no tensor here has.

    >>> TYPES["i1"]
    'bool'
    """
    found = TYPES.get(str(kind.element_type))
    if found is None:
        raise TraceError(
            "type",
            f"{kind.element_type} is not supported ({', '.join(TYPES)}); give float32 and --precision bf16-mixed",
        )
    return found


TYPES: Final[Mapping[str, str]] = {
    "f64": "float64",
    "f32": "float32",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "ui8": "uint8",
    "i1": "bool",
    "ui32": "uint32",
}
"""StableHLO element type -> ours; no tensor has uint32, which only constants are."""


def apply(function: Callable[..., object], *arguments: object, **options: object) -> Array:
    """What a NumPy function makes of arrays, traced or plain."""
    found = function(*arguments, **options)
    return found if isinstance(found, TracedArray) else np.asarray(found)


def uniform(array: Array) -> Plain | None:
    """The only number of a plain array that holds no other, as an array without dimensions.

    >>> uniform(np.broadcast_to(np.float32(2), (3, 4)))
    array(2., dtype=float32)
    """
    if isinstance(array, TracedArray) or array.size == 0:
        return None
    first = array.reshape(-1)[:1].reshape(())
    if array.size == 1 or not any(array.strides):
        return first
    return first if same_bits(array) else None


def broadcast_source(value: Value) -> Value:
    """What a value is broadcast from, through any number of broadcasts and reshapes."""
    while value.kind in ("broadcast_in_dim", "reshape"):
        value = value.operands[0]
    return value


Handler = Callable[[Machine, Op, list[Value]], list[Value]]

Loop = Callable[[Machine, Op, list[Value], dict[Result, Value]], list[Value] | None]
"""Results of a loop as one operator, None where its turns differ; the last argument: values around it."""


def summed_in(m: Machine, op: Op, operand: Value) -> Array:
    """An operand of products that are summed, whole numbers in the type of the result: it may be wider than theirs
    (`preferred_element_type`), and then nothing wraps in theirs.
    """
    array, dtype = operand.array, np.dtype(dtype_of(op.results[0].type))
    if dtype.kind not in "iu" or array.dtype.kind not in "iu" or array.dtype == dtype:
        return array
    return m.map_cast(array, dtype.name) if isinstance(array, TracedArray) else array.astype(dtype)
