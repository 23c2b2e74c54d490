"""Reads DeepSpeed's JSON and the words of FSDP as settings.

    {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 4, ..}
    FULL_SHARD, SHARD_GRAD_OP, NO_SHARD

DeepSpeed's batch is micro-batch x accumulation steps x copies; how many copies there are only the machine says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...layout.targets.degrees import Flags
from ...text import InputError, did_you_mean
from .neighbours import OTHERS
from .settings import OtherChoice, Settings, sizes_of_words
from .words import Sorted, flatten, sorted_words, vocabulary

_FRAMEWORK: Final = "DeepSpeed"
_ADAM: Final = ("adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam")
_TYPES: Final = {"fp16": "float16", "fp32": "float32", "bf16": "bfloat16", "bfp16": "bfloat16"}


def read_deepspeed(data: Mapping[str, object]) -> Settings:
    """Settings of a JSON object.  Raises `InputError`."""
    said = sorted_words(vocabulary("deepspeed"), flatten(vocabulary("deepspeed"), data), OTHERS)
    zero = said.count("zero", 0)
    if zero not in range(4):
        raise said.wrong("zero", f"stage {zero} is none of ZeRO's 0 to 3")
    micro, steps, batch = (said.count(name, 0) for name in ("micro_batch", "steps", "global_batch"))
    if batch and batch % (max(micro, 1) * max(steps, 1)):
        parts = " x ".join(f"{said.word(n)} {said.count(n, 0)}" for n in ("micro_batch", "steps") if n in said.values)
        raise said.wrong("global_batch", f"is no multiple of {parts}")
    if said.flag("bf16") and said.flag("fp16"):
        raise said.wrong("fp16", f"contradicts {said.word('bf16')}; give one of the two")
    halves = (("bf16", "bfloat16"), ("fp16", "float16"))
    return Settings(
        Flags(_FRAMEWORK, tp=said.count("tp", 1), zero=zero, micro_batch=micro, global_batch=batch, steps=steps),
        said,
        sizes_of_words(said),
        half=next((OtherChoice(said.word(n), t) for n, t in halves if said.flag(n)), None),
        gradients=_gradients(said),
        optimizer=_optimizer(said),
        half_sums=True,
    )


def _gradients(said: Sorted) -> OtherChoice | None:
    name = said.text("gradients")
    if not name or name == "none":
        return None
    if name not in _TYPES:
        raise said.wrong("gradients", f"is none of {', '.join(_TYPES)}")
    return OtherChoice(f"{said.word('gradients')} {name}", _TYPES[name])


def _optimizer(said: Sorted) -> OtherChoice | None:
    name = said.text("optimizer")
    if not name:
        return None
    if name.lower() not in (*_ADAM, "sgd"):
        near = did_you_mean(name, ["Adam", "AdamW", "SGD"])
        raise said.wrong("optimizer", f"audits take Adam, AdamW and SGD{near}")
    if "cpu" in name.lower():
        raise said.wrong("optimizer", "offload is no plan of ours: optimizer state is on the devices; write AdamW")
    return OtherChoice(f"{said.word('optimizer')} {name}", "sgd" if name.lower() == "sgd" else "adam")


_STAGES: Final = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0}


def fsdp(text: str) -> Settings:
    """Settings of words of FSDP, such as `FULL_SHARD`.  Raises `InputError`.

    >>> fsdp("ShardingStrategy.SHARD_GRAD_OP").flags.zero
    2
    """
    known = vocabulary("fsdp")
    words = [w.strip("\"'").removeprefix("ShardingStrategy.").lower() for w in text.replace(",", " ").split()]
    said = sorted_words(known, [(w, True) for w in words], {})
    stages = {_STAGES[name]: name for name in _STAGES if said.flag(name)}
    if len(stages) != 1:
        names = ", ".join(stages.values()) or "none"
        raise InputError(f"FSDP: {text[:60]!r} has {names} of full_shard, shard_grad_op, no_shard; write one of them")
    return Settings(Flags("FSDP", zero=next(iter(stages))), said)
