"""The words of the house: functions say what they return or do, modules what they are for, in the field's terms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import house
import pytest
from house_counts import GONE, PARTICIPLE, texts

from shardproof import __main__ as front

ROOT = Path(front.__file__).parent
ROOMS = ("models", "proofs", "formal", "verify", "backends")

VERBS = frozenset({"run", "put", "cut", "split", "embed"})
"""These are verbs as well, and may name what does so."""

ALLOWED = {
    "models/machine/machine.py": {"resized"},  # of the public `Machine`
}
"""File -> participles that name its functions for a reason."""

MOST_VERBS = 20

TERMS = {
    "redistribution": "resharding",
    "redistribute": "reshard",
    "movement": "communication",
    "movements": "communication",
    "scheme": "parallelism",
    "bar": "error bound",
    "bars": "error bounds",
    "recomputed": "checkpointing",
}
"""Words of ours that must not come back in names of modules, classes and functions -> the field's."""

TALK = frozenset({"Said", "Asked", "Told", "Mail", "Viewed", "Tried", "Ended", "Searched", "Shown"})
"""Names that no class outside of file formats has again."""

OTHER_MEANING = {
    "backends/execution/differential.py": {"bar"},  # of a limit
    "backends/kernels/movement.py": {"movement"},  # operators that move elements on one device
    "formal/report/drawing.py": {"bar"},  # drawn
    "models/pipelines/division.py": {"bar"},  # a barrier
    "backends/lowering/movements.py": {"movements"},
}
"""File -> words that mean something else there, or that its name has until it moves."""

PUBLIC = {"front_door.py": {"bars"}, "proofs/publishing/publisher.py": {"bars"}}
"""File -> words of methods that others call by name."""


@cache
def files() -> dict[str, Path]:
    paths = [*sorted(ROOT.glob("*.py")), *(p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py")))]
    return {p.relative_to(ROOT).as_posix(): p for p in paths}


def docstrings() -> dict[str, str]:
    return {f: house.contents(path).docstring for f, path in files().items()}


def participles() -> list[tuple[str, str]]:
    found = ((f, name) for f, path in files().items() for name, _, _ in house.contents(path).functions)
    return [(f, name) for f, name in found if PARTICIPLE.fullmatch(name)]


def test_functions_are_verbs_or_say_what_they_return() -> None:
    strange = [(f, n) for f, n in participles() if n not in VERBS and n not in ALLOWED.get(f, ())]
    assert not strange, "name what it returns or does"
    assert sum(n in VERBS for _, n in participles()) <= MOST_VERBS


def test_what_is_allowed_is_there() -> None:
    named = set(participles())
    assert not [(f, n) for f, names in ALLOWED.items() for n in names if (f, n) not in named]


@pytest.mark.parametrize("name", ["held", "redistributed", "said", "overlapped"])
def test_a_participle_is_found(name: str) -> None:
    assert PARTICIPLE.fullmatch(name)
    assert not PARTICIPLE.fullmatch(f"{name}_bytes") and not PARTICIPLE.fullmatch("live_memory")


def test_a_module_says_what_it_is_for() -> None:
    assert not [f for f, text in docstrings().items() if not text and f != "proofs/rewrites/__init__.py"]
    first = {f: text.split()[:2] for f, text in docstrings().items()}
    assert not [f for f, words in first.items() if words and words[0] == "This" and words[1] in ("module", "package")]


def parts(name: str) -> set[str]:
    """Words of a name, whichever way they are joined.

    >>> sorted(parts("LevelScheme") | parts("wrong_bars"))
    ['bars', 'level', 'scheme', 'wrong']
    """
    return {w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def test_no_name_has_a_word_of_ours() -> None:
    found = {f: house.contents(path) for f, path in files().items()}
    names = ((f, name) for f, c in found.items() for name in (*c.classes, *(n for n, _, _ in c.functions)))
    defined = [(f, name) for f, name in names if not name.startswith("_")]
    named = defined + [(f, part.removesuffix(".py")) for f in files() for part in f.split("/")[-1:]]
    strange = [
        (f, name, TERMS[word])
        for f, name in named
        for word in sorted(parts(name) & TERMS.keys() - OTHER_MEANING.get(f, set()) - PUBLIC.get(f, set()))
    ]
    assert not strange
    assert not [(f, name) for f, name in defined if name in TALK and not f.startswith("proofs/")]


GONE_ON_PURPOSE = {
    "exports.md": "view (of a machine)",  # of a tensor
    "python.md": "movement (of a tensor)",  # a public name
    "formal/calibration/files/own.py": "redistribution",  # a pattern that reads older traces too
    "formal/report/page.py": "scheme",  # of colours
}
"""File -> the row that one of its texts has in another meaning, or for a reason."""


def people_read() -> Iterator[tuple[str, str]]:
    """(file, a text for people): paragraphs of pages, and messages of the code."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if "history" not in page.parts and page.name != "glossary.md":
            yield from ((page.name, part) for part in page.read_text(encoding="utf-8").split("\n\n"))
    for file, path in files().items():
        text = path.read_text(encoding="utf-8")
        if any(re.search(pattern, text, re.IGNORECASE) for pattern in GONE.values()):
            yield from ((file, t) for t in texts(ast.parse(text)))


def test_no_text_has_a_word_of_ours_that_the_glossary_calls_gone() -> None:
    text = Path(ROOT, "docs", "glossary.md").read_text(encoding="utf-8")
    part = text[text.index("## Words of ours that are gone") :].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| ")][1:]
    assert [row[0].strip() for row in rows] == list(GONE) and all(row[1].strip() for row in rows)
    found = [
        (file, word, " ".join(t.split())[:120])
        for file, t in people_read()
        for word, pattern in GONE.items()
        if re.search(pattern, t, re.IGNORECASE)
    ]
    assert not [(file, word, t) for file, word, t in found if GONE_ON_PURPOSE.get(file) != word]
    assert {file for file, _, _ in found} == set(GONE_ON_PURPOSE)


def test_what_the_glossary_cites_is_in_the_bibliography() -> None:
    read = {name: Path(ROOT, "docs", f"{name}.md").read_text(encoding="utf-8") for name in ("glossary", "bibliography")}
    sources = [line.rstrip("|").rsplit("|", 1)[-1] for line in read["glossary"].splitlines() if line.startswith("|")]
    cited = [found for source in sources for found in re.findall(r"([A-Z][a-z]+)[^;]*?((?:19|20)\d\d)", source)]
    works = [" ".join(entry.split()) for entry in read["bibliography"].split("\n* ")]
    assert len(cited) > 25
    assert not [(who, year) for who, year in cited if not any(who in work and year in work for work in works)]


def test_an_old_option_is_an_alias_of_the_fields() -> None:
    plan = front.cli.get_command(click.Context(front.cli), "plan")
    assert plan is not None
    (option,) = (p for p in plan.params if "--submeshes" in p.opts)
    assert isinstance(option, click.Option) and "--views" in option.opts and option.name == "views"
