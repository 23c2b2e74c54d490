"""FSDP2: gradients of micro-batches clipped by their norm, AdamW."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.n, s.a, s.b = nn.RMSNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(s, x):
        return x + s.b(nn.functional.silu(s.a(s.n(x))))


def make():
    torch.manual_seed(0)
    m = nn.Sequential(Block(6), Block(6), nn.Linear(6, 3))
    return m, torch.randn(8, 6), torch.randn(8, 3)


def single():
    m, x, y = make()
    opt = torch.optim.AdamW(m.parameters(), lr=1e-2)

    def f(x, y):
        ((m(x) - y) ** 2).mean().backward()
        nn.utils.clip_grad_norm_(m.parameters(), 0.1)
        opt.step()
        return dict(m.named_parameters())

    return f, (x, y)


def _d(r, n, bug=""):
    m, x, y = make()
    for b in m[:2]:
        fully_shard(b)
    fully_shard(m)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-2)
    k = 8 // n

    def f(x, y):
        mb = k // 2
        for i in range(2):
            m.set_requires_gradient_sync(i == 1)
            loss = ((m(x[i * mb : i * mb + mb]) - y[i * mb : i * mb + mb]) ** 2).mean()
            (loss / (2 if bug != "acc" else 1)).backward()
        nn.utils.clip_grad_norm_(m.parameters(), 0.1 if bug != "clip" else 0.2)
        opt.step()
        return {a: p.full_tensor() for a, p in m.named_parameters()}

    return f, (x[r * k : r * k + k].clone(), y[r * k : r * k + k].clone())


def right(r, n):
    return _d(r, n)


def wrong_clip(r, n):
    return _d(r, n, "clip")
