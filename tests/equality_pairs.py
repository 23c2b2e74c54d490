"""Pairs for `shardproof equal`: what people got wrong in public reports, each as a right and a wrong variant.

`SINGLE`s are functions without arguments, ranks' programs take rank and ranks; `FAMILIES` says which belong together.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

torch.manual_seed(0)
B, S, H, HEADS, V, FF = 2, 8, 16, 4, 24, 32
D = H // HEADS
X = torch.randn(B, S, H)
IDS = torch.randint(0, V, (B, S))
TARGET = torch.randint(0, V, (B, S))
P = {
    "emb": torch.randn(V, H),
    "wq": torch.randn(H, H) / 4,
    "wk": torch.randn(H, H) / 4,
    "wv": torch.randn(H, H) / 4,
    "wo": torch.randn(H, H) / 4,
    "w1": torch.randn(H, FF) / 4,
    "b1": torch.randn(FF),
    "w2": torch.randn(FF, H) / 4,
    "b2": torch.randn(H),
    "g": torch.randn(H),
    "b": torch.randn(H),
    "router": torch.randn(H, 4),
    "e1": torch.randn(4, H, FF) / 4,
    "e2": torch.randn(4, FF, H) / 4,
}
Made = tuple[Any, Any]


def parameters(*names: str, **cut: Any) -> dict[str, torch.Tensor]:
    """Leaves of these names; `cut` says which part of a tensor."""
    return {n: P[n][cut[n]].clone().requires_grad_() if n in cut else P[n].clone().requires_grad_() for n in names}


def part(size: int, rank: int, ranks: int) -> slice:
    """Block of a rank."""
    n = size // ranks
    return slice(rank * n, rank * n + n)


GROUPS: dict[str, Any] = {}
"""Groups of the rank that runs, where they are not all ranks."""


class Copy(torch.autograd.Function):
    """Identity forwards, the sum of gradients backwards."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        g = g.clone()
        dist.all_reduce(g, group=GROUPS.get("tensor"))
        return g


class Forget(Copy):
    """Its gradient is not summed."""

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


class Reduce(torch.autograd.Function):
    """The sum forwards, identity backwards."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=GROUPS.get("tensor"))
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


class Twice(Reduce):
    """Sums gradients that are whole already."""

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        g = g.clone()
        dist.all_reduce(g)
        return g


class GatherSequence(torch.autograd.Function):
    """All positions forwards, the sum of the own positions' gradients backwards."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        g = g.clone()
        dist.all_reduce(g)
        return g.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()


# ------------------------------------------------------------------ feed-forward, tensor parallel


def mlp() -> Made:
    p = parameters("w1", "b1", "w2", "b2")
    return lambda x: F.gelu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"], (X.clone().requires_grad_(),)


