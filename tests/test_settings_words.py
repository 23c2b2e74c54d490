"""Settings of frameworks against their closed vocabularies: every word of a file is honoured, listed or refused by name.

Generated over five ways to write settings: misspelled words, words of another framework, words in the wrong place,
values of the wrong kind, contradictions.  None passes silently: an audit that goes on without naming the word.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import string
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import pytest

from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.sources.frameworks.flags import read_settings
from shardproof.models.sources.frameworks.launch import read_launches
from shardproof.models.sources.frameworks.settings import Settings
from shardproof.models.sources.frameworks.words import Vocabulary, Word, nearest_word, vocabulary
from shardproof.models.text import InputError

Pair = tuple[str, object]

READ: Final[dict[str, object]] = {
    "sharding": "optim_grads",
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_layers": 1,
    "recompute_modules": ["core_attn"],
    "attention": "flash",
    "optimizer": "adam",
    "reshard": "always",
    "schedule": "1F1B",
    "precision": "bfloat16",
    "gradients": "float32",
    "model": "llama3",
    "flavor": "8B",
    "recompute": "full",
    "zero": 1,
    "shards": -1,
    "copies": 1,
    "global_batch": 8,
}
"""Our name -> a value that is right, where the kind alone does not say one."""

NEEDS: Final[dict[str, tuple[Pair, ...]]] = {
    "--data-parallel-sharding-strategy": (("--use-megatron-fsdp", True),),
    "--use-megatron-fsdp": (("--data-parallel-sharding-strategy", "optim"),),
    "--num-query-groups": (("--group-query-attention", True),),
    "--torch-fsdp2-no-reshard-after-forward": (("--use-torch-fsdp2", True),),
    "--recompute-modules": (("--recompute-granularity", "selective"),),
    "--recompute-granularity": (("--recompute-method", "uniform"), ("--recompute-num-layers", 1)),
    "--recompute-method": (("--recompute-granularity", "full"), ("--recompute-num-layers", 1)),
    "--recompute-num-layers": (("--recompute-granularity", "full"), ("--recompute-method", "uniform")),
}
"""Words that count beside others only."""


@dataclass(frozen=True)
class Way:
    """One way to write settings: `base` is a file that is read."""

    name: str
    table: str
    write: Callable[[list[Pair]], str]
    base: tuple[Pair, ...]

    @property
    def known(self) -> Vocabulary:
        return vocabulary(self.table)


def _flags(pairs: list[Pair]) -> str:
    words = []
    for name, value in pairs:
        many = value if isinstance(value, list) else [value]
        words += [name] if value is True else [name, *map(str, many)]
    return " ".join(words)


def _nested(pairs: list[Pair]) -> dict[str, object]:
    out: dict[str, object] = {}
    for name, value in pairs:
        *above, last = name.split(".")
        at = out
        for part in above:
            inner = at.setdefault(part, {})
            at = inner if isinstance(inner, dict) else {}
        at[last] = value
    return out


def _toml(pairs: list[Pair]) -> str:
    def lines(data: dict[str, object], above: str) -> Iterator[str]:
        for key, value in data.items():
            if not isinstance(value, dict):
                yield f"{key} = {json.dumps(value)}"
        for key, value in data.items():
            if isinstance(value, dict):
                yield f"[{above}{key}]"
                yield from lines(value, f"{above}{key}.")

    return "\n".join(lines(_nested(pairs), ""))


def _titan_flags(pairs: list[Pair]) -> str:
    words = []
    for name, value in pairs:
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(f"--{name}" if value is True else f"--{name}={text}")
    return " ".join(words)


WAYS: Final = {
    way.name: way
    for way in (
        Way("Megatron-LM", "megatron", _flags, (("--tensor-model-parallel-size", 2), ("--sequence-parallel", True))),
        Way("DeepSpeed", "deepspeed", lambda p: json.dumps(_nested(p)), (("zero_optimization.stage", 3),)),
        Way("torchtitan TOML", "torchtitan", _toml, (("parallelism.tensor_parallel_degree", 2),)),
        Way("torchtitan flags", "torchtitan", _titan_flags, (("parallelism.tensor_parallel_degree", 2),)),
        Way("FSDP", "fsdp", lambda p: " ".join(n for n, _ in p), (("full_shard", True),)),
    )
}


def sample(word: Word) -> object:
    """A value of the word's kind that is right."""
    if word.group == "read" and word.about in READ:
        return READ[word.about]
    same: dict[str, object] = {
        "switch": True,
        "bool": True,
        "int": 4,
        "count": 4,
        "number": 0.5,
        "text": "words",
        "list": ["words"],
        "table": {"x": 1},
    }
    return same[word.kind]


