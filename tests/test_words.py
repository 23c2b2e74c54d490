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

from shardproof import __main__ as front

ROOT = Path(front.__file__).parent
ROOMS = ("models", "proofs", "formal", "verify", "backends")

PARTICIPLE = re.compile(
    r"(?:[a-z]{3,}ed|made|told|said|held|kept|found|known|given|taken|shown|drawn|written|built|cut|put|sent|split|left|met|"
    r"run|paid|chosen|begun|brought|thought|bound|lost|won|worn)"
)
"""A name that is a participle alone says neither what is done nor what is returned."""

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


def test_the_glossary_has_the_words_of_the_field() -> None:
    text = Path(ROOT, "docs", "glossary.md").read_text(encoding="utf-8")
    part = text[text.index("## Words of ours") :].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20 and all(len(row) == 2 and all(cell.strip() for cell in row) for row in rows)
    ours = [row[0].strip() for row in rows]
    assert len(set(ours)) == len(ours)


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


OLD_TEXT = re.compile(
    r"(?<!-)\bredistributions?\b|\berror bars\b|(?<!-)\bscheme\b|\bmovements\b|\bblocks recomputed\b|seconds of the wall",
    re.IGNORECASE,
)
"""Words of ours that no text for people has again; names of assumptions (`one-step-redistribution`) are of formats."""

ANY_OLD = re.compile("redistribution|bars|scheme|movements|recomputed|wall", re.IGNORECASE)
"""A word of each of them: in any file that has one, on whatever lines its text is put together."""

OLD_ON_PURPOSE = {"formal/calibration/files/own.py"}
"""A pattern that reads older traces too."""

OF_CHECKERS = {
    "verify/plan/plan.py",
    "verify/plan/used_entries.py",
    "verify/plan/error_bounds.py",
    "verify/views/prices.py",
}
"""Reasons of checkers that conformance files and tests quote."""


def texts(tree: ast.AST) -> Iterator[str]:
    """Strings of a module that hold several words and are no docstring."""
    bare = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for n in ast.walk(tree):
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in bare and " " in n.value.strip():
            yield n.value


def test_texts_for_people_have_the_words_of_the_field() -> None:
    read = ((f, path.read_text(encoding="utf-8")) for f, path in files().items())
    old = [(f, t) for f, text in read if ANY_OLD.search(text) for t in texts(ast.parse(text)) if OLD_TEXT.search(t)]
    assert not [(f, t) for f, t in old if f not in OLD_ON_PURPOSE | OF_CHECKERS]
    assert {f for f, _ in old} >= OLD_ON_PURPOSE


def test_pages_have_the_words_of_the_field() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    generated = {"verbs.md", "python.md", "glossary.md"}
    assert not [
        (p.name, line)
        for p in pages
        if "history" not in p.parts and p.name not in generated
        for line in p.read_text(encoding="utf-8").splitlines()
        if re.search(r"(?<![-`])\bredistribut(?:ion|ions|ed)\b|\bscheme\b(?!s? of)", line)
    ]
