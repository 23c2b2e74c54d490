"""Reads writes at positions that a tensor says: `scatter` and `index_put`.

What is written stands where a mark was added, all else stays: where(marks > 0, new, x).  That is what runs if no two
writes meet, or all write one number; PyTorch says nothing of the order of others, and neither is anything proved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ...equality.captured import Unreadable
from ...equality.program import Word
from .storage import dtype_of
from .views import positive

if TYPE_CHECKING:
    from .recorder import Recorder

Args = tuple[Any, ...]


def _made(out: Any) -> tuple[tuple[tuple[int, ...], Any], ...]:
    return ((tuple(out.shape), out.dtype),)


def _positions_of(r: Recorder, index: torch.Tensor, dim: int) -> bool:
    """Whether an index is the positions that `topk` or `sort` found along a dimension: different ones in every row."""
    number = r.number(index)
    maker = next((s for s in r.steps if number in s.makes), None)
    if maker is None or maker.operator not in ("topk", "sort"):
        return False
    return maker.makes[1] == number and maker.word("dim") == dim


def scatter(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...] | None:
    """By different positions of a row: one each, or those of `topk` and `sort`.  What stands there is replaced."""
    x, index, value = args[0], args[2], args[3]
    d = positive(args[1], x.dim())
    distinct = _positions_of(r, index, d)
    outside = [k for k, n in enumerate(index.shape) if k != d and n != x.shape[k]]
    if outside or (index.shape[d] != 1 and not distinct):
        raise Unreadable(f"writes at several positions of a row ({r.place()}), which may be the same")
    given = r.number(value) if isinstance(value, torch.Tensor) else None
    if given is not None and index.shape[d] == 1:
        shape = tuple(value.shape)
        for k, n in enumerate(index.shape):  # as much of it as is written
            if n != shape[k]:
                shape = (*shape[:k], n, *shape[k + 1 :])
                words: dict[str, Word] = {"dim": k, "start": 0, "stop": n, "step": 1}
                given = r.step("slice", (given,), words, ((shape, x.dtype),))[0]
    new = _full(r, x, float(value)) if given is None else given
    return _replaced(r, (x, d), (index, r.number(index)), new, {"dim": d}, out)


def _replaced(
    r: Recorder,
    x: tuple[torch.Tensor, int],
    index: tuple[torch.Tensor, int],
    new: int,
    words: Mapping[str, Word],
    out: Any,
) -> tuple[int, ...]:
    """A tensor (with the dimension) where different positions of a row (with their number) have a new value: one for a
    row, or one for each position.
    """
    size, shape = tuple(x[0].shape), tuple(index[0].shape)
    mark = (size, torch.float32)
    empty = r.step("full", (), {"shape": size, "value": 0.0, "dtype": "float32"}, (mark,))[0]
    one: dict[str, Word] = {"shape": shape, "value": 1.0, "dtype": "float32"}
    ones = r.step("full", (), one, ((shape, torch.float32),))[0]
    hit = r.step("scatter_add", (empty, index[1], ones), words, (mark,))[0]
    there = r.step("gt", (hit,), {"number": 0}, ((size, torch.bool),))[0]
    if shape[x[1]] != 1:
        new = r.step("scatter_add", (_full(r, x[0], 0.0), index[1], new), words, _made(x[0]))[0]
    elif r.tensors[new].shape != size:
        new = r.step("expand", (new,), {"shape": size}, _made(x[0]))[0]
    return r.step("where", (there, new, r.number(x[0])), {}, _made(out))


def indexed_dimensions(r: Recorder, x: torch.Tensor, indices: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Dimensions that are indexed, and by what."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    for _, i in given:
        if i.dtype == torch.bool:
            raise Unreadable(f"picks elements by truth values ({r.place()}): how many depends on data")
    return [d for d, _ in given], [i for _, i in given]


def aligned_dimension(r: Recorder, x: torch.Tensor, dims: Sequence[int], by: Sequence[torch.Tensor]) -> int | None:
    """The one dimension along which a tensor is indexed, one element for each place of all others, as of
    x[arange(rows), ids]; None where it is indexed otherwise.
    """
    shape = torch.broadcast_shapes(*(i.shape for i in by))
    if dims != list(range(x.dim())) or len(shape) != x.dim() - 1:
        return None
    for d in dims:
        others = [e for e in dims if e != d]
        if tuple(by[d].shape) == shape == tuple(x.shape[e] for e in others) and all(
            _counts(r, by[e], shape, axis) for axis, e in enumerate(others)
        ):
            return int(d)
    return None


def _counts(r: Recorder, index: torch.Tensor, shape: Sequence[int], axis: int) -> bool:
    """Whether a constant is the place along an axis."""
    if r.number(index) not in r.fixed:
        return False
    wide = (-1 if a == axis else 1 for a in range(len(shape)))
    return bool(torch.equal(index.expand(shape), torch.arange(shape[axis]).reshape(*wide).expand(shape)))


def index_put(r: Recorder, args: Args, kwargs: Mapping[str, Any], out: Any) -> tuple[int, ...]:
    """By truth values one number; added; or by positions that differ."""
    x, indices, value = args[0], args[1], args[2]
    add = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    first = indices[0]
    if len(indices) == 1 and first is not None and first.dtype == torch.bool and value.numel() == 1 and not add:
        return _masked(r, x, first, value, out)
    dims, by = indexed_dimensions(r, x, indices)
    if (d := aligned_dimension(r, x, dims, by)) is not None:
        wide, index = tuple(by[d].shape), by[d].unsqueeze(d)
        shape = tuple(index.shape)
        number = r.reshape(r.number(by[d]), shape, index.dtype)
        new = r.step("expand", (r.number(value),), {"shape": wide}, ((wide, x.dtype),))[0]
        new = r.reshape(new, shape, x.dtype)
        words: dict[str, Word] = {"dim": d, "wrap": True}
        if add:
            return r.step("scatter_add", (r.number(x), number, new), words, _made(out))
        return _replaced(r, (x, d), (index, number), new, words, out)
    if add:
        return _added(r, (x, r.number(x)), (dims, by), (value, r.number(value)), out)
    if dims == [0] and len(by) == 1 and tuple(by[0].shape) == tuple(x.shape) and _positions_of(r, by[0], 0):
        return _added(r, (x, _full(r, x, 0.0)), (dims, by), (value, r.number(value)), out)
    if value.numel() != 1 and not _distinct(r, [x.shape[d] for d in dims], by):
        raise Unreadable(f"writes at positions that may be the same ({r.place()})")
    words = {"shape": (), "value": 1.0, "dtype": dtype_of(x)}
    one = r.step("full", (), words, (((), x.dtype),))[0]
    marks = _added(r, (x, _full(r, x, 0.0)), (dims, by), (torch.empty(()), one), out)
    there = r.step("gt", marks, {"number": 0}, ((tuple(x.shape), torch.bool),))[0]
    if value.numel() == 1:
        number = r.reshape(r.number(value), (1,) * x.dim(), x.dtype)
        found = r.step("expand", (number,), {"shape": tuple(x.shape)}, _made(out))
    else:
        found = _added(r, (x, _full(r, x, 0.0)), (dims, by), (value, r.number(value)), out)
    return r.step("where", (there, *found, r.number(x)), {}, _made(out))


def _full(r: Recorder, x: torch.Tensor, value: float) -> int:
    words: dict[str, Word] = {"shape": tuple(x.shape), "value": value, "dtype": dtype_of(x)}
    return r.step("full", (), words, _made(x))[0]


def _masked(
    r: Recorder, x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor, out: torch.Tensor
) -> tuple[int, ...]:
    number = r.number(mask)
    wide = (*mask.shape, *(1 for _ in range(x.dim() - mask.dim())))
    number = r.reshape(number, wide, torch.bool)
    shape = tuple(x.shape)
    new = r.reshape(r.number(value), (1,) * x.dim(), x.dtype)
    new = r.step("expand", (new,), {"shape": shape}, ((shape, x.dtype),))[0]
    number = r.step("expand", (number,), {"shape": shape}, ((shape, torch.bool),))[0]
    return r.step("where", (number, new, r.number(x)), {}, _made(out))


def _distinct(r: Recorder, sizes: Sequence[int], by: Sequence[torch.Tensor]) -> bool:
    """Whether no two positions are the same: what tensors of constants say tells every place from every other."""
    known = [(i, n) for i, n in zip(by, sizes, strict=True) if r.number(i) in r.fixed]
    shape = torch.broadcast_shapes(*(i.shape for i in by))
    told = torch.broadcast_shapes(*(i.shape for i, _ in known)) if known else ()
    if prod(told) != prod(shape):
        return False
    rows = [(i.remainder(n)).expand(told).reshape(-1).tolist() for i, n in known]
    return bool(len(set(zip(*rows, strict=True))) == prod(shape))


def _added(
    r: Recorder,
    x: tuple[torch.Tensor, int],
    at: tuple[Sequence[int], Sequence[torch.Tensor]],
    value: tuple[torch.Tensor, int],
    out: torch.Tensor,
) -> tuple[int, ...]:
    """A value (with its number) added to a tensor (likewise) at positions of dimensions."""
    dims, by = at
    dtype, size = x[0].dtype, tuple(x[0].shape)
    shape = tuple(torch.broadcast_shapes(*(i.shape for i in by)))
    order = [*dims, *(d for d in range(len(size)) if d not in dims)]
    rest = tuple(size[d] for d in order[len(dims) :])
    first = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0  # where what is picked stands
    wide = (*rest[:first], *shape, *rest[first:])
    source, n = value[1], len(shape)
    if tuple(value[0].shape) != wide:
        source = r.step("expand", (source,), {"shape": wide}, ((wide, dtype),))[0]
    if order == list(range(len(size))):
        return r.step("index_add", (x[1], *(r.number(i) for i in by), source), {}, _made(out))
    turned = (*range(first, first + n), *range(first), *range(first + n, len(wide)))
    source = r.step("permute", (source,), {"dims": turned}, (((*shape, *rest), dtype),))[0]
    made = ((tuple(size[d] for d in order), dtype),)
    target = r.step("permute", (x[1],), {"dims": tuple(order)}, made)[0]
    found = r.step("index_add", (target, *(r.number(i) for i in by), source), {}, made)[0]
    back = tuple(order.index(d) for d in range(len(size)))
    return r.step("permute", (found,), {"dims": back}, _made(out))
