"""Programs of ONNX drawn at random, and the tests of the onnx wheel, imported and compared with the reference evaluator.

    python tests/onnx_draws.py FIRST COUNT      draws seeds from FIRST on; prints what differs, and how many were refused
    python tests/onnx_draws.py nodes            the node tests of the wheel, with their own expected outputs

A draw is one to three operators with their attributes, on shapes that hold 1 and on numbers that hold ties, negative
zeros, infinities and NaN.  Accepted programs have the numbers of the reference, or are faults of ours.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx_oracle import evaluate

from shardproof.backends.execution.reference import run_graph
from shardproof.models.program.graph import STATED, GraphError, Role, UnsupportedOperators
from shardproof.models.sources.onnx.importer import OnnxError, import_onnx

Array = np.ndarray
Random = np.random.Generator
KINDS = {np.dtype("float64"): TensorProto.DOUBLE, np.dtype("float32"): TensorProto.FLOAT}
REFUSED = "refused"
LARGEST = float(np.finfo(np.float32).max)
"""Infinity and this are one here: before operator set 11 a Clip without bounds has it for bounds, which we leave out."""


@dataclass
class Draw:
    """A program in the making: nodes, contents of inputs and of stored tensors; `now`: value and contents-free shape
    of what the next operator reads."""

    random: Random
    opset: int
    dtype: np.dtype = field(default_factory=lambda: np.dtype("float64"))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    stored: dict[str, Array] = field(default_factory=dict)
    made: dict[str, Array] = field(default_factory=dict)
    count: int = 0

    def pick(self, *choices: object) -> object:
        return choices[int(self.random.integers(len(choices)))]

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.random.random() < share)

    def integer(self, low: int, high: int) -> int:
        """Both included."""
        return int(self.random.integers(low, high + 1))

    def shape(self, low: int = 1, high: int = 4) -> list[int]:
        return [int(self.pick(1, 2, 3, 4, 5)) for _ in range(self.integer(low, high))]

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def numbers(self, shape: Sequence[int], special: bool = True) -> Array:
        """Small numbers with ties; sometimes with what arithmetic has at its ends."""
        x = np.round(self.random.standard_normal(tuple(shape)) * 2, int(self.pick(0, 1, 6)))
        if special and self.chance(0.2):
            odd = np.array([-0.0, 0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 0.5, -0.5, 2.5])
            x = np.where(self.random.random(x.shape) < 0.3, self.random.choice(odd, x.shape), x)
        return np.asarray(x, self.dtype)

    def value(self, array: Array, kept: float = 0.3) -> str:
        """An input, or a stored tensor."""
        name = self.name()
        (self.stored if self.chance(kept) else self.inputs)[name] = array
        return name

    def ints(self, *values: int) -> str:
        name = self.name()
        self.stored[name] = np.array(values, np.int64)
        return name

    def add(self, kind: str, inputs: Sequence[str], outputs: int = 1, **attributes: object) -> list[str]:
        out = [self.name() for _ in range(outputs)]
        self.nodes.append(
            helper.make_node(kind, list(inputs), out, **{k: v for k, v in attributes.items() if v is not None})
        )
        return out


def broadcast(d: Draw, shape: Sequence[int]) -> list[int]:
    """A shape that goes with another one."""
    kept = [n if d.chance(0.7) else 1 for n in shape]
    return kept[d.integer(0, len(kept)) :] if d.chance(0.4) else kept


def unary(d: Draw) -> list[str]:
    kind = d.pick("Relu", "Neg", "Tanh", "Sigmoid", "Exp", "Erf", "Sqrt", "Identity", "Dropout")
    return d.add(str(kind), [d.value(d.numbers(d.shape(0)), 0.0)])


def binary(d: Draw) -> list[str]:
    shape = d.shape(0)
    whole = d.chance(0.2)
    pair = [d.numbers(shape), d.numbers(broadcast(d, shape))]
    if whole:
        pair = [
            np.asarray(np.nan_to_num(x, nan=1, posinf=3, neginf=-3).clip(-9, 9), d.pick(np.int64, np.int32))
            for x in pair
        ]
        pair = [x.astype(pair[0].dtype) for x in pair]
    kind = str(d.pick("Add", "Sub", "Mul", "Div"))
    if whole and kind == "Div":
        pair[1] = np.where(pair[1] == 0, 2, pair[1]).astype(pair[1].dtype)
    if d.chance():
        pair.reverse()
        if whole and kind == "Div":
            pair[1] = np.where(pair[1] == 0, 2, pair[1]).astype(pair[1].dtype)
    return d.add(kind, [d.value(pair[0], 0.0), d.value(pair[1], 0.5)])


def several(d: Draw) -> list[str]:
    shape = d.shape(0)
    more = [d.value(d.numbers(broadcast(d, shape))) for _ in range(d.integer(0, 3))]
    return d.add("Sum", [d.value(d.numbers(shape), 0.0), *more])


def clip(d: Draw) -> list[str]:
    x = d.value(d.numbers(d.shape(0)), 0.0)
    low, high = d.pick(None, 0.0, -1.0, 0.5), d.pick(None, 6.0, 1.0, 0.25, -2.0)
    if d.opset < 11:
        return d.add("Clip", [x], min=low, max=high)
    given = [d.value(np.array(b, d.dtype), 1.0) if b is not None else "" for b in (low, high)]
    return d.add("Clip", [x, *given])


def gelu(d: Draw) -> list[str]:
    d.opset = max(d.opset, 20)
    return d.add("Gelu", [d.value(d.numbers(d.shape(0)), 0.0)], approximate=d.pick(None, "none", "tanh"))


def batch_norm(d: Draw) -> list[str]:
    shape = d.shape(2, 4)
    stats = [d.value(d.numbers([shape[1]], False), 0.9) for _ in range(3)]
    variance = d.value(np.abs(d.numbers([shape[1]], False)) + d.dtype.type(0.5), 0.9)
    epsilon = d.pick(None, 1e-3, 0.1)
    return d.add("BatchNormalization", [d.value(d.numbers(shape), 0.0), *stats, variance], epsilon=epsilon)


def softmax(d: Draw) -> list[str]:
    shape = d.shape(1)
    axis = d.pick(None, *range(-len(shape), len(shape)))
    if axis is None and d.opset < 13 and len(shape) < 2:
        axis = 0
    return d.add("Softmax", [d.value(d.numbers(shape), 0.0)], axis=axis)


def layer_norm(d: Draw) -> list[str]:
    d.opset = max(d.opset, 17)
    shape = d.shape(1)
    axis = int(str(d.pick(*range(-len(shape), len(shape)))))
    rest = shape[axis:]
    scale = d.value(d.numbers(broadcast(d, rest) if d.chance(0.2) else rest, False), 0.9)
    inputs = [d.value(d.numbers(shape, False), 0.0), scale]
    if d.chance():
        inputs.append(d.value(d.numbers(rest, False), 0.9))
    return d.add("LayerNormalization", inputs, axis=axis, epsilon=d.pick(None, 1e-2))


def local_response(d: Draw) -> list[str]:
    x = d.value(d.numbers(d.shape(3, 4), False), 0.0)
    return d.add(
        "LRN", [x], size=d.integer(1, 5), alpha=d.pick(None, 0.2), beta=d.pick(None, 0.5), bias=d.pick(None, 2.0)
    )


def spatial_pool(d: Draw) -> list[str]:
    return d.add(str(d.pick("GlobalAveragePool", "GlobalMaxPool")), [d.value(d.numbers(d.shape(3, 4)), 0.0)])


def reduction(d: Draw) -> list[str]:
    kind, shape = str(d.pick("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")), d.shape(1)
    x = d.value(d.numbers(shape) if d.chance(0.9) else np.asarray(d.random.integers(-5, 6, shape), np.int64), 0.0)
    some = [a - d.pick(0, len(shape)) for a in range(len(shape)) if d.chance()]  # type: ignore[operator]
    keep = d.pick(None, 0, 1)
    if d.opset >= (13 if kind == "ReduceSum" else 18):
        noop = d.pick(None, 0, 1)
        given = [d.ints(*map(int, some))] if some or d.chance() else []
        return d.add(kind, [x, *given], keepdims=keep, noop_with_empty_axes=noop)
    return d.add(kind, [x], keepdims=keep, axes=some or None)


def reshape(d: Draw) -> list[str]:
    shape = d.shape(1)
    size, target = int(np.prod(shape)), []
    rest = size
    while rest > 1:
        n = int(str(d.pick(*[k for k in range(2, rest + 1) if rest % k == 0])))
        target.append(n)
        rest //= n
    if d.chance():
        target.insert(d.integer(0, len(target)), 1)
    if target and d.chance():
        target[d.integer(0, len(target) - 1)] = -1
    target = [0 if k < len(shape) and shape[k] == n and d.chance(0.3) else n for k, n in enumerate(target)]
    return d.add("Reshape", [d.value(d.numbers(shape), 0.0), d.ints(*target)])


def flatten(d: Draw) -> list[str]:
    shape = d.shape(1)
    return d.add(
        "Flatten",
        [d.value(d.numbers(shape), 0.0)],
        axis=d.pick(None, *range(-len(shape) if d.opset >= 11 else 0, len(shape) + 1)),
    )


def squeezed(d: Draw) -> list[str]:
    shape = [int(d.pick(1, 1, 2, 3)) for _ in range(d.integer(1, 4))]
    x = d.value(d.numbers(shape), 0.0)
    ones = [k - int(str(d.pick(0, len(shape)))) for k, n in enumerate(shape) if n == 1 and d.chance()]
    if d.opset < 11:
        ones = [k % len(shape) for k in ones]
    if d.opset >= 13:
        return d.add("Squeeze", [x, *([d.ints(*ones)] if ones else [])])
    return d.add("Squeeze", [x], axes=ones or None)


def unsqueezed(d: Draw) -> list[str]:
    shape = d.shape(0, 3)
    many = d.integer(1, 2)
    places = list(d.random.choice(len(shape) + many, many, replace=False))
    axes = [int(p) - (len(shape) + many if d.opset >= 11 and d.chance() else 0) for p in places]
    x = d.value(d.numbers(shape), 0.0)
    return d.add("Unsqueeze", [x, d.ints(*axes)]) if d.opset >= 13 else d.add("Unsqueeze", [x], axes=axes)


def transpose(d: Draw) -> list[str]:
    shape = d.shape(1)
    perm = None if d.chance(0.2) else [int(k) for k in d.random.permutation(len(shape))]
    return d.add("Transpose", [d.value(d.numbers(shape), 0.0)], perm=perm)


def concat(d: Draw) -> list[str]:
    shape = d.shape(1)
    k = d.integer(0, len(shape) - 1)
    parts = [[*shape[:k], int(d.pick(1, 2, 3)), *shape[k + 1 :]] for _ in range(d.integer(1, 3))]
    values = [d.value(d.numbers(p), 0.2 if i else 0.0) for i, p in enumerate(parts)]
    return d.add("Concat", values, axis=k - (len(shape) if d.opset >= 11 and d.chance() else 0))


def split(d: Draw) -> list[str]:
    shape = d.shape(1)
    k = d.integer(0, len(shape) - 1)
    many = d.integer(1, shape[k])
    cuts = sorted(int(c) for c in d.random.choice(np.arange(1, shape[k]), many - 1, replace=False)) if many > 1 else []
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, shape[k]], strict=True)]
    axis = k - (len(shape) if d.opset >= 11 and d.chance() else 0)
    x = d.value(d.numbers(shape), 0.0)
    if d.opset >= 18 and d.chance():
        return d.add("Split", [x], many, axis=axis, num_outputs=many)
    if d.opset < 18 and shape[k] % many == 0 and d.chance():
        return d.add("Split", [x], many, axis=axis)
    if d.opset >= 13:
        return d.add("Split", [x, d.ints(*sizes)], many, axis=axis)
    return d.add("Split", [x], many, axis=axis, split=sizes)


def sliced(d: Draw) -> list[str]:
    shape = d.shape(1)
    axes = [k for k in range(len(shape)) if d.chance()] or [0]
    bounds = [-100, -3, -2, -1, 0, 1, 2, 3, 100, np.iinfo(np.int64).max, np.iinfo(np.int64).min]
    starts = [int(str(d.pick(*bounds))) for _ in axes]
    ends = [int(str(d.pick(*bounds))) for _ in axes]
    x = d.value(d.numbers(shape), 0.0)
    if d.opset < 10:
        return d.add("Slice", [x], axes=axes, starts=starts, ends=ends)
    axes = [k - (len(shape) if d.chance(0.3) else 0) for k in axes]
    steps = [int(str(d.pick(1, 1, 2, 3, -1, -2))) for _ in axes]
    given = [d.ints(*starts), d.ints(*ends)]
    if axes != list(range(len(shape))) or d.chance():
        given += [d.ints(*axes)] + ([d.ints(*steps)] if d.chance() else [])
    return d.add("Slice", [x, *given])


def padded(d: Draw) -> list[str]:
    shape = d.shape(1)
    mode = d.pick(None, "constant", "constant", "reflect", "edge", "wrap" if d.opset >= 19 else "edge")
    pads = [d.integer(0, 2) for _ in range(2 * len(shape))]
    x = d.value(d.numbers(shape), 0.0)
    if d.opset < 11:
        return d.add("Pad", [x], pads=pads, mode=mode, value=d.pick(None, 0.0, 1.5))
    given = [d.ints(*pads)]
    if d.chance():
        given.append(d.value(np.array(d.pick(0.0, -0.0, 1.5), d.dtype), 0.8))
    if d.opset >= 18 and d.chance(0.3):
        axes = [k for k in range(len(shape)) if d.chance()] or [0]
        given = [d.ints(*(d.integer(0, 2) for _ in range(2 * len(axes)))), given[1] if len(given) > 1 else ""]
        given.append(d.ints(*(k - (len(shape) if d.chance() else 0) for k in axes)))
    return d.add("Pad", [x, *given], mode=mode)


def _window(d: Draw, rank: int, spatial: Sequence[int], kernel: Sequence[int], pool: bool) -> dict[str, object]:
    auto = d.pick(None, None, None, "SAME_UPPER", "SAME_LOWER", "VALID")
    given: dict[str, object] = {"auto_pad": auto}
    if d.chance():
        given["strides"] = [d.integer(1, 3) for _ in range(rank)]
    if d.chance(0.4) and (not pool or d.opset >= 10):
        given["dilations"] = [d.integer(1, 2) for _ in range(rank)]
    if auto is None and d.chance():
        most = [min(2, k - 1) if pool else 2 for k in kernel]
        given["pads"] = [d.integer(0, m) for m in (*most, *most)]
    if pool and d.opset >= 10 and d.chance():
        given["ceil_mode"] = d.integer(0, 1)
    return given


def convolution(d: Draw) -> list[str]:
    rank, group = d.integer(1, 2), int(str(d.pick(1, 1, 2, 3)))
    inputs, outputs = group * d.integer(1, 2), group * d.integer(1, 2)
    kernel = [d.integer(1, 3) for _ in range(rank)]
    spatial = [d.integer(2, 7) for _ in range(rank)]
    x = d.value(d.numbers([d.integer(1, 2), inputs, *spatial], False), 0.0)
    given = [x, d.value(d.numbers([outputs, inputs // group, *kernel], False), 0.8)]
    if d.chance():
        given.append(d.value(d.numbers([outputs], False), 0.8))
    more = _window(d, rank, spatial, kernel, False)
    return d.add(
        "Conv", given, group=group if group > 1 or d.chance() else None, kernel_shape=d.pick(None, kernel), **more
    )


def pool(d: Draw) -> list[str]:
    kind, rank = str(d.pick("MaxPool", "AveragePool")), d.integer(1, 2)
    kernel, spatial = [d.integer(1, 3) for _ in range(rank)], [d.integer(2, 7) for _ in range(rank)]
    more = _window(d, rank, spatial, kernel, True)
    if kind == "AveragePool":
        if d.opset < 19:
            more.pop("dilations", None)
            more.pop("ceil_mode", None) if d.opset < 10 else None
        more["count_include_pad"] = d.pick(None, 0, 1)
    else:
        more["storage_order"] = d.pick(None, 0, 1) if d.opset >= 8 else None
    x = d.value(d.numbers([d.integer(1, 2), d.integer(1, 3), *spatial], False), 0.0)  # the oracle skips NaN
    return d.add(kind, [x], kernel_shape=kernel, **more)


def gemm(d: Draw) -> list[str]:
    m, n, k = (int(str(d.pick(1, 2, 3, 4))) for _ in range(3))
    a, b = d.pick(None, 0, 1), d.pick(None, 0, 1)
    given = [
        d.value(d.numbers([k, m] if a else [m, k], False), 0.0),
        d.value(d.numbers([n, k] if b else [k, n], False), 0.8),
    ]
    if d.chance(0.7) or d.opset < 11:
        given.append(d.value(d.numbers(list(d.pick([m, n], [n], [1, n], [m, 1], [1], [1, 1], [])), False), 0.5))  # type: ignore[call-overload]
    return d.add("Gemm", given, transA=a, transB=b, alpha=d.pick(None, 0.5, 0.0), beta=d.pick(None, 2.0, 0.0))


def matmul(d: Draw) -> list[str]:
    m, n, k = (int(str(d.pick(1, 2, 3))) for _ in range(3))
    lead = d.shape(0, 2)
    a, b = [*(broadcast(d, lead)), m, k], [*(broadcast(d, lead)), k, n]
    if d.chance(0.2):
        a = [k]
    if d.chance(0.2):
        b = [k]
    return d.add("MatMul", [d.value(d.numbers(a, False), 0.0), d.value(d.numbers(b, False), 0.5)])


def gather(d: Draw) -> list[str]:
    shape = d.shape(1, 3) if d.chance(0.4) else [d.integer(1, 5), d.integer(1, 4)]
    axis = d.integer(-len(shape), len(shape) - 1) if d.chance(0.3) else 0
    low = -shape[axis] if d.opset >= 11 and d.chance(0.4) else 0
    ids = np.asarray(d.random.integers(low, shape[axis], tuple(d.shape(0, 2))), np.int64)
    return d.add(
        "Gather", [d.value(d.numbers(shape, False), 0.7), d.value(ids, 0.3)], axis=axis if axis or d.chance() else None
    )


def shaped(d: Draw) -> list[str]:
    """Arithmetic on shapes: flattens all but the first dimension, as exporters write it."""
    shape = d.shape(2)
    x = d.value(d.numbers(shape), 0.0)
    (whole,) = d.add("Shape", [x])
    (first,) = d.add("Gather", [whole, d.ints(0)], axis=0)
    (target,) = d.add("Concat", [first, d.ints(-1)], axis=0)
    return d.add("Reshape", [x, target])


def constants(d: Draw) -> list[str]:
    shape = d.shape(1)
    filler = d.pick(None, 0.5, 2.0)
    value = None if filler is None else numpy_helper.from_array(np.array([filler], np.float32))
    (made,) = d.add("ConstantOfShape", [d.ints(*shape)], value=value)
    d.dtype = np.dtype("float32")
    d.made[made] = np.full(shape, 0.0 if filler is None else filler, np.float32)
    return d.add(str(d.pick("Add", "Mul", "Sub")), [d.value(d.numbers(shape), 0.0), made])


def scalars(d: Draw) -> list[str]:
    d.dtype = np.dtype("float32")
    d.opset = max(d.opset, 12)
    pair = [
        d.value(d.numbers(d.shape(0)), 0.0),
        d.add("Constant", [], value_float=float(str(d.pick(0.0, 2.0, -0.5, 0.1))))[0],
    ]
    if d.chance():
        pair.reverse()
    return d.add(str(d.pick("Add", "Mul", "Sub", "Div")), pair)


MAKERS: tuple[Callable[[Draw], list[str]], ...] = (
    unary, binary, binary, several, clip, gelu, batch_norm, softmax, layer_norm, local_response, spatial_pool, reduction,
    reduction, reshape, flatten, squeezed, unsqueezed, transpose, concat, split, sliced, padded, convolution, convolution,
    pool, pool, gemm, matmul, gather, shaped, constants, scalars,
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A model and the numbers that it is given."""

    model: onnx.ModelProto
    feed: dict[str, Array]
    words: str
    made: dict[str, Array] = field(default_factory=dict)
    """Of constants that the importer takes for weights (those with which light models replace them)."""