def mlp_tp(rank: int, ranks: int, copy: Any = Copy, reduce: Any = Reduce, bias: str = "once") -> Made:
    s = part(FF, rank, ranks)
    p = parameters("w1", "b1", "w2", "b2", w1=(slice(None), s), b1=s, w2=s)

    def f(x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(copy.apply(x) @ p["w1"] + p["b1"]) @ p["w2"]
        if bias == "each":
            return reduce.apply(h + p["b2"])
        return (h if reduce is None else reduce.apply(h)) + p["b2"]

    return f, (X.clone().requires_grad_(),)


def mlp_no_backward_sum(rank: int, ranks: int) -> Made:
    return mlp_tp(rank, ranks, copy=Forget)


def mlp_summed_twice(rank: int, ranks: int) -> Made:
    return mlp_tp(rank, ranks, reduce=Twice)


def mlp_bias_each(rank: int, ranks: int) -> Made:
    return mlp_tp(rank, ranks, bias="each")


def mlp_no_sum(rank: int, ranks: int) -> Made:
    return mlp_tp(rank, ranks, reduce=None)


# ------------------------------------------------------------------ attention: heads, masks, rotary positions


def rotary(x: torch.Tensor, first: int) -> torch.Tensor:
    half = x.shape[-1] // 2
    at = torch.arange(first, first + x.shape[2], dtype=torch.float32)
    angles = at[:, None] * torch.tensor([1.0 / 10 ** (2 * k / x.shape[-1]) for k in range(half)])[None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int = 0) -> torch.Tensor:
    rows = torch.arange(first, first + q.shape[2])[:, None]
    mask = rows >= torch.arange(k.shape[2])[None]
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    return y.view(*y.shape[:2], -1, D).transpose(1, 2)


def attention() -> Made:
    p = parameters("wq", "wk", "wv", "wo")

    def f(x: torch.Tensor) -> torch.Tensor:
        q, k = rotary(heads(x, p["wq"]), 0), rotary(heads(x, p["wk"]), 0)
        o = attend(q, k, heads(x, p["wv"]))
        return o.transpose(1, 2).reshape(B, -1, H) @ p["wo"]

    return f, (X,)


def attention_tp(rank: int, ranks: int, scale: int = 1) -> Made:
    s = part(H, rank, ranks)
    cut = (slice(None), s)
    p = parameters("wq", "wk", "wv", "wo", wq=cut, wk=cut, wv=cut, wo=s)

    def f(x: torch.Tensor) -> torch.Tensor:
        x = Copy.apply(x)
        q, k = rotary(heads(x, p["wq"]), 0), rotary(heads(x, p["wk"]), 0)
        o = attend(q / scale, k, heads(x, p["wv"]))
        return Reduce.apply(o.transpose(1, 2).reshape(B, -1, H // ranks) @ p["wo"])

    return f, (X,)


def attention_scaled(rank: int, ranks: int) -> Made:
    return attention_tp(rank, ranks, scale=2)


def attention_sp(rank: int, ranks: int, offset: bool = True, masked: bool = True) -> Made:
    """Context parallel: every rank has its positions, keys and values are gathered."""
    s = part(S, rank, ranks)
    p = parameters("wq", "wk", "wv", "wo")

    def f(x: torch.Tensor) -> torch.Tensor:
        first = s.start if offset else 0
        q, k, v = rotary(heads(x, p["wq"]), first), rotary(heads(x, p["wk"]), first), heads(x, p["wv"])
        k, v = (GatherSequence.apply(t.transpose(1, 2)).transpose(1, 2) for t in (k, v))
        o = attend(q, k, v, s.start if masked else 0)
        return o.transpose(1, 2).reshape(B, -1, H) @ p["wo"]

    return f, (X[:, s],)


def attention_no_offset(rank: int, ranks: int) -> Made:
    return attention_sp(rank, ranks, offset=False)


def attention_wrong_mask(rank: int, ranks: int) -> Made:
    return attention_sp(rank, ranks, masked=False)


# ------------------------------------------------------------------ norms under sequence parallelism


def norm() -> Made:
    p = parameters("g", "b", "w1")
    return lambda x: F.layer_norm(x, (H,), p["g"], p["b"]) @ p["w1"], (X,)


def norm_sp(rank: int, ranks: int, summed: bool = True) -> Made:
    s, c = part(S, rank, ranks), part(FF, rank, ranks)
    p = parameters("g", "b", "w1", w1=(slice(None), c))

    def f(x: torch.Tensor) -> torch.Tensor:
        g, b = (Copy.apply(p[n]) if summed else p[n] for n in ("g", "b"))
        return GatherSequence.apply(F.layer_norm(x, (H,), g, b)) @ p["w1"]

    return f, (X[:, s],)


def norm_gradients_apart(rank: int, ranks: int) -> Made:
    return norm_sp(rank, ranks, summed=False)


def rms() -> Made:
    p = parameters("g")
    return lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * p["g"], (X,)


def rms_split(rank: int, ranks: int, local: bool = False) -> Made:
    s = part(H, rank, ranks)
    p = parameters("g", g=s)

    def f(x: torch.Tensor) -> torch.Tensor:
        if local:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * p["g"]
        total = x.pow(2).sum(-1, keepdim=True)
        dist.all_reduce(total)
        return x * torch.rsqrt(total / H + 1e-5) * p["g"]

    return f, (X[..., s],)


def rms_local(rank: int, ranks: int) -> Made:
    return rms_split(rank, ranks, local=True)


# ------------------------------------------------------------------ vocabulary parallel


def embedding() -> Made:
    p = parameters("emb")
    return lambda ids: F.embedding(ids, p["emb"]), (IDS,)


def embedding_vp(rank: int, ranks: int, masked: bool = True) -> Made:
    s = part(V, rank, ranks)
    p = parameters("emb", emb=s)

    def f(ids: torch.Tensor) -> torch.Tensor:
        mask = (ids < s.start) | (ids >= s.stop)
        local = ids.clone() - s.start
        local[mask] = 0
        out = F.embedding(local, p["emb"])
        if masked:
            out = out.masked_fill(mask[..., None], 0.0)
        return Reduce.apply(out)

    return f, (IDS,)


def embedding_off_by_one(rank: int, ranks: int) -> Made:
    """Looks for a row more than it has."""
    s = part(V, rank, ranks)
    p = parameters("emb", emb=s)

    def f(ids: torch.Tensor) -> torch.Tensor:
        mask = (ids < s.start) | (ids > s.stop)
        local = torch.where(mask, 0, ids - s.start).clamp(max=V // ranks - 1)
        return Reduce.apply(F.embedding(local, p["emb"]).masked_fill(mask[..., None], 0.0))

    return f, (IDS,)


def embedding_unmasked(rank: int, ranks: int) -> Made:
    return embedding_vp(rank, ranks, masked=False)


def loss() -> Made:
    p = parameters("emb")
    return lambda x, t: F.cross_entropy((x @ p["emb"].t()).view(-1, V), t.view(-1)), (X, TARGET)


class VocabularyLoss(torch.autograd.Function):
    """Cross entropy of logits split over ranks."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, t: torch.Tensor, first: int, how: str) -> torch.Tensor:
        most, group = logits.amax(-1), GROUPS.get("tensor")
        dist.all_reduce(most, op=dist.ReduceOp.SUM if how == "added" else dist.ReduceOp.MAX, group=group)
        logits = logits - most[..., None]
        mask = (t < first) | (t >= first + logits.shape[-1])
        local = torch.where(mask, 0, t - first)
        mine = torch.gather(logits, -1, local[..., None]).squeeze(-1)
        mine = torch.where(mask, 0.0, mine)
        dist.all_reduce(mine, group=group)
        exp = logits.exp()
        total = exp.sum(-1)
        if how != "log":
            dist.all_reduce(total, group=group)
        ctx.save_for_backward(exp / total[..., None], mask, local)
        return total.log() - mine

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        soft, mask, local = ctx.saved_tensors
        hot = (local[..., None] == torch.arange(soft.shape[-1])).to(soft.dtype) * (~mask)[..., None]
        return (soft - hot) * g[..., None], None, None, None


def loss_vp(rank: int, ranks: int, how: str = "right") -> Made:
    s = part(V, rank, ranks)
    p = parameters("emb", emb=s)

    def f(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        logits = (Copy.apply(x) @ p["emb"].t()).view(-1, s.stop - s.start)
        out = VocabularyLoss.apply(logits, t.view(-1), s.start, how).mean()
        return out * ranks if how == "scaled" else out

    return f, (X, TARGET)


def loss_scaled(rank: int, ranks: int) -> Made:
    return loss_vp(rank, ranks, "scaled")


def loss_maxima_added(rank: int, ranks: int) -> Made:
    return loss_vp(rank, ranks, "added")


def loss_local_sum(rank: int, ranks: int) -> Made:
    return loss_vp(rank, ranks, "log")


# ------------------------------------------------------------------ data parallel, accumulation, uneven counts


def step_gradients() -> Made:
    p = parameters("w1")

    def f(x: torch.Tensor) -> torch.Tensor:
        loss = (x @ p["w1"]).pow(2).mean()
        return torch.autograd.grad(loss, p["w1"])[0]

    return f, (X,)


def step_gradients_dp(rank: int, ranks: int, mean: bool = True) -> Made:
    s = part(B, rank, ranks)
    p = parameters("w1")

    def f(x: torch.Tensor) -> torch.Tensor:
        loss = (x @ p["w1"]).pow(2).mean()
        g = torch.autograd.grad(loss, p["w1"])[0].clone()
        dist.all_reduce(g, op=dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM)
        return g

    return f, (X[s],)


def step_gradients_added(rank: int, ranks: int) -> Made:
    return step_gradients_dp(rank, ranks, mean=False)


WEIGHTS = torch.tensor([[1.0, 1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]])


def token_mean() -> Made:
    p = parameters("w1")
    return lambda x, w: ((x @ p["w1"]).pow(2).sum(-1) * w).sum() / w.sum(), (X, WEIGHTS)


def token_mean_dp(rank: int, ranks: int, means: bool = False) -> Made:
    s = part(B, rank, ranks)
    p = parameters("w1")

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total, count = ((x @ p["w1"]).pow(2).sum(-1) * w).sum(), w.sum()
        if means:
            mean = total / count
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            return mean
        both = torch.stack([total, count])
        dist.all_reduce(both)
        return both[0] / both[1]

    return f, (X[s], WEIGHTS[s])


def token_mean_of_means(rank: int, ranks: int) -> Made:
    return token_mean_dp(rank, ranks, means=True)


# ------------------------------------------------------------------ experts


def experts() -> Made:
    p = parameters("router", "e1", "e2")

    def f(x: torch.Tensor) -> torch.Tensor:
        gate = (x @ p["router"]).softmax(-1)
        out = [(x @ p["e1"][e]).relu() @ p["e2"][e] * gate[..., e : e + 1] for e in range(4)]
        return torch.stack(out).sum(0)

    return f, (X,)


def experts_ep(rank: int, ranks: int, router: Any = Copy) -> Made:
    s = part(4, rank, ranks)
    p = parameters("router", "e1", "e2", e1=s, e2=s)

    def f(x: torch.Tensor) -> torch.Tensor:
        gate = (x @ p["router"]).softmax(-1)
        gate = router.apply(gate)
        x = Copy.apply(x)
        mine = [
            (x @ p["e1"][i]).relu() @ p["e2"][i] * gate[..., s.start + i : s.start + i + 1] for i in range(4 // ranks)
        ]
        return Reduce.apply(torch.stack(mine).sum(0))

    return f, (X,)


class Doubled(Copy):
    """Sums gradients and multiplies them by the number of ranks."""

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        g = g * dist.get_world_size()
        dist.all_reduce(g)
        return g


def experts_doubled(rank: int, ranks: int) -> Made:
    return experts_ep(rank, ranks, router=Doubled)


# ------------------------------------------------------------------ interleaved weights, groups, order, pipelines


def fused() -> Made:
    w = torch.cat([P["wq"], P["wk"], P["wv"]], 1).requires_grad_()

    def f(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ w).chunk(3, -1)
        return (q * k.sigmoid() + v).sum(-1)

    return f, (X,)


def fused_tp(rank: int, ranks: int, wrong: bool = False) -> Made:
    s = part(H, rank, ranks)
    whole = torch.cat([P["wq"], P["wk"], P["wv"]], 1)
    if wrong:
        w = whole[:, part(3 * H, rank, ranks)].clone().requires_grad_()
    else:
        w = torch.cat([P[n][:, s] for n in ("wq", "wk", "wv")], 1).requires_grad_()

    def f(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (Copy.apply(x) @ w).chunk(3, -1)
        return Reduce.apply((q * k.sigmoid() + v).sum(-1))

    return f, (X,)


def fused_cut_through(rank: int, ranks: int) -> Made:
    return fused_tp(rank, ranks, wrong=True)


def grid(rank: int, ranks: int, wrong: bool = False) -> Made:
    """Tensor parallel 2 x data parallel: the sum over the ranks of the own group."""
    tp = 2
    groups = [dist.new_group([g * tp, g * tp + 1]) for g in range(ranks // tp)]
    across = [dist.new_group([g, g + tp]) for g in range(tp)]
    s = part(FF, rank % tp, tp)
    p = parameters("w1", "b1", "w2", "b2", w1=(slice(None), s), b1=s, w2=s)

    def f(x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(x @ p["w1"] + p["b1"]) @ p["w2"]
        dist.all_reduce(h, group=across[rank % tp] if wrong else groups[rank // tp])
        return h + p["b2"]

    return f, (X[part(B, rank // tp, ranks // tp)],)


def grid_wrong_group(rank: int, ranks: int) -> Made:
    return grid(rank, ranks, wrong=True)


def gathered(rank: int, ranks: int, wrong: bool = False) -> Made:
    s = part(FF, rank, ranks)
    p = parameters("w1", "b1", "w2", "b2", w1=(slice(None), s), b1=s)

    def f(x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(x @ p["w1"] + p["b1"])
        parts = [torch.empty_like(h) for _ in range(ranks)]
        dist.all_gather(parts, h)
        return torch.cat(parts[::-1] if wrong else parts, -1) @ p["w2"] + p["b2"]

    return f, (X,)


def gathered_backwards(rank: int, ranks: int) -> Made:
    return gathered(rank, ranks, wrong=True)


def pipeline(rank: int, ranks: int, swapped: bool = False) -> Made:
    """Two stages, two micro-batches, sent one behind the other."""
    p = parameters("w1", "b1") if rank == 0 else parameters("w2", "b2")

    def f(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(B, S, H)
        order = list(range(B))
        for i in order[::-1] if swapped and rank == 1 else order:
            if rank == 0:
                dist.send(F.gelu(x[i] @ p["w1"] + p["b1"]), 1)
            else:
                h = torch.empty(S, FF)
                dist.recv(h, 0)
                out[i] = h @ p["w2"] + p["b2"]
        dist.broadcast(out, 1)
        return out

    return f, (X,)


def pipeline_swapped(rank: int, ranks: int) -> Made:
    return pipeline(rank, ranks, swapped=True)


def ordered(rank: int, ranks: int, wrong: bool = False) -> Made:
    """Two collectives, on one rank in another order."""
    s = part(FF, rank, ranks)
    p = parameters("w1", "b1", "w2", "b2", w1=(slice(None), s), b1=s, w2=s)

    def f(x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(x @ p["w1"] + p["b1"]) @ p["w2"]
        one = torch.ones(3)
        if wrong and rank == 1:
            dist.broadcast(one, 0)
            dist.all_reduce(h)
        else:
            dist.all_reduce(h)
            dist.broadcast(one, 0)
        return h + p["b2"] * one[0]

    return f, (X,)


def ordered_otherwise(rank: int, ranks: int) -> Made:
    return ordered(rank, ranks, wrong=True)


class Net(torch.nn.Module):
    """A norm and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(H), torch.nn.Linear(H, FF), torch.nn.Linear(FF, H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(self.norm(x))))


NET = Net()


def module() -> Made:
    return copy.deepcopy(NET), (X,)


def module_dtensor(rank: int, ranks: int, wrong: bool = False) -> Made:
    """PyTorch's own tensor parallelism; parameters are cut on every rank, not sent by the first."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    net = copy.deepcopy(NET)
    rows = RowwiseParallel(output_layouts=Partial()) if wrong else RowwiseParallel()
    mesh = init_device_mesh("cpu", (ranks,))
    parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": rows}, src_data_rank=None)
    return net, (X,)


def module_dtensor_sp(rank: int, ranks: int) -> Made:
    """PyTorch's own sequence parallelism: gradients of the norm's weights are sums over ranks that nobody has made yet."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    net = copy.deepcopy(NET)
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(net, init_device_mesh("cpu", (ranks,)), plan, src_data_rank=None)
    return net, (X[:, part(S, rank, ranks)].clone(),)


def module_partial(rank: int, ranks: int) -> Made:
    return module_dtensor(rank, ranks, wrong=True)


# ------------------------------------------------------------------ attention over rings, gradients that are averaged


def softmax_attention() -> Made:
    p = parameters("wq", "wk", "wv")

    def f(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(x, p[n]) for n in ("wq", "wk", "wv"))
        return (q @ k.transpose(2, 3) / math.sqrt(D)).softmax(-1) @ v

    return f, (X,)


def ring(rank: int, ranks: int, rescaled: bool = True) -> Made:
    """Keys and values go round; the softmax is put together with a running maximum."""
    p = parameters("wq", "wk", "wv")

    def passed_on(x: torch.Tensor) -> torch.Tensor:
        new = torch.empty_like(x)
        if rank % 2 == 0:
            dist.send(x, (rank + 1) % ranks)
        dist.recv(new, (rank - 1) % ranks)
        if rank % 2:
            dist.send(x, (rank + 1) % ranks)
        return new

    def f(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(x, p[n]) for n in ("wq", "wk", "wv"))
        most, total, out = torch.full((*q.shape[:3], 1), -1e30), torch.zeros(*q.shape[:3], 1), torch.zeros_like(q)
        both = torch.stack([k, v]).contiguous()
        for turn in range(ranks):
            scores = q @ both[0].transpose(2, 3) / math.sqrt(D)
            larger = torch.maximum(most, scores.amax(-1, keepdim=True))
            weights, old = torch.exp(scores - larger), torch.exp(most - larger)
            total = total * old + weights.sum(-1, keepdim=True)
            out = (out * old if rescaled else out) + weights @ both[1]
            most = larger
            if turn + 1 < ranks:
                both = passed_on(both)
        return out / total

    return f, (X[:, part(S, rank, ranks)].clone(),)


def ring_not_rescaled(rank: int, ranks: int) -> Made:
    return ring(rank, ranks, rescaled=False)


def clipped() -> Made:
    p = parameters("w1", "w2")

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = (F.gelu(x @ p["w1"]) @ p["w2"]).pow(2).mean()
        grads = torch.autograd.grad(loss, (p["w1"], p["w2"]))
        norm = torch.sqrt(grads[0].pow(2).sum() + grads[1].pow(2).sum())
        return (*(g * torch.clamp(1.0 / (norm + 1e-6), max=1.0) for g in grads), norm)

    return f, (X,)


def clipped_tp(rank: int, ranks: int, together: bool = True) -> Made:
    """Gradients are clipped by the norm over all ranks."""
    s = part(FF, rank, ranks)
    p = parameters("w1", "w2", w1=(slice(None), s), w2=s)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = Reduce.apply(F.gelu(x @ p["w1"]) @ p["w2"]).pow(2).mean()
        grads = torch.autograd.grad(loss, (p["w1"], p["w2"]))
        squares = grads[0].pow(2).sum() + grads[1].pow(2).sum()
        if together:
            dist.all_reduce(squares)
        norm = torch.sqrt(squares)
        return (*(g * torch.clamp(1.0 / (norm + 1e-6), max=1.0) for g in grads), norm)

    return f, (X,)


def clipped_apart(rank: int, ranks: int) -> Made:
    return clipped_tp(rank, ranks, together=False)


def averaged() -> Made:
    p = parameters("w1", "w2")
    return lambda x: (F.gelu(x @ p["w1"]) @ p["w2"]).pow(2).mean(), (X,)


class MeanOverRanks(torch.autograd.Function):
    """The mean of what ranks have; gradients as they are."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


def averaged_dp(rank: int, ranks: int, mean: bool = True) -> Made:
    """Hooks average the gradients of parameters; that of the data, which needs none, is n times as large."""
    p = parameters("w1", "w2")

    def hook(g: torch.Tensor) -> torch.Tensor:
        g = g.clone()
        dist.all_reduce(g)
        return g / ranks if mean else g

    for tensor in p.values():
        tensor.register_hook(hook)
    return lambda x: MeanOverRanks.apply((F.gelu(x @ p["w1"]) @ p["w2"]).pow(2).mean()), (
        X[part(B, rank, ranks)].clone(),
    )


def averaged_not(rank: int, ranks: int) -> Made:
    return averaged_dp(rank, ranks, mean=False)


FAMILIES: tuple[tuple[str, str, tuple[str, ...], int, bool], ...] = (
    ("mlp", "mlp_tp", ("mlp_no_backward_sum", "mlp_summed_twice", "mlp_bias_each", "mlp_no_sum"), 4, True),
    ("attention", "attention_tp", ("attention_scaled",), 2, True),
    ("attention", "attention_sp", ("attention_no_offset", "attention_wrong_mask"), 2, False),
    ("norm", "norm_sp", ("norm_gradients_apart",), 2, True),
    ("rms", "rms_split", ("rms_local",), 4, False),
    ("embedding", "embedding_vp", ("embedding_unmasked", "embedding_off_by_one"), 2, True),
    ("loss", "loss_vp", ("loss_scaled", "loss_maxima_added", "loss_local_sum"), 2, True),
    ("step_gradients", "step_gradients_dp", ("step_gradients_added",), 2, False),
    ("token_mean", "token_mean_dp", ("token_mean_of_means",), 2, False),
    ("experts", "experts_ep", ("experts_doubled",), 2, True),
    ("fused", "fused_tp", ("fused_cut_through",), 2, True),
    ("mlp", "grid", ("grid_wrong_group",), 4, False),
    ("mlp", "gathered", ("gathered_backwards",), 2, False),
    ("mlp", "pipeline", ("pipeline_swapped",), 2, False),
    ("mlp", "ordered", ("ordered_otherwise",), 2, False),
    ("module", "module_dtensor", ("module_partial",), 2, True),
    ("module", "module_dtensor_sp", (), 2, True),
    ("softmax_attention", "ring", ("ring_not_rescaled",), 2, False),
    ("softmax_attention", "ring", (), 4, False),
    ("clipped", "clipped_tp", ("clipped_apart",), 2, False),
    ("averaged", "averaged_dp", ("averaged_not",), 2, True),
)
"""One device, the right program, wrong ones, ranks, whether gradients are compared."""


# ------------------------------------------------------------------ parts of sums, and what cannot be read


def mlp_open() -> Made:
    p = parameters("w1", "w2")
    return lambda x: (x @ p["w1"]).relu() @ p["w2"], (X,)


def mlp_open_tp(rank: int, ranks: int) -> Made:
    s = part(FF, rank, ranks)
    p = parameters("w1", "w2", w1=(slice(None), s), w2=s)
    return lambda x: (x @ p["w1"]).relu() @ p["w2"], (X,)


def gelu_of_sum() -> Made:
    p = parameters("w1", "w2")
    return lambda x: F.gelu((x @ p["w1"]).relu() @ p["w2"]), (X,)


def gelu_of_sum_tp(rank: int, ranks: int) -> Made:
    s = part(FF, rank, ranks)
    p = parameters("w1", "w2", w1=(slice(None), s), w2=s)

    def f(x: torch.Tensor) -> torch.Tensor:
        h = (x @ p["w1"]).relu() @ p["w2"]
        dist.all_reduce(h)
        return F.gelu(h)

    return f, (X,)


def mlp_other_weights(rank: int, ranks: int) -> Made:
    p = {n: torch.randn(P[n].shape, generator=torch.Generator().manual_seed(5)) for n in ("w1", "b1", "w2", "b2")}
    return lambda x: F.gelu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"], (X,)


def draws() -> Made:
    return lambda x: F.dropout(x, 0.5), (X,)


def reads_host() -> Made:
    return lambda x: x * float(x.sum()), (X,)


def picks() -> Made:
    return lambda x: x[x > 0].sum(), (X,)


def nothing() -> Made:
    return lambda x: None, (X,)
