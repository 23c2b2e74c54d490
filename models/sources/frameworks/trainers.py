"""Settings of trainers that wrap a model of the user: accelerate, Hugging Face's Trainer, axolotl.

    distributed_type: FSDP, fsdp_config: {fsdp_sharding_strategy: FULL_SHARD, ..}          accelerate's YAML
    {"per_device_train_batch_size": 1, "fsdp": "full_shard auto_wrap", "bf16": true, ..}   the Trainer's JSON or flags
    micro_batch_size: 2, gradient_accumulation_steps: 4, fsdp: [full_shard], ..            axolotl's YAML

All three drive PyTorch's FSDP and DeepSpeed.  FSDP sums gradients in the half type of its mixed precision; version 1
shards everything where no strategy is said, version 2 shards parameters unless they stay gathered behind the forward
pass.  DeepSpeed through accelerate is at stage 2 where none is said.  Where neither is told, copies run under
`torch.autocast`, with weights in float32; axolotl loads them in the half type (0.19, utils/config: `torch_dtype`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from .neighbours import OTHERS
from .settings import OtherChoice, Settings
from .stated import settings_of
from .words import Sorted, Value, Vocabulary, WordError, flatten, parse_value, sorted_words, vocabulary

_SECTIONS: Final = {
    "fsdp_config": ("fsdp", "FSDP"),
    "deepspeed_config": ("deepspeed", "DEEPSPEED"),
    "megatron_lm_config": ("megatron_lm", "MEGATRON_LM"),
}
"""Section of accelerate's YAML -> the distributed_type under which it counts."""

_WORDS: Final = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0}


def accelerate(data: Mapping[str, object]) -> Settings:
    """Settings of accelerate's YAML.  Raises `InputError`."""
    said = _sorted("accelerate", data)
    kind = said.text("kind") or "plain"
    for section, (wanted, name) in _SECTIONS.items():
        words = [w for w, _ in said.read if w.startswith(f"{section}.")]
        if words and kind != wanted:
            raise WordError(
                said.framework,
                words[0],
                f"{words[0]} counts only with distributed_type: {name}; give both, or leave it out",
            )
    if kind == "alone":
        said = replace(said, values={**said.values, "devices": (said.word("kind"), 1)})
    zero, sharded = 0, kind == "fsdp"
    if kind == "deepspeed":
        zero = 2
    elif kind == "megatron_lm":
        zero = 1 if said.flag("distributed_optimizer") else 0
    elif sharded:
        zero = _units(said)
    found = settings_of(said, zero, half_sums=sharded or kind == "deepspeed")
    return found if kind in ("fsdp", "deepspeed", "megatron_lm") else replace(found, masters="cast")


def trainer(data: Mapping[str, object]) -> Settings:
    """Settings of arguments of Hugging Face's Trainer.  Raises `InputError`."""
    said = _sorted("trainer", data)
    deep = any(w.startswith("deepspeed.") for w, _ in said.read)
    return _wrapped(said, deep)


