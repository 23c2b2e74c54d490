"""What the epilogue of a fused product does to every element of the result, from the operator's
attributes.
"""

from __future__ import annotations

from ...models.program.operators import FUNCTIONS, Operator


def finishing(op: Operator) -> int:
    """Operations per element of the result besides the product: those of every map of the epilogue."""
    if op.function != "fused_product":
        return 0
    names = op.attribute("epilogue", ())
    return sum(FUNCTIONS[str(name)].flops for name in (names if isinstance(names, tuple) else (names,)))
