"""Rewrites maps into the products before them, and the gradient of relu from what relu gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .....models.program.fused import FUSED, OWN, can_follow, epilogue, factors
from .....models.program.index import Access
from .....models.program.operators import FUNCTIONS, NodeKind, Operator
from .growing import Addition, Growing, is_real_value
from .reading import index, pointwise, rename_axes

COMMUTATIVE = frozenset({"add", "multiply"})
LONGEST = 6
"""Maps of an epilogue that are tried."""
ADDED = 2
"""Sums in an epilogue: a bias and a residual.  Without a bound a chain of residuals becomes epilogues of epilogues,
from the last layer to the first.
"""


def fuse_epilogue(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` is a map of what a product computes, at the index that it writes itself."""
    if op.kind is not NodeKind.MAP or not can_follow(op.function):
        return
    for j, read in enumerate(op.inputs):
        if j and op.function not in COMMUTATIVE:
            return
        if not pointwise(g, op, j) or [a.tensor for a in op.inputs].count(read.tensor) > 1:
            continue
        if not is_real_value(g, read.tensor) or g.tensor(read.tensor).dtype != g.tensor(op.output.tensor).dtype:
            continue
        for product in g.nodes(read.tensor):
            made = _fused(op, j, product)
            if made is not None and g.pays_beside(read.tensor, op, made):
                yield Addition("fuse-epilogue", made, (op, product))


def _fused(op: Operator, j: int, product: Operator) -> Operator | None:
    """One operator for both; None where there is none."""
    own = dict(product.attributes)
    if product.function not in ("product", FUSED) or "reversed" in own:
        return None
    if not any(a.combine for a in product.axes) or {k for k in own if k not in OWN} and op.attributes:
        return None
    names = {
        a.single: b.single
        for a, b in zip(op.inputs[j].index, product.output.index, strict=True)
        if a.single and b.single
    }
    others = tuple(rename_axes(a, names) for i, a in enumerate(op.inputs) if i != j)
    maps = (*epilogue(product), op.function)
    if len(maps) > LONGEST or maps.count("add") > ADDED:
        return None
    attributes = {**own, **dict(op.attributes), "epilogue": maps, "factors": factors(product)}
    return Operator(
        "",
        FUSED,
        tuple(replace(a, splittable=a.splittable and a.combine is None) for a in product.axes),
        (*product.inputs, *others),
        Access(op.output.tensor, tuple(index(i, names) for i in op.output.index)),
        tuple(sorted(attributes.items())),
    )


def relu_from_output(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` multiplies by where x > 0; relu(x) is positive where x is."""
    maps = epilogue(op) if op.function == FUSED else (op.function,)
    if "relu_gradient" not in maps:
        return
    at = (
        1
        if op.function != FUSED
        else factors(op) + sum(_operands(name) for name in maps[: maps.index("relu_gradient")])
    )
    x = op.inputs[at]
    for relu in list(g.order):
        if relu.function == "relu" and relu.inputs[0].tensor == x.tensor and pointwise(g, relu, 0):
            inputs = (*op.inputs[:at], Access(relu.output.tensor, x.index), *op.inputs[at + 1 :])
            yield Addition("relu-from-output", replace(op, inputs=inputs), (op, relu))


def _operands(name: str) -> int:
    return FUNCTIONS[name].arity[0] - 1
