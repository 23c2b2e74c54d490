"""The constant folding of shape arithmetic: what exporters write between `Shape` and `Reshape`.

Only integers, only small, only when every input is known; anything else is left to the handlers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .context import Constant, Context, Node

_LIMIT = 4096

_ARITHMETIC: dict[str, Callable[[Constant, Constant], Constant]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": lambda a, b: np.where(
        np.less(a, 0) != np.less(b, 0), -(abs(a) // np.maximum(abs(b), 1)), abs(a) // abs(b)
    ).astype(a.dtype),
}


def fold(c: Context, node: Node) -> bool:
    """Compute the node now if it is shape arithmetic on known integers; True if that was done."""
    if node.kind == "Shape":
        shape = c.shape(node.inputs[0])
        _keep(c, node, np.array(shape[node.integer("start", 0) : node.integer("end", len(shape))], np.int64))
        return True
    if node.kind not in (*_ARITHMETIC, "Gather", "Concat", "Unsqueeze", "Squeeze", "Cast", "Slice", "Identity"):
        return False
    values = [c.constant_of(v) for v in node.inputs if v]
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values) or any(v.dtype.kind not in "iu" or v.size > _LIMIT for v in known):
        return False
    result = _evaluate(node, known)
    if result is None:
        return False
    _keep(c, node, result)
    return True


def _keep(c: Context, node: Node, value: Constant) -> None:
    c.constants[node.outputs[0]] = value
    c.folded.add(node.outputs[0])


def _evaluate(node: Node, known: list[Constant]) -> Constant | None:
    """The value, or None for a variant that is not folded."""
    first = known[0]
    axes = node.integers("axes") or (tuple(int(a) for a in known[1].reshape(-1)) if len(known) > 1 else ())
    match node.kind:
        case "Gather":
            return np.asarray(np.take(first, known[1].astype(np.int64), axis=node.integer("axis", 0)))
        case "Concat":
            return np.concatenate([np.atleast_1d(v) for v in known], axis=node.integer("axis", 0))
        case "Unsqueeze":
            return np.expand_dims(first, axes)
        case "Squeeze":
            return np.squeeze(first, axes or None)
        case "Identity":
            return first
        case "Cast":
            return first if node.integer("to", 7) in (6, 7) else None
        case "Slice":
            if first.ndim != 1 or len(known) < 3 or any(int(a) != 0 for v in known[3:4] for a in v.reshape(-1)):
                return None
            step = int(known[4].item()) if len(known) > 4 else 1
            return first[int(known[1].item()) : int(known[2].item()) : step]
        case _:
            return _ARITHMETIC[node.kind](first, known[1])