def drawn(seed: int) -> Program:
    """The program of a seed.  Raises what ONNX itself says of one that cannot be."""
    random = np.random.default_rng(seed)
    d = Draw(random, int(random.choice([7, 9, 10, 11, 12, 13, 15, 17, 18, 19, 21])))
    maker = MAKERS[int(random.integers(len(MAKERS)))]
    outputs = maker(d)
    if d.chance(0.4) and len(outputs) == 1:
        for _ in range(d.integer(1, 2)):
            kind = str(d.pick("Neg", "Relu", "Transpose", "Flatten", "Identity", "Tanh"))
            try:
                outputs = d.add(kind, outputs)
            except ValueError:
                break
    words = f"seed {seed}, opset {d.opset}: " + "; ".join(
        f"{n.op_type}({', '.join(n.input)}) {[helper.printable_attribute(a) for a in n.attribute]}" for n in d.nodes
    )
    return Program(modelled(d, outputs), {**d.inputs, **d.stored}, words, d.made)


def modelled(d: Draw, outputs: Sequence[str]) -> onnx.ModelProto:
    """The draw as a model whose outputs have the shapes that ONNX infers."""
    kinds = {v: helper.np_dtype_to_tensor_dtype(a.dtype) for v, a in {**d.inputs, **d.stored}.items()}
    first = kinds[next(iter(d.inputs))]
    graph = helper.make_graph(
        d.nodes,
        "drawn",
        [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in d.inputs.items()],
        [helper.make_tensor_value_info(o, first, None) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in d.stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", d.opset)], ir_version=8)
    inferred = {o.name: o for o in onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output}
    for o in model.graph.output:
        found = inferred.get(o.name)
        known = found is not None and found.type.tensor_type.HasField("shape")
        o.CopyFrom(found if known else helper.make_tensor_value_info(o.name, first, [1]))
    return model


def ours(path: Path, feed: dict[str, Array]) -> list[Array]:
    """What our graph of a file gives, output for output.  Raises the importer's refusals."""
    found = import_onnx(path)
    graph = found.graph
    values = {}
    for t in graph.tensors:
        if t.role is not Role.VALUE:
            values[t.name] = feed[t.name.removeprefix(STATED)].reshape(t.shape)
    with np.errstate(all="ignore"):
        got = run_graph(graph, values)
    return [got[o] for o in graph.outputs]


def different(mine: Sequence[Array], theirs: Sequence[Array], tolerance: float) -> str:
    """Where two lists of arrays differ; empty if they do not.  Sizes must agree; NaN is NaN, and a zero has no sign."""
    if len(mine) != len(theirs):
        return f"{len(mine)} outputs, wanted {len(theirs)}"
    for k, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a.size != b.size:
            return f"output {k} has shape {a.shape}, wanted {b.shape}"
        x, y = (np.clip(v.reshape(b.shape).astype(np.float64), -LARGEST, LARGEST) for v in (a, b))
        with np.errstate(all="ignore"):
            same = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= tolerance * np.maximum(1.0, np.abs(y)))
        if not bool(np.all(same)):
            at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(~same)))[: x.ndim]
            return f"output {k} at {at}: {x[at]!r}, wanted {y[at]!r}"
    return ""


