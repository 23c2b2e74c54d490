"""Rows of attention that we measured ourselves (`gpu_times.py` beside this folder), in `tests/data/measured/gpu`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardproof.formal.calibration.attention_times import Attention

from .rows import number, read, whole

FOLDER = Path(__file__).resolve().parents[2] / "data" / "measured"
KERNEL = "cudnn"
"""What PyTorch's scaled_dot_product_attention takes unless told otherwise on a Hopper GPU since torch 2.10 or so, with a
cuDNN of 9.15.1 or later (`check_prefer_cudnn_attention` of its `sdp_utils.cpp`; before, FlashAttention-2, whose rows
are beside).  Our measured steps agree: Llama's at 2,048, 4,096 and 8,192 positions have a quadratic part of 3.9 ms a
layer at 8,192; cuDNN's two passes take 3.6 ms, FlashAttention-2's 6.6 ms."""

PROCESSORS = {"h100": 132, "h200": 132}
WHERE = {
    "h100": "an NVIDIA H100 80GB HBM3, torch 2.11.0, CUDA 13.0, cuDNN 9.19",
    "h200": "an NVIDIA H200, torch 2.11.0, CUDA 13.0, cuDNN 9.19",
}
"""Machine and versions of a file's rows."""


def attention_rows(
    gpu: str, direction: str, kernel: str = KERNEL, tables: Sequence[str] = ("attention", "drawn-attention")
) -> list[Attention]:
    """Rows of one kernel and direction, bf16: shapes of known models, and drawn ones; `{gpu}-held-attention` is for judging."""
    out = []
    for row in (r for table in tables for r in read(FOLDER, f"gpu/{gpu}-{table}")):
        seconds = (number(row, f"{direction}_us") or 0.0) / 1e6
        if row["kernel"] == kernel and row["dtype"] == "bfloat16" and seconds > 0:
            sizes = (whole(row, c, 1) for c in ("batch", "heads", "sequence", "width"))
            out.append(Attention(*sizes, row["causal"] == "1", seconds))
    return out
