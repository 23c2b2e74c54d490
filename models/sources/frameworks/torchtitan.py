"""Reads torchtitan's configuration as settings: its TOML, or that as flags.

    [parallelism]                                        --parallelism.tensor_parallel_degree=8
    tensor_parallel_degree = 8                           --parallelism.data_parallel_shard_degree -1

`[parallelism]` means FSDP2 over the shards, tensor parallelism with split sequences, as torchtitan's Llama does.  A
pipeline cuts the local batch into micro-batches of 1, where nothing else is said.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Final

from ...layout.targets.degrees import Flags
from ...text import InputError, did_you_mean
from .megatron import split_words
from .neighbours import OTHERS
from .settings import OtherChoice, Settings, Size, sizes_of_words
from .words import Sorted, Value, flatten, parse_value, sorted_words, vocabulary

_FRAMEWORK: Final = "torchtitan"

FLAVORS: Final = {
    ("llama3", "8B"): (32, 4096, 32, 8, 14336, 128_256),
    ("llama3", "70B"): (80, 8192, 64, 8, 28672, 128_256),
    ("llama3", "405B"): (126, 16384, 128, 8, 53248, 128_256),
    ("qwen3", "0.6B"): (28, 1024, 16, 8, 3072, 151_936),
    ("qwen3", "1.7B"): (28, 2048, 16, 8, 6144, 151_936),
    ("qwen3", "4B"): (36, 2560, 32, 8, 9728, 151_936),
    ("qwen3", "8B"): (36, 4096, 32, 8, 12288, 151_936),
    ("qwen3", "14B"): (40, 5120, 40, 8, 17408, 151_936),
    ("qwen3", "32B"): (64, 5120, 64, 8, 25600, 151_936),
}
"""Model and flavor -> layers, width, heads, heads of keys, hidden width, vocabulary (torchtitan/models)."""

_MODELS: Final = ("llama3", "llama4", "qwen3", "deepseek_v3", "gpt_oss")
"""Decoders of torchtitan; of all but llama3 only the sizes that are known of a flavor are compared."""

_FLAVOR_SIZES: Final = ("layers", "width", "heads", "kv_heads", "hidden", "vocabulary")

_SEVERAL_PARTS: Final = ("interleaved", "loopedbfs", "zbv", "dualpipev")
"""How names of schedules with several parts on a stage begin."""

_TYPES: Final = ("bfloat16", "float16", "float32")


def torchtitan_toml(text: str) -> Settings:
    """Settings of a TOML.  Raises `InputError`."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{_FRAMEWORK}: the configuration is no TOML: {str(error)[:200]}") from None
    return _settings(list(flatten(vocabulary("torchtitan"), data)))


def torchtitan_flags(text: str) -> Settings:
    """Settings of a command line.  Raises `InputError`."""
    return _settings(list(_flags(split_words(_FRAMEWORK, text))))


def _flags(words: list[str]) -> Iterator[tuple[str, Value]]:
    """`--section.name=value`, `--section.name value`, `--section.switch`, `--section.no_switch`."""
    known, at = vocabulary("torchtitan"), 0
    while at < len(words):
        name, joined, value = words[at].partition("=")
        at += 1
        if not name.startswith("--"):
            raise InputError(f"{_FRAMEWORK}: {name[:60]!r} belongs to no flag; write --section.name=value")
        key = name.removeprefix("--").replace("-", "_")
        section, _, last = key.rpartition(".")
        positive = f"{section}.{last.removeprefix('no_')}"
        if key not in known.words and last.startswith("no_") and positive in known.words:
            if joined or known.words[positive].kind != "bool":
                raise InputError(
                    f"{_FRAMEWORK}: {name[:60]} takes no value, and is for settings that are true or false"
                )
            yield positive, False
            continue
        word = known.words.get(key)
        if not joined and at < len(words) and not words[at].startswith("--"):
            value, joined = words[at], "="
            at += 1
        if not joined:
            if word is not None and word.kind != "bool":
                raise InputError(f"{_FRAMEWORK}: {name} is followed by nothing ('' is no value); write {name}=value")
            yield key, True
        else:
            yield key, value if word is None else parse_value(word, value)


def _settings(found: list[tuple[str, Value]]) -> Settings:
    said = sorted_words(vocabulary("torchtitan"), found, OTHERS)
    shards, copies, cp = (said.count(n, d) for n, d in (("shards", -1), ("copies", 1), ("cp", 1)))
    if shards != -1 and shards < 1:
        raise said.wrong("shards", "is not a degree of at least 1, or -1 for what is left")
    if copies > 1 and (shards != 1 or cp > 1):
        raise said.wrong(
            "copies",
            "copies of groups that shard (hybrid sharding) are no plan of ours; leave it out to audit state sharded "
            "over all copies, or write data_parallel_shard_degree = 1 for copies alone",
        )
    tp, pp, ep = (said.count(name, 1) for name in ("tp", "pp", "ep"))
    _experts(said, tp, ep)
    gathered = _gathered(said, pp)
    local, batch = said.count("local_batch", 0), max(said.count("global_batch", 0), 0)
    if said.count("global_batch", -1) < 1 and said.count("global_batch", -1) != -1:
        raise said.wrong("global_batch", "is neither a batch nor -1 for what the copies make")
    if local and batch and batch % local:
        raise said.wrong("global_batch", f"is no multiple of {said.word('local_batch')} {local}")
    micro = said.count("micro_batch", 1)
    if pp > 1 and local % micro:
        raise said.wrong("micro_batch", f"does not divide {said.word('local_batch')} {local}")
    idle = _schedule(said, pp) + tuple(
        said.word("micro_batch") for _ in "1" if pp == 1 and "micro_batch" in said.values
    )
    split = said.flag("sequence_parallel", True)
    flags = Flags(
        _FRAMEWORK,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        sequence_parallel=tp > 1 and split,
        zero=0 if shards == cp == 1 else 2 if gathered else 3,
        micro_batch=local if pp == 1 else micro,
        global_batch=batch,
        dp=0 if shards == -1 else shards * copies,
        passing=local if pp > 1 or not batch else 0,
    )
    family, sizes = _model(said)
    sized = {size.word.split(" ")[0] for size in sizes}
    apart = tuple(said.word(n) for n in ("model", "flavor") if n in said.values and family is None)
    return Settings(
        flags,
        said,
        sizes,
        family,
        half=_type(said, "precision") or _usual_half(shards, copies, cp, tp * pp),
        gradients=_type(said, "gradients"),
        recompute=_recompute(said) or _SELECTIVE,
        optimizer=_optimizer(said),
        masters="cast" if shards == cp == 1 else "beside",
        idle=idle,
        uncompared=tuple(word for word in apart if word not in sized),
    )


