"""What a well-formed graph is, as a table of invariants (name, why, test) that one loop runs.

A test looks at one *subject* (a tensor, an operator at its position, an output, a pair of the state) and yields what
is wrong with it.  Rows stand in the order in which they are run: a test may rely on every row above its own, so the
first message is the cause.  Everything that reads graphs relies on all of them: kernels, prices, checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from . import operator_invariants as op
from .contents import DIGEST
from .notation import operator_text
from .operator_invariants import MOST_AXIS, MOST_WORK, Messages, Node, Program, too_large, too_long
from .specified import Specified, wrong_place
from .tensor import ELEMENT_BYTES, Role, Tensor

if TYPE_CHECKING:
    from .graph import Graph

S = TypeVar("S")


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


@dataclass(frozen=True)
class Use:
    """A use of an operator of the user's own."""

    program: Program
    of: Specified


# --- a graph


def _tensor_names(p: Program) -> Messages:
    if len({t.name for t in p.graph.tensors}) != len(p.graph.tensors):
        yield "two tensors have the same name"


def _leading(p: Program) -> Messages:
    shapes = {t.name: len(t.shape) for t in p.graph.tensors}
    for name, k in p.graph.leading:
        if not 0 <= k < shapes.get(name, 0):
            yield f"leading names dimension {k} of {name!r}, which there is not"
    if len(set(p.graph.leading)) != len(p.graph.leading):
        yield "leading names a dimension twice"


# --- tensors


def _tensor_extents(t: Tensor) -> Messages:
    if any(n < 1 for n in t.shape):
        yield f"has a dimension of size {min(t.shape)}; every extent must be at least 1"
    if any(n > MOST_AXIS for n in t.shape):
        yield too_long(max(t.shape))


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
        yield too_large(f"takes {t.elements * t.element_bytes} bytes")


def _source_shape(t: Tensor) -> Messages:
    if t.source_shape is not None and prod(t.source_shape) != t.elements:
        yield f"source shape {t.source_shape} has another size than {t.shape}"


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
    if old.host != new.host:
        yield f"lies on {'hosts' if old.host else 'devices'}, its next value {s.value!r} does not"
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        yield f"has shape {old.shape} of {old.dtype}, its next value {s.value!r} {new.shape} of {new.dtype}"


def _late_reader(s: Pair) -> Messages:
    taken = s.program.writer[s.value]
    for i, _ in s.program.graph.readers()[s.parameter]:
        if i > taken:
            late = s.program.graph.operators[i].name
            yield f"operator {late!r} reads it after {s.value!r} has taken its place"


# --- operators of the user's own


def _places(u: Use) -> Messages:
    for placed in u.of.places:
        if wrong := wrong_place(placed, {t.name: t for t in u.program.graph.tensors}):
            yield wrong


def _axes(u: Use) -> Messages:
    for name, axes, placed in u.of.operands:
        if len(axes) != len(placed.axes) or len(set(axes)) != len(axes):
            yield f"does not say where every axis of {name!r} lies, each once"
    if len({name for name, _, _ in u.of.operands}) != len(u.of.operands):
        yield "has two operands of one name"


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
        (
            Invariant("tensor names", "accesses name tensors", _tensor_names),
            Invariant("leading", "the order of axes is told by dimensions of tensors, each once", _leading),
        ),
    ),
    _Level(
        "operator",
        _nodes,
        _operator,
        (Invariant("operator names", "choices of a plan name operators", op.operator_names),),
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
            Invariant("function", "the table of functions is what backends implement", op.function),
            Invariant("arity", "a function has its number of inputs", op.arity),
            Invariant("axes", "names tell axes apart; boxes are never empty; positions are int32", op.axes),
            Invariant("accesses", "an index per dimension, in axes of the operator, monotone", op.accesses),
            Invariant("order", "operators run in the order written", op.order),
            Invariant("one writer", "a tensor is one value", op.one_writer),
            Invariant("output index", "every point of the output is written once: its owner has it", op.output_index),
            Invariant("combine", "how partial results add up follows from the function, no file says it", op.combine),
            Invariant("taps", "kernels read windows whole", op.taps),
            Invariant("over", "statistics are over axes of the operator; without any, axes are read whole", op.over),
            Invariant("random", "numbers follow from a seed, the draw and the index", op.random),
            Invariant("host", "what lies on hosts is copied there and back, and read by nobody else", op.host),
            Invariant("rows", "ids point along an axis of the operator", op.rows),
            Invariant("groups", "a point belongs to one group; their sizes are assumed by name", op.groups),
            Invariant("attention", "attributes tell queries, keys and features apart", op.attention),
            Invariant("scan", "a loop is split along what its body treats row by row, and nothing else", op.scan),
            Invariant("epilogue", "a map of a partial sum is no part of the map of the sum", op.epilogue),
            Invariant("arithmetic", "peaks are those of the factors' type; sums may be wider", op.arithmetic),
            Invariant("pairs", "product_sum multiplies in pairs", op.pairs),
            Invariant("work", "operations and bytes are counted in int64", op.work),
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
    _Level(
        "specified",
        lambda p: (Use(p, s) for s in p.graph.specified),
        lambda u: f"operator {u.of.name!r} of the user",
        (
            Invariant("places", "a formula is about tensors of the graph", _places),
            Invariant("operand axes", "an index per axis of an operand", _axes),
        ),
    ),
)


def first_broken(graph: Graph) -> Broken | None:
    """The first invariant that `graph` breaks, or None: it is well formed."""
    program = Program.of(graph)
    return next((found for level in INVARIANTS if (found := level.broken(program))), None)
