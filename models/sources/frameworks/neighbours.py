"""Words of servers, launchers and other trainers that stand among the settings of one framework, and files of other
kinds, with what to give instead.
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
--torch_dtype --max_steps --logging_steps --save_steps --fsdp_transformer_layer_cls_to_wrap
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
            "of a server (vLLM, SGLang); give its flags alone",
        ),
        (_LAUNCHED, "of a launcher (torchrun, deepspeed, accelerate), which --machine says; leave it out"),
        (_TRAINED, "of Hugging Face's Trainer; give its arguments alone"),
    )
    out = {}
    for names, what in groups:
        for name in names.split():
            out[name] = f"{what}; Megatron-LM's word is {_WRITE[name]}" if name in _WRITE else what
    return out


OTHERS: Final = _others()
"""Flag of another program -> what it is, and what to give."""

_COMPOSER: Final = ("sharding_strategy", "fsdp_sharding_strategy")
_SHELL: Final = re.compile(
    r"^[ \t]*(#!.*\b(ba|z|da|k)?sh\b|export[ \t]"
    r"|(?:[^#\n]*(?:[({;&|]|\b(?:then|else|do|time|nohup|exec|env|sudo)\b)[ \t]*)?"
    r"(?:\w+=\S*[ \t]+){0,16}(?:srun|mpirun|torchrun|deepspeed|accelerate|python3?|exec|vllm|sglang|docker)(?=\s)"
    r"|[A-Za-z_]\w*\+?=\(|[\w./-]+\.py[ \t]+-|if[ \t]\[|for[ \t]\w+[ \t]in\b)",
    re.MULTILINE,
)


def is_script(text: str) -> bool:
    """Whether a text is a launch script of a shell.

    >>> is_script("#!/bin/bash\\nTP=2\\n"), is_script("--tensor-model-parallel-size 8"), is_script("( torchrun a.py )")
    (True, False, True)
    """
    return _SHELL.search(text) is not None


def json_of_others(data: Mapping[str, object]) -> InputError | None:
    """What to give of a JSON object of another program; None where it is none that is known."""
    if "deepspeed" in data or not set(data) & set(_COMPOSER):
        return None
    word = str(data.get("sharding_strategy", data.get("fsdp_sharding_strategy", "FULL_SHARD")))
    return InputError(f"is a configuration of FSDP with more than its strategy; give that word alone: {word[:40]}")
