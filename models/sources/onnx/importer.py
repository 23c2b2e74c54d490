"""Turns ONNX files into graphs in digits.

    file -> nodes as plain data -> operators over flat dimensions, reshapes as views (`onnx_*` handlers) -> digits
    (`digits`)

Every operator kind is in one table, `HANDLERS`; what is not there, or is there in a variant that we cannot represent,
is refused with all its places listed at once.  Inference semantics: Dropout is the identity, batch norm uses stored
statistics.  Stored weights (initialisers, and the ConstantOfShape nodes with which light models replace them) become
parameters; their contents are not read, except small integers (shapes, axes) and scalars that are constants of the
program.

Another batch (`batch=`): the first dimension of every input is replaced, the file is converted under both batches, and
shapes that differ are the batch's (`layout` for reshapes).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from ...program.graph import Graph, GraphError, UnsupportedOperators
from ..building.builder import Builder
from ..building.digits import Digits, split_digits
from ..building.flat import Unsupported, used
from ..building.layer_names import layer_names, with_layer_names
from ..building.original import Original
from . import dense as onnx_dense
from . import layout as onnx_layout
from . import pointwise as onnx_pointwise
from . import window as onnx_window
from .context import Attribute, Constant, Context, Handler, Node, OnnxError, Weight
from .fold import fold
from .original import original_of

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {**onnx_pointwise.HANDLERS, **onnx_dense.HANDLERS, **onnx_window.HANDLERS, **onnx_layout.HANDLERS}
)
"""ONNX operator -> what converts it."""

_FOLDED: Final = ("Shape", "Cast")
_CONSTANTS: Final = ("Constant", "ConstantOfShape", "ConstantFill")
_DTYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "float32",
        2: "uint8",
        3: "int8",
        5: "int16",
        6: "int32",
        7: "int64",
        9: "bool",
        10: "float16",
        11: "float64",
        16: "bfloat16",
    }
)
_SMALL = 4096
_PATH: Final = re.compile(r"[./]")
"""What separates modules in names of nodes."""


@dataclass(frozen=True)
class Imported:
    """An imported model.

    `where`: operator -> ONNX node it came from.  `values`: ONNX value -> tensor of the graph that holds it (row-major
    equal, unless a transpose was removed).  `digits`: what became of reshapes and transposes.
    """

    graph: Graph
    where: Mapping[str, str]
    values: Mapping[str, str]
    digits: Digits


def supported_operators() -> list[str]:
    """ONNX operators that can be imported, sorted (Shape and Cast only in arithmetic on shapes).

    >>> "Conv" in supported_operators(), "Loop" in supported_operators()
    (True, False)
    """
    return sorted({*HANDLERS, *_FOLDED})


def load_onnx(path: str | Path, batch: int | None = None, original: Callable[[Original], None] | None = None) -> Graph:
    """The graph of an ONNX file, in digits; `batch` replaces the first dimension of its inputs; `original` takes the
    file as the reference evaluator runs it.

    Raises `OnnxError` (cannot be read, malformed, or a batch that cannot be followed) and `UnsupportedOperators`.
    """
    graph = import_onnx(path, batch).graph
    if original is not None:
        original(original_of(_read(Path(path)), lambda model: import_model(model, Path(path).stem, batch)))
    return graph


def import_onnx(path: str | Path, batch: int | None = None) -> Imported:
    """Like `load_onnx`, with the way back to the file."""
    if batch is not None and batch < 1:
        raise OnnxError("batch", f"must be at least 1, got {batch}")
    try:
        return import_model(_read(Path(path)), Path(path).stem, batch)
    except GraphError as e:
        raise e if isinstance(e, OnnxError) else OnnxError(f"{path}", str(e)) from None


def import_model(model: ModelProto, name: str, batch: int | None = None) -> Imported:
    """`import_onnx` of a model that was read.  Raises `GraphError` for what makes no graph."""
    own = _own_batch(model.graph, batch)
    context = _convert(model, own, None)
    if batch is not None and own is not None and batch != own:
        reference = {v: context.shape(v) for v in context.values}
        context = _convert(model, batch, (own, reference))
    outputs = [o.name for o in model.graph.output]
    lost = [o for o in outputs if o not in context.values]
    if lost:
        raise OnnxError(f"output {lost[0]!r}", "is a constant or is not computed by any node")
    flat = Graph(
        name,
        tuple(context.g.tensors.values()),
        tuple(context.g.operators),
        tuple(context.values[o] for o in outputs),
    )
    flat = used(flat).check()
    names = layer_names(flat, {op.name for op in flat.operators if not _PATH.search(op.name)})
    digits = split_digits(with_layer_names(flat, names))
    where = {names.get(k, k): v for k, v in context.where.items()}
    kept = {op.name for op in digits.graph.operators}
    held = {v: names.get(t, t) for v, t in context.values.items()}
    values = {v: digits.stored[t] for v, t in held.items() if t in digits.stored}
    return Imported(digits.graph, {k: v for k, v in where.items() if k in kept}, values, digits)


def _read(path: Path) -> ModelProto:
    """Parse and check the file; unknown operators come first, for the checker would call them malformed."""
    import onnx

    decode_error: type[Exception] = import_module("google.protobuf.message").DecodeError
    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as e:
        raise OnnxError(f"{path}", f"cannot be read: {e.strerror or e}") from None
    except (decode_error, ValueError, UnicodeDecodeError) as e:
        raise OnnxError(f"{path}", f"is not an ONNX model: {e}") from None
    if any(isinstance(text, bytes) for text in _texts(model.graph)):  # what protobuf does with text that is not UTF-8
        raise OnnxError(f"{path}", "is not an ONNX model: a name is not UTF-8")
    missing: dict[str, list[str]] = {}
    for i, n in enumerate(model.graph.node):
        kind = _kind(n)
        if kind not in HANDLERS and kind not in _FOLDED:
            missing.setdefault(kind, []).append(_name(n, i))
    if missing:
        raise UnsupportedOperators(missing)
    if not model.graph.node:
        raise OnnxError(f"{path}", "holds no operator")
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, ValueError) as e:
        raise OnnxError(f"{path}", f"is malformed: {' '.join(str(e).split())[:300]}") from None
    return model


def _texts(graph: GraphProto) -> Iterator[object]:
    """All names of the graph."""
    for n in graph.node:
        yield from (n.name, n.op_type, n.domain, *n.input, *n.output, *(a.name for a in n.attribute))
    yield from (v.name for group in (graph.input, graph.output, graph.initializer) for v in group)


def _kind(node: NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _name(node: NodeProto, number: int) -> str:
    return node.name or next((o for o in node.output if o), f"node{number}")


def _read_values(graph: GraphProto) -> frozenset[str]:
    return frozenset([v for n in graph.node for v in n.input] + [o.name for o in graph.output])


def _inputs(graph: GraphProto) -> list[ValueInfoProto]:
    """Inputs that the user feeds: not stored, and read by some node."""
    stored = {t.name for t in graph.initializer}
    read = _read_values(graph)
    return [i for i in graph.input if i.name not in stored and i.name in read]


def _dims(value: ValueInfoProto) -> list[int | None]:
    """Declared shape; None for a symbolic dimension.  Raises `OnnxError` if there is none."""
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        raise OnnxError(f"input {value.name!r}", "has no declared shape; export the model with static shapes")
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in value.type.tensor_type.shape.dim
    ]


def _own_batch(graph: GraphProto, batch: int | None) -> int | None:
    """The file's own batch; where it is symbolic, the one asked for."""
    first = {i.name: _dims(i)[0] for i in _inputs(graph) if _dims(i)}
    fixed = {n for n in first.values() if n is not None}
    if batch is not None and len(fixed) > 1:
        listed = ", ".join(f"{k}: {v}" for k, v in first.items())
        raise OnnxError(
            "inputs", f"have different first dimensions ({listed}), so batch {batch} is ambiguous; import without it"
        )
    symbolic = [k for k, n in first.items() if n is None]
    if symbolic and batch is None and not fixed:
        raise OnnxError(f"input {symbolic[0]!r}", "has a symbolic first dimension; give the batch (--batch N)")
    return min(fixed) if fixed else batch


