"""More bug families as an engineer would meet them: clipping, ZeRO, pipelines, all-to-all, convolutions."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnf
import torch.nn.functional as F
from families import X1, G, T, chunk, grads, net1
from torch import nn

# 7 grad clip by global norm under tensor parallel
W7a, W7b, X7 = T(8, 12, seed=9), T(12, 8, seed=10), T(5, 8, seed=11)


def clip(gs, total):
    c = torch.clamp(0.1 / (total + 1e-6), max=1.0)
    return [g * c for g in gs]


def single_clip():
    a, b = nn.Parameter(W7a), nn.Parameter(W7b)

    def f(x):
        ((x @ a).tanh() @ b).pow(2).sum().backward()
        torch.nn.utils.clip_grad_norm_([a, b], 0.1)
        return {"a": a.grad, "b": b.grad}

    return f, (X7,)


def clipj(r, n, bug):
    a, b = nn.Parameter(chunk(W7a, r, n, 1)), nn.Parameter(chunk(W7b, r, n))

    def f(x):
        h = (x @ a).tanh() @ b

        class R(torch.autograd.Function):
            @staticmethod
            def forward(c, t):
                t = t.clone()
                dist.all_reduce(t)
                return t

            @staticmethod
            def backward(c, g):
                return g

        R.apply(h).pow(2).sum().backward()
        sq = sum(p.grad.pow(2).sum() for p in (a, b))
        if not bug:
            dist.all_reduce(sq)
        ga, gb = clip([a.grad, b.grad], sq.sqrt())
        return {"a": ga, "b": gb}

    return f, (X7,)


def right_clip(r, n):
    return clipj(r, n, "")


def wrong_clip(r, n):
    return clipj(r, n, "local")


# 8 ZeRO-1 flat Adam
def single_z1():
    m = net1()
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)

    def f(x, y):
        F.mse_loss(m(x), y).backward()
        opt.step()
        return dict(m.named_parameters())

    return f, (X1, T(12, 5, seed=12))


def z1(r, n, bug=""):
    m = net1()

    def f(x, y):
        F.mse_loss(m(x), y).backward()
        ps = list(m.parameters())
        flat = torch.cat([p.grad.reshape(-1) for p in ps])
        size = -(-flat.numel() // n) * n
        flat = F.pad(flat, (0, size - flat.numel()))
        mine = torch.empty(size // n)
        dist.reduce_scatter_tensor(mine, flat, op=dist.ReduceOp.AVG if bug != "sum" else dist.ReduceOp.SUM)
        w = (
            F.pad(torch.cat([p.detach().reshape(-1) for p in ps]), (0, size - sum(p.numel() for p in ps)))
            .chunk(n)[r]
            .clone()
        )
        w = nn.Parameter(w)
        w.grad = mine
        opt = torch.optim.Adam([w], lr=1e-2)
        opt.step()
        w = w.detach()
        full = torch.empty(size)
        dist.all_gather_into_tensor(full, w)
        out, at = {}, 0
        for k, p in m.named_parameters():
            out[k] = full[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
        return out

    return f, (chunk(X1, r, n), chunk(T(12, 5, seed=12), r, n))


def right_z1(r, n):
    return z1(r, n)


def wrong_z1(r, n):
    return z1(r, n, "sum")


# 9 pipeline send/recv forward+backward, two microbatches
def net9():
    torch.manual_seed(4)
    return nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)


Y9 = T(12, 8, seed=13)


def single_pp():
    ls = net9()

    def f(x, y):
        h = x
        for l in ls:
            h = l(h).tanh()
        F.mse_loss(h, y).backward()
        return {f"{i}.{k}": p.grad for i, l in enumerate(ls) for k, p in l.named_parameters()}

    return f, (X1, Y9)


def pp(r, n, bug=""):
    ls = net9()
    k = len(ls) // n
    mine = ls[r * k : (r + 1) * k]
    M = 2

    def f(x, y):
        ins, outs = [], []
        for i, (a, b) in enumerate(zip(x.chunk(M), y.chunk(M))):
            if r == 0:
                h = a.clone()
            else:
                h = torch.empty_like(a)
                dist.recv(h, r - 1)
            h.requires_grad_()
            o = h
            for l in mine:
                o = l(o).tanh()
            if r < n - 1:
                dist.send(o.detach(), r + 1)
            else:
                o = F.mse_loss(o, b) / (M if bug != "scale" else 1)
            ins.append(h)
            outs.append(o)
        for i in reversed(range(M)) if bug != "x" else range(M):
            if r == n - 1:
                outs[i].backward()
            else:
                g = torch.empty_like(outs[i])
                dist.recv(g, r + 1)
                outs[i].backward(g)
            if r:
                dist.send(ins[i].grad, r - 1)
        return {f"{r * k + i}.{kk}": p.grad for i, l in enumerate(mine) for kk, p in l.named_parameters()}

    return f, (X1, Y9)


def right_pp(r, n):
    return pp(r, n)


def wrong_pp(r, n):
    return pp(r, n, "scale")


# 10 Ulysses all_to_all
Q10 = T(12, 4, 5, seed=14)
K10 = T(12, 4, 5, seed=15)
V10 = T(12, 4, 5, seed=16)


def single_uly():
    def f(q, k, v):
        a = torch.einsum("shd,thd->hst", q, k).softmax(-1)
        return torch.einsum("hst,thd->shd", a, v)

    return f, (Q10, K10, V10)


def uly(r, n, bug=""):
    def a2a(x, heads):  # [s/n, h, d] -> [s, h/n, d]
        s, h, d = x.shape
        if heads:
            t = x.reshape(s, n, h // n, d).permute(1, 0, 2, 3).contiguous()
            o = torch.empty_like(t)
            dist.all_to_all_single(o, t)
            return o.reshape(n * s, h // n, d)
        t = x.reshape(n, s // n, h, d).contiguous()
        o = torch.empty_like(t)
        dist.all_to_all_single(o, t)
        if bug:
            return o.permute(1, 2, 0, 3).reshape(s // n, n * h, d)
        return o.permute(1, 0, 2, 3).reshape(s // n, n * h, d)

    def f(q, k, v):
        q, k, v = (a2a(t, True) for t in (q, k, v))
        a = torch.einsum("shd,thd->hst", q, k).softmax(-1)
        return a2a(torch.einsum("hst,thd->shd", a, v), False)

    return f, tuple(chunk(t, r, n) for t in (Q10, K10, V10))


def right_uly(r, n):
    return uly(r, n)


def wrong_uly(r, n):
    return uly(r, n, "x")


# 11 conv data parallel mean, sync BN
XC, YC = T(8, 3, 6, 6, seed=17), torch.randint(0, 4, (8,), generator=G(18))


class Res(nn.Module):
    def __init__(s, bn):
        super().__init__()
        torch.manual_seed(7)
        s.c1 = nn.Conv2d(3, 4, 3, padding=1)
        s.b1 = bn(4)
        s.c2 = nn.Conv2d(4, 4, 3, padding=1)
        s.b2 = bn(4)
        s.fc = nn.Linear(4, 4)

    def forward(s, x):
        h = F.relu(s.b1(s.c1(x)))
        h = F.relu(s.b2(s.c2(h)) + h)
        return s.fc(h.mean((2, 3)))


def convstep(m, red):
    def f(x, y):
        F.cross_entropy(m(x), y).backward()
        if red:
            for p in m.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        return grads(m)

    return f


def single_conv():
    return convstep(Res(lambda c: nn.Identity()), 0), (XC, YC)


def right_conv(r, n):
    return convstep(Res(lambda c: nn.Identity()), 1), (chunk(XC, r, n), chunk(YC, r, n))


class MyBN(nn.Module):
    def __init__(s, c, sync=False):
        super().__init__()
        s.weight = nn.Parameter(1 + 0.1 * torch.randn(c))
        s.bias = nn.Parameter(0.1 * torch.randn(c))
        s.sync = sync

    def forward(s, x):
        m, q = x.mean((0, 2, 3)), (x * x).mean((0, 2, 3))
        if s.sync:
            m = dnf.all_reduce(m) / dist.get_world_size()
            q = dnf.all_reduce(q) / dist.get_world_size()
        v = q - m * m
        return (x - m[None, :, None, None]) * torch.rsqrt(v + 1e-5)[None, :, None, None] * s.weight[
            None, :, None, None
        ] + s.bias[None, :, None, None]


def single_bn():
    return convstep(Res(lambda c: nn.BatchNorm2d(c)), 0), (XC, YC)


def single_mybn():
    return convstep(Res(lambda c: MyBN(c)), 0), (XC, YC)


def right_mybn(r, n):
    return convstep(Res(lambda c: MyBN(c, True)), 1), (chunk(XC, r, n), chunk(YC, r, n))


def wrong_mybn(r, n):
    return convstep(Res(lambda c: MyBN(c)), 1), (chunk(XC, r, n), chunk(YC, r, n))


# 12 FSDP-like flat shards, ZeRO-3 by hand
class Z3(torch.autograd.Function):
    @staticmethod
    def forward(c, s):
        n = dist.get_world_size()
        o = torch.empty(s.numel() * n)
        dist.all_gather_into_tensor(o, s.contiguous())
        return o

    @staticmethod
    def backward(c, g):
        n = dist.get_world_size()
        o = torch.empty(g.numel() // n)
        dist.reduce_scatter_tensor(o, g.contiguous())
        return o / n


A12, B12, X12, Y12 = T(8, 16, seed=19), T(16, 4, seed=20), T(8, 8, seed=21), T(8, 4, seed=22)


def single_z3():
    a, b = nn.Parameter(A12), nn.Parameter(B12)

    def f(x, y):
        F.mse_loss(F.gelu(x @ a) @ b, y).backward()
        return {"a": a.grad.reshape(-1), "b": b.grad.reshape(-1)}

    return f, (X12, Y12)


def z3(r, n, bug=0):
    a, b = nn.Parameter(chunk(A12.reshape(-1), r, n)), nn.Parameter(chunk(B12.reshape(-1), r, n))

    def f(x, y):
        F.mse_loss(
            F.gelu(x @ Z3.apply(a).view(8, 16)) @ (Z3.apply(b).view(16, 4) if not bug else Z3.apply(b).view(4, 16).t()),
            y,
        ).backward()
        return {"a": a.grad, "b": b.grad}

    return f, (chunk(X12, r, n), chunk(Y12, r, n))


def right_z3(r, n):
    return z3(r, n)


def wrong_z3(r, n):
    return z3(r, n, 1)
