r"""Reads the words of a framework's settings against a closed vocabulary: no setting is dropped in silence.

    read           changes what is judged, under a name of ours
    no effect      changes nothing in our model of time, memory and placement
    not compared   says how model and optimizer are made, which those that are audited say themselves
    neutral        would change what is judged, but has the value under which it does not
    not said       "auto", or null: left to whoever starts the job

Anything else is an error that names the word: one that is no plan of ours, with the reason; one that nobody knows, with
the word that is nearest.  The vocabularies are the tables in `vocabularies/`, one file per framework.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import cache, cached_property
from pathlib import Path
from typing import Final, Literal, cast, get_args

from ...layout.targets.degrees import MAX_DEGREE
from ...text import InputError, did_you_mean

TABLES: Final = Path(__file__).parent / "vocabularies"

Kind = Literal["switch", "bool", "int", "count", "number", "text", "list", "table", "any"]
"""What a word takes: nothing, true or false, whole numbers (`count`: from 1 on), numbers, text, several, an object, any
of these.
"""

Group = Literal["read", "no_effect", "model", "unsupported"]

Value = bool | int | float | str | list[object] | dict[str, object] | None

_KINDS: Final = get_args(Kind)
_NUMBER: Final = re.compile(r"[+-]?(\d{1,20}(\.\d{0,20})?|\.\d{1,20})([eE][+-]?\d{1,3})?", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?\d{1,3}(_\d{3}){1,5}|[+-]?\d{1,18}", re.ASCII)
_MOST_NAMED: Final = 8
"""Words that one message names."""

_REFUSED: Final = "! "
"""How a value of a translation begins that is refused: the reason stands behind it."""

_OFF: Final = ("no", "none", "false", "off", "disabled")

MOST_WORDS: Final = 1 << 14
"""Of one file: what is looked up is bounded before it is."""


class WordError(InputError):
    """A word that cannot be judged: its `name` says where in the text the problem lies."""

    def __init__(self, framework: str, name: str, why: str) -> None:
        super().__init__(f"{framework}: {why}")
        self.framework, self.name, self.why = framework, name, why

    def at(self, line: int) -> InputError:
        """The same problem with the line of its word."""
        return InputError(f"{self.framework}, line {line}: {self.why}")


@dataclass(frozen=True)
class Word:
    """`about`: of a word that is read our name, of others what they are about, or why they are refused; `neutral`:
    values under which a word that is refused says nothing.
    """

    name: str
    kind: Kind
    group: Group
    about: str
    neutral: tuple[object, ...] = ()


@dataclass(frozen=True)
class Vocabulary:
    """`foreign`: words of neighbours, with what to write instead; `values`: word -> value in small letters -> what it
    means in words of ours, or why it is refused.
    """

    framework: str
    words: Mapping[str, Word]
    foreign: Mapping[str, str]
    values: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)

    @cached_property
    def sections(self) -> frozenset[str]:
        """Names that words begin with, before one of their dots."""
        return frozenset(w[:k] for w in self.words for k, letter in enumerate(w) if letter == ".")

    def is_section(self, name: str) -> bool:
        """Whether words begin with this name and a dot."""
        return name in self.sections


@dataclass(frozen=True)
class Sorted:
    """What settings say, word by word, in the groups of the module docstring; `values`: our name -> word and value;
    `off`: words of `no_effect` that are switched off, such as `torch_compile: false`.
    """

    framework: str
    values: Mapping[str, tuple[str, Value]]
    read: tuple[tuple[str, Value], ...]
    no_effect: tuple[str, ...]
    not_compared: tuple[str, ...]
    neutral: tuple[str, ...]
    not_said: tuple[str, ...]
    off: tuple[str, ...] = ()

    def count(self, name: str, default: int) -> int:
        """The whole number under a name of ours."""
        value = self.values.get(name, ("", default))[1]
        return value if isinstance(value, int) else default

    def text(self, name: str) -> str:
        """The text under a name of ours; empty where it is not said."""
        return str(self.values.get(name, ("", ""))[1])

    def flag(self, name: str, default: bool = False) -> bool:
        """The switch under a name of ours."""
        return bool(self.values.get(name, ("", default))[1])

    def word(self, name: str, default: str | None = None) -> str:
        """The framework's word for a name of ours that is said; `default` where it is not."""
        return self.values[name][0] if default is None else self.values.get(name, (default, None))[0]

    def wrong(self, name: str, why: str) -> InputError:
        """The error of a value under a name of ours."""
        word = self.values[name][0]
        value = dict(self.read).get(word, self.values[name][1])
        shown = "" if value is True else f" {shown_value(value)}"
        return WordError(self.framework, word, f"{word}{shown}: {why}")


def shown_value(value: object) -> str:
    """A value in few characters."""
    text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}.."