def file_with(way: Way, *pairs: Pair) -> str:
    """The base with some words in the place of its own."""
    names = {name for name, _ in pairs}
    return way.write([*(p for p in way.base if p[0] not in names), *pairs])


def refused(text: str, *names: str) -> str:
    """The message of a refusal, which names one of these; fails where the text is read."""
    with pytest.raises(InputError) as error:
        found = read_settings(text)
        pytest.fail(f"passes silently: {text!r} as {found and found.to_json()}")
    message = str(error.value)
    assert not names or any(name in message for name in names), (text, message)
    return message


def misspelled(name: str, rng: random.Random) -> Iterator[str]:
    """A letter less, two letters swapped, a letter twice, a letter changed; dashes for underscores and the reverse."""
    letters = [i for i, c in enumerate(name) if c.isalpha()]
    i = rng.choice(letters)
    yield name[:i] + name[i + 1 :]
    pairs = [i for i in letters if name[i + 1 : i + 2].isalpha() and name[i] != name[i + 1]]
    if pairs:
        i = rng.choice(pairs)
        yield name[:i] + name[i + 1] + name[i] + name[i + 2 :]
    i = rng.choice(letters)
    yield name[:i] + name[i] + name[i:]
    i = rng.choice(letters)
    yield name[:i] + rng.choice([c for c in string.ascii_lowercase if c != name[i]]) + name[i + 1 :]
    head, body = ("--", name[2:]) if name.startswith("--") else ("", name)
    yield head + (body.replace("-", "_") if "-" in body else body.replace("_", "-"))


def words_of(way: Way) -> list[Word]:
    return [w for w in way.known.words.values() if w.kind != "table"]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_misspelled_words_are_refused_by_name(way: Way) -> None:
    """Some of them: what is near costs milliseconds to find."""
    tried = refuse_misspelled(way, {"megatron": 12, "fsdp": 1}.get(way.table, 4))
    assert tried > (10 if way.name == "FSDP" else 100), tried


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_all_misspelled_words_are_refused_by_name(way: Way) -> None:
    tried = refuse_misspelled(way, 1)
    assert tried > (10 if way.name == "FSDP" else 500), tried


def refuse_misspelled(way: Way, step: int) -> int:
    """How many misspelled words of the vocabulary, every `step`-th word, were refused."""
    rng, known, tried = random.Random(33), way.known, 0
    for word in words_of(way)[::step]:
        for wrong in dict.fromkeys(misspelled(word.name, rng)):
            same = wrong.replace("-", "_") in known.words or any(wrong.startswith(f"{w}.") for w in known.words)
            if wrong in known.words or (way.name == "torchtitan flags" and same) or wrong in known.foreign:
                continue
            last = wrong.rpartition(".")[2]
            message = refused(file_with(way, (wrong, sample(word))), wrong, wrong.split(".")[0], last)
            tried += 1
            if way.name == "Megatron-LM" and len(word.name) > 12:
                assert "did you mean" in message or "is of " in message or "write" in message, message
    return tried


def test_words_of_another_framework_are_refused_by_name() -> None:
    tried = 0
    for way in WAYS.values():
        for other in WAYS.values():
            if other.table == way.table:
                continue
            for word in words_of(other)[::5]:
                if word.name in way.known.words or (way.table == "fsdp" and not word.name.isidentifier()):
                    continue
                name = word.name
                if way.table in ("torchtitan", "deepspeed") and name.startswith("--"):
                    name = name.removeprefix("--")
                if way.name == "torchtitan flags" and "." not in name:
                    name = f"parallelism.{name}"
                refused(file_with(way, (name, sample(word))), name, name.split(".")[0], name.replace("-", "_"))
                tried += 1
    assert tried > 400, tried


