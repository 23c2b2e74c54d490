"""Translates contractions: einsum and everything that is one (matmul, dot, tensordot, inner, outer, vdot,
trace).

    out[o] = sum over r of  A_1[..] A_2[..] .. A_n[..]

The letters of an einsum become the axes of the operator; a matmul has axes b0.., m, n, k.  Operands are views, so a sum
over sliding windows is a convolution with access  s * y + k.  Taps of windows are not split (flag `whole-taps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters

import numpy as np

from ...program.index import Axis, Combine
from .recorder import Recorder, TraceError, place
from .views import View, transpose_view


def product(
    recorder: Recorder, base: str, operands: Sequence[View], letters: Sequence[Sequence[str]], out: Sequence[str]
) -> View:
    """Sum of products; `letters[j][d]` is the axis of dimension d of operand j.  Raises `TraceError` for extents
    that disagree.
    """
    extents: dict[str, int] = {}
    taps: set[str] = set()
    for view, names in zip(operands, letters, strict=True):
        if len(names) != len(view.shape):
            raise TraceError(place(), f"{base}: {len(names)} indices for an array of dimension {len(view.shape)}")
        for d, (a, n) in enumerate(zip(names, view.shape, strict=True)):
            if n != 1 or a not in extents:
                if extents.get(a, 1) not in (1, n):
                    raise TraceError(place(), f"{base}: axis {a!r} has extents {extents[a]} and {n}")
                extents[a] = n
            if d in view.taps:
                taps.add(a)
    if any(a not in extents for a in out):
        raise TraceError(place(), f"{base}: the result has an index that no operand has")
    dtypes = {recorder.dtype(v) for v in operands}
    dtype = np.result_type(*dtypes)
    if len(operands) == 1 and set(letters[0]) == set(out) and len(set(letters[0])) == len(letters[0]):
        return transpose_view(operands[0], [list(letters[0]).index(a) for a in out])
    inner = [a for a in extents if a not in out]
    axes = [Axis(a, extents[a]) for a in out] + [Axis(a, extents[a], Combine.SUM, a not in taps) for a in inner]
    inputs = [
        v.access([None if n == 1 and extents[a] > 1 else a for a, n in zip(names, v.shape, strict=True)])
        for v, names in zip(operands, letters, strict=True)
    ]
    if len(operands) == 1:
        return recorder.emit("sum", base, axes, inputs, list(out), dtype)
    return recorder.emit("product", base, axes, inputs, list(out), dtype)


def einsum(recorder: Recorder, subscripts: str, operands: Sequence[View]) -> View:
    """`np.einsum` with a text of subscripts, ellipses included.

    >>> parse("bij,...jk->b...k", 3, 4)
    ([['b', 'i', 'j'], ['e0', 'e1', 'j', 'k']], ['b', 'e0', 'e1', 'k'])
    """
    letters, out = parse(subscripts, *[len(v.shape) for v in operands])
    return product(recorder, "einsum", operands, letters, out)


def parse(subscripts: str, *ranks: int) -> tuple[list[list[str]], list[str]]:
    """Axis names of every operand and of the result.  Raises `TraceError` for a text that einsum refuses."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise TraceError(place(), f"einsum {subscripts!r} has {len(terms)} operands, {len(ranks)} were given")
    hidden = [rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True)]
    widest = max((h for t, h in zip(terms, hidden, strict=True) if "..." in t), default=0)

    def names(term: str, own: int) -> list[str]:
        before, dots, after = term.partition("...")
        if any(c not in ascii_letters for c in before + after) or (own != 0 and not dots) or own < 0:
            raise TraceError(
                place(),
                f"einsum {subscripts!r}: {term!r} does not fit an array of dimension {len(before) + len(after) + own}",
            )
        return [*before, *([f"e{k}" for k in range(widest - own, widest)] if dots else []), *after]

    operands = [names(t, h) for t, h in zip(terms, hidden, strict=True)]
    if arrow:
        out = names(right, widest if "..." in right else 0)
    else:
        every = [a for o in operands for a in o]
        out = [f"e{k}" for k in range(widest)] + sorted(a for a in set(every) if every.count(a) == 1 and len(a) == 1)
    if len(set(out)) < len(out):
        raise TraceError(place(), f"einsum {subscripts!r}: an index occurs twice in the result")
    return operands, out


def matmul(recorder: Recorder, left: View, right: View) -> View:
    """`left @ right`, axes b0.., m, n, k."""
    if not left.shape or not right.shape:
        raise TraceError(place(), "matmul needs arrays of at least one dimension")
    batch = max(len(left.shape), len(right.shape), 2) - 2
    names = [f"b{k}" for k in range(batch)]
    a = [*names[batch - len(left.shape) + 2 :], "m", "k"] if len(left.shape) > 1 else ["k"]
    b = [*names[batch - len(right.shape) + 2 :], "k", "n"] if len(right.shape) > 1 else ["k"]
    if left.shape[-1] != right.shape[-2 if len(right.shape) > 1 else 0]:
        raise TraceError(place(), f"matmul: shapes {left.shape} and {right.shape} do not fit")
    out = [*names, *(["m"] if len(left.shape) > 1 else []), *(["n"] if len(right.shape) > 1 else [])]
    return product(recorder, "matmul", [left, right], [a, b], out)


def dot(recorder: Recorder, left: View, right: View) -> View:
    """`np.dot`: the last dimension of the left with the second last of the right."""
    if len(left.shape) <= 2 and len(right.shape) <= 2 and left.shape and right.shape:
        return matmul(recorder, left, right)
    return tensordot(recorder, left, right, [len(left.shape) - 1], [max(0, len(right.shape) - 2)])


def tensordot(recorder: Recorder, left: View, right: View, of_left: Sequence[int], of_right: Sequence[int]) -> View:
    """Sum over pairs of dimensions; axes m.., n.., k.. ."""
    a, b = [f"m{d}" for d in range(len(left.shape))], [f"n{d}" for d in range(len(right.shape))]
    for n, (i, j) in enumerate(zip(of_left, of_right, strict=True)):
        if left.shape[i] != right.shape[j]:
            raise TraceError(place(), f"shapes {left.shape} and {right.shape} do not fit along {i} and {j}")
        a[i] = b[j] = f"k{n}"
    out = [x for x in a if not x.startswith("k")] + [x for x in b if not x.startswith("k")]
    return product(recorder, "tensordot", [left, right], [a, b], out)


def outer(recorder: Recorder, left: View, right: View) -> View:
    """`np.outer` of two vectors."""
    if len(left.shape) != 1 or len(right.shape) != 1:
        raise TraceError(place(), "np.outer is supported for vectors")
    return product(recorder, "outer", [left, right], [["m"], ["n"]], ["m", "n"])