@cache
def vocabulary(name: str) -> Vocabulary:
    """The table of a framework.

    >>> vocabulary("megatron").words["--tensor-model-parallel-size"].about, len(vocabulary("megatron").words) > 500
    ('tp', True)
    """
    data = tomllib.loads((TABLES / f"{name}.toml").read_text(encoding="utf-8"))
    words: dict[str, Word] = {}
    for key, said in data["read"].items():
        kind, _, about = said.partition(" ")
        words[key] = Word(key, cast("Kind", kind), "read", about)
    for group in ("no_effect", "model", "unsupported"):
        for table in data.get(group, []):
            about, neutral = str(table.get("reason", table.get("about"))), table.get("neutral", {})
            for kind in _KINDS:
                for key in str(table.get(kind, "")).split():
                    same = tuple(neutral.get(key, ()))
                    words[key] = Word(key, kind, group, about, same)
    values: dict[str, Mapping[str, Value]] = dict(data.get("values", {}))
    for above, other in data.get("include", {}).items():
        inner = vocabulary(other)
        for key, word in inner.words.items():
            words.setdefault(f"{above}.{key}", replace(word, name=f"{above}.{key}"))
        values |= {f"{above}.{key}": table for key, table in inner.values.items()}
    for above, other in data.get("include_flags", {}).items():
        for word in _keys_of_flags(vocabulary(other), above):
            words.setdefault(word.name, word)
    return Vocabulary(str(data["framework"]), words, dict(data.get("foreign", {})), values)


def _keys_of_flags(known: Vocabulary, above: str) -> Iterable[Word]:
    """Flags as keys of a file: `--sequence-parallel` is `model.sequence_parallel: true`, `--no-rope-fusion` also
    `model.rope_fusion: false`.
    """
    for flag, word in known.words.items():
        key = flag.removeprefix("--").replace("-", "_")
        kind: Kind = "bool" if word.kind == "switch" else "any" if word.group in ("no_effect", "model") else word.kind
        same = (*word.neutral, False) if word.kind == "switch" else word.neutral
        yield Word(f"{above}.{key}", kind, word.group, word.about, same)
        if key.startswith("no_") and word.kind == "switch" and word.group == "no_effect":
            yield Word(f"{above}.{key.removeprefix('no_')}", kind, word.group, word.about)


def sorted_words(known: Vocabulary, said: Iterable[tuple[str, Value]], others: Mapping[str, str]) -> Sorted:
    """Every word into its group.  `said`: words with values, already of the word's kind where the framework writes
    values as text; `others`: words of frameworks that are not read, with what they are.

    Raises `InputError` that names all words that are refused, the first with the reason.
    """
    groups: dict[str, list[str]] = {"no_effect": [], "model": [], "neutral": [], "not_said": []}
    read: list[tuple[str, Value]] = []
    values: dict[str, tuple[str, Value]] = {}
    off: list[str] = []
    wrong: list[tuple[str, str]] = []  # a reason for the first alone: looking for what is near costs time
    for number, (name, value) in enumerate(said):
        if number >= MOST_WORDS:
            raise InputError(f"{known.framework}: more than {MOST_WORDS} settings; give those of one job")
        word = known.words.get(name)
        if word is None and value is None and known.is_section(name):
            groups["not_said"].append(name)
        elif word is None:
            wrong.append((name, "" if wrong else unknown(known, name, value, others)))
        elif value is None or (value == "auto" and _is_open(known, word)):
            groups["not_said"].append(name)
        elif problem := misfit(word, value):
            wrong.append((name, f"{name} {problem}"))
        elif word.group == "unsupported":
            if is_neutral(word, value):
                groups["neutral"].append(name)
            else:
                shown = "" if value is True else f" {shown_value(value)}"
                wrong.append((name, f"{name}{shown}: {word.about}"))
        elif word.group == "read":
            meant, problem = meaning(known, name, value)
            before = values.get(word.about)
            if problem:
                wrong.append((name, f"{name} {shown_value(value)}: {problem}"))
            elif before is not None and before[1] != meant:
                shown = shown_value(dict(read).get(before[0], before[1]))
                wrong.append((name, f"{name} {shown_value(value)} contradicts {before[0]} {shown}"))
            values[word.about] = (name, meant)
            read.append((name, value))
        else:
            groups[word.group].append(name)
            if value is False or (isinstance(value, str) and value.lower() in _OFF):
                off.append(name)
    if wrong:
        raise WordError(known.framework, wrong[0][0], _problems(wrong))
    kept = {group: tuple(dict.fromkeys(names)) for group, names in groups.items()}
    return Sorted(
        known.framework,
        values,
        tuple({(name, repr(value)): (name, value) for name, value in read}.values()),
        kept["no_effect"],
        kept["model"],
        kept["neutral"],
        kept["not_said"],
        tuple(off),
    )


def _is_open(known: Vocabulary, word: Word) -> bool:
    """Whether "auto" leaves a word to whoever starts the job, and is no value of its own."""
    return word.group != "unsupported" and word.about != "zero" and "auto" not in known.values.get(word.name, {})


def meaning(known: Vocabulary, name: str, value: Value) -> tuple[Value, str]:
    """A value in words of ours, or the reason why it is refused; itself where the word has no table of values.

    >>> meaning(vocabulary("accelerate"), "mixed_precision", "bf16")
    ('bfloat16', '')
    """
    table = known.values.get(name)
    if table is None:
        return value, ""
    key = str(value).lower()
    if key not in table:
        return None, f"is none of {', '.join(k for k in table if k)}{did_you_mean(key, table)}"
    meant = table[key]
    if isinstance(meant, str) and meant.startswith(_REFUSED):
        return None, meant.removeprefix(_REFUSED)
    return meant, ""