@pytest.mark.parametrize(
    "way", [w for w in WAYS.values() if w.table in ("deepspeed", "torchtitan")], ids=lambda w: w.name
)
def test_words_in_the_wrong_place_are_refused_by_name(way: Way) -> None:
    sections = sorted({w.name.rpartition(".")[0] for w in words_of(way)} - {""})
    rng, tried = random.Random(7), 0
    for word in words_of(way):
        above, _, last = word.name.rpartition(".")
        places = [s for s in sections if s != above and f"{s}.{last}" not in way.known.words]
        wrong = [f"{rng.choice(places)}.{last}", f"{word.name}.{last}"]
        if above and last not in way.known.words and way.name != "torchtitan flags":
            wrong.append(last)
        for name in wrong:
            if any(name.startswith(f"{base}.") for base, _ in way.base):
                continue
            message = refused(file_with(way, (name, sample(word))), name, word.name)
            tried += 1
            assert "did you mean" in message or "not an object" in message or "write" in message or word.name in message
    assert tried > 300, tried


WRONG: Final[dict[str, tuple[object, ...]]] = {
    "bool": ("yes", 1, [True]),
    "int": ("two", 2.5, True, [2], 1 << 50),
    "count": ("two", 2.5, 0, -1, True, 1 << 50),
    "number": ("much", True, [0.5]),
    "text": (3, ["a"], {"a": 1}),
    "list": (3,),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_values_of_the_wrong_kind_are_refused_by_name(way: Way) -> None:
    tried = 0
    for word in words_of(way):
        for value in WRONG.get(word.kind, ()):
            text = value
            if way.table == "megatron" or way.name == "torchtitan flags":
                if isinstance(value, (bool, list, dict)) or word.kind in ("text", "list"):
                    continue
                if word.kind == "bool" and not isinstance(value, str):
                    text = str(value)
            refused(file_with(way, (word.name, text)), word.name, word.name.rpartition(".")[2])
            tried += 1
        if word.kind == "switch" and way.table == "megatron":
            refused(file_with(way, (word.name, "true")), word.name)
            refused(f"{way.write(list(way.base))} {word.name}=1", word.name)
        elif way.table == "megatron" and word.kind != "list":
            refused(f"{way.write(list(way.base))} {word.name}", word.name)
            refused(f"{way.write(list(way.base))} {word.name} --bf16", word.name)
    assert tried > 60 or way.table == "fsdp"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_known_word_is_read_listed_or_refused(way: Way) -> None:
    """What cannot be judged is refused with its reason, but for the values under which it says nothing."""
    refusals = 0
    for word in way.known.words.values():
        value = sample(word)
        if way.name == "torchtitan flags" and word.kind == "table":
            continue
        if word.group == "unsupported":
            message = refused(file_with(way, (word.name, value)), word.name)
            assert word.about in message or "neither" in message, message
            refusals += 1
            for same in word.neutral:
                listed = [] if same == "" and word.kind == "list" else same
                if way.table == "megatron" and word.kind == "list":
                    listed = [same]
                if way.name == "torchtitan flags" and same == "" and word.kind != "list":
                    continue
                found = settings_of(file_with(way, (word.name, listed)))
                assert word.name in found.to_json()["unsupported"]  # type: ignore[operator]
            continue
        if way.table == "fsdp" and word.group == "read":
            found = settings_of(word.name)
        else:
            try:
                found = settings_of(file_with(way, (word.name, value), *NEEDS.get(word.name, ())))
            except InputError as error:
                assert word.name in str(error) and word.group == "read", error
                continue
        assert word.name in named(found), (word, found.to_json())
    assert refusals >= 3


def settings_of(text: str) -> Settings:
    found = read_settings(text)
    assert found is not None, text
    return found


def named(settings: Settings) -> set[str]:
    """Words that the answer lists of those that a file has."""
    said = {name: group for name, group in settings.to_json().items() if name != "by_default"}
    return {str(w) for group in said.values() if isinstance(group, (list, dict)) for w in group}


@pytest.mark.parametrize("way", [w for w in WAYS.values() if w.table != "fsdp"], ids=lambda w: w.name)
def test_no_word_of_a_file_vanishes(way: Way) -> None:
    """Random files of known words: what is read lists all of them; with one wrong word they are refused by it."""
    rng = random.Random(11)
    words = [w for w in words_of(way) if w.group in ("no_effect", "model")]
    for _ in range(60):
        chosen = rng.sample(words, rng.randint(1, 25))
        pairs = [(w.name, sample(w)) for w in chosen]
        found = settings_of(file_with(way, *pairs))
        assert {w.name for w in chosen} | {name for name, _ in way.base} == named(found)
        prefix = {"megatron": "--", "deepspeed": "zero_optimization."}.get(way.table, "parallelism.")
        pairs.insert(rng.randrange(len(pairs)), (f"{prefix}nobody_knows", 3))
        assert f"{prefix}nobody_knows" in refused(file_with(way, *pairs))


CONTRADICTIONS: Final = (
    ("--tensor-model-parallel-size 2 --tensor-model-parallel-size 4", "contradicts"),
    ("--micro-batch-size 3 --global-batch-size 8", "is no multiple of"),
    ("--bf16 --fp16", "contradicts"),
    ("--grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32", "contradicts"),
    ("--num-query-groups 8", "only with --group-query-attention"),
    ("--recompute-method uniform", "only with --recompute-granularity"),
    ("--recompute-granularity full", "--recompute-method uniform"),
    ("--recompute-granularity full --recompute-method block --recompute-num-layers 1", "every layer"),
    ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 5", "not of several"),
    ("--recompute-granularity selective --recompute-modules core_attn mlp", "core_attn alone"),
    ("--recompute-granularity selective --recompute-num-layers 1", "only with --recompute-granularity full"),
    ("--recompute-activations --recompute-granularity full --recompute-method uniform", "granularity selective"),
    ("--torch-fsdp2-no-reshard-after-forward", "only with --use-torch-fsdp2"),
    ("--tensor-model-parallel-size 4 --expert-tensor-parallel-size 1", "--expert-tensor-parallel-size 1"),
    ("--use-flash-attn --attention-backend unfused", "contradicts"),
    ("--attention-backend fast", "none of auto"),
    ("--optimizer muon", "adam and sgd"),
    ("--cp-comm-type p2p", "all_gather"),
    ("--tensor-model-parallel-size $TP", "variable of the shell"),
    ("--sequence-parallel ${ARGS[@]}", "variable of the shell"),
    ("--sequence-parallel 8", "takes no value"),
    ("--tensor-model-parallel-size 8 8", "belongs to no argument"),
    ('{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 3}', "is no multiple of"),
    ('{"train_batch_size": 64, "gradient_accumulation_steps": 7}', "is no multiple of"),
    ('{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}, "fp16": {"enabled": true}}', "contradicts"),
    ('{"zero_optimization": {"stage": 1}, "zero_optimization": {"stage": 2}}', None),
    ('{"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}', "offload is no plan of ours"),
    ('{"zero_optimization": {"stage": 3}, "optimizer": {"type": "OneBitAdam"}}', "Adam, AdamW and SGD"),
    ('{"zero_optimization": {"stage": 3}, "optimizer": {"type": "DeepSpeedCPUAdam"}}', "offload is no plan"),
    ("[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4", "hybrid sharding"),
    ("[parallelism]\ndata_parallel_replicate_degree = 2", "hybrid sharding"),
    ("[parallelism]\ndata_parallel_shard_degree = 0", "at least 1, or -1"),
    ("[parallelism]\ntensor_parallel_degree = 4\nexpert_parallel_degree = 2", "expert_tensor_parallel_degree = 4"),
    ("[parallelism]\ntensor_parallel_degree = 2\ntensor_parallel_degree = 4", "no TOML"),
    ("[training]\nlocal_batch_size = 3\nglobal_batch_size = 8\n[parallelism]", "is no multiple of"),
    ("[training]\nbatch_size = 3\nlocal_batch_size = 8\n[parallelism]", "contradicts"),
    ("[model]\nname = 'llama3.2'\n[parallelism]", "'llama3.2'"),
    ("[model]\nname = 'llama3'\nflavor = '7B'\n[parallelism]", "8B, 70B, 405B"),
    ("[model]\nconverters = ['float8']\n[parallelism]", "8 and 4 bits"),
    ("[activation_checkpoint]\nmode = 'selective'\n[parallelism]", "operators of a layer"),
    ("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'ZBVZeroBubble'", "several parts"),
    ("--parallelism.tensor_parallel_degree=2 --parallelism.tensor_parallel_degree=4", "contradicts"),
    ("--parallelism.tensor_parallel_degree=2 8", "belongs to no flag"),
    ("--job.config_file llama3_8b.toml --parallelism.tensor_parallel_degree=2", "audit that TOML"),
    ("--parallelism.no_tensor_parallel_degree", "true or false"),
    ("HYBRID_SHARD", "hybrid sharding"),
    ("_HYBRID_SHARD_ZERO2", "hybrid sharding"),
    ("FULL_SHARD NO_SHARD", "write one of them"),
    ("full_shard offload", "offload is no plan of ours"),
    ("auto_wrap", "write one of them"),
    ("zero3", "write full_shard"),
)  # fmt: skip


COMMAND: Final = "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 4"


@pytest.mark.parametrize(
    "text",
    [
        *(f"( {COMMAND} )", f"({COMMAND})", f"{{ {COMMAND}; }}", f"(cd x && {COMMAND})", f"time {COMMAND}"),
        *(f"cd x && {COMMAND}", f"nohup {COMMAND} &", f"if true; then {COMMAND}; fi"),
    ],
)
def test_commands_in_a_subshell_are_a_script(text: str) -> None:
    found = read_settings(text)
    assert found is not None and (found.flags.tp, found.flags.devices) == (4, 8)


@pytest.mark.parametrize(("text", "message"), CONTRADICTIONS)
def test_contradictions_are_refused_by_name(text: str, message: str | None) -> None:
    if message is None:  # two equal keys are no JSON: the reader of strategies says so
        assert read_settings(text) is None
    else:
        assert message in refused(text)


OTHERS: Final = (
    ("--tensor-parallel-size 4 --sequence-parallel --micro-batch-size 1", "vLLM"),
    ("--tp-size 8 --mem-fraction-static 0.8 --max-model-len 9", "write --context-length"),
    ("--nproc_per_node 8 --tensor-model-parallel-size 2", "launcher"),
    ("--per_device_train_batch_size 4 --bf16 --micro-batch-size 4 --sequence-parallel", "Hugging Face"),
    (
        "#!/bin/bash\ntorchrun --nproc_per_node 8 train.py --micro-batch-size $MBS",
        "line 2: --micro-batch-size $MBS is a variable",
    ),
    (
        "#!/bin/bash\nTP=$1\ntorchrun x.py --tensor-model-parallel-size $TP",
        "--tensor-model-parallel-size $1 is a variable",
    ),
    ("#!/bin/bash\nTP=${1:+8}\ntorchrun x.py --tensor-model-parallel-size $TP", "size $1 is a variable"),
    (
        "#!/bin/bash\nA=--bf16\nif [ $X = 1 ]; then\nA=--fp16\nfi\npython x.py $A",
        "line 3: 'if [ $X = 1 ]; then' is for who starts the script to know, and it changes what is judged",
    ),
    (
        "#!/bin/bash\nif [ $X = 1 ]; then\nA=--tensor-model-paralel-size=2\nelse\nA=--bf16\nfi\npython x.py $A",
        "line 2: 'if [ $X = 1 ]; then' is for who starts the script to know",
    ),
    ("#!/bin/bash\nfor f in $FILES; do\nA+=--x\ndone\npython x.py --bf16", "line 2: 'for f in $FILES; do' runs over"),
    ("#!/bin/bash\nwhile true; do\nA=1\ndone\npython x.py --bf16", "line 2: 'while true; do' runs as often"),
    ("#!/bin/bash\nbash train.sh 8\n", "line 2: 'bash train.sh 8' starts another script"),
    ("#!/bin/bash\naxolotl train a.yml\n", "takes a YAML"),
    ("#!/bin/bash\npython train.py\n", "starts train.py without a setting"),
    ("#!/bin/bash\nif [ a ]; then\npython x.py --bf16\n", "line 2: 'if [ a ]; then' has no fi"),
    ("#!/bin/bash\ncat <<EOF > ds.json\n{}\npython x.py --bf16\n", "a text that EOF does not end"),
    ("TP=$(nproc)\ntorchrun x.py --tensor-model-parallel-size $TP", "line 2: --tensor-model-parallel-size $(..) is a"),
    ("torchrun x.py --bf16\ntorchrun y.py --fp16", "a second command"),
    ("#!/bin/bash\necho hello\n", "no command of a .py file"),
    ("#!/bin/bash\npython x.py '$TP' --bf16", "'$TP' is a variable of the shell"),
    ("#!/bin/bash\nA=(1 2)\npython x.py --micro-batch-size $A", "is an array"),
    (
        "#!/bin/bash\nTP=2\nsource env.sh\npython x.py --tensor-model-parallel-size $TP",
        "--tensor-model-parallel-size $TP is a variable",
    ),
    ("#!/bin/bash\nmake all\npython x.py --bf16", "line 2: 'make all' is neither an assignment nor the command"),
    ("torchrun x.py --tensor-model-paralel-size 2", "did you mean '--tensor-model-parallel-size'"),
    ("deepspeed x.py --deepspeed_config ds.json", "that JSON as the strategy"),
    (
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n",
        "line 3: fsdp_config.fsdp_sharding_strategy",
    ),
    ("parallelism:\n  dp: 2\n  tp: 4\n  pp: 2\n", "line 4: parallelism.pp 2: stages are audited under 1F1B"),
    ("a: 1\nb: 2\n", "a YAML of accelerate, Hugging Face's Trainer, axolotl"),
    ('{"per_device_train_batch_size": 1, "output_dir": "x", "fsdp": "hybrid_shard"}', "hybrid sharding"),
    ('{"sharding_strategy": "FULL_SHARD", "mixed_precision": "PURE"}', "FULL_SHARD"),
    ('{"output_dir": "x", "bf16": true, "deepspeed": "ds.json"}', "what another file says has to be written here"),
    ("FULL_SHRAD", "did you mean 'full_shard'"),
    ("tensor_paralel_degree = 8", "did you mean 'parallelism.tensor_parallel_degree'"),
    ("[paralelism]\ntensor_parallel_degree = 8", "did you mean 'parallelism'"),
    ('{"zero_optimization": {"stagee": 3}}', "did you mean 'zero_optimization.stage'"),
    ('{"zero_optimisation": {"stage": 3}}', "did you mean 'zero_optimization"),
    ("--tensor-model-paralel-size 8", "did you mean '--tensor-model-parallel-size'"),
    ("--batch-size 8", "write --micro-batch-size"),
)


@pytest.mark.parametrize(("text", "message"), OTHERS)
def test_files_of_other_programs_are_told_what_to_give(text: str, message: str) -> None:
    assert message in refused(text)


@pytest.mark.parametrize(
    "text", ["", "\n", "[1, null]", "{}", '{"*": null}', '{"fc1": {"b": {"gpus": 8}}}', '{"optimizer": {"b": {"g": 2}}, "x": null}', '{"mesh": {"dp": 2}, "specs": {}}', '{"fc1": 3, "fc2": {"b": {"g": 2}}}', '{"fc1": {"b": 8}}', "{"]
)  # fmt: skip
def test_strategies_are_left_to_their_reader(text: str) -> None:
    assert read_settings(text) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"zero_optimization": {"stage": 3}, "train_batch_size": "auto"}', Flags("DeepSpeed", zero=3)),
        ('{"train_batch_size": 64, "gradient_accumulation_steps": 8}', Flags("DeepSpeed", global_batch=64, steps=8)),
        ('{"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}}}', Flags("DeepSpeed", zero=3)),
        ('{"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "zero_hpz_partition_size": 1}}', Flags("DeepSpeed", zero=2)),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", Flags("Megatron", zero=2)),
        ("--expert-tensor-parallel-size 2 --tensor-model-parallel-size 2", Flags("Megatron", tp=2)),
        ("--cp-comm-type allgather --context-parallel-size 2", Flags("Megatron", cp=2)),
        ("--lr -1e-4 --sequence-parallel", Flags("Megatron")),
        ("# a comment\n\n--tensor-model-parallel-size=2 \\\n--bf16", Flags("Megatron", tp=2)),
        ("[parallelism]\ndata_parallel_replicate_degree = 4\ndata_parallel_shard_degree = 1", Flags("torchtitan", dp=4)),
        ("[parallelism]\ntensor_parallel_degree = 2\nenable_sequence_parallel = false", Flags("torchtitan", tp=2, zero=3)),
        ("[parallelism]\npipeline_parallel_schedule = 'Interleaved1F1B'", Flags("torchtitan", zero=3)),
        ("[training]\ncompile=true\n[parallelism]\ntensor_parallel_degree=2", Flags("torchtitan", tp=2, sequence_parallel=True, zero=3)),
        ("--training.compile --parallelism.tensor-parallel-degree 2", Flags("torchtitan", tp=2, sequence_parallel=True, zero=3)),
        ("N=2\nexport A=\"--tensor-model-parallel-size $N\"\nB=(\n  $A # two\n  --bf16\n)\nset -ex\npython x.py \"${B[@]}\" \\\n --sequence-parallel", Flags("Megatron", tp=2, sequence_parallel=True)),
        ("NGPU=8 torchrun --nproc_per_node=8 train.py --parallelism.tensor_parallel_degree=2", Flags("torchtitan", tp=2, sequence_parallel=True, zero=3, devices=8)),
        ("pretrain_gpt.py --bf16 \\\n  --tensor-model-parallel-size 2", Flags("Megatron", tp=2)),
        ("ShardingStrategy.FULL_SHARD", Flags("FSDP", zero=3)),
        ("full_shard auto_wrap", Flags("FSDP", zero=3)),
    ],
)  # fmt: skip
def test_what_is_said_is_honoured(text: str, wanted: Flags) -> None:
    assert settings_of(text).flags == wanted


