"""Mixtures of experts, and models of images and text, from Hugging Face's configurations: two layers, small widths.

Every decoder returns the loss of its labels.  `implementation`: how `transformers` computes experts (its default sorts
tokens by expert and calls a grouped matrix product).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[Tensor, ...]]

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "use_cache": False,
    "num_experts_per_tok": 2,
}
FOUR = {"num_experts": 4, "moe_intermediate_size": 24}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "mixtral balanced": ("Mixtral", {"num_local_experts": 4, "output_router_logits": True}),
    "qwen2": ("Qwen2Moe", {**FOUR, "shared_expert_intermediate_size": 40}),
    "qwen3": ("Qwen3Moe", {**FOUR, "head_dim": 8, "norm_topk_prob": True}),
    "gpt-oss": ("GptOss", {"num_local_experts": 4, "head_dim": 8, "sliding_window": 4}),
    "jamba": (
        "Jamba",
        {
            "num_experts": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
        },
    ),
    "deepseek": (
        "DeepseekV3",
        {
            "num_key_value_heads": 4,
            "n_routed_experts": 8,
            "moe_intermediate_size": 24,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "n_shared_experts": 1,
        },
    ),
}


class Loss(nn.Module):
    """The loss of a language model whose labels are its inputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, labels=ids).loss


def decoder(name: str, implementation: str | None = None) -> Made:
    """A row of `CONFIGS`."""
    import transformers

    family, more = CONFIGS[name]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **more})
    if implementation is not None:
        config._experts_implementation = implementation
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    return Loss(model.eval()), (torch.zeros(2, 8, dtype=torch.int64),)


class Sorted(nn.Module):
    """A layer of experts as `transformers` writes it: tokens sorted by expert, grouped products, the order undone."""

    def __init__(self, count: int = 4, chosen: int = 2, model: int = 6, hidden: int = 5) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(model, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, model, hidden))
        self.down = nn.Parameter(torch.randn(count, hidden, model))
        self.bias = nn.Parameter(torch.randn(count, hidden))

    def product(self, rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        return torch.ops.transformers.grouped_mm_fallback(rows, weight, ends)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        values, chosen = torch.topk(F.softmax(self.router(tokens), -1), self.chosen, dim=-1)
        gates = values / values.sum(-1, keepdim=True)
        experts, order = torch.sort(chosen.reshape(-1))
        rows, weights = tokens[order // self.chosen], gates.reshape(-1)[order]
        count = self.up.shape[0]
        ends = torch.cumsum(torch.histc(experts.float(), bins=count, min=0, max=count - 1), 0, dtype=torch.int32)
        y = F.silu(self.product(rows, self.up, ends) + self.bias[experts])
        y = self.product(y, self.down, ends) * weights.unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.size(0), device=order.device)
        return y[back].view(tokens.shape[0], self.chosen, -1).sum(1).view(x.shape)


def sorted_experts(batch: int = 2, places: int = 3) -> Made:
    """The layer and tokens."""
    import transformers.integrations.moe  # noqa: F401  (registers the grouped product)

    return Sorted(), (torch.zeros(batch, places, 6),)


class Pictures(nn.Module):
    """LLaVA with its image tokens first in every row, so that their number fits the picture."""

    def __init__(self, model: nn.Module, tokens: int, mark: int) -> None:
        super().__init__()
        self.model, self.tokens, self.mark = model, tokens, mark

    def forward(self, ids: Tensor, pixels: Tensor) -> Tensor:
        marked = torch.where(torch.arange(ids.shape[1]) < self.tokens, self.mark, ids)
        return self.model(input_ids=marked, pixel_values=pixels, labels=marked).loss


def vision() -> dict[str, Any]:
    kept = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return {**{k: SIZES[k] for k in kept}, "image_size": 32, "patch_size": 8, "projection_dim": 16}


def llava() -> Made:
    """LLaVA: CLIP's vision tower, a projection, Llama."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    text = LlamaConfig(**{k: v for k, v in SIZES.items() if k != "num_experts_per_tok"})
    config = LlavaConfig(vision_config=CLIPVisionConfig(**vision()), text_config=text, image_token_id=60)
    config.image_token_index = 60
    config.use_cache = False
    ids, pixels = torch.zeros(2, 24, dtype=torch.int64), torch.zeros(2, 3, 32, 32)
    return Pictures(LlavaForConditionalGeneration(config).eval(), 16, 60), (ids, pixels)


class Contrast(nn.Module):
    """CLIP's loss of pairs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, pixels: Tensor) -> Tensor:
        return self.model(input_ids=ids, pixel_values=pixels, return_loss=True).loss


def clip() -> Made:
    """CLIP: the end of a text is its largest id."""
    from transformers import CLIPConfig, CLIPModel

    kept = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    text = {**{k: SIZES[k] for k in kept}, "max_position_embeddings": 16, "projection_dim": 16}
    text |= {"eos_token_id": 2, "bos_token_id": 62}
    config = CLIPConfig(text_config=text, vision_config=vision(), projection_dim=16)
    return Contrast(CLIPModel(config).eval()), (torch.zeros(2, 8, dtype=torch.int64), torch.zeros(2, 3, 32, 32))
