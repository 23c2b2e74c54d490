"""Computes a step as its plan says: element types, recomputation, attention kernels; it is copied into
exported files.

    precision       master: weights kept in float32 and read in the half type, which all else then is but for losses;
                    mixed: every function in the type that torch.autocast gives it, by name, the same on every device.
                    Gradients of weights return to float32 before they are summed over ranks, or (`reduce`) behind it
    recomputation   a block's forward runs again in the backward pass (torch.utils.checkpoint), reshardings included
    attention       `scaled_dot_product_attention` by a kernel that stores no scores, or by the one that does

What the module does otherwise is an error, not a difference: types of parameters and of results of modules, calls of
attention, passes per step.

Nothing here is imported from shardproof.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

HALVES = """linear matmul __matmul__ __rmatmul__ mm bmm mv addmm addmv addbmm baddbmm addr einsum bilinear tensordot
multi_dot chain_matmul prelu scaled_dot_product_attention _grouped_mm grouped_mm conv1d conv2d conv3d conv_transpose1d
conv_transpose2d conv_transpose3d"""

FLOATS = """softmax log_softmax softmin layer_norm rms_norm group_norm instance_norm normalize norm vector_norm exp
expm1 log log10 log2 log1p pow __pow__ __rpow__ float_power rsqrt reciprocal __rtruediv__ softplus sum mean prod
cumsum cumprod logsumexp logcumsumexp var std acos asin cosh sinh tan erfinv cdist dist pdist renorm kl_div
cosine_similarity mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits
nll_loss cross_entropy cosine_embedding_loss triplet_margin_loss"""

LOSSES = "log_softmax mse_loss nll_loss cross_entropy"
"""What begins a loss: float32 in every precision."""

INSIDE = ("multi_head_attention_forward", "rnn_tanh", "rnn_relu", "lstm", "gru")
"""Functions made of others: under mixed precision torch.autocast itself chooses the types inside."""

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]


class Program:
    """How a step is computed; `None` stands for a file of layouts alone, or a plan without training.

    `kernels`, `counts`, `passes`: calls of attention in the pass that runs, numbers of labels its losses divide by, and
    backward passes since the last step.  `raises`: whether a pass that calls attention otherwise is an error.
    """

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.plan = plan
        types = plan["precision"]
        self.half: torch.dtype | None = None if types is None else getattr(torch, types["half"])
        self.mixed = types is not None and types["autocast"]
        self.narrow_sums = types is not None and types["reduce"] != "float32"
        self.once = bool(plan["once"])
        self.raises = True
        self.kernels = 0
        self.counts: list[torch.Tensor] = []
        self.passes = 0
        self._halves, self._floats = frozenset(HALVES.split()), frozenset(FLOATS.split())
        self._losses = frozenset(LOSSES.split())

    def operands(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Arguments of a function in the types that the plan reads them in."""
        half = self.half
        if half is None or name in ("cross_entropy", "nll_loss"):  # computed in float32 where the logits lie
            return args, kwargs
        if self.mixed:
            to = half if name in self._halves else torch.float32 if name in self._floats else None
        else:
            to = torch.float32 if name in self._losses else None

        def cast(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or x.dtype not in (torch.float32, half):
                return x
            if isinstance(x, nn.Parameter) and not self.mixed:
                return self.read(x, None) if x.dtype == torch.float32 else x
            if to is None or x.dtype == to:
                return x
            return self.read(x, None) if isinstance(x, nn.Parameter) else x.to(to)

        changed: tuple[Any, Any] = tree_map(cast, (args, kwargs))
        return changed

    def read(self, weight: Any, wanted: Sequence[Any] | None, dtype: torch.dtype | None = None) -> Any:
        """A weight as an operator takes it: in the half type (or `dtype`), in the layout `wanted` (None: its own)."""
        dtype = dtype or self.half or weight.dtype
        if not isinstance(weight, DTensor):
            return weight.to(dtype)
        return _Read.apply(weight, tuple(wanted or weight.placements), dtype, self.narrow_sums, self.once)

    @contextlib.contextmanager
    def attention(self) -> Iterator[None]:
        """Around a call of attention."""
        stored = not self.plan["attention"]["kernels"]
        self.kernels += 1
        try:
            with sdpa_kernel([SDPBackend.MATH] if stored else KERNELS):
                yield
        except RuntimeError as error:
            if "kernel" not in str(error).lower():
                raise
            raise RuntimeError(
                f"the plan computes attention in one kernel that stores no scores, and PyTorch has none for this call "
                f"({error}); plan with --attention matrices, or change the call (types, masks, dropout)"
            ) from error

    def inside(self, name: str, device: str) -> Any:
        """Around a function that is made of others."""
        if self.half is None or not self.mixed or name not in INSIDE:
            return contextlib.nullcontext()
        return torch.autocast(device, self.half)

    def begins(self) -> None:
        """A forward pass begins."""
        self.kernels, self.counts = 0, []

    def ends(self) -> None:
        """A forward pass has ended.  Raises RuntimeError where it called attention less often than planned."""
        planned = self.plan["attention"]["kernels"]
        if self.raises and self.kernels < planned:
            raise RuntimeError(
                f"the plan computes attention {planned} times in one kernel that stores no scores; the module called "
                f"scaled_dot_product_attention {self.kernels} times: call it, or plan with --attention matrices"
            )

    def steps(self) -> None:
        """An optimizer's step.  Raises RuntimeError where the passes before it are not those of the plan."""
        planned, passes = self.plan["micro_batches"], self.passes
        self.passes = 0
        if passes != planned:
            raise RuntimeError(
                f"the plan computes a step in {planned} micro-batch{'es' * (planned > 1)}, and {passes} backward "
                f"passes came before this step: call train_step, or forward and backward {planned} times"
            )

    def result(self, name: str, value: Any, held: Mapping[str, Any] | None) -> None:
        """Raises RuntimeError where a module's result has another type than in the plan."""
        if held is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return
        planned = held.get("dtype")
        if planned is not None and value.dtype != getattr(torch, planned):
            own = "that of the model" if self.plan["precision"] is None else self.plan["precision"]["name"]
            raise RuntimeError(
                f"module {name!r} gives {value.dtype}, in the plan {planned}: the job does not compute in the "
                f"precision that was planned ({own}); take out "
                "casts and torch.autocast around the model, or plan with the --precision that runs"
            )


class _Read(torch.autograd.Function):  # type: ignore[misc]
    """A weight read in another type or layout.  Its gradient returns to the weight's type, and to its layout unless it
    is brought there once a step; sums that the weight's layout leaves open stay open until the gradient is stored.
    """

    @staticmethod
    def forward(ctx: Any, x: DTensor, wanted: tuple[Any, ...], dtype: torch.dtype, narrow: bool, once: bool) -> Any:
        ctx.mesh, ctx.kept, ctx.dtype, ctx.narrow, ctx.once = x.device_mesh, x.placements, x.dtype, narrow, once
        y = x.detach().to(dtype)
        return y.redistribute(x.device_mesh, wanted) if tuple(wanted) != tuple(x.placements) else y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if ctx.once:
            return grad.to(ctx.dtype), None, None, None, None
        grad = grad if ctx.narrow else grad.to(ctx.dtype)
        open_ = [
            g if g.is_partial() and k.is_replicate() and not ctx.narrow else k
            for g, k in zip(grad.placements, ctx.kept, strict=True)
        ]
        if tuple(open_) != tuple(grad.placements):
            grad = grad.redistribute(ctx.mesh, open_)
        return grad.to(ctx.dtype), None, None, None, None


def check_parameters(program: Mapping[str, Any], module: nn.Module) -> None:
    """Types of parameters are those of the plan; buffers, and parameters that are not trained, get them.  Raises
    ValueError for a trained parameter of another type.
    """
    for name, parameter in module.named_parameters(remove_duplicate=False):
        planned = program["dtypes"].get(name)
        if planned is None or parameter.dtype == getattr(torch, planned):
            continue
        if parameter.requires_grad or not parameter.is_floating_point():
            raise ValueError(
                f"parameter {name!r} is {parameter.dtype}, in the plan {planned}; the plan's casts are made when it is "
                f"read: hand over the module in {planned}, or plan it as it is"
            )
        parameter.data = parameter.data.to(getattr(torch, planned))
    for name, buffer in module.named_buffers(remove_duplicate=False):
        planned = program["dtypes"].get(name)
        if planned is not None and buffer.is_floating_point() and buffer.dtype != getattr(torch, planned):
            owner, _, key = name.rpartition(".")
            setattr(module.get_submodule(owner), key, buffer.to(getattr(torch, planned)))


def recompute(part: nn.Module, again: Callable[[], Any]) -> None:
    """The forward of `part` runs again in the backward pass, inside of what `again` gives."""
    from torch.utils.checkpoint import checkpoint

    inner = part.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return inner(*args, **kwargs)
        both = lambda: (contextlib.nullcontext(), again())
        return checkpoint(inner, *args, use_reentrant=False, context_fn=both, **kwargs)

    part.forward = forward


def micro_parts(
    program: Mapping[str, Any], given: Mapping[str, Any], target: Any
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Arguments and target of every micro-batch: equal parts of the first dimension of what the plan cuts."""
    count = program["micro_batches"]
    loss = program["loss"] or {}
    if count == 1:
        yield dict(given), target
        return
    missing = [name for name in program["cut"] if name not in given and name != loss.get("target")]
    if missing:
        raise ValueError(f"the plan cuts input {missing[0]!r} into micro-batches, and the module has no such argument")

    def part(x: Any, i: int, name: str) -> Any:
        if not isinstance(x, torch.Tensor) or not x.ndim:
            return x
        if x.shape[0] % count:
            raise ValueError(f"{name} has a batch of {x.shape[0]}, which {count} micro-batches do not divide")
        return x.chunk(count)[i]

    for i in range(count):
        own = {k: part(v, i, f"input {k!r}") if k in program["cut"] else v for k, v in given.items()}
        yield own, part(target, i, "the target") if loss.get("target") in program["cut"] else target


def returned_loss(result: Any) -> Any:
    """The loss among what a model returns."""
    from torch.utils._pytree import tree_leaves

    named = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    if isinstance(named, torch.Tensor):
        return named
    scalars = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.ndim == 0 and x.is_floating_point()]
    if len(scalars) != 1:
        raise ValueError(
            f"the model returns {len(scalars)} scalars, none called loss; the plan minimises what it returns"
        )
    return scalars[0]
