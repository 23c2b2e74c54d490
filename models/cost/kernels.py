"""Says which kernels a framework runs for the operators of a graph, and what rates they reach that were measured.

Every rate is a factor on what a machine's file says of the same device class, with its source; a class that is not in a
table is taken at its file's word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final, Literal

from .beside import Loss
from .float8 import Scaling

STEADY: Final[Mapping[str, Fraction]] = MappingProxyType(
    {
        "a100": Fraction(953, 1000),
        "h100": Fraction(860, 1000),
        "h200": Fraction(865, 1000),
        "b200": Fraction(750, 1000),
        "gb200": Fraction(750, 1000),
    }
)
"""Device class -> rate of long products over what their measured form says, which was fitted on products of all
lengths: a kernel of a millisecond ends before the clock falls to what the power allows, a step does not.  Medians of 13
products of 1e13 operations and more (10 to 100 ms each) of ai-dynamo/aiconfigurator 095f58a, gemm, bf16, on A100 and
H100, and of 3 of 3e12 and more, measured by us on an H200 (tests/data/measured/gpu/h200-products.csv).  A B200 sustains
1.903 times what an H200 does (1,437.5 and 755.5 Tflop/s, means of 40 runs on eight GPUs each: stas00/ml-engineering,
compute/accelerator/benchmarks), 1.903 x 865 / 2.196 of the form that it borrows; the GB200 is assumed to be alike.  All
others are taken at their word."""

EAGER: Final[Mapping[str, Fraction]] = MappingProxyType(
    {"layer_norm": Fraction(686, 1000), "rms_norm": Fraction(762, 1000)}
)
"""Function -> the part of the memory's rate that PyTorch's own kernels of it reach, bf16, where nothing is fused:
medians of results of 128 MiB and more, measured by us (tests/data/measured/gpu/h100-memory.csv)."""

STREAM: Final[Mapping[str, Fraction]] = MappingProxyType({"h100": Fraction(296, 272), "h200": Fraction(416, 390)})
"""Device class -> the part of its file's bandwidth (which was fitted on products) that maps of 0.13 GB and more reach:
medians of copies, additions, GELU and SiLU, bf16 and float32, measured by us (tests/data/measured/gpu/h100-memory.csv,
h200-memory.csv: 2.96 and 4.15 TB/s).  Others are taken at their file's word."""

FLOAT8: Final[Mapping[str, Fraction]] = MappingProxyType(
    {
        "h100": Fraction("1402.6") / Fraction("794.5"),
        "h200": Fraction(1335, 745),
        "b200": Fraction("3432.5") / 1745,
        "gb200": Fraction("3615.6") / 1822,
    }
)
"""Device classes that multiply float8 -> its rate over bfloat16's: the fastest products of each that
stas00/ml-engineering 7bc7c30 measured (compute/accelerator, Maximum Achievable Matmul FLOPS), on an H200 those that it
sustains (compute/accelerator/benchmarks); twice by data sheets."""

ATTENTION: Final[Mapping[str, Fraction]] = MappingProxyType(
    {"b200": Fraction(188, 100), "gb200": Fraction(188, 100) * 1822 / 1745}
)
"""Device class -> rate of attention over the H100's: B200 over H200, forward and backward, 8,192 tokens, each with its
newest kernel, stas00/ml-engineering 18fa017 (insights/when-to-upgrade-gpus); the GB200 is faster as its products are.
What is left out is faster as its bf16 peak is."""

ALIKE: Final = frozenset(FLOAT8) | {"a100"}
"""Device classes that may borrow forms."""

LIKE: Final = "dgx-h100"
"""Whose forms of products and attention a class of `ALIKE` borrows where it has none, faster or slower as their bf16
peaks are: an assumption, that it keeps the same share of its peak at every size."""

FLASH: Final[Mapping[str, Fraction]] = MappingProxyType({"h100": Fraction(60, 100), "h200": Fraction(60, 100)})
"""Device class -> rate of FlashAttention 2 over the measured form of attention, which is cuDNN's: medians of 248 passes
measured by us (results/gpu.md, rows flash: 38 to 42 % of their time is missing in the form).  On an A100 the form is
borrowed, and FlashAttention 2 at its word: its authors reach 73 and 63 % of the peak there, the form 72 and 60."""

TRITON: Final[Mapping[str, Fraction]] = MappingProxyType(
    {"attention": Fraction(10, 14), "attention_gradients": Fraction(1, 2)}
)
"""Function -> rate of FlashAttention written in Triton over FlashAttention 2: this is 1.3 to 1.5 times as fast forward
and about twice backward.  Source: Dao, FlashAttention-2 (2023), sections 1 and 4.1."""

Attention = Literal["cudnn", "flash", "triton"]
"""Whose kernel attention runs by: cuDNN's, FlashAttention 2, FlashAttention in Triton."""

Experts = Literal["grouped", "apart", "fused"]
"""Products of experts: all of a layer in one kernel; one after another, as Transformer Engine calls cuBLASLt (NVIDIA/
TransformerEngine, pull request 853 and issue 1386; that calls on its streams may overlap is left out); in one kernel
with the gate behind them and its cast to float8 (NVIDIA/TransformerEngine, pull request 2642).
"""


UNALIGNED: Final[Mapping[str, Fraction]] = MappingProxyType(
    {"a100": Fraction(108_400 * 10**9), "h100": Fraction(185_800 * 10**9), "h200": Fraction(176_200 * 10**9)}
)
"""Device class -> operations a second of a product of 16-bit operands one of which has rows of no whole 16 bytes: it
cannot be loaded in vectors, and the library falls back to its oldest kernels.  512 x 30,522 x 1,024, measured by us:
174.7 us on an H100, 184.0 us on an H200 (tests/data/measured/gpu), less a launch; 49 us if rows were whole.  The A100
is an assumption, the H100's rate by processors and clock of the data sheets (108 x 1,410 MHz, 132 x 1,980 MHz), since
those kernels are Ampere's.  Other classes are taken at their form's word."""

WHOLE: Final = 16
"""Bytes of a vector load; NVIDIA, Matrix Multiplication Background User's Guide, section 4.1."""


@dataclass(frozen=True)
class Kernels:
    """Which kernels a framework runs.  `chains`: maps that follow each other are one; `eight`: products of layers in
    float8; `attention`: whose kernel; `dropout`: there is some, as Megatron's defaults have it; `softmax`: Megatron's,
    which masks; `loss`: how logits become one; `sums`: gradients of weights are added up by kernels of their own, as
    autograd does, and not inside the product (`models.cost.beside`); `flash`: norms and rotary embeddings by the
    kernels of flash-attn, one each, also where other maps are kernels of their own; `joined`: projections of the same
    rows are one product (`models.cost.projections`); `experts`: how their products run; `scaling`: how operands that
    are cast to float8 are scaled (`models.cost.float8`).
    """

    chains: bool = True
    eight: bool = False
    attention: Attention = "cudnn"
    dropout: bool = False
    softmax: bool = False
    loss: Loss = "one"
    sums: bool = False
    flash: bool = False
    joined: bool = False
    experts: Experts = "grouped"
    scaling: Scaling = "delayed"


FUSED: Final = Kernels()
"""What Megatron runs in 16 bits."""
