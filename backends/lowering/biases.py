"""Products whose bias is added before they are rounded, as fused kernels do (`addmm`, cuBLASLt,
convolutions).

    y = round(sum over k of x[.., k] w[k, n]  +  bias[n])          once, where the two are one kernel

A product in 16 bits that one `add` reads, together with a parameter (or its cast) that has dimensions of the product's
weight only, is not rounded before that.  Parts that are added up over devices, and whatever is moved, are rounded
before they travel: Megatron adds the bias of a layer that is split along its inputs behind the all-reduce.
"""

from __future__ import annotations

from ...models.program.graph import ELEMENT_BYTES, Graph, Role
from ...models.program.operators import NodeKind, Operator


def before_biases(graph: Graph) -> frozenset[str]:
    """Tensors that an addition of a bias rounds.

    >>> from ...models.sources.building.builder import Builder
    >>> g = Builder("g", "bfloat16")
    >>> y = g.contract("y", "b k, k n -> b n", g.input("x", (2, 3)), g.parameter("w", (3, 4)))
    >>> graph = g.build(g.map("z", "add", y, g.parameter("bias", (4,)), text="b n, n -> b n"))
    >>> sorted(before_biases(graph))
    ['y']
    """
    stored = {t.name for t in graph.tensors if t.role is Role.PARAMETER}
    for op in graph.operators:
        if op.function == "cast" and len(op.inputs) == 1 and op.inputs[0].tensor in stored:
            stored.add(op.output.tensor)
    readers, found = graph.readers(), set[str]()
    results = set(graph.results)
    for op in graph.operators:
        out = op.output.tensor
        if op.kind is not NodeKind.CONTRACT or not op.reduction_axes or out in results or len(readers[out]) != 1:
            continue
        if not _half(graph, out):
            continue
        following = graph.operators[readers[out][0][0]]
        if _adds_bias(op, following, readers[out][0][1], stored):
            found.add(out)
    return frozenset(found)


def _half(graph: Graph, name: str) -> bool:
    t = graph.tensor(name)
    return ELEMENT_BYTES[t.dtype] == 2 and t.dtype.startswith(("float", "bfloat"))


def _adds_bias(product: Operator, add: Operator, position: int, stored: set[str]) -> bool:
    if add.function != "add":
        return False
    own, bias = add.inputs[position], add.inputs[1 - position]
    names = [i.single for i in own.index]
    if bias.tensor not in stored or None in names or len(set(names)) < len(names):
        return False
    of_product = dict(zip(names, product.output.axes, strict=True))
    if set(names) != set(add.output.axes) or not set(bias.axes) < set(names):
        return False
    along = {of_product[a] for a in bias.axes}
    return any(a.tensor in stored and along <= set(a.axes) for a in product.inputs)
