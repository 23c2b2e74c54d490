"""Takes convolutions, pools, bags of rows and grouped products apart into slices, products and sums that are known.

windows   of a tensor x (N, C, spatial ..): (N, C, K, outputs ..), W[n, c, k, o] = x[n, c, stride o + dilation k -
          padding], k row-major over the kernel; a fill number where that lies outside
fold      its transpose: x[n, c, h] = sum of W[n, c, k, o] over all k, o that read h, by residues of h modulo the
          stride
convolution   weight (F, C K) times windows (C K, outputs); gradients are products with windows, and folded ones
pools         the greatest, or the mean, over k
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Final

import torch


class NotKnown(ValueError):
    """What is asked of an operator that is not known here."""


@dataclass(frozen=True)
class Frame:
    """How windows lie in a tensor, per spatial dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(
        cls, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int] = (1,)
    ) -> Frame:
        """One number stands for all dimensions; no stride is that of the kernel."""
        many = len(kernel)
        wide = [tuple(v) * (many // len(v)) for v in (stride or kernel, padding, dilation)]
        return cls(tuple(kernel), *wide)

    def outputs(self, size: Sequence[int]) -> tuple[int, ...]:
        """Windows along every dimension."""
        return tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        )

    def places(self) -> list[tuple[int, ...]]:
        """Places in the kernel, row-major."""
        return list(product(*map(range, self.kernel)))

    def tiles(self, size: Sequence[int]) -> bool:
        """Whether windows lie side by side and cover the tensor."""
        plain = self.kernel == self.stride and not any(self.padding) and set(self.dilation) == {1}
        return plain and all(n % k == 0 for n, k in zip(size, self.kernel, strict=True))


def _extended(x: torch.Tensor, dim: int, first: int, count: int, step: int = 1, fill: float = 0.0) -> torch.Tensor:
    """Positions `first`, `first + step`, .. of a dimension, `count` of them, a number where they lie outside."""
    size = x.shape[dim]
    before = min(count, max(0, -(first // step)))
    inside = max(0, min(count, -((first - size) // step)) - before)
    start = first + before * step
    parts = [(before, None), (inside, start), (count - before - inside, None)]
    made = []
    for n, at in parts:
        if n and at is None:
            made.append(x.new_full((*x.shape[:dim], n, *x.shape[dim + 1 :]), fill))
        elif n and at is not None:
            index = (*(slice(None),) * dim, slice(at, at + (n - 1) * step + 1, step))
            made.append(x[index])
    return made[0] if len(made) == 1 else torch.cat(made, dim)


def windows(x: torch.Tensor, frame: Frame, fill: float = 0.0) -> torch.Tensor:
    """(N, C, K, outputs ..)"""
    size, many = tuple(x.shape[2:]), len(frame.kernel)
    out = frame.outputs(size)
    if frame.tiles(size):
        cut = x.reshape(*x.shape[:2], *(n for pair in zip(out, frame.kernel, strict=True) for n in pair))
        order = [0, 1, *(3 + 2 * d for d in range(many)), *(2 + 2 * d for d in range(many))]
        return cut.permute(order).reshape(*x.shape[:2], prod(frame.kernel), *out)
    found = []
    for place in frame.places():
        one = x
        for d, k in enumerate(place):
            first = frame.dilation[d] * k - frame.padding[d]
            one = _extended(one, 2 + d, first, out[d], frame.stride[d], fill)
        found.append(one)
    return torch.stack(found, 2)


def fold(w: torch.Tensor, frame: Frame, size: Sequence[int]) -> torch.Tensor:
    """(N, C, size ..) of (N, C, K, outputs ..)"""
    many, out = len(size), tuple(w.shape[3:])
    if frame.tiles(size):
        cut = w.reshape(*w.shape[:2], *frame.kernel, *out)
        order = [0, 1, *(x for d in range(many) for x in (2 + many + d, 2 + d))]
        return cut.permute(order).reshape(*w.shape[:2], *size)
    wide = [-(-n // s) for n, s in zip(size, frame.stride, strict=True)]
    rows = []
    for residue in product(*map(range, frame.stride)):
        total: torch.Tensor | None = None
        for number, place in enumerate(frame.places()):
            firsts = [r + p - d * k for r, p, d, k in zip(residue, frame.padding, frame.dilation, place, strict=True)]
            if any(f % s for f, s in zip(firsts, frame.stride, strict=True)):
                continue
            one = w[:, :, number]
            for d, f in enumerate(firsts):
                one = _extended(one, 2 + d, f // frame.stride[d], wide[d])
            total = one if total is None else total + one
        rows.append(w.new_zeros((*w.shape[:2], *wide)) if total is None else total)
    whole = rows[0]
    if len(rows) > 1:
        whole = torch.stack(rows, 2).reshape(*w.shape[:2], *frame.stride, *wide)
        order = [0, 1, *(x for d in range(many) for x in (2 + many + d, 2 + d))]
        whole = whole.permute(order).reshape(*w.shape[:2], *(n * s for n, s in zip(wide, frame.stride, strict=True)))
    for d, n in enumerate(size):
        whole = whole.narrow(2 + d, 0, n)
    return whole


# ---------------------------------------------------------------------------- convolutions


def _grouped(x: torch.Tensor, groups: int, rows: int) -> torch.Tensor:
    """(N, groups, rows / groups, rest)"""
    return x.reshape(x.shape[0], groups, rows // groups, -1)


def _convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> torch.Tensor:
    if transposed:
        raise NotKnown("is transposed, which is not known here")
    frame = Frame.of(tuple(weight.shape[2:]), stride, padding, dilation)
    out, taken = frame.outputs(tuple(x.shape[2:])), windows(x, frame)
    inner = prod(frame.kernel) * x.shape[1]
    w = weight.reshape(1, groups, weight.shape[0] // groups, -1)
    made = w @ _grouped(taken, groups, inner)
    made = made.reshape(x.shape[0], weight.shape[0], *out)
    return made if bias is None else made + bias.reshape(1, -1, *(1 for _ in out))


def _convolution_gradient(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    if transposed:
        raise NotKnown("is transposed, which is not known here")
    frame = Frame.of(tuple(weight.shape[2:]), stride, padding, dilation)
    g = _grouped(grad, groups, weight.shape[0])
    inner = prod(frame.kernel) * x.shape[1]
    of_x: torch.Tensor | None
    of_weight: torch.Tensor | None
    of_bias: torch.Tensor | None
    of_x = of_weight = of_bias = None
    if wanted[0]:
        w = weight.reshape(1, groups, weight.shape[0] // groups, -1)
        back = (w.transpose(-2, -1) @ g).reshape(*x.shape[:2], prod(frame.kernel), *grad.shape[2:])
        of_x = fold(back, frame, tuple(x.shape[2:]))
    if wanted[1]:
        taken = windows(x, frame)
        if frame.tiles(tuple(x.shape[2:])):
            of_weight = (g @ _grouped(taken, groups, inner).transpose(-2, -1)).sum(0).reshape(weight.shape)
        else:  # place by place: what lies outside is another part of the outputs for each
            rows = [_grouped(taken[:, :, k], groups, x.shape[1]) for k in range(taken.shape[2])]
            of_weight = torch.stack([(g @ row.transpose(-2, -1)).sum(0) for row in rows], -1).reshape(weight.shape)
    if wanted[2]:
        of_bias = grad.sum([0, *range(2, grad.dim())])
    return of_x, of_weight, of_bias


# ---------------------------------------------------------------------------- pools


def _batched(x: torch.Tensor, dims: int) -> torch.Tensor:
    return x if x.dim() == dims + 2 else x.unsqueeze(0)


def _flat_places(frame: Frame, size: Sequence[int]) -> torch.Tensor:
    """(K, outputs ..): the position, row-major, that a place of a window reads."""
    total = torch.zeros(1, dtype=torch.int64)
    many, out = len(size), frame.outputs(size)
    for d, n in enumerate(size):
        shape = [1] * (2 * many)
        shape[d] = frame.kernel[d]
        inside = (torch.arange(frame.kernel[d]) * frame.dilation[d]).reshape(shape)
        shape[d], shape[many + d] = 1, out[d]
        total = total * n + inside + (torch.arange(out[d]) * frame.stride[d] - frame.padding[d]).reshape(shape)
    return total.expand(*frame.kernel, *out).reshape(prod(frame.kernel), *out)


def _greatest(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The greatest of every window, and the first position where it stands."""
    if ceil_mode:
        raise NotKnown("has windows that are cut off (ceil_mode), which is not known here")
    frame = Frame.of(tuple(kernel) * (2 // len(kernel)), stride, padding, dilation)
    wide = _batched(x, 2)
    size = tuple(wide.shape[2:])
    taken, at = windows(wide, frame, float("-inf")), _flat_places(frame, size)
    most = taken.amax(2)
    free = torch.ones_like(most)
    where = torch.zeros_like(most)
    for k in range(taken.shape[2]):
        hit = (taken[:, :, k] >= most).to(most.dtype)
        where = where + free * hit * at[k].to(most.dtype)
        free = free * (1 - hit)
    where = where.to(torch.int64)
    return most.reshape(*x.shape[:-2], *most.shape[2:]), where.reshape(*x.shape[:-2], *most.shape[2:])


def _greatest_gradient(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: torch.Tensor,
) -> torch.Tensor:
    if ceil_mode:
        raise NotKnown("has windows that are cut off (ceil_mode), which is not known here")
    frame = Frame.of(tuple(kernel) * (2 // len(kernel)), stride, padding, dilation)
    size = tuple(x.shape[-2:])
    hit = _batched(indices, 2).unsqueeze(2) == _flat_places(frame, size)
    spread = hit.to(grad.dtype) * _batched(grad, 2).unsqueeze(2)
    return fold(spread, frame, size).reshape(x.shape)


def _counts(frame: Frame, size: Sequence[int], include_pad: bool, divisor: int | None) -> torch.Tensor | int:
    """What sums of windows are divided by."""
    if divisor:
        return divisor
    if include_pad or not any(frame.padding):
        return prod(frame.kernel)
    return windows(torch.ones(1, 1, *size), frame).sum(2)


def _mean(
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> torch.Tensor:
    if ceil_mode:
        raise NotKnown("has windows that are cut off (ceil_mode), which is not known here")
    frame = Frame.of(tuple(kernel) * (2 // len(kernel)), stride, padding)
    wide = _batched(x, 2)
    made = windows(wide, frame).sum(2) / _counts(frame, tuple(wide.shape[2:]), count_include_pad, divisor_override)
    return made.reshape(*x.shape[:-2], *made.shape[2:])


def _mean_gradient(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> torch.Tensor:
    if ceil_mode:
        raise NotKnown("has windows that are cut off (ceil_mode), which is not known here")
    frame = Frame.of(tuple(kernel) * (2 // len(kernel)), stride, padding)
    size = tuple(x.shape[-2:])
    share = _batched(grad, 2) / _counts(frame, size, count_include_pad, divisor_override)
    spread = share.unsqueeze(2).expand(*share.shape[:2], prod(frame.kernel), *share.shape[2:])
    return fold(spread, frame, size).reshape(x.shape)


# ---------------------------------------------------------------------------- bags, counts, groups of rows


def _sizes(offsets: torch.Tensor, many: int, last: bool) -> list[int]:
    """Rows of every bag: positions where bags begin must be constants (`int` of an element is seen, `tolist` not)."""
    firsts = [int(n) for n in offsets]
    ends = firsts[1:] if last else [*firsts[1:], many]
    return [b - a for a, b in zip(firsts, ends, strict=False)]


def _bags(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, ...]:
    """Sums (mode 0) or means (mode 1) of rows, bag by bag."""
    sizes = _sizes(offsets, indices.numel(), include_last_offset)
    if mode > 1 or per_sample_weights is not None or padding_idx >= 0 or scale_grad_by_freq or min(sizes) < 1:
        raise NotKnown("has weights, padding, empty bags or greatest elements, which are not known here")
    rows = torch.nn.functional.embedding(indices, weight)
    if len(set(sizes)) == 1:
        total = rows.reshape(len(sizes), sizes[0], -1).sum(1)
    else:
        total = torch.stack([part.sum(0) for part in rows.split(sizes)])
    counts = torch.tensor(sizes)
    if mode == 1:
        total = total / counts.to(total.dtype).unsqueeze(1)
    of = torch.repeat_interleave(torch.arange(len(sizes)), counts, output_size=indices.numel())
    return total, of, counts, torch.zeros(len(sizes), dtype=torch.int64)


def _bags_gradient(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    if mode > 1 or per_sample_weights is not None or padding_idx >= 0 or scale_grad_by_freq:
        raise NotKnown("has weights, padding or greatest elements, which are not known here")
    if mode == 1:
        grad = grad / bag_size.to(grad.dtype).unsqueeze(1)
    sizes = [int(n) for n in bag_size]
    if len(set(sizes)) == 1:
        rows = grad.unsqueeze(1).expand(len(sizes), sizes[0], -1).reshape(indices.numel(), -1)
    else:
        rows = torch.cat([g.expand(n, -1) for g, n in zip(grad.split(1), sizes, strict=True)])
    return grad.new_zeros((num_weights, grad.shape[1])).index_add(0, indices, rows)


def _bags_gradient_of_all(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    if sparse:
        raise NotKnown("makes a sparse gradient, which is not known here")
    rest = (num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx)
    return _bags_gradient(grad, indices, offset2bag, bag_size, maximum_indices, *rest)


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


WINDOWS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_gradient,
    "aten::max_pool2d_with_indices": _greatest,
    "aten::max_pool2d_with_indices_backward": _greatest_gradient,
    "aten::avg_pool2d": _mean,
    "aten::avg_pool2d_backward": _mean_gradient,
    "aten::_embedding_bag": _bags,
    "aten::_embedding_bag_forward_only": _bags,
    "aten::_embedding_bag_backward": _bags_gradient_of_all,
    "aten::_embedding_bag_dense_backward": _bags_gradient,
    "aten::bincount": _counted_numbers,
    "aten::histc": _histogram,
    "aten::_grouped_mm": _products_of_groups,
}
"""By name of PyTorch."""
