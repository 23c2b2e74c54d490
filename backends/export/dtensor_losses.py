"""Computes losses on the parts that devices hold; it is copied into exported files.

Cross entropy of logits z[i, c] against labels y[i], where classes c lie over devices (vocabulary parallel), positions i
over others, or both:

    m[i]   = max over c of z[i, c]                     all-reduce of maxima, over the devices that cut classes
    s[i]   = sum over c of exp(z[i, c] - m[i])         all-reduce of sums
    p[i]   = z[i, y[i]] where the device has it        all-reduce of sums
    loss[i] = w[y[i]] (m[i] + log s[i] - p[i]),    with smoothing e also  e / C sum over c of w[c] (lse[i] - z[i, c])
    grad z[i, c] = softmax[i, c] (..) - w[y[i]] 1[c = y[i]] (..)      on every device of its own classes: nothing moves

Labels that are `ignore_index` count nothing; a mean divides by the weights of labels that count, over all positions.
What is kept for the gradient are the logits and one number per position.  Losses of one number per element (squared
error and its like) are computed where the elements lie, and summed.

Nothing here is imported from shardproof.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

ELEMENT_LOSSES = frozenset(
    ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"]
    + ["binary_cross_entropy", "binary_cross_entropy_with_logits"]
)
"""Losses of one number per element of operands of equal shapes."""


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """Losses of the positions of a rank, from its classes `first ..` of them; in float32 at least.

    `z`: logits, of which dimension `dim` are classes of this rank; `groups`: those over which classes are cut; `w`:
    weights of all classes.
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: torch.Tensor,
        y: torch.Tensor,
        w: torch.Tensor | None,
        dim: int,
        first: int,
        classes: int,
        ignored: int,
        smoothing: float,
        logs: bool,
        groups: Sequence[Any],
    ) -> torch.Tensor:
        wide = z.movedim(dim, 0).flatten(1) if z.ndim > 1 else z[:, None]
        wide = wide.to(torch.promote_types(z.dtype, torch.float32))
        own, counts = wide.shape[0], y != ignored
        at = torch.where(counts, y, 0) - first
        mine = (at >= 0) & (at < own) & counts
        at = at.clamp(0, max(own - 1, 0))
        weight = counts.to(wide.dtype) if w is None else torch.where(counts, w[torch.where(counts, y, 0)], 0)
        picked = torch.where(mine, wide.gather(0, at[None])[0], 0) if own else wide.new_zeros(y.shape)
        if logs:
            lse = torch.zeros_like(picked)
        else:
            top = wide.max(0).values if own else wide.new_full(y.shape, -torch.inf)
            _over(top, dist.ReduceOp.MAX, groups)
            lse = (wide - top).exp().sum(0)
            _over(lse, dist.ReduceOp.SUM, groups)
            lse = lse.log() + top
        share = wide.new_ones(own) if w is None else w[first : first + own]
        out = torch.zeros_like(picked)
        if smoothing:
            out = (share[:, None] * wide).sum(0)
            both = torch.stack([picked, out])
            _over(both, dist.ReduceOp.SUM, groups)
            picked, out = both
            total = float(classes) if w is None else w.sum()
            out = torch.where(counts, (smoothing / classes) * (total * lse - out), 0)
        else:
            _over(picked, dist.ReduceOp.SUM, groups)
        ctx.save_for_backward(z, lse, at, mine, weight, share)
        ctx.given = dim, classes, smoothing, logs
        ctx.total = float(classes) if w is None else w.sum()
        ctx.counts = counts
        return torch.where(counts, (1 - smoothing) * weight * (lse - picked), 0) + out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        z, lse, at, mine, weight, share = ctx.saved_tensors
        dim, classes, smoothing, logs = ctx.given
        first = z.movedim(dim, 0)
        shape, z = first.shape, first.flatten(1) if z.ndim > 1 else z[:, None]
        grad = torch.where(ctx.counts, grad, 0)
        if logs:
            out = torch.zeros(z.shape, dtype=grad.dtype, device=z.device)
        else:
            out = (z.to(lse.dtype) - lse).exp() * (
                grad * ((1 - smoothing) * weight + (smoothing / classes) * ctx.total if smoothing else weight)
            )
        if smoothing:
            out -= (smoothing / classes) * share[:, None] * grad
        if z.shape[0]:
            out.scatter_add_(0, at[None], torch.where(mine, -(1 - smoothing) * weight * grad, 0)[None])
        return out.to(z.dtype).reshape(shape).movedim(0, dim).contiguous(), *[None] * 9


def _over(x: torch.Tensor, op: Any, groups: Sequence[Any]) -> None:
    """All-reduce in place over every group in turn."""
    for group in groups:
        x.copy_(_reduced(x, "max" if op == dist.ReduceOp.MAX else "sum", group))


def _reduced(x: torch.Tensor, op: str, group: Any) -> torch.Tensor:
    from torch.distributed._functional_collectives import all_reduce

    return all_reduce(x, op, group)


