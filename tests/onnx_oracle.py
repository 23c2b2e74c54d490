"""The reference evaluator of the `onnx` package as an oracle, with its three operators repaired that contradict the
specification.

Found with onnx 1.23 while comparing the nine light graphs:
* LRN loops over the batch where it must loop over channels, so only the first channels are normalised;
* BatchNormalization before operator set 14 mixes the batch's own statistics in, though it has one output (inference);
* Softmax before operator set 13 must flatten from `axis` (default 1); the evaluator normalises over the last axis.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun


class LRN(OpRun):
    op_domain = ""

    def _run(self, x, alpha=None, beta=None, bias=None, size=None):
        total, channels = np.zeros_like(x), x.shape[1]
        for c in range(channels):
            low, high = max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1)
            total[:, c] = (x[:, low:high] ** 2).sum(axis=1)
        return (x / (float(bias) + float(alpha) / size * total) ** float(beta),)


class BatchNormalization(OpRun):
    op_domain = ""

    def _run(self, x, gamma, beta, mean, variance, **attributes):
        shape = (1, -1) + (1,) * (x.ndim - 2)
        epsilon = attributes.get("epsilon") or 1e-5
        scale = gamma / np.sqrt(variance + epsilon)
        return (x * scale.reshape(shape) + (beta - mean * scale).reshape(shape),)


class OldSoftmax(OpRun):
    op_domain = ""
    op_schema = None

    def _run(self, x, axis=None):
        axes = tuple(range(1 if axis is None else axis % x.ndim, x.ndim))
        e = np.exp(x - x.max(axis=axes, keepdims=True))
        return (e / e.sum(axis=axes, keepdims=True),)


OldSoftmax.__name__ = "Softmax"


def evaluate(model: onnx.ModelProto, feed: dict[str, np.ndarray], wanted: list[str]) -> list[np.ndarray]:
    """Values of `wanted`; `feed` holds inputs and stored weights by name, in the type in which all is computed."""
    made = {o for n in model.graph.node if n.op_type == "ConstantOfShape" for o in n.output}
    for n in model.graph.node:  # constants of the program, in the type of everything else
        if n.op_type == "Constant" and n.attribute[0].name == "value_float":
            made.add(n.output[0])
            feed = {**feed, n.output[0]: np.float64(n.attribute[0].f)}
    free = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.DOUBLE, None) for n in feed]
    graph = onnx.helper.make_graph(
        [n for n in model.graph.node if not made.intersection(n.output)],
        "oracle",
        free,
        [onnx.helper.make_tensor_value_info(w, onnx.TensorProto.DOUBLE, None) for w in wanted],
        [t for t in model.graph.initializer if t.name not in feed],
    )
    opset = max(o.version for o in model.opset_import if o.domain == "")
    new = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=max(model.ir_version, 4))
    repaired = [LRN, BatchNormalization, *([OldSoftmax] if opset < 13 else [])]
    return [np.asarray(v) for v in ReferenceEvaluator(new, new_ops=repaired).run(wanted, feed)]
