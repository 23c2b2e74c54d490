"""Megatron-like helpers, written from memory."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def tp():
    return dist.get_world_size()


def rk():
    return dist.get_rank()


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class _GatherLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = [torch.empty_like(x) for _ in range(tp())]
        dist.all_gather(out, x.contiguous())
        return torch.cat(out, dim=-1)

    @staticmethod
    def backward(ctx, g):
        return g.chunk(tp(), dim=-1)[rk()].contiguous()


class _GatherSeq(torch.autograd.Function):
    """all-gather along dim 0 (sequence); backward reduce-scatter"""

    @staticmethod
    def forward(ctx, x):
        s = list(x.shape)
        s[0] *= tp()
        out = torch.empty(s, dtype=x.dtype, device=x.device)
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, g):
        s = list(g.shape)
        s[0] //= tp()
        out = torch.empty(s, dtype=g.dtype)
        dist.reduce_scatter_tensor(out, g.contiguous())
        return out


class _ReduceScatterSeq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s = list(x.shape)
        s[0] //= tp()
        out = torch.empty(s, dtype=x.dtype)
        dist.reduce_scatter_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, g):
        s = list(g.shape)
        s[0] *= tp()
        out = torch.empty(s, dtype=g.dtype)
        dist.all_gather_into_tensor(out, g.contiguous())
        return out


class _SplitSeq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.chunk(tp(), 0)[rk()].contiguous()

    @staticmethod
    def backward(ctx, g):
        s = list(g.shape)
        s[0] *= tp()
        out = torch.empty(s, dtype=g.dtype)
        dist.all_gather_into_tensor(out, g.contiguous())
        return out


class ColumnParallelLinear(nn.Module):
    def __init__(self, full: nn.Linear, gather=False, sp=False, copy=True):
        super().__init__()
        self.weight = nn.Parameter(full.weight.detach().chunk(tp(), 0)[rk()].clone())
        self.bias = None if full.bias is None else nn.Parameter(full.bias.detach().chunk(tp(), 0)[rk()].clone())
        self.gather, self.sp, self.copy = gather, sp, copy

    def forward(self, x):
        if self.sp:
            x = _GatherSeq.apply(x)
        elif self.copy:
            x = _Copy.apply(x)
        y = F.linear(x, self.weight, self.bias)
        return _GatherLast.apply(y) if self.gather else y


class RowParallelLinear(nn.Module):
    def __init__(self, full: nn.Linear, sp=False, bias_each=False):
        super().__init__()
        self.weight = nn.Parameter(full.weight.detach().chunk(tp(), 1)[rk()].clone())
        self.bias = None if full.bias is None else nn.Parameter(full.bias.detach().clone())
        self.sp, self.bias_each = sp, bias_each

    def forward(self, x):
        y = F.linear(x, self.weight)
        if self.bias_each and self.bias is not None:
            return _Reduce.apply(y + self.bias)
        y = _ReduceScatterSeq.apply(y) if self.sp else _Reduce.apply(y)
        return y if self.bias is None else y + self.bias


class VocabParallelEmbedding(nn.Module):
    def __init__(self, full: nn.Embedding, sp=False, no_mask=False):
        super().__init__()
        self.n = full.num_embeddings // tp()
        self.first = self.n * rk()
        self.weight = nn.Parameter(full.weight.detach()[self.first : self.first + self.n].clone())
        self.sp, self.no_mask = sp, no_mask

    def forward(self, ids):
        mask = (ids < self.first) | (ids >= self.first + self.n)
        local = ids.clone() - self.first
        local[mask] = 0
        out = F.embedding(local, self.weight)
        if not self.no_mask:
            out[mask, :] = 0.0
        if self.sp:
            return _ReduceScatterSeq.apply(out.transpose(0, 1).contiguous())
        return _Reduce.apply(out)


class _VocabCE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, bug=""):
        m = logits.max(dim=-1)[0]
        if bug == "max_sum":
            dist.all_reduce(m)
        elif bug != "max_local":
            dist.all_reduce(m, op=dist.ReduceOp.MAX)
        logits = logits - m.unsqueeze(-1)
        n = logits.size(-1)
        lo = rk() * n
        mask = (target < lo) | (target >= lo + n)
        t = target.clone() - lo
        t[mask] = 0
        flat = logits.reshape(-1, n)
        idx = torch.arange(flat.size(0))
        pred = flat[idx, t.reshape(-1)].clone().view_as(target)
        pred[mask] = 0.0
        dist.all_reduce(pred)
        e = logits.exp()
        s = e.sum(-1)
        if bug != "sum_local":
            dist.all_reduce(s)
        loss = s.log() - pred
        p = e / s.unsqueeze(-1)
        ctx.save_for_backward(p, mask, t.reshape(-1))
        ctx.bug = bug
        return loss

    @staticmethod
    def backward(ctx, g):
        p, mask, t = ctx.saved_tensors
        grad = p.clone()
        g2 = grad.view(-1, p.size(-1))
        idx = torch.arange(g2.size(0))
        upd = 1.0 - mask.view(-1).float()
        if ctx.bug == "no_update":
            upd = torch.ones_like(upd)
        g2[idx, t] -= upd
        grad.mul_(g.unsqueeze(-1))
        return grad, None, None


def vocab_parallel_cross_entropy(logits, target, bug=""):
    return _VocabCE.apply(logits, target, bug)
