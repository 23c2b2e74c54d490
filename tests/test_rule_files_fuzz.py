"""Rule files that are broken by chance or on purpose: every loader accepts or refuses, and does nothing else.

Mutants of the real files, by bytes and by structure.  What is accepted is turned into substitutions and checked for
well-formedness, as every verb does.
"""

from __future__ import annotations

import json
import random
import resource
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest

from shardproof.models.rewrites.rule import SubstitutionError
from shardproof.models.sources.rules.axiom_meaning import axiom_substitutions
from shardproof.models.sources.rules.axioms import parse_public_axioms
from shardproof.models.sources.rules.files import read_public_rules
from shardproof.models.sources.rules.formats import (
    PublicRule,
    RuleError,
    check_rules,
    parse_public_rules,
)
from shardproof.models.sources.rules.meaning import reading_of, substitutions
from shardproof.models.sources.rules.wire import decode_rules, encode_rules
from shardproof.proofs.container.archive import write_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.rewrites.library import SHIPPED, Library, decode_library, encode_library, read_library
from shardproof.verify.rewrites.library import check_library

DATA = Path(__file__).parent / "data" / "rules"
FEW, MANY, PARTS = 300, 100_000, 5
"""Cases per loader in `make test` and, in parts, in `make test-slow`."""
MOST_MEMORY = 2 << 30
REFUSALS = (RuleError, SubstitutionError, ContainerError)
JUNK: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    7,
    1 << 31,
    -(1 << 31),
    1 << 70,
    0.5,
    1e400,
    "",
    "x",
    "*",
    "w",
    "relu",
    "same",
    "axis<rank",
    "\x1b[2J",
    "\u00e9",
    "a" * 300,
    "(" * 200,
    "(relu x)",
    "(add x y)",
    "(concat -1 x y)",
    [],
    [[]],
    [0],
    [4],
    [10**9],
    [-1],
    ["same"],
    ["x", "x"],
    {},
    {"*": [2]},
    {"id": 1},
)


def rules_loaded(rules: tuple[PublicRule, ...]) -> None:
    reading = reading_of(rules)
    for r in rules:
        for s in substitutions(r, reading):
            s.check()


def axioms(data: bytes) -> None:
    for a in parse_public_axioms(data):
        for s in axiom_substitutions(a):
            s.check()


def public(data: bytes) -> None:
    rules_loaded(parse_public_rules(data.decode("utf-8", "surrogateescape")))


def wire(data: bytes) -> None:
    rules_loaded(check_rules(decode_rules(data)))


def library(data: bytes) -> None:
    found, _ = read_library(data)
    check_library(found)


