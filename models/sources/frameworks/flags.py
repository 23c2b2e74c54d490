r"""This module says how Megatron, DeepSpeed, FSDP and torchtitan are told to spread a training step: it finds out whose
settings a text holds, and reads them.

Megatron   the command line:  --tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer ..
DeepSpeed  its JSON:          {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 4, ..}
torchtitan its TOML, or that as flags:  [parallelism] tensor_parallel_degree = 8, data_parallel_shard_degree = -1
FSDP       one of PyTorch's or Composer's words:  FULL_SHARD, SHARD_GRAD_OP, NO_SHARD

A launch script that is plain enough is read for the arguments of its program; YAML and the files of other trainers are
refused with what to give of them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ...files.json_text import JsonError, parse_json
from ...text import InputError, did_you_mean
from .deepspeed import deepspeed, fsdp
from .launch import launched
from .megatron import megatron
from .neighbours import is_script, json_of_others, yaml
from .settings import Settings
from .torchtitan import torchtitan_flags, torchtitan_toml
from .words import vocabulary

_TABLE: Final = re.compile(r"^[ \t]*\[\[?[A-Za-z_][\w. \-]*\]\]?[ \t]*(#.*)?$", re.MULTILINE)
_DOTTED: Final = re.compile(r"(^|\s)--[A-Za-z_]+\.[A-Za-z_]")
_LAYOUTS: Final = frozenset({"placements", "specs", "shardings"})


def read_settings(text: str) -> Settings | None:
    """Settings from a command line, a configuration of DeepSpeed or torchtitan, or a word of FSDP; None if the text is
    a strategy (JSON of operators or choices), or nothing.

    Raises `InputError` for settings with a word or a value that cannot be judged, and for files of other programs.

    >>> found = read_settings("--tensor-model-parallel-size 4 --sequence-parallel").flags
    >>> found.source, found.tp, found.sequence_parallel
    ('Megatron', 4, True)
    >>> read_settings('{"zero_optimization": {"stage": 3}}').flags.zero
    3
    >>> read_settings("FULL_SHARD").flags.zero, read_settings('{"fc1": {"b": {"gpus": 8}}}')
    (3, None)
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    first = lines[0] if lines else ""
    if first.startswith(("{", "[")):
        try:
            data = parse_json(text.strip())
        except JsonError:
            return torchtitan_toml(text) if _TABLE.search(text) and not first.startswith("{") else None
        return _object(data) if isinstance(data, dict) else None
    if text.lstrip().startswith("#!") or (lines and not first.startswith("-") and is_script(text)):
        found = launched(text)
        said = torchtitan_flags if _DOTTED.search(found.arguments) else megatron
        settings = said(found.arguments)
        return replace(settings, idle=(*settings.idle, *found.others))
    if first.startswith("-") and not first.startswith("- ") and first != "---":
        return torchtitan_flags(text) if _DOTTED.search(text) else megatron(text)
    if _TABLE.search(text) or _is_toml(text):
        return torchtitan_toml(text)
    if (problem := yaml(text)) is not None:
        raise problem
    return _words(" ".join(lines)) if lines and text.isprintable() or len(lines) == 1 else None


def _is_toml(text: str) -> bool:
    """Whether a text without tables has keys with values."""
    try:
        return "=" in text and bool(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError):
        return False


def _words(text: str) -> Settings | None:
    """Words of FSDP; None for what is too long to be some."""
    words = re.split(r"[\s,]+", text.lower().replace("shardingstrategy.", ""))
    known = vocabulary("fsdp")
    names = [*known.words, *known.foreign]
    if any(w in known.words for w in words):
        return fsdp(text)
    if len(text) > 80 or not all(re.fullmatch(r"[\w.\"'-]+", w) for w in words):
        return None
    near = next((m for w in ("_".join(words), *words) if (m := did_you_mean(w, names))), "")
    if text.lower() in known.foreign:
        return fsdp(text)
    raise InputError(
        f"{text[:60]!r} is neither a file nor settings of Megatron-LM, torchtitan, DeepSpeed or FSDP (FULL_SHARD, "
        f"SHARD_GRAD_OP, NO_SHARD){near}"
    )


def _object(data: Mapping[str, object]) -> Settings | None:
    """Settings of a JSON object; None for a strategy, or for layouts of tensors."""
    if "mesh" in data and _LAYOUTS & set(data):
        return None
    known = vocabulary("deepspeed")
    ours = [key for key in data if key in known.words or known.is_section(key)]
    placed = [key for key, value in data.items() if value is None or _is_placement(value)]
    if len(placed) == len(data) and (not ours or len(ours) < len(data)):
        return None
    if (problem := json_of_others(data)) is not None and not ours:
        raise problem
    tops = sorted({word.split(".")[0] for word in (*known.words, *known.foreign)})
    if ours or any(did_you_mean(key, tops) for key in data if key not in placed):
        return deepspeed(data)
    return None


def _is_placement(value: object) -> bool:
    """An entry of a strategy file: a table of tables of numbers."""
    return isinstance(value, dict) and all(
        isinstance(v, dict) and v and all(type(n) is int for n in v.values()) for v in value.values()
    )