def _experts(said: Sorted, tp: int, ep: int) -> None:
    """With experts over devices, torchtitan leaves them whole over tensor parallelism unless told otherwise."""
    ways = said.count("etp", 1)
    if ep > 1 and ways != tp:
        name = "etp" if "etp" in said.values else "ep"
        raise said.wrong(
            name,
            f"experts are audited split over tensor parallelism, {tp} ways, like all other layers, here they are split "
            f"{ways} ways; write expert_tensor_parallel_degree = {tp}",
        )


def _gathered(said: Sorted, pp: int) -> bool:
    reshard = said.text("reshard") or "default"
    if reshard not in ("default", "always", "never"):
        raise said.wrong("reshard", "is none of default, always, never")
    return reshard == "never" or (reshard == "default" and pp > 1)


def _schedule(said: Sorted, pp: int) -> tuple[str, ...]:
    """Words that say nothing of one stage; an error for schedules of several that are not audited."""
    name = said.text("schedule")
    if not name:
        return ()
    if pp == 1:
        return (said.word("schedule"),)
    if name.lower().startswith(_SEVERAL_PARTS):
        raise said.wrong(
            "schedule",
            "stages of several parts are not audited from settings (plan --pipeline P:M:V plans them); leave it out to "
            "audit the same settings under 1F1B",
        )
    if name.lower() != "1f1b":
        raise InputError(f"{_FRAMEWORK}: schedule {name}: stages are audited under 1F1B; leave it out to audit that")
    return ()


def _model(said: Sorted) -> tuple[OtherChoice | None, tuple[Size, ...]]:
    """The family of the model, and its sizes, of a flavor too."""
    name, flavor = said.text("model"), said.text("flavor")
    sizes = list(sizes_of_words(said))
    if name and name not in _MODELS:
        raise said.wrong(
            "model", f"is no model of torchtitan that is known ({', '.join(_MODELS)}){did_you_mean(name, _MODELS)}"
        )
    word = f"{said.word('flavor')} {flavor}" if flavor else ""
    names = [f for model, f in FLAVORS if model == (name or "llama3")]
    if flavor == "debugmodel" and name in ("", "llama3"):
        sizes += [Size(n, word, v) for n, v in (("layers", 6), ("width", 256))]
    elif flavor in names:
        known = FLAVORS[name or "llama3", flavor]
        sizes += [Size(n, word, value) for n, value in zip(_FLAVOR_SIZES, known, strict=True)]
    elif flavor and name in ("", "llama3"):
        near = did_you_mean(flavor, names)
        raise said.wrong(
            "flavor", f"sizes of llama3 are known of {', '.join(names)}{near}; leave it out to audit other sizes"
        )
    dense = name == "llama3"
    return OtherChoice(f"{said.word('model')} {name}", "llama") if dense else None, tuple(sizes)


def _type(said: Sorted, name: str) -> OtherChoice | None:
    text = said.text(name)
    if not text:
        return None
    if text not in _TYPES:
        raise said.wrong(name, f"is none of {', '.join(_TYPES)}")
    return OtherChoice(f"{said.word(name)} {text}", text)


_SELECTIVE: Final = OtherChoice("activation_checkpoint.mode by default 'selective', audited as 'none'", "none", True)


def _usual_half(shards: int, copies: int, cp: int, others: int) -> OtherChoice | None:
    """torchtitan's own: bfloat16 in FSDP's units, or by autocast where nothing but copies is; nothing of tensor
    parallelism or stages alone.
    """
    if shards == copies == cp == 1 and others > 1:
        return None
    return OtherChoice("training.mixed_precision_param by default 'bfloat16'", "bfloat16", usual=True)


def _recompute(said: Sorted) -> OtherChoice | None:
    mode = said.text("recompute")
    if not mode:
        return None
    if mode not in ("full", "none"):
        near = "operators of a layer are no plan of ours" if mode in ("selective", "memory_budget") else "is no mode"
        raise said.wrong("recompute", f"{near}; write full or none")
    return OtherChoice(f"{said.word('recompute')} {mode}", "all" if mode == "full" else "none")


def _optimizer(said: Sorted) -> OtherChoice | None:
    name = said.text("optimizer")
    if not name:
        return None
    if name not in ("Adam", "AdamW"):
        raise said.wrong("optimizer", f"audits take Adam and AdamW{did_you_mean(name, ['Adam', 'AdamW'])}")
    return OtherChoice(f"{said.word('optimizer')} {name}", "adam")
