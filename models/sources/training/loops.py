"""The derivative of a loop: a loop that runs the other way, with a body that is differentiated like
any graph.

    forward   carry(s + 1), values(s) = body(carry(s), x(s), w)                  each carry(s) is kept as a result
    reverse   d carry(s) = (d body / d carry)^T (d carry(s + 1), d values(s))    from the last turn to the first
    d x(s)  =  (d body / d x)^T (..),      d w  =  sum over s of (d body / d w)^T (..)

Only what leads from d carry to d carry is in the reverse loop (`building.lifting`).  What the body's derivative reads
of the forward pass is computed again for all turns at once, from the carries that were kept; gradients of x and w are
products over all turns at once, of what the reverse loop leaves of every turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from ...program.graph import Graph, GraphError, Role, Tensor
from ...program.index import Access, Affine, Axis, access
from ...program.operators import Operator
from ...program.scan import EACH, LAST, SCAN, Result, carries, labels, reads, results, rows, texts, turn, turns
from ..building.lifting import Lifted, Lifter, as_graph, parts
from ..building.scan import Loop, operator, result_copy
from .adjoint import adjoint
from .backward import Backward
from .contributions import Existing

VALUE = "d each "
"""How the gradient of a value of the body, per turn, is called in the reverse body."""
CARRIED = "d "
"""How that of a carry is."""


def with_kept_carries(graph: Graph) -> Graph:
    """The graph with the carries of every loop, before each turn, among its results: behind all others, so that nobody
    who reads them notices.
    """
    operators, tensors = [], {t.name: t for t in graph.tensors}
    for op in graph.operators:
        if op.function == SCAN:
            body = graph.body(op)
            given = [t.name for t in body.tensors if t.role is Role.INPUT][: carries(op)]
            lost = [f"{EACH}{n}" for n in given if f"{EACH}{n}" not in texts(op, "results")]
            op = _with_results(op, body, (*texts(op, "results"), *lost))
            shape = tuple(op.axis(a).extent for a in op.output.axes)
            tensors[op.output.tensor] = replace(tensors[op.output.tensor], shape=shape, source_shape=None)
        operators.append(op)
    return replace(graph, tensors=tuple(tensors.values()), operators=tuple(operators))


def _with_results(op: Operator, body: Graph, wanted: Sequence[str]) -> Operator:
    attributes = tuple(sorted({**dict(op.attributes), "results": tuple(wanted)}.items()))
    op = replace(op, attributes=attributes)
    last = results(op, body)[-1]
    length = last.start + prod(last.inner) * (turns(op) if last.each else 1)
    packed = op.output.axes[-1]
    return replace(op, axes=tuple(replace(a, extent=length) if a.name == packed else a for a in op.axes))


def part_read(graph: Graph, reader: Operator) -> Result | None:
    """The result of a loop that a copy takes whole, if that is what it is."""
    writer = graph.writer().get(reader.inputs[0].tensor) if len(reader.inputs) == 1 else None
    if writer is None or graph.operators[writer].function != SCAN:
        return None
    op = graph.operators[writer]
    for result in results(op, graph.body(op)):
        axes, read, _ = result_copy(op, result)
        if [*_order(read, axes)] == [*_order(reader.inputs[0], reader.axes)] and len(axes) == len(reader.axes):
            return result
    return None


def _order(read: Access, axes: Sequence[Axis]) -> list[object]:
    """An access up to the names of its axes."""
    extent = {a.name: a.extent for a in axes}
    return [(i.offset, i.whole, sorted((c, extent[n]) for n, c in i.terms if extent[n] > 1)) for i in read.index]


class Rules(NamedTuple):
    """How a body is differentiated: inputs of an operator that carry a gradient (None: it has no rule), and what it
    contributes to them.
    """

    positions: Callable[[Operator], tuple[int, ...] | None]
    differentiate: Callable[[Backward, Operator], None]


@dataclass
class _Reverse:
    """One loop, and where it stands in the reverse pass."""

    b: Backward
    op: Operator
    rules: Rules

    def __post_init__(self) -> None:
        self.body = self.b.graph.body(self.op)
        self.given = [t for t in self.body.tensors if t.role is Role.INPUT]
        self.carried = [t.name for t in self.given[: carries(self.op)]]
        self.of = labels(self.op, self.body)
        self.results = results(self.op, self.body)
        self.dtype = self.b.tensors[self.op.output.tensor].dtype

    def names(self, tensor: str) -> tuple[str, ...]:
        """Axes of a result's dimensions: rows by their names, the others counted."""
        count = iter(range(len(self.of[tensor])))
        return tuple(row or f"i{next(count)}" for row in self.of[tensor])

    def contribute(self) -> None:
        """Contribute to every input that wants it."""
        b, op = self.b, self.op
        wanted = [j for j in range(len(op.inputs)) if b.wants(op, j)]
        if not wanted:
            return
        values, ends = self._incoming()
        inner = self._differentiated(wanted, values)
        following = [inner.gradient.get(name, "") for name in self.carried]
        body = Graph("body", tuple(inner.tensors.values()), (*self.body.operators, *inner.operators), ())
        moving = [CARRIED + name for name in self.carried]
        leaves = {
            self.given[j].name: inner.gradient[self.given[j].name]
            for j in wanted
            if self.given[j].name in inner.gradient
        }
        outside = [t for n, t in leaves.items() if n not in self.carried]
        apart = parts(body.operators, moving, [t for t in following if t], outside)
        lifter = Lifter(self._emit, body, turn(op), turns(op), self._known(values), f"grad:{op.name}/")
        inside = [*apart.inside]
        for k, name in enumerate(self.carried):  # a loop has a body, and a carry that no gradient reaches stays zero
            if not following[k] or (not inside and k == 0):
                t = inner.tensors[moving[k]]
                function, made = ("identity", f"next {moving[k]}") if following[k] else ("scale", f"next {moving[k]}")
                axes = [Axis(f"i{i}", n) for i, n in enumerate(t.shape)]
                read, at = (
                    access(following[k] or moving[k], *(a.name for a in axes)),
                    access(made, *(a.name for a in axes)),
                )
                inside.append(
                    Operator(made, function, tuple(axes), (read,), at, () if following[k] else (("scale", 0.0),))
                )
                body = replace(body, tensors=(*body.tensors, replace(t, name=made, role=Role.VALUE)))
                following[k] = made
        within = {x.output.tensor for x in inside} | {*moving}
        used = list(dict.fromkeys(a.tensor for x in inside for a in x.inputs if a.tensor not in within))
        used += [t for t in following if t not in within and t not in used]
        for tensor in used:
            lifter.need(tensor)
        read_outside = {a.tensor for x in apart.after for a in x.inputs} | {*outside}
        left = [t for t in dict.fromkeys([*moving, *(x.output.tensor for x in inside)]) if t in read_outside]
        zeros = self._starts(ends)
        loop_op = self._loop(body, inside, following, used, left, lifter, zeros, wanted)
        if loop_op is None:
            raise GraphError(
                f"operator {op.name!r}", "no gradient: the derivative of its body is no loop over its rows"
            )
        new = b.graph.body(loop_op)
        for result in results(loop_op, new):
            if result.each:
                lifter.known[result.name] = self._lifted(loop_op, result, labels(loop_op, new)[result.name])
        for j in wanted:
            self._give(j, leaves, lifter, loop_op, new)

    def _starts(self, ends: Mapping[str, Access]) -> list[Access]:
        """Gradients of the carried values behind the last turn: zero where nothing reads them."""
        zero, starts = "", []
        for name in self.carried:
            if name not in ends:
                fill = ("fill", (), [access(self.b.seed)], (), (("value", 0.0),), self.dtype)
                zero = zero or self.b.emit(f"grad:{self.op.name}/zero", *fill)
            starts.append(ends[name] if name in ends else Access(zero, ()))
        return starts

    def _emit(self, *args: object, **more: object) -> str:
        return self.b.emit(*args, **more)  # type: ignore[arg-type]

    def _incoming(self) -> tuple[dict[str, Access], dict[str, Access]]:
        """Gradients of values of every turn, and of last carries, along the axes `names`."""
        b, op = self.b, self.op
        each: dict[str, list[Access]] = {}
        last: dict[str, list[Access]] = {}
        found = list(b.taken.get(op.output.tensor, ()))
        for reader, result, gradient in found:
            axes, read, out = result_copy(op, result)
            mine = _matched(reader, axes, read)
            arrived = self._typed(access(gradient, *(mine[a] for a in reader.output.axes)))
            (each if result.each else last).setdefault(result.name, []).append(arrived)
        packed = b.gradient[op.output.tensor]
        if packed:
            for result in self.results:
                if self._is_read(result):
                    axes, read, out = result_copy(op, result)
                    part = b.emit(
                        f"grad:{op.name}/{result.name}",
                        "copy",
                        axes,
                        [replace(read, tensor=packed)],
                        out,
                        (),
                        self.dtype,
                    )
                    (each if result.each else last).setdefault(result.name, []).append(access(part, *out))
        known = {r.name: r for r in self.results if r.each}, {r.name: r for r in self.results if not r.each}
        return tuple(  # type: ignore[return-value]
            {name: self._added(name, kinds[name], reads_) for name, reads_ in some.items()}
            for some, kinds in zip((each, last), known, strict=True)
        )

    def _typed(self, a: Access) -> Access:
        """A gradient in the loop's own element type: one that was handed on may be narrower."""
        t = self.b.tensors[a.tensor]
        if t.dtype == self.dtype:
            return a
        axes = [Axis(n, e) for n, e in zip(a.axes, t.shape, strict=True)]
        made = self.b.emit(f"{a.tensor}/cast", "cast", axes, [a], a.axes, (("dtype", self.dtype),), self.dtype)
        return access(made, *a.axes)

    def _is_read(self, result: Result) -> bool:
        """Whether a reader of the packed result that is no plain copy touches it."""
        graph, tensor, plain = (
            self.b.graph,
            self.op.output.tensor,
            {r.name for r, _, _ in self.b.taken.get(self.op.output.tensor, ())},
        )
        length = prod(result.inner) * (turns(self.op) if result.each else 1)
        for i, j in graph.readers()[tensor]:
            reader = graph.operators[i]
            if reader.name in plain:
                continue
            low, high = reader.inputs[j].index[-1].interval({a.name: (0, a.extent) for a in reader.axes}, 1 << 62)
            if low < result.start + length and result.start < high:
                return True
        return False

    def _added(self, name: str, result: Result, read: list[Access]) -> Access:
        """Several contributions as one."""
        if len(read) == 1:
            return read[0]
        axes, _, out = result_copy(self.op, result)
        made = self.b.emit(f"grad:{self.op.name}/{name}", "sum_inputs", axes, read, out, (), self.dtype)
        return access(made, *out)

    def _differentiated(self, wanted: Sequence[int], values: dict[str, Access]) -> Backward:
        """The reverse pass through the body."""
        b, body = self.b, self.body
        starts = {*self.carried, *(self.given[j].name for j in wanted)}
        active = {n for n in starts if body.tensor(n).dtype.startswith(("float", "bfloat"))}
        for step in body.operators:
            carrying = self.rules.positions(step)
            if carrying is None and any(a.tensor in active for a in step.inputs):
                raise GraphError(f"operator {self.op.name!r}", f"its body's {step.function} has no derivative here")
            floats = body.tensor(step.output.tensor).dtype.startswith(("float", "bfloat"))
            if floats and any(step.inputs[j].tensor in active for j in carrying or ()):
                active.add(step.output.tensor)
        inner = Backward(body, active, b.typed)
        for name, following in zip(self.carried, body.outputs, strict=True):
            t = body.tensor(name)
            inner.tensors[CARRIED + name] = Tensor(CARRIED + name, t.shape, t.dtype, Role.INPUT)
            inner.add(following, Existing(CARRIED + name))
        for name in values:
            t = body.tensor(name)
            inner.tensors[VALUE + name] = Tensor(VALUE + name, t.shape, t.dtype, Role.INPUT)
            inner.add(name, Existing(VALUE + name))
        for step in reversed(body.operators):
            if step.output.tensor in active:
                inner.finish(step.output.tensor)
            if step.output.tensor in inner.gradient:
                self.rules.differentiate(inner, step)
        for t in self.given:
            if t.name in active:
                inner.finish(t.name)
        return inner

    def _known(self, values: dict[str, Access]) -> dict[str, Lifted]:
        """What of the body is outside of it already: inputs, kept carries, incoming gradients."""
        op, b = self.op, self.b
        out = {}
        for t, a, own in zip(self.given, op.inputs, reads(op), strict=True):
            if t.name not in self.carried:
                out[t.name] = Lifted(tuple(n for n in own if n != turn(op)), b.forward(a))
        kept = {r.name: r for r in self.results if r.each}
        source = b.forward(op.output).tensor
        for name in self.carried:
            axes, read, names = result_copy(op, kept[name])
            made = b.emit(
                f"grad:{op.name}/kept.{name}", "copy", axes, [replace(read, tensor=source)], names, (), self.dtype
            )
            out[name] = Lifted(self.names(name), access(made, *names))
        for name, a in values.items():
            out[VALUE + name] = Lifted(self.names(name), a)
        return out

    def _loop(
        self,
        body: Graph,
        inside: Sequence[Operator],
        following: Sequence[str],
        used: Sequence[str],
        left: Sequence[str],
        lifter: Lifter,
        zeros: Sequence[Access],
        wanted: Sequence[int],
    ) -> Operator | None:
        """The reverse loop: `used` values of the forward pass are read, `left` ones kept of every turn."""
        op, moving = self.op, [CARRIED + name for name in self.carried]
        entering = [*moving, *used]
        graph = as_graph(op.name, body, entering, inside, following)
        texts_, inputs = [], []
        for k, (name, start) in enumerate(zip(self.carried, zeros, strict=True)):
            named = tuple(row or f"c{k}.{i}" for i, row in enumerate(self.of[name]))
            texts_.append(" ".join(named))
            inputs.append(_along(start, dict(zip(self.names(name), named, strict=True))))
        of = self._labelled(body)
        extents = {r: op.axis(r).extent for r in rows(op)}
        for k, tensor in enumerate(used):
            value = lifter.known[tensor]
            shape = body.tensor(tensor).shape
            if not all(i.single or not i.terms for i in value.access.index):
                raise GraphError(f"operator {op.name!r}", f"its derivative reads {tensor!r} at more than one place")
            own = of.get(tensor, ("",) * len(shape))
            named = tuple(row or f"v{k}.{i}" for i, row in enumerate(own))
            for i, row in enumerate(own):
                if row and shape[i] != extents[row]:
                    return None
            inputs.append(_along(value.access, dict(zip(value.names, named, strict=True))))
            lead = (turn(op),) if lifter.varies(tensor) else ()
            texts_.append(" ".join((*lead, *named)))
        ended = [f"{LAST}{m}" for m, n in zip(moving, self.carried, strict=True) if self._index(n) in wanted]
        kept = [f"{EACH}{t}" for t in left]
        if not kept and not ended:
            ended = [f"{LAST}{moving[0]}"]
        forward = not self.op.attribute("reverse", 0)
        loop = Loop(graph, len(moving), tuple(texts_), rows(op), turn(op), turns(op), (*kept, *ended), forward)
        made = operator(f"grad:{op.name}/reverse", loop, inputs)
        written = self.b.emit(made.name, SCAN, made.axes, made.inputs, made.output.axes, made.attributes, self.dtype)
        return replace(made, name=written, output=replace(made.output, tensor=written))

    def _index(self, name: str) -> int:
        return [t.name for t in self.given].index(name)

    def _labelled(self, body: Graph) -> dict[str, tuple[str, ...]]:
        """Rows of everything that is no adjoint of a carry: values of the forward pass, gradients that come in, what is
        made of them.
        """
        known = {**self.of, **{VALUE + n: of for n, of in self.of.items()}}
        for step in body.operators:
            if all(a.tensor in known for a in step.inputs):
                pairs = [p for a in step.inputs for p in zip(a.index, known[a.tensor], strict=True)]
                row_of = {str(i.single): row for i, row in pairs if row and i.single is not None}
                known.setdefault(step.output.tensor, tuple(row_of.get(n, "") for n in step.output.axes))
        return known

    def _lifted(self, loop_op: Operator, result: Result, of: tuple[str, ...]) -> Lifted:
        """A result of every turn of the reverse loop, taken out."""
        axes, read, names = result_copy(loop_op, result)
        made = self.b.emit(f"{loop_op.name}.{result.name}", "copy", axes, [read], names, (), self.dtype)
        count = iter(range(len(of)))
        return Lifted(tuple(row or f"i{next(count)}" for row in of), access(made, *names))

    def _give(self, j: int, leaves: dict[str, str], lifter: Lifter, loop_op: Operator, new: Graph) -> None:
        """Contribute to input `j`."""
        b, op, name = self.b, self.op, self.given[j].name
        if j < len(self.carried):
            ends = {r.name: r for r in results(loop_op, new) if not r.each}
            result = ends[CARRIED + name]
            axes, read, names = result_copy(loop_op, result)
            made = b.emit(f"grad:{op.name}/first.{name}", "copy", axes, [read], names, (), self.dtype)
            value = Lifted(self.names(name), access(made, *names))
        elif name not in leaves:
            return
        elif turn(op) in reads(op)[j]:
            lifter.need(leaves[name])
            value = lifter.known[leaves[name]]
        else:
            value = lifter.total(leaves[name])
        mine = tuple(n for n in reads(op)[j] if n != turn(op))
        axis = {**dict(zip(value.names, mine, strict=True)), turn(op): turn(op)}
        out = [axis[i.terms[0][0]] for i in value.access.index]
        source = replace(
            op, axes=tuple(replace(op.axis(n), combine=None) for n in out), output=access(value.access.tensor, *out)
        )
        b.give(op, j, adjoint(source, j, value.access.tensor, b.tensors[op.inputs[j].tensor].shape))


def _along(a: Access, names: dict[str, str]) -> Access:
    """An access by other names of its axes; those that have none keep theirs."""
    found = (Affine.axis(names.get(i.terms[0][0], i.terms[0][0])) if i.terms else i for i in a.index)
    return Access(a.tensor, tuple(found))


def _matched(reader: Operator, axes: Sequence[Axis], read: Access) -> dict[str, str]:
    """Axis of a copy that takes a result -> the axis that `result_copy` gives it."""
    out, extent = {}, {a.name: a.extent for a in axes}
    for mine, theirs in zip(reader.inputs[0].index, read.index, strict=True):
        left = list(theirs.terms)
        for n, c in sorted(mine.terms, key=lambda t: reader.axis(t[0]).extent == 1):
            size = reader.axis(n).extent  # where it is 1, any coefficient reads the same
            fits = next(t for t in left if extent[t[0]] == size and (t[1] == c or size == 1))
            left.remove(fits)
            out[n] = fits[0]
    return out


def loop(b: Backward, op: Operator, rules: Rules) -> None:
    """Gradients of carries, slices and constants of a scan; `rules`: those of its body."""
    _Reverse(b, op, rules).contribute()
