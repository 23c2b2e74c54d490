"""Logged peaks of Megatron's functional tests: the bytes promised for the last rank against what was measured.

Flags that the table does not state are read off what it does: Megatron's defaults; the attention of a deterministic run
from the software stack of the recording (the newer `dev` stack has a deterministic fused attention, `lts` recordings
have it where every step was logged: the older format); unknown numbers of GPUs are the fewest that hold the model.
No constant is fitted: the first folder is not read.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from shardproof.models.cost.training_memory import (
    Experts,
    Latent,
    Software,
    Split,
    Stage,
    Transformer,
    peak,
    total,
)

from .rows import Cells, number, read, whole

__all__ = ["described", "promised", "within"]


def within(fit_folder: Path, judge_folder: Path) -> dict[str, float | int]:
    """Rows, how many are promised below what was measured, the part at most 5 % above, and the largest excess.  The
    same for dense rows and mixtures apart (15 % above).  The first folder is not read: nothing is fitted.
    """
    over, mixture, unread = [], [], 0
    for row in read(judge_folder, "megatron/golden"):
        measured = number(row, "mem_max_allocated")
        if not measured:
            continue
        try:
            over.append(promised(row) / measured - 1)
        except (ValueError, ArithmeticError):  # a flag that means something else than is known here
            unread += 1
            continue
        mixture.append(whole(row, "experts", 0) > 0)
    if not over:
        return {"rows": 0}
    dense = [x for x, m in zip(over, mixture, strict=True) if not m]
    mixed = [x for x, m in zip(over, mixture, strict=True) if m]
    out: dict[str, float | int] = {
        "rows": len(over),
        "below_measured": sum(x < 0 for x in over),
        "within_5_percent": sum(0 <= x <= 0.05 for x in over) / len(over),
        "worst_over": max(over),
    }
    if dense:
        out["dense_within_5_percent"] = sum(0 <= x <= 0.05 for x in dense) / len(dense)
    if mixed:
        out["mixtures_within_15_percent"] = sum(0 <= x <= 0.15 for x in mixed) / len(mixed)
    return out | ({"unread": unread} if unread else {})


def promised(row: Cells) -> int:
    """The bound in bytes for one row."""
    return total(peak(*described(row)))


def described(row: Cells) -> tuple[Transformer, Split, Stage, Software]:
    """Model, split, stage and software of one row's flags."""
    flags: dict[str, str] = json.loads(row.get("other_flags") or "{}")
    tensor, stages, context = (max(1, whole(row, c, 1)) for c in ("tp", "pp", "cp"))
    model = _model(row, flags, tensor)
    expert, expert_tensor = whole(row, "ep", 1), whole(row, "etp", tensor)
    gpus = whole(row, "gpus", 0)
    if not gpus:
        gpus = max(8, tensor * stages * context, stages * expert * expert_tensor if model.experts else 1)
    unknown = not row.get("gpus") and flags.get("moe-token-dispatcher-type") == "flex"
    data = 1 if unknown else max(1, gpus // (tensor * stages))  # the context's ranks hold the same parameters
    experts = 1 if unknown else max(1, gpus // (expert_tensor * expert * stages))
    instances = int(flags.get("num-distributed-optimizer-instances", 1))
    fsdp = whole(row, "megatron_fsdp", 0) == 1 or whole(row, "torch_fsdp2", 0) == 1
    sharded = whole(row, "dist_optimizer", 0) == 1 or fsdp
    split = Split(
        tensor,
        context,
        expert,
        expert_tensor,
        whole(row, "sequence_parallel", 0) == 1 and tensor > 1,
        max(1, data // instances) if sharded else 1,
        max(1, experts // instances) if sharded else 1,
        data if fsdp else 1,
        experts if fsdp else 1,
    )
    return model, split, _stage(row, flags, stages, model), _software(row, flags)


def _model(row: Cells, flags: dict[str, str], tensor: int) -> Transformer:
    hidden, heads = whole(row, "hidden", 0), whole(row, "heads", 1)
    gated = whole(row, "swiglu", 0) == 1
    ffn = whole(row, "ffn", int(8 * hidden / 3) // 64 * 64 if gated else 4 * hidden)
    multiple = int(flags.get("make-vocab-size-divisible-by", 128)) * tensor
    experts = latent = None
    if whole(row, "experts", 0):
        experts = Experts(
            whole(row, "experts", 0),
            whole(row, "topk", 2),
            whole(row, "expert_ffn", ffn),
            int(flags.get("moe-shared-expert-intermediate-size", 0)),
            flags.get("moe-token-dispatcher-type", "allgather") == "allgather",
            "moe-grouped-gemm" in flags,
            "overlap-moe-expert-parallel-comm" in flags,
        )
    if "multi-latent-attention" in flags:
        latent = Latent(
            int(flags.get("q-lora-rank", hidden)),
            int(flags.get("kv-lora-rank", 512)),
            int(flags.get("qk-head-dim", 128)),
            int(flags.get("qk-pos-emb-head-dim", 64)),
            int(flags.get("v-head-dim", 128)),
        )
    return Transformer(
        hidden,
        heads,
        whole(row, "query_groups", heads),
        int(flags.get("kv-channels", hidden // heads)),
        ffn,
        whole(row, "seq", 0),
        -(-whole(row, "vocab", 50257) // multiple) * multiple,
        gated,
        "disable-bias-linear" not in flags,
        flags.get("position-embedding-type") != "rope",
        whole(row, "untied", 0) == 1,
        "qk-layernorm" in flags,
        flags.get("attention-dropout") != "0.0",
        experts,
        latent,
        int(flags.get("mtp-num-layers", 0)),
    )


def _stage(row: Cells, flags: dict[str, str], stages: int, model: Transformer) -> Stage:
    layers, per_chunk = whole(row, "layers", 1), whole(row, "layers_per_virtual_stage", 0)
    layout = flags.get("pipeline-model-parallel-layout")
    if layout:
        counts = [part.count("t") for part in _repeated(layout).split("|")][stages - 1 :: stages]
    elif "decoder-last-pipeline-num-layers" in flags:
        counts = [int(flags["decoder-last-pipeline-num-layers"])]
    else:
        here = layers // stages
        chunks = max(1, whole(row, "virtual_stages", here // per_chunk if per_chunk else 1))
        if layers % (stages * chunks) and (layers + 2) % (stages * chunks) == 0:
            each = (layers + 2) // (stages * chunks)  # embedding and loss count as layers
            counts = [each] * (chunks - 1) + [each - 1]
        else:
            counts = [-(-layers // (stages * chunks))] * chunks
    kinds = _kinds(flags.get("moe-layer-freq", ""), layers) if model.experts else [0] * layers
    mixed = sum(kinds[max(0, layers - sum(counts)) :])
    chunks_of = []
    for count in reversed(counts):  # layers with experts come last
        here = min(count, mixed)
        chunks_of.append((count - here, here))
        mixed -= here
    in_turn = int(flags.get("microbatch-group-size-per-virtual-pipeline-stage", stages))
    return Stage(tuple(reversed(chunks_of)), stages, whole(row, "micro_batch", 1), in_turn)


def _repeated(layout: str) -> str:
    """A pipeline layout written out.

    >>> _repeated("Et*2|(tt|)*2tmL")
    'Ett|tt|tt|tmL'
    """
    while "*" in layout:
        short = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), layout)
        short = re.sub(r"([A-Za-z])\*(\d+)", lambda m: m[1] * int(m[2]), short)
        if short == layout:
            raise ValueError(f"pipeline layout {layout!r} is not of letters, bars, groups and counts")
        layout = short
    return layout


def _kinds(pattern: str, layers: int) -> list[int]:
    """1 for each layer with experts, of `([0]*3+[1]*11)`, `2` (every second) or nothing (all).

    >>> _kinds("([0]*1+[1]*2)", 3), _kinds("2", 4), _kinds("", 2)
    ([0, 1, 1], [1, 0, 1, 0], [1, 1])
    """
    found = re.findall(r"\[([01])\](?:\*(\d+))?", pattern)
    if found:
        return [int(kind) for kind, times in found for _ in range(int(times or 1))]
    every = int(pattern or 1)
    return [int(n % every == 0) for n in range(layers)]


def _software(row: Cells, flags: dict[str, str]) -> Software:
    file = row.get("file") or ""
    engine = flags.get("transformer-impl", "transformer_engine") != "local"
    repeatable, backend = "deterministic-mode" in flags, flags.get("attention-backend", "")
    if not engine:
        fused = False
    elif backend:
        fused = backend != "unfused"
    elif not repeatable or not file.startswith("lts"):
        fused = True
    else:
        fused = file in ("lts", "lts_dgx_a100_2nd") or ("dracooci" not in file and whole(row, "times", 0) >= 99)
    old = file.startswith("lts") and "dracooci" in file
    return Software(
        fused,
        "no-masked-softmax-fusion" not in flags,
        engine,
        repeatable,
        row.get("gpu") not in ("A100", "unknown"),
        row.get("dtype") == "fp16",
        row.get("recompute") or "",
        frozenset(re.findall(r"\w+", row.get("recompute_modules") or "")),
        (3 if old else 2) if "cross-entropy-loss-fusion" in flags else 0,
        int(flags.get("wgrad-deferral-limit", 1)) if "defer-embedding-wgrad-compute" in flags else 0,
        file.endswith("_2nd"),
    )
