"""Tensor parallelism by two autograd functions, as Megatron has them: `wrong` forgets the sum of the gradient.

shardproof equal examples/equal/megatron.py:single examples/equal/megatron.py:parallel --ranks 4 --grad
"""

import torch
import torch.distributed as dist

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(4, 8, generator=GENERATOR)
UP, DOWN = torch.randn(8, 16, generator=GENERATOR), torch.randn(16, 8, generator=GENERATOR)


class Copy(torch.autograd.Function):
    """What every rank reads whole: its gradient is the sum over ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Reduce(torch.autograd.Function):
    """The sum over ranks: its gradient is everybody's."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def single():
    up, down = UP.clone().requires_grad_(), DOWN.clone().requires_grad_()
    return lambda x: torch.relu(x @ up) @ down, (X.clone().requires_grad_(),)


def _shards(rank, ranks, copy):
    n = 16 // ranks
    mine = slice(rank * n, rank * n + n)
    up, down = UP[:, mine].clone().requires_grad_(), DOWN[mine].clone().requires_grad_()
    return lambda x: Reduce.apply(torch.relu(copy(x) @ up) @ down), (X.clone().requires_grad_(),)


def parallel(rank, ranks):
    return _shards(rank, ranks, Copy.apply)


def wrong(rank, ranks):
    return _shards(rank, ranks, lambda x: x)
