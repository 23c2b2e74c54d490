r"""Settings of files that describe a whole training: NeMo and Megatron-Bridge, nanotron, MaxText.

    model: {tensor_model_parallel_size: 8, sequence_parallel: true}, train: {micro_batch_size: 1}     NeMo's YAML
    parallelism: {dp: 2, tp: 4, pp: 1, tp_mode: REDUCE_SCATTER}, tokens: {micro_batch_size: 1}        nanotron's YAML
    ici_fsdp_parallelism: 8, per_device_batch_size: 2, remat_policy: full                             MaxText's YAML

NeMo's and MaxText's keys are given on the command line too (`model.tensor_model_parallel_size=8`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from ...text import InputError
from .megatron import settings_of_words
from .neighbours import OTHERS
from .settings import OtherChoice, Settings
from .stated import settings_of, stated_choice
from .words import Sorted, Value, WordError, flatten, parse_value, sorted_words, vocabulary

_REFERENCE: Final = re.compile(r"\$\{(\.*)(\w[\w.]*)\}", re.ASCII)
_ENVIRONMENT: Final = re.compile(r"\$\{oc\.env:[A-Za-z_]\w*,\s*([^${}]*)\}", re.ASCII)
_MOST_REFERENCES: Final = 16
"""References to references; one that comes back to itself never ends."""
_HALVES: Final = {"bfloat16": "bf16", "float16": "fp16"}
_MISSING: Final = "???"


def nemo(data: Mapping[str, object]) -> Settings:
    """Settings of NeMo's or Megatron-Bridge's YAML: the words of Megatron.  Raises `InputError`."""
    known = vocabulary("nemo")
    pairs = list(flatten(known, data))
    told = dict(pairs)
    filled = [(name, _filled(name, value, told)) for name, value in pairs]
    for key, value in filled:
        rule = known.words.get(key)
        if isinstance(value, str) and "${" in value and rule is not None and rule.group in ("read", "unsupported"):
            raise WordError(known.framework, key, f"{key} {value[:60]} is no value yet; write the value itself")
    said = sorted_words(known, filled, OTHERS)
    values = dict(said.values)
    if "optimizer_name" in values:
        word, name = values["optimizer_name"]
        values["optimizer"] = word, "adam" if name == "distributed" else name
        if name == "distributed":
            values.setdefault("distributed_optimizer", (word, True))
    if half := _HALVES.get(said.text("half")):
        values.setdefault(half, (said.word("half"), True))
    devices = _started(said)
    found = settings_of_words(replace(said, values=values))
    if said.text("half") == "float32":
        found = replace(found, half=stated_choice(said, "half"))
    if said.values.get("half", ("",))[0] == _LIGHTNINGS and found.half is not None:
        found = replace(found, masters="beside" if said.text("masters") == "beside" else "cast")
    alone = () if devices or "nodes" not in said.values else (said.word("nodes"),)  # nodes of any size
    return replace(found, flags=replace(found.flags, devices=devices), uncompared=(*found.uncompared, *alone))


_LIGHTNINGS: Final = "trainer.precision"
"""Under which NeMo 1 keeps weights in float32 and runs `torch.autocast`, unless model.megatron_amp_O2 has a half copy
beside them."""

_ALL: Final = ("auto", "-1")
"""What Lightning's Trainer is told to take every device of a node; nothing is said of how many there are."""


def _started(said: Sorted) -> int:
    """Processes that Lightning's Trainer starts: devices of a node times nodes; 0 where that is not said."""
    value, nodes = said.values.get("node_devices", ("", "auto"))[1], said.count("nodes", 1)
    if isinstance(value, list) and value:
        each = len(value)  # the numbers of the devices
    elif str(value) in _ALL and not isinstance(value, list):
        each = 0
    elif isinstance(value, int | str) and not isinstance(value, bool) and re.fullmatch(r"[1-9]\d{0,6}", str(value)):
        each = int(value)
    else:
        raise said.wrong("node_devices", "is neither a number of devices, nor their numbers, nor -1 or auto")
    return each * nodes


