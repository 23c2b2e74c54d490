"""Takes bags of rows, counts of numbers and products of groups of rows apart into rows, comparisons and sums.

bags      rows of a table, summed bag by bag (or their means); where bags begin must be constants
groups    rows that lie before the end of their group and not before that of the one before
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from ...keywords import keywords_of
from .windows import NotKnown


def _sizes(offsets: torch.Tensor, many: int, last: bool) -> list[int]:
    """Rows of every bag: positions where bags begin must be constants (`int` of an element is seen, `tolist` not)."""
    firsts = [int(n) for n in offsets]
    ends = firsts[1:] if last else [*firsts[1:], many]
    return [b - a for a, b in zip(firsts, ends, strict=False)]


@dataclass(frozen=True, eq=False)
class Bags:
    """What PyTorch's operator takes."""

    weight: torch.Tensor
    indices: torch.Tensor
    offsets: torch.Tensor
    scale_grad_by_freq: bool = False
    mode: int = 0
    sparse: bool = False
    per_sample_weights: torch.Tensor | None = None
    include_last_offset: bool = False
    padding_idx: int = -1


def _is_unknown(of: Bags | BagsGradient) -> bool:
    return of.mode > 1 or of.per_sample_weights is not None or of.padding_idx >= 0 or of.scale_grad_by_freq


@keywords_of(Bags)
def _bags(of: Bags) -> tuple[torch.Tensor, ...]:
    """Sums (mode 0) or means (mode 1) of rows, bag by bag."""
    sizes = _sizes(of.offsets, of.indices.numel(), of.include_last_offset)
    if _is_unknown(of) or min(sizes) < 1:
        raise NotKnown("has weights, padding, empty bags or greatest elements, which are not known here")
    rows = torch.nn.functional.embedding(of.indices, of.weight)
    if len(set(sizes)) == 1:
        total = rows.reshape(len(sizes), sizes[0], -1).sum(1)
    else:
        total = torch.stack([part.sum(0) for part in rows.split(sizes)])
    counts = torch.tensor(sizes)
    if of.mode == 1:
        total = total / counts.to(total.dtype).unsqueeze(1)
    bag = torch.repeat_interleave(torch.arange(len(sizes)), counts, output_size=of.indices.numel())
    return total, bag, counts, torch.zeros(len(sizes), dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class BagsGradient:
    """What the operator of the gradient of rows takes."""

    grad: torch.Tensor
    indices: torch.Tensor
    offset2bag: torch.Tensor
    bag_size: torch.Tensor
    maximum_indices: torch.Tensor
    num_weights: int
    scale_grad_by_freq: bool
    mode: int
    per_sample_weights: torch.Tensor | None
    padding_idx: int = -1


@keywords_of(BagsGradient)
def _bags_gradient(of: BagsGradient) -> torch.Tensor:
    grad, indices, bag_size = of.grad, of.indices, of.bag_size
    if _is_unknown(of):
        raise NotKnown("has weights, padding or greatest elements, which are not known here")
    if of.mode == 1:
        grad = grad / bag_size.to(grad.dtype).unsqueeze(1)
    sizes = [int(n) for n in bag_size]
    if len(set(sizes)) == 1:
        rows = grad.unsqueeze(1).expand(len(sizes), sizes[0], -1).reshape(indices.numel(), -1)
    else:
        rows = torch.cat([g.expand(n, -1) for g, n in zip(grad.split(1), sizes, strict=True)])
    return grad.new_zeros((of.num_weights, grad.shape[1])).index_add(0, indices, rows)


def _bags_gradient_of_all(grad: torch.Tensor, indices: torch.Tensor, _: torch.Tensor, *rest: Any) -> torch.Tensor:
    """The operator that is given offsets too, and may make a sparse gradient: the seventh of the rest."""
    if rest[6]:
        raise NotKnown("makes a sparse gradient, which is not known here")
    return _bags_gradient(grad, indices, *rest[:6], *rest[7:])


def _histogram(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """How many numbers lie in each of equal parts of a range, the last with its end."""
    if min == max:
        raise NotKnown("counts in a range that data say, which is not known here")
    at = (x.reshape(-1, 1).to(torch.float64) - min) * (bins / (max - min))
    first = torch.arange(bins, dtype=torch.float64)
    inside = (at >= first) & (at < first + 1)
    inside = inside | ((at == bins) & (first == bins - 1))
    return inside.to(x.dtype).sum(0)


def _counted_numbers(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """How often each of the first whole numbers is there, all of them below the length that is asked for."""
    if weights is not None or not minlength:
        raise NotKnown("counts of weights, or of as many numbers as data say, which is not known here: say minlength")
    with torch.utils._python_dispatch._disable_current_modes():
        if x.numel() and int(x.max()) >= minlength:
            raise NotKnown("counts numbers that are not below minlength, which is not known here")
    return (x.unsqueeze(-1) == torch.arange(minlength)).to(torch.int64).sum(0)


def _rows_of_groups(many: int, ends: torch.Tensor) -> torch.Tensor:
    """(groups, rows): whether a row lies in a group, of where groups end."""
    at = torch.arange(many).unsqueeze(0)
    before = at < ends.unsqueeze(1)
    return before & torch.cat([torch.ones(1, many, dtype=torch.bool), before[:-1].logical_not()])


def _products_of_groups(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, bias: Any = None, out_dtype: Any = None
) -> torch.Tensor:
    """Rows of `a` times the matrix of their group, or, of two matrices, one product per group of columns and rows."""
    if offs is None or bias is not None or a.dim() != 2 or b.dim() not in (2, 3):
        raise NotKnown("of these operands is not known here")
    if b.dim() == 2:
        inside = _rows_of_groups(b.shape[0], offs).to(b.dtype)
        return torch.stack([a @ (b * inside[e].unsqueeze(1)) for e in range(offs.shape[0])])
    inside = _rows_of_groups(a.shape[0], offs).to(a.dtype)
    total = (a @ b[0]) * inside[0].unsqueeze(1)
    for e in range(1, b.shape[0]):
        total = total + (a @ b[e]) * inside[e].unsqueeze(1)
    return total


BAGS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten::_embedding_bag": _bags,
    "aten::_embedding_bag_forward_only": _bags,
    "aten::_embedding_bag_backward": _bags_gradient_of_all,
    "aten::_embedding_bag_dense_backward": _bags_gradient,
    "aten::bincount": _counted_numbers,
    "aten::histc": _histogram,
    "aten::_grouped_mm": _products_of_groups,
}
"""By name of PyTorch."""
