"""A training step of FSDP2: `parallel` is right, `wrong` forgets to shard a layer, whose gradient nobody averages.

shardproof equal examples/equal/fsdp2.py:single examples/equal/fsdp2.py:parallel --ranks 2
"""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(4, 8, generator=GENERATOR), torch.randn(4, 8, generator=GENERATOR)


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def step(model, optimizer):
    def f(x, y):
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        return dict(model.named_parameters())

    return f


def single():
    model = net()
    return step(model, torch.optim.SGD(model.parameters(), lr=0.1)), (X, Y)


def _sharded(rank, ranks, layers):
    model = net()
    for k in layers:
        fully_shard(model[k])
    n = len(X) // ranks
    mine = slice(rank * n, rank * n + n)
    return step(model, torch.optim.SGD(model.parameters(), lr=0.1)), (X[mine].clone(), Y[mine].clone())


def parallel(rank, ranks):
    return _sharded(rank, ranks, (0, 2))


def wrong(rank, ranks):
    return _sharded(rank, ranks, (0,))
