"""GShard: a capacity in each group of tokens, groups joined on the rank of an expert by all-to-all."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

E_, D, N, CAP = 4, 6, 8, 2


class A2A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        o = torch.empty_like(x)
        dist.all_to_all_single(o, x.contiguous())
        return o

    @staticmethod
    def backward(ctx, g):
        o = torch.empty_like(g)
        dist.all_to_all_single(o, g.contiguous())
        return o


def data():
    g = torch.Generator().manual_seed(5)
    r = lambda *s: torch.randn(*s, generator=g)
    return {"wg": r(D, E_), "w1": r(E_, D, 10) * 0.3, "w2": r(E_, 10, D) * 0.3}, r(N, D), r(N, D)


def dispatch(x, wg):
    # positions within capacity, per group of N/2 tokens, as GShard has it
    p = (x @ wg).softmax(-1)
    top = p.argmax(-1)
    oh = F.one_hot(top, E_).to(x.dtype)
    pos = (oh.cumsum(0) - 1) * oh
    keep = oh * (pos < CAP)
    slot = F.one_hot(pos.sum(-1).long(), 4)[:, :CAP].to(x.dtype)
    disp = keep[:, :, None] * slot[:, None, :]
    gate = (p * oh).sum(-1)
    return disp, gate


def single():
    w, x, t = data()
    for v in w.values():
        v.requires_grad_()

    def step(x, t):
        ys = []
        for c in x.chunk(2):
            disp, gate = dispatch(c, w["wg"])
            e = torch.einsum("nec,nd->ecd", disp, c)
            e = torch.einsum("ech,ehd->ecd", torch.einsum("ecd,edh->ech", e, w["w1"]).relu(), w["w2"])
            ys.append(torch.einsum("nec,ecd->nd", disp, e) * gate[:, None])
        loss = ((torch.cat(ys) - t) ** 2).mean()
        loss.backward()
        return {k: v.grad for k, v in w.items()}

    return step, (x, t)


def _dist(rank, world, bug=""):
    w, x, t = data()
    k = E_ // world
    w["w1"] = w["w1"][rank * k : rank * k + k].clone()
    w["w2"] = w["w2"][rank * k : rank * k + k].clone()
    for v in w.values():
        v.requires_grad_()
    n = N // world
    x, t = x[rank * n : rank * n + n].clone(), t[rank * n : rank * n + n].clone()

    def step(x, t):
        disp, gate = dispatch(x, w["wg"])
        e = torch.einsum("nec,nd->ecd", disp, x)
        e = A2A.apply(e).view(world, k, CAP, D).transpose(0, 1).reshape(k, world * CAP, D)
        e = torch.bmm(torch.bmm(e, w["w1"]).relu(), w["w2"])
        e = A2A.apply(e.view(k, world, CAP, D).transpose(0, 1).reshape(E_, CAP, D))
        y = torch.einsum("nec,ecd->nd", disp, e) * gate[:, None]
        loss = ((y - t) ** 2).mean()
        loss.backward()
        if bug != "router":
            dist.all_reduce(w["wg"].grad)
            w["wg"].grad /= world
        if bug != "expert":
            w["w1"].grad /= world
            w["w2"].grad /= world
        return {k: v.grad for k, v in w.items()}

    return step, (x, t)


def right(r, n):
    return _dist(r, n)


def wrong_router(r, n):
    return _dist(r, n, "router")


def wrong_expert(r, n):
    return _dist(r, n, "expert")