def _filled(name: str, value: Value, told: Mapping[str, Value]) -> Value:
    """`${model.encoder_seq_length}` is that value, `${oc.env:X,8}` its default; `???` is not said.  What leads nowhere,
    or round, stays the text: no value of a setting that is read.
    """
    for _ in range(_MOST_REFERENCES):
        if value == _MISSING:
            return None
        found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        usual = _ENVIRONMENT.fullmatch(value) if isinstance(value, str) else None
        if usual is not None:
            return _scalar(usual[1].strip("'\""))
        if found is None:
            return value
        above = name.rpartition(".")[0]
        for _ in range(max(len(found[1]) - 1, 0)):
            above = above.rpartition(".")[0]
        name = f"{above}.{found[2]}" if found[1] and above else found[2]
        if name not in told:
            return value
        value = told[name]
    return value


def nanotron(data: Mapping[str, object]) -> Settings:
    """Settings of nanotron's YAML.  Raises `InputError`."""
    known = vocabulary("nanotron")
    said = sorted_words(known, flatten(known, data), OTHERS)
    if said.count("pp", 1) > 1 and said.text("engine") != "1f1b":
        name = "engine" if "engine" in said.values else "pp"
        raise said.wrong(
            name, "stages are audited under 1F1B, and nanotron's own default is afab; write pp_engine: 1f1b"
        )
    if said.count("zero", 0) not in (0, 1):
        raise said.wrong("zero", "nanotron shards the optimizer alone; write 0 or 1")
    if said.text("half") in _HALVES and "gradients" in said.values and not said.text("gradients"):
        raise said.wrong(
            "gradients",
            "gradients that pile up in the type of the weights, without weights in float32 beside them, are "
            "no plan of ours; write true",
        )
    return settings_of(said)


_AXES: Final = ("data", "fsdp", "tensor", "tensor_sequence", "context", "expert")


def maxtext(data: Mapping[str, object]) -> Settings:
    """Settings of MaxText's YAML.  Raises `InputError`."""
    known = vocabulary("maxtext")
    said = sorted_words(known, flatten(known, data), OTHERS)
    degrees = {axis: _degree(said, axis) for axis in _AXES}
    tensor, sequence = degrees["tensor"], degrees["tensor_sequence"]
    for axis in ("tensor", "tensor_sequence", "context", "expert"):
        if degrees[axis] < 1:
            raise said.wrong(f"ici_{axis}", "is what is left of the devices; write the degree itself")
    if tensor > 1 and sequence > 1:
        raise said.wrong("ici_tensor", "beside tensor_sequence is no plan of ours; give one of the two")
    data_ways, sharded = degrees["data"], degrees["fsdp"]
    if data_ways > 1 and sharded != 1:
        name = "ici_data" if said.count("ici_data", 1) > 1 else "dcn_data"
        raise said.wrong(
            name,
            "copies of groups that shard (hybrid sharding) are no plan of ours; write the fsdp degrees as 1 to audit "
            "copies alone, or this one as 1",
        )
    values: dict[str, tuple[str, Value]] = {k: v for k, v in said.values.items() if not k.startswith(("ici_", "dcn_"))}
    ways = {"tp": tensor * sequence, "cp": degrees["context"], "ep": degrees["expert"]}
    for name, number in ways.items():
        axis = {"tp": "tensor" if tensor > 1 else "tensor_sequence", "cp": "context", "ep": "expert"}[name]
        values[name] = _word(said, axis), number
    micro = _micro(said, ways["tp"] * ways["cp"])
    if micro:
        values["micro_batch"] = said.word("per_device"), micro
    if sequence > 1:
        values["sequence_parallel"] = _word(said, "tensor_sequence"), True
    if sharded == 1 and data_ways > 0:
        values["dp"] = _word(said, "data"), data_ways * ways["ep"]
    elif sharded > 0:
        values["dp"] = _word(said, "fsdp"), sharded * ways["ep"]
    found = settings_of(replace(said, values=values), 0 if sharded == 1 else 3)
    if found.recompute is None:
        found = replace(found, recompute=OtherChoice("remat_policy by default 'full'", "all", usual=True))
    if "half" not in said.values:
        found = replace(found, half=OtherChoice("dtype by default 'bfloat16'", "bfloat16", usual=True))
    if tensor > 1:  # what lies between layers is split along its width there: left open
        found = replace(found, flags=replace(found.flags, width_open=True))
    return found


