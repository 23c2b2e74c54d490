"""Readers of the public tables: a row becomes a configuration, or a reason why it is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from measured.rows import read, whole

from shardproof.models.cost.float8 import Scaling
from shardproof.models.cost.kernels import Experts, Kernels
from shardproof.models.layout.targets.degrees import Flags

from .rows import MODELS, Model, Published, Read, Unread, box

Row = Mapping[str, str]
ALL = frozenset({"tensor", "gradients", "weights", "sends"})
MEGATRON = frozenset({"gradients", "weights", "sends"})
NOTHING: frozenset[str] = frozenset()
UNFUSED = Kernels(dropout=True, softmax=True, loss="vocabulary")
"""Megatron of 2021 and 2022: dropout of 0.1 twice a layer and in attention (its defaults), its own softmax and loss."""
DEEPSPEED = replace(UNFUSED, sums=True)
"""The same under DeepSpeed, which leaves gradients to autograd."""
NARROW = "bf16-master:reduce=bfloat16"
"""Copies reduce gradients in 16 bits: DeepSpeed does where training is (`communication_data_type`, deepspeed/runtime/engine.py), and
LLM Foundry where FSDP's mixed precision is PURE (the default of scripts/train/benchmarking/submit_benchmarks.py)."""


def everything(folder: Path) -> Read:
    """All rows of the tables of a folder; a table that is not there has none."""
    found = Read()
    for name, reader in (
        ("vtrain/single", lambda r: vtrain(r, "vtrain_single")),
        ("vtrain/multi", lambda r: vtrain(r, "vtrain_multi")),
        ("mlperf_405b/steps", mlperf),
        ("dgxc/steps", dgxc),
        ("tables/llmfoundry", llmfoundry),
        ("tables/torchtitan", torchtitan),
        ("tables/megatron_bridge", bridge),
        ("tables/calculon", calculon),
        ("megatron/golden", golden),
    ):
        found.take(list(read(folder, name)), reader)
    return found


def micro_batches(batch: int, copies: int, each: int) -> int:
    """Micro-batches of a step."""
    if each < 1 or batch % (copies * each):
        raise Unread("the micro-batches do not divide the global batch")
    return batch // (copies * each)


