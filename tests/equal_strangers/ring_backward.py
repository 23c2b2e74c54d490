"""Ring attention whose gradient is written by hand: those of keys travel round the ring."""

import math

import torch
import torch.distributed as dist

S, D = 6, 4


def make():
    g = torch.Generator().manual_seed(2)
    return [torch.randn(S, D, generator=g) for _ in range(4)]


def single():
    q, k, v, t = make()

    def f(q, k, v, t):
        for a in (q, k, v):
            a.requires_grad_()
        y = (q @ k.t() / math.sqrt(D)).softmax(-1) @ v
        (y * t).sum().backward()
        return y, q.grad, k.grad, v.grad

    return f, (q, k, v, t)


def rotate(x):
    r, n = dist.get_rank(), dist.get_world_size()
    y = torch.empty_like(x)
    for w in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x.contiguous(), (r + 1) % n), dist.P2POp(dist.irecv, y, (r - 1) % n)]
    ):
        w.wait()
    return y


class Ring(torch.autograd.Function):
    bug = ""

    @staticmethod
    def forward(ctx, q, k, v, bug):
        n = dist.get_world_size()
        out, lse = 0, None
        kk, vv = k, v
        for i in range(n):
            s = q @ kk.t() / math.sqrt(D)
            b = s.logsumexp(-1, keepdim=True)
            o = (s - b).exp() @ vv
            if lse is None:
                out, lse = o, b
            else:
                out = out - torch.sigmoid(b - lse) * (out - o)
                lse = lse - torch.nn.functional.logsigmoid(lse - b)
            if i + 1 < n:
                kk, vv = rotate(kk), rotate(vv)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.bug = bug
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v, out, lse = ctx.saved_tensors
        n = dist.get_world_size()
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        delta = (g * out).sum(-1, keepdim=True)
        for i in range(n):
            p = (q @ k.t() / math.sqrt(D) - lse).exp()
            ds = p * (g @ v.t() - delta) / math.sqrt(D)
            dq = dq + ds @ k
            dk = dk + ds.t() @ q
            dv = dv + p.t() @ g
            k, v = rotate(k), rotate(v)
            if ctx.bug != "stay":
                dk, dv = rotate(dk), rotate(dv)
        return dq, dk, dv, None


def _d(rank, n, bug=""):
    c = S // n
    args = [t[rank * c : rank * c + c].clone() for t in make()]

    def f(q, k, v, t):
        for a in (q, k, v):
            a.requires_grad_()
        y = Ring.apply(q, k, v, bug)
        (y * t).sum().backward()
        return y.detach(), q.grad, k.grad, v.grad

    return f, tuple(args)


def right(r, n):
    return _d(r, n)


def wrong(r, n):
    return _d(r, n, "stay")
