r"""Settings of servers, `vllm serve` and `sglang.launch_server`: the placement of a forward pass.

    --tensor-parallel-size 4 --max-model-len 8192 --max-num-seqs 256

A server has as many copies as it is told, one where nothing is said; what is audited is one pass of one batch, and the
most requests and tokens that a server takes bound it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from .megatron import arguments
from .neighbours import OTHERS
from .settings import Settings
from .stated import settings_of, with_limits
from .words import Value, Vocabulary, sorted_words, vocabulary

_SHORT: Final = re.compile(r"(\d{1,9})(?:\.0*)?([kmKM])", re.ASCII)
_TIMES: Final = {"k": 1000, "m": 1000_000, "K": 1 << 10, "M": 1 << 20}


def server_settings(name: str, words: list[str]) -> Settings:
    """Settings of the arguments of the server `name`, vllm or sglang.  Raises `InputError`."""
    known = vocabulary(name)
    said = sorted_words(known, _plain(known, arguments(known, [_dashed(w) for w in words])), OTHERS)
    copies, tp = said.count("dp", 1), said.count("tp", 1)
    if said.flag("experts") and tp > 1:
        raise said.wrong(
            "experts",
            "experts over the devices of tensor parallelism, whole along their width, are no setting of ours; leave it "
            "out, or audit a strategy file",
        )
    values = dict(said.values)
    values["dp"] = said.word("dp", "--data-parallel-size"), copies
    if said.flag("experts"):
        values["ep"] = said.word("experts"), copies
    return with_limits(settings_of(replace(said, values=values)), copies)


def _dashed(word: str) -> str:
    """Flags with underscores are the same flags to both."""
    name, joined, value = word.partition("=")
    return word if not name.startswith("--") else f"{name.replace('_', '-')}{joined}{value}"


def _plain(known: Vocabulary, said: Iterator[tuple[str, Value]]) -> Iterator[tuple[str, Value]]:
    """`--no-enable-x` is x switched off; `--max-model-len 8k` is 8,000."""
    for name, value in said:
        positive = name.replace("--no-", "--", 1)
        word = known.words.get(positive)
        if (
            name not in known.words
            and positive != name
            and value is True
            and word is not None
            and word.kind == "switch"
        ):
            yield positive, True if word.group == "no_effect" else None  # off, as where nothing is said
            continue
        short = _SHORT.fullmatch(value) if isinstance(value, str) else None
        yield name, int(short[1]) * _TIMES[short[2]] if short else value


def served_yaml(data: Mapping[str, object]) -> Settings:
    """Settings of the YAML of `vllm serve --config`: its flags as keys.  Raises `InputError`."""
    words: list[str] = []
    for key, value in data.items():
        flag = f"--{key}"
        if value is None or value is False:
            continue
        words += [flag] if value is True else [f"{_dashed(flag)}={value}"]
    return server_settings("vllm", words)
