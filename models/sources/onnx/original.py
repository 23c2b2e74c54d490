"""Runs an ONNX file with the reference evaluator of `onnx`, those of its operators repaired that
contradict the specification (`repaired`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...program.graph import Graph, Role
from ..building.original import Original, Parts, Run, Undefined, Values

if TYPE_CHECKING:
    from onnx import ModelProto


class Imported(Protocol):
    """What an import says of a model: its graph, and the tensors that hold its values."""

    @property
    def graph(self) -> Graph: ...
    @property
    def values(self) -> Mapping[str, str]: ...


def original_of(model: ModelProto, again: Callable[[ModelProto], Imported]) -> Original:
    """The file as the reference evaluator runs it; what it refuses, and weights that are kept elsewhere and that the
    graph does not read either, are undefined.  `again` imports a model.
    """
    import onnx

    def parts() -> Parts:
        """Every node of the file: its outputs that have a tensor of their own."""
        found = again(model)
        held = {t.name for t in found.graph.tensors if t.role is not Role.VALUE}
        shown: dict[str, str] = {}
        for k, node in enumerate(model.graph.node):
            for o in node.output:
                if found.values.get(o) not in {None, *held}:
                    held.add(found.values[o])
                    shown[o] = f"node {k} {node.op_type}{f' ({node.name})' if node.name else ''}, value {o!r}"
        opened = onnx.ModelProto()
        opened.CopyFrom(model)
        del opened.graph.output[:]
        opened.graph.output.extend(onnx.helper.make_empty_tensor_value_info(o) for o in shown)
        graph = again(opened).graph
        return Parts(graph, _run(model, list(shown)), dict(zip(graph.outputs, shown.values(), strict=True)))

    run = _run(model, [o.name for o in model.graph.output])
    return Original(f"ONNX {onnx.__version__}", run, parts=parts, ties=False)


def _run(model: ModelProto, outputs: Sequence[str]) -> Run:
    def execute(values: Mapping[str, Values]) -> tuple[Values, ...]:
        try:
            with np.errstate(all="ignore"):
                made = evaluate_outputs(model, values, outputs)
        except Exception as error:  # whatever its operators raise
            raise Undefined(f"the evaluator refuses it: {type(error).__name__}: {str(error)[:200]}") from error
        return tuple(a.astype(np.float32) if a.dtype.kind not in "fiub" else a for a in made)

    return execute


def evaluate_outputs(model: ModelProto, feed: Mapping[str, Values], wanted: Sequence[str]) -> list[Values]:
    """Values of `wanted`; `feed` holds inputs and stored weights by name, instead of what the file says they are."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    from .repaired import repaired_operators

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
    evaluator = ReferenceEvaluator(new, new_ops=repaired_operators(opset))
    return [np.asarray(v) for v in evaluator.run(list(wanted), dict(feed))]
