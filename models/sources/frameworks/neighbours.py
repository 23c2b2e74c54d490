"""This module knows what is no settings of ours but looks like it: words of servers, launchers and other trainers, and
files of other kinds, with what to give instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ...text import InputError

_SERVED: Final = """
--tensor-parallel-size --pipeline-parallel-size --data-parallel-size --enable-expert-parallel --max-model-len
--gpu-memory-utilization --max-num-seqs --max-num-batched-tokens --kv-cache-dtype --quantization --enforce-eager
--served-model-name --enable-chunked-prefill --enable-prefix-caching --swap-space --block-size --model --dtype
--distributed-executor-backend --speculative-config --decode-context-parallel-size --max-parallel-loading-workers
--tp-size --dp-size --ep-size --pp-size --tp --dp --ep --pp --mem-fraction-static --context-length --model-path
--enable-dp-attention --enable-torch-compile --chunked-prefill-size --max-running-requests --attention-backend-sglang
--tool-call-parser --chat-template --host --port --api-key --cpu-offload-gb --max-total-tokens
"""
_LAUNCHED: Final = """
--nproc_per_node --nproc-per-node --nnodes --node_rank --node-rank --master_addr --master-addr --master_port
--master-port --rdzv_backend --rdzv-backend --rdzv_endpoint --rdzv-endpoint --rdzv_id --standalone --num_gpus --hostfile
--num_nodes --include --exclude --num_processes --num_machines --machine_rank --config_file --ntasks-per-node --gres
"""
_TRAINED: Final = """
--per_device_train_batch_size --per_device_eval_batch_size --gradient_accumulation_steps --gradient_checkpointing
--output_dir --fsdp --fsdp_config --learning_rate --num_train_epochs --model_name_or_path --do_train --warmup_steps
--deepspeed --torch_dtype --max_steps --logging_steps --save_steps --fsdp_transformer_layer_cls_to_wrap
"""
_WRITE: Final = {
    "--tensor-parallel-size": "--tensor-model-parallel-size",
    "--tp-size": "--tensor-model-parallel-size",
    "--tp": "--tensor-model-parallel-size",
    "--pipeline-parallel-size": "--pipeline-model-parallel-size",
    "--pp-size": "--pipeline-model-parallel-size",
    "--pp": "--pipeline-model-parallel-size",
    "--enable-expert-parallel": "--expert-model-parallel-size",
    "--ep-size": "--expert-model-parallel-size",
    "--ep": "--expert-model-parallel-size",
    "--per_device_train_batch_size": "--micro-batch-size",
}


def _others() -> Mapping[str, str]:
    groups = (
        (
            _SERVED,
            "of a server (vLLM, SGLang), whose requests are no plan of ours",
        ),
        (_LAUNCHED, "of a launcher (torchrun, deepspeed, accelerate), which --machine says; leave it out"),
        (_TRAINED, "of Hugging Face's Trainer; give its DeepSpeed JSON, or the word of its fsdp"),
    )
    out = {}
    for names, what in groups:
        for name in names.split():
            out[name] = f"{what}; Megatron-LM's word is {_WRITE[name]}" if name in _WRITE else what
    return out


OTHERS: Final = _others()
"""Flag of another program -> what it is, and what to give."""

_TRAINER: Final = (
    "per_device_train_batch_size",
    "gradient_checkpointing",
    "output_dir",
    "num_train_epochs",
    "fsdp",
    "fsdp_config",
    "learning_rate",
    "deepspeed",
)
_ACCELERATE: Final = ("distributed_type", "compute_environment", "fsdp_config", "deepspeed_config", "num_processes")
_COMPOSER: Final = ("sharding_strategy", "fsdp_sharding_strategy", "parallelism_config")
_SHELL: Final = re.compile(
    r"^[ \t]*(#!.*\b(ba|z|da|k)?sh\b|export[ \t]"
    r"|(?:\w+=\S*[ \t]+){0,16}(?:srun|mpirun|torchrun|deepspeed|accelerate|python3?|exec)\b"
    r"|[A-Za-z_]\w*\+?=\(|[\w./-]+\.py[ \t]+-|if[ \t]\[|for[ \t]\w+[ \t]in\b)",
    re.MULTILINE,
)
_KEY: Final = re.compile(r"^(\s*)(?:-\s+)?([A-Za-z_][\w.-]*)\s*:(?:\s+(.*))?$")


def is_script(text: str) -> bool:
    """Whether a text is a launch script of a shell.

    >>> is_script("#!/bin/bash\\nTP=2\\n"), is_script("--tensor-model-parallel-size 8")
    (True, False)
    """
    return _SHELL.search(text) is not None


def yaml(text: str) -> InputError | None:
    """What to give of a YAML; None if the text is none."""
    values: dict[str, str] = {}
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in lines:
        found = _KEY.match(line)
        if found is None and not line.lstrip().startswith(("-", "]", "}", "[", "{")) and line.strip() != "---":
            return None
        if found is not None:
            values.setdefault(found[2], (found[3] or "").split(" #")[0].strip("\"' "))
    if not values:
        return None
    if "parallelism" in values and {"dp", "tp", "pp"} & set(values):
        tp, pp = (values.get(n, "1") or "1" for n in ("tp", "pp"))
        return InputError(
            f"is nanotron's YAML, which is not read; give its table parallelism in Megatron's words: "
            f"--tensor-model-parallel-size {tp[:9]} --pipeline-model-parallel-size {pp[:9]}, with --sequence-parallel "
            "for tp_mode REDUCE_SCATTER, and --micro-batch-size, --global-batch-size"
        )
    if set(values) & set(_ACCELERATE):
        word = values.get("fsdp_sharding_strategy", "")
        give = f"its fsdp_sharding_strategy, as a file: {word[:40]}" if word else "its DeepSpeed JSON, or FULL_SHARD"
        return InputError(f"is a YAML of accelerate, which is not read; give {give}")
    return InputError(
        "is a YAML, which is not read; give Megatron's flags, torchtitan's TOML, DeepSpeed's JSON or a word of FSDP"
    )


def json_of_others(data: Mapping[str, object]) -> InputError | None:
    """What to give of a JSON object of another program; None where it is none that is known."""
    if "deepspeed" not in data and set(data) & set(_COMPOSER):
        word = str(data.get("sharding_strategy", data.get("fsdp_sharding_strategy", "FULL_SHARD")))
        return InputError(f"is a configuration of FSDP with more than its strategy; give that word alone: {word[:40]}")
    if set(data) & set(_TRAINER):
        inner = data.get("deepspeed")
        give = (
            "the object under deepspeed" if isinstance(inner, dict) else "its DeepSpeed JSON, or the word of its fsdp"
        )
        return InputError(f"are arguments of Hugging Face's Trainer, which are not read; give {give} as a file")
    if set(data) & set(_ACCELERATE):
        return InputError("is a configuration of accelerate, which is not read; give its DeepSpeed JSON, or FULL_SHARD")
    return None
