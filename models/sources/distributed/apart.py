"""Takes operators apart into those that are known: what FSDP2 copies into and out of the tensors that it sends, lists
of tensors, products, logarithms of sums of exponentials, and attention as one operator with its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from math import prod
from typing import Any, Final

import torch

from ...keywords import keywords_of
from .bags import BAGS
from .views import positive
from .windows import WINDOWS

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


def _norms(tensors: Tensors, ord: float = 2, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    return [torch.linalg.vector_norm(t, ord, dtype=dtype) for t in tensors]


def _each(name: str) -> Callable[..., None]:
    """In every tensor of a list, with one operand for all or one for each."""

    def write(tensors: Tensors, other: Any, **more: Any) -> None:
        others = other if isinstance(other, list | tuple) else [other] * len(tensors)
        for tensor, one in zip(tensors, others, strict=True):
            getattr(tensor, name)(one, **more)

    return write


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


def _roots(q: torch.Tensor, scale: float | None) -> tuple[float, float]:
    """What queries and keys are multiplied with that their product be scaled."""
    size = float(q.shape[-1] ** -0.5 if scale is None else scale)
    root = abs(size) ** 0.5
    return (-root if size < 0 else root), root


def _scores(
    q: torch.Tensor, k: torch.Tensor, causal: bool, mask: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    """As PyTorch's function of several operators makes them, so that programs of either are compared term by term: both
    factors scaled, and a mask that is added.
    """
    left, right = _roots(q, scale)
    found = (q * left) @ (k.transpose(-2, -1) * right)
    if causal:
        above = torch.ones(found.shape[-2:], dtype=torch.bool).tril().logical_not()
        found = found + torch.zeros(found.shape[-2:]).to(found.dtype).masked_fill(above, float("-inf"))
    return found if mask is None else found + mask


def _per_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values of groups of heads (grouped queries), each once for every head of its group."""
    groups, (length, size) = x.shape[-3], x.shape[-2:]
    if groups == heads:
        return x
    shape = (*x.shape[:-3], groups, heads // groups, length, size)
    return x.unsqueeze(-3).expand(shape).reshape(*x.shape[:-3], heads, length, size)


def _per_group(x: torch.Tensor, groups: int) -> torch.Tensor:
    """The gradient of such keys or values: the sum over the heads of a group."""
    heads = x.shape[-3]
    return x if groups == heads else x.unflatten(-3, (groups, heads // groups)).sum(-3)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """What is attended to, and log sum exp of the scores."""
    if dropout:
        return NotImplemented
    k, v = _per_head(k, q.shape[-3]), _per_head(v, q.shape[-3])
    scores = _scores(q, k, causal, attn_mask, scale)
    greatest = scores.amax(-1, keepdim=True)
    by_parts = torch.ops.aten._scaled_dot_product_attention_math
    out = by_parts(q, k, v, attn_mask, 0.0, causal, None, scale=scale)[0]
    return out, (scores - greatest).exp().sum(-1).log() + greatest.squeeze(-1)


@dataclass(frozen=True, eq=False)
class AttentionGradient:
    """What PyTorch's operator takes."""

    grad: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    logsumexp: torch.Tensor
    dropout: float
    causal: bool
    _: KW_ONLY
    attn_mask: torch.Tensor | None = None
    scale: float | None = None


@keywords_of(AttentionGradient)
def _attention_gradient(of: AttentionGradient) -> Any:
    """P = exp(scores - log sum exp), dS = P (dO V' - sum of dO O); those that are passed in, whoever made them."""
    if of.dropout:
        return NotImplemented
    grad, q, k, v = of.grad, of.q, of.k, of.v
    groups, heads = k.shape[-3], q.shape[-3]
    k, v = _per_head(k, heads), _per_head(v, heads)
    scores, (left, right) = _scores(q, k, of.causal, of.attn_mask, of.scale), _roots(q, of.scale)
    p = (scores - of.logsumexp.unsqueeze(-1)).exp()
    nothing = scores.eq(float("-inf")).all(-1, keepdim=True)  # rows that may attend to nothing
    p = torch.where(nothing, torch.zeros_like(p), p)
    inner = p * (grad @ v.transpose(-2, -1) - (grad * of.out).sum(-1, keepdim=True))
    of_k, of_v = inner.transpose(-2, -1) @ (q * left) * right, p.transpose(-2, -1) @ grad
    return inner @ (k * right) * left, _per_group(of_k, groups), _per_group(of_v, groups)


def _log_of_both(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """log(exp(a) + exp(b)), with the greater one taken out."""
    most = torch.maximum(a, b)
    return most + ((a - most).exp() + (b - most).exp()).log()


def _log_sigmoid(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """log(1 / (1 + exp(-x))); nothing is kept for its gradient."""
    return -_log_of_both(torch.zeros_like(x), -x), x.new_zeros(0)


def _log_sigmoid_gradient(grad: torch.Tensor, x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    return grad * (-x).sigmoid()


def _product(x: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    """The product along a dimension, or of all elements."""
    x = x if dtype is None else x.to(dtype)
    x, dim = (x.reshape(-1), 0) if dim is None else (x, dim)
    if not x.shape[dim]:
        return x.sum(dim, keepdim) + 1
    found, *rest = x.split(1, dim)
    for one in rest:
        found = found * one
    return found if keepdim else found.squeeze(dim)


def _products(x: torch.Tensor, dim: int, *, dtype: Any = None) -> torch.Tensor:
    """The products of all elements up to each, along a dimension."""
    x = x if dtype is None else x.to(dtype)
    found = list[torch.Tensor]()
    for one in x.split(1, dim) if x.dim() and x.shape[dim] else ():
        found.append(found[-1] * one if found else one)
    return torch.cat(found, dim) if found else x.clone()


PARTS: Final[Mapping[str, Callable[..., Any]]] = {
    **WINDOWS,
    **BAGS,
    "aten::prod": _product,
    "aten::prod.dim_int": _product,
    "aten::cumprod": _products,
    "aten::logaddexp": _log_of_both,
    "aten::log_sigmoid_forward": _log_sigmoid,
    "aten::log_sigmoid_backward": _log_sigmoid_gradient,
    "fsdp::all_gather_copy_in": _all_gather_copy_in,
    "fsdp::split_with_sizes_copy": _split_copy,
    "fsdp::chunk_cat": _chunk_cat,
    "aten::split_with_sizes_copy.out": _split_copy,
    "aten::_chunk_cat": _chunk_cat,
    "aten::_chunk_cat.out": _chunk_cat,
    "aten::_foreach_copy_": _copied,
    "aten::_foreach_norm.Scalar": _norms,
    **{
        f"aten::_foreach_{name}.{operands}": _each(name)
        for name in ("add_", "sub_", "mul_", "div_")
        for operands in ("Scalar", "List", "ScalarList", "Tensor")
    },
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_gradient,
}
"""By name, and by name and overload where there are several."""
