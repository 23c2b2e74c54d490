r"""How Megatron, DeepSpeed, FSDP, torchtitan, other trainers and servers are told to spread a step: whose settings a
text holds is found out, and they are read.

Megatron     its command line:      --tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer ..
NeMo         its YAML or overrides: model.tensor_model_parallel_size=8 train.micro_batch_size=1 ..
DeepSpeed    its JSON:              {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 4, ..}
torchtitan   its TOML or flags:     [parallelism] tensor_parallel_degree = 8, data_parallel_shard_degree = -1
FSDP         one of its words:      FULL_SHARD, SHARD_GRAD_OP, NO_SHARD
accelerate, axolotl, nanotron, MaxText    their YAML;  Hugging Face's Trainer: its JSON, YAML or flags
vLLM, SGLang the flags of their servers:  --tensor-parallel-size 4 --max-model-len 8192

A launch script that is plain enough is read for the arguments of its program.  YAML, JSON objects and flags are those
of the framework that knows most of their words; where two know equally many and read another thing, the text is refused
with both names.  The answer says whose settings were read.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ...files.json_text import JsonError, parse_json
from ...text import InputError, did_you_mean
from .deepspeed import fsdp, read_deepspeed
from .launch import Launched, read_launches
from .megatron import megatron, split_words
from .neighbours import is_script, json_of_others
from .places import Places, of_yaml
from .recipes import READERS as RECIPES
from .recipes import overrides
from .servers import served_yaml, server_settings
from .settings import Settings
from .torchtitan import torchtitan_flags, torchtitan_toml
from .trainers import READERS as TRAINERS
from .trainers import trainer_flags
from .words import WordError, flatten, vocabulary

_TABLE: Final = re.compile(r"^[ \t]*\[\[?[A-Za-z_][\w. \-]*\]\]?[ \t]*(#.*)?$", re.MULTILINE)
_DOTTED: Final = re.compile(r"(^|\s)--[A-Za-z_]+\.[A-Za-z_]")
_KEY: Final = re.compile(r"^[ \t]*(-[ \t]+)?[\"']?[A-Za-z_][\w.-]*[\"']?[ \t]*:(\s|$)", re.MULTILINE)
_KEYED: Final = re.compile(r"\+{0,2}[A-Za-z_][\w.]*=", re.ASCII)
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
    places = Places(text)
    try:
        return _settings(text, places.lines)
    except WordError as error:
        line = places.line(error.name)
        raise error if line is None else error.at(line) from None


def _settings(text: str, places: dict[str, int]) -> Settings | None:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    first = lines[0] if lines else ""
    if first.startswith(("{", "[")):
        try:
            data = parse_json(text.strip())
        except JsonError:
            if is_script(text):  # commands in braces
                return _of_script(read_launches(text))
            return torchtitan_toml(text) if _TABLE.search(text) and not first.startswith("{") else None
        return _object(data) if isinstance(data, dict) else None
    if text.lstrip().startswith("#!") or (lines and not first.startswith("-") and is_script(text)):
        return _of_script(read_launches(text))
    if first.startswith("-") and not first.startswith("- ") and first != "---":
        return torchtitan_flags(text) if _DOTTED.search(text) else _flags(text)
    if (found := _overrides(text)) is not None:
        return found
    if _TABLE.search(text) or _is_toml(text):
        return torchtitan_toml(text)
    if _KEY.search(text):
        return _yaml(text, places)
    return _words(" ".join(lines)) if lines and text.isprintable() or len(lines) == 1 else None


def _of_script(ways: tuple[Launched, ...]) -> Settings:
    """Settings of a script: the same on every way through it, or an error that names the line where they part."""
    found = _launched(ways[0])
    for way in ways[1:]:
        last = next(d for d in reversed(way.doubts) if d.holds)
        try:
            other = _launched(way)
            why = "" if _judged(other) == _judged(found) else "its two ways are other settings"
        except InputError as error:
            why = str(error)
        if why:
            raise InputError(
                f"line {last.line}: {last.text} is for who starts the script to know, and it changes what is judged "
                f"({why}); write the way that is run"
            )
    taken = tuple(
        f"line {d.line}: {d.text} either way" for d in dict.fromkeys(d for w in ways for d in w.doubts if d.holds)
    )
    return replace(found, idle=(*found.idle, *taken))


def _judged(settings: Settings) -> tuple[object, ...]:
    """What an audit compares of settings."""
    s = settings
    kept = (
        s.family,
        s.half,
        s.gradients,
        s.attention,
        s.recompute,
        s.optimizer,
        s.half_sums,
        s.masters,
        s.serves,
        s.limits,
    )
    return s.flags, frozenset(s.sizes), *kept


def _launched(found: Launched) -> Settings:
    """Settings of the arguments that a script gives its program."""
    if not any(re.match(r"-|\+{0,2}[A-Za-z_][\w.]*=", word) for word in split_words("settings", found.arguments)):
        raise InputError(
            f"starts {found.program[:60]} without a setting of a framework that is read; give the file or the "
            "arguments that say how the step is spread"
        )
    begins = re.split(r"[./-]", found.program)[0]
    server = "vllm" if "vllm-openai" in found.program else begins if begins in ("vllm", "sglang") else ""
    if server:
        settings = server_settings(server, split_words(server, found.arguments))
    elif _DOTTED.search(found.arguments):
        settings = torchtitan_flags(found.arguments)
    else:
        settings = _overrides(found.arguments) or _flags(found.arguments)
    flags = replace(settings.flags, devices=found.devices or settings.flags.devices)
    return replace(settings, flags=flags, idle=(*settings.idle, *found.others))


def _flags(text: str) -> Settings:
    """Settings of flags: of the program that knows most of them; of Megatron where none does."""
    try:
        words = split_words("Megatron", text)
    except InputError:
        return megatron(text)
    names = [w.partition("=")[0] for w in words if w.startswith("-")]
    dashed = [n.replace("_", "-") for n in names]
    readers: dict[str, Callable[[], Settings]] = {
        "megatron": lambda: megatron(text),
        "vllm": lambda: server_settings("vllm", words),
        "sglang": lambda: server_settings("sglang", words),
        "trainer": lambda: trainer_flags(words),
    }
    scores = {
        "megatron": _known("megatron", names),
        "vllm": _known("vllm", dashed),
        "sglang": _known("sglang", dashed),
        "trainer": _known("trainer", [n.removeprefix("--").replace("-", "_") for n in names]),
    }
    return _best(scores, readers)


_READ: Final = 1 << 16
"""What a known word weighs beside one that is read: more words decide, then more of them that are read."""


def _known(name: str, words: list[str]) -> int:
    known = vocabulary(name).words
    found = {w for w in words if w in known}
    return _READ * len(found) + sum(known[w].group == "read" for w in found)


def _best(scores: Mapping[str, int], readers: Mapping[str, Callable[[], Settings]]) -> Settings:
    """The settings of the framework that knows most words; of the first where all know as many and mean the same."""
    most = max(scores.values())
    first, *others = [name for name in readers if scores[name] == most]
    if most == 0:
        return readers[first]()
    found = readers[first]()
    for other in others:
        try:
            same = replace(readers[other]().flags, source=found.flags.source) == found.flags
        except InputError:
            same = True  # who cannot read it is not meant
        if not same:
            names = " and ".join(vocabulary(name).framework for name in (first, other))
            raise InputError(
                f"are settings of {names} alike, which mean another thing by them; add a word of one of them"
            )
    return found


def _overrides(text: str) -> Settings | None:
    """Settings of `key=value` words of NeMo or MaxText; None for another text."""
    if "=" not in text or text.lstrip().startswith(("{", "[")):
        return None
    try:
        words = split_words("NeMo", text)
    except InputError:
        return None
    keys = [w.partition("=")[0].lstrip("+") for w in words if "=" in w]
    scores = {name: _known(name, keys) for name in RECIPES if name != "nanotron"}
    if max(scores.values()) == 0 or max(scores.values()) <= _known("torchtitan", keys):
        return None
    if (config := next((w for w in words if w.startswith("--config")), None)) is not None:
        raise InputError(
            f"{config[:60]}: its values are in another file; audit that YAML, with these values written into it"
        )
    if not all(_KEYED.match(w) for w in words if not w.endswith((".yml", ".yaml"))):
        return None
    given = overrides(words)
    return _best(scores, {name: lambda name=name: RECIPES[name](given[name]) for name in scores})  # type: ignore[misc]


def _yaml(text: str, places: dict[str, int]) -> Settings | None:
    """Settings of a YAML, with the lines of its keys; of Megatron's own tests their arguments (`MODEL_ARGS`)."""
    data, lines = of_yaml(text)
    places |= lines
    if isinstance(listed := data.get("MODEL_ARGS"), dict) and all(str(key).startswith("-") for key in listed):
        places |= {key.rpartition(".")[2]: line for key, line in lines.items() if key.startswith("MODEL_ARGS.")}
        given = {key: value for key, value in listed.items() if value is not False}
        return megatron(shlex.join([w for k, v in given.items() for w in ([k] if v is True else [f"{k}={v}"])]))
    readers: dict[str, Callable[[], Settings]] = {
        name: lambda reader=reader: reader(data)  # type: ignore[misc]
        for name, reader in {**TRAINERS, **RECIPES}.items()
    }
    readers["vllm"] = lambda: served_yaml(data)
    scores = {name: _score(name, data) for name in readers if name != "vllm"}
    scores["vllm"] = _known("vllm", [f"--{key}".replace("_", "-") for key in data])
    if max(scores.values()) == 0:
        known = ", ".join(vocabulary(name).framework for name in readers)
        key = next(iter(data), "")
        raise WordError("settings", str(key), f"a YAML of {known} is read, and none of them knows {str(key)[:60]!r}")
    return _best(scores, readers)


