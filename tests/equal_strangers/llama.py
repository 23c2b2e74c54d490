"""HF-like Llama/Qwen, TP with sequence parallelism or plain, GQA."""

import mpu
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

L, H, KV, HD, D, I, V, S, B = 1, 8, 4, 4, 32, 48, 48, 24, 2
QWEN = TIE = SDPA = False


def sizes(layers=1, heads=8, qwen=False, tie=False, sdpa=False):
    """So many layers and heads from now on; `qwen`: norms of queries and keys, and biases."""
    global L, H, D, QWEN, TIE, SDPA
    L, H, D, QWEN, TIE, SDPA = layers, heads, heads * HD, qwen, tie, sdpa


class LlamaRMSNorm(nn.Module):
    def __init__(self, n, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        dt = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(dt)


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer(
            "inv_freq", 1.0 / (10000 ** (torch.arange(0, HD, 2, dtype=torch.int64).float() / HD)), persistent=False
        )

    @torch.no_grad()
    def forward(self, x, position_ids):
        inv = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        pos = position_ids[:, None, :].float()
        freqs = (inv.float() @ pos.float()).transpose(1, 2)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def repeat_kv(x, n):
    b, h, s, d = x.shape
    if n == 1:
        return x
    return x[:, :, None, :, :].expand(b, h, n, s, d).reshape(b, h * n, s, d)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(D, H * HD, bias=QWEN)
        self.k_proj = nn.Linear(D, KV * HD, bias=QWEN)
        self.v_proj = nn.Linear(D, KV * HD, bias=QWEN)
        self.o_proj = nn.Linear(H * HD, D, bias=False)
        if QWEN:
            self.q_norm, self.k_norm = LlamaRMSNorm(HD), LlamaRMSNorm(HD)
        self.pick = None

    def forward(self, x, pos, mask):
        q = self.q_proj(x)
        k = self.k_proj(x)
        v = self.v_proj(x)
        b, s = q.shape[:2]
        q = q.view(b, s, -1, HD)
        k = k.view(b, s, -1, HD)
        v = v.view(b, s, -1, HD).transpose(1, 2)
        if QWEN:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        q, k = apply_rotary(q, k, *pos)
        k, v = repeat_kv(k, q.shape[1] // k.shape[1]), repeat_kv(v, q.shape[1] // v.shape[1])
        if SDPA:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            w = torch.matmul(q, k.transpose(2, 3)) * HD**-0.5 + mask
            o = F.softmax(w, dim=-1, dtype=torch.float32).to(q.dtype) @ v
        return self.o_proj(o.transpose(1, 2).contiguous().reshape(b, s, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(D, I, bias=False)
        self.up_proj = nn.Linear(D, I, bias=False)
        self.down_proj = nn.Linear(I, D, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = Attention()
        self.mlp = MLP()
        self.input_layernorm = LlamaRMSNorm(D)
        self.post_attention_layernorm = LlamaRMSNorm(D)

    def forward(self, x, pos, mask):
        r = x
        x = self.input_layernorm(x)
        x = r + self.self_attn(x, pos, mask)
        r = x
        x = self.post_attention_layernorm(x)
        return r + self.mlp(x)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(V, D)
        self.layers = nn.ModuleList(Layer() for _ in range(L))
        self.norm = LlamaRMSNorm(D)
        self.rotary = Rotary()
        self.lm_head = nn.Linear(D, V, bias=False)
        if TIE:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids, labels):
        x = self.embed_tokens(ids)
        pos = self.rotary(x, torch.arange(ids.shape[1]).unsqueeze(0))
        mask = torch.triu(torch.full((ids.shape[1],) * 2, torch.finfo(x.dtype).min), diagonal=1)[None, None]
        for l in self.layers:
            x = l(x, pos, mask)
        logits = self.lm_head(self.norm(x)).float()
        return F.cross_entropy(logits[..., :-1, :].contiguous().view(-1, V), labels[..., 1:].contiguous().view(-1))


def make():
    torch.manual_seed(5)
    m = Llama()
    for n, p in m.named_parameters():
        if "norm" in n:
            p.data += 0.1 * torch.randn_like(p)
    return m


def data():
    g = torch.Generator().manual_seed(3)
    return torch.randint(0, V, (B, S), generator=g), torch.randint(0, V, (B, S), generator=g)


def single():
    return make(), data()


class TPLlama(nn.Module):
    def __init__(self, m, bug=""):
        super().__init__()
        n = mpu.tp()
        self.m = m
        self.bug = bug
        m.embed_tokens = mpu.VocabParallelEmbedding(m.embed_tokens)
        for l in m.layers:
            a, p = l.self_attn, l.mlp
            for name in ("q_proj", "k_proj", "v_proj"):
                if name != "q_proj" and KV < n:
                    lin = getattr(a, name)
                    h = mpu.rk() * KV // n
                    if bug == "kv":
                        h = mpu.rk() % KV
                    lin.weight = nn.Parameter(lin.weight.detach()[h * HD : (h + 1) * HD].clone())
                    if lin.bias is not None:
                        lin.bias = nn.Parameter(lin.bias.detach()[h * HD : (h + 1) * HD].clone())
                    setattr(a, name, nn.Sequential(_C(), lin))
                else:
                    setattr(a, name, mpu.ColumnParallelLinear(getattr(a, name)))
            a.o_proj = mpu.RowParallelLinear(a.o_proj)
            p.gate_proj = mpu.ColumnParallelLinear(p.gate_proj)
            p.up_proj = mpu.ColumnParallelLinear(p.up_proj)
            p.down_proj = mpu.RowParallelLinear(p.down_proj)
        if TIE:
            self.m.lm_head = None
        else:
            m.lm_head = mpu.ColumnParallelLinear(m.lm_head)

    def forward(self, ids, labels):
        m = self.m
        x = m.embed_tokens(ids)
        pos = m.rotary(x, torch.arange(ids.shape[1]).unsqueeze(0) + (mpu.rk() if self.bug == "rope" else 0))
        mask = torch.triu(
            torch.full((ids.shape[1],) * 2, torch.finfo(x.dtype).min),
            diagonal=1 if self.bug != "mask" else 1 + mpu.rk(),
        )[None, None]
        for l in m.layers:
            x = l(x, pos, mask)
        x = m.norm(x)
        logits = (mpu._Copy.apply(x) @ m.embed_tokens.weight.t() if TIE else m.lm_head(x)).float()
        return mpu.vocab_parallel_cross_entropy(
            logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous(), self.bug
        ).mean()


class _C(nn.Module):
    def forward(self, x):
        return mpu._Copy.apply(x)


def step(model, names=None, hook=None):
    def f(ids, labels):
        loss = model(ids, labels)
        loss.backward()
        g = {"loss": loss.detach()}
        for n, p in model.named_parameters():
            n = n.removeprefix("m.").replace("proj.1.", "proj.")
            grad = p.grad
            if hook:
                grad = hook(n, grad)
            g["g." + n] = grad
        return g

    return f


def single_step():
    return step(make()), data()


def _hook(n, g):
    if "q_norm" in n or "k_norm" in n:
        dist.all_reduce(g)
    return g


def right(r, n):
    return step(TPLlama(make()), hook=_hook), data()


def w_rope(r, n):
    return step(TPLlama(make(), "rope"), hook=_hook), data()


def w_mask(r, n):
    return step(TPLlama(make(), "mask"), hook=_hook), data()


def w_sum_local(r, n):
    return step(TPLlama(make(), "sum_local"), hook=_hook), data()


def w_qnorm(r, n):
    return step(TPLlama(make())), data()


def _hook_kv(n, g):
    g = _hook(n, g)
    w = dist.get_world_size()
    if ("k_proj" in n or "v_proj" in n) and KV < w:
        rep = w // KV
        for j in range(KV):
            grp = dist.new_group(list(range(j * rep, (j + 1) * rep)))
            if mpu.rk() // rep == j:
                dist.all_reduce(g, group=grp)
    return g


def right_kv(r, n):
    return step(TPLlama(make()), hook=_hook_kv), data()


def w_kv(r, n):
    return step(TPLlama(make(), "kv"), hook=_hook_kv), data()


def w_kvgrad(r, n):
    return step(TPLlama(make()), hook=_hook), data()


# ---- sequence parallel
class SPLlama(nn.Module):
    def __init__(self, m, bug=""):
        super().__init__()
        self.m = m
        self.bug = bug
        m.embed_tokens = mpu.VocabParallelEmbedding(m.embed_tokens, sp=True)
        for l in m.layers:
            a, p = l.self_attn, l.mlp
            for name in ("q_proj", "k_proj", "v_proj"):
                setattr(a, name, mpu.ColumnParallelLinear(getattr(a, name), copy=False))
            a.o_proj = mpu.RowParallelLinear(a.o_proj, sp=True)
            p.gate_proj = mpu.ColumnParallelLinear(p.gate_proj, copy=False)
            p.up_proj = mpu.ColumnParallelLinear(p.up_proj, copy=False)
            p.down_proj = mpu.RowParallelLinear(p.down_proj, sp=True)
        m.lm_head = mpu.ColumnParallelLinear(m.lm_head, sp=True, copy=False)

    def forward(self, ids, labels):
        m = self.m
        x = m.embed_tokens(ids)  # [s/n, b, d]
        T = ids.shape[1]
        pos = m.rotary(x, torch.arange(T).unsqueeze(0))
        mask = torch.triu(torch.full((T, T), torch.finfo(x.dtype).min), diagonal=1)[None, None]
        for l in m.layers:
            h = mpu._GatherSeq.apply(l.input_layernorm(x)).transpose(0, 1)
            a = l.self_attn
            q, k, v = a.q_proj(h), a.k_proj(h), a.v_proj(h)
            b, s = q.shape[:2]
            q = q.view(b, s, -1, HD)
            k = k.view(b, s, -1, HD)
            v = v.view(b, s, -1, HD).transpose(1, 2)
            if QWEN:
                q, k = a.q_norm(q), a.k_norm(k)
            q, k = apply_rotary(q.transpose(1, 2), k.transpose(1, 2), *pos)
            k, v = repeat_kv(k, q.shape[1] // k.shape[1]), repeat_kv(v, q.shape[1] // v.shape[1])
            w = q @ k.transpose(2, 3) * HD**-0.5 + mask
            o = (F.softmax(w, dim=-1, dtype=torch.float32).to(q.dtype) @ v).permute(2, 0, 1, 3).reshape(s, b, -1)
            x = x + a.o_proj(o)
            h = mpu._GatherSeq.apply(l.post_attention_layernorm(x))
            x = x + l.mlp(h)
        logits = m.lm_head(m.norm(x)).transpose(0, 1).float()
        return mpu.vocab_parallel_cross_entropy(
            logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous(), self.bug
        ).mean()


def _hook_sp(n, g):
    if "norm" in n:
        dist.all_reduce(g)
    return g


def right_sp(r, n):
    return step(SPLlama(make()), hook=_hook_sp), data()


def w_spnorm(r, n):
    return step(SPLlama(make()), hook=lambda n, g: _hook_sp(n, g) if n != "norm.weight" else g), data()
