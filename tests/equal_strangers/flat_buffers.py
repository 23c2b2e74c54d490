"""Parameters and gradients as views of flat buffers, AdamW over a rank's part of a flat copy (ZeRO-1)."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2, bias=False))


X, Y = (
    torch.randn(8, 3, generator=torch.Generator().manual_seed(1)),
    torch.randn(8, 2, generator=torch.Generator().manual_seed(2)),
)


def single():
    m = net()
    opt = torch.optim.AdamW(m.parameters(), lr=1e-2, weight_decay=0.1)

    def f(x, y):
        F.mse_loss(m(x), y).backward()
        opt.step()
        return {k: v.detach() for k, v in m.named_parameters()}

    return f, (X, Y)


def _d(r, n, bug=""):
    m = net()
    ps = list(m.parameters())
    total = sum(p.numel() for p in ps)
    c = -(-total // n)
    buf, gbuf = torch.zeros(c * n), torch.zeros(c * n)
    o = 0
    for p in ps:
        buf[o : o + p.numel()].copy_(p.data.view(-1))
        p.data = buf[o : o + p.numel()].view(p.shape)
        p.grad = gbuf[o : o + p.numel()].view(p.shape)
        o += p.numel()
    master = nn.Parameter(buf[r * c : (r + 1) * c].clone())
    opt = torch.optim.AdamW([master], lr=1e-2, weight_decay=0.1)
    k = 8 // n

    def f(x, y):
        F.mse_loss(m(x), y).backward()
        shard = torch.empty(c)
        dist.reduce_scatter_tensor(shard, gbuf, op=dist.ReduceOp.AVG if bug != "sum" else dist.ReduceOp.SUM)
        master.grad = shard
        opt.step()
        dist.all_gather_into_tensor(buf, master.data if bug != "old" else buf[r * c : (r + 1) * c])
        return {k: v.detach() for k, v in m.named_parameters()}

    return f, (X[r * k : r * k + k].clone(), Y[r * k : r * k + k].clone())


def right(r, n):
    return _d(r, n)


def wrong_old(r, n):
    return _d(r, n, "old")


def wrong_sum(r, n):
    return _d(r, n, "sum")
