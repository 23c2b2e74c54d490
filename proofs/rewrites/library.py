"""A library of rules: judgements with their proofs, derivations, and what made them, in one `.spz`
file.

    library.json      {"format", "title", "semantics", "origin", "counts": {..}, "rules": n, "derived": m}
    rules.json        judgements (`proofs.rewrites.judgement`), each the record of `proofs.rewrites.records`
    derived.json      derivations (`proofs.rewrites.derivation`) from rules of this file, by name

The file says nothing about itself that its checker does not find out: counts of the generator are for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...models.rewrites.semantics import semantics_hash
from ..container.archive import LIMITS, Limits, Member, identity, read_container, read_json, write_container
from ..container.canonical import ContainerError, Json, canonical
from ..container.kinds import require_kind
from .derivation import Derivation
from .judgement import Judgement
from .records import decode_record, encode_record

FORMAT: Final = "shardproof-rules/1"
HEAD: Final = "library.json"
SHIPPED: Final = Path(__file__).parent / "library"
"""Libraries that come with the package."""


@dataclass(frozen=True)
class Library:
    """`origin` says how it was made; `counts` are its maker's (name, number) pairs."""

    title: str
    judgements: tuple[Judgement, ...]
    derivations: tuple[Derivation, ...] = ()
    origin: str = ""
    counts: tuple[tuple[str, int], ...] = ()

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators that occur in judged rules, sorted."""
        return tuple(sorted({n.operator for j in self.judgements for n in (*j.rule.left, *j.rule.right)}))


def encode_library(library: Library) -> dict[str, Member]:
    """Members of the container."""
    names = [j.rule.name for j in library.judgements]
    if len(set(names)) < len(names):
        raise ContainerError(
            "library to be written", f"two rules are called {next(n for n in names if names.count(n) > 1)!r}"
        )
    head = {
        "format": FORMAT,
        "title": library.title,
        "semantics": semantics_hash(library.operators),
        "origin": library.origin,
        "counts": dict(library.counts),
        "rules": len(library.judgements),
        "derived": len(library.derivations),
    }
    return {
        HEAD: canonical(head),
        "rules.json": canonical([encode_record(j) for j in library.judgements]),
        "derived.json": canonical([encode_record(d) for d in library.derivations]),
    }


def decode_library(members: Mapping[str, Member]) -> Library:
    """The library; `ContainerError` names what is wrong."""
    head = read_json(members, HEAD).fields("format", "title", "semantics", "origin", "counts", "rules", "derived")
    if head["format"].text() != FORMAT:
        head["format"].fail(f"this version reads {FORMAT!r} only")
    counts: Json = head["counts"].value
    if not isinstance(counts, dict):
        head["counts"].fail("must be an object")
    numbers = tuple((str(k), head["counts"][str(k)].integer()) for k in sorted(counts))
    judgements = tuple(decode_record(r, Judgement) for r in read_json(members, "rules.json").items())
    derivations = tuple(decode_record(r, Derivation) for r in read_json(members, "derived.json").items())
    if len(judgements) != head["rules"].integer() or len(derivations) != head["derived"].integer():
        head.fail("announces another number of rules than there are")
    names = {j.rule.name for j in judgements}
    if len(names) < len(judgements):
        head.fail("two rules have one name")
    library = Library(head["title"].text(), judgements, derivations, head["origin"].text(), numbers)
    if head["semantics"].text() != semantics_hash(library.operators):
        head["semantics"].fail(
            "operators of these rules meant something else when they were proved; prove the rules again"
        )
    return library


def write_library(path: Path | str | None, library: Library, limits: Limits = LIMITS) -> bytes:
    """Bytes of the file; also written to `path` if given."""
    return write_container(path, encode_library(library), limits)


def read_library(source: bytes | Path | str, limits: Limits = LIMITS) -> tuple[Library, str]:
    """(library, identity of the file)."""
    members = read_container(source, limits)
    require_kind(members, HEAD)
    return decode_library(members), identity(members)
