r"""How Megatron, DeepSpeed and FSDP are told to spread a training step: degrees, and what is sharded over copies.

Megatron   the command line:  --tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer ..
DeepSpeed  its JSON:          {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 4, ..}
FSDP       one of PyTorch's or Composer's words:  FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, NO_SHARD

state sharded over the copies    0 nothing;  1 optimizer;  2 and gradients;  3 and parameters        (ZeRO's stages)
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ...files.json_text import JsonError, parse_json
from ...text import InputError

MAX_DEGREE: Final = 1 << 20

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


@dataclass(frozen=True)
class Flags:
    """Degrees (1: not split) and batches (0: not said); `zero` as in the module's table; `source`: the framework."""

    source: str
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    zero: int = 0
    micro_batch: int = 0
    global_batch: int = 0

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "cp", "ep"):
            if not 1 <= getattr(self, name) <= MAX_DEGREE:
                raise InputError(f"{self.source}: {name} is {getattr(self, name)}; it has to be at least 1")
        if self.zero not in range(4):
            raise InputError(f"{self.source}: stage {self.zero} is none of ZeRO's 0 to 3")
        if self.sequence_parallel and self.tp == 1:
            raise InputError(
                f"{self.source}: sequence parallelism splits what tensor parallelism leaves whole; give tp, or leave "
                "it out"
            )

    def copies(self, devices: int) -> int:
        """Data parallel copies on so many devices.  Raises `InputError` if the degrees do not divide them.

        >>> Flags("Megatron", tp=8, cp=2).copies(64)
        4
        """
        ways = self.tp * self.pp * self.cp
        if devices % ways:
            raise InputError(
                f"{self.source}: tp {self.tp} x pp {self.pp} x cp {self.cp} is {ways}, which does not divide {devices} "
                "devices"
            )
        return devices // ways


def read_flags(text: str) -> Flags | None:
    """Degrees from a command line, a DeepSpeed configuration or a word of FSDP; None if the text is none of them.

    >>> read_flags("--tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer")
    Flags(source='Megatron', tp=4, pp=1, cp=1, ep=1, sequence_parallel=True, zero=1, micro_batch=0, global_batch=0)
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


def _megatron(text: str) -> Flags:
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise InputError(f"Megatron: the command line cannot be split: {error}") from None
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