def test_what_a_script_says_beside_its_arguments_is_listed() -> None:
    text = (
        "#!/bin/bash\nexport NVTE_FLASH_ATTN=0\nTP=2\ntorchrun --nproc_per_node 8 x.py --tensor-model-parallel-size $TP"
    )
    found = settings_of(text).to_json()
    assert found["no_effect"] == ["torchrun --nproc_per_node 8", "NVTE_FLASH_ATTN=0"]
    assert found["read"] == {"--tensor-model-parallel-size": 2}


def test_any_text_is_read_or_refused() -> None:
    """Random texts of pieces that settings are made of: no other error, whatever they hold."""
    pieces = [
        "--", "-", "=", "\n", " ", "[", "]", "{", "}", ":", ",", '"', "'", "#", "$", "\\\n", "0", "8", "1e9", "auto",
        "parallelism", "tensor_parallel_degree", "--tensor-model-parallel-size", "zero_optimization", "stage", "null",
        "FULL_SHARD", "torchrun", "x.py", "export A=1", "#!/bin/sh", "---", "- a", "true", "\x00", "é", "\t",
    ]  # fmt: skip
    rng = random.Random(5)
    for _ in range(3_000):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 12)))
        try:
            read_settings(text)
        except InputError as error:
            assert str(error).strip()


