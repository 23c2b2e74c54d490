"""Peak bytes that PyTorch allocates on the last pipeline rank of a Megatron step: an upper bound with
its parts named.

    weights, gradients, optimizer   2, 4 and 12 bytes a parameter (bf16 copy; fp32 sum; fp32 copy and two moments), the
                      last over d devices with a distributed optimizer
    activations       a token and layer:  2 h each for the inputs of both norms and of the blocks behind them, one byte
                      a dropout mask: 10 h (over t with sequence parallelism);  over t: queries, keys, values, result,
                      both sides of the MLP, and 2 h + 4 a of a fused attention, or 5 a s (2 a s without dropout) where
                      scores are kept                              "34 + 5 a s / h" of arXiv 2205.05198
                      experts: 4 k h sent and received, then 4 h + 2 f (1 + gates) of every row that arrives
    in flight         the last stage holds one micro batch; interleaved, every chunk but the last holds one per stage
    logits            6 bytes: bf16, and the fp32 copy that the cross entropy works in
    workspaces        cuBLAS once per thread (forward, backward): 32 MiB where results must repeat (configuration
                      :4096:8) or on Hopper, else 8.125 MiB;  Transformer Engine 4 MiB, on Hopper 32, four more for
                      grouped products
Margins, named because nothing of the code gives them: `MARGIN_LAYER` (0.7 h a token and layer), `MARGIN_STAGE` (10.5 h
a token), `MARGIN_SMALL` (half a percent: scalars, statistics, blocks of 512 bytes), `IMBALANCE` (a quarter more rows at
an expert than its share).  What is freed before the peak is not subtracted.

Source: the allocations of NVIDIA's Megatron-LM and Transformer Engine; checked on 478 logged peaks
(tests/benchmarks/results/measured.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Final

__all__ = ["Experts", "Latent", "Software", "Split", "Stage", "Transformer", "peak", "total"]

MIB: Final = 1 << 20
MARGIN_LAYER: Final = Fraction(7, 10)
MARGIN_STAGE: Final = Fraction(21, 2)
MARGIN_SMALL: Final = Fraction(1, 200)
IMBALANCE: Final = Fraction(5, 4)


@dataclass(frozen=True)
class Experts:
    """A mixture: `count` experts of width `ffn`, `top_k` per token, a shared one of width `shared` (0: none).
    `gathered`: every rank of the group sees all tokens (the allgather dispatcher).
    """

    count: int
    top_k: int
    ffn: int
    shared: int = 0
    gathered: bool = False
    grouped: bool = False
    overlapped: bool = False


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: ranks of the compressed queries and keys, widths per head."""

    query_rank: int
    key_rank: int
    width: int
    positions: int
    values: int


@dataclass(frozen=True)
class Transformer:
    """One model; `vocabulary` is padded, `head` the width of a head, `predictions` extra layers that predict further
    tokens.
    """

    hidden: int
    heads: int
    groups: int
    head: int
    ffn: int
    sequence: int
    vocabulary: int
    gated: bool = False
    bias: bool = True
    learned_positions: bool = True
    untied: bool = False
    normed_queries: bool = False
    attention_dropout: bool = True
    experts: Experts | None = None
    latent: Latent | None = None
    predictions: int = 0


@dataclass(frozen=True)
class Split:
    """Devices along each dimension; `sharded`: devices that share the optimizer's state of what is not an expert,
    `expert_sharded` of experts (1: all of it here); `fsdp`: weights and gradients are sharded as well.
    """

    tensor: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence: bool = False
    sharded: int = 1
    expert_sharded: int = 1
    fsdp: int = 1
    expert_fsdp: int = 1


@dataclass(frozen=True)
class Stage:
    """Layers of the last rank per chunk, (dense, with experts) each; `in_turn`: micro batches that one chunk runs
    before the next (the number of stages, unless told otherwise).
    """

    chunks: tuple[tuple[int, int], ...]
    stages: int
    micro_batch: int
    in_turn: int

    @property
    def dense(self) -> int:
        """Layers without experts."""
        return sum(d for d, _ in self.chunks)

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return sum(m for _, m in self.chunks)

    def in_flight(self) -> tuple[int, int]:
        """Layers whose activations live at the peak, counted once per micro batch.

        >>> Stage(((3, 0),), 4, 4, 4).in_flight(), Stage(((1, 0),) * 3, 4, 4, 4).in_flight()
        ((3, 0), (9, 0))
        """
        *before, last = self.chunks
        return (
            last[0] + self.in_turn * sum(d for d, _ in before),
            last[1] + self.in_turn * sum(m for _, m in before),
        )


