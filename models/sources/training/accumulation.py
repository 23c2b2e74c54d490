"""Gradient accumulation: a training step in micro-batches, one after another in one graph.

    step(B) -> for i = 1 .. m: forward_i, backward_i on B / m examples, G := G + grad_i;  then clip, unscale, update

What does not depend on an input (tables of positions, weights cast once) is computed once.  Everything else of a
micro-batch is alive only until the next one begins, so activations shrink by m; G is a tensor per weight, in the type
of the weight.  The batch of an input becomes two dimensions (m, B / m), of which micro-batch i reads row i: who feeds
the step gives the whole batch as ever.

Devices that hold different examples have partial sums of a gradient.  Nobody reads open sums, so G would be brought
together in every micro-batch.  With `parts` = R it is brought together once per step: the examples of a micro-batch are
two digits (R, B / m R), every gradient keeps the first of them,

    G[r, ..] := G[r, ..] + sum over the examples of part r;          grad = sum over r of G[r, ..]

and where r lies over R devices, nothing moves before the last sum.  (On fewer devices G has R parts all the same.)

The numbers are those of the whole batch where the batch is only ever summed over, by gradients of weights and by the
loss: means over a batch keep the whole batch's factor (`models.pipelines.micro`).  A sum over the batch of what no
weight is part of (how many labels count, in the mean of a cross entropy that ignores some) is computed for all
micro-batches first, and what follows from it is the same in each:

    n = n_1 + .. + n_m,  n_i = labels of micro-batch i that count;      loss = sum over i of  (sum of its losses) / n

A step that looks at the batch otherwise (batch norm, pairs of examples) is refused, with the operator that does.

Source: Huang et al., GPipe (NeurIPS 2019), section 2; `torch`'s own practice of several `backward` before a `step`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd
from typing import Final

from ...pipelines.micro import batch_of, micro_batch
from ...program.graph import Graph, Role, Tensor
from ...program.index import Access, Affine, Axis, Combine, access
from ...program.operators import Operator
from ...text import InputError
from .recompute import PREFIX
from .step import TrainingStep
from .widened import with_arithmetic

_LINEAR: Final = frozenset(
    {"sum_inputs", "copy", "copy_gradient", "scale", "cast", "identity", "add", "subtract", "negate", "sum"}
)
"""Functions of which the sum over micro-batches is the function of the sum."""


def accumulate(step: TrainingStep, count: int, parts: int = 1) -> TrainingStep:
    """The step in `count` micro-batches of equal size, its inputs, weights and outputs called as before.  `parts`:
    see the module docstring.

    Raises `InputError` for a batch that cannot be cut so, or that is looked at as a whole.

    >>> from ..zoo import build
    >>> from .step import build_step
    >>> step = accumulate(build_step(build("mlp-unity", batch=32), "sgd"), 4)
    >>> step.graph.tensor("x").shape, step.graph.outputs
    ((4, 8, 784), ('loss',))
    """
    if count == 1:
        return step
    part = micro_batch(step.graph, count)
    graph = _Unrolled(step, part, count, parts).graph()
    trained = tuple((w, f"{g}.all") for w, g in step.trained)
    return replace(step, graph=graph, trained=trained)


@dataclass
class _Unrolled:
    """The graph as it grows.  `part`: the step on one micro-batch."""

    step: TrainingStep
    part: Graph
    count: int
    parts: int = 1
    tensors: dict[str, Tensor] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)

    def __post_init__(self) -> None:
        whole, part = self.step.graph, self.part
        self.gradients = {g: w for w, g in self.step.trained}
        self.inputs = {t.name for t in part.tensors if t.role is Role.INPUT and t.shape != whole.tensor(t.name).shape}
        self.totals: list[str] = []
        self.emitted: set[str] = set()
        self.repeated = self._repeated()
        self.needed = self._ancestors({*part.outputs, *self.gradients})
        for op in part.operators:
            self._sums_only(op)

    def _repeated(self) -> set[str]:
        """Tensors that differ from micro-batch to micro-batch, or are computed again in every reverse pass."""
        found = set(self.inputs)
        learned = {t.name for t in self.part.tensors if t.role is Role.PARAMETER}
        ready = {g: False for g in self.gradients}
        for op, whole in zip(self.part.operators, self.step.graph.operators, strict=True):
            name = op.output.tensor
            after = any(a.tensor in self.gradients and ready[a.tensor] for a in op.inputs)
            if any(a.tensor in learned for a in op.inputs):
                learned.add(name)
            if not after and (op.name.startswith(PREFIX) or any(a.tensor in found for a in op.inputs)):
                if name not in learned and _adds_examples(op, whole):
                    self.totals.append(name)
                else:
                    found.add(name)
            if name in ready:
                ready[name] = True
        return found

    def _ancestors(self, wanted: set[str]) -> set[str]:
        out = set(wanted)
        for op in reversed(self.part.operators):
            if op.output.tensor in out:
                out.update(a.tensor for a in op.inputs)
        return out

    def _short(self, name: str) -> bool:
        return self.part.tensor(name).shape != self.step.graph.tensor(name).shape

    def _sums_only(self, op: Operator) -> None:
        """What has been summed over the batch is only added up from there on."""
        out = op.output.tensor
        if out not in self.repeated or out not in self.needed or op.function == "fill":
            return
        over = [a.tensor for a in op.inputs if a.tensor in self.repeated and self._summed(a.tensor)]
        shared = [k for k, a in enumerate(op.inputs) if a.tensor not in self.repeated]
        factor = len(shared) == len(op.inputs) - 1 and (
            op.function in ("multiply", "product") or (op.function == "divide" and shared == [1])
        )
        linear = factor or (op.function in _LINEAR and len(over) == len(op.inputs))
        if over and (not linear or self._short(out)):
            raise InputError(
                f"operator {op.name!r} ({op.function}) reads {over[0]!r}, which is summed over the whole batch: "
                f"micro-batches would compute something else"
            )

    def _summed(self, name: str) -> bool:
        """Whether a tensor differs between micro-batches and has no batch: examples were added up."""
        if name in self.inputs or self._short(name):
            return False
        writer = self.part.operators[self._writer[name]]
        if writer.function == "fill":
            return False
        return any(
            a.tensor in self.repeated and (self._short(a.tensor) or self._summed(a.tensor)) for a in writer.inputs
        )

    @cached_property
    def _writer(self) -> Mapping[str, int]:
        return self.part.writer()

    def graph(self) -> Graph:
        """All micro-batches, then the updates."""
        whole, part = self.step.graph, self.part
        for t in part.tensors:
            if t.role is not Role.VALUE:
                self.tensors[t.name] = self._given(t, whole.tensor(t.name))
        for total in self.totals:
            before = self._ancestors({total})
            for i in range(self.count):
                for op in part.operators:
                    if op.output.tensor in before:
                        self._emit(op, i)
        for i in range(self.count):
            for op in part.operators:
                self._emit(op, i)
        once = f",{self.parts} parts" if self.parts > 1 else ""
        name = f"{whole.name}+micro({self.count}{once})"
        return Graph(name, tuple(self.tensors.values()), tuple(self.operators), whole.outputs, whole.state).check()

    def _given(self, t: Tensor, whole: Tensor) -> Tensor:
        if t.name not in self.inputs:
            return whole
        return replace(t, shape=(self.count, *t.shape), source_shape=whole.source_shape or whole.shape)

    def _emit(self, op: Operator, i: int) -> None:
        out = op.output.tensor
        name = f"{out}@{i}"
        if out not in self.repeated and out not in self.totals:
            once = 0 if out in self.needed else self.count - 1  # shared values first, updates last
            if i == once and out not in self.emitted:
                self.emitted.add(out)
                reads = tuple(replace(a, tensor=self._whole(a.tensor)) for a in op.inputs)
                self._add(self._stated(replace(op, inputs=reads)), self.part.tensor(out))
            return
        if name in self.emitted:
            return
        self.emitted.add(name)
        inputs = tuple(self._read(op, a, i) for a in op.inputs)
        written = replace(op, name=f"{op.name}@{i}", inputs=inputs, output=replace(op.output, tensor=name))
        if out in self.gradients and (along := self._along(op)):
            written = _in_parts(written, along, self.parts)
        shape = tuple(written.axis(a).extent for a in written.output.axes)
        like = self.part.tensor(out)
        same = shape == like.shape
        self._add(written, replace(like, name=name, shape=shape, source_shape=like.source_shape if same else None))
        if out in self.gradients or out in self.part.outputs or out in self.totals:
            self._sum(written, out, i)

    def _stated(self, op: Operator) -> Operator:
        """Sums of gradients have the type of their weights, which products of gradients in half precision then read."""
        if not op.attribute("arithmetic", ""):
            return op
        bare = replace(op, attributes=tuple((k, v) for k, v in op.attributes if k != "arithmetic"))
        return with_arithmetic(bare, {name: t.dtype for name, t in {**self._types, **self.tensors}.items()})

    @cached_property
    def _types(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.part.tensors}

    def _whole(self, name: str) -> str:
        return f"{name}.all" if name in self.gradients else name

    def _read(self, op: Operator, a: Access, i: int) -> Access:
        """A read of micro-batch i; one that takes a dimension whole, from a slice of its own."""
        if a.tensor not in self.inputs:
            return replace(a, tensor=f"{a.tensor}@{i}" if a.tensor in self.repeated else a.tensor)
        if not any(k.whole for k in a.index):
            return Access(a.tensor, (Affine((), i), *a.index))
        name = f"{a.tensor}@{i}"
        if name not in self.tensors:
            t = self.part.tensor(a.tensor)
            names = [f"i{k}" for k in range(len(t.shape))]
            axes = tuple(Axis(n, extent) for n, extent in zip(names, t.shape, strict=True))
            read = Access(a.tensor, (Affine((), i), *map(Affine.axis, names)))
            made = Operator(name, "copy", axes, (read,), access(name, *names))
            self._add(made, replace(t, name=name, role=Role.VALUE))
        return replace(a, tensor=name)

    def _along(self, op: Operator) -> str:
        """The axis of the batch that a gradient is summed over, if it can be cut into parts."""
        found = ""
        for a in op.inputs:
            short, long = self.part.tensor(a.tensor).shape, self.step.graph.tensor(a.tensor).shape
            for index, n, m in zip(a.index, short, long, strict=True):
                if n != m and index.single is not None and op.axis(index.single).combine is Combine.SUM:
                    found = index.single
        uses = [i for a in op.inputs for i in a.index if any(name == found for name, _ in i.terms)]
        plain = bool(found) and all(i.single == found for i in uses)
        return found if self.parts > 1 and plain and op.axis(found).extent % self.parts == 0 else ""

    def _sum(self, op: Operator, out: str, i: int) -> None:
        """Add what a micro-batch gives to a gradient or to the loss, and, at the end, its parts."""
        weight = self.gradients.get(out)
        like = self.part.tensor(out if weight is None else weight)
        total = out if weight is None else f"{out}.all"
        if i == 0:
            return
        names = op.output.axes
        cut, last = _PART in names, i == self.count - 1
        before = f"{out}@0" if i == 1 else f"{out}.sum@{i - 1}"
        name = total if last and not cut else f"{out}.sum@{i}"
        axes = tuple(replace(op.axis(n), combine=None) for n in names)
        reads = (access(before, *names), access(f"{out}@{i}", *names))
        made = Operator(name, "sum_inputs", axes, reads, access(name, *names))
        shape = tuple(op.axis(n).extent for n in names)
        self._add(made, Tensor(name, shape, like.dtype, Role.VALUE, None if cut else like.source_shape))
        if cut and last:
            kept = tuple(n for n in names if n != _PART)
            axes = (*(a for a in axes if a.name != _PART), Axis(_PART, self.parts, Combine.SUM))
            one = Operator(total, "sum", axes, (access(name, *names),), access(total, *kept))
            self._add(one, Tensor(total, shape[1:], like.dtype, Role.VALUE, like.source_shape))

    def _add(self, op: Operator, out: Tensor) -> None:
        self.operators.append(op)
        self.tensors[out.name] = out


def _adds_examples(op: Operator, whole: Operator) -> bool:
    """Whether an operator sums over the batch, so that its value is the sum of those of the micro-batches."""
    short = [a for a, b in zip(op.axes, whole.axes, strict=True) if a.extent != b.extent]
    return op.function in ("sum", "product") and bool(short) and all(a.combine is Combine.SUM for a in short)


_PART: Final = "part"
"""The axis of the parts of a gradient."""


def _in_parts(op: Operator, along: str, parts: int) -> Operator:
    """A sum over the batch that keeps the first digit of it, as the first dimension of its result."""
    rest = op.axis(along).extent // parts
    axes = (Axis(_PART, parts), *(replace(a, extent=rest) if a.name == along else a for a in op.axes))

    def read(a: Access) -> Access:
        return replace(
            a, index=tuple(replace(i, terms=((_PART, rest), (along, 1))) if i.single == along else i for i in a.index)
        )

    output = replace(op.output, index=(Affine.axis(_PART), *op.output.index))
    return replace(op, axes=axes, inputs=tuple(map(read, op.inputs)), output=output)


def parts_of(graph: Graph, count: int, devices: int) -> int:
    """Parts of a gradient that as many devices can have of a micro-batch: the greatest number that divides both.

    >>> from ..zoo import build
    >>> parts_of(build("mlp-unity", batch=24), 2, 8)
    4
    """
    return gcd(batch_of(graph) // count, devices)


def counts(graph: Graph, most: int = 64) -> Iterator[int]:
    """Numbers of micro-batches to be tried: powers of two that divide the batch of a step.

    >>> from ..zoo import build
    >>> list(counts(build("mlp-unity", batch=24)))
    [1, 2, 4, 8]
    """
    n, batch = 1, batch_of(graph)
    while n <= most and batch % n == 0:
        yield n
        n *= 2
