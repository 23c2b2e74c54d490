"""Settings files as people have them, one word or value wrong at a time: none is read as if nothing had happened.

Words with a letter wrong, words of another framework, words twice with two values, values of another kind or out of
range, over every line of the files in `data/settings` that are read.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Final

import pytest
from test_settings_fit import READ

from shardproof.models.sources.frameworks.flags import read_settings
from shardproof.models.sources.frameworks.settings import Settings
from shardproof.models.text import InputError

FILES: Final = Path(__file__).parent / "data" / "settings"
PLAIN: Final = re.compile(r"^\s*(--[\w-]+)[ =:]+(\S+)\s*\\?$|^\s*(\"?[a-z_]\w*\"?)\s*[:=]\s*([\w.\"'-]+),?\s*(?:#.*)?$")
FOREIGN: Final = {
    "--": ["--tensor-parallel-sizes", "--zero_stage_3", "--pipeline_parallel", "--ici-tensor-parallelism"],
    "": ["tensor_paralel", "zero_stagee", "data_parallel_shard_degre", "micro_batch_sizes"],
}
VALUES: Final = ("-3", "0", "1.5", "two", "99999999999999", "[1, 2]")


def read(text: str) -> Settings | None:
    """The settings; None where they are refused."""
    try:
        return read_settings(text)
    except InputError as error:
        assert str(error).strip()
        return None


def lines_of(name: str) -> list[str]:
    return (FILES / name).read_text(encoding="utf-8").splitlines()


def words_at(lines: list[str], settings: Settings) -> list[tuple[int, str]]:
    """Lines with one word each that the answer lists."""
    listed = settings.to_json()
    known = {str(w).split(".")[-1] for group in listed.values() if isinstance(group, (list, dict)) for w in group}
    found = []
    for k, line in enumerate(lines):
        match = PLAIN.match(line)
        if match is None or line.lstrip().startswith("#"):
            continue
        word = (match[1] or match[3]).strip('"')
        if word in known:
            found.append((k, word))
    words = [word for _, word in found]
    return [(k, word) for k, word in found if words.count(word) == 1]


@pytest.mark.parametrize("name", sorted(READ))
def test_a_letter_that_is_wrong_is_refused(name: str) -> None:
    lines = lines_of(name)
    whole = read("\n".join(lines))
    assert whole is not None
    rng = random.Random(7)
    words = words_at(lines, whole)
    for k, word in rng.sample(words, min(len(words), 12)):
        at = rng.randrange(2 if word.startswith("--") else 0, len(word))
        wrong = rng.choice([word[:at] + word[at + 1 :], word[:at] + "q" + word[at:], word[:at] + "z" + word[at + 1 :]])
        if wrong == word:
            continue
        changed = [*lines[:k], lines[k].replace(word, wrong, 1), *lines[k + 1 :]]
        assert read("\n".join(changed)) is None, (name, wrong)


@pytest.mark.parametrize("name", sorted(READ))
def test_a_word_of_nobody_is_refused(name: str) -> None:
    lines = lines_of(name)
    whole = read("\n".join(lines))
    assert whole is not None
    words = words_at(lines, whole)
    rng = random.Random(5)
    for k, word in rng.sample(words, min(len(words), 4)):
        for other in FOREIGN["--" if word.startswith("--") else ""]:
            line = lines[k].replace(word, other, 1)
            assert read("\n".join([*lines[: k + 1], line, *lines[k + 1 :]])) is None, (name, other)


@pytest.mark.parametrize("name", sorted(READ))
def test_a_word_that_is_read_is_said_once_and_with_a_value_of_its_own(name: str) -> None:
    """Another value changes what is read, or is refused; two values are refused."""
    lines = lines_of(name)
    whole = read("\n".join(lines))
    assert whole is not None
    listed = whole.to_json()["read"]
    assert isinstance(listed, dict)
    judged = {str(word).split(".")[-1] for word in listed}
    for k, word in words_at(lines, whole):
        value = PLAIN.match(lines[k])
        assert value is not None
        said = value[2] or value[4]
        if word not in judged or not re.fullmatch(r"\d+", said):
            continue
        for other in VALUES:
            line = re.sub(rf"(?<=[ =:]){re.escape(said)}(?=[\s,\\]|$)", other, lines[k], count=1)
            if line == lines[k]:
                continue
            found = read("\n".join([*lines[:k], line, *lines[k + 1 :]]))
            assert found is None or found != whole, (name, word, other)
        twice = re.sub(rf"(?<=[ =:]){re.escape(said)}(?=[\s,\\]|$)", str(int(said) + 1), lines[k], count=1)
        if twice != lines[k]:
            assert read("\n".join([*lines[: k + 1], twice, *lines[k + 1 :]])) is None, (name, word, "twice")