def judged(program: Program, folder: Path, expected: Sequence[Array] | None = None) -> str:
    """Empty where the numbers agree; `REFUSED` and why; else the difference.  A program that ONNX's own evaluator
    cannot run is refused as well, whatever we say."""
    path = folder / "drawn.onnx"
    onnx.save(program.model, str(path))
    try:
        mine = ours(path, {**program.feed, **program.made})
    except (OnnxError, UnsupportedOperators) as error:
        return f"{REFUSED}: {str(error)[:160]}"
    except GraphError as error:
        return f"GraphError {error}"
    except Exception as error:  # noqa: BLE001  # which is a fault
        return f"{type(error).__name__} {str(error)[:200]}"
    if expected is None:
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                given = {**program.feed, **program.made}
                precise = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in given.items()}
                expected = evaluate(program.model, precise, [o.name for o in program.model.graph.output])
        except Exception as error:  # noqa: BLE001  # the oracle's own
            return f"{REFUSED} by the oracle: {type(error).__name__} {str(error)[:80]}"
    dtypes = {a.dtype for a in program.feed.values()}
    return different(mine, expected, 1e-6 if np.dtype("float32") not in dtypes else 1e-4)  # the oracle's erf is float32


def of_the_wheel() -> list[tuple[Program, list[Array]]]:
    """The node tests of the onnx wheel whose inputs and outputs are tensors."""
    from onnx.backend.test.case.node import collect_testcases

    found = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        for inputs, outputs in case.data_sets or ():
            if not all(isinstance(a, np.ndarray) and a.dtype != object for a in (*inputs, *outputs)):
                continue
            names = [i.name for i in case.model.graph.input]
            if len(names) == len(inputs):
                found.append((Program(case.model, dict(zip(names, inputs, strict=True)), case.name), list(outputs)))
    return found


