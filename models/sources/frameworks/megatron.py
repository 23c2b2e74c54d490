r"""Reads the command line of Megatron-LM as settings.

    --tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer ..

Arguments are those of `vocabularies/megatron.toml`, spelled out, as Megatron's parser wants them; the last of two equal
ones counts there, so that two that differ are an error here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Final

from ...layout.targets.degrees import Flags
from ...text import InputError
from .launch import unknown_value
from .neighbours import OTHERS
from .settings import OtherChoice, Settings, Size, sizes_of_words
from .words import Sorted, Value, Vocabulary, WordError, parse_value, sorted_words, vocabulary

SHARDING: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""Values of `--data-parallel-sharding-strategy` as stages of ZeRO; Megatron reads it under `--use-megatron-fsdp`."""

_FRAMEWORK: Final = "Megatron"
_VARIABLE: Final = re.compile(r"\$[\w{(]")


def megatron(text: str) -> Settings:
    """Settings of a command line.  Raises `InputError`."""
    known = vocabulary("megatron")
    return settings_of_words(sorted_words(known, arguments(known, split_words(_FRAMEWORK, text)), OTHERS))


def settings_of_words(said: Sorted) -> Settings:
    """Settings of words under Megatron's names, which NeMo's files say too.  Raises `InputError`."""
    _contradictions(said)
    recompute = _recompute(said)
    tp, ep = said.count("tp", 1), said.count("ep", 1)
    if said.count("etp", tp) != tp:
        raise said.wrong("etp", f"experts are audited split over tensor parallelism, {tp} ways; leave it out")
    flags = Flags(
        said.framework,
        tp=tp,
        pp=said.count("pp", 1),
        cp=said.count("cp", 1),
        ep=ep,
        sequence_parallel=said.flag("sequence_parallel") and tp > 1,
        zero=_zero(said),
        micro_batch=said.count("micro_batch", 0),
        global_batch=said.count("global_batch", 0),
    )
    half = next((OtherChoice(said.word(n), t) for n, t in _HALF if said.flag(n)), None)
    gradients = next((OtherChoice(said.word(n), t) for n, t in _GRADIENTS if said.flag(n)), None)
    idle = tuple(said.word(n) for n in ("sequence_parallel",) if tp == 1 and said.flag(n))
    if recompute is None:  # NeMo's files give them beside no granularity, where they count for nothing
        idle += tuple(said.word(n) for n in _BESIDE if n in said.values)
    return Settings(
        flags,
        said,
        _sizes(said, tp),
        half=half,
        half_sums=half is not None and half.value == "float16",  # --bf16 alone turns sums in float32 on
        gradients=gradients,
        attention=_attention(said),
        recompute=recompute,
        optimizer=_optimizer(said),
        idle=idle,
    )


_BESIDE: Final = ("recompute_method", "recompute_layers", "recompute_modules")
_HALF: Final = (("bf16", "bfloat16"), ("fp16", "float16"))
_GRADIENTS: Final = (("gradients_bf16", "bfloat16"), ("gradients_fp32", "float32"))
_ATTENTION: Final = {"flash": "fused", "fused": "fused", "unfused": "matrices", "local": "matrices"}


def _contradictions(said: Sorted) -> None:
    pairs = (("bf16", "fp16"), ("gradients_bf16", "gradients_fp32"))
    for one, other in pairs:
        if said.flag(one) and said.flag(other):
            raise said.wrong(other, f"contradicts {said.word(one)}; give one of the two")
    if said.word("kv_heads", "").startswith("--") and not said.flag("grouped"):
        raise said.wrong("kv_heads", "counts only with --group-query-attention; give both, or leave it out")
    batch, micro = said.count("global_batch", 0), said.count("micro_batch", 0)
    if batch and micro and batch % micro:
        raise said.wrong("global_batch", f"is no multiple of {said.word('micro_batch')} {micro}")
    strategy = said.text("sharding")
    if strategy not in ("", "no_shard") and not said.flag("megatron_fsdp"):
        raise said.wrong("sharding", "counts only with --use-megatron-fsdp; give both, or leave it out")
    if said.flag("megatron_fsdp") and not strategy:
        raise said.wrong(
            "megatron_fsdp",
            "what it shards by itself depends on the version of Megatron; give --data-parallel-sharding-strategy "
            f"{' or '.join(SHARDING)}",
        )
    if said.flag("gathered_once") and not said.flag("fsdp2"):
        raise said.wrong("gathered_once", "counts only with --use-torch-fsdp2; give both, or leave it out")


def _zero(said: Sorted) -> int:
    name = said.text("sharding")
    if name and name not in SHARDING:
        raise said.wrong("sharding", f"is none of {', '.join(SHARDING)}")
    fsdp2 = (2 if said.flag("gathered_once") else 3) if said.flag("fsdp2") else 0
    if said.flag("megatron_fsdp"):  # the optimizer then lies as its strategy says
        return max(SHARDING[name], fsdp2)
    return max(fsdp2, 1 if said.flag("distributed_optimizer") else 0)


