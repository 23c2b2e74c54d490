"""This module runs an ONNX file with the reference evaluator of the `onnx` package, with the three of its operators
repaired that contradict the specification.

Found with onnx 1.23 while comparing the nine light graphs:

LRN                     loops over the batch where it must loop over channels, so only the first ones are normalised
BatchNormalization      before operator set 14 it mixes the batch's own statistics in, though it has one output
Softmax                 before operator set 13 it must flatten from `axis` (default 1), and normalises the last one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..building.original import Original, Undefined, Values

if TYPE_CHECKING:
    from onnx import ModelProto


def original_of(model: ModelProto) -> Original:
    """The file as the reference evaluator runs it; what it refuses, and weights that are kept elsewhere and that the
    graph does not read either, are undefined.
    """
    import onnx

    outputs = [o.name for o in model.graph.output]

    def run(values: Mapping[str, Values]) -> tuple[Values, ...]:
        try:
            with np.errstate(all="ignore"):
                made = evaluated(model, values, outputs)
        except Exception as error:  # whatever its operators raise
            raise Undefined(f"the evaluator refuses it: {type(error).__name__}: {str(error)[:200]}") from error
        return tuple(a.astype(np.float32) if a.dtype.kind not in "fiub" else a for a in made)

    return Original(f"ONNX {onnx.__version__}", run, ties=False)


def evaluated(model: ModelProto, feed: Mapping[str, Values], wanted: Sequence[str]) -> list[Values]:
    """Values of `wanted`; `feed` holds inputs and stored weights by name, instead of what the file says they are."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    def free(name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)

    made = {o for n in model.graph.node for o in n.output if o in feed}
    graph = onnx.helper.make_graph(
        [n for n in model.graph.node if not made.intersection(n.output)],
        "evaluated",
        [free(n) for n in feed],
        [free(w) for w in wanted],
        [t for t in model.graph.initializer if t.name not in feed],
    )
    opset = max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    new = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=max(model.ir_version, 4))
    evaluator = ReferenceEvaluator(new, new_ops=_repaired(opset))
    return [np.asarray(v) for v in evaluator.run(list(wanted), dict(feed))]


def _repaired(opset: int) -> list[type]:
    """The operators that are ours: see the module docstring."""
    from onnx.reference.op_run import OpRun

    class LRN(OpRun):  # type: ignore[misc]  # onnx is Any to mypy
        op_domain = ""

        def _run(self, x: Values, alpha: float, beta: float, bias: float, size: int) -> tuple[Values]:
            total, channels = np.zeros_like(x), x.shape[1]
            for c in range(channels):
                low, high = max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1)
                total[:, c] = (x[:, low:high] ** 2).sum(axis=1)
            return ((x / (float(bias) + float(alpha) / size * total) ** float(beta)).astype(x.dtype),)

    class BatchNormalization(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(
            self, x: Values, gamma: Values, beta: Values, mean: Values, variance: Values, **attributes: float
        ) -> tuple[Values]:
            shape = (1, -1) + (1,) * (x.ndim - 2)
            scale = gamma / np.sqrt(variance + (attributes.get("epsilon") or 1e-5))
            made = x * scale.reshape(shape) + (beta - mean * scale).reshape(shape)
            return (made.astype(x.dtype),)

    class Softmax(OpRun):  # type: ignore[misc]
        op_domain = ""
        op_schema = None

        def _run(self, x: Values, axis: int | None = None) -> tuple[Values]:
            axes = tuple(range(1 if axis is None else axis % x.ndim, x.ndim))
            e = np.exp(x - x.max(axis=axes, keepdims=True))
            return (e / e.sum(axis=axes, keepdims=True),)

    return [LRN, BatchNormalization, *([Softmax] if opset < 13 else [])]
