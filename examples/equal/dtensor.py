"""A perceptron by DTensor, columns then rows: `single` is the model, `parallel` is right, `wrong` forgets a sum.

shardproof equal examples/equal/dtensor.py:single examples/equal/dtensor.py:parallel --ranks 4 --grad
"""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


def single():
    return net(), (X,)


def _parallel(ranks, **last):
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(**last)}
    mesh = init_device_mesh("cpu", (ranks,))
    return parallelize_module(net(), mesh, plan, src_data_rank=None), (X,)


def parallel(rank, ranks):
    return _parallel(ranks)


def wrong(rank, ranks):
    """Rows of the sum stay apart, and are taken for the whole."""
    model, inputs = _parallel(ranks, output_layouts=Shard(0))
    return lambda x: model(x).repeat(ranks, 1), inputs
