"""The evaluator that imports are compared with (`models.sources.onnx.original`), in double precision."""

from __future__ import annotations

import numpy as np
import onnx

from shardproof.models.sources.onnx.original import evaluate_outputs


def evaluate(model: onnx.ModelProto, feed: dict[str, np.ndarray], wanted: list[str]) -> list[np.ndarray]:
    """Values of `wanted`; `feed` holds inputs and stored weights by name, in the type in which all is computed."""
    for n in model.graph.node:  # constants of the program, in the type of everything else
        if n.op_type == "Constant" and n.attribute[0].name == "value_float":
            feed = {**feed, n.output[0]: np.asarray(n.attribute[0].f, np.float64)}
    return evaluate_outputs(model, feed, wanted)
