"""A published step as a configuration: model, machine of the package, degrees, how the step is carried out.

A reader of a table gives a `Published` for every row, or raises `Unread` with the reason why the row is none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Literal

from shardproof.models.cost.kernels import FUSED, Kernels
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.zoo.decoder import Sizes, decoder, swiglu
from shardproof.models.sources.zoo.experts import Experts
from shardproof.models.sources.zoo.gpt import gpt

Attention = Literal["fused", "matrices"]


class Unread(ValueError):
    """A row that is not predicted; the text is the reason, without what belongs to this row alone."""


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder; `feed`: gated, squared (ReLU), gelu (GPT and MPT, whose output reads the embedding's table);
    `experts` of which every token takes `chosen`.
    """

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    layers: int
    feed: str = "gated"
    head: int = 0
    experts: int = 0
    chosen: int = 0

    def graph(self, batch: int, seq: int, tp: int) -> Graph:
        """One layer and both ends, with the vocabulary padded as Megatron pads it."""
        vocabulary = -(-self.vocabulary // (128 * tp)) * 128 * tp if self.vocabulary % tp else self.vocabulary
        if self.feed == "gelu":
            return gpt(batch=batch, depth=1, sequence=seq, width=self.hidden, heads=self.heads, vocabulary=vocabulary)
        head = self.head or self.hidden // self.heads
        w = Sizes(self.hidden, self.kv_heads, self.heads // self.kv_heads, head, self.ffn, 500_000.0)
        half = Experts(self.experts, self.chosen, 0) if self.experts else squared if self.feed == "squared" else swiglu
        return decoder("published", batch, 1, seq, w, vocabulary, "bfloat16", half)


def squared(g: Builder, name: str, x: str, w: Sizes) -> str:
    """The feed-forward half of Nemotron: down(relu(up x)^2)."""
    up = g.contract(f"{name}.up", "b s m, m f -> b s f", x, g.parameter(f"{name}.up.weight", (w.model, w.hidden)))
    y = g.map(f"{name}.relu", "relu", up, text="b s f -> b s f")
    y = g.map(f"{name}.square", "multiply", y, y, text="b s f, b s f -> b s f")
    return g.contract(f"{name}.down", "b s f, f m -> b s m", y, g.parameter(f"{name}.down.weight", (w.hidden, w.model)))


LLAMA = 128_256
MODELS: Mapping[str, Model] = {
    "gpt3-175b": Model(12288, 49152, 96, 96, 51200, 96, "gelu"),
    "llama-8b": Model(4096, 14336, 32, 8, LLAMA, 32),
    "llama-70b": Model(8192, 28672, 64, 8, LLAMA, 80),
    "llama-405b": Model(16384, 53248, 128, 8, LLAMA, 126),
    "nemotron4-15b": Model(6144, 24576, 48, 8, 256_000, 32, "squared"),
    "nemotron4-340b": Model(18432, 73728, 96, 8, 256_000, 96, "squared"),
    "grok1-314b": Model(6144, 32768, 48, 8, 131_072, 64, experts=8, chosen=2),
    "qwen3-30b": Model(2048, 768, 32, 4, 151_936, 48, head=128, experts=128, chosen=8),
    "qwen3-235b": Model(4096, 1536, 64, 4, 151_936, 94, head=128, experts=128, chosen=8),
    "gpt-oss-120b": Model(2880, 2880, 64, 8, 201_088, 36, head=64, experts=128, chosen=4),
    **{
        f"mpt-{name}": Model(hidden, 4 * hidden, heads, heads, 50_368, layers, "gelu")
        for name, hidden, heads, layers in (
            ("125m", 768, 12, 12),
            ("350m", 1024, 16, 24),
            ("760m", 1536, 12, 24),
            ("1b", 2048, 16, 24),
            ("3b", 2560, 20, 32),
            ("7b", 4096, 32, 32),
            ("13b", 5120, 40, 40),
            ("30b", 7168, 56, 48),
            ("70b", 8192, 64, 80),
        )
    },
}
"""Shapes as their authors' configuration files have them."""


@dataclass(frozen=True)
class Published:
    """One measured step.  `again`: the part of the forward pass that is computed again; `frozen`: adapters alone learn; `captured`:
    the step is a CUDA graph; `precision`: as `--precision` says it; `group`: rows that differ in the configuration only.
    """

    family: str
    label: str
    seconds: float
    model: Model
    seq: int
    machine: str
    gpus: int
    flags: Flags
    micro_batches: int
    chunks: int = 1
    ends: bool = False
    again: float = 0.0
    attention: Attention = "fused"
    kernels: Kernels = FUSED
    precision: str = "bf16-master"
    frozen: bool = False
    captured: bool = False
    hidden: frozenset[str] = frozenset({"gradients", "weights", "sends"})
    group: Hashable = None
    memory_bytes: float = 0.0

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.flags.micro_batch * self.micro_batches * self.flags.copies(self.gpus) * self.seq


Reader = Callable[[Mapping[str, str]], Published]


@dataclass
class Read:
    """Rows of all tables; `left_out`: reason -> rows."""

    rows: list[Published] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def take(self, table: list[Mapping[str, str]], reader: Reader) -> None:
        """Read every row, or count why it is none: a cell that is no number is a reason as well."""
        for row in table:
            try:
                found = reader(row)
                found.flags.copies(found.gpus)
                self.rows.append(found)
            except Unread as error:
                self.skip(str(error))
            except (KeyError, ValueError, ArithmeticError, TypeError):
                self.skip("a cell is missing, or is not what its column holds, or the degrees do not fit the GPUs")

    def skip(self, reason: str) -> None:
        """One row more for this reason."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


def box(name: str, gpus: int, node: int = 8) -> str:
    """A machine of so many GPUs.

    >>> box("dgx-h100", 64), box("dgx-a100", 4)
    ('dgx-h100:8x8', 'dgx-a100:1x4')
    """
    inside = gcd(gpus, node) if gpus > node else gpus
    return f"{name}:{gpus // inside}x{inside}"
