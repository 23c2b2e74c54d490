"""Two stages that send micro-batches, forward and backward: `wrong` adds up gradients of means in place of their mean.

shardproof equal examples/equal/pipeline.py:single examples/equal/pipeline.py:parallel --ranks 2

Schedules of `torch.distributed.pipelining` are refused: before they begin they read a number that ranks have summed.
"""

import torch
import torch.distributed as dist
from torch import nn

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(4, 8, generator=GENERATOR), torch.randn(4, 8, generator=GENERATOR)
MICRO = 2


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 8)


def single():
    first, last = net()

    def f(x, y):
        ((last(first(x)) - y) ** 2).mean().backward()
        return {f"{a}.{n}": p.grad for a, m in (("first", first), ("last", last)) for n, p in m.named_parameters()}

    return f, (X, Y)


def _stage(rank, share):
    name, model = list(zip(("first", "last"), net(), strict=True))[rank]

    def f(x, y):
        rows, held = len(X) // MICRO, []
        for k in range(MICRO):
            if rank == 0:
                held.append(model(x[k * rows : k * rows + rows]))
                dist.send(held[-1].detach(), 1, tag=k)
            else:
                given = torch.empty(rows, 8)
                dist.recv(given, 0, tag=k)
                given.requires_grad_(True)
                (((model(given) - y[k * rows : k * rows + rows]) ** 2).mean() * share).backward()
                held.append(given.grad)
        for k in range(MICRO):
            if rank == 1:
                dist.send(held[k], 0, tag=MICRO + k)
            else:
                grad = torch.empty_like(held[k])
                dist.recv(grad, 1, tag=MICRO + k)
                held[k].backward(grad)
        return {f"{name}.{n}": p.grad for n, p in model.named_parameters()}

    return f, (X, Y)


def parallel(rank, ranks):
    return _stage(rank, 1 / MICRO)


def wrong(rank, ranks):
    return _stage(rank, 1.0)