def _attribute(a: AttributeProto) -> Attribute | None:
    """An attribute as plain data; None for kinds that no handler reads (graphs, strings lists)."""
    import onnx

    match a.type:
        case onnx.AttributeProto.INT:
            return int(a.i)
        case onnx.AttributeProto.FLOAT:
            return float(a.f)
        case onnx.AttributeProto.STRING:
            return str(a.s.decode(errors="replace"))
        case onnx.AttributeProto.INTS:
            return tuple(a.ints)
        case onnx.AttributeProto.FLOATS:
            return tuple(a.floats)
        case onnx.AttributeProto.TENSOR:
            return np.asarray(onnx.numpy_helper.to_array(a.t))
        case _:
            return None


def _weight(t: TensorProto) -> Weight:
    if t.data_type not in _DTYPES:
        raise OnnxError(f"initializer {t.name!r}", f"has an element type that is not supported (number {t.data_type})")
    return Weight(tuple(t.dims), _DTYPES[t.data_type], partial(_contents, t))


def _contents(t: TensorProto) -> Constant | None:
    """Contents of a small stored tensor, None if it is large or kept outside the file."""
    import onnx

    if int(np.prod(t.dims, dtype=object)) > _SMALL or t.data_location == onnx.TensorProto.EXTERNAL:
        return None
    return np.asarray(onnx.numpy_helper.to_array(t))


