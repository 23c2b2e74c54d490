"""Says how view operators of PyTorch make their tensors of the first operand, in reshapes, permutations and slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from ...equality.captured import Unreadable
from .storage import View

Args = tuple[Any, ...]


def positive(d: int, rank: int) -> int:
    return d + rank if d < 0 else d


def _slice(dim: int, start: int, stop: int, step: int, shape: Sequence[int]) -> View:
    count = max(0, -(-(stop - start) // step))
    words = (("dim", dim), ("start", start), ("stop", stop), ("step", step))
    return View("slice", words, (*shape[:dim], count, *shape[dim + 1 :]))


def _reshape(shape: Sequence[int]) -> View:
    return View("reshape", (("shape", tuple(shape)),), tuple(shape))


def _permute(dims: Sequence[int], shape: Sequence[int]) -> View:
    return View("permute", (("dims", tuple(dims)),), tuple(shape[d] for d in dims))


def views(name: str, args: Args, kwargs: Mapping[str, Any]) -> list[tuple[View, ...]] | None:
    """For each output of a view operator, how it is made of the first operand; None for another operator."""
    if name not in _VIEWS:
        return None
    x = args[0]
    shape, rank = tuple(x.shape), x.dim()
    match name:
        case "view" | "_unsafe_view" | "reshape" | "_reshape_alias" | "view_copy":
            if len(args) > 1 and not isinstance(args[1], tuple | list):
                raise Unreadable("looks at the bytes of a tensor as another type")
            size = list(args[1])
            if -1 in size:
                size[size.index(-1)] = prod(shape) // max(1, -prod(size))
            return [(_reshape(size),)]
        case "t":
            return [(_permute(range(rank)[::-1], shape),)]
        case "transpose":
            order = list(range(rank))
            a, b = positive(args[1], rank), positive(args[2], rank)
            order[a], order[b] = b, a
            return [(_permute(order, shape),)] if rank else [()]
        case "permute":
            return [(_permute([positive(d, rank) for d in args[1]], shape),)]
        case "unsqueeze":
            d = positive(args[1], rank + 1)
            return [(_reshape((*shape[:d], 1, *shape[d:])),)]
        case "squeeze":
            dims = range(rank) if len(args) == 1 else args[1] if isinstance(args[1], tuple | list) else [args[1]]
            gone = {positive(d, rank) for d in dims}
            return [(_reshape([n for d, n in enumerate(shape) if n != 1 or d not in gone]),)]
        case "expand":
            size = list(args[1])
            for k in range(len(size)):
                if size[k] == -1:
                    size[k] = shape[k - (len(size) - rank)]
            return [(View("expand", (("shape", tuple(size)),), tuple(size)),)]
        case "slice":
            return [(slice_view(args, kwargs, shape),)]
        case "select":
            d = positive(args[1], rank)
            i = args[2] + shape[d] if args[2] < 0 else args[2]
            return [(_slice(d, i, i + 1, 1, shape), _reshape((*shape[:d], *shape[d + 1 :])))]
        case "split" | "split_with_sizes":
            d = positive(args[2] if len(args) > 2 else kwargs.get("dim", 0), rank)
            sizes = args[1]
            if not isinstance(sizes, tuple | list):
                sizes = [min(sizes, shape[d] - k) for k in range(0, shape[d], sizes)]
            firsts = [sum(sizes[:k]) for k in range(len(sizes))]
            return [(_slice(d, a, a + n, 1, shape),) for a, n in zip(firsts, sizes, strict=True)]
        case "unbind":
            d = positive(args[1] if len(args) > 1 else 0, rank)
            rest = (*shape[:d], *shape[d + 1 :])
            return [(_slice(d, i, i + 1, 1, shape), _reshape(rest)) for i in range(shape[d])]
        case _:
            raise Unreadable(f"view {name} is not known here")


def of_pairs(view: View) -> View:
    """A view of complex numbers, of their real and imaginary parts: a last dimension of two stays as it is."""
    words = dict(view.words)
    match view.operator, words:
        case "permute", {"dims": tuple(dims)}:
            words["dims"] = (*dims, len(dims))
        case _, {"shape": tuple(shape)}:
            words["shape"] = (*shape, 2)
    return View(view.operator, tuple(words.items()), (*view.shape, 2))


def slice_view(args: Args, kwargs: Mapping[str, Any], shape: Sequence[int]) -> View:
    named = dict(zip(("dim", "start", "end", "step"), args[1:], strict=False)) | dict(kwargs)
    d = positive(named.get("dim", 0), len(shape))
    n = shape[d]
    start, stop, step = named.get("start"), named.get("end"), named.get("step", 1)
    start = 0 if start is None else max(0, min(n, start + n if start < 0 else start))
    stop = n if stop is None else max(start, min(n, stop + n if stop < 0 else stop))
    return _slice(d, start, stop, step, shape)


_VIEWS: Final = frozenset(
    {
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute", "unsqueeze", "squeeze"),
        *("expand", "slice", "select", "split", "split_with_sizes", "unbind"),
    }
)
