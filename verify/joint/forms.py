"""States the form that a step must have to be called by the name of a rule: functions at its place and of
its node, and sizes.

What is equal is decided elsewhere (`meaning`); this is about names, so that a step says what it is, and about the sizes
that it states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...models.program.graph import Graph
from ...models.program.operators import NodeKind, Operator

Place = Sequence[Operator]

SUMS: Final = frozenset({"add", "sum_inputs"})
PRODUCTS: Final = frozenset({"product", "product_sum"})


@dataclass(frozen=True)
class Form:
    """`fits(node, place, graph)`; `sign`, `defined`: whether the rule rests on what relu, softmax is."""

    fits: Callable[[Operator, Place, Graph], bool]
    sign: bool = False
    defined: bool = False


def facts_of(node: Operator) -> tuple[tuple[str, int], ...]:
    """Sizes on which a step rests: of every axis of the node, and whether it is summed or read whole."""
    return tuple(
        (f"{'sum over' if a.combine else 'axis'} {a.name}{'' if a.splittable else ', never split'}", a.extent)
        for a in node.axes
    )


def _epilogue(op: Operator) -> tuple[object, ...]:
    value = op.attribute("epilogue", ())
    return value if isinstance(value, tuple) else ()


def _fuse(node: Operator, place: Place, graph: Graph) -> bool:
    return (
        len(place) == 2
        and place[0].kind is NodeKind.MAP
        and place[1].function in ("product", "fused_product")
        and node.function == "fused_product"
        and _epilogue(node) == (*_epilogue(place[1]), place[0].function)
        and node.attribute("factors", 0) == place[1].attribute("factors", len(place[1].inputs))
    )


def _relu(node: Operator, place: Place, graph: Graph) -> bool:
    return (
        len(place) == 2
        and place[1].function in ("relu", "fused_product")
        and (node.function, _epilogue(node)) == (place[0].function, _epilogue(place[0]))
        and "relu_gradient" in (node.function, *_epilogue(node))
        and sum(a != b for a, b in zip(node.inputs, place[0].inputs, strict=False)) == 1
        and place[1].output.tensor in {a.tensor for a in node.inputs}
    )


def _add_many(node: Operator, place: Place, graph: Graph) -> bool:
    return len(place) == 2 and all(op.function in SUMS for op in place) and node.function == "sum_inputs"


def _add_products(node: Operator, place: Place, graph: Graph) -> bool:
    return (
        len(place) >= 2
        and place[0].function in SUMS
        and all(op.function in PRODUCTS for op in place[1:])
        and node.function == "product_sum"
    )


def _distribute(node: Operator, place: Place, graph: Graph) -> bool:
    return (
        node.function == "product"
        and len(place) >= 2
        and place[-1].function in SUMS
        and place[-1].output.tensor in {a.tensor for a in node.inputs}
        and (
            (place[0].function == "product_sum" and len(place) == 2)
            or (place[0].function in SUMS and all(op.function == "product" for op in place[1:-1]))
        )
    )


def _reassociate(node: Operator, place: Place, graph: Graph) -> bool:
    return len(place) == 3 and all(op.function == "product" for op in (node, *place))


def _through(node: Operator, place: Place, graph: Graph) -> bool:
    return (
        len(place) == 2
        and place[1].function == "copy"
        and len(place[1].inputs) == 1
        and (node.function, node.attributes) == (place[0].function, place[0].attributes)
        and sum(a != b for a, b in zip(node.inputs, place[0].inputs, strict=False)) >= 1
        and place[1].output.tensor not in {a.tensor for a in node.inputs}
    )


def _siblings(node: Operator, place: Place, graph: Graph) -> bool:
    return (
        len(place) >= 3
        and node.function == "copy"
        and len(node.inputs) == 1
        and place[0].function in ("product", "fused_product")
        and (place[1].function, place[1].attributes) == (place[0].function, place[0].attributes)
        and node.inputs[0].tensor == place[1].output.tensor
        and all(op.function == "copy" for op in place[2:])
    )


def _product_parts(node: Operator, place: Place, graph: Graph) -> bool:
    return (
        len(place) >= 4
        and node.function == "sum_inputs"
        and place[1].function == "copy"
        and all(op.function == "product" for op in (place[0], *place[2:]))
        and {op.output.tensor for op in place[2:]} == {a.tensor for a in node.inputs}
    )


def _parts(node: Operator, place: Place, graph: Graph) -> bool:
    return (
        len(place) >= 3
        and node.function == place[1].function == "copy"
        and place[0].kind is NodeKind.MAP
        and all(op.function == place[0].function for op in place[2:])
        and {op.output.tensor for op in place[2:]} == {a.tensor for a in node.inputs}
    )


def _part(node: Operator, place: Place, graph: Graph) -> bool:
    return (
        len(place) >= 3
        and place[0].function == "copy"
        and place[1].kind is NodeKind.MAP
        and node.function == place[1].function
        and all(op.function == "copy" for op in place[2:])
        and {op.output.tensor for op in place[2:]} == {a.tensor for a in node.inputs}
    )


def _attention(node: Operator, place: Place, graph: Graph) -> bool:
    return (
        len(place) >= 3
        and node.function == "attention"
        and place[0].function == place[-1].function == "product"
        and place[1].function == "softmax"
        and all(op.function in ("scale", "add") for op in place[2:-1])
    )


def _normal_part(node: Operator, place: Place, graph: Graph) -> bool:
    return (
        len(place) == 2
        and place[0].function == "copy"
        and place[1].kind is NodeKind.NORMALISE
        and node.function == place[1].function
        and node.inputs[0].tensor == place[1].inputs[0].tensor
    )


def _into_norm(node: Operator, place: Place, graph: Graph) -> bool:
    return (
        len(place) == 2
        and place[0].function in ("multiply", "add")
        and node.function == place[1].function
        and place[1].function in ("layer_norm", "rms_norm")
        and len(node.inputs) == len(place[1].inputs) + 1
    )


def _moved(outer: frozenset[str], inner: Callable[[Operator], bool]) -> Callable[[Operator, Place, Graph], bool]:
    """f of g is g of f: the place is f, g, and f in front; the node g."""

    def fits(node: Operator, place: Place, graph: Graph) -> bool:
        return (
            len(place) == 3
            and place[0].function in outer
            and place[2].function == place[0].function
            and inner(place[1])
            and (node.function, node.inputs[0].tensor) == (place[1].function, place[2].output.tensor)
        )

    return fits


FORMS: Final[Mapping[str, Form]] = {
    "fuse-epilogue": Form(_fuse),
    "relu-from-output": Form(_relu, sign=True),
    "add-many": Form(_add_many),
    "add-products": Form(_add_products),
    "distribute": Form(_distribute),
    "reassociate": Form(_reassociate),
    "read-through-copy": Form(_through),
    "merge-siblings": Form(_siblings),
    "product-of-parts": Form(_product_parts),
    "map-of-parts": Form(_parts),
    "map-of-a-part": Form(_part),
    "fuse-attention": Form(_attention, defined=True),
    "normal-of-a-part": Form(_normal_part),
    "into-norm": Form(_into_norm),
    "greatest-of-map": Form(_moved(frozenset({"max_pool", "max"}), lambda g: g.kind is NodeKind.MAP)),
    "product-of-average": Form(_moved(frozenset({"product"}), lambda g: g.function == "average_pool")),
    "product-of-rows": Form(_moved(frozenset({"product"}), lambda g: g.function == "embedding")),
}
"""Rule -> its form; `define` has none."""