def test_a_file_of_many_words_is_bounded() -> None:
    text = " ".join(f"--x{i} 1" for i in range(20_000))
    assert "more than" in refused(text)


PIECES: Final = (
    "8", "--lr 1", "'a b'", '"c d"', "$A", "${B}", "x=y", "$A$B", '"$A"', "a#b", "# c", "-1", '"${C[@]}"', "${C[@]}",
    "$C", "${C}", '""', "${C[*]}", 'x"$A"y', "%", "a.py", "--x=$A", "", "${A:-b}", '${D:-"x y"}', "${A:+c}", "${#A}",
    '"${D:-$A}"', "$((A * 2))", "${C[1]}", "a b", "*", "~", "{1,2}", "a\\ b", "\\$A", "$Z",
    "!", "a;b", "[a]", "'$A'", '$"a"', "`a`", "$(a)", '"a ${C[@]} b"', "\"'a'\"", "|", ">f", "$1", "\t", "a||b", "~/x",
)  # fmt: skip
"""What scripts are made of: plain pieces first, then what only a shell can say."""

TESTS: Final = (
    '[ "$A" = 7 ]', "[ $A -gt 3 ]", '[[ -n "$B" && $B != b ]]', '[ -z "$A" ]', "[[ $B == b* ]]", "(( A > 8 ))", "true",
    '! [ "$B" = b ]', "[ 1 -eq 2 ] || [ $A = 7 ]", "false",
)  # fmt: skip