@dataclass(frozen=True)
class Software:
    """What the run links and is told.  `loss_copies`: fp32 copies of the logits that a fused cross entropy keeps beside
    the usual one; `deferred`: micro batches whose weight gradient of the output layer waits.
    """

    fused_attention: bool = True
    fused_softmax: bool = True
    transformer_engine: bool = True
    repeatable: bool = False
    hopper: bool = False
    half: bool = False
    recompute: str = ""
    recomputed: frozenset[str] = field(default_factory=frozenset)
    loss_copies: int = 0
    deferred: int = 0
    resumed: bool = False


def peak(model: Transformer, split: Split, stage: Stage, software: Software) -> Mapping[str, int]:
    """Bytes per part, rounded up; their sum is the bound.

    >>> gpt = Transformer(512, 8, 8, 64, 2048, 1024, 50304)
    >>> flash = peak(gpt, Split(sharded=8), Stage(((12, 0),), 1, 4, 1), Software(repeatable=True))
    >>> total(flash), flash["weights"]               # logged on A100: 2,711,714,304
    (2753467883, 128219136)
    """
    out: dict[str, Fraction] = {}
    plain, expert, table = _parameters(model, split, stage)
    out["weights"] = 2 * (plain / split.fsdp + expert / split.expert_fsdp)
    out["gradients"] = 4 * (plain / split.fsdp + expert / split.expert_fsdp)
    out["optimizer"] = 12 * (plain / split.sharded + expert / split.expert_sharded)
    if split.fsdp > 1:
        layers = stage.dense + stage.expert_layers
        each = (plain - table) / max(1, layers) + expert / max(1, layers)
        out["gathered weights"] = Fraction(6 if expert else 2) * (table + 2 * each)
    if software.resumed:
        sharded = split.sharded > 1 or split.fsdp > 1
        out["loaded state"] = (4 if sharded else 8) * (plain + expert)
    t, tokens = split.tensor, Fraction(stage.micro_batch * model.sequence, split.context)
    shared = t if split.sequence else 1
    dense, mixed, routed = _layer(model, split, software, tokens)
    logits = tokens * model.vocabulary / t
    out["logits"] = 6 * logits * (1 + model.predictions)
    live = stage.in_flight()
    if software.recompute == "full":
        out["checkpoints"] = sum(live) * 2 * tokens * model.hidden / shared
        out["activations"] = max(Fraction(0), max(dense, mixed) - out["logits"])
    else:
        out["activations"] = live[0] * dense + live[1] * mixed
    if model.experts is not None:
        out["activations"] += model.predictions * (mixed + 8 * tokens * model.hidden / shared)
        out["exchange"] = routed
        if model.experts.overlapped:
            out["two micro batches at once"] = 4 * mixed
    out["between layers"] = MARGIN_STAGE * tokens * model.hidden
    if software.loss_copies:
        out["fused loss"] = (4 * software.loss_copies + 1) * logits
    if software.deferred:
        held = 2 * logits + 2 * tokens * model.hidden
        out["deferred gradients"] = software.deferred * held + 2 * Fraction(model.vocabulary * model.hidden, t)
    if not software.transformer_engine:
        out["output gradient"] = 2 * Fraction(model.vocabulary * model.hidden, t)
    if stage.stages > 1:
        out["pipeline buffers"] = (8 if len(stage.chunks) == 1 else 16) * tokens * model.hidden / shared
    out["mask"] = tokens * model.sequence
    out |= _workspaces(model, software)
    out["small tensors"] = MARGIN_SMALL * sum(out.values())
    return {name: ceil(v) for name, v in out.items()}


def total(parts: Mapping[str, int]) -> int:
    """The bound: the sum of the parts."""
    return sum(parts.values())


def _workspaces(model: Transformer, software: Software) -> dict[str, Fraction]:
    large = software.repeatable or software.hopper
    threads = 2 if software.transformer_engine or software.half else 4
    out = {"cuBLAS": Fraction((32 * MIB if large else 8 * MIB + (MIB >> 3)) * threads)}
    if software.transformer_engine:
        engine = Fraction((32 if software.hopper else 4) * MIB)
        out["Transformer Engine"] = engine * (5 if model.experts and model.experts.grouped else 1)
    return out


