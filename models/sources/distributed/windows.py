"""Takes convolutions and pools apart into slices, products and sums that are known.

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

from ...keywords import keywords_of


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


@dataclass(frozen=True, eq=False)
class Convolution:
    """What PyTorch's operator takes."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


def _frame(of: Convolution) -> Frame:
    if of.transposed:
        raise NotKnown("is transposed, which is not known here")
    return Frame.of(tuple(of.weight.shape[2:]), of.stride, of.padding, of.dilation)


@keywords_of(Convolution)
def _convolution(of: Convolution) -> torch.Tensor:
    x, weight, bias, groups = of.x, of.weight, of.bias, of.groups
    frame = _frame(of)
    out, taken = frame.outputs(tuple(x.shape[2:])), windows(x, frame)
    inner = prod(frame.kernel) * x.shape[1]
    w = weight.reshape(1, groups, weight.shape[0] // groups, -1)
    made = w @ _grouped(taken, groups, inner)
    made = made.reshape(x.shape[0], weight.shape[0], *out)
    return made if bias is None else made + bias.reshape(1, -1, *(1 for _ in out))


def _convolution_gradient(grad: torch.Tensor, *operands: Any) -> tuple[torch.Tensor | None, ...]:
    """`operands`: those of the convolution (sizes in place of its bias), and which gradients are wanted."""
    of, wanted = Convolution(*operands[:-1]), operands[-1]
    x, weight, groups, frame = of.x, of.weight, of.groups, _frame(of)
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


def _pool(
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    dilation: Sequence[int] = (1,),
) -> Frame:
    """The windows of a pool of two dimensions."""
    if ceil_mode:
        raise NotKnown("has windows that are cut off (ceil_mode), which is not known here")
    return Frame.of(tuple(kernel) * (2 // len(kernel)), stride, padding, dilation)


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
    frame = _pool(kernel, stride, padding, ceil_mode, dilation)
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
    frame = _pool(kernel, stride, padding, ceil_mode, dilation)
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
    frame = _pool(kernel, stride, padding, ceil_mode)
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
    frame = _pool(kernel, stride, padding, ceil_mode)
    size = tuple(x.shape[-2:])
    share = _batched(grad, 2) / _counts(frame, size, count_include_pad, divisor_override)
    spread = share.unsqueeze(2).expand(*share.shape[:2], prod(frame.kernel), *share.shape[2:])
    return fold(spread, frame, size).reshape(x.shape)


WINDOWS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_gradient,
    "aten::max_pool2d_with_indices": _greatest,
    "aten::max_pool2d_with_indices_backward": _greatest_gradient,
    "aten::avg_pool2d": _mean,
    "aten::avg_pool2d_backward": _mean_gradient,
}
"""By name of PyTorch."""