TESTED: Final = re.compile(
    r"\(\(: |\[\[?: |expression expected|operator expected|too many arguments|ambiguous redirect"
)
"""What bash says of a condition that is none, which does not hold."""


def lines_of(rng: random.Random, some: Callable[[], str]) -> Iterator[str]:
    """Assignments, plain and under conditions, in loops, functions and commands in words."""
    several = " ".join(some() for _ in range(rng.randint(0, 3)))
    kind = rng.randrange(12)
    if kind < 6:
        array = f"C=({several})" if rng.random() < 0.5 else "C=(\n" + several.replace(" ", "\n") + "\n)"
        yield rng.choice([f"A={some()}", f"export B={some()}", array, "# words", "", f"C+=({several})", f"B+={some()}"])
    elif kind < 8:
        test, other = rng.choice(TESTS), rng.choice(TESTS)
        yield from (
            f"if {test}; then",
            f"  A={some()}",
            f"elif {other}",
            "then B=q; else",
            f"C=({several})",
            "fi # end",
        )
    elif kind == 8:
        yield from ("for X in a 2 c; do", '  C+=("$X")', f"  B=$B{some()}; done")
    elif kind == 9:
        yield f"{rng.choice(TESTS)} {rng.choice(['&&', '||'])} A={some()}"
    elif kind == 10:
        yield from (f'case "$A" in 7|8) B={some()} ;;', "  b*) A=1;;", "*)", "A=2 ;; esac")
    else:
        yield from ("f() {", f"  A={some()}", "}", rng.choice(["f", "f 1", "cat <<E >/dev/null\nA=9\nE", ": ${D:=4}"]))


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_script_that_is_read_means_what_bash_makes_of_it(tmp_path: Path) -> None:
    """Random scripts against bash itself: refused, or the arguments are the same, one by one."""
    rng, agreed = random.Random(3), 0
    shown = 'torchrun() { shift; [ $# -gt 0 ] && printf "%s\\0" "$@" > "$OUT"; return 0; }\n'
    for n in range(600):
        pieces = PIECES if n % 4 == 0 else PIECES[:30]

        def some(pieces: tuple[str, ...] = pieces) -> str:
            return "".join(rng.choice(pieces) for _ in range(rng.randint(1, 2)))

        lines = ["A=7", "B=b", "C=(1 2)"]
        for _ in range(rng.randint(1, 3)):
            lines += lines_of(rng, some)
        words = rng.choice([" ", "\\\n "]).join(some() for _ in range(rng.randint(1, 4)))
        lines.append(f"torchrun x.py {words}")
        if rng.random() < 0.2:
            lines[-1:] = [f'CMD="torchrun x.py {words.replace(chr(34), "")}"', rng.choice(["eval $CMD", "$CMD"])]
        try:
            ways = read_launches("#!/bin/bash\n" + "\n".join(lines))
        except InputError:
            continue
        ours = [shlex.split(way.arguments) for way in ways]
        if any("$" in word for words in ours for word in words):  # left open: no value of a setting that is read
            continue
        folder, out = tmp_path / f"empty{n}", tmp_path / f"out{n}"
        folder.mkdir()
        out.touch()
        run = ["bash", "-f", "-c", shown + "\n".join(lines)]
        done = subprocess.run(
            run,
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=20,
            check=False,
            env={**os.environ, "OUT": str(out)},
        )
        ran = any("`" in line or "$(" in line for line in lines)  # bash ran a command
        complaint = "" if ran else "".join(line for line in done.stderr.splitlines() if not TESTED.search(line))
        given = out.read_text(encoding="utf-8").split("\0")[:-1]
        assert given in ours and complaint == "", ("\n".join(lines), ours, given, complaint)
        agreed += len(ours) == 1
    assert agreed > 120, agreed