def _parameters(model: Transformer, split: Split, stage: Stage) -> tuple[Fraction, Fraction, Fraction]:
    """Parameters of the last rank: all but experts, experts, and the vocabulary table among the first."""
    h, t, gates = model.hidden, split.tensor, 2 if model.gated else 1
    queries, keys = model.heads * model.head, model.groups * model.head
    if model.latent is None:
        attention = Fraction(2 * h * (queries + keys), t)
    else:
        x = model.latent
        per_head = x.query_rank * (x.width + x.positions) + x.key_rank * (x.width + x.values) + x.values * h
        attention = h * (x.query_rank + x.key_rank + x.positions) + Fraction(model.heads * per_head, t)
    bias = Fraction(queries + 2 * keys + model.ffn * gates, t) + 2 * h if model.bias else Fraction(0)
    mixed = stage.expert_layers + (model.predictions if model.experts else 0)
    layers = stage.dense + mixed
    plain = layers * (attention + 4 * h) + stage.dense * (Fraction(h * model.ffn * (gates + 1), t) + bias) + 2 * h
    plain += model.predictions * Fraction(2 * h * h, t)
    expert = Fraction(0)
    if model.experts is not None:
        e = model.experts
        plain += mixed * (h * e.count + Fraction(h * e.shared * (gates + 1), t))
        here, parts = Fraction(e.count, split.expert), split.expert_tensor
        expert = mixed * here * (Fraction(h * e.ffn * (gates + 1), parts) + (e.ffn // parts + h if model.bias else 0))
    table = Fraction(model.vocabulary * h, t)
    tables = 1
    if stage.stages == 1:
        tables += model.untied
        plain += model.sequence * h if model.learned_positions else 0
    elif model.predictions:
        tables += 1
    return plain + tables * table, expert, table


def _layer(
    model: Transformer, split: Split, software: Software, tokens: Fraction
) -> tuple[Fraction, Fraction, Fraction]:
    """Bytes that one layer keeps for one micro batch: a dense one, one with experts, and what experts exchange."""
    h, t, gates = model.hidden, split.tensor, 2 if model.gated else 1
    shared = t if split.sequence else 1
    queries, keys = model.heads * model.head, model.groups * model.head
    if model.latent is None:
        kept = Fraction(2 * (queries + 2 * keys) + 2 * queries, t)
    else:
        x = model.latent
        wide = model.heads * (6 * (x.width + x.positions) + 2 * (x.width + x.values) + 6 * x.values)
        kept = 4 * (x.query_rank + x.key_rank) + 4 * x.positions + Fraction(wide, t)
        if "mla_up_proj" in software.recomputed:
            kept -= Fraction(model.heads * (4 * (x.width + x.positions) + 2 * x.values), t)
    if software.fused_attention:
        kept += Fraction(2 * h + 4 * model.heads, t)
    else:
        scores = (5 if model.attention_dropout else 2) * model.heads * model.sequence
        kept += Fraction(scores + (0 if software.fused_softmax else 24 * h), t)
    if model.normed_queries and model.latent is None:
        kept += Fraction(4 * h, t)
    kept += (10 + MARGIN_LAYER) * h / shared
    if "layernorm" in software.recomputed:
        kept -= Fraction(4 * h, shared)
    dense = tokens * (kept + Fraction(2 * model.ffn * (gates + 1), t))
    if model.experts is None:
        return dense, Fraction(0), Fraction(0)
    e, here = model.experts, tokens / shared
    rows = here * e.top_k * split.expert_tensor
    width = 4 * h + Fraction(2 * e.ffn * (gates + 1), split.expert_tensor)
    always = 2 * tokens * e.shared * (gates + 1) / t + 8 * here * e.count
    if e.gathered:
        seen = here * split.expert * split.expert_tensor
        routed = 4 * seen * h + IMBALANCE * seen * e.top_k / split.expert * width + always
        exchange = routed + 4 * seen * h
    else:
        exchange = routed = 4 * here * e.top_k * h + IMBALANCE * rows * width + always
    if "moe_act" in software.recomputed:
        routed -= IMBALANCE * 2 * here * e.top_k * e.ffn
    return dense, tokens * kept + routed, exchange
