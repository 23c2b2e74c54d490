"""What attention computes: the pairs of query and key that it looks at, and the operations of each.

A query at position i looks at the keys i - behind .. i + ahead, if there are blocks at those of its own.  Of a box of
queries and keys, the pairs with the same difference key - query lie on a diagonal; as many as the shorter of what is left
of both sides.

Per pair, every matrix product along features (2 operations for each) that the function needs:

    attention           q k, p v                        lse               q k
    value gradient      q k, p g                        query gradient    q k, g v, w k
    mask gradient       q k, g v                        key gradient      q k, g v, w q
    all gradients       q k, g v, p g, w k, w q

and the operations of the table of functions for the exponential and what is around it.

Where it is measured, a box takes  launch + max(work + row * queries, bytes / bandwidth)  seconds, all queries of the batch
and its heads; work is a time per pair, for the pairs and for those of blocks of 128 queries that are not full.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import prod

from .description import Operator

Interval = tuple[int, int]

SCORES, VALUES = "feature", "value_feature"
PRODUCTS = {
    "attention": (SCORES, VALUES),
    "attention_lse": (SCORES,),
    "attention_value_gradient": (SCORES, VALUES),
    "attention_query_gradient": (SCORES, VALUES, SCORES),
    "attention_key_gradient": (SCORES, VALUES, SCORES),
    "attention_mask_gradient": (SCORES, VALUES),
    "attention_gradients": (SCORES, VALUES, VALUES, SCORES, SCORES),
}


def is_banded(op: Operator) -> bool:
    """Whether a query looks at some of the keys only."""
    return op.kind == "attention" and not {"behind", "ahead", "block"}.isdisjoint(op.attributes)


def operations_per_pair(op: Operator) -> int:
    """Operations of one pair of query and key."""
    return op.flops + sum(2 * prod(op.axes[a].extent for a in op.attributes[along]) for along in PRODUCTS[op.function])


def query_key_pairs(op: Operator, box: dict[str, Interval]) -> int:
    """Pairs of a box, for all of its rows."""
    inside = [a for role in (SCORES, VALUES, "packed") for a in op.attributes.get(role, ())]
    if not is_banded(op):
        return prod(high - low for a, (low, high) in box.items() if a not in inside)
    (query,), (key,) = op.attributes["query"], op.attributes["key"]
    rows = prod(high - low for a, (low, high) in box.items() if a not in (*inside, query, key))
    length = op.attributes.get("block", max(box[query][1], box[key][1], 1))
    found = 0
    for start in range(0, max(box[query][1], box[key][1]), length):
        first, low = (max(box[a][0], start) for a in (query, key))
        last, high = (min(box[a][1], start + length) for a in (query, key))
        least = max(low - last + 1, -op.attributes["behind"] if "behind" in op.attributes else low - last + 1)
        most = min(high - 1 - first, op.attributes.get("ahead", high - 1 - first))
        found += sum(diagonal(first, last, low, high, d) for d in range(least, most + 1))
    return rows * found


def diagonal(first: int, last: int, low: int, high: int, apart: int) -> int:
    """Queries in [first, last) whose key at this distance is in [low, high)."""
    return max(0, min(last, high - apart) - max(first, low - apart))


def direction(op: Operator) -> str:
    """Of the table that says what it takes."""
    return "backward" if op.function.endswith(("gradient", "gradients")) else "forward"


def attention_seconds(
    op: Operator, box: dict[str, Interval], table: Mapping[str, Fraction], operations: int, transfer: Fraction
) -> Fraction:
    """Seconds of one box; `table`: of its element type and direction."""
    pairs, queries, keys = query_key_pairs(op, box), 1, 1
    for axis, (low, high) in box.items():
        if axis in op.attributes.get("key", ()):
            keys *= high - low
        elif not any(axis in op.attributes.get(role, ()) for role in (SCORES, VALUES, "packed")):
            queries *= high - low
    share = table["wave"] + table["band"] * is_banded(op)
    if pairs:
        pairs += share * 128 * table["processors"] * keys
    work = pairs * (operations * table["pace"] + table["pair"])
    return table["launch"] + max(work + table["row"] * queries, transfer)
