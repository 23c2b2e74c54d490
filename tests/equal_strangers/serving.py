"""Inference with queries, keys and values in one matrix, keys shared by ranks, a vocabulary filled up with zeros."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

D, H, KV, HD, V, PAD, T = 8, 4, 2, 4, 10, 12, 3


def w():
    g = torch.Generator().manual_seed(0)
    r = lambda *s: torch.randn(*s, generator=g) * 0.4
    return {
        "emb": r(V, D),
        "n": 1 + r(D),
        "q": r(H * HD, D),
        "k": r(KV * HD, D),
        "v": r(KV * HD, D),
        "o": r(D, H * HD),
        "ob": r(D),
        "head": r(V, D),
    }, torch.randint(0, V, (T,), generator=g)


def rms(x, n):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * n


def attn(q, k, v, h, kv):
    q, k, v = q.view(T, h, HD).transpose(0, 1), k.view(T, kv, HD).transpose(0, 1), v.view(T, kv, HD).transpose(0, 1)
    o = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
    return o.transpose(0, 1).reshape(T, -1)


def single():
    p, ids = w()

    def f(ids, emb, n, q, k, v, o, ob, head):
        x = F.embedding(ids, emb)
        h = rms(x, n)
        x = x + F.linear(attn(F.linear(h, q), F.linear(h, k), F.linear(h, v), H, KV), o, ob)
        return F.linear(rms(x, n), head)

    return f, (ids, *p.values())


def _d(r, n, bug=""):
    p, ids = w()
    pad = lambda t: torch.cat([t, torch.zeros(PAD - V, D)])
    c = PAD // n
    emb, head = pad(p["emb"])[r * c : r * c + c].clone(), pad(p["head"])[r * c : r * c + c].clone()
    hq = H // n
    kvr = r // (n // KV) if bug != "kv" else r % KV
    qkv = torch.cat(
        [p["q"][r * hq * HD : (r + 1) * hq * HD], p["k"][kvr * HD : (kvr + 1) * HD], p["v"][kvr * HD : (kvr + 1) * HD]]
    )
    o = p["o"][:, r * hq * HD : (r + 1) * hq * HD].clone()
    nw, ob = p["n"], p["ob"]
    start, end = r * c, min((r + 1) * c, V)

    def f(ids):
        m = (ids >= start) & (ids < end)
        x = F.embedding(m * (ids - start), emb)
        x.masked_fill_(~m.unsqueeze(-1), 0)
        dist.all_reduce(x)
        h = rms(x, nw)
        q, k, v = F.linear(h, qkv).split([hq * HD, HD, HD], -1)
        y = F.linear(attn(q, k, v, hq, 1), o, ob if r == 0 or bug == "bias" else None)
        dist.all_reduce(y)
        x = x + y
        part = F.linear(rms(x, nw), head)
        full = torch.empty(n * T, c)
        dist.all_gather_into_tensor(full, part.contiguous())
        full = full.view(n, T, c)
        full = full.movedim(0, 1).reshape(T, n * c)
        return full[..., :V]

    return f, (ids,)


def right(r, n):
    return _d(r, n)


def wrong_bias(r, n):
    return _d(r, n, "bias")


def wrong_kv(r, n):
    return _d(r, n, "kv")
