"""What of a training step derives from its forward pass: gradients, values computed again, the
optimizer's updates and their moments.

A user who names `layer*` means the layers.  The gradient of a weight and its update share that prefix and none of the
axes that were named.
"""

from __future__ import annotations

from typing import Final

from ...layout.classes import copy_key, operator_key
from ...program.graph import Graph
from .recompute import PREFIX

GRADIENT: Final = "grad:"
"""How `backward` and the rules begin the names of what they emit."""


def derived_keys(graph: Graph) -> frozenset[str]:
    """Keys of operators and copies that derive from others; empty for a graph that is no training step.

    >>> from ..zoo import build
    >>> from .step import training_step
    >>> sorted(derived_keys(training_step(build("mlp-unity"), "sgd")))[:3]
    ['fc1.weight.next', 'fc2.weight.next', 'grad:fc1']
    """
    following = {value for _, value in graph.state}
    if not following:
        return frozenset()
    operators: set[str] = set()
    made: set[str] = set()
    for op in graph.operators:  # what reads a gradient is no layer either
        named = op.name.startswith((GRADIENT, PREFIX)) or op.output.tensor in following
        if named or any(a.tensor in made for a in op.inputs):
            operators.add(op.name)
            made.add(op.output.tensor)
    written = {op.output.tensor for op in graph.operators if op.name not in operators}
    read = {a.tensor for op in graph.operators if op.name not in operators for a in op.inputs}
    known = written | read
    tensors = {t.name for t in graph.tensors if t.name not in known}
    return frozenset([*map(operator_key, operators), *map(copy_key, tensors)])
