"""The single-process reference: every operator on its whole iteration box, one after another.

This is the meaning of a graph.  Everything distributed is compared with it.

Inputs are given by tensor name, in digit shape or in `source_shape` (row-major, the two are views of each other).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod, sqrt
from types import ModuleType
from zlib import crc32

import numpy as np

from ...models.program.contents import Values
from ...models.program.graph import Graph, GraphError, Role, Tensor
from ...models.program.operators import BY_DATA, NodeKind
from ..kernels import (
    Array,
    Block,
    execute,
    execute_stored,
    execute_unrounded,
    execution_dtype,
    full_box,
    round_to,
    widen,
)
from ..lowering.biases import before_biases


def as_digits(tensor: Tensor, array: Array) -> Array:
    """`array` in the digit shape of `tensor`; `GraphError` if it has neither that shape nor `source_shape`."""
    if tuple(array.shape) == tensor.shape:
        return array
    if tensor.source_shape is not None and tuple(array.shape) == tensor.source_shape:
        return array.reshape(tensor.shape)
    allowed = f"{tensor.shape}" if tensor.source_shape is None else f"{tensor.shape} or {tensor.source_shape}"
    raise GraphError(f"tensor {tensor.name!r}", f"has shape {allowed}, got an array of shape {tuple(array.shape)}")


def check_inputs(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every input and parameter in digit shape.  Raises `GraphError` naming what is missing, unknown, or misshapen."""
    wanted = {t.name: t for t in graph.tensors if t.role is not Role.VALUE}
    missing = [n for n in wanted if n not in inputs]
    if missing:
        raise GraphError(f"tensor {missing[0]!r}", f"no value given ({len(missing)} of {len(wanted)} are missing)")
    unknown = [n for n in inputs if n not in wanted]
    if unknown:
        raise GraphError(f"tensor {unknown[0]!r}", "is not an input or parameter of the graph")
    return {n: as_digits(t, inputs[n]) for n, t in wanted.items()}


def run_graph(
    graph: Graph, inputs: Mapping[str, Array], xp: ModuleType = np, keep: Collection[str] = (), stored: bool = False
) -> dict[str, Array]:
    """Values of the graph's outputs, of its next state, and of the tensors in `keep`, in digit shape.  `stored`: every
    tensor is rounded to its element type, products with a bias once (`lowering.biases`); what has 16 bits is given back
    in float32.

    Raises `GraphError` for inputs that do not fit, `KernelError` naming the operator that fails.

    >>> from ...models.sources.building.builder import Builder
    >>> g = Builder("g")
    >>> y = g.reduce("total", "i -> ", g.input("x", (3,)))
    >>> float(run_graph(g.build(y), {"x": np.array([1.0, 2.0, 3.0])})["total"])
    6.0
    """
    wanted = set(graph.results) | set(keep)
    for name in sorted(wanted):
        if not any(t.name == name for t in graph.tensors):
            raise GraphError(f"tensor {name!r}", "does not exist, so it cannot be kept")
    last = {a.tensor: i for i, op in enumerate(graph.operators) for a in op.inputs}
    given = check_inputs(graph, inputs)
    run, unrounded = (execute_stored, before_biases(graph)) if stored else (execute, frozenset[str]())
    values = {n: xp.asarray(v) for n, v in (as_stored(graph, given) if stored else given).items()}
    for i, op in enumerate(graph.operators):
        blocks = [Block(values[a.tensor], (0,) * len(a.index)) for a in op.inputs]
        kernel = execute_unrounded if op.output.tensor in unrounded - wanted else run
        values[op.output.tensor] = kernel(xp, op, graph, full_box(op.axes), blocks)
        del blocks
        for a in op.inputs:
            if last[a.tensor] == i and a.tensor not in wanted:
                values.pop(a.tensor, None)
    return {t.name: widen(xp, values[t.name]) for t in graph.tensors if t.name in wanted}


def as_stored(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs and parameters rounded to the element types of the graph, as blocks of them are kept."""
    return {name: round_to(np, array, graph.tensor(name).dtype) for name, array in arrays.items()}


def constant_values(tensor: Tensor, values: Values, dtype: str | None) -> Array:
    """The values of a constant as they are executed, in digit shape; `dtype` replaces floating types."""
    own = execution_dtype(tensor.dtype)
    return np.asarray(values.reshape(tensor.shape), dtype if dtype is not None and own.startswith("float") else own)


def random_inputs(
    graph: Graph,
    seed: int,
    dtype: str | None = "float64",
    names: Collection[str] | None = None,
    step: int | None = None,
) -> dict[str, Array]:
    """Reproducible values for every input and parameter, in digit shape; each depends on the seed and its own name
    only, and on the number of the step where one is given.  Constants of the program whose values are known are what
    they are.  `names`: those that are made; None: all.

    `dtype` replaces floating types (None: the tensor's own, as executed).  Ids of an embedding lie within its table;
    weights are scaled by 1/sqrt(summed elements) so that deep graphs keep their magnitude; variances, divisors and
    arguments of roots, powers and logarithms are positive.
    """
    hints = _hints(graph)
    tables = [op.axis(op.rows).extent for op in graph.operators if op.kind in BY_DATA]
    out: dict[str, Array] = {}
    for t in graph.tensors:
        if t.role is Role.VALUE or (names is not None and t.name not in names):
            continue
        rng = np.random.default_rng([seed, crc32(t.name.encode()), *(() if step is None else (step,))])
        own = execution_dtype(t.dtype)
        if t.contents is not None and t.contents.values is not None:
            out[t.name] = constant_values(t, t.contents.values, dtype)
            continue
        hint = hints.get(t.name, ("", 1))
        if own == "bool":
            out[t.name] = rng.integers(0, 2, t.shape).astype(bool)
        elif own.startswith(("int", "uint")):
            out[t.name] = rng.integers(0, hint[1] if hint[0] == "ids" else min(tables, default=8), t.shape).astype(own)
        elif hint[0] == "positive":
            out[t.name] = rng.uniform(0.5, 1.5, t.shape).astype(dtype or own)
        else:
            scale = 1 / sqrt(hint[1]) if hint[0] == "weight" else 1.0
            out[t.name] = (rng.standard_normal(t.shape) * scale).astype(dtype or own)
    return out


_POSITIVE = {
    ("batch_norm", 4),
    ("batch_norm", 1),
    ("divide", 1),
    ("fmod", 1),
    ("remainder", 1),
    ("sqrt", 0),
    ("layer_norm", 1),
    ("rsqrt", 0),
    ("log", 0),
    ("power", 0),
    ("reciprocal", 0),
    ("rms_norm", 1),
    ("adam_moment2", 0),
}


def _hints(graph: Graph) -> dict[str, tuple[str, int]]:
    """Tensor name -> (`ids`, rows) or (`positive`, 1) or (`weight`, summed elements), from its first telling reader."""
    hints: dict[str, tuple[str, int]] = {}
    for op in graph.operators:
        for j, a in enumerate(op.inputs):
            if op.kind in BY_DATA and j == len(op.inputs) - 1:
                rows = op.axis(op.rows).extent
                old = hints.get(a.tensor)
                hints[a.tensor] = ("ids", min(rows, old[1]) if old and old[0] == "ids" else rows)
            elif (op.function, j) in _POSITIVE:
                hints.setdefault(a.tensor, ("positive", 1))
            elif op.kind is NodeKind.CONTRACT and graph.tensor(a.tensor).role is Role.PARAMETER:
                hints.setdefault(a.tensor, ("weight", prod(x.extent for x in op.reduction_axes)))
    return hints
