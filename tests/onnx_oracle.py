"""The reference evaluator of the `onnx` package as an oracle, with its three operators repaired that contradict the
specification.

Found with onnx 1.23 while comparing the nine light graphs:
* LRN loops over the batch where it must loop over channels, so only the first channels are normalised;
* BatchNormalization before operator set 14 mixes the batch's own statistics in, though it has one output (inference);
* GlobalMaxPool of one or three spatial dimensions reduces two of the wrong ones;
* pools take pads of two dimensions in the wrong order, miss dilations of averages and have SAME_LOWER otherwise;
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


class GlobalMaxPool(OpRun):
    op_domain = ""

    def _run(self, x):
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class Pool(OpRun):
    """Windows by their definition: the shape, then every window."""

    op_domain = ""

    def pooled(self, x, kernel, average, include, auto, ceil, dilations, pads, strides):
        rank = x.ndim - 2
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        pads = [0] * (2 * rank) if pads is None or auto != "NOTSET" else list(pads)
        sizes = []
        for k, n in enumerate(x.shape[2:]):
            reach = dilations[k] * (kernel[k] - 1) + 1
            if auto.startswith("SAME"):
                size = -(-n // strides[k])
                total = max(0, (size - 1) * strides[k] + reach - n)
                pads[k] = total // 2 if auto == "SAME_UPPER" else total - total // 2
                pads[rank + k] = total - pads[k]
            else:
                room = n + pads[k] + pads[rank + k] - reach
                size = (-(-room // strides[k]) if ceil else room // strides[k]) + 1
                if ceil and (size - 1) * strides[k] >= n + pads[k]:
                    size -= 1
            sizes.append(size)
        out = np.zeros((*x.shape[:2], *sizes), x.dtype)
        for at in np.ndindex(*sizes):
            inside, counted = [], 0
            for tap in np.ndindex(*kernel):
                where = [i * s + t * d - p for i, s, t, d, p in zip(at, strides, tap, dilations, pads, strict=False)]
                if all(0 <= w < n for w, n in zip(where, x.shape[2:], strict=True)):
                    inside.append(x[(slice(None), slice(None), *where)])
                counted += all(w < n + p for w, n, p in zip(where, x.shape[2:], pads[rank:], strict=True))
            place = (slice(None), slice(None), *at)
            if average:
                out[place] = np.sum(inside, axis=0) / (counted if include else len(inside))
            else:
                out[place] = np.max(inside, axis=0)
        return (out,)


class MaxPool(Pool):
    op_domain = ""

    def _run(
        self, x, auto_pad=None, ceil_mode=0, dilations=None, kernel_shape=None, pads=None, storage_order=0, strides=None
    ):
        return self.pooled(x, kernel_shape, False, 0, auto_pad or "NOTSET", ceil_mode, dilations, pads, strides)


class AveragePool(Pool):
    op_domain = ""

    def _run(
        self,
        x,
        auto_pad=None,
        ceil_mode=0,
        count_include_pad=0,
        dilations=None,
        kernel_shape=None,
        pads=None,
        strides=None,
    ):
        return self.pooled(
            x, kernel_shape, True, count_include_pad, auto_pad or "NOTSET", ceil_mode, dilations, pads, strides
        )


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
    repaired = [LRN, BatchNormalization, GlobalMaxPool, MaxPool, AveragePool, *([OldSoftmax] if opset < 13 else [])]
    return [np.asarray(v) for v in ReferenceEvaluator(new, new_ops=repaired).run(wanted, feed)]
