"""Reads rule files of every kind as substitutions to judge: FlexFlow's JSON, TASO's protobuf, TASO's
axioms, our libraries, specifications of operators; and judging them.

A published rule may stand for several substitutions (one per rank); its verdict is the worst of theirs: refuted,
undecided, proved, and vacuous only if all are.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import process_time

from ...models.files.input import regular
from ...models.rewrites.rule import Substitution
from ...models.sources.rules.axiom_meaning import axiom_substitutions
from ...models.sources.rules.axioms import read_public_axioms
from ...models.sources.rules.files import read_public_rules
from ...models.sources.rules.meaning import reading_of, substitutions
from ...models.sources.rules.parallel import figure_10, parallel_rules
from ...models.sources.rules.specified import operator_rules
from ...models.sources.specified.known import read_specification
from ...models.text import InputError
from ...proofs.container.canonical import ContainerError
from ...proofs.rewrites.judgement import Judgement, Proved, Refuted, Undecided, Vacuous
from ...proofs.rewrites.library import read_library
from ..selection.model.clock import Allowance, Clock
from .facts import Reasoner
from .prove import judge

FEW = 40
"""Up to so many substitutions are judged in this process."""


@dataclass(frozen=True)
class RuleItem:
    """A rule of a file.  `message`: what is wrong with it as a rewrite, though it can be judged."""

    index: int
    name: str
    substitutions: tuple[Substitution, ...]
    message: str | None = None


def load_rules(path: Path, degree: int | str | None = None) -> tuple[RuleItem, ...]:
    """The rules of a file, or the built-in `parallel` ones.  Raises `RuleError` or `ContainerError` naming file and
    rule.
    """
    if degree is not None and not _has_degrees(path):
        raise InputError(f"{path}: --degree replaces the degrees that rules of FlexFlow's JSON or TASO's protobuf say")
    if str(path) == "parallel" and not path.exists():
        return tuple(RuleItem(k, r.name, (r,)) for k, r in enumerate((*parallel_rules(), *figure_10())))
    if path.suffix == ".toml":
        return tuple(RuleItem(k, r.name, (r,)) for k, r in enumerate(operator_rules(read_specification(path))))
    data = regular(path).read_bytes()
    if data[:2] == b"PK":
        try:
            library, _ = read_library(data)
        except ContainerError as error:
            raise ContainerError(f"{path}, {error.place}", error.message) from None
        return tuple(RuleItem(k, j.rule.name, (j.rule,)) for k, j in enumerate(library.judgements))
    if b'"taso-axioms/1"' in data[:200]:
        return tuple(RuleItem(k, a.name, axiom_substitutions(a)) for k, a in enumerate(read_public_axioms(path)))
    rules = read_public_rules(path)
    reading = reading_of(rules)
    return tuple(
        RuleItem(
            r.index,
            r.name,
            substitutions(r, reading, degree),
            f"{r.name}: {said}" if (said := r.unbound_message()) else None,
        )
        for r in rules
    )


def _has_degrees(path: Path) -> bool:
    """Whether a file holds rules with degrees, and is no library, no axioms, and not what comes with us."""
    if path.suffix == ".toml" or (str(path) == "parallel" and not path.exists()):
        return False
    with regular(path).open("rb") as file:
        head = file.read(200)
    return head[:2] != b"PK" and b'"taso-axioms/1"' not in head


def judge_items(
    items: tuple[RuleItem, ...], each: Allowance, workers: int, notify: Callable[[int, int], None]
) -> Iterator[tuple[Judgement, ...]]:
    """Judgements of each item, in order; `each`: what a rule may take, seconds of the processor."""
    everything = [(s, each) for item in items for s in item.substitutions]
    total, done = len(everything), 0
    found = _judged(everything, workers)
    for item in items:
        out = []
        for _ in item.substitutions:
            out.append(next(found))
            done += 1
            notify(done, total)
        yield tuple(out)


def _judged(everything: list[tuple[Substitution, Allowance]], workers: int) -> Iterator[Judgement]:
    if workers < 2 or len(everything) <= FEW:
        reasoner = Reasoner()
        yield from (judge(s, _clock(each), reasoner=reasoner) for s, each in everything)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(_judge_one, everything, chunksize=8)


_REASONER: list[Reasoner] = []


def _clock(each: Allowance) -> Clock:
    return Clock(each.seconds, work=each.steps, now=process_time)


def _judge_one(given: tuple[Substitution, Allowance]) -> Judgement:
    if not _REASONER:
        _REASONER.append(Reasoner())
    return judge(given[0], _clock(given[1]), reasoner=_REASONER[0])


def overall(words: tuple[str, ...]) -> str:
    """The verdict of a rule from those of what it stands for.

    >>> overall(("proved", "vacuous")), overall(("proved", "refuted")), overall(("vacuous",))
    ('proved', 'refuted', 'vacuous')
    """
    for word in ("refuted", "undecided", "proved"):
        if word in words:
            return word
    return "vacuous"


def word_of(judgement: Judgement) -> str:
    """proved, refuted, vacuous or undecided."""
    match judgement:
        case Proved():
            return "proved"
        case Refuted():
            return "refuted"
        case Vacuous():
            return "vacuous"
        case Undecided():
            return "undecided"