def _score(name: str, data: Mapping[str, object]) -> int:
    """How many words of an object a framework knows, and how many of them it reads, as `_known` counts them."""
    known = vocabulary(name)
    words = [word for word, _ in flatten(known, data)]
    return _known(name, words) + _READ * sum(w not in known.words and known.is_section(w) for w in words)


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
        f"{text[:60]!r} is neither a file nor settings of Megatron-LM, torchtitan, DeepSpeed, FSDP (FULL_SHARD, "
        f"SHARD_GRAD_OP, NO_SHARD) or another framework that is read{near}"
    )


def _object(data: Mapping[str, object]) -> Settings | None:
    """Settings of a JSON object; None for a strategy, or for layouts of tensors."""
    if "mesh" in data and _LAYOUTS & set(data):
        return None
    known = vocabulary("deepspeed")
    ours = [key for key in data if key in known.words or known.is_section(key)]
    placed = [key for key, value in data.items() if value is None or _is_placement(value)]
    readers: dict[str, Callable[[], Settings]] = {
        "deepspeed": lambda: read_deepspeed(data),
        **{name: lambda reader=reader: reader(data) for name, reader in {**TRAINERS, **RECIPES}.items()},  # type: ignore[misc]
    }
    scores = {name: _score(name, data) for name in readers}
    if len(placed) == len(data) and max(scores.values()) < _READ * len(data):
        return None
    if (problem := json_of_others(data)) is not None and not ours:
        raise problem
    if max(scores.values()) > scores["deepspeed"]:
        return _best(scores, readers)
    tops = sorted({word.split(".")[0] for word in (*known.words, *known.foreign)})
    if ours or any(did_you_mean(key, tops) for key in data if key not in placed):
        return read_deepspeed(data)
    return None


def _is_placement(value: object) -> bool:
    """An entry of a strategy file: a table of tables of numbers."""
    return isinstance(value, dict) and all(
        isinstance(v, dict) and v and all(type(n) is int for n in v.values()) for v in value.values()
    )
