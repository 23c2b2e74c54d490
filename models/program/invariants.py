"""This module says what a well-formed graph is, as a table of invariants (name, why, test) that one loop runs.

A test looks at one *subject* (a tensor, an operator at its position, an output, a pair of the state) and yields what
is wrong with it.  Rows stand in the order in which they are run: a test may rely on every row above its own, so the
first message is the cause.  Everything that reads graphs relies on all of them: kernels, prices, checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from . import attention
from .contents import DIGEST
from .index import Axis
from .notation import operator_text
from .operators import BY_DATA, EVEN, FUNCTIONS, LOADS, NodeKind, Operator
from .tensor import ELEMENT_BYTES, Role, Tensor

if TYPE_CHECKING:
    from .graph import Graph

MOST_AXIS: Final = (1 << 31) - 1
"""Largest extent of one axis: positions along it are int32 in kernels, MPI counts and index tensors."""

MOST_WORK: Final = 1 << 62
"""Most bytes of a tensor, operations of an operator and positions along a dimension: they are computed in int64."""

S = TypeVar("S")
Messages = Iterator[str]


@dataclass(frozen=True)
class Invariant(Generic[S]):
    """A row of the table.  `wrong` yields what is wrong with a subject, as the end of a sentence about it."""

    name: str
    why: str
    wrong: Callable[[S], Messages]


@dataclass(frozen=True)
class Broken:
    """An invariant that does not hold: its name, at which place, in words; `notation`: the operator that it is about,
    in index notation, or nothing.
    """

    invariant: str
    place: str
    message: str
    notation: str


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


@dataclass(frozen=True)
class Output:
    """A result that the user wants."""

    program: Program
    name: str


@dataclass(frozen=True)
class Pair:
    """A parameter and its next value, the `position`th pair of the state."""

    program: Program
    position: int
    parameter: str
    value: str


def _too_long(extent: int) -> str:
    return (
        f"has an axis of {extent}, more than int32 can count ({MOST_AXIS}); reshape it into two axes, or plan a "
        f"smaller instance"
    )


def _too_large(what: str) -> str:
    return f"{what}, more than 2**62; plan a smaller instance"


# --- a graph


def _tensor_names(p: Program) -> Messages:
    if len({t.name for t in p.graph.tensors}) != len(p.graph.tensors):
        yield "two tensors have the same name"


def _operator_names(n: Node) -> Messages:
    if n.program.named[n.op.name] != n.position:
        yield "name is used twice"


# --- tensors


def _tensor_extents(t: Tensor) -> Messages:
    if any(n < 1 for n in t.shape):
        yield f"has a dimension of size {min(t.shape)}; every extent must be at least 1"
    if any(n > MOST_AXIS for n in t.shape):
        yield _too_long(max(t.shape))


def _contents(t: Tensor) -> Messages:
    if t.contents is not None and (t.role is not Role.INPUT or not DIGEST.fullmatch(t.contents.digest)):
        yield "has contents: it must be an input, and they a sha256"


def _frozen(t: Tensor) -> Messages:
    if t.frozen and t.role is not Role.PARAMETER:
        yield "is frozen, and no parameter"


def _element_type(t: Tensor) -> Messages:
    if t.dtype not in ELEMENT_BYTES:
        yield f"unknown element type {t.dtype!r}"


def _tensor_bytes(t: Tensor) -> Messages:
    if t.elements * t.element_bytes > MOST_WORK:
        yield _too_large(f"takes {t.elements * t.element_bytes} bytes")


def _source_shape(t: Tensor) -> Messages:
    if t.source_shape is not None and prod(t.source_shape) != t.elements:
        yield f"source shape {t.source_shape} has another size than {t.shape}"


# --- operators


def _function(n: Node) -> Messages:
    if n.op.function not in FUNCTIONS:
        yield f"unknown function {n.op.function!r}"


def _arity(n: Node) -> Messages:
    low, high = n.op.spec.arity
    if not low <= len(n.op.inputs) <= high:
        yield f"{n.op.function} takes {low}..{high} inputs, got {len(n.op.inputs)}"


def _axes(n: Node) -> Messages:
    if len(n.axes) != len(n.op.axes):
        yield "two axes have the same name"
    if any(a.extent < 1 for a in n.op.axes):
        yield "every axis needs an extent of at least 1"
    if any(a.extent > MOST_AXIS for a in n.op.axes):
        yield _too_long(max(a.extent for a in n.op.axes))


def _accesses(n: Node) -> Messages:
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
                yield _too_large(f"reads {a.tensor!r} up to position {reach}")


def _order(n: Node) -> Messages:
    for a in n.op.inputs:
        if not n.program.ready(a.tensor, n.position):
            yield f"reads {a.tensor!r} before it is written"


def _one_writer(n: Node) -> Messages:
    if n.program.ready(n.op.output.tensor, n.position):
        yield f"writes {n.op.output.tensor!r}, which already has a value"


def _output_index(n: Node) -> Messages:
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


def _combine(n: Node) -> Messages:
    op, allowed = n.op, n.op.spec.combines
    ways = {a.combine for a in op.reduced}
    if len(ways) > 1:
        names = ", ".join(a.name for a in op.reduced)
        yield f"reduction axes {names} are combined in {len(ways)} ways; an operator has one"
    for axis in op.reduced:
        if not allowed:
            yield f"{op.function} has no reduction axes, and axis {axis.name!r} is one"
        elif axis.combine not in allowed:
            said = axis.combine.value if axis.combine else None
            yield f"{op.function} combines partial results by {allowed[0].value}, axis {axis.name!r} says {said}"


def _taps(n: Node) -> Messages:
    op, named = n.op, {name for a in n.op.inputs for name in a.axes}
    for axis in op.reduced:
        tap = op.kind is NodeKind.WINDOW or (op.function == "strided_gradient" and axis.name not in named)
        if axis.splittable and tap:
            yield f"{op.function} reads whole windows, so the tap axis {axis.name!r} must not be splittable"


def _over(n: Node) -> Messages:
    op = n.op
    for name in op.over:
        if name not in n.axes:
            yield f"attribute over names unknown axis {name!r}"
        elif op.kind is NodeKind.NORMALISE and not op.spec.statistics and n.axes[name].splittable:
            yield f"{op.function} reads axis {name!r} whole, so it must not be splittable"


def _rows(n: Node) -> Messages:
    if n.op.kind in BY_DATA and n.op.rows not in n.axes:
        yield f"{n.op.function} needs attribute rows: the name of the row axis"


def _groups(n: Node) -> Messages:
    op = n.op
    if op.kind is NodeKind.GROUPED and (op.rows in op.inputs[-1].axes or op.attribute("load", EVEN) not in LOADS):
        yield f"{op.function} needs ids that do not depend on axis {op.rows!r}, and attribute load: one of {LOADS}"


def _attention(n: Node) -> Messages:
    if n.op.kind is NodeKind.ATTENTION and (reason := attention.wrong(n.op)):
        yield reason


def _pairs(n: Node) -> Messages:
    if n.op.function == "product_sum" and len(n.op.inputs) % 2:
        yield "product_sum takes pairs of inputs"


def _work(n: Node) -> Messages:
    graph, op = n.program.graph, n.op
    if graph.work(op) > MOST_WORK:
        yield _too_large(f"does {graph.work(op)} operations on one device")
    operands = [n.tensor(a.tensor) for a in (*op.inputs, op.output)]
    moved = sum(t.elements * t.element_bytes for t in operands)
    if op.kind is NodeKind.GATHER:  # one element of the table per point
        moved += graph.points(op) * operands[0].element_bytes
    if moved > MOST_WORK:
        yield _too_large(f"reads and writes {moved} bytes")


# --- results


def _computed(o: Output) -> Messages:
    if not o.program.ready(o.name, len(o.program.graph.operators)):
        yield "is not computed by any operator"


def _next_value(s: Pair) -> Messages:
    graph = s.program.graph
    if not graph.holds(s.parameter) or graph.tensor(s.parameter).role is not Role.PARAMETER:
        yield "is not a parameter"
    if s.value not in s.program.writer:
        yield f"next value {s.value!r} is not computed by any operator"


def _once(s: Pair) -> Messages:
    used = {name for pair in s.program.graph.state[: s.position] for name in pair}
    if {s.parameter, s.value} & used:
        yield f"{s.parameter!r} or {s.value!r} occurs in two pairs"


def _same_storage(s: Pair) -> Messages:
    old, new = s.program.graph.tensor(s.parameter), s.program.graph.tensor(s.value)
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        yield f"has shape {old.shape} of {old.dtype}, its next value {s.value!r} {new.shape} of {new.dtype}"


def _late_reader(s: Pair) -> Messages:
    for op in s.program.graph.operators[s.program.writer[s.value] + 1 :]:
        if any(a.tensor == s.parameter for a in op.inputs):
            yield f"operator {op.name!r} reads it after {s.value!r} has taken its place"


# --- the table


class Level(Protocol):
    """Rows about one sort of subject."""

    @property
    def what(self) -> str:
        """The sort."""

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """(name, why) of every row."""

    def broken(self, program: Program) -> Broken | None:
        """The first subject that breaks a row."""


@dataclass(frozen=True)
class _Level(Generic[S]):
    what: str
    subjects: Callable[[Program], Iterable[S]]
    place: Callable[[S], str]
    rows: tuple[Invariant[S], ...]
    about: Callable[[S], str] = lambda _: ""

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        return tuple((row.name, row.why) for row in self.rows)

    def broken(self, program: Program) -> Broken | None:
        for subject in self.subjects(program):
            for row in self.rows:
                for message in row.wrong(subject):
                    return Broken(row.name, self.place(subject), message, self.about(subject))
        return None


def _nodes(p: Program) -> Iterator[Node]:
    return (Node(p, i, op) for i, op in enumerate(p.graph.operators))


def _operator(n: Node) -> str:
    return f"operator {n.op.name!r}"


INVARIANTS: Final[tuple[Level, ...]] = (
    _Level(
        "graph",
        lambda p: (p,),
        lambda p: f"graph {p.graph.name!r}",
        (Invariant("tensor names", "accesses name tensors", _tensor_names),),
    ),
    _Level(
        "operator",
        _nodes,
        _operator,
        (Invariant("operator names", "choices of a plan name operators", _operator_names),),
        lambda n: operator_text(n.op),
    ),
    _Level(
        "tensor",
        lambda p: p.graph.tensors,
        lambda t: f"tensor {t.name!r}",
        (
            Invariant("tensor extents", "boxes are never empty; positions are int32", _tensor_extents),
            Invariant("contents", "only what is given can be stated", _contents),
            Invariant("frozen", "only parameters are trained", _frozen),
            Invariant("element type", "bytes follow from it", _element_type),
            Invariant("tensor bytes", "bytes are counted in int64", _tensor_bytes),
            Invariant("source shape", "the shape that the user knows is a view", _source_shape),
        ),
    ),
    _Level(
        "operator",
        _nodes,
        _operator,
        (
            Invariant("function", "the table of functions is what backends implement", _function),
            Invariant("arity", "a function has its number of inputs", _arity),
            Invariant("axes", "names tell axes apart; boxes are never empty; positions are int32", _axes),
            Invariant("accesses", "an index per dimension, in axes of the operator, monotone", _accesses),
            Invariant("order", "operators run in the order written", _order),
            Invariant("one writer", "a tensor is one value", _one_writer),
            Invariant("output index", "every point of the output is written once: its owner has it", _output_index),
            Invariant("combine", "how partial results add up follows from the function, no file says it", _combine),
            Invariant("taps", "kernels read windows whole", _taps),
            Invariant("over", "statistics are over axes of the operator; without any, axes are read whole", _over),
            Invariant("rows", "ids point along an axis of the operator", _rows),
            Invariant("groups", "a point belongs to one group; their sizes are assumed by name", _groups),
            Invariant("attention", "attributes tell queries, keys and features apart", _attention),
            Invariant("pairs", "product_sum multiplies in pairs", _pairs),
            Invariant("work", "operations and bytes are counted in int64", _work),
        ),
        lambda n: operator_text(n.op),
    ),
    _Level(
        "output",
        lambda p: (Output(p, name) for name in p.graph.outputs),
        lambda o: f"output {o.name!r}",
        (Invariant("computed", "what the user wants has a value", _computed),),
    ),
    _Level(
        "state",
        lambda p: (Pair(p, i, *pair) for i, pair in enumerate(p.graph.state)),
        lambda s: f"state of {s.parameter!r}",
        (
            Invariant("next value", "a parameter is updated by what is computed", _next_value),
            Invariant("one pair", "a parameter has one next value, of its own", _once),
            Invariant("same storage", "the next value is stored where the parameter was", _same_storage),
            Invariant("late reader", "so nobody reads the parameter once it is written", _late_reader),
        ),
    ),
)


def first_broken(graph: Graph) -> Broken | None:
    """The first invariant that `graph` breaks, or None: it is well formed."""
    program = Program.of(graph)
    return next((found for level in INVARIANTS if (found := level.broken(program))), None)
