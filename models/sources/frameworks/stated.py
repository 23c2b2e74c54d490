"""Settings of a framework whose vocabulary says everything in names of ours: degrees, batches, ZeRO's stage, types,
recomputation, optimizer, sizes.

A vocabulary (`vocabularies/*.toml`) gives each word one of these names, and a table of values where its own words for
them differ.  What a name means is the same in all of them:

    tp pp cp ep dp        degrees                     zero         stage of state that is sharded over copies
    shards copies         sharded inside, and copied  micro_batch  of a copy;  steps, global_batch
    devices               processes that are started
    sequence_parallel     with tp                     half, gradients, recompute, attention, optimizer   `Settings`
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...layout.targets.degrees import Flags
from .settings import OtherChoice, Settings, Size, sizes_of_words
from .words import Sorted

_SHORT: Final = {"bf16": "bfloat16", "fp16": "float16"}
_HYBRID: Final = (
    "copies of groups that shard (hybrid sharding) are no plan of ours; leave it out to audit state sharded over all "
    "copies, or shard over one device for copies alone"
)


def settings_of(said: Sorted, zero: int = 0, half_sums: bool = False) -> Settings:
    """Settings of words under the names of this module; `zero`: where no word says a stage; `half_sums`: gradients are
    summed in the half type where nothing else is said.

    Raises `InputError` for words that contradict each other, and for hybrid sharding.
    """
    tp, pp, cp, ep = (said.count(name, 1) for name in ("tp", "pp", "cp", "ep"))
    shards, copies = said.count("shards", 0), said.count("copies", 1)
    if "zero" in said.values:
        zero = said.count("zero", 0)
    if zero not in range(4):
        raise said.wrong("zero", f"stage {zero} is none of ZeRO's 0 to 3")
    if copies > 1 and shards not in (0, 1):
        raise said.wrong("copies", _HYBRID)
    zero = 0 if copies > 1 or shards == 1 else zero
    dp = said.count("dp", 0)
    if not dp and shards >= 0 and {"shards", "copies"} & set(said.values):
        dp = max(shards, 1) * copies
    micro, batch, steps = (said.count(name, 0) for name in ("micro_batch", "global_batch", "steps"))
    if batch and batch % (max(micro, 1) * max(steps, 1)):
        parts = " x ".join(f"{said.word(n)} {said.count(n, 0)}" for n in ("micro_batch", "steps") if n in said.values)
        raise said.wrong("global_batch", f"is no multiple of {parts}")
    if not batch and micro and steps and dp:
        batch = micro * steps * dp
    flags = Flags(
        said.framework,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        sequence_parallel=said.flag("sequence_parallel") and tp > 1,
        zero=zero,
        micro_batch=micro,
        global_batch=batch,
        dp=dp,
        steps=steps,
        devices=said.count("devices", 0),
    )
    return Settings(
        flags,
        said,
        sizes_of_words(said),
        half=_half(said),
        half_sums=half_sums,
        gradients=stated_choice(said, "gradients"),
        attention=stated_choice(said, "attention"),
        recompute=stated_choice(said, "recompute"),
        optimizer=stated_choice(said, "optimizer"),
        idle=tuple(said.word(n) for n in ("sequence_parallel",) if tp == 1 and said.flag(n)),
    )


def stated_choice(said: Sorted, name: str) -> OtherChoice | None:
    """A choice under a name of ours, with the framework's words for it; None where nothing is said."""
    value = said.values.get(name, ("", ""))[1]
    if not isinstance(value, str) or not value:
        return None
    word = said.word(name)
    shown = next((v for w, v in said.read if w == word), True)
    return OtherChoice(word if shown is True else f"{word} {str(shown)[:60]}", value)


def _half(said: Sorted) -> OtherChoice | None:
    flags = [name for name in _SHORT if said.flag(name)]
    found = stated_choice(said, "half")
    if len(flags) > 1:
        raise said.wrong(flags[1], f"contradicts {said.word(flags[0])}; give one of the two")
    if not flags:
        return found
    if found is not None and found.value != _SHORT[flags[0]]:
        raise said.wrong(flags[0], f"contradicts {found.word}; give one of the two")
    return OtherChoice(said.word(flags[0]), _SHORT[flags[0]])


def with_limits(settings: Settings, copies: int) -> Settings:
    """The settings of a server: the most requests and tokens that it takes bound batch and sequence."""
    said = settings.words
    assert said is not None
    most = [Size("sequence", said.word("longest"), said.count("longest", 0)) for _ in "1" if "longest" in said.values]
    if "requests" in said.values:
        most.append(Size("batch", said.word("requests"), said.count("requests", 0) * copies))
    return replace(settings, limits=tuple(most), serves=True)
