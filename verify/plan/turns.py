"""What a loop costs, from the text of its body, with no code of `models/program/scan`.

    operations   turns x  sum over the operators of the body of   flops per point x points
    bytes        turns x  sum over them and their operands of     element size x elements between the least and the
                 greatest index
    launches     turns x  operators of the body

Operations and bytes are per row: a dimension of the body that holds rows counts 1, and is multiplied by the rows that a
device has.  Which dimensions hold rows is followed from the operator's attribute `reads` through the body.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ...models.program.graph import Graph, Role
from ...models.program.index import Access
from ...models.program.operators import NodeKind, Operator


@dataclass(frozen=True)
class Turns:
    """`moved`: rows along which a device's part counts, and bytes for each of them; `flops` per row of all axes."""

    flops: int = 0
    moved: tuple[tuple[tuple[str, ...], int], ...] = ()
    launches: int = 1


def turns_of(op: Operator) -> Turns | None:
    """What a scan costs beside reading its operands and writing its result; None for all other operators.

    >>> turns_of(Operator("y", "relu", (), (), Access("y", ()))) is None
    True
    """
    return _turns(op) if op.kind is NodeKind.SCAN else None


@lru_cache(maxsize=1 << 10)
def _turns(op: Operator) -> Turns:
    given = dict(op.attributes)
    body = Graph.from_json(str(given["body"]))
    own = [i.terms[0][0] for i in op.output.index][:-1]
    extent = {a.name: a.extent for a in op.axes}
    count = extent[str(given["turn"])]
    named = given["reads"] if isinstance(given["reads"], tuple) else ()
    entering = (t.name for t in body.tensors if t.role is Role.INPUT)
    where: dict[str, list[str | None]] = {}
    for tensor, text in zip(entering, named, strict=True):
        where[tensor] = [n if n in own else None for n in str(text).split() if n != given["turn"]]
    moved: Counter[tuple[str, ...]] = Counter()
    flops = 0
    for step in body.operators:
        row_of = {
            i.terms[0][0]: row for a in step.inputs for i, row in zip(a.index, where[a.tensor], strict=True) if row
        }
        where[step.output.tensor] = [row_of.get(i.terms[0][0]) for i in step.output.index]
        if body.tensor(step.output.tensor).dtype.startswith(("float", "bfloat")):
            flops += _operations(step) * prod(a.extent for a in step.axes if a.name not in row_of)
        for a in (*step.inputs, step.output):
            rows = where[a.tensor]
            elements = prod(n for n, row in zip(_lengths(step, a, body), rows, strict=True) if row is None)
            moved[tuple(n for n in own if n in rows)] += elements * body.tensor(a.tensor).element_bytes
    return Turns(
        count * flops,
        tuple((rows, count * size) for rows, size in sorted(moved.items()) if size),
        count * len(body.operators),
    )


def _operations(step: Operator) -> int:
    """Per point: a sum of products has as many as pairs."""
    return step.spec.flops * (len(step.inputs) // 2 if step.function == "product_sum" else 1)


def _lengths(step: Operator, a: Access, body: Graph) -> list[int]:
    """Elements of every dimension between the least and the greatest index that is read."""
    last = {x.name: x.extent - 1 for x in step.axes}
    out = []
    for index, extent in zip(a.index, body.tensor(a.tensor).shape, strict=True):
        high = index.offset + sum(c * last[n] for n, c in index.terms)
        out.append(extent if index.whole else max(0, min(high, extent - 1) - max(index.offset, 0) + 1))
    return out
