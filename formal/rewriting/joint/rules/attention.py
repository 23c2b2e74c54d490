"""Rewrites softmax of products times values as one operator, whose scores never reach memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .....models.program.attention import wrong
from .....models.program.index import Access, Combine
from .....models.program.operators import Operator, Value
from .growing import Addition, Growing, is_real_value
from .reading import one_type, pointwise, seen_through, singles


def fuse_attention(g: Growing, op: Operator) -> Iterator[Addition]:
    """`op` sums values with weights that are a softmax over the summed axes of products, perhaps scaled and masked."""
    if op.function != "product" or op.attributes or len(op.inputs) != 2:
        return
    for j in range(2):
        if not is_real_value(g, op.inputs[j].tensor) or singles(op.inputs[1 - j]) is None:
            continue
        for softmax in g.nodes(op.inputs[j].tensor):
            alone = g.only_for(op.inputs[j].tensor, op.output.tensor)  # a gradient reads the weights
            if softmax.function != "softmax" or not pointwise(g, softmax, 0) or not alone:
                continue
            seen = seen_through(op, j, softmax, set())
            if seen is None or set(seen.over) != {a.name for a in op.axes if a.combine is not None}:
                continue
            for node, between in _scores(g, op, seen, 1.0, None):
                made = _attention(op, op.inputs[1 - j], seen.over, *node)
                if made is not None and one_type(g, op.output.tensor, *(a.tensor for a in made.inputs)):
                    yield Addition("fuse-attention", made, (op, softmax, *between))


Scores = tuple[Operator, float, Access | None]
"""The product, its factor, and what is added to it; in the axes of the product with values."""


def _scores(
    g: Growing, op: Operator, reader: Operator, scale: float, mask: Access | None
) -> Iterator[tuple[Scores, tuple[Operator, ...]]]:
    """Products that `reader` reads as its first operand, through a sum with a mask and a factor: with the operators
    between, as they stand.
    """
    taken = {a.name for a in op.axes}
    at = reader.inputs[0]
    for node in g.nodes(at.tensor):
        seen = seen_through(reader, 0, node, taken)
        if seen is None or node.reduction_axes and node.function != "product":
            continue
        if node.function == "product" and not node.attributes and len(node.inputs) == 2 and is_real_value(g, at.tensor):
            yield (seen, scale, mask), (node,)
        elif node.function == "scale" and pointwise(g, node, 0):
            by = node.attribute("scale", 1.0)
            if isinstance(by, (int, float)) and scale == 1.0:
                yield from ((s, (node, *rest)) for s, rest in _scores(g, op, seen, float(by), mask))
        elif node.function == "add" and mask is None and scale == 1.0:
            for k in range(2):
                if pointwise(g, node, k) and singles(seen.inputs[1 - k]) is not None:
                    turned = replace(seen, inputs=(seen.inputs[k],))
                    found = _scores(g, op, turned, scale, seen.inputs[1 - k])
                    yield from ((s, (node, *rest)) for s, rest in found)


def _attention(
    op: Operator, values: Access, keys: tuple[str, ...], scores: Operator, scale: float, mask: Access | None
) -> Operator | None:
    """The operator; None where axes have other roles than an attention's."""
    factors = [singles(a) for a in scores.inputs]
    if factors[0] is None or factors[1] is None:
        return None
    with_keys = [set(keys) <= set(names) for names in factors if names is not None]
    if with_keys.count(True) != 1 or any(set(keys) & set(factors[with_keys.index(False)] or ())):
        return None
    k, q = (scores.inputs[with_keys.index(x)] for x in (True, False))
    out, in_q, in_v = op.output.axes, set(q.axes), set(values.axes)
    features = tuple(a.name for a in scores.axes if a.combine is not None)
    alone = tuple(n for n in out if n not in k.axes and n not in in_v)
    roles: dict[str, Value] = {
        "query": alone if len(alone) == 1 else (),
        "key": keys,
        "feature": features,
        "value_feature": tuple(n for n in values.axes if n in out and n not in in_q),
    }
    whole = {*features, *(n for n in values.axes if n in out and n not in in_q)}
    extents = {a.name: a for a in (*scores.axes, *op.axes)}
    axes = tuple(
        replace(extents[n], combine=Combine.SUM if n in (*keys, *features) else None, splittable=n not in whole)
        for n in (*out, *keys, *features)
    )
    if not all(a.splittable for a in (*op.axes, *scores.axes)):
        return None
    factor: dict[str, Value] = {} if scale == 1.0 else {"scale": scale}
    inputs = (q, k, values) if mask is None else (q, k, values, mask)
    made = Operator("", "attention", axes, inputs, op.output, tuple(sorted({**roles, **factor}.items())))
    return None if wrong(made) else made