def _convert(
    model: ModelProto, batch: int | None, reference: tuple[int, Mapping[str, tuple[int, ...]]] | None
) -> Context:
    """Run every node's handler under `batch`; `reference`: the file's own batch and the shapes under it."""
    graph = model.graph
    weights = {t.name: _weight(t) for t in graph.initializer}
    inputs = _inputs(graph)
    made = [o for n in graph.node if n.op_type in _CONSTANTS for o in n.output]
    c = Context(
        Builder(graph.name or "onnx"),
        max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1),
        weights,
        frozenset([*weights, *made, *(i.name for i in inputs)]),
        _read_values(graph),
        batch,
        *(reference or (None, None)),
    )
    for i in inputs:
        kind, dims = i.type.tensor_type.elem_type, _dims(i)
        if kind not in _DTYPES:
            raise OnnxError(f"input {i.name!r}", f"has an element type that is not supported (number {kind})")
        shape = [batch if k == 0 and batch is not None and reference is not None else n for k, n in enumerate(dims)]
        shape = [batch if k == 0 and n is None else n for k, n in enumerate(shape)]
        if any(n is None for n in shape):
            raise OnnxError(
                f"input {i.name!r}", f"has a symbolic dimension besides the first: {dims}; export with static shapes"
            )
        known = [n for n in shape if n is not None]
        c.values[i.name] = c.g.input(i.name, known or (1,), _DTYPES[kind], None if known else ())
    missing: dict[str, list[str]] = {}
    lost: set[str] = set()
    for k, n in enumerate(graph.node):
        attributes = {a.name: v for a in n.attribute if (v := _attribute(a)) is not None}
        node = Node(_kind(n), _name(n, k), tuple(n.input), tuple(n.output), attributes)
        if lost.intersection(node.inputs):  # depends on what was refused already
            lost.update(node.outputs)
            continue
        try:
            _node(c, node)
        except Unsupported as e:
            missing.setdefault(f"{node.kind} with {e.reason}", []).append(node.name)
            lost.update(node.outputs)
        except GraphError as e:
            raise OnnxError(f"node {node.name!r}", e.message) from None
        except OnnxError:
            raise
        except (
            ValueError,
            IndexError,
            KeyError,
            TypeError,
            OverflowError,
        ) as e:  # ranks or attributes no handler expects
            raise OnnxError(f"node {node.name!r}", f"{node.kind} is malformed: {type(e).__name__}: {e}") from None
    if missing:
        raise UnsupportedOperators(missing)
    return c


def _node(c: Context, node: Node) -> None:
    if fold(c, node):
        return
    if node.kind in _FOLDED:
        raise Unsupported("values that are not arithmetic on shapes")
    HANDLERS[node.kind](c, node)
