"""GPT-2-like with Megatron tensor parallelism: positions, LayerNorm, tanh-gelu, tied head, vocab parallel loss."""

import math

import mpu
import torch
import torch.nn.functional as F
from torch import nn

L, H, D, V, S, B = 1, 8, 32, 48, 6, 2


def sizes(layers=1, heads=8):
    """So many layers and heads from now on."""
    global L, H, D
    L, H, D = layers, heads, 4 * heads


class Attn(nn.Module):
    def __init__(s):
        super().__init__()
        s.q = nn.Linear(D, D)
        s.k = nn.Linear(D, D)
        s.v = nn.Linear(D, D)
        s.o = nn.Linear(D, D)
        s.h = H

    def forward(s, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, s.h, 4).transpose(1, 2) for f in (s.q, s.k, s.v))
        a = q @ k.transpose(-1, -2) / math.sqrt(4)
        m = torch.tril(torch.ones(t, t, dtype=torch.bool))
        a = a.masked_fill(~m, float("-inf"))
        a = F.softmax(a, dim=-1)
        return s.o((a @ v).transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(s):
        super().__init__()
        s.up = nn.Linear(D, 4 * D)
        s.down = nn.Linear(4 * D, D)

    def forward(s, x):
        return s.down(F.gelu(s.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(s):
        super().__init__()
        s.ln1 = nn.LayerNorm(D)
        s.attn = Attn()
        s.ln2 = nn.LayerNorm(D)
        s.mlp = Mlp()

    def forward(s, x):
        x = x + s.attn(s.ln1(x))
        return x + s.mlp(s.ln2(x))


class GPT(nn.Module):
    def __init__(s):
        super().__init__()
        s.wte = nn.Embedding(V, D)
        s.wpe = nn.Embedding(S, D)
        s.h = nn.ModuleList(Block() for _ in range(L))
        s.lnf = nn.LayerNorm(D)

    def forward(s, ids, labels):
        x = s.wte(ids) + s.wpe(torch.arange(ids.shape[1]))
        for b in s.h:
            x = b(x)
        x = s.lnf(x)
        logits = x @ s.wte.weight.t()
        return F.cross_entropy(logits.view(-1, V), labels.view(-1))


def make():
    torch.manual_seed(1)
    m = GPT()
    for n, p in m.named_parameters():
        if "ln" in n or "bias" in n:
            p.data += 0.1 * torch.randn_like(p)
    return m


def data():
    g = torch.Generator().manual_seed(3)
    return torch.randint(0, V, (B, S), generator=g), torch.randint(0, V, (B, S), generator=g)


def single():
    return make(), data()


class TP(nn.Module):
    def __init__(s, m, bug=""):
        super().__init__()
        s.wte = mpu.VocabParallelEmbedding(m.wte, no_mask=bug == "emb_mask")
        s.wpe = m.wpe
        s.h = m.h
        s.lnf = m.lnf
        s.bug = bug
        for b in s.h:
            b.attn.h = H // mpu.tp()
            for n in "qkv":
                setattr(b.attn, n, mpu.ColumnParallelLinear(getattr(b.attn, n), copy=not (bug == "no_f" and n == "v")))
            b.attn.o = mpu.RowParallelLinear(b.attn.o, bias_each=bug == "bias")
            b.mlp.up = mpu.ColumnParallelLinear(b.mlp.up)
            b.mlp.down = mpu.RowParallelLinear(b.mlp.down)

    def forward(s, ids, labels):
        x = s.wte(ids) + s.wpe(torch.arange(ids.shape[1]))
        for b in s.h:
            x = b(x)
        x = s.lnf(x)
        if s.bug != "head_copy":
            x = mpu._Copy.apply(x)
        logits = x @ s.wte.weight.t()
        return mpu.vocab_parallel_cross_entropy(logits, labels, s.bug).mean() * (mpu.tp() if s.bug == "scale" else 1)


def right(r, n):
    return TP(make()), data()


def w_bias(r, n):
    return TP(make(), "bias"), data()


def w_no_f(r, n):
    return TP(make(), "no_f"), data()


def w_head_copy(r, n):
    return TP(make(), "head_copy"), data()


def w_emb_mask(r, n):
    return TP(make(), "emb_mask"), data()


def w_max_sum(r, n):
    return TP(make(), "max_sum"), data()  # stable?  still right over the reals


def w_max_local(r, n):
    return TP(make(), "max_local"), data()


def w_sum_local(r, n):
    return TP(make(), "sum_local"), data()


def w_no_update(r, n):
    return TP(make(), "no_update"), data()


def w_scale(r, n):
    return TP(make(), "scale"), data()
