"""Small transformers for the roles of axes: eight of `transformers`, made from configurations, and one of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
import transformers as t
from torch import Tensor, nn

SIZES: Final = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
GPT2: Final = {"vocab_size": 64, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48}
OPT: Final = {**{k: v for k, v in SIZES.items() if k != "intermediate_size"}, "ffn_dim": 48, "word_embed_proj_dim": 32}


class Logits(nn.Module):  # type: ignore[misc]
    """Logits of a language model."""

    def __init__(self, m: nn.Module) -> None:
        super().__init__()
        self.m = m.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.m(input_ids=ids, use_cache=False).logits  # type: ignore[no-any-return]


class Plain(nn.Module):  # type: ignore[misc]
    """PyTorch's own encoder between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 64)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(ids)))  # type: ignore[no-any-return]


MADE: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(num_key_value_heads=2, **SIZES)),
    "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(num_key_value_heads=2, **SIZES)),
    "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(num_key_value_heads=2, head_dim=8, **SIZES)),
    "gemma": lambda: t.GemmaForCausalLM(t.GemmaConfig(num_key_value_heads=2, head_dim=8, **SIZES)),
    "mixtral": lambda: t.MixtralForCausalLM(
        t.MixtralConfig(num_key_value_heads=2, num_local_experts=4, sliding_window=None, **SIZES)
    ),
    "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(**GPT2)),
    "neox": lambda: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**SIZES)),
    "opt": lambda: t.OPTForCausalLM(t.OPTConfig(**OPT)),
    "bert": lambda: t.BertForMaskedLM(t.BertConfig(**SIZES)),
    "plain": Plain,
}


def _case(name: str) -> tuple[nn.Module, tuple[Tensor]]:
    torch.manual_seed(0)
    module = MADE[name]()
    return (module.eval() if name == "plain" else Logits(module)), (torch.arange(128).reshape(8, 16) % 64,)


def llama() -> tuple[nn.Module, tuple[Tensor]]:
    return _case("llama")


def qwen2() -> tuple[nn.Module, tuple[Tensor]]:
    return _case("qwen2")


def qwen3() -> tuple[nn.Module, tuple[Tensor]]:
    return _case("qwen3")


def gemma() -> tuple[nn.Module, tuple[Tensor]]:
    return _case("gemma")


def mixtral() -> tuple[nn.Module, tuple[Tensor]]:
    return _case("mixtral")


def gpt2() -> tuple[nn.Module, tuple[Tensor]]:
    return _case("gpt2")


def neox() -> tuple[nn.Module, tuple[Tensor]]:
    return _case("neox")


def opt() -> tuple[nn.Module, tuple[Tensor]]:
    return _case("opt")


def bert() -> tuple[nn.Module, tuple[Tensor]]:
    return _case("bert")


def plain() -> tuple[nn.Module, tuple[Tensor]]:
    return _case("plain")
