"""Recognises the pattern of a mask that is a band and something else: the band becomes attributes of the
attention that reads it.

    attention(q, k, v, band[s, t] and padding[b, t])   ->   attention(q, k, v, padding[b, t]) in the band

so that only the pairs of the band are computed, and what is as large as the scores is not made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ...program.attention import band, role
from ...program.index import Access
from ...program.operators import NodeKind, Operator, Value
from ..building.band import Bounds
from .attention import band_of, least
from .view import Read, View

MASK: Final = 3
"""Position of the mask among the operands."""


def narrow(view: View, op: Operator) -> Operator | None:
    """The attention whose mask of truth values has lost its bands to attributes."""
    if op.kind is not NodeKind.ATTENTION or op.function != "attention" or len(op.inputs) <= MASK:
        return None
    mask = op.inputs[MASK]
    if view.graph.tensor(mask.tensor).dtype != "bool":
        return None
    old, key = band(op), role(op, "key")
    rows = [a for a in op.output.axes if a not in role(op, "value_feature")]
    bounds = Bounds(None, None) if old is None else Bounds(old.behind, old.ahead, old.block)
    query, rest, known = "" if old is None else old.query, list[Read](), bounds
    for read in _conjuncts(view, (mask.tensor, mask.index)):
        found = band_of(view, read, rows, key, -float("inf"))
        if found is None or (query and found[1] not in ("", query)):
            rest.append(read)
            continue
        both = least(bounds, found[0])
        if both is None:
            rest.append(read)
        else:
            bounds, query = both, query or found[1]
    if bounds == known and len(rest) > 0 and not (len(rest) == 1 and rest[0] != (mask.tensor, mask.index)):
        return None
    left = () if not rest else (Access(*rest[0]),) if len(rest) == 1 else (mask,)
    given: dict[str, Value | None] = {
        **dict(op.attributes),
        "query": (query,) if query else op.attribute("query", ()),
        "behind": bounds.behind,
        "ahead": bounds.ahead,
        "block": bounds.block,
    }
    attributes = tuple(sorted((k, v) for k, v in given.items() if v is not None))
    return replace(op, inputs=(*op.inputs[:MASK], *left), attributes=attributes)


def _conjuncts(view: View, read: Read) -> Iterator[Read]:
    """What must all be true."""
    op = view.writer.get(read[0])
    if op is not None and op.function == "logical_and":
        for part in view.reads(op, read[1]):
            yield from _conjuncts(view, part)
    else:
        yield read
