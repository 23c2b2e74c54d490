"""Ulysses: from positions to heads by all-to-all, fewer heads of keys, rotary positions of a rank's own."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

S, H, K, D = 4, 4, 2, 4


def make():
    g = torch.Generator().manual_seed(0)
    return torch.randn(S, H, D, generator=g), torch.randn(S, K, D, generator=g), torch.randn(S, K, D, generator=g)


def rope(x, pos):
    f = pos[:, None].float() * (100.0 ** (-torch.arange(0, D, 2) / D))
    c, s = f.cos()[:, None], f.sin()[:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)


def attend(q, k, v):
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def single():
    q, k, v = make()

    def f(q, k, v):
        p = torch.arange(S)
        return attend(rope(q, p), rope(k, p), v)

    return f, (q, k, v)


def heads(x, n):
    s, h, d = x.shape
    x = x.reshape(s, n, h // n, d).transpose(0, 1).contiguous()
    o = torch.empty_like(x)
    dist.all_to_all_single(o, x)
    return o.reshape(n * s, h // n, d)


def seqs(x, n):
    s, h, d = x.shape
    o = torch.empty_like(x)
    dist.all_to_all_single(o, x.contiguous())
    return o.reshape(n, s // n, h, d).transpose(0, 1).reshape(s // n, n * h, d)


def _d(r, n, bug=""):
    c = S // n

    def f(q, k, v):
        p = torch.arange(c) + (r * c if bug != "rope" else 0)
        q, k = rope(q, p), rope(k, p)
        o = attend(heads(q, n), heads(k, n), heads(v, n))
        return seqs(o, n) if bug != "order" else seqs(o.flip(1), n)

    return f, tuple(t[r * c : r * c + c].clone() for t in make())


def right(r, n):
    return _d(r, n)


def wrong(r, n):
    return _d(r, n, "rope")


def wrong_order(r, n):
    return _d(r, n, "order")