def by_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to four changes: a byte, a piece left out, doubled, moved or cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        size = rng.choice((1, 1, 2, 8, 64))
        match rng.randrange(6):
            case 0:
                out[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                out[at : at + 1] = rng.choice(
                    (
                        b"0",
                        b"-",
                        b"9",
                        b"[",
                        b"]",
                        b"{",
                        b'"',
                        b",",
                        b"(",
                        b")",
                        b"\\",
                        b"\xff",
                        b"\x80",
                        b"e",
                        b"null",
                        b"99999999999",
                    )
                )
            case 2:
                del out[at : at + size]
            case 3:
                out[at:at] = out[at : at + size]
            case 4:
                there = rng.randrange(len(out) + 1)
                out[there:there] = out[at : at + size]
            case _:
                del out[max(at, len(out) // 2) :]
    return bytes(out)


def by_structure(value: object, rng: random.Random) -> object:
    """One place of a JSON value left out, doubled, exchanged for junk or for another place."""
    places: list[tuple[object, object]] = []
    if not value:
        return JUNK[rng.randrange(len(JUNK))]

    def visit(v: object) -> None:
        for key, part in v.items() if isinstance(v, dict) else enumerate(v) if isinstance(v, list) else ():
            places.append((v, key))
            visit(part)

    visit(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holder, key = rng.choice(places)
        try:
            if isinstance(holder, dict):
                if rng.random() < 0.2:
                    del holder[key]
                elif rng.random() < 0.2:
                    holder[rng.choice(("id", "x", "*", "type", "w", "pad", ""))] = holder.pop(key)
                else:
                    holder[key] = other(places, rng)
            elif isinstance(holder, list) and isinstance(key, int):
                if rng.random() < 0.2:
                    del holder[key]
                elif rng.random() < 0.2:
                    holder.insert(key, holder[key])
                else:
                    holder[key] = other(places, rng)
        except (IndexError, KeyError):
            continue
    return value


def other(places: list[tuple[object, object]], rng: random.Random) -> object:
    if rng.random() < 0.6:
        return rng.choice(JUNK)
    holder, key = rng.choice(places)
    try:
        return json.loads(json.dumps(holder[key]))  # type: ignore[index]
    except (IndexError, KeyError, RecursionError):
        return None


@cache
def small_library() -> dict[str, bytes]:
    """Members of a library with every kind of judgement and a derivation or two."""
    found, _ = read_library(SHIPPED / "taso-axioms.spz")
    by_size = sorted(found.judgements, key=lambda j: len(repr(j)))
    judgements = (*by_size[:3], next(j for j in by_size if j.rule.preconditions))
    return {k: bytes(v) for k, v in encode_library(Library("t", judgements)).items() if isinstance(v, bytes)}


@cache
def sources() -> dict[str, bytes]:
    axiom = json.loads((DATA / "taso-axioms.json").read_text())
    axiom["axioms"] = axiom["axioms"][::6]
    out = {"axioms": json.dumps(axiom).encode()}
    for name in ("taso-even", "flexflow-even"):
        body = json.loads((DATA / f"{name}.json").read_text())
        body["rule"] = body["rule"][:: len(body["rule"]) // 5]
        out[name] = json.dumps(body).encode()
    out["wire"] = encode_rules(read_public_rules(DATA / "taso-even.json")[::14])
    return out


def cases(name: str, count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    if name == "library":
        members = small_library()
        whole = write_container(None, dict(members))
        for _ in range(count):
            key = rng.choice(sorted(members))
            if rng.random() < 0.15:
                yield by_bytes(whole, rng)
                continue
            if rng.random() < 0.3:
                body = by_bytes(members[key], rng)
            else:
                body = json.dumps(
                    by_structure(json.loads(members[key]), rng), sort_keys=True, separators=(",", ":")
                ).encode("utf-8", "surrogateescape")
            yield write_container(None, {**members, key: body})
        return
    data = sources()[name]
    for _ in range(count):
        if name == "wire" or rng.random() < 0.4:
            yield by_bytes(data, rng)
        else:
            yield json.dumps(by_structure(json.loads(data), rng)).encode()


LOADERS: dict[str, Callable[[bytes], None]] = {
    "axioms": axioms,
    "taso-even": public,
    "flexflow-even": public,
    "wire": wire,
    "library": library,
}


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize(
    ("count", "part"),
    [
        pytest.param(FEW, 0, marks=pytest.mark.timeout(300)),
        *(
            pytest.param(MANY // PARTS, k + 1, marks=(pytest.mark.slow, pytest.mark.timeout(3600)))
            for k in range(PARTS)
        ),
    ],
)
def test_accepts_or_refuses(name: str, count: int, part: int) -> None:
    accepted = refused = 0
    count = count // 5 if name == "library" and count == FEW else count
    for k, data in enumerate(cases(name, count, 11 + part)):
        try:
            LOADERS[name](data)
            accepted += 1
        except REFUSALS as error:
            refused += 1
            assert str(error), k
        except Exception as error:
            raise AssertionError(f"case {k} of {len(data)} bytes: {type(error).__name__}: {error}") from error
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < MOST_MEMORY
    assert refused > count // 10 and accepted >= count // 200, (accepted, refused)


def test_unchanged_files_are_accepted() -> None:
    for name, data in sources().items():
        LOADERS[name](data)
    library(write_container(None, dict(small_library())))
    assert zipfile.is_zipfile(BytesIO(write_container(None, dict(small_library()))))
    assert decode_library(dict(small_library())).judgements