def _recompute(said: Sorted) -> OtherChoice | None:
    """Whole layers computed again, each from its own input, the core of attention alone, or an error."""
    how = said.text("recompute_granularity") or ("selective" if said.flag("recompute_selective") else "")
    others = [name for name in ("recompute_method", "recompute_layers") if name in said.values]
    older = [name for name in ("recompute_whole", "recompute_method_old") if name in said.values]
    if older and not how:  # Megatron-LM up to 2.6 and 3.0, Megatron-DeepSpeed: whole layers, each from its own input
        if said.text("recompute_method_old") not in ("", "uniform"):
            raise said.wrong(older[-1], "audits take recomputation of every layer from its own input; write uniform")
        if said.count("recompute_layers", 1) != 1:
            raise said.wrong("recompute_layers", "audits take recomputation of every layer from its own input; write 1")
        return OtherChoice(said.word(older[0]), "all")
    if not how:
        for name in others if said.framework == _FRAMEWORK else ():
            raise said.wrong(name, "counts only with --recompute-granularity full; give both, or leave it out")
        return None
    whole = "write --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    if how == "selective":
        return _selective(said, whole)
    for name in ("recompute_modules", "recompute_selective"):
        if said.values.get(name, ("", False))[1]:
            raise said.wrong(name, "counts only with --recompute-granularity selective; leave it out")
    if how != "full":
        raise said.wrong("recompute_granularity", "is none of full, selective")
    if said.text("recompute_method") != "uniform":
        name = "recompute_method" if "recompute_method" in said.values else "recompute_granularity"
        raise said.wrong(name, f"audits take recomputation of every layer from its own input; {whole}")
    if said.count("recompute_layers", 1) != 1:
        raise said.wrong(
            "recompute_layers", f"audits take recomputation of every layer from its own input, not of several; {whole}"
        )
    return OtherChoice(said.word("recompute_granularity"), "all")


_CORE: Final = ["core_attn"]
"""What is computed again selectively where no modules are said (NVIDIA/Megatron-LM, --recompute-modules)."""


def _selective(said: Sorted, whole: str) -> OtherChoice:
    """The core of attention computed again, or an error that names another module."""
    word = next(n for n in ("recompute_granularity", "recompute_selective") if n in said.values)
    modules = said.values.get("recompute_modules", ("", None))[1]
    if modules and modules != _CORE:
        raise said.wrong("recompute_modules", f"audits take core_attn alone, or whole layers; {whole}")
    for name in ("recompute_method", "recompute_layers"):
        if name in said.values and said.framework == _FRAMEWORK:
            raise said.wrong(name, "counts only with --recompute-granularity full; leave it out")
    return OtherChoice(said.word(word), "attention")


def _attention(said: Sorted) -> OtherChoice | None:
    name = said.text("attention")
    if name and name not in _ATTENTION:
        raise said.wrong("attention", f"is none of auto, {', '.join(_ATTENTION)}")
    if said.flag("flash"):
        if name and _ATTENTION[name] != "fused":
            raise said.wrong("attention", f"contradicts {said.word('flash')}")
        return OtherChoice(said.word("flash"), "fused")
    return OtherChoice(f"{said.word('attention')} {name}", _ATTENTION[name]) if name else None


def _optimizer(said: Sorted) -> OtherChoice | None:
    name = said.text("optimizer")
    if not name:
        return None
    if name not in ("adam", "sgd"):
        raise said.wrong("optimizer", "audits take adam and sgd")
    return OtherChoice(f"{said.word('optimizer')} {name}", name)


def _sizes(said: Sorted, tp: int) -> tuple[Size, ...]:
    """The sizes; a padded vocabulary only where the plain one is not said, experts' width before that of all layers."""
    found = {size.name: size for size in sizes_of_words(said)}
    if "vocabulary" not in found and "padded_vocabulary" in said.values:
        word = said.word("padded_vocabulary")
        found["vocabulary"] = Size("vocabulary", word, said.count("padded_vocabulary", 0))
    if "expert_hidden" in said.values:
        found["hidden"] = Size("hidden", said.word("expert_hidden"), said.count("expert_hidden", 0))
    if said.flag("grouped") and "kv_heads" not in found:
        found["kv_heads"] = Size("kv_heads", f"{said.word('grouped')} alone", 1)
    return tuple(found.values())


def split_words(framework: str, text: str) -> list[str]:
    """Words of a command line.  Raises `InputError`."""
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise InputError(f"{framework}: the command line cannot be split: {error}") from None


def arguments(known: Vocabulary, words: list[str]) -> Iterator[tuple[str, Value]]:
    """Arguments with values of their kinds.  Raises `InputError` for words that belong to none."""
    at = 0
    while at < len(words):
        name, joined, value = words[at].partition("=")
        at += 1
        if _VARIABLE.match(name):
            raise InputError(f"{known.framework}: {name[:60]!r} is a variable of the shell; write its value")
        if not name.startswith("-") or _number(name):
            raise InputError(f"{known.framework}: {name[:60]!r} belongs to no argument; write --name value")
        word = known.words.get(name)
        values: list[str] = [value] if joined else []
        while at < len(words) and not joined and (not words[at].startswith("-") or _number(words[at])):
            values.append(words[at])
            at += 1
            if word is not None and word.kind not in ("switch", "list"):
                break
        if (unknown := next((v for v in values if _VARIABLE.search(v)), None)) is not None:
            if word is None or word.kind == "switch" or word.group not in ("no_effect", "model"):
                raise unknown_value(known.framework, name, unknown)
            yield name, None  # who starts the script says it, and it changes nothing
        elif word is None:
            yield name, " ".join(values) or True
        elif word.kind == "switch":
            yield name, True if not values and not joined else " ".join(values)
        elif word.kind == "list":
            yield name, list(values)
        elif not values:
            raise WordError(known.framework, name, f"{name} is followed by nothing; it takes a value")
        else:
            yield name, parse_value(word, values[0])


def _number(word: str) -> bool:
    return re.fullmatch(r"-\.?\d.*", word) is not None