def axolotl(data: Mapping[str, object]) -> Settings:
    """Settings of axolotl's YAML, whose `batch_size` is that of one copy.  Raises `InputError`."""
    said = _sorted("axolotl", data)
    values = dict(said.values)
    if "copy_batch" in values:
        word, _ = values.pop("copy_batch")
        micro, whole = said.count("micro_batch", 1), said.count("copy_batch", 1)
        if "steps" not in values and whole % micro:
            raise said.wrong("copy_batch", f"is no multiple of {said.word('micro_batch')} {micro}")
        if "steps" in values and whole != micro * said.count("steps", 1):
            raise said.wrong(
                "copy_batch",
                f"is not {said.word('micro_batch', 'micro_batch_size')} {micro} x {said.word('steps')} "
                f"{said.count('steps', 1)}; leave it out",
            )
        values.setdefault("steps", (word, whole // micro))
    found = _wrapped(replace(said, values=values), False)
    return found if found.masters == "beside" else replace(found, masters="none")


def trainer_flags(words: list[str]) -> Settings:
    """The Trainer's arguments as flags: `--bf16 True --fsdp "full_shard auto_wrap"`.  Raises `InputError`."""
    known = vocabulary("trainer")
    return _wrapped(sorted_words(known, _flags(known, words), OTHERS), False)


def _sorted(name: str, data: Mapping[str, object]) -> Sorted:
    known = vocabulary(name)
    return sorted_words(known, flatten(known, data), OTHERS)


def _wrapped(said: Sorted, deep: bool) -> Settings:
    """Settings of a trainer that is told FSDP's words, DeepSpeed's object, or neither."""
    listed = _listed(said)
    configured = [w for w, _ in said.read if w.startswith("fsdp_config.")]
    if deep and (listed or configured):
        raise (
            said.wrong("fsdp_words", "contradicts DeepSpeed's settings beside it")
            if listed
            else WordError(said.framework, configured[0], f"{configured[0]} contradicts DeepSpeed's settings beside it")
        )
    zero, sharded = 0, bool(listed) or (bool(configured) and "fsdp_words" not in said.values)
    if sharded:
        zero = _units(said, listed)
    elif configured and "fsdp_words" in said.values:
        raise WordError(said.framework, configured[0], f"{configured[0]} counts only with fsdp; give both, or none")
    if said.text("adafactor") and said.text("optimizer") not in ("", "adafactor"):
        raise said.wrong("adafactor", f"contradicts {said.word('optimizer')}")
    found = settings_of(_one_attention(said), zero, half_sums=sharded or deep)
    if said.flag("pure") and not deep:  # LLaMA-Factory's: weights and state in the half type alone
        return replace(found, half=OtherChoice(said.word("pure"), "bfloat16"), masters="none")
    return found if sharded or deep else replace(found, masters="cast")


def _listed(said: Sorted) -> list[str]:
    """FSDP's words: a text, a list, or true."""
    value = said.values.get("fsdp_words", ("", ""))[1]
    if value is True:
        return ["full_shard"]
    if not value:
        return []
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(w, str) for w in words):
        raise said.wrong("fsdp_words", "is no list of FSDP's words")
    known = vocabulary("fsdp").words
    for word in words:
        found = known.get(str(word).lower())
        if found is None:
            raise said.wrong("fsdp_words", f"{word!r} is none of {', '.join(known)}")
        if found.group == "unsupported":
            raise said.wrong("fsdp_words", found.about)
    return [str(w).lower() for w in words]


def _units(said: Sorted, listed: Iterable[str] = ()) -> int:
    """The stage of ZeRO that FSDP's settings mean."""
    stages = {_WORDS[w] for w in listed if w in _WORDS}
    if len(stages) > 1:
        raise said.wrong("fsdp_words", "has more than one of full_shard, shard_grad_op, no_shard")
    for name in ("fsdp_strategy", "fsdp_reshard"):
        if name in said.values:
            stages.add(said.count(name, 3))
            if len(stages) > 1:
                raise said.wrong(name, "contradicts FSDP's other words for what is sharded")
    return stages.pop() if stages else 3


def _one_attention(said: Sorted) -> Sorted:
    """Attention under one name: axolotl has a switch for each of its kernels."""
    names = [n for n in said.values if n.startswith("attention") and said.text(n)]
    if len({said.text(n) for n in names}) > 1:
        raise said.wrong(names[1], f"contradicts {said.word(names[0])}")
    values = {n: v for n, v in said.values.items() if not n.startswith("attention")}
    if names:
        values["attention"] = said.values[names[0]]
    if said.text("adafactor"):
        values["optimizer"] = said.values["adafactor"]
    return replace(said, values=values)


def _flags(known: Vocabulary, words: list[str]) -> Iterator[tuple[str, Value]]:
    """`--name value`, `--name=value`, `--switch`; several values are a text of words."""
    at = 0
    while at < len(words):
        flag, joined, value = words[at].partition("=")
        at += 1
        if not flag.startswith("--"):
            raise WordError(known.framework, flag, f"{flag[:60]!r} belongs to no argument; write --name value")
        name = flag.removeprefix("--").replace("-", "_")
        values = [value] if joined else []
        while at < len(words) and not joined and not words[at].startswith("--"):
            values.append(words[at])
            at += 1
        word = known.words.get(name)
        text = " ".join(values)
        if "$" in text and word is not None and word.group in ("no_effect", "model"):
            yield name, None
        elif "$" in text:
            raise WordError(known.framework, flag, f"{flag} {text[:60]} is a variable of the shell; write its value")
        elif not values:
            yield name, True
        elif word is None:
            yield name, text
        else:
            yield name, (text.lower() == "true") if text.lower() in ("true", "false") else parse_value(word, text)


READERS: Final[Mapping[str, Callable[[Mapping[str, object]], Settings]]] = {
    "accelerate": accelerate,
    "trainer": trainer,
    "axolotl": axolotl,
}
"""Vocabulary -> the reader of its objects."""
