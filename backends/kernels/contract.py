"""Computes products of operands summed over the reduction axes, as matrix products.

    out[o] = sum_r  A_1[..] A_2[..] .. A_n[..]

Every operand is first made a function of iteration axes (`blocks.view`), so a convolution is an ordinary contraction.
Two operands with axes S and T are contracted by

    batch = S & T & kept,  summed = S & T - kept,  left = S - T,  right = T - S:   (batch, left, summed) @ (batch,
    summed, right)

where `kept` are the axes of the output and of the operands still waiting.  More than two: the pair with the smallest
result first.  Where the output begins with axes of one operand and goes on with the other's (channels before pixels),

    out = (lead, right, rest):   (right, summed) @ (lead, summed, rest),     lead + rest = left

so that nothing is transposed behind the product.  Where both operands begin with an axis that is summed (examples, in
gradients of weights) and the products of each are small, these are added up.  An operand that must be copied is copied
with its contiguous axis last, and the matrix is the transpose of that where it has to be.  A window view is copied by
its reshape (im2col); `_LIMIT` bounds that copy by halving the box instead.
Axes named by attribute `reversed` run backwards where they index an operand alone: convolutions with flipped taps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import prod
from types import ModuleType

from ...models.program.graph import Graph
from ...models.program.index import Access
from ...models.program.operators import Operator, Value
from .blocks import Array, Block, align, lengths, spread, view

_LIMIT = 1 << 25
"""Elements of a window view that may be copied at once (256 MiB in float64)."""

Factor = tuple[tuple[str, ...], Array]
"""Axes, and an array with one dimension for each."""

Pair = Callable[[ModuleType, Factor, Factor, set[str], Sequence[str]], Factor]
"""Multiplies two factors and sums over what is not kept: `pair`."""


def contract(
    xp: ModuleType,
    op: Operator,
    graph: Graph,
    box: dict[str, tuple[int, int]],
    operands: Sequence[Block],
    multiply: Pair | None = None,
) -> Array:
    """The (partial) sum of products over the box; zero where the box is empty.  `multiply`: in the place of `pair`."""
    out = op.output.axes
    shape = lengths(box, out)
    dtype = xp.result_type(*[b.array for b in operands])
    if 0 in lengths(box, [a.name for a in op.axes]):
        return xp.zeros(shape, dtype=dtype)  # type: ignore[no-any-return]
    half = _too_large(op, box, operands)
    if half is not None:
        low, high = box[half]
        middle = (low + high) // 2
        parts = [
            contract(xp, op, graph, {**box, half: part}, operands, multiply) for part in ((low, middle), (middle, high))
        ]
        return xp.concatenate(parts, axis=out.index(half))  # type: ignore[no-any-return]
    backwards = op.attribute("reversed", ())
    factors: list[Factor] = [
        (
            a.axes,
            _turned(
                view(xp, block, a, box, graph.tensor(a.tensor).shape, 0, f"operator {op.name!r}, input {j}"),
                a,
                backwards,
            ),
        )
        for j, (a, block) in enumerate(zip(op.inputs, operands, strict=True))
    ]
    axes, array = product_of(xp, factors, out, multiply)
    unused = [a.name for a in op.reduction_axes if all(a.name not in x.axes for x in op.inputs)]
    repeat = prod(lengths(box, unused))
    result = align(array, axes, out)
    return spread(xp, result if repeat == 1 else result * repeat, shape)


def product_of(xp: ModuleType, factors: Sequence[Factor], out: Sequence[str], multiply: Pair | None = None) -> Factor:
    """The product of arrays with named axes, summed over all axes but `out`.

    >>> import numpy
    >>> product_of(numpy, [(("a", "b"), numpy.ones((2, 3))), (("b",), numpy.arange(3.0))], ["a"])
    (('a',), array([3., 3.]))
    """
    rest = list(factors)
    while len(rest) > 1:
        i, j = (0, 1) if len(rest) == 2 else _cheapest_pair(rest, out)
        right, left = rest.pop(j), rest.pop(i)
        kept = {*out, *(a for axes, _ in rest for a in axes)}
        rest.append((multiply or pair)(xp, left, right, kept, () if rest else out))
    return _summed(xp, rest[0], set(out))


def _turned(array: Array, access: Access, backwards: Value) -> Array:
    """Count the axes `backwards` from their end where they stand alone in an index (their boxes are never split)."""
    if not isinstance(backwards, tuple) or not backwards:
        return array
    alone = {i.single for i in access.index} & set(map(str, backwards))
    return array[tuple(slice(None, None, -1) if a in alone else slice(None) for a in access.axes)]


def _too_large(op: Operator, box: dict[str, tuple[int, int]], operands: Sequence[Block]) -> str | None:
    """An output axis to halve, if a window view is larger than its operand and than the limit."""
    for access, block in zip(op.inputs, operands, strict=True):
        size = prod(lengths(box, access.axes))
        if size > _LIMIT and size > 2 * block.array.size:
            lengths_of = [(box[a][1] - box[a][0], a) for a in op.output.axes if a in access.axes]
            longest = max(lengths_of, key=lambda pair: pair[0], default=(1, ""))
            if longest[0] > 1:
                return longest[1]
    return None


def _sizes(factor: Factor) -> dict[str, int]:
    return dict(zip(factor[0], factor[1].shape, strict=True))


def _cheapest_pair(factors: Sequence[Factor], out: Sequence[str]) -> tuple[int, int]:
    best: tuple[int, int, int] | None = None
    for j in range(1, len(factors)):
        for i in range(j):
            rest = {*out, *(a for k, f in enumerate(factors) if k not in (i, j) for a in f[0])}
            size = prod(n for a, n in {**_sizes(factors[i]), **_sizes(factors[j])}.items() if a in rest)
            if best is None or size < best[0]:
                best = (size, i, j)
    return (0, 1) if best is None else (best[1], best[2])


def _summed(xp: ModuleType, factor: Factor, kept: set[str]) -> Factor:
    """Sum over the axes that nobody else needs."""
    axes, array = factor
    dims = tuple(d for d, a in enumerate(axes) if a not in kept)
    if not dims:
        return factor
    return tuple(a for a in axes if a in kept), xp.sum(array, axis=dims, dtype=array.dtype)


def pair(
    xp: ModuleType,
    left: Factor,
    right: Factor,
    kept: set[str],
    out: Sequence[str],
    matmul: Callable[[Array, Array], Array] | None = None,
) -> Factor:
    """The product of two factors, summed over what is not `kept`; `out`: the order of the output, if this is the last
    pair; `matmul`: another product of matrices than that of `xp`.
    """
    left = _summed(xp, left, kept | set(right[0]))
    right = _summed(xp, right, kept | set(left[0]))
    way = _way(left[0], left[1].shape, right[0], right[1].shape, frozenset(kept), tuple(out))
    if way.kind is _Kind.DOTS and _is_dense(left, right, way.summed):
        number = {a: k for k, a in enumerate(dict.fromkeys((*left[0], *right[0])))}
        operands = [x for axes, array in (left, right) for x in (array, [number[a] for a in axes])]
        return way.axes, xp.einsum(*operands, [number[a] for a in way.axes])
    if way.kind is _Kind.OUTER:
        return way.axes, align(left[1], left[0], way.axes) * align(right[1], right[0], way.axes)
    one, other = (right, left) if way.turned else (left, right)
    product = (matmul or xp.matmul)(_matrix(one, *way.first), _matrix(other, *way.second))
    if way.kind is _Kind.EACH:
        product = xp.sum(product, axis=0, dtype=product.dtype)
    return way.axes, product.reshape(way.shape)


class _Kind(Enum):
    """How two factors are multiplied: as matrices, matrices of one row and one column (sums of products in place, where
    dense), one product per example added up, or elementwise."""

    MATRICES = "matrices"
    DOTS = "dots"
    EACH = "each"
    OUTER = "outer"


_Part = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class _Way:
    """`first`, `second`: (batch, rows, columns) of the matrices; `turned`: the second factor is the first of them;
    `axes`, `shape`: of the result.
    """

    kind: _Kind
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    summed: tuple[str, ...] = ()
    first: _Part = ((), (), ())
    second: _Part = ((), (), ())
    turned: bool = False


@lru_cache(maxsize=4096)
def _way(
    left: tuple[str, ...],
    left_shape: tuple[int, ...],
    right: tuple[str, ...],
    right_shape: tuple[int, ...],
    kept: frozenset[str],
    out: tuple[str, ...],
) -> _Way:
    """Of two factors none of whose axes is summed alone: the module docstring's cases.  Working it out takes longer
    than a small product."""
    sizes = {**dict(zip(left, left_shape, strict=True)), **dict(zip(right, right_shape, strict=True))}
    both = [a for a in left if a in right]
    batch, summed = tuple(a for a in both if a in kept), tuple(a for a in both if a not in kept)
    rows, columns = tuple(a for a in left if a not in both), tuple(a for a in right if a not in both)
    axes = (*batch, *rows, *columns)
    shape = tuple(sizes[a] for a in axes)
    if not summed:
        return _Way(_Kind.OUTER, axes, shape)
    if batch and not rows and not columns:
        return _Way(_Kind.DOTS, axes, shape, summed, (batch, rows, summed), (batch, summed, columns))
    first, limit = left[0], prod(left_shape) + prod(right_shape)
    rest = tuple(a for a in summed if a != first)
    many = sizes[first] * prod(shape)
    if not batch and first in summed and right[0] == first and rest and rows and columns and many <= limit:
        return _Way(_Kind.EACH, axes, shape, summed, ((first,), rows, rest), ((first,), rest, columns))
    for turned, mine, its in ((True, rows, columns), (False, columns, rows)):
        lead = _lead(out, mine, its) if not batch else ()
        if lead:
            rest = tuple(a for a in out if a in mine and a not in lead)
            its = tuple(a for a in out if a in its)
            axes = (*lead, *its, *rest)
            parts: tuple[_Part, _Part] = (((), its, summed), (lead, summed, rest))
            return _Way(_Kind.MATRICES, axes, tuple(sizes[a] for a in axes), summed, *parts, turned)
    return _Way(_Kind.MATRICES, axes, shape, summed, (batch, rows, summed), (batch, summed, columns))


def _is_dense(left: Factor, right: Factor, summed: Sequence[str]) -> bool:
    """Both factors are real and have one summed axis last, dense: sums of products in place (`einsum`) then take half
    the time of matrix products of one row and one column, for which both are transposed first.
    """
    real = left[1].dtype == right[1].dtype and left[1].dtype.kind == "f"
    dense = all(array.size and array.strides[-1] == array.itemsize for _, array in (left, right))
    return real and dense and left[0][-1] == right[0][-1] and left[0][-1] in summed


def _lead(out: Sequence[str], mine: Sequence[str], its: Sequence[str]) -> tuple[str, ...]:
    """What the output begins with of one operand's axes, if all axes of the other follow and then the rest of its own.

    >>> _lead("boyx", "byx", "o"), _lead("ob", "b", "o"), _lead("bo", "b", "o")
    (('b',), (), ())
    """
    at = [k for k, a in enumerate(out) if a in its]
    if not at or set(out) != {*mine, *its} or at != list(range(at[0], at[0] + len(its))) or at[-1] + 1 == len(out):
        return ()
    return tuple(out[: at[0]])


def _matrix(factor: Factor, batch: Sequence[str], first: Sequence[str], second: Sequence[str]) -> Array:
    """(batch, first, second) with two dimensions behind the batch, as few elements as possible copied one by one."""
    array = factor[1]
    order, shape, turned = _fold(factor[0], array.shape, array.strides, tuple(batch), tuple(first), tuple(second))
    matrix = array.transpose(order).reshape(shape)
    return matrix.swapaxes(-1, -2) if turned else matrix


@lru_cache(maxsize=4096)
def _fold(
    axes: tuple[str, ...],
    lengths: tuple[int, ...],
    strides: tuple[int, ...],
    batch: tuple[str, ...],
    first: tuple[str, ...],
    second: tuple[str, ...],
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Order of the dimensions, shape, and whether the matrices are turned behind that."""
    sizes = dict(zip(axes, lengths, strict=True))
    steps = {a: abs(n) for a, n in zip(axes, strides, strict=True) if sizes[a] > 1}
    rows, columns = prod(sizes[a] for a in first), prod(sizes[a] for a in second)
    nearest = min(((steps[a], k) for k, a in enumerate((*first, *second)) if a in steps), default=(0, len(first)))
    turned = nearest[1] < len(first)
    order = (*batch, *second, *first) if turned else (*batch, *first, *second)
    sides = (columns, rows) if turned else (rows, columns)
    return tuple(axes.index(a) for a in order), (*(sizes[a] for a in batch), *sides), turned