def cross_entropy(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh, wide: bool
) -> tuple[Any, Any] | None:
    """(`cross_entropy` or `nll_loss` of a DTensor, number of labels that a mean divides by), or None where it is of
    shares instead of labels, or an old form.  `wide`: the result is float32 at least.
    """
    given = inspect.signature(func).bind(*args, **kwargs)
    given.apply_defaults()
    a = given.arguments
    x, y, w, reduction = a["input"], a["target"], a["weight"], a["reduction"]
    if a["size_average"] is not None or a["reduce"] is not None or not isinstance(x, DTensor):
        return None
    if y.is_floating_point() or y.ndim != max(x.ndim - 1, 0) or reduction not in ("mean", "sum", "none"):
        return None
    dim = 0 if x.ndim == 1 else 1
    if tuple(y.shape) != (*x.shape[:dim], *x.shape[dim + 1 :]):
        return None  # a mistake, which the function itself explains
    where = [p if isinstance(p, Shard) and type(p) is Shard else Replicate() for p in x.placements]
    where = _without_partial(x, where, mesh)
    x = x.redistribute(mesh, where)
    rows: list[Placement] = [
        Replicate() if isinstance(p, Replicate) or p.dim == dim else Shard(p.dim - (p.dim > dim)) for p in where
    ]
    y = y if isinstance(y, DTensor) else DTensor.from_local(y, mesh, [Replicate()] * mesh.ndim, run_check=False)
    whole = y.full_tensor()
    w = w.full_tensor() if isinstance(w, DTensor) else w
    labels = y.redistribute(mesh, rows).to_local()
    local = x.to_local(grad_placements=where)
    cut = [m for m, p in enumerate(where) if isinstance(p, Shard) and p.dim == dim]
    first = _first(x.shape[dim], local.shape[dim], cut, mesh)
    smoothing = float(a.get("label_smoothing", 0.0))
    shares = None if w is None else w.detach().to(torch.promote_types(x.dtype, torch.float32))
    loss = _CrossEntropy.apply(
        local,
        labels.flatten().long(),
        shares,
        dim,
        first,
        x.shape[dim],
        a["ignore_index"],
        smoothing,
        name == "nll_loss",
        [mesh.get_group(m) for m in cut],
    )
    out = DTensor.from_local(
        loss.reshape(labels.shape), mesh, rows, run_check=False, shape=whole.shape, stride=whole.contiguous().stride()
    )
    counts = whole != a["ignore_index"]
    n = counts.sum() if shares is None else torch.where(counts, shares[torch.where(counts, whole, 0)], 0).sum()
    if reduction != "none":
        out = out.sum().redistribute(mesh, [Replicate()] * mesh.ndim)
        out = out / n if reduction == "mean" else out
    return out if wide else out.to(x.dtype), n if reduction == "mean" else None


def _without_partial(x: DTensor, where: list[Placement], mesh: DeviceMesh) -> list[Placement]:
    """Sums that are not made yet are made where the parts of the first dimension then lie, if it can be cut."""
    out, parts = list(where), 1
    for p, size in zip(where, mesh.shape, strict=True):
        parts *= size if isinstance(p, Shard) and p.dim == 0 else 1
    for m, (p, size) in enumerate(zip(x.placements, mesh.shape, strict=True)):
        if isinstance(p, Partial) and x.shape[0] % (parts * size) == 0:
            out[m], parts = Shard(0), parts * size
    return out


def _first(extent: int, own: int, cut: Sequence[int], mesh: DeviceMesh) -> int:
    """The first class of this rank: mesh dimensions cut in turn what the device holds, as `torch.chunk`."""
    low, size = 0, extent
    at = mesh.get_coordinate() or []
    for m in cut:
        block = -(-size // mesh.shape[m])
        begin = min(at[m] * block, size)
        low, size = low + begin, min(block, size - begin)
    return low if own else 0


def element_loss(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh) -> Any:
    """A loss of one number per element, computed where the elements of the first operand lie; None where operands have
    other shapes, or elements have weights.
    """
    given = inspect.signature(func).bind(*args, **kwargs)
    given.apply_defaults()
    a = dict(given.arguments)
    x, y, reduction = a["input"], a["target"], a["reduction"]
    plain = all(a.get(k) is None for k in ("weight", "pos_weight", "size_average", "reduce"))
    if (
        not plain
        or not isinstance(y, torch.Tensor)
        or x.shape != y.shape
        or reduction not in ("mean", "sum", "none", "batchmean")
    ):
        return None
    first = x if isinstance(x, DTensor) else y
    where = [p if type(p) is Shard else Replicate() for p in first.placements]

    def local(v: torch.Tensor) -> torch.Tensor:
        v = v if isinstance(v, DTensor) else DTensor.from_local(v, mesh, [Replicate()] * mesh.ndim, run_check=False)
        return v.redistribute(mesh, where).to_local(grad_placements=where)

    own = func(**{**a, "input": local(x), "target": local(y), "reduction": "none"})
    out = DTensor.from_local(own, mesh, where, run_check=False, shape=first.shape, stride=first.stride())
    if reduction == "none":
        return out
    out = out.sum().redistribute(mesh, [Replicate()] * mesh.ndim)
    return out if reduction == "sum" else out / (first.shape[0] if reduction == "batchmean" else first.numel())
