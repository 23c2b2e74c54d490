"""A model with some tensors half as wide: every operator gets the type it computes in, every
narrowing is a cast.

    weight W in float32     ->   W.bf16 = cast(W), once, read by every operator that computes in bfloat16
    operand x in float32    ->   x.bf16 likewise, where such an operator reads it
    operand in bfloat16 where float32 is computed: read as it is, because widening is exact

so that nothing is rounded but by a cast or where an operator writes its result.  Weights that are trained are float32
whatever the model stores; those that are not, and constants, keep their type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...program.graph import ELEMENT_BYTES, Graph, GraphError, Role, Tensor
from ...program.index import Axis, access
from ...program.operators import NodeKind, Operator
from ..building.dimensions import dimension_names
from .policy import LOSSES, Compute, computed_in
from .settings import HALF, Precision

_SHORT = {wide: short for short, wide in HALF.items()}


def mixed_precision(graph: Graph, precision: Precision) -> Graph:
    """The model in mixed precision; its weights, inputs and outputs keep their names.  A model in float64 is taken as
    one in float32.  Raises `GraphError` for a training step.

    >>> from ..zoo import build
    >>> half = mixed_precision(build("mlp-unity"), Precision("bf16-mixed"))
    >>> [(op.name, half.tensor(op.output.tensor).dtype) for op in half.operators][:3]
    [('x.bf16', 'bfloat16'), ('fc1.weight.bf16', 'bfloat16'), ('fc1', 'bfloat16')]
    """
    if graph.state:
        raise GraphError(
            f"graph {graph.name!r}",
            "is a training step already: give --precision with --train and the forward model",
        )
    return _Rewriting(graph, precision).done()


def real(dtype: str) -> bool:
    """Whether an element type is one of numbers that are rounded."""
    return dtype.startswith(("float", "bfloat"))


class _Rewriting:
    def __init__(self, graph: Graph, precision: Precision) -> None:
        self.graph, self.precision, self.native = graph, precision, False
        self.stated = self._stated()
        self.names = dimension_names(graph)
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.same: dict[str, str] = {}
        self.casts: dict[tuple[str, str], str] = {}
        self.halves: set[str] = set()
        """Results of products in half precision with one reader: what is added to them next may be their bias."""
        self.raised: set[str] = set()
        """Tensors of a loss, wider than the model states them."""

    def _stated(self) -> dict[str, str]:
        """The types of the model as it would be built: in float32 for autocast, else in the half type."""
        self.native = any(t.dtype in _SHORT for t in self.graph.tensors)
        half = self.precision.half
        out = {}
        for t in self.graph.tensors:
            dtype = "float32" if t.dtype == "float64" else t.dtype
            if self.precision.autocast:
                out[t.name] = "float32" if dtype in _SHORT else dtype
            elif dtype in _SHORT or (not self.native and dtype == "float32" and t.role is not Role.INPUT):
                out[t.name] = half
            else:
                out[t.name] = dtype
        return out

    def done(self) -> Graph:
        """The rewritten graph."""
        readers = self.graph.readers()
        for t in self.graph.tensors:
            if t.role is not Role.VALUE:
                self.tensors[t.name] = self._given(t)
        for op in self.graph.operators:
            result = self._operator(op)
            if result is not None and computed_in(op) is Compute.HALF and len(readers[op.output.tensor]) == 1:
                self.halves.add(op.output.tensor)
        outputs = tuple(self.same.get(o, o) for o in self.graph.outputs)
        return replace(
            self.graph, tensors=tuple(self.tensors.values()), operators=tuple(self.operators), outputs=outputs
        ).check()

    def _given(self, t: Tensor) -> Tensor:
        if t.role is Role.PARAMETER and real(t.dtype):
            frozen = t.frozen and not self.precision.autocast
            return replace(t, dtype=self.stated[t.name] if frozen else "float32")
        if t.dtype == "float64" and t.contents is None:
            return replace(t, dtype="float32")
        return t

    def _dtype(self, name: str) -> str:
        return self.tensors[name].dtype

    def _operator(self, op: Operator) -> str | None:
        """Add an operator in the type it computes in; its result, or None where nothing has to be done."""
        reads = [replace(a, tensor=self.same.get(a.tensor, a.tensor)) for a in op.inputs]
        out = self.graph.tensor(op.output.tensor)
        if not real(out.dtype):
            self._add(replace(op, inputs=tuple(reads)), out)
            return out.name
        if op.kind is NodeKind.SCAN:
            return self._loop(op, [a.tensor for a in reads], out)
        if op.function == "cast" and reads:
            return self._cast_stated(op, reads[0].tensor, out)
        reads = [replace(a, tensor=self.cast(a.tensor, "float32")) if self._wide(a.tensor) else a for a in reads]
        half = self._half_operands(op, [a.tensor for a in reads])
        dtype = self._result(op, [a.tensor for a in reads], half)
        inputs = tuple(
            replace(a, tensor=self.cast(a.tensor, self.precision.half)) if k in half else a for k, a in enumerate(reads)
        )
        if computed_in(op) is Compute.STATED and op.kind is NodeKind.OPAQUE:  # its reference knows the types it states
            inputs = tuple(replace(a, tensor=self.cast(a.tensor, self.graph.tensor(a.tensor).dtype)) for a in reads)
            dtype = out.dtype
        self._add(replace(op, inputs=inputs), replace(out, dtype=dtype))
        return out.name

    def _loop(self, op: Operator, reads: list[str], out: Tensor) -> str:
        """A loop is of one type, as torch's recurrent layers are: half under autocast where its body has products."""
        body = self.graph.body(op)
        dtype = self.stated[out.name]
        if self.precision.autocast:
            products = any(computed_in(step) is Compute.HALF for step in body.operators)
            dtype = self.precision.half if products else widest([d for t in reads if real(d := self._dtype(t))])
        inputs = tuple(replace(a, tensor=self.cast(t, dtype)) for a, t in zip(op.inputs, reads, strict=True))
        self._add(with_type(replace(op, inputs=inputs), body, dtype), replace(out, dtype=dtype))
        return out.name

    def _wide(self, name: str) -> bool:
        """Constants of the program keep their type, float64 if that is theirs."""
        return self._dtype(name) == "float64"

    def _half_operands(self, op: Operator, reads: list[str]) -> set[int]:
        """Operands that are read in the half type."""
        wide = {k for k, t in enumerate(reads) if self._dtype(t) == "float32"}
        if not self.precision.autocast:
            return {k for k in wide if self._stated_half(reads[k], op)}
        if computed_in(op) is Compute.HALF:
            last = {len(reads) - 1} if op.kind is NodeKind.GROUPED else set()
            return wide - last
        if op.function == "add" and any(t in self.halves for t in reads):
            return {k for k in wide if self.tensors[reads[k]].role is Role.PARAMETER}
        return set()

    def _stated_half(self, name: str, op: Operator) -> bool:
        """Of a model in half precision: weights everywhere, other operands where products read them."""
        if name in self.raised:
            return False
        t = self.tensors[name]
        if t.role is Role.INPUT:
            inside = op.function not in LOSSES and not any(a.tensor in self.raised for a in op.inputs)
            return inside and not self.native and self.stated[op.output.tensor] in _SHORT
        return self.stated.get(name) in _SHORT

    def _result(self, op: Operator, reads: list[str], half: set[int]) -> str:
        compute, stated = computed_in(op), self.stated[op.output.tensor]
        if compute is Compute.STATED or not reads:
            return stated
        if not self.precision.autocast:
            loss = op.function in LOSSES or any(t in self.raised for t in reads)
            if loss and stated in _SHORT:
                self.raised.add(op.output.tensor)
                return "float32"
            return stated
        types = [self.precision.half if k in half else self._dtype(t) for k, t in enumerate(reads)]
        if compute is Compute.HALF:
            return self.precision.half
        if compute is Compute.FLOAT:
            return "float32"
        if compute is Compute.FIRST:
            return types[0]
        dimensions = bool(self.graph.tensor(op.output.tensor).shape)
        counted = [d for t, d in zip(reads, types, strict=True) if self.tensors[t].shape or not dimensions]
        return widest([d for d in counted if real(d)] or [d for d in types if real(d)] or [stated])

    def _cast_stated(self, op: Operator, source: str, out: Tensor) -> str | None:
        """A cast of the model: nothing where the operand has that type already."""
        dtype = self.stated[out.name]
        have = self._dtype(source)
        if self.tensors[source].role is Role.PARAMETER and have == "float32" and self.stated[source] != dtype:
            source = self.cast(source, self.stated[source])  # the model casts what it stores, which is half
            have = self.stated[source] if source in self.stated else self._dtype(source)
        plain = op.inputs[0].index == op.output.index and self.graph.tensor(op.inputs[0].tensor).shape == out.shape
        if have == dtype and plain and out.name not in self.graph.outputs:
            self.same[out.name] = source
            return None
        attributes = tuple((k, dtype if k == "dtype" else v) for k, v in op.attributes)
        inputs = (replace(op.inputs[0], tensor=source),)
        self._add(replace(op, inputs=inputs, attributes=attributes), replace(out, dtype=dtype))
        return out.name

    def cast(self, name: str, dtype: str) -> str:
        """The tensor in another type: itself, or cast once before its first reader."""
        t = self.tensors[name]
        if t.dtype == dtype or not real(t.dtype) or not real(dtype):
            return name
        if (name, dtype) not in self.casts:
            fresh = f"{name}.{_SHORT.get(dtype, 'fp32')}"
            while fresh in self.tensors or fresh in self.stated:
                fresh += "'"
            names = self.names[name]
            axes = tuple(Axis(a, n) for a, n in zip(names, t.shape, strict=True))
            op = Operator(fresh, "cast", axes, (access(name, *names),), access(fresh, *names), (("dtype", dtype),))
            self._add(op, Tensor(fresh, t.shape, dtype, Role.VALUE, t.source_shape))
            self.casts[name, dtype] = fresh
        return self.casts[name, dtype]

    def _add(self, op: Operator, out: Tensor) -> None:
        self.tensors[out.name] = out
        self.operators.append(op)


def with_type(op: Operator, body: Graph, dtype: str) -> Operator:
    """A loop whose body computes in another type."""

    def own(step: Operator) -> Operator:
        to = body.tensor(step.output.tensor).dtype
        given = tuple((k, dtype if k == "dtype" and real(to) else v) for k, v in step.attributes)
        return replace(step, attributes=given)

    tensors = tuple(replace(t, dtype=dtype) if real(t.dtype) else t for t in body.tensors)
    changed = replace(body, tensors=tensors, operators=tuple(map(own, body.operators)))
    return replace(op, attributes=tuple((k, changed.to_json() if k == "body" else v) for k, v in op.attributes))


def widest(types: Iterable[str]) -> str:
    """The type that torch promotes to.

    >>> widest(["bfloat16", "float32"]), widest(["bfloat16", "float16"]), widest(["float16"])
    ('float32', 'float32', 'float16')
    """
    found = set(types)
    if len(found) == 1:
        return next(iter(found))
    top = max(found, key=lambda d: ELEMENT_BYTES[d])
    return top if top not in _SHORT else "float32"
