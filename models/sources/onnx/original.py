"""This module runs an ONNX file with the reference evaluator of `onnx`, those of its operators repaired that
contradict the specification (`repaired`).
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

    from .repaired import repaired

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
    evaluator = ReferenceEvaluator(new, new_ops=repaired(opset))
    return [np.asarray(v) for v in evaluator.run(list(wanted), dict(feed))]
