"""Writes settings of NeMo, nanotron, accelerate, axolotl, MaxText, the Trainer, DeepSpeed, servers: nearest to a plan.

`models.sources.frameworks.flags.read_settings` reads each of them back.  What a framework has no word for is not in its
file: `formal.explain.nearest` considers only settings that it can say.

    nemo, nanotron, accelerate, axolotl, maxtext    YAML, with comments of what the file leaves to its owner
    hf, deepspeed                                   JSON of TrainingArguments, and DeepSpeed's, which have no comments
    vllm, sglang                                    flags of `vllm serve` and of `sglang.launch_server`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ...models.layout.targets.degrees import Flags
from ...models.text import InputError
from ...proofs.publishing.publisher import Nearest
from .flags import comment_lines, left_out_words, product_type

Section = Mapping[str, object]
_SHARDED: Final = {2: "optim_grads", 3: "optim_grads_params"}


def nemo(found: Nearest, batch: int) -> Section:
    """Keys of Megatron-Bridge, which are Megatron's flags."""
    f, devices = found.flags, found.plan.machine.devices
    ddp: dict[str, object] = {"use_distributed_optimizer": f.zero > 0}
    if f.zero in _SHARDED:
        ddp |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": _SHARDED[f.zero]}
    return {
        "model": {
            "tensor_model_parallel_size": f.tp,
            "sequence_parallel": f.sequence_parallel,
            "context_parallel_size": f.cp,
            "pipeline_model_parallel_size": f.pp,
        },
        "ddp": ddp,
        "train": {"micro_batch_size": max(1, batch // f.copies(devices)), "global_batch_size": batch},
    }


def _without_contexts(found: Nearest) -> Flags:
    """The degrees.  Raises `InputError` for contexts that are split, which the framework has no word for."""
    if found.flags.cp > 1:
        raise InputError(f"{found.framework} has no word for context parallelism, and the settings split contexts")
    return found.flags


def nanotron(found: Nearest, batch: int) -> Section:
    """Keys of nanotron."""
    f = _without_contexts(found)
    copies = f.copies(found.plan.machine.devices)
    return {
        "parallelism": {
            "dp": copies,
            "tp": f.tp,
            "pp": f.pp,
            "pp_engine": "1f1b",
            "tp_mode": "REDUCE_SCATTER" if f.sequence_parallel else "ALL_REDUCE",
        },
        "tokens": {"micro_batch_size": max(1, batch // copies), "batch_accumulation_per_replica": 1},
        "optimizer": {"zero_stage": f.zero},
    }


def _mesh(found: Nearest, names: Sequence[str]) -> dict[str, object]:
    """Ways of the copies (sharded, else replicated), of tensors and of contexts under a framework's names; nothing of
    a dimension that is not split.
    """
    f = found.flags
    shards, copies, tensor, context = names
    ways = {shards if f.zero else copies: f.copies(found.plan.machine.devices), tensor: f.tp, context: f.cp}
    return {name: n for name, n in ways.items() if n > 1}


def accelerate(found: Nearest, batch: int) -> Section:
    """Keys of accelerate, which says nothing of a batch."""
    f = found.flags
    parts = ("dp_shard_size", "dp_replicate_size", "tp_size", "cp_size")
    mesh = _mesh(found, [f"parallelism_config_{name}" for name in parts])
    said: dict[str, object] = {
        "distributed_type": "FSDP" if f.zero else "MULTI_GPU",
        "num_processes": found.plan.machine.devices,
    }
    if f.zero:
        said["fsdp_config"] = {"fsdp_version": 2, "fsdp_reshard_after_forward": f.zero == 3}
    return {**said, "parallelism_config": mesh} if mesh else said


def axolotl(found: Nearest, batch: int) -> Section:
    """Keys of axolotl."""
    f = _without_contexts(found)
    said: dict[str, object] = {
        "base_model": "YOURS",
        "micro_batch_size": max(1, batch // f.copies(found.plan.machine.devices)),
        "gradient_accumulation_steps": 1,
    }
    if f.zero:
        said |= {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": f.zero == 3}}
    return said | _mesh(found, ("dp_shard_size", "dp_replicate_size", "tensor_parallel_size", ""))


def maxtext(found: Nearest, batch: int) -> Section:
    """Keys of MaxText: every split inside one slice; sequences are split with tensors."""
    f = found.flags
    copies = f.copies(found.plan.machine.devices)
    return {
        "base_config": "base.yml",
        "ici_data_parallelism": 1 if f.zero else copies,
        "ici_fsdp_parallelism": copies if f.zero else 1,
        "dcn_data_parallelism": 1,
        "ici_tensor_sequence_parallelism": f.tp,
        "ici_context_parallelism": f.cp,
        "per_device_batch_size": max(1, batch // copies) / (f.tp * f.cp),
        "remat_policy": "none",
        "dtype": product_type(found.plan.graph),
    }


def trainer(found: Nearest, batch: int) -> Section:
    """Keys of TrainingArguments."""
    f = found.flags
    said: dict[str, object] = {
        "output_dir": "YOURS",
        "per_device_train_batch_size": max(1, batch // f.copies(found.plan.machine.devices)),
        "gradient_accumulation_steps": 1,
    }
    if f.zero:
        said["fsdp"] = "full_shard" if f.zero == 3 else "shard_grad_op"
    mesh = _mesh(found, ("dp_shard_size", "dp_replicate_size", "tp_size", "cp_size"))
    return {**said, "parallelism_config": mesh} if mesh else said


def deepspeed_keys(found: Nearest, batch: int) -> Section:
    """Keys of DeepSpeed, which splits no contexts, and tensors beside its lower stages alone: not written here.
    Raises `InputError` for settings that split either.
    """
    f = _without_contexts(found)
    if f.tp > 1:
        raise InputError("DeepSpeed's file says copies alone, and the settings split tensors")
    copies = f.copies(found.plan.machine.devices)
    return {
        "train_batch_size": max(1, batch // copies) * copies,
        "train_micro_batch_size_per_gpu": max(1, batch // copies),
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": f.zero},
    }


def _served(name: str, requests: str) -> Callable[[Nearest, int], str]:
    """Flags of a server; `requests`: its word for the requests that one copy takes at once."""

    def text(found: Nearest, batch: int) -> str:
        f = _without_contexts(found)
        copies = f.copies(found.plan.machine.devices)
        lines = (
            f"--tensor-parallel-size {f.tp}",
            f"--data-parallel-size {copies}",
            f"{requests} {max(1, batch // copies)}",
        )
        return "\n".join(lines) + "\n" + comment_lines(_about(found, name))

    return text


def _yaml(name: str, sections: Callable[[Nearest, int], Section]) -> Callable[[Nearest, int], str]:
    def text(found: Nearest, batch: int) -> str:
        return "\n".join(_lines(sections(found, batch))) + "\n" + comment_lines(_about(found, name))

    return text


def _json(sections: Callable[[Nearest, int], Section]) -> Callable[[Nearest, int], str]:
    return lambda found, batch: json.dumps(sections(found, batch), indent=1) + "\n"


def _lines(section: Section, indent: str = "") -> list[str]:
    out = []
    for key, value in section.items():
        if isinstance(value, Mapping):
            out += [f"{indent}{key}:", *_lines(value, f"{indent}  ")]
        else:
            out.append(f"{indent}{key}: {json.dumps(value)}")
    return out


def _about(found: Nearest, name: str) -> tuple[str, ...]:
    plan = found.plan
    return (
        f"{name}: the settings nearest to plan {found.identity[:16]}",
        f"{plan.graph.name} on {plan.machine.name} {'x'.join(map(str, plan.machine.hierarchy))}",
        found.words,
        *left_out_words(found),
    )


FILES: Final[Mapping[str, Callable[[Nearest, int], str]]] = {
    "nemo": _yaml("NeMo, Megatron-Bridge", nemo),
    "nanotron": _yaml("nanotron", nanotron),
    "accelerate": _yaml("accelerate", accelerate),
    "axolotl": _yaml("axolotl", axolotl),
    "maxtext": _yaml("MaxText", maxtext),
    "hf": _json(trainer),
    "deepspeed": _json(deepspeed_keys),
    "vllm": _served("vLLM", "--max-num-seqs"),
    "sglang": _served("SGLang", "--max-running-requests"),
}
"""Target -> its file, of the nearest settings and the examples of a step."""
