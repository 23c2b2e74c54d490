"""Keys and values gathered from the heads and tails of ranks, and put in order by argsort."""

import math

import torch
import torch.distributed as dist

S, D = 16, 4
g = torch.Generator().manual_seed(0)
Q, K, V, T = (torch.randn(1, 2, S, D, generator=g) for _ in range(4))


def index(r, n):
    c = S // (2 * n)
    return torch.cat([torch.arange(r * c, (r + 1) * c), torch.arange((2 * n - r - 1) * c, (2 * n - r) * c)])


def attend(q, k, v, qpos):
    s = q @ k.transpose(-1, -2) / math.sqrt(D)
    m = torch.arange(S)[None] <= qpos[:, None]
    return torch.where(m, s, torch.tensor(float("-inf"))).softmax(-1) @ v


def single():
    q, k, v = (t.clone().requires_grad_() for t in (Q, K, V))

    def f(t):
        ((attend(q, k, v, torch.arange(S)) - t) ** 2).mean().backward()
        return q.grad, k.grad, v.grad

    return f, (T,)


class GatherKV(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, order):
        n = dist.get_world_size()
        ctx.order = order
        out = torch.empty(n, *x.shape)
        dist.all_gather_into_tensor(out, x.contiguous())
        full = torch.cat(list(out.unbind(0)), 2)
        return full[:, :, torch.argsort(order)]

    @staticmethod
    def backward(ctx, g):
        n = dist.get_world_size()
        g = g[:, :, ctx.order]
        parts = torch.stack(g.chunk(n, 2)).contiguous()
        out = torch.empty_like(parts[0])
        dist.reduce_scatter_tensor(out, parts)
        return out, None


def _d(r, n, bug=""):
    mine = index(r, n)
    order = torch.cat([index(i, n) for i in range(n)])
    q, k, v = (t[:, :, mine].clone().requires_grad_() for t in (Q, K, V))

    def f(t):
        o = attend(
            q,
            GatherKV.apply(k, order),
            GatherKV.apply(v, order if bug != "v" else torch.arange(S)),
            mine if bug != "pos" else torch.arange(r * 4, r * 4 + 4),
        )
        (((o - t) ** 2).mean() / (n if bug != "scale" else 1)).backward()
        return q.grad, k.grad, v.grad

    return f, (T[:, :, mine].clone(),)


def right(r, n):
    return _d(r, n)


def wrong_v(r, n):
    return _d(r, n, "v")


def wrong_pos(r, n):
    return _d(r, n, "pos")


def wrong_scale(r, n):
    return _d(r, n, "scale")