def _degree(said: Sorted, axis: str) -> int:
    """Inside slices times across them; -1 for what is left of the devices.  base.yml's: data across, FSDP inside."""
    inside = said.count(f"ici_{axis}", -1 if axis == "fsdp" else 1)
    across = said.count(f"dcn_{axis}", -1 if axis == "data" else 1)
    for name, number in ((f"ici_{axis}", inside), (f"dcn_{axis}", across)):
        if number < 1 and number != -1:
            raise said.wrong(name, "is neither a degree nor -1 for what is left")
    if axis == "data" and across == -1 and "dcn_data" not in said.values:
        across = 1 if inside != 1 or _degree(said, "fsdp") != 1 else -1
    return -1 if -1 in (inside, across) else inside * across


def _word(said: Sorted, axis: str) -> str:
    return said.word(f"ici_{axis}", "") or said.word(f"dcn_{axis}", "") or f"ici_{axis}_parallelism"


def _micro(said: Sorted, ways: int) -> int:
    """Examples of a copy: those of a device times the devices that share them."""
    value = said.values.get("per_device", ("", 0))[1]
    number = value * ways if isinstance(value, (int, float)) else 0
    if "per_device" in said.values and (number < 1 or number != int(number)):
        raise said.wrong("per_device", f"on {ways} devices that share it is no whole number of examples")
    return int(number)


READERS: Final[Mapping[str, Callable[[Mapping[str, object]], Settings]]] = {
    "nemo": nemo,
    "nanotron": nanotron,
    "maxtext": maxtext,
}
"""Vocabulary -> the reader of its objects."""

_OVERRIDE: Final = re.compile(r"(\+{0,2})([A-Za-z_][\w.]*)=(.*)", re.ASCII | re.DOTALL)
_BASE: Final = re.compile(r"(.*/)?base\.ya?ml")


def overrides(words: list[str]) -> dict[str, dict[str, object]]:
    """Overrides on a command line, `model.tensor_model_parallel_size=8`, as objects under the vocabularies that they
    may be of.  Raises `InputError` for words of another form, and for files whose values they stand beside.
    """
    pairs: dict[str, str] = {}
    for word in words:
        found = _OVERRIDE.fullmatch(word)
        if found is None:
            if _BASE.fullmatch(word):
                continue
            raise InputError(f"{word[:60]!r} is no override; write key=value, with the values of files written out")
        if pairs.get(found[2], found[3]) != found[3]:
            raise InputError(f"{found[2]} is given twice: {pairs[found[2]][:40]} and {found[3][:40]}; keep one")
        pairs[found[2]] = found[3]
    out: dict[str, dict[str, object]] = {}
    for name in ("nemo", "maxtext"):
        known = vocabulary(name)
        out[name] = {}
        for key, text in pairs.items():
            rule = known.words.get(key)
            if "$" in text and rule is not None and rule.group not in ("no_effect", "model"):
                raise WordError(known.framework, key, f"{key}={text[:60]} is a variable of the shell; write its value")
            value = None if "$" in text or text in ("null", "None") else text
            out[name][key] = value if rule is None or value is None else _scalar(parse_value(rule, value.strip("'\"")))
    return out


def _scalar(value: Value) -> Value:
    """A text of an override as YAML reads it."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value, re.ASCII) else value
