"""Training steps that people write with FSDP2 and DistributedDataParallel, right and wrong, for `shardproof equal`.

`SINGLE`s train one model on the whole batch; ranks' programs train it on their own part.  `FAMILIES` says which belong
together: single, right ones, wrong ones, ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

Made = tuple[Callable[..., object], Any]
G = torch.Generator().manual_seed(5)
X, Y = torch.randn(8, 8, generator=G), torch.randn(8, 6, generator=G)
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Net(nn.Module):
    """Two layers whose tensors have other sizes, the first without a bias where it is asked for."""

    def __init__(self, hidden: int = 12) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, hidden)
        self.down = nn.Linear(hidden, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def net(hidden: int = 12) -> Net:
    """The same numbers on every rank."""
    torch.manual_seed(0)
    return Net(hidden)


def mine(t: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """A rank's part of the batch."""
    n = len(t) // ranks
    return t[rank * n : (rank + 1) * n].clone()


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((model(x) - y) ** 2).mean()


def trained(model: nn.Module, optimizer: Any, turns: int = 1, first: Any = nullcontext) -> Callable[..., object]:
    """One step on `turns` parts of the batch, all but the last inside `first`."""
    made = optimizer(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> Mapping[str, torch.Tensor]:
        for k, (a, b) in enumerate(zip(x.chunk(turns), y.chunk(turns), strict=True)):
            with first(k < turns - 1) if first is not nullcontext else nullcontext():
                (loss_of(model, a, b) / turns).backward()
        made.step()
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        return dict(inner.named_parameters())

    return step


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.125, momentum=0.5, weight_decay=0.25)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.125, betas=(0.5, 0.75), eps=0.0625, foreach=False)


def sgd_one() -> Made:
    return trained(net(), sgd), (X, Y)


def adam_one() -> Made:
    return trained(net(), adam), (X, Y)


def uneven_one() -> Made:
    return trained(net(11), sgd), (X, Y)


# ------------------------------------------------------------------ FSDP2


def sharded(model: Net, leave: str = "", **words: Any) -> Net:
    """Layers one by one, then the rest; `leave`: a layer that nobody shards."""
    for name in ("up", "down"):
        if name != leave:
            fully_shard(getattr(model, name), **words)
    left = {"ignored_params": set(getattr(model, leave).parameters())} if leave else {}
    return fully_shard(model, **words, **left)


def fsdp(rank: int, ranks: int, optimizer: Any = sgd, hidden: int = 12, **words: Any) -> Made:
    model = sharded(net(hidden), **words)
    return trained(model, optimizer), (mine(X, rank, ranks), mine(Y, rank, ranks))


def fsdp_adam(rank: int, ranks: int) -> Made:
    return fsdp(rank, ranks, adam)


def fsdp_kept(rank: int, ranks: int) -> Made:
    return fsdp(rank, ranks, reshard_after_forward=False)


def fsdp_bf16(rank: int, ranks: int) -> Made:
    return fsdp(rank, ranks, mp_policy=BF16)


def fsdp_fp16(rank: int, ranks: int) -> Made:
    """Gradients are divided before and after they are summed."""
    return fsdp(rank, ranks, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float16))


def fsdp_uneven(rank: int, ranks: int) -> Made:
    return fsdp(rank, ranks, hidden=11)


def fsdp_last_dimension(rank: int, ranks: int) -> Made:
    return fsdp(rank, ranks, shard_placement_fn=lambda p: Shard(p.dim() - 1))


def fsdp_partly(rank: int, ranks: int) -> Made:
    """Between forward and backward parameters are shared by two ranks."""
    return fsdp(rank, ranks, reshard_after_forward=2)


def hsdp(rank: int, ranks: int) -> Made:
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
    return fsdp(rank, ranks, mesh=mesh)


def fsdp_accumulated(rank: int, ranks: int, turns: int = 2) -> Made:
    """Gradients of the first part stay unreduced until the last."""
    model = sharded(net())

    class Unreduced:
        def __init__(self, early: bool) -> None:
            model.set_requires_gradient_sync(not early)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    return trained(model, sgd, turns, Unreduced), (mine(X, rank, ranks), mine(Y, rank, ranks))


