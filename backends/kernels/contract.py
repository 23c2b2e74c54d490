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
        i, j = _cheapest_pair(rest, out)
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


def pair(xp: ModuleType, left: Factor, right: Factor, kept: set[str], out: Sequence[str]) -> Factor:
    """The product of two factors, summed over what is not `kept`; `out`: the order of the output, if this is the last
    pair.
    """
    left = _summed(xp, left, kept | set(right[0]))
    right = _summed(xp, right, kept | set(left[0]))
    sizes = {**_sizes(left), **_sizes(right)}
    both = [a for a in left[0] if a in right[0]]
    batch, summed = [a for a in both if a in kept], [a for a in both if a not in kept]
    rows, columns = [a for a in left[0] if a not in both], [a for a in right[0] if a not in both]
    if batch and summed and not rows and not columns and _is_dense(left, right, summed):
        number = {a: k for k, a in enumerate(sizes)}
        operands = [x for axes, array in (left, right) for x in (array, [number[a] for a in axes])]
        return tuple(batch), xp.einsum(*operands, [number[a] for a in batch])
    if not summed:
        axes = (*batch, *rows, *columns)
        return axes, align(left[1], left[0], axes) * align(right[1], right[0], axes)
    first, limit = left[0][0], left[1].size + right[1].size
    rest = [a for a in summed if a != first]
    axes = (*rows, *columns)
    many = sizes[first] * prod(sizes[a] for a in axes)
    if not batch and first in summed and right[0][0] == first and rest and rows and columns and many <= limit:
        each = xp.matmul(_matrix(left, (first,), rows, rest), _matrix(right, (first,), rest, columns))
        return axes, xp.sum(each, axis=0, dtype=each.dtype).reshape(tuple(sizes[a] for a in axes))
    for one, other, mine, its in ((left, right, rows, columns), (right, left, columns, rows)):
        lead = _lead(out, mine, its) if not batch else ()
        if lead:
            rest = [a for a in out if a in mine and a not in lead]
            its = [a for a in out if a in its]
            product = xp.matmul(_matrix(other, (), its, summed), _matrix(one, lead, summed, rest))
            axes = (*lead, *its, *rest)
            return axes, product.reshape(tuple(sizes[a] for a in axes))
    axes = (*batch, *rows, *columns)
    product = xp.matmul(_matrix(left, batch, rows, summed), _matrix(right, batch, summed, columns))
    return axes, product.reshape(tuple(sizes[a] for a in axes))


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
    sizes = _sizes(factor)
    shape = tuple(sizes[a] for a in batch)
    moved = align(factor[1], factor[0], (*batch, *first, *second))
    rows, columns = prod(sizes[a] for a in first), prod(sizes[a] for a in second)
    strides = {a: abs(n) for a, n in zip((*batch, *first, *second), moved.strides, strict=True) if sizes[a] > 1}
    nearest = min(((strides[a], k) for k, a in enumerate((*first, *second)) if a in strides), default=(0, len(first)))
    if nearest[1] < len(first):
        turned = align(factor[1], factor[0], (*batch, *second, *first))
        return turned.reshape((*shape, columns, rows)).swapaxes(-1, -2)
    return moved.reshape((*shape, rows, columns))
