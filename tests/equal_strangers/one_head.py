"""One head a rank, without a dimension of heads; queries are normed over all heads together, as OLMo 2 does."""

import torch
import torch.distributed as dist

G = torch.Generator().manual_seed(4)
X, W, K = (torch.randn(*shape, generator=G) * 0.5 for shape in ((5, 4), (8, 4), (8, 4)))
GAIN = 1 + torch.randn(8, generator=G) * 0.5
ROW = 4


def leaves(*tensors):
    return tuple(t.clone().requires_grad_() for t in tensors)


def single():
    def f(x, w, g, k):
        q = x @ w.t()
        q = q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + 1e-6) * g
        q, t = (u.view(5, -1, ROW).transpose(0, 1) for u in (q, x @ k.t()))
        return ((q @ t.transpose(1, 2)).softmax(-1) @ t).transpose(0, 1).reshape(5, -1)

    return f, leaves(X, W, GAIN, K)


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class Once(Both):
    @staticmethod
    def backward(ctx, g):
        return g


def job(rank, ranks, reduce, size):
    mine = slice(ROW * rank, ROW * rank + ROW)

    def f(x, w, g, k):
        x = Copy.apply(x)
        q = x @ w.t()
        q = q * torch.rsqrt(reduce(q.pow(2).sum(-1, keepdim=True)) / size + 1e-6) * g
        t = x @ k.t()
        return (q @ t.t()).softmax(-1) @ t

    return f, leaves(X, W[mine], GAIN[mine], K[mine])


def right(rank, ranks):
    return job(rank, ranks, Both.apply, 8)


def wrong_local(rank, ranks):
    return job(rank, ranks, lambda total: total, ROW)


def wrong_backward(rank, ranks):
    return job(rank, ranks, Once.apply, 8)
