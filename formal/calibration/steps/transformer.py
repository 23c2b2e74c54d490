r"""Computes work of a training step of a transformer on one device: flops, bytes, moves on its critical
path.

tokens of a micro-batch   M = micro_batch seq / cp        slots  n = micro-batches + (pp - 1) / vp
passes                    forward 1, backward 2 (1 where only adapters learn), again forward with full recomputation
products                  n passes 2 M (layers weights / (pp tp)  +  output weights / (pp tp))
attention                 n (passes + 1/2) layers / pp  2 M seq width / tp        causal: half of the pairs; the half
                          pass is the scores that a fused backward computes again
activations               n passes layers / pp  2 M h / tp bytes: one tensor of every layer, once
tensor                    n passes layers / pp  4 M h (tp - 1) / tp bytes: gathered and scattered around two blocks
shards                    micro-batches (2 or 3 times 2 bytes) of the parameters that are gathered and scattered
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ....models.text import InputError


@dataclass(frozen=True)
class Transformer:
    """Layers, widths and heads; `gated` feed-forward has three products, else two.  Mixtures of experts: `ffn` is the
    width of all experts that see a token.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    gated: bool

    @property
    def layer_weights(self) -> int:
        """Of the products that a token passes in one layer.

        >>> MODELS["llama3-8b"].layer_weights * 32
        6979321856
        """
        head = self.hidden // self.heads
        return (
            2 * self.hidden * self.hidden
            + 2 * self.hidden * head * self.kv_heads
            + (3 if self.gated else 2) * self.hidden * self.ffn
        )

    @property
    def parameters(self) -> int:
        """Of all layers and both ends."""
        return self.layers * self.layer_weights + 2 * self.hidden * self.vocabulary


MODELS: Final[Mapping[str, Transformer]] = {
    "gpt3-175b": Transformer(96, 12288, 49152, 96, 96, 51200, gated=False),
    "llama3-8b": Transformer(32, 4096, 14336, 32, 8, 128256, gated=True),
    "llama3-70b": Transformer(80, 8192, 28672, 64, 8, 128256, gated=True),
    "llama3-405b": Transformer(126, 16384, 53248, 128, 8, 128256, gated=True),
    "nemotron4-15b": Transformer(32, 6144, 24576, 48, 8, 256000, gated=False),
    "nemotron4-340b": Transformer(96, 18432, 73728, 96, 8, 256000, gated=False),
    "grok1-314b": Transformer(64, 6144, 2 * 32768, 48, 8, 131072, gated=True),
    "mpt-125m": Transformer(12, 768, 3072, 12, 12, 50368, gated=False),
    "mpt-350m": Transformer(24, 1024, 4096, 16, 16, 50368, gated=False),
    "mpt-760m": Transformer(24, 1536, 6144, 12, 12, 50368, gated=False),
    "mpt-1b": Transformer(24, 2048, 8192, 16, 16, 50368, gated=False),
    "mpt-3b": Transformer(32, 2560, 10240, 20, 20, 50368, gated=False),
    "mpt-7b": Transformer(32, 4096, 16384, 32, 32, 50368, gated=False),
    "mpt-13b": Transformer(40, 5120, 20480, 40, 40, 50368, gated=False),
    "mpt-30b": Transformer(48, 7168, 28672, 56, 56, 50368, gated=False),
    "mpt-70b": Transformer(80, 8192, 32768, 64, 64, 50368, gated=False),
    "deepseek-v3": Transformer(61, 7168, 9 * 2048, 128, 128, 129280, gated=True),
    "qwen3-30b-a3b": Transformer(48, 2048, 8 * 768, 32, 4, 151936, gated=True),
    "qwen3-235b-a22b": Transformer(94, 4096, 8 * 1536, 64, 4, 151936, gated=True),
    "gpt-oss-120b": Transformer(36, 2880, 4 * 2880, 45, 8, 201088, gated=True),
}
"""Shapes as their authors' configuration files have them (GPT-OSS: 64 heads of 64, written as the 45 that fill h)."""


@dataclass(frozen=True)
class Layout:
    """How a step is spread: `virtual` chunks of a stage; `sharded`: parameters gathered over so many devices (1: kept);
    `recompute`: every layer's forward twice; `adapters`: frozen weights, so that the backward has one pass.
    """

    micro_batch: int
    micro_batches: int
    seq: int
    tp: int = 1
    pp: int = 1
    virtual: int = 1
    cp: int = 1
    dp: int = 1
    sharded: int = 1
    recompute: bool = False
    adapters: bool = False
    ends_as_layers: int = 0
    causal: bool = True

    def __post_init__(self) -> None:
        for name in ("micro_batch", "micro_batches", "seq", "tp", "pp", "virtual", "cp", "dp", "sharded"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it has to be at least 1")


@dataclass(frozen=True)
class Work:
    """Of one device in one step: flops of products and attention, bytes of activations, of tensor and shard moves,
    parameters held, slots.
    """

    products: float
    attention: float
    activations: float
    tensor: float
    shards: float
    parameters: float
    slots: float


def work(model: Transformer, layout: Layout) -> Work:
    """The terms of the module's table.

    >>> w = work(MODELS["llama3-8b"], Layout(micro_batch=1, micro_batches=32, seq=8192, cp=2, dp=4))
    >>> f"{w.products:.3g} {w.attention:.3g} {w.tensor:.3g}"
    '5.9e+15 9.85e+14 0'
    """
    passes = (2 if layout.adapters else 3) + layout.recompute
    tokens = layout.micro_batch * layout.seq / layout.cp
    slots = layout.micro_batches + (layout.pp - 1) / layout.virtual
    stage = (model.layers + layout.ends_as_layers) / layout.pp
    per_pass = slots * passes
    ends = 0 if layout.ends_as_layers else model.hidden * model.vocabulary / layout.pp
    weights = stage * model.layer_weights + ends
    parameters = model.parameters / (layout.tp * layout.pp)
    return Work(
        products=per_pass * 2 * tokens * weights / layout.tp,
        attention=slots
        * (passes + 0.5)
        * stage
        * (2 if layout.causal else 4)
        * tokens
        * layout.seq
        * model.hidden
        / layout.tp,
        activations=per_pass * stage * 2 * tokens * model.hidden / layout.tp,
        tensor=per_pass * stage * 4 * tokens * model.hidden * (layout.tp - 1) / layout.tp,
        shards=layout.micro_batches * passes * 2 * parameters * (layout.sharded - 1) / layout.sharded,
        parameters=parameters,
        slots=slots,
    )
