"""This module says which integers of a graph are never negative, as far as the operators that make them say.

An index counts from the front here; PyTorch and NumPy count negative ones from the end.  What is shown to be at least
zero needs no remainder by the extent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ...program.graph import Tensor
from ...program.operators import Operator

_Shown = Callable[[int], bool]


def _number(op: Operator, name: str) -> float:
    value = op.attribute(name, -1)
    return float(value) if isinstance(value, (int, float)) else -1.0


def _first(op: Operator, shown: _Shown) -> bool:
    return shown(0)


def _every(op: Operator, shown: _Shown) -> bool:
    return all(shown(k) for k in range(len(op.inputs)))


_RULES: Final[Mapping[str, Callable[[Operator, _Shown], bool]]] = MappingProxyType(
    {
        **dict.fromkeys(("argsort", "abs", "relu", "top_k_mask"), lambda op, shown: True),
        **dict.fromkeys(
            ("cast", "identity", "stop_gradient", "sum", "max", "min", "cumulative_sum", "embedding", "scatter_add"),
            _first,
        ),
        **dict.fromkeys(("copy", "add", "multiply", "minimum", "sum_inputs", "update"), _every),
        "maximum": lambda op, shown: shown(0) or shown(1),
        "where": lambda op, shown: shown(1) and shown(2),
        "mask_fill": lambda op, shown: shown(0) and _number(op, "value") >= 0,
        "iota": lambda op, shown: op.attribute("start", 0) in (0, 0.0) and _number(op, "step") >= 0,
        "constant": lambda op, shown: _listed(op),
        "scale": lambda op, shown: shown(0) and _number(op, "scale") >= 0,
        "shift": lambda op, shown: shown(0) and _number(op, "shift") >= 0,
        "clip": lambda op, shown: _number(op, "low") >= 0,
        "fill": lambda op, shown: _number(op, "value") >= 0,
        "remainder": lambda op, shown: len(op.inputs) == 1 and _number(op, "value") > 0,
        "floor_divide": lambda op, shown: len(op.inputs) == 1 and shown(0) and _number(op, "value") > 0,
    }
)


def _listed(op: Operator) -> bool:
    values = op.attribute("values", ())
    return isinstance(values, tuple) and all(isinstance(v, int) and v >= 0 for v in values)


def never_negative(operators: Sequence[Operator], tensors: Mapping[str, Tensor], name: str) -> bool:
    """Whether no element of an integer tensor can be negative.

    >>> from .builder import Builder
    >>> g = Builder("g")
    >>> place, given = g.iota("place", (4,), 0, dtype="int64"), g.input("i", (4,), "int64")
    >>> never_negative(g.operators, g.tensors, place), never_negative(g.operators, g.tensors, given)
    (True, False)
    """
    writer = {op.output.tensor: op for op in operators}
    known: dict[str, bool] = {}

    def shown(tensor: str, depth: int) -> bool:
        if tensor not in known:
            op = writer.get(tensor)
            known[tensor] = False
            if tensors[tensor].dtype in ("bool", "uint8"):
                known[tensor] = True
            elif op is not None and op.function in _RULES and depth < 64:
                reads = [a.tensor for a in op.inputs]
                known[tensor] = _RULES[op.function](op, lambda k: shown(reads[k], depth + 1))
        return known[tensor]

    return shown(name, 0)
