r"""This module says how Megatron, DeepSpeed, FSDP and torchtitan are told to spread a training step: degrees, what
copies shard.

Megatron   the command line:  --tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer ..
DeepSpeed  its JSON:          {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 4, ..}
torchtitan its TOML, or that as flags:  [parallelism] tensor_parallel_degree = 8, data_parallel_shard_degree = -1
FSDP       one of PyTorch's or Composer's words:  FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, NO_SHARD

state sharded over the copies    0 nothing;  1 optimizer;  2 and gradients;  3 and parameters        (ZeRO's stages)
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from typing import Final

from ...files.json_text import JsonError, parse_json
from ...layout.targets.degrees import MAX_DEGREE, Flags
from ...text import InputError

_SHARDS: Final = "data_parallel_shard_degree"

_DEGREES: Final[Mapping[str, str]] = {
    "--tensor-model-parallel-size": "tp",
    "--pipeline-model-parallel-size": "pp",
    "--context-parallel-size": "cp",
    "--expert-model-parallel-size": "ep",
    "--micro-batch-size": "micro_batch",
    "--global-batch-size": "global_batch",
}
_SHARDING: Final[Mapping[str, int]] = {
    "no_shard": 0,
    "optim": 1,
    "optim_grads": 2,
    "shard_grad_op": 2,
    "optim_grads_params": 3,
    "full_shard": 3,
    "hybrid_shard": 3,
}


def read_flags(text: str) -> Flags | None:
    """Degrees from a command line, a configuration of DeepSpeed or torchtitan, or a word of FSDP; None if the text is
    none of them.

    >>> found = read_flags("--tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer")
    >>> found == Flags(source='Megatron', tp=4, sequence_parallel=True, zero=1)
    True
    >>> read_flags('{"zero_optimization": {"stage": 3}}').zero
    3
    >>> read_flags("FULL_SHARD").zero, read_flags('{"fc1": {"b": {"gpus": 8}}}')
    (3, None)
    """
    stripped = text.strip()
    if stripped.lower() in _SHARDING:
        return Flags("FSDP", zero=_SHARDING[stripped.lower()])
    if stripped.startswith("{"):
        try:
            data = parse_json(stripped)
        except JsonError:
            return None
        return _deepspeed(data) if isinstance(data, dict) and _is_deepspeed(data) else None
    if stripped.startswith("--parallelism.") or " --parallelism." in stripped:
        return _torchtitan(_titan_flags(stripped))
    if re.search(r"^\s*\[\s*parallelism\s*\]", text, re.MULTILINE):
        try:
            return _torchtitan(tomllib.loads(text))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InputError(f"torchtitan: the configuration is no TOML: {str(error)[:200]}") from None
    return _megatron(stripped) if stripped.startswith("--") else None


def _is_deepspeed(data: Mapping[str, object]) -> bool:
    return any(
        k in data for k in ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
    ) and not any(isinstance(v, dict) and k != "zero_optimization" and _looks_placed(v) for k, v in data.items())


def _looks_placed(value: Mapping[str, object]) -> bool:
    """A table of tables of numbers: an entry of a strategy file."""
    return bool(value) and all(
        isinstance(v, dict) and v and all(type(n) is int for n in v.values()) for v in value.values()
    )


def _deepspeed(data: Mapping[str, object]) -> Flags:
    zero = data.get("zero_optimization", {})
    if not isinstance(zero, dict):
        raise InputError('DeepSpeed: zero_optimization is not an object; write {"stage": 0 to 3}')
    tensor = data.get("tensor_parallel", {})
    ways = tensor.get("autotp_size", 1) if isinstance(tensor, dict) else 1
    return Flags(
        "DeepSpeed",
        tp=_whole("tensor_parallel.autotp_size", ways),
        zero=_whole("zero_optimization.stage", zero.get("stage", 0)),
        micro_batch=_whole("train_micro_batch_size_per_gpu", data.get("train_micro_batch_size_per_gpu", 0)),
        global_batch=_whole("train_batch_size", data.get("train_batch_size", 0)),
    )


def _whole(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_DEGREE:
        raise InputError(f"DeepSpeed: {name} is {value!r}, not a whole number")
    return value


def _titan_flags(text: str) -> dict[str, object]:
    """`--section.name=value` as the tables of a configuration."""
    out: dict[str, dict[str, object]] = {}
    words = _words("torchtitan", text)
    for n, word in enumerate(words):
        name, joined, value = word.partition("=")
        section, dot, key = name.removeprefix("--").partition(".")
        if name.startswith("--") and dot:
            said = value if joined else words[n + 1] if n + 1 < len(words) else ""
            out.setdefault(section, {})[key] = int(said) if re.fullmatch(r"-?\d{1,7}", said) else said
    return dict(out)


def _torchtitan(data: Mapping[str, object]) -> Flags:
    """What `[parallelism]` says: FSDP2 over the shards, tensor parallelism with split sequences, as its Llama does.  A
    pipeline cuts the local batch into micro-batches of 1, where nothing else is said.
    """
    table, training = data.get("parallelism", {}), data.get("training", {})
    if not isinstance(table, dict) or not isinstance(training, dict):
        raise InputError("torchtitan: [parallelism] and [training] are tables")

    def degree(name: str, default: int) -> int:
        value = table.get(name, default)
        if type(value) is not int or not (1 <= value <= MAX_DEGREE or (value == -1 and name == _SHARDS)):
            raise InputError(f"torchtitan: parallelism.{name} is {str(value)[:40]!r}, not a degree of at least 1")
        return value

    shards, copies = degree(_SHARDS, -1), degree("data_parallel_replicate_degree", 1)
    tp, pp, cp = (degree(f"{name}_parallel_degree", 1) for name in ("tensor", "pipeline", "context"))
    reshard = table.get("fsdp_reshard_after_forward", "default")
    if reshard not in ("default", "always", "never"):
        raise InputError(f"torchtitan: fsdp_reshard_after_forward {str(reshard)[:40]!r}: one of default, always, never")
    gathered = reshard == "never" or (reshard == "default" and pp > 1)
    batches = [training.get(name, 0) for name in ("local_batch_size", "global_batch_size")]
    if not all(type(n) is int and -1 <= n <= MAX_DEGREE for n in batches):
        raise InputError("torchtitan: training.local_batch_size and global_batch_size are whole numbers")
    local = max(int(batches[0]), 0)
    return Flags(
        "torchtitan",
        tp=tp,
        pp=pp,
        cp=cp,
        ep=degree("expert_parallel_degree", 1),
        sequence_parallel=tp > 1,
        zero=0 if shards == cp == 1 else 2 if gathered else 3,
        micro_batch=local if pp == 1 else degree("pipeline_parallel_microbatch_size", 1),
        global_batch=max(int(batches[1]), 0),
        dp=0 if shards == -1 else shards * copies,
        passing=local if pp > 1 else 0,
    )


def _words(source: str, text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise InputError(f"{source}: the command line cannot be split: {error}") from None


def _megatron(text: str) -> Flags:
    words = _words("Megatron", text)
    found: dict[str, int] = {}
    zero, sequence = 0, False
    for n, word in enumerate(words):
        name, _, joined = word.partition("=")
        value = joined or (words[n + 1] if n + 1 < len(words) else "")
        if name in _DEGREES:
            if not value.isascii() or not value.isdigit() or len(value) > 7:
                raise InputError(f"Megatron: {name} is followed by {value!r}, not by a number")
            found[_DEGREES[name]] = int(value)
        elif name == "--sequence-parallel":
            sequence = True
        elif name == "--use-distributed-optimizer":
            zero = max(zero, 1)
        elif name == "--data-parallel-sharding-strategy":
            if value not in _SHARDING:
                raise InputError(f"Megatron: {name} {value!r} is none of {', '.join(_SHARDING)}")
            zero = max(zero, _SHARDING[value])
        elif name == "--use-torch-fsdp2":
            zero = 3
    return Flags("Megatron", sequence_parallel=sequence and found.get("tp", 1) > 1, zero=zero, **found)