@pytest.mark.parametrize(
    "text", ["a=b\n", "A=1 ", "\n", "x", "-", "--lr 1 ", "[t]\n", "a: 1\n", "[", '{"a":', "--a.", "'", "x.py \n", "${", "A=(\n"]
)  # fmt: skip
def test_long_files_are_read_in_time(text: str) -> None:
    """A line of `a=b` a quarter of a million times took minutes: patterns look at every character a few times."""
    for head in ("", "#!/bin/sh\n"):
        try:
            read_settings(head + text * (100_000 // len(text)))
        except InputError as error:
            assert len(str(error)) < 1_000


def test_the_nearest_word_is_that_of_difflib() -> None:
    """Words of all vocabularies with letters left out and put in; short ones of two letters, where many are alike."""
    rng = random.Random(5)
    known = sorted({w for way in WAYS.values() for w in way.known.words})
    near = 0
    for _ in range(300):
        some = [*rng.sample(known, rng.choice((1, 3, 20))), *("".join(rng.choices("ab", k=k)) for k in range(1, 9))]
        word = "".join(c for c in rng.choice([*some, *known[:9]]) if rng.random() > 0.25) + rng.choice(("", "a", "b"))
        found = get_close_matches(word[:100], some, n=1)
        assert nearest_word(word, some) == found, (word, some)
        near += bool(found)
    assert 100 < near < 300