def _problems(wrong: list[tuple[str, str]]) -> str:
    """The first with its reason, the others by name."""
    names = list(dict.fromkeys(name[:80] for name, _ in wrong[1:] if name != wrong[0][0]))
    more = ", ".join(names[:_MOST_NAMED]) + (", .." if len(names) > _MOST_NAMED else "")
    return wrong[0][1] + (f"; neither can be judged: {more}" if names else "")


def unknown(known: Vocabulary, name: str, value: Value, others: Mapping[str, str]) -> str:
    """Why a word that the vocabulary has not is refused, and the word to write."""
    if name in known.foreign:
        return f"{name[:80]} is no setting of {known.framework}; write {known.foreign[name]}"
    if name in others:
        return f"{name[:80]} is {others[name]}"
    if known.is_section(name):
        file = "; what another file says has to be written here" if isinstance(value, str) else ""
        return f"{name[:80]} {shown_value(value)} is not an object of settings{file}"
    last = name.rpartition(".")[2]
    same = [word for word in known.words if word.rpartition(".")[2] == last]  # the right name in another place
    names = [*known.words, *{word.rpartition(".")[0] for word in known.words if "." in word}]
    near = same[:1] or nearest_word(name, names) or nearest_word(last, names)
    said = f"; did you mean {near[0]!r}?" if near else ""
    return f"{name[:80]} is no setting of {known.framework} that is known{said}"


def nearest_word(word: str, known: Iterable[str]) -> list[str]:
    """What `difflib.get_close_matches(word, known, 1)` finds, among thousands: only those are weighed whose
    letters might be nearer than the nearest so far.

    >>> nearest_word("zero_stge", ["zero_stage", "offload"]), nearest_word("x", ["zero_stage"])
    (['zero_stage'], [])
    """
    best = (0.6, "")
    matcher = SequenceMatcher(b=word[:100])
    for other in known:
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() >= best[0] and matcher.quick_ratio() >= best[0]:
            best = max(best, (matcher.ratio(), other))
    return [best[1]] if best[1] else []


def is_neutral(word: Word, value: Value) -> bool:
    """Whether a word that is refused has a value that says nothing: a listed one, or of an object `enabled: false`."""
    if isinstance(value, dict):
        return not value or value.get("enabled") is False
    if isinstance(value, list):
        return all(v in word.neutral for v in value)
    if isinstance(value, str):
        return value.lower() in word.neutral
    return any(type(value) is type(same) and value == same for same in word.neutral) or (
        word.kind == "number" and any(value == same for same in word.neutral)
    )


def misfit(word: Word, value: Value) -> str:
    """What is wrong with a value for its word; empty where it fits."""
    shown = f"is {shown_value(value)}"
    match word.kind:
        case "switch":
            return "" if value is True else f"{shown}; it takes no value"
        case "bool":
            return "" if isinstance(value, bool) else f"{shown}, not true or false"
        case "int" | "count":
            if not isinstance(value, int) or isinstance(value, bool):
                return f"{shown}, not a whole number"
            least = 1 if word.kind == "count" else -MAX_DEGREE
            most = 1 << 40 if word.group != "read" else MAX_DEGREE
            return "" if least <= value <= most else f"{shown}, not a whole number from {least} to {most}"
        case "number":
            fits = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")
            return "" if fits else f"{shown}, not a number"
        case "text":
            return "" if isinstance(value, str) and value.isprintable() else f"{shown}, not a text"
        case "list":
            return "" if isinstance(value, (list, str)) else f"{shown}, not a list"
        case "table":
            return "" if isinstance(value, dict) else f"{shown}, not an object"
        case "any":
            return ""


def parse_value(word: Word, text: str) -> Value:
    """A value that was written as text; the text itself where it is none of the word's kind.

    >>> parse_value(Word("--lr", "number", "no_effect", ""), "1e-4"), parse_value(Word("-n", "int", "read", "n"), "two")
    (0.0001, 'two')
    """
    match word.kind:
        case "int" | "count" if _INTEGER.fullmatch(text):
            return int(text)
        case "number" if _NUMBER.fullmatch(text):
            return float(text)
        case "bool" if text.lower() in ("true", "false"):
            return text.lower() == "true"
        case "list":
            return [part for part in text.split(",") if part]
        case _:
            return text


def flatten(known: Vocabulary, data: Mapping[str, object], above: str = "") -> Iterable[tuple[str, Value]]:
    """Leaves of nested objects under dotted names, down to the words of the vocabulary."""
    for key, value in data.items():
        name = f"{above}{key}"
        word = known.words.get(name)
        if isinstance(value, dict) and (word is None or word.kind != "table") and known.is_section(name):
            yield from flatten(known, cast("dict[str, object]", value), f"{name}.")
        else:
            yield name, cast("Value", value)
