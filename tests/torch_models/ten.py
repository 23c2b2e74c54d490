"""Ten models of plain PyTorch and Hugging Face, small: what exported plans are tried on.  A job runs this file alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, dict[str, Tensor] | tuple[Tensor, ...]]


def _text(config: str, model: str, batch: int, length: int, **options: object) -> Made:
    import transformers

    module = getattr(transformers, model)(getattr(transformers, config)(**options))
    return module.eval(), {"input_ids": torch.zeros(batch, length, dtype=torch.int64)}


def bert() -> Made:
    """Hugging Face BERT with its language head, two layers."""
    return _text(
        "BertConfig",
        "BertForMaskedLM",
        4,
        16,
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )


def gpt2() -> Made:
    """Hugging Face GPT-2, two layers; the table of words is the head's too."""
    return _text("GPT2Config", "GPT2LMHeadModel", 4, 16, vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=32)


def llama() -> Made:
    """Hugging Face Llama with grouped queries, two layers."""
    return _text(
        "LlamaConfig",
        "LlamaForCausalLM",
        4,
        16,
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        use_cache=False,
    )


def mixtral() -> Made:
    """Hugging Face Mixtral: four experts, of which two are chosen."""
    made, inputs = _text(
        "MixtralConfig",
        "MixtralForCausalLM",
        4,
        8,
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=32,
        use_cache=False,
    )
    return made, inputs


def vit() -> Made:
    """Hugging Face ViT for classes."""
    import transformers

    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        num_labels=8,
    )
    return transformers.ViTForImageClassification(config).eval(), {"pixel_values": torch.zeros(8, 3, 16, 16)}


def resnet() -> Made:
    """Torchvision's residual blocks, one per stage, statistics of the batch."""
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=8).train(), (torch.zeros(8, 3, 32, 32),)


class Dlrm(nn.Module):  # type: ignore[misc]
    """Tables of rows, a bottom perceptron, products of all pairs, a top perceptron."""

    def __init__(self, tables: int = 3, rows: int = 40, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, *sparse: Tensor) -> Tensor:
        low = self.bottom(dense)
        parts = torch.stack([low, *(table(ids) for table, ids in zip(self.tables, sparse, strict=True))], 1)
        products = torch.bmm(parts, parts.transpose(1, 2))
        row, column = torch.tril_indices(parts.shape[1], parts.shape[1], offset=-1)
        return self.top(torch.cat([low, products[:, row, column]], 1))


def dlrm() -> Made:
    """Recommendation: categories and numbers."""
    return Dlrm(), (torch.zeros(16, 8), *(torch.zeros(16, 2, dtype=torch.int64) for _ in range(3)))


def mlp() -> Made:
    """A perceptron with normalisation."""
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)), (
        torch.zeros(16, 32),
    )


def convolutions() -> Made:
    """Convolutions, pools and a dense layer."""
    layers = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 16),
    )
    return nn.Sequential(*layers), (torch.zeros(8, 3, 8, 8),)


class Causal(nn.Module):  # type: ignore[misc]
    """A layer with causal attention by PyTorch's own function."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).chunk(3, dim=-1)
        q, k, v = (t.reshape(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


def causal() -> Made:
    """A transformer layer with causal attention."""
    return Causal(), (torch.zeros(4, 16, 32),)


TEN = (bert, gpt2, llama, mixtral, vit, resnet, dlrm, mlp, convolutions, causal)
