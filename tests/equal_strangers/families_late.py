"""Jobs as engineers write them (III): ring attention that skips blocks, masks with padding, labels that are ignored beside
label smoothing, balanced experts, preferences over vocabulary-parallel logits."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch import nn


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# 1 causal ring attention: blocks of keys of later ranks are skipped, beside PyTorch's own attention


def _qkv():
    return [noise(1, 8, 2, 4, seed=k) for k in range(3)]


def single_skip():
    def f(q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return f, tuple(_qkv())


def skip(rank, n, bug=""):
    c = 8 // n

    def f(q, k, v):
        q = q.transpose(1, 2)
        m, l, acc = torch.full((1, 2, c, 1), float("-inf")), torch.zeros(1, 2, c, 1), torch.zeros(1, 2, c, 4)
        kv = torch.stack([k, v])
        for step in range(n):
            src = (rank - step) % n
            if step + 1 < n:
                nxt = torch.empty_like(kv)
                ops = [dist.P2POp(dist.isend, kv, (rank + 1) % n), dist.P2POp(dist.irecv, nxt, (rank - 1) % n)]
                reqs = dist.batch_isend_irecv(ops)
            if src <= rank or bug == "all":
                kk, vv = kv[0].transpose(1, 2), kv[1].transpose(1, 2)
                s = torch.matmul(q, kk.transpose(2, 3)) * 4**-0.5
                if src == rank:
                    s = s + torch.triu(torch.full((c, c), float("-inf")), 0 if bug == "own" else 1)
                most = torch.maximum(m, s.amax(-1, keepdim=True))
                p, a = torch.exp(s - most), torch.exp(m - most)
                l, acc, m = l * a + p.sum(-1, keepdim=True), acc * a + p @ vv, most
            if step + 1 < n:
                for r in reqs:
                    r.wait()
                kv = nxt
        return (acc / l).transpose(1, 2)

    return f, tuple(t[:, rank * c : rank * c + c].clone() for t in _qkv())


def right_skip(r, n):
    return skip(r, n)


def wrong_skip(r, n):
    return skip(r, n, "all")


# 2 a sliding window with padding, keys gathered; truth values travel as numbers


def _padded():
    pad = torch.ones(1, 8, dtype=torch.bool)
    pad[0, 6:] = False
    return (*(noise(1, 2, 8, 4, seed=k) for k in range(3)), pad)


def window(q, k, pad):
    m = (k[None] <= q[:, None]) & (k[None] > q[:, None] - 3)
    return m[None, None] & (pad[:, None, None, :] | (k[None] == q[:, None])[None, None])


def single_window():
    def f(q, k, v, pad):
        i = torch.arange(8)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=window(i, i, pad))

    return f, _padded()


def gathered_window(rank, n, bug=""):
    s = 8 // n

    def f(q, k, v, pad):
        ks, vs, ps = ([torch.empty_like(t) for _ in range(n)] for t in (k, v, pad.float()))
        for parts, mine in ((ks, k), (vs, v), (ps, pad.float())):
            dist.all_gather(parts, mine)
        i = torch.arange(s) + (0 if bug else rank * s)
        mask = window(i, torch.arange(8), torch.cat(ps, 1) > 0.5)
        return F.scaled_dot_product_attention(q, torch.cat(ks, 2), torch.cat(vs, 2), attn_mask=mask)

    mine = slice(rank * s, rank * s + s)
    q, k, v, pad = _padded()
    return f, (*(t[:, :, mine].clone() for t in (q, k, v)), pad[:, mine].clone())


def right_window(r, n):
    return gathered_window(r, n)


def wrong_window(r, n):
    return gathered_window(r, n, "positions")


# 3 vocabulary-parallel cross entropy with label smoothing and labels that are ignored


def _labels():
    lab = torch.randint(0, 12, (6,), generator=torch.Generator().manual_seed(0))
    lab[2] = -100
    return noise(6, 5), noise(12, 5, seed=1), lab


def single_smooth():
    x, w, lab = _labels()
    w.requires_grad_()

    def f(x, lab):
        loss = F.cross_entropy(x @ w.t(), lab, ignore_index=-100, label_smoothing=0.1)
        loss.backward()
        return {"loss": loss.detach(), "w": w.grad}

    return f, (x, lab)


class Smooth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, lab, bug):
        r, n, vp = dist.get_rank(), dist.get_world_size(), logits.shape[-1]
        m = logits.max(-1)[0]
        dist.all_reduce(m, op=dist.ReduceOp.MAX)
        z = logits - m[:, None]
        out = (lab < r * vp) | (lab >= (r + 1) * vp)
        loc = (lab - r * vp).masked_fill(out, 0)
        pred = z.gather(1, loc[:, None]).squeeze(1)
        pred[out] = 0.0
        e = z.exp()
        s, total = e.sum(-1), z.sum(-1)
        for t in (pred, s) if bug == "smooth" else (pred, s, total):
            dist.all_reduce(t)
        valid = lab != -100
        loss = (0.9 * (s.log() - pred) + 0.1 * (s.log() - total / (vp * n))) * valid
        ctx.save_for_backward(e / s[:, None], loc, out, valid)
        ctx.classes = vp * n
        return loss

    @staticmethod
    def backward(ctx, g):
        p, loc, out, valid = ctx.saved_tensors
        grad = p.clone()
        grad[torch.arange(len(loc)), loc] -= 0.9 * (~out).to(p.dtype)
        return (grad - 0.1 / ctx.classes) * (g * valid)[:, None], None, None


def smooth(r, n, bug=""):
    x, w, lab = _labels()
    k = 12 // n
    w = w[r * k : r * k + k].clone().requires_grad_()

    def f(x, lab):
        per = Smooth.apply(x @ w.t(), lab, bug)
        loss = per.mean() if bug == "mean" else per.sum() / (lab != -100).sum()
        loss.backward()
        return {"loss": loss.detach(), "w": w.grad}

    return f, (x, lab)


def right_smooth(r, n):
    return smooth(r, n)


def wrong_smooth(r, n):
    return smooth(r, n, "smooth")


def wrong_mean(r, n):
    return smooth(r, n, "mean")


# 4 the loss that balances experts: counts of all tokens; routers that ranks draw with their own seed


def _router(seed=0):
    return noise(8, 4), nn.Parameter(noise(4, 4, seed=10 + seed))


def single_balance():
    x, w = _router()

    def f(x):
        p = (x @ w.t()).softmax(-1)
        count = F.one_hot(p.argmax(-1), 4).sum(0).float()
        loss = 4 * (p.sum(0) / 8 * count / 8).sum()
        loss.backward()
        return {"loss": loss.detach(), "w": w.grad}

    return f, (x,)


def balance(r, n, bug=""):
    x, w = _router(r if bug == "seed" else 0)
    k = 8 // n

    def f(x):
        p = (x @ w.t()).softmax(-1)
        count = torch.bincount(p.argmax(-1), minlength=4).float()
        if bug != "local":
            dist.all_reduce(count)
        loss = 4 * (p.sum(0) / 8 * count / 8).sum()
        loss.backward()
        out = loss.detach().clone()
        dist.all_reduce(out)
        dist.all_reduce(w.grad)
        return {"loss": out, "w": w.grad}

    return f, (x[r * k : r * k + k].clone(),)


def right_balance(r, n):
    return balance(r, n)


def wrong_balance(r, n):
    return balance(r, n, "local")


def wrong_seed(r, n):
    return balance(r, n, "seed")


# 5 preferences (DPO) over vocabulary-parallel logits


def _preferences():
    ids = torch.randint(0, 8, (4, 3), generator=torch.Generator().manual_seed(0))
    return noise(4, 3, 4), noise(8, 4, seed=1), noise(4, seed=2), ids


def preferred(lp, ref):
    return -F.logsigmoid(0.1 * ((lp[:2] - lp[2:]) - (ref[:2] - ref[2:]))).mean()


def single_dpo():
    h, w, ref, ids = _preferences()
    w.requires_grad_()

    def f(h, ref, ids):
        lp = F.log_softmax(h @ w.t(), -1).gather(-1, ids[..., None]).squeeze(-1).sum(-1)
        loss = preferred(lp, ref)
        loss.backward()
        return loss.detach(), w.grad

    return f, (h, ref, ids)


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return fc.all_reduce(x, "sum", dist.group.WORLD)

    @staticmethod
    def backward(ctx, g):
        return g


def dpo(r, n, bug=""):
    h, w, ref, ids = _preferences()
    k = 8 // n
    w = w[r * k : r * k + k].clone().requires_grad_()

    def f(h, ref, ids):
        z = h @ w.t()
        z = z - fc.all_reduce(z.detach().amax(-1), "max", dist.group.WORLD)[..., None]
        s = z.exp().sum(-1)
        s = s if bug else Sum.apply(s)
        hit = (ids >= r * k) & (ids < r * k + k)
        mine = z.gather(-1, torch.where(hit, ids - r * k, 0)[..., None]).squeeze(-1)
        loss = preferred((Sum.apply(torch.where(hit, mine, 0.0)) - s.log()).sum(-1), ref)
        loss.backward()
        return loss.detach(), w.grad

    return f, (h, ref, ids)


def right_dpo(r, n):
    return dpo(r, n)


def wrong_dpo(r, n):
    return dpo(r, n, "sum")
