"""Cuts a proof that takes more to check than a check may: what lies below some splits is left open.

every record above the cut stays, so that the bounds of duals there hold; an `Open` leaf says nothing by itself
"""

from __future__ import annotations

from dataclasses import replace

from ....proofs.selection.certificates import Dual, Elimination, Open, Record, Reduced, Split


def split_depth(record: Record) -> int:
    """Splits on the longest way down."""
    depth, todo = 0, [(record, 0)]
    while todo:
        r, above = todo.pop()
        depth = max(depth, above)
        match r:
            case Split():
                todo.extend((child, above + 1) for child in r.children)
            case Dual() | Elimination():
                todo.extend([] if r.then is None else [(r.then, above)])
            case Reduced():
                todo.append((r.then, above))
    return depth


def cut_below(record: Record, depth: int) -> Record:
    """The proof without what lies below `depth` splits.

    >>> cut_below(Split(0, ((0,), (1,)), (Open(), Split(1, ((0,), (1,)), (Open(), Open())))), 1).children
    (Open(), Open())
    """
    match record:
        case Split():
            if not depth:
                return Open()
            return replace(record, children=tuple(cut_below(child, depth - 1) for child in record.children))
        case Dual() | Elimination():
            return record if record.then is None else replace(record, then=cut_below(record.then, depth))
        case Reduced():
            return replace(record, then=cut_below(record.then, depth))
        case _:
            return record
