"""Recognises the pattern of softmax that gives 0 where a whole row is masked, and whether it may go."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from ...program.graph import Role
from ...program.index import Access
from ...program.operators import Operator
from .view import Read, View, number, replacement


@dataclass(frozen=True)
class Safe:
    """softmax whose rows of nothing but -inf are set to 0: as a plain softmax `soft` of `scores` over `over`, and what
    it was made of."""

    soft: Operator
    scores: Read
    over: frozenset[str | None]
    inside: frozenset[str]


def safe_softmax(view: View, op: Operator) -> Operator | None:
    """softmax whose rows of nothing but -inf are set to 0, where there is no such row."""
    found = composition(view, op)
    return found.soft if found is not None and _finite_rows(view, found.scores, {*found.over}, 12) else None


def composition(view: View, op: Operator) -> Safe | None:
    """softmax whose rows of nothing but -inf are set to 0."""
    if op.function != "mask_fill" or number(op, "value", 1.0) != 0.0:
        return None
    reads = view.reads(op)
    soft = view.writer.get(reads[0][0])
    if soft is None or soft.function != "softmax":
        return None
    (scores,) = view.reads(soft, reads[0][1])
    at = {i.single: o.single for i, o in zip(soft.output.index, reads[0][1], strict=True)}
    over = {at.get(a) for a in soft.over}
    step, negated, reduced, inside = reads[1], 0, False, {op.name, soft.name}
    while step != scores:
        writer = view.writer.get(step[0])
        if writer is None or not set(view.readers[step[0]]) <= inside:
            return None
        inside.add(writer.name)
        if writer.function == "logical_not":
            negated += 1
        elif writer.function == "max" and not reduced:
            reduced = True
            if negated % 2 or len(writer.reduction_axes) != len(over):
                return None
        elif writer.function == "equal" and reduced and negated % 2 == 1 and writer.attribute("value", 0.0) == -inf:
            source = view.reads(writer, step[1])[0]
            if source[0] != scores[0] or not _same_rows(source, scores, over):
                return None
            break
        else:
            return None
        (step,) = view.reads(writer, step[1])
    if not reduced:
        return None
    names = tuple(a for a in (at.get(a) for a in soft.over) if a is not None)
    plain = replacement(op, "softmax", [Access(*scores)], {"over": names})
    return Safe(plain, scores, frozenset(over), frozenset(inside))


def _same_rows(source: Read, scores: Read, over: set[str | None]) -> bool:
    """Whether two reads of one tensor differ only in the axes that the row runs over."""
    return all(
        a == b or (b.single in over and (a.single or "").startswith("'"))
        for a, b in zip(source[1], scores[1], strict=True)
    )


def _finite_rows(view: View, read: Read, over: set[str | None], depth: int) -> bool:
    """Whether every row along `over` holds a finite number, given finite inputs and weights."""
    op, contents = view.writer.get(read[0]), view.stated.get(read[0])
    if contents is not None:
        array = contents.reshape(view.graph.tensor(read[0]).shape)
        along = tuple(k for k, i in enumerate(read[1]) if i.single in over)
        return bool(np.all(np.any(np.isfinite(array), axis=along)))
    if op is None:
        return view.graph.tensor(read[0]).role is Role.PARAMETER
    if depth == 0:
        return False
    operands = view.reads(op, read[1])
    match op.function:
        case "product" | "rms_norm" | "layer_norm":
            return True
        case "scale" | "shift" | "cast" | "identity" | "copy" if len(operands) == 1:
            return _finite_rows(view, operands[0], over, depth - 1)
        case "add":
            mine, other = operands
            if mine[0] in view.stated:
                mine, other = other, mine
            return _everywhere_finite(view, mine, depth - 1) and _finite_rows(view, other, over, depth - 1)
        case "mask_fill":
            mask = view.stated.get(operands[1][0])
            if np.isfinite(number(op, "value", 0.0)):
                return _finite_rows(view, operands[0], over, depth - 1)
            if mask is None or not _everywhere_finite(view, operands[0], depth - 1):
                return False
            array = mask.reshape(view.graph.tensor(operands[1][0]).shape)
            along = tuple(k for k, i in enumerate(operands[1][1]) if i.single in over)
            return bool(np.all(np.any(array != 0, axis=along)))
        case _:
            return False


def _everywhere_finite(view: View, read: Read, depth: int) -> bool:
    """Whether all elements are finite, given finite inputs and weights: products, and what keeps finite numbers
    finite.
    """
    op, contents = view.writer.get(read[0]), view.stated.get(read[0])
    if contents is not None:
        return bool(np.all(np.isfinite(contents)))
    if op is None:
        return view.graph.tensor(read[0]).role is Role.PARAMETER
    if op.function in ("product", "rms_norm", "layer_norm"):
        return True
    finite = op.function in ("scale", "shift", "cast", "identity", "copy", "add", "multiply", "negate")
    return depth > 0 and finite and all(_everywhere_finite(view, r, depth - 1) for r in view.reads(op, read[1]))
