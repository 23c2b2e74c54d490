"""Bug families as an engineer would meet them: each single_X, right_X, wrong_X."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnf
import torch.nn.functional as F
from torch import nn


def G(seed=0):
    return torch.Generator().manual_seed(seed)


def T(*s, seed=0):
    return torch.randn(*s, generator=G(seed))


def chunk(t, r, n, d=0):
    return t.chunk(n, d)[r].clone()


# 1 gradient accumulation with uneven token counts (mean of means)
X1, Y1 = T(12, 8, seed=1), torch.randint(0, 5, (12,), generator=G(2))
Y1[[0, 1, 7]] = -100


def net1():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))


def grads(m):
    return {n: p.grad for n, p in m.named_parameters()}


def single_acc():
    m = net1()

    def f(x, y):
        F.cross_entropy(m(x), y).backward()
        return grads(m)

    return f, (X1, Y1)


def right_acc(r, n):
    m = net1()

    def f(x, y):
        count = (y != -100).sum()
        for a, b in zip(x.chunk(3), y.chunk(3)):
            (F.cross_entropy(m(a), b, reduction="sum") / count).backward()
        return grads(m)

    return f, (X1, Y1)


def wrong_acc(r, n):
    m = net1()

    def f(x, y):
        for a, b in zip(x.chunk(3), y.chunk(3)):
            (F.cross_entropy(m(a), b) / 3).backward()
        return grads(m)

    return f, (X1, Y1)


# 2 data parallel with uneven valid tokens per rank
def right_dp(r, n):
    m = net1()

    def f(x, y):
        count = (y != -100).sum().float()
        dist.all_reduce(count)
        (F.cross_entropy(m(x), y, reduction="sum") / count).backward()
        for p in m.parameters():
            dist.all_reduce(p.grad)
        return grads(m)

    return f, (chunk(X1, r, n), chunk(Y1, r, n))


def wrong_dp(r, n):
    m = net1()

    def f(x, y):
        F.cross_entropy(m(x), y).backward()
        for p in m.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        return grads(m)

    return f, (chunk(X1, r, n), chunk(Y1, r, n))


# 3 hidden-split layer norm
X3 = T(6, 12, seed=3)


def single_ln():
    torch.manual_seed(0)
    w, b = nn.Parameter(torch.randn(12)), nn.Parameter(torch.randn(12))
    ln = nn.LayerNorm(12)
    ln.weight, ln.bias = w, b
    return ln, (X3,)


class SplitLN(nn.Module):
    def __init__(s, r, n, bug):
        super().__init__()
        torch.manual_seed(0)
        w, b = torch.randn(12), torch.randn(12)
        s.weight, s.bias, s.bug = nn.Parameter(chunk(w, r, n)), nn.Parameter(chunk(b, r, n)), bug

    def forward(s, x):
        mean = x.sum(-1, keepdim=True)
        if not s.bug:
            mean = dnf.all_reduce(mean)
        mean = mean / (12 if not s.bug else x.shape[-1])
        d = x - mean
        var = dnf.all_reduce((d * d).sum(-1, keepdim=True)) / 12
        return d * torch.rsqrt(var + 1e-5) * s.weight + s.bias


def right_ln(r, n):
    return SplitLN(r, n, 0), (chunk(X3, r, n, 1),)


def wrong_ln(r, n):
    return SplitLN(r, n, 1), (chunk(X3, r, n, 1),)


# 4 ring attention with log-sum-exp merge (context parallel), all KV blocks passed round with send/recv
Q4, K4, V4 = T(2, 12, 4, seed=4), T(2, 12, 4, seed=5), T(2, 12, 4, seed=6)


def single_ring():
    return lambda q, k, v: F.softmax(q @ k.transpose(1, 2) / 2, -1) @ v, (Q4, K4, V4)


def ring(r, n, bug=""):
    def f(q, k, v):
        o = l = m = None
        for step in range(n):
            s = q @ k.transpose(1, 2) / 2
            mi = s.max(-1, keepdim=True)[0]
            e = torch.exp(s - mi)
            li = e.sum(-1, keepdim=True)
            oi = e @ v
            if o is None:
                o, l, m = oi, li, mi
            else:
                new = torch.maximum(m, mi)
                a, b = torch.exp(m - new), torch.exp(mi - new)
                if bug == "rescale":
                    a = torch.ones_like(a)
                o, l, m = o * a + oi * b, l * a + li * b, new
            if step < n - 1:
                nk, nv = torch.empty_like(k), torch.empty_like(v)
                ops = [
                    dist.P2POp(dist.isend, k.contiguous(), (r + 1) % n),
                    dist.P2POp(dist.isend, v.contiguous(), (r + 1) % n),
                    dist.P2POp(dist.irecv, nk, (r - 1) % n),
                    dist.P2POp(dist.irecv, nv, (r - 1) % n),
                ]
                for w in dist.batch_isend_irecv(ops):
                    w.wait()
                k, v = nk, (nv if bug != "stale" else v)
        return o / l

    return f, (chunk(Q4, r, n, 1), chunk(K4, r, n, 1), chunk(V4, r, n, 1))


def right_ring(r, n):
    return ring(r, n)


def wrong_ring(r, n):
    return ring(r, n, "rescale")


def wrong_ring2(r, n):
    return ring(r, n, "stale")


# 4b causal ring: blocks from later ranks skipped, diagonal masked
def single_cring():
    def f(q, k, v):
        s = q @ k.transpose(1, 2) / 2
        s = s.masked_fill(torch.triu(torch.ones(12, 12, dtype=torch.bool), 1), float("-inf"))
        return F.softmax(s, -1) @ v

    return f, (Q4, K4, V4)


def cring(r, n, bug=""):
    def f(q, k, v):
        ks = [torch.empty_like(k) for _ in range(n)]
        vs = [torch.empty_like(v) for _ in range(n)]
        dist.all_gather(ks, k.contiguous())
        dist.all_gather(vs, v.contiguous())
        lses, outs = [], []
        for j in range(r + 1 if bug != "all" else n):
            s = q @ ks[j].transpose(1, 2) / 2
            if j == r:
                s = s.masked_fill(torch.triu(torch.ones(s.shape[-2:], dtype=torch.bool), 1), float("-inf"))
            lse = torch.logsumexp(s, -1, keepdim=True)
            outs.append(torch.exp(s - lse) @ vs[j])
            lses.append(lse)
        lse = torch.logsumexp(torch.stack(lses), 0)
        return sum(o * torch.exp(l - lse) for o, l in zip(outs, lses))

    return f, (chunk(Q4, r, n, 1), chunk(K4, r, n, 1), chunk(V4, r, n, 1))


def right_cring(r, n):
    return cring(r, n)


def wrong_cring(r, n):
    return cring(r, n, "all")


# 5 softmax over a sharded axis
X5 = T(4, 12, seed=7)


def single_sm():
    return lambda x: F.softmax(x, -1), (X5,)


def sm(r, n, bug):
    def f(x):
        m = x.amax(-1, keepdim=True)
        dist.all_reduce(m, op=dist.ReduceOp.MAX)
        e = (x - m).exp()
        s = e.sum(-1, keepdim=True)
        if not bug:
            dist.all_reduce(s)
        return e / s

    return f, (chunk(X5, r, n, 1),)


def right_sm(r, n):
    return sm(r, n, 0)


def wrong_sm(r, n):
    return sm(r, n, 1)


# 6 expert parallel: router gradients, all_to_all of dense capacity buffers
E, D6 = 8, 6
X6 = T(16, D6, seed=8)


def moew():
    torch.manual_seed(3)
    return torch.randn(D6, E), torch.randn(E, D6, 10) * 0.3, torch.randn(E, 10, D6) * 0.3


def gate(x, wg):
    p = F.softmax(x @ wg, -1)
    w, i = p.topk(2, -1)
    return w / w.sum(-1, keepdim=True), i


def single_moe():
    wg, w1, w2 = (t.requires_grad_() for t in moew())

    def f(x):
        w, i = gate(x, wg)
        comb = torch.zeros(x.shape[0], E).scatter(1, i, w)
        y = torch.einsum(
            "te,ted->td", comb, torch.einsum("teh,ehd->ted", F.relu(torch.einsum("td,edh->teh", x, w1)), w2)
        )
        return y

    return f, (X6,)


def moe_ep(r, n, bug=""):
    wg, w1, w2 = moew()
    wg = wg.requires_grad_()
    w1 = chunk(w1, r, n).requires_grad_()
    w2 = chunk(w2, r, n).requires_grad_()
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    def f(x):  # tokens sharded; every token sent to every expert, weighted at home
        t = x.shape[0]
        w, i = gate(x, wg)
        comb = torch.zeros(t, E).scatter(1, i, w)
        send = x.unsqueeze(0).expand(n, t, D6).reshape(n * t, D6)
        got = all_to_all_single_autograd(send, None, None, dist.group.WORLD)  # [n*t, D]
        out = torch.einsum("teh,ehd->etd", F.relu(torch.einsum("td,edh->teh", got, w1)), w2)  # [E/n, n*t, D]
        back = out.reshape(E // n, n, t, D6).transpose(0, 1).reshape(n * (E // n) * t, D6)
        back = all_to_all_single_autograd(back, None, None, dist.group.WORLD).reshape(E, t, D6)
        if bug == "order":
            back = back.flip(0)
        return torch.einsum("te,etd->td", comb, back)

    return f, (chunk(X6, r, n),)


def right_moe(r, n):
    return moe_ep(r, n)


def wrong_moe(r, n):
    return moe_ep(r, n, "order")


def single_moeg():
    wg, w1, w2 = (nn.Parameter(t) for t in moew())
    _, a = single_moe()

    def f(x):
        w, i = gate(x, wg)
        comb = torch.zeros(x.shape[0], E).scatter(1, i, w)
        y = torch.einsum(
            "te,ted->td", comb, torch.einsum("teh,ehd->ted", F.relu(torch.einsum("td,edh->teh", x, w1)), w2)
        )
        (y * y).mean().backward()
        return {"wg": wg.grad, "w1": w1.grad, "w2": w2.grad}

    return f, a


def moeg(r, n, bug=""):
    wg, w1, w2 = moew()
    wg = nn.Parameter(wg)
    w1 = nn.Parameter(chunk(w1, r, n))
    w2 = nn.Parameter(chunk(w2, r, n))
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    def f(x):
        t = x.shape[0]
        w, i = gate(x, wg)
        comb = torch.zeros(t, E).scatter(1, i, w)
        got = all_to_all_single_autograd(x.repeat(n, 1), None, None, dist.group.WORLD)
        out = torch.einsum("teh,ehd->etd", F.relu(torch.einsum("td,edh->teh", got, w1)), w2)
        back = out.reshape(E // n, n, t, D6).transpose(0, 1).reshape(-1, D6)
        back = all_to_all_single_autograd(back, None, None, dist.group.WORLD).reshape(E, t, D6)
        y = torch.einsum("te,etd->td", comb, back)
        (y * y).mean().backward()
        dist.all_reduce(wg.grad, op=dist.ReduceOp.SUM if bug == "router" else dist.ReduceOp.AVG)
        if bug != "expert":
            w1.grad /= n
            w2.grad /= n
        return {"wg": wg.grad, "w1": w1.grad, "w2": w2.grad}

    return f, (chunk(X6, r, n),)


def right_moeg(r, n):
    return moeg(r, n)


def wrong_moeg(r, n):
    return moeg(r, n, "router")


def wrong_moeg2(r, n):
    return moeg(r, n, "expert")