def vtrain(r: Row, family: str) -> Published:
    """Megatron-DeepSpeed on A100s: matrices of scores, nothing hidden, recomputation on many nodes."""
    gpus, batch, each, hidden, heads, layers, seq, tp, dp, pp = (
        whole(r, c, 0)
        for c in ("gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "seq", "tp", "dp", "pp")
    )
    if tp * dp * pp != gpus:
        raise Unread("the degrees do not multiply to the GPUs")
    return Published(
        family,
        f"hidden {hidden}, {layers} layers, {gpus} GPUs, batch {batch} by {each}, tp {tp} dp {dp} pp {pp}",
        float(r["iteration_ms"]) / 1e3,
        Model(hidden, 4 * hidden, heads, heads, 50_257 // tp * tp, layers, "gelu"),  # src/config.py: not padded
        seq,
        box("dgx-a100", gpus),
        gpus,
        Flags("Megatron", tp=tp, pp=pp, micro_batch=each),
        micro_batches(batch, dp, each),
        again=float(family.endswith("multi")),
        attention="matrices",
        kernels=DEEPSPEED,
        precision=NARROW,
        hidden=NOTHING,
        group=(family, hidden, heads, layers, seq, batch, gpus),
    )


def mlperf(r: Row) -> Published:
    """Llama 3.1 405B, NeMo: embedding and loss count as layers."""
    gpus, tp, pp, cp = (whole(r, c, 1) for c in ("gpus", "tp", "pp", "cp"))
    name = {"H100": "dgx-h100", "H200": "dgx-h200", "GB200": "gb200-nvl72"}.get(r["gpu"])
    if name is None:
        raise Unread(f"no machine file of {r['gpu']}")
    each = whole(r, "micro_batch", 1)
    hidden = {
        n
        for n, c in (("tensor", "tp_overlap"), ("gradients", "grad_overlap"), ("weights", "param_overlap"))
        if whole(r, c, 0)
    }
    return Published(
        "mlperf_405b",
        f"{r['org']}, {gpus} {r['gpu']}, run {r['run']}",
        float(r["median_s"]),
        MODELS["llama-405b"],
        whole(r, "seq", 8192),
        box(name, gpus, 64 if r["gpu"] == "GB200" else 8),
        gpus,
        Flags("Megatron", tp=tp, pp=pp, cp=cp, sequence_parallel=tp > 1, zero=1, micro_batch=each),
        micro_batches(whole(r, "global_batch", 0), gpus // (tp * pp * cp), each),
        chunks=whole(r, "vp", 1),
        ends=True,
        kernels=Kernels(eight=bool(whole(r, "fp8", 0))),
        hidden=frozenset({*hidden, "sends"}),
        captured=r["gpu"] == "GB200",
    )


def dgxc(r: Row) -> Published:
    """NVIDIA's recipes of NeMo and MaxText on DGX H100."""
    family = r["family"].split("-")[-1].split(".")[0]
    name = {"gpt3": "gpt3", "llama3": "llama", "nemotron4": "nemotron4", "grok1": "grok1"}.get(family, family)
    model = MODELS.get(f"{name}-{r['size'].split('-')[0]}")
    if model is None:
        raise Unread("no shape of this model is known")
    model = replace(model, layers=whole(r, "layers", model.layers))
    gpus, tp, pp, cp, ep = (whole(r, c, 1) for c in ("gpus", "tp", "pp", "cp", "ep"))
    each, maxtext = whole(r, "micro_batch", 1), r["family"].startswith("maxtext")
    copies = gpus // (tp * pp * cp)
    chunks = whole(r, "vp", max(1, model.layers // pp)) if pp > 1 else 1  # blank: one layer a chunk, as the recipes set
    ends = model.layers % (pp * chunks) != 0
    flags = Flags(
        "Megatron", tp=tp, pp=pp, cp=cp, ep=ep, sequence_parallel=tp > 1, zero=3 if maxtext else 1, micro_batch=each
    )
    return Published(
        "dgxc",
        f"{r['family']} {r['size']} {r['mode']} {r['precision']}, {gpus} GPUs",
        float(r["step_s"]),
        model,
        whole(r, "seq", 8192),
        box("dgx-h100", gpus),
        gpus,
        flags,
        micro_batches(whole(r, "global_batch", 0), copies, each),
        chunks=chunks,
        ends=ends,
        again=float(maxtext),
        kernels=Kernels(eight=r["precision"] == "fp8", experts="grouped" if maxtext else "apart"),
        frozen=r["mode"] == "lora",
        hidden=ALL,
    )


def llmfoundry(r: Row) -> Published:
    """MosaicML's MPT under FSDP: attention in Triton (benchmarking/submit_benchmarks.py), flash-attn's loss (the default of
    models/mpt/modeling_mpt.py), maps as kernels of their own.
    """
    model = MODELS.get(f"mpt-{r['model']}")
    if model is None:
        raise Unread("no shape of this model is known")
    name = {"a100_40gb": "dgx-a100-40", "a100_80gb": "dgx-a100", "h100_80gb": "dgx-h100"}.get(r["gpu"])
    if name is None:
        raise Unread(f"no machine file of {r['gpu']}")
    gpus, each = whole(r, "gpus", 8), whole(r, "micro_batch", 1)
    zero = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}.get(r["sharding"])
    if zero is None:
        raise Unread("sharding is neither FULL_SHARD nor SHARD_GRAD_OP")
    return Published(
        "llmfoundry",
        f"{r['model']} {r['gpu']} {r['precision']}, {gpus} GPUs, {r['seq']} tokens, micro-batch {each}",
        float(r["step_s"]),
        model,
        whole(r, "seq", 2048),
        box(name, gpus),
        gpus,
        Flags("FSDP", zero=zero, micro_batch=each),
        micro_batches(whole(r, "global_batch", 0), gpus, each),
        again=float(r["recompute"] == "True"),
        kernels=Kernels(chains=False, eight="fp8" in r["precision"], attention="triton", loss="fused"),
        precision=NARROW,
        hidden=MEGATRON,
    )


def torchtitan(r: Row) -> Published:
    """torchtitan's Llama; its H100s of 96 GB, 2.4 TB/s and 500 W are no DGX H100."""
    model = MODELS.get(f"llama-{r['model']}")
    if model is None:
        raise Unread("no shape of this model is known")
    name = {"h100": "dgx-h100", "h200": "dgx-h200"}.get(r["gpu"])
    if name is None:
        raise Unread(f"no machine file of {r['gpu']}")
    gpus, tp, pp, cp = (whole(r, c, 1) for c in ("gpus", "tp", "pp", "cp"))
    local, seq = whole(r, "local_batch", 1), whole(r, "seq", 8192)
    each, times = (1, local) if pp > 1 else (local, 1)
    again = {"full": 1.0, "selective": 0.5}.get(r["recompute"], 0.5)
    copies = gpus // (tp * pp * cp)
    ends = model.layers % (pp * (2 if "interleaved" in r["schedule"] else 1)) != 0
    return Published(
        "torchtitan",
        f"{r['model']} {r['gpu']} {r['precision']}, {gpus} GPUs, tp {tp} cp {cp} pp {pp}, {seq} tokens, async {r['async_tp']}",
        local * copies * seq / gpus / float(r["tokens_s_gpu"]),
        model,
        seq,
        box(name, gpus),
        gpus,
        Flags("torchtitan", tp=tp, pp=pp, cp=cp, sequence_parallel=tp > 1, zero=3, micro_batch=each),
        times,
        chunks=2 if "interleaved" in r["schedule"] else 1,
        ends=ends,
        again=again,
        kernels=Kernels(
            chains=r["compile"] == "1", eight=r["precision"].startswith("float8"), attention="flash", scaling="current"
        ),
        hidden=frozenset({"gradients", "weights", *(["tensor"] if r["async_tp"] == "1" else [])}),
        memory_bytes=float(r["memory_gib"] or 0) * 2**30,
    )


def bridge(r: Row) -> Published:
    """Megatron-Bridge's throughput tables."""
    text = r["model"].upper()
    known = {
        "LLAMA3_8B": "llama-8b",
        "LLAMA3_70B": "llama-70b",
        "LLAMA3.1_405B": "llama-405b",
        "QWEN3_30B": "qwen3-30b",
        "QWEN3_235B": "qwen3-235b",
        "GPT OSS 120B": "gpt-oss-120b",
    }
    key = next((v for k, v in known.items() if text.startswith(k)), None)
    if key is None:
        raise Unread("latent attention or state space: no model of the zoo has it")
    if "PRE" not in r["phase"].upper():
        raise Unread("fine-tuning with packed sequences: their lengths are not said")
    name = {"DGX-H100": "dgx-h100", "DGX-B200": "dgx-b200", "DGX-GB200": "gb200-nvl72"}.get(r["system"])
    if name is None:
        raise Unread(f"no machine file of {r['system']}")
    if "FP4" in r["precision"].upper():
        raise Unread("products in four bits: no machine file has them")
    model = MODELS[key]
    gpus, tp, pp, cp, ep = (whole(r, c, 1) or 1 for c in ("gpus", "tp", "pp", "cp", "ep"))
    fsdp = whole(r, "fsdp", 0)
    each, seq, batch = whole(r, "micro_batch", 1), whole(r, "seq", 4096), whole(r, "global_batch", 0)
    copies = gpus // (tp * pp * cp)
    chunks = (whole(r, "vp", 1) or 1) if pp > 1 else 1
    return Published(
        "megatron_bridge",
        f"{r['release']} {r['model']} {r['system']} {r['precision']}, {gpus} GPUs, tp {tp} pp {pp} cp {cp} ep {ep}",
        batch * seq / gpus / float(r["tokens_s_gpu"]),
        model,
        seq,
        box(name, gpus, 64 if "GB" in r["system"] else 8),
        gpus,
        Flags(
            "Megatron",
            tp=tp,
            pp=pp,
            cp=cp,
            ep=ep,
            sequence_parallel=tp > 1,
            zero=3 if fsdp > 1 else 1,
            micro_batch=each,
        ),
        micro_batches(batch, copies, each),
        chunks=chunks,
        ends=pp > 1 and model.layers % (pp * chunks) != 0,
        kernels=Kernels(eight="BF16" not in r["precision"].upper(), experts=experts_of(r), scaling=scaling_of(r)),
        hidden=ALL,
    )


def scaling_of(r: Row) -> Scaling:
    """MXFP8 where the table says so, else what its recipes call CS, current scaling.  25.09 names neither: a Blackwell's figure
    in parentheses is MXFP8, as 25.11 says of the same layouts.
    """
    named = r["precision"].upper()
    blocks = "MX" in named if named else whole(r, "variant", 0) == 1
    return "blocks" if blocks else "current"


def experts_of(r: Row) -> Experts:
    """How products of experts run: each its own, until releases of June 2026 made one kernel of them, with the gate and its
    cast where products are in float8 (release notes of Megatron-Bridge 0.5.1, which say also that the kernels of GPT-OSS
    regressed in 26.06.01).
    """
    released = tuple(int(x) for x in r["release"].split("."))
    regressed = released == (26, 6, 1) and r["model"].upper().startswith("GPT OSS")
    if released < (26, 6) or regressed:
        return "apart"
    return "grouped" if "BF16" in r["precision"].upper() else "fused"


def calculon(r: Row) -> Published:
    """Steps of Megatron on Selene, as Calculon validates itself."""
    if r["quantity"] != "step":
        raise Unread("no step: bytes by formula of a paper")
    gpus, tp, pp, dp, each = (whole(r, c, 1) for c in ("gpus", "tp", "pp", "dp", "micro_batch"))
    hidden, ffn, heads, layers = (whole(r, c, 0) for c in ("hidden", "ffn", "heads", "layers"))
    sequence = r["tp_comm"] == "rs_ag"
    return Published(
        "calculon",
        f"{r['model']} {r['mode']}, {gpus} GPUs",
        float(r["value"]),
        Model(hidden, ffn, heads, heads, 51_200, layers, "gelu"),
        whole(r, "seq", 2048),
        box("dgx-a100", gpus),
        gpus,
        Flags("Megatron", tp=tp, pp=pp, sequence_parallel=sequence, micro_batch=each),
        micro_batches(whole(r, "global_batch", 0), dp, each),
        chunks=whole(r, "interleaving", 1) if pp > 1 else 1,
        again=float(r["recompute"] == "full"),
        attention="matrices",
        kernels=UNFUSED,
        hidden=NOTHING,
    )


def golden(r: Row) -> Published:
    """Megatron's functional tests: tiny models, of which the memory is meant."""
    raise Unread(
        "functional tests of tiny models: their steps are bound by launches and unfused code, as their source says"
    )
