"""Takes operators that write into several tensors at once apart into those that are known: what FSDP2 copies into and
out of the tensors that it sends, and lists of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import torch

from .views import positive

Tensors = Sequence[torch.Tensor]


def _all_gather_copy_in(
    given: Tensors, output: torch.Tensor, sizes: Sequence[int], size: int, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rank's own place in what is to be gathered, filled with its parts, one behind another; and all of it."""
    mine = output.narrow(0, size * rank, size)
    _copied(list(mine.split(list(sizes))), given)
    return mine, output


def _split_copy(whole: torch.Tensor, sizes: Sequence[int], dim: int = 0, *, out: Tensors) -> None:
    _copied(out, list(whole.split(list(sizes), dim)))


def _copied(targets: Tensors, given: Tensors, non_blocking: bool = False) -> None:
    for target, one in zip(targets, given, strict=True):
        target.copy_(one)


def _chunk_cat(tensors: Tensors, dim: int, chunks: int, *, out: torch.Tensor | None = None) -> torch.Tensor | None:
    """Every tensor filled up with zeros to whole chunks along a dimension; chunk k of all, each flat behind that
    dimension, stands one behind another in row k.
    """
    rows = []
    for tensor in tensors:
        d = positive(dim, tensor.dim())
        size = tuple(tensor.shape)
        more = -(-size[d] // chunks) * chunks - size[d]
        if more:
            tensor = torch.cat([tensor, tensor.new_zeros((*size[:d], more, *size[d + 1 :]))], d)
        rows.append(tensor.reshape(*size[:d], chunks, (size[d] + more) // chunks * prod(size[d + 1 :])))
    made = torch.cat(rows, positive(dim, tensors[0].dim()) + 1)
    if out is None:
        return made
    out.copy_(made)
    return out


PARTS: Final[Mapping[str, Callable[..., Any]]] = {
    "fsdp::all_gather_copy_in": _all_gather_copy_in,
    "fsdp::split_with_sizes_copy": _split_copy,
    "fsdp::chunk_cat": _chunk_cat,
    "aten::split_with_sizes_copy.out": _split_copy,
    "aten::_chunk_cat": _chunk_cat,
    "aten::_chunk_cat.out": _chunk_cat,
    "aten::_foreach_copy_": _copied,
}
"""By name, and by name and overload where there are several."""
