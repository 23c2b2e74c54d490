"""Opens libraries of rules for verbs that rewrite with them, and publishes those that were made.

Every proof of a library that was brought along by a user is replayed before a search sees a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...models.files.output import write_file
from ...proofs.container.archive import read_container, read_file
from ...proofs.container.canonical import ContainerError
from ...proofs.container.kinds import require_kind
from ...proofs.joint.books import LIMITS, Book, read_book
from ...proofs.publishing.publisher import OutOfTime, RefutedLibrary, SelfCheckFailed
from ...proofs.rewrites.library import Library, write_library
from ...proofs.rewrites.plain import DEFAULTS
from ..budget import Budget
from ..rewrites.library import check_members


def open_book(where: Path, look: Callable[[], None]) -> Book:
    """A library, checked.  Those that come along are not replayed here: that takes seconds, a test does it, and no
    plan rests on it (`verify.joint.libraries`).  `look` raises `OutOfTime` where the time is over.
    """
    try:
        data = read_file(where, LIMITS.file)
        members = read_container(data, LIMITS)
        require_kind(members, "library.json")
        results = () if where in DEFAULTS else check_members(members, Budget.with_large(look)).rules
        book = read_book(data)
    except OutOfTime:
        raise ContainerError(f"{where}", "was not checked within the time limit: give it more") from None
    except ContainerError as error:
        raise ContainerError(f"{where}, {error.place}", error.message) from None
    if bad := next((r for r in results if r.word == "rejected"), None):
        raise RefutedLibrary(f"{where}: the proof of rule {bad.name!r} is refuted: {bad.reason}")
    return book


def publish_rules(path: Path | None, library: Library) -> dict[str, str]:
    """Publish judgements of rules: rule -> what the checker says of it (proved, refuted, vacuous, undecided, derived).

    Derivations come from a search that tests one instance; those that do not replay for all shapes are left out
    ("rejected").
    """
    data = write_library(None, library)
    results = check_members(read_container(data)).rules
    words = {r.name: r.word for r in results}
    if any(words[d.rule.name] == "rejected" for d in library.derivations):
        kept = tuple(d for d in library.derivations if words[d.rule.name] != "rejected")
        return words | publish_rules(path, replace(library, derivations=kept))
    for r in results:
        if r.word == "rejected":
            raise SelfCheckFailed.of(r.name, r.reason)
    if path is not None:
        write_file(path, data)
    return words
