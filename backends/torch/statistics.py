"""Computes softmax, normalisations, their gradients and sums with PyTorch.

Where the box holds all of what a statistic is over, PyTorch's own kernel takes it where it has one: softmax along one
axis, norms over the last dimensions, the gradient of batch norm.  Else

    mean = total(x) / n,   y = (x - mean) / sqrt(total((x - mean)^2) / n + epsilon),      total: a sum over `over`

with `total` all-reduced where ranks share it, in the same order as `kernels.reductions` has it: the ranks of a group
may mix both (one whose box is empty computes nothing here).  Batch norm takes its two sums so, and y in one pass from
the kernel that PyTorch infers with: 0.5 ms for 8 x 256 x 28 x 28 numbers, where the kernel that it trains with takes
2.1.  Mean and deviation are kept for the operators that share them (`kernels.moments`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
import torch.nn.functional as F

from ...models.program.index import Combine
from ..kernels.blocks import Array, align, lengths, spread, view
from ..kernels.elementwise import number
from ..kernels.moments import Moments, centres
from ..kernels.task import Task
from .arrays import are_real, array, tensor


def _operand(t: Task, j: int) -> torch.Tensor:
    return tensor(t.operand(j))


def _over(t: Task) -> tuple[int, ...]:
    return tuple(t.op.output.axes.index(a) for a in t.op.over)


def _lacks_reducer(t: Task) -> bool:
    """The box holds part of what is summed, and nobody adds the rest."""
    return t.collectives is None and t.moments is None and not t.whole


def _total(t: Task) -> Callable[[torch.Tensor], torch.Tensor]:
    """The sum over the `over` axes, which stay with length 1."""
    return lambda values: _totals(t, [values])[0]


def _totals(t: Task, several: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The sums of several, which travel together."""
    local = [values.expand(t.shape).sum(dim=_over(t), keepdim=True) for values in several]
    if t.collectives is None:
        return local
    parts = [spread(t.xp, array(a), tuple(a.shape)) for a in local]
    return [tensor(a) for a in t.collectives.all_reduce_together(parts, Combine.SUM)]


def normalise(t: Task) -> Array | None:
    """softmax, log_softmax, layer_norm and rms_norm."""
    if not are_real([b.array for b in t.operands]) or _lacks_reducer(t):
        return None
    if t.op.function in ("softmax", "log_softmax"):
        dims = _over(t)
        if t.collectives is not None or len(dims) != 1:
            return None
        x = _operand(t, 0).expand(t.shape)
        return array(torch.softmax(x, dims[0]) if t.op.function == "softmax" else torch.log_softmax(x, dims[0]))
    if t.op.function not in ("layer_norm", "rms_norm"):
        return None
    x = _operand(t, 0).expand(t.shape)
    weights = [_operand(t, j) for j in range(1, len(t.op.inputs))]
    found = _fused_norm(t, x, weights)
    if found is not None:
        return array(found)
    mean, inverse = _moments(t, x)
    if _is_batch_norm(t) and mean is not None and all(_along(w, (1,)) is not None for w in weights):
        return array(_scaled(x, mean, inverse, [w.reshape(-1) for w in weights]))
    y = x * inverse if mean is None else (x - mean).mul_(inverse)
    for weight, operation in zip(weights, (torch.mul, torch.add)):
        y = operation(y, weight, out=y)
    return array(y)