def fsdp_factor(rank: int, ranks: int, factor: float = 0.0) -> Made:
    """Losses are divided by the ranks, gradients only summed."""
    model = sharded(net())
    for module in (model.up, model.down, model):
        module.set_gradient_divide_factor(factor or 1.0)
    made, inputs = trained(model, sgd), (mine(X, rank, ranks), mine(Y, rank, ranks))
    if factor:
        return made, inputs
    model.register_forward_hook(lambda m, a, out: out)
    optimizer = sgd(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> Mapping[str, torch.Tensor]:
        (loss_of(model, x, y) / ranks).backward()
        optimizer.step()
        return dict(model.named_parameters())

    return step, inputs


def fsdp_factor_wrong(rank: int, ranks: int) -> Made:
    """Gradients are summed, losses are means over a rank's own part."""
    return fsdp_factor(rank, ranks, 2.0 * ranks)


def fsdp_left_out(rank: int, ranks: int) -> Made:
    """A layer that nobody shards: its gradients are those of the rank's own part."""
    return fsdp(rank, ranks, leave="up")


def fsdp_never_reduced(rank: int, ranks: int) -> Made:
    """Gradients that are to be accumulated and never are reduced: parameters stay as they were."""
    model = sharded(net())
    model.set_requires_gradient_sync(False)
    return trained(model, sgd), (mine(X, rank, ranks), mine(Y, rank, ranks))


def hsdp_never_reduced(rank: int, ranks: int) -> Made:
    """Gradients are reduced among those that shard, never among those that replicate."""
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(net(), mesh=mesh)
    model.set_requires_all_reduce(False)
    return trained(model, sgd), (mine(X, rank, ranks), mine(Y, rank, ranks))


# ------------------------------------------------------------------ DistributedDataParallel


def ddp(rank: int, ranks: int, optimizer: Any = sgd, **words: Any) -> Made:
    model = DistributedDataParallel(net(), **words)
    return trained(model, optimizer), (mine(X, rank, ranks), mine(Y, rank, ranks))


def ddp_adam(rank: int, ranks: int) -> Made:
    return ddp(rank, ranks, adam)


def ddp_small_buckets(rank: int, ranks: int) -> Made:
    return ddp(rank, ranks, bucket_cap_mb=0.0002)


def ddp_views(rank: int, ranks: int) -> Made:
    return ddp(rank, ranks, gradient_as_bucket_view=True)


def ddp_static(rank: int, ranks: int) -> Made:
    return ddp(rank, ranks, static_graph=True)


def _accumulating(model: DistributedDataParallel) -> Callable[[bool], Any]:
    return lambda early: model.no_sync() if early else nullcontext()


def ddp_accumulated(rank: int, ranks: int) -> Made:
    model = DistributedDataParallel(net())
    return trained(model, sgd, 2, _accumulating(model)), (mine(X, rank, ranks), mine(Y, rank, ranks))


def ddp_accumulated_as_sum(rank: int, ranks: int) -> Made:
    """Parts of the batch are means of their own, and nobody divides by their number."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> Mapping[str, torch.Tensor]:
        with model.no_sync():
            loss_of(model, x[: len(x) // 2], y[: len(y) // 2]).backward()
        loss_of(model, x[len(x) // 2 :], y[len(y) // 2 :]).backward()
        optimizer.step()
        return dict(model.module.named_parameters())

    return step, (mine(X, rank, ranks), mine(Y, rank, ranks))


def ddp_last_unreduced(rank: int, ranks: int) -> Made:
    """The last part is inside `no_sync` too."""
    model = DistributedDataParallel(net())
    return trained(model, sgd, 2, lambda early: model.no_sync()), (mine(X, rank, ranks), mine(Y, rank, ranks))


def ddp_loss_averaged(rank: int, ranks: int) -> Made:
    """The loss is divided by the ranks, gradients are averaged again."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> Mapping[str, torch.Tensor]:
        (loss_of(model, x, y) / ranks).backward()
        optimizer.step()
        return dict(model.module.named_parameters())

    return step, (mine(X, rank, ranks), mine(Y, rank, ranks))


def ddp_inner(rank: int, ranks: int) -> Made:
    """Calls the module inside, past everything that reduces gradients."""
    model = DistributedDataParallel(net())
    return trained(model.module, sgd), (mine(X, rank, ranks), mine(Y, rank, ranks))


def ddp_hook(rank: int, ranks: int, divided: bool = True) -> Made:
    """A hook of one's own in place of the mean."""
    model = DistributedDataParallel(net())

    def summed(state, bucket):  # type: ignore[no-untyped-def] # PyTorch compares annotations with classes
        buffer = bucket.buffer().div_(ranks) if divided else bucket.buffer()
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, summed)
    return trained(model, sgd), (mine(X, rank, ranks), mine(Y, rank, ranks))


def ddp_hook_forgets(rank: int, ranks: int) -> Made:
    return ddp_hook(rank, ranks, divided=False)


# ------------------------------------------------------------------ small ones, of which mutants are made


def small() -> nn.Module:
    """One layer of 3 rows and a bias: 2 ranks pad both."""
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def small_one() -> Made:
    return trained(small(), sgd), (X[:4, :4], Y[:4, :3])


def small_fsdp(rank: int, ranks: int) -> Made:
    return trained(fully_shard(small()), sgd), (mine(X[:4, :4], rank, ranks), mine(Y[:4, :3], rank, ranks))


def small_ddp(rank: int, ranks: int) -> Made:
    model = DistributedDataParallel(small())
    inputs = mine(X[:4, :4], rank, ranks), mine(Y[:4, :3], rank, ranks)
    return trained(model, sgd, 2, _accumulating(model)), inputs


FAMILIES: tuple[tuple[Callable[[], Made], tuple[Any, ...], tuple[Any, ...], int], ...] = (
    (
        sgd_one,
        (fsdp, fsdp_kept, fsdp_bf16, fsdp_fp16, fsdp_accumulated, fsdp_factor, fsdp_last_dimension),
        (fsdp_left_out, fsdp_never_reduced, fsdp_factor_wrong),
        2,
    ),
    (sgd_one, (fsdp, fsdp_partly, fsdp_bf16, hsdp, fsdp_factor), (fsdp_factor_wrong, hsdp_never_reduced), 4),
    (adam_one, (fsdp_adam,), (), 2),
    (adam_one, (fsdp_adam,), (), 4),
    (uneven_one, (fsdp_uneven,), (), 2),
    (uneven_one, (fsdp_uneven,), (), 4),
    (
        sgd_one,
        (ddp, ddp_small_buckets, ddp_views, ddp_static, ddp_accumulated, ddp_hook),
        (ddp_accumulated_as_sum, ddp_last_unreduced, ddp_loss_averaged, ddp_inner, ddp_hook_forgets),
        2,
    ),
    (adam_one, (ddp_adam,), (), 4),
    (small_one, (small_fsdp, small_ddp), (), 2),
)
