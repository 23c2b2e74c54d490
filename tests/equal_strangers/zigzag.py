"""Context parallelism in zigzag: a ring of keys, joined by logarithms of sums, rows that a block masks whole."""

import math

import torch
import torch.distributed as dist

S, H, D = 12, 1, 4


def rope(x, pos):
    inv = 1.0 / (10000.0 ** (torch.arange(0, D, 2).float() / D))
    a = pos[:, None].float() * inv
    c, s = torch.cat([a.cos(), a.cos()], -1), torch.cat([a.sin(), a.sin()], -1)
    r = torch.cat([-x[..., D // 2 :], x[..., : D // 2]], -1)
    return x * c + r * s


def make():
    g = torch.Generator().manual_seed(9)
    return [torch.randn(H, S, D, generator=g) for _ in range(3)]


def single():
    q, k, v = make()

    def f(q, k, v):
        p = torch.arange(S)
        q, k = rope(q, p), rope(k, p)
        s = q @ k.transpose(-1, -2) / math.sqrt(D)
        s = s.masked_fill(p[None] > p[:, None], float("-inf"))
        return s.softmax(-1) @ v

    return f, (q, k, v)


def block(q, k, v, qp, kp):
    s = q @ k.transpose(-1, -2) / math.sqrt(D)
    s = s.masked_fill(kp[None] > qp[:, None], float("-inf"))
    lse = torch.logsumexp(s, -1, keepdim=True)
    safe = torch.where(lse == float("-inf"), torch.zeros_like(lse), lse)
    return torch.exp(s - safe) @ v, lse


def _d(rank, n, bug=""):
    q, k, v = make()
    c = S // (2 * n)
    idx = lambda r: torch.cat([torch.arange(r * c, r * c + c), torch.arange((2 * n - 1 - r) * c, (2 * n - r) * c)])
    mine = idx(rank)

    def f(q, k, v):
        pos = mine
        q, k = rope(q, pos), rope(k, pos)
        out = lse = None
        for i in range(n):
            src = (rank - i) % n
            if i < n - 1:
                nk, nv = torch.empty_like(k), torch.empty_like(v)
                ops = [
                    dist.P2POp(dist.isend, k.contiguous(), (rank + 1) % n),
                    dist.P2POp(dist.isend, v.contiguous(), (rank + 1) % n),
                    dist.P2POp(dist.irecv, nk, (rank - 1) % n),
                    dist.P2POp(dist.irecv, nv, (rank - 1) % n),
                ]
                reqs = dist.batch_isend_irecv(ops)
            o, l = block(q, k, v, mine, idx(src) if bug != "src" else idx((rank + i) % n))
            if out is None:
                out, lse = o, l
            else:
                new = torch.logaddexp(lse, l)
                out = torch.exp(lse - new) * out + torch.exp(l - new) * o
                lse = new
            if i < n - 1:
                for r in reqs:
                    r.wait()
                k, v = nk, nv
        return out

    return f, tuple(t[:, mine].clone() for t in (q, k, v))


def right(r, n):
    return _d(r, n)


def wrong(r, n):
    return _d(r, n, "src")