def main(arguments: list[str]) -> int:
    """Print every difference, and the count of each outcome."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        if arguments[0] == "nodes":
            work: list[tuple[Program, list[Array] | None]] = [*of_the_wheel()]
        else:
            work = []
            for seed in range(int(arguments[0]), int(arguments[0]) + int(arguments[1])):
                try:
                    work.append((drawn(seed), None))
                except Exception as error:  # noqa: BLE001  # what ONNX says of a model that cannot be
                    counts[f"no model: {type(error).__name__}"] += 1
                if len(work) >= 500 or seed == int(arguments[0]) + int(arguments[1]) - 1:
                    _batch(work, Path(folder), counts, reasons)
                    work = []
        _batch(work, Path(folder), counts, reasons)
    print(dict(counts), flush=True)
    for reason, n in reasons.most_common(40):
        print(f"  {n} {reason}")
    return counts["different"]


def _batch(
    work: list[tuple[Program, list[Array] | None]], folder: Path, counts: Counter[str], reasons: Counter[str]
) -> None:
    for program, expected in work:
        found = judged(program, folder, expected)
        counts["equal" if not found else REFUSED if found.startswith(REFUSED) else "different"] += 1
        if found.startswith(REFUSED):
            reasons[found[:70]] += 1
        elif found:
            print(f"{program.words[:300]}\n    {found}", flush=True)


if __name__ == "__main__":
    raise SystemExit(min(1, main(sys.argv[1:])))