def _scaled(x: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """(x - mean) inverse [weight [+ bias]] per channel, in one pass: what PyTorch infers with."""
    given = [*weights, *(None,) * (2 - len(weights))]
    if len(weights) == 1:
        given[1] = torch.zeros_like(weights[0])
    spread = inverse.reshape(-1).pow(-2)
    return torch.native_batch_norm(x.contiguous(), *given, mean.reshape(-1), spread, False, 0.0, 0.0)[0]


def _moments(t: Task, x: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Mean (none of rms norms) and inverse deviation: kept, or computed and kept.  Two sums are four times as fast as
    `torch.var_mean`, and eight times as `torch.native_batch_norm`.
    """
    if (have := t.moments) is not None:
        return None if have.mean is None else tensor(have.mean), tensor(have.inverse)
    total, n = _total(t), prod(t.op.axis(a).extent for a in t.op.over)
    mean = total(x) / n if centres(t.op.function) else None
    squares = x * x if mean is None else (x - mean).square_()
    inverse = torch.rsqrt(total(squares) / n + number(t.op, "epsilon", 1e-5))
    t.keep(Moments(None if mean is None else array(mean), array(inverse)))
    return mean, inverse


def _fused_norm(t: Task, x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor | None:
    """PyTorch's kernel of norms over the last dimensions, whose moments are kept."""
    epsilon, dims, many = number(t.op, "epsilon", 1e-5), _over(t), len(t.shape)
    if not t.whole or sorted(dims) != list(range(many - len(dims), many)):
        return None
    flat = [_along(w, tuple(sorted(dims))) for w in weights]
    if any(f is None or f.shape != t.shape[many - len(dims) :] for f in flat):
        return None
    sizes = t.shape[many - len(dims) :]
    if t.op.function == "rms_norm":
        return F.rms_norm(x, sizes, *flat, eps=epsilon) if len(flat) < 2 else None
    y, mean, inverse = torch.native_layer_norm(x, sizes, *flat, *(None,) * (2 - len(flat)), epsilon)
    t.keep(Moments(array(mean), array(inverse)))
    return y


def _is_batch_norm(t: Task) -> bool:
    """Statistics over all dimensions but the second, of more than one number."""
    dims = _over(t)
    return len(t.shape) >= 3 and {*dims} == {*range(len(t.shape))} - {1} and prod(t.shape[d] for d in dims) > 1


def _along(values: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor | None:
    """A tensor that has length 1 but along these dimensions, in these alone; None for another one."""
    if any(n != 1 for d, n in enumerate(values.shape) if d not in dims):
        return None
    return values.reshape([values.shape[d] for d in dims]).contiguous()


def softmax_gradient(t: Task) -> Array | None:
    """Of softmax and log_softmax, from their results."""
    if not are_real([b.array for b in t.operands]) or _lacks_reducer(t):
        return None
    total, dims, logarithm = _total(t), _over(t), t.op.function == "log_softmax_gradient"
    g, y = _operand(t, 0).expand(t.shape), _operand(t, 1).expand(t.shape)
    if t.collectives is None and len(dims) == 1:
        backward = torch.ops.aten._log_softmax_backward_data if logarithm else torch.ops.aten._softmax_backward_data
        return array(backward(g, y, dims[0], g.dtype).contiguous())
    return array((g - torch.exp(y) * total(g)) if logarithm else y * (g - total(g * y)))


def norm_gradient(t: Task) -> Array | None:
    """Of layer_norm and rms_norm, of their first operand."""
    if not are_real([b.array for b in t.operands]) or _lacks_reducer(t):
        return None
    g, x = _operand(t, 0).expand(t.shape), _operand(t, 1).expand(t.shape)
    weight = _operand(t, 2) if len(t.op.inputs) > 2 else None
    mean, inverse = _moments(t, x)
    if t.whole and mean is not None:
        found = _fused_gradient(t, g, x, weight, mean, inverse)
        if found is not None:
            return array(found)
    n = prod(t.op.axis(a).extent for a in t.op.over)
    normal = x * inverse if mean is None else (x - mean).mul_(inverse)
    if weight is not None and all(weight.shape[d] == 1 for d in _over(t)):  # constant in the sums
        inverse = inverse * weight
    elif weight is not None:
        g = g * weight
    sums = _totals(t, [g * normal] if mean is None else [g, g * normal])
    normal.mul_(sums[-1] / -n).add_(g)
    return array((normal if mean is None else normal.sub_(sums[0] / n)).mul_(inverse))


def _fused_gradient(
    t: Task, g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, mean: torch.Tensor, inverse: torch.Tensor
) -> torch.Tensor | None:
    dims, many = _over(t), len(t.shape)
    kept = tuple(d for d in range(many) if d not in dims)
    batch = _is_batch_norm(t)
    if not batch and kept != tuple(range(many - len(dims))):
        return None
    flat = None if weight is None else _along(weight, kept if batch else tuple(sorted(dims)))
    if weight is not None and flat is None:
        return None
    only = [True, False, False]
    if batch:
        back = torch.ops.aten.native_batch_norm_backward
        found = mean.reshape(-1), inverse.reshape(-1)
        return back(g.contiguous(), x.contiguous(), flat, None, None, *found, True, 0.0, only)[0]
    sizes = [t.shape[d] for d in sorted(dims)]
    if flat is not None and [*flat.shape] != sizes:
        return None
    back = torch.ops.aten.native_layer_norm_backward
    return back(g.contiguous(), x.contiguous(), sizes, mean, inverse, flat, None, only)[0]


def axis_sum(t: Task) -> Array | None:
    """The sum over reduced axes, times `scale`."""
    if t.op.function != "sum" or not are_real([b.array for b in t.operands]):
        return None
    a, reduced = t.op.inputs[0], {x.name for x in t.op.reduction_axes}
    if not reduced or not reduced <= {*a.axes}:
        return None
    seen = view(t.xp, t.operands[0], a, t.box, t.graph.tensor(a.tensor).shape, 0, f"{t.place}, input 0")
    dims = [d for d, name in enumerate(a.axes) if name in reduced]
    total, scale = tensor(seen).sum(dim=dims), number(t.op, "scale", 1.0)
    if scale != 1.0:
        total *= scale
    kept = [name for name in a.axes if name not in reduced]
    return spread(t.xp, align(array(total), kept, t.op.output.axes), lengths(t.box, t.op.output.axes))
