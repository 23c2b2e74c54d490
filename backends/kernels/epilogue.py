"""Computes fused products: maps of every finished sum, applied to the block while it is there."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Final

from ...models.program.fused import epilogue, factors
from ...models.program.operators import FUNCTIONS
from .blocks import Array, KernelError, spread
from .contract import contract
from .elementwise import MAPS
from .gradient_maps import GRADIENT_MAPS
from .task import Task

_FUNCTIONS: Final = {**MAPS, **GRADIENT_MAPS}


def fused_product(t: Task) -> Array:
    """The product of the factors over the box, then the maps of the epilogue."""
    many = factors(t.op)
    product = replace(t.op, function="product", inputs=t.op.inputs[:many])
    value = contract(t.xp, product, t.graph, t.box, t.operands[:many])
    following = count(many)
    for name in epilogue(t.op):
        function = _FUNCTIONS.get(name)
        if function is None:
            raise KernelError(t.place, f"no kernel for {name!r} of the epilogue")
        others = [t.operand(next(following)) for _ in range(FUNCTIONS[name].arity[0] - 1)]
        value = spread(t.xp, function(t.xp, [value, *others], t.op), t.shape)
    return value
