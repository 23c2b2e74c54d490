"""Twenty models that people have, of few layers and the widths of small members: eleven of Hugging Face
and nine convolution nets of plain PyTorch; what joint plans are measured on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn

from tests.torch_models.convolutional import NETS
from tests.torch_models.families import First

Inputs = dict[str, Tensor] | tuple[Tensor, ...]
Made = tuple[nn.Module, Inputs]

BATCH, LENGTH, WORDS, WIDTH = 8, 32, 512, 128
SIZES: Final = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 4 * WIDTH,
}
GROUPED: Final = {**SIZES, "num_key_value_heads": 2, "use_cache": False}
SEEN: Final = {**{k: v for k, v in SIZES.items() if k != "vocab_size"}, "image_size": 32, "patch_size": 8}


def _made(stem: str, head: str, inputs: Inputs, **options: object) -> Made:
    import transformers

    config = getattr(transformers, f"{stem}Config")(**options)
    return First(getattr(transformers, stem + head)(config)), inputs


def _words(key: str = "input_ids", length: int = LENGTH) -> dict[str, Tensor]:
    return {key: torch.zeros(BATCH, length, dtype=torch.int64)}


def _masked() -> dict[str, Tensor]:
    return {**_words(), "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.int64)}


def _seen() -> dict[str, Tensor]:
    return {"pixel_values": torch.zeros(BATCH, 3, 32, 32)}


def bert() -> Made:
    """BERT with its language head and a mask."""
    return _made("Bert", "ForMaskedLM", _masked(), **SIZES)


def deberta() -> Made:
    """DeBERTa v2, whose attention knows distances."""
    return _made("DebertaV2", "ForMaskedLM", _masked(), **SIZES, relative_attention=True, pos_att_type=["c2p", "p2c"])


def gpt2() -> Made:
    """GPT-2; the table of words is the head's too."""
    sizes = {"n_layer": 2, "n_embd": WIDTH, "n_head": 4, "vocab_size": WORDS}
    return _made("GPT2", "LMHeadModel", _words(), **sizes)


def llama() -> Made:
    """Llama with grouped queries."""
    return _made("Llama", "ForCausalLM", _words(), **GROUPED)


def gemma2() -> Made:
    """Gemma 2: capped scores, four norms a layer."""
    return _made("Gemma2", "ForCausalLM", _words(), **GROUPED, head_dim=64, query_pre_attn_scalar=64)


def mixtral() -> Made:
    """Mixtral: four experts, of which two are chosen."""
    return _made(
        "Mixtral", "ForCausalLM", _words(), **GROUPED, num_local_experts=4, experts_implementation="batched_mm"
    )


def t5() -> Made:
    """T5: encoder and decoder with distances in the scores."""
    sizes = {"d_model": WIDTH, "d_kv": 64, "d_ff": 4 * WIDTH, "num_layers": 1, "num_heads": 4, "vocab_size": WORDS}
    return _made("T5", "ForConditionalGeneration", {**_words(), **_words("decoder_input_ids", 16)}, **sizes)


def mamba() -> Made:
    """Mamba: a scan of states."""
    return _made("Mamba", "ForCausalLM", _words(), hidden_size=WIDTH, num_hidden_layers=1, vocab_size=WORDS)


def vit() -> Made:
    """The vision transformer."""
    return _made("ViT", "ForImageClassification", _seen(), **SEEN)


def swin() -> Made:
    """Swin: attention in shifted windows."""
    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4]}
    return _made("Swin", "ForImageClassification", _seen(), **sizes, window_size=4)


def convnext() -> Made:
    """ConvNeXt: depthwise convolutions and norms of channels."""
    sizes = {"depths": [1, 1, 2, 1], "hidden_sizes": [32, 64, 128, 256]}
    return _made("ConvNext", "ForImageClassification", _seen(), **sizes)


TWENTY: Final[Mapping[str, Callable[[], Made]]] = MappingProxyType(
    {
        make.__name__: make
        for make in (bert, deberta, gpt2, llama, gemma2, mixtral, t5, mamba, vit, swin, convnext, *NETS)
    }
)
"""Name -> what makes the module and its inputs."""
