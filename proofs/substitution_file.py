"""Judgements about substitutions as canonical JSON, and as a container member.

A value is written by its type: integers, truth values and texts as they are, a tuple as a list, a record as `[class name, field, ..]`, a polynomial as a list
of `[coefficient, symbol, ..]` in canonical order.  Reading is driven by the declared types of the records of `proofs.rewrites.judgement` and
`models.rewrites.rule`, so nothing but those records can come out; every failure is a `ContainerError` that names the place.

    P.json   {"format", "semantics", "judgements": [..]}        semantics: hash of the operator table that the proofs were made for
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from ..models.rewrites.ops import OPERATORS
from ..models.rewrites.polynomial import Poly
from ..models.rewrites.semantics import semantics_hash
from .container.archive import LIMITS, Limits, Member, read_container, read_json, write_container
from .container.canonical import ContainerError, Reader, canonical
from .rewrites import judgement as records
from .rewrites.judgement import Judgement

FORMAT: Final = "shardproof-substitutions/1"
PREFIX: Final = "substitutions"
MOST_DEPTH: Final = 400
MOST_DEGREE: Final = 12


def to_json(value: object) -> object:
    """JSON of a record, tuple, polynomial, integer, text or None.

    >>> to_json(Poly.of("n") * 2 - 1)
    [[-1], [2, 'n']]
    """
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, Poly):
        return [[c, *m] for m, c in value.key]
    if isinstance(value, tuple):
        return [to_json(v) for v in value]
    if is_dataclass(value):
        return [type(value).__name__, *(to_json(getattr(value, f.name)) for f in fields(value) if f.init)]
    raise TypeError(f"{value!r} has no JSON form")


def judgement_from_json(reader: Reader) -> Judgement:
    """Inverse of `to_json` for a judgement."""
    found = _read(reader, Judgement, 0)
    if not isinstance(found, records.Proved | records.Refuted | records.Vacuous | records.Undecided):
        reader.fail("is not a judgement")
    return found


def encode_judgements(judgements: Sequence[Judgement], prefix: str = PREFIX) -> dict[str, Member]:
    """Members of a container that hold these judgements."""
    body = {"format": FORMAT, "semantics": semantics_hash(OPERATORS), "judgements": [to_json(j) for j in judgements]}
    return {f"{prefix}.json": canonical(body)}


def decode_judgements(members: Mapping[str, Member], prefix: str = PREFIX, limits: Limits = LIMITS) -> tuple[Judgement, ...]:
    """Inverse of `encode_judgements`; `ContainerError` on anything malformed.  The semantics digest may differ: the checker replays anyway."""
    reader = read_json(members, f"{prefix}.json", limits).fields("format", "semantics", "judgements")
    if reader["format"].text() != FORMAT:
        reader["format"].fail(f"this version reads {FORMAT!r} only")
    reader["semantics"].text(64)
    return tuple(judgement_from_json(item) for item in reader["judgements"].items())


def write_judgements(path: Path | str | None, judgements: Sequence[Judgement]) -> bytes:
    """Bytes of an `.spz` file that holds these judgements alone, also written to `path` if given."""
    return write_container(path, encode_judgements(judgements))


def read_judgements(source: bytes | Path | str, limits: Limits = LIMITS) -> tuple[Judgement, ...]:
    """Inverse of `write_judgements`."""
    return decode_judgements(read_container(source, limits), limits=limits)


# ---- reading by declared type -----------------------------------------------------------------------------------------------------------


@cache
def _hints(kind: type) -> tuple[tuple[str, Any], ...]:
    found = get_type_hints(kind)
    return tuple((f.name, found[f.name]) for f in fields(kind) if f.init)


def _read(reader: Reader, kind: Any, depth: int) -> Any:
    if depth > MOST_DEPTH:
        reader.fail("is nested too deeply")
    if kind is bool:
        return reader.value if isinstance(reader.value, bool) else reader.fail("must be true or false")
    if kind is int:
        return reader.integer()
    if kind is str:
        return reader.text(200)
    if kind is type(None):
        return None if reader.is_null() else reader.fail("must be null")
    if kind is Poly:
        return _poly(reader)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        items = list(reader.items())
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_read(item, arguments[0], depth + 1) for item in items)
        if len(items) != len(arguments):
            reader.fail(f"must have {len(arguments)} elements")
        return tuple(_read(item, a, depth + 1) for item, a in zip(items, arguments, strict=True))
    if origin in (types.UnionType, Union):
        return _read_union(reader, arguments, depth)
    if is_dataclass(kind) and isinstance(kind, type):
        items = list(reader.items())
        wanted = _hints(kind)
        if len(items) != len(wanted) + 1 or items[0].value != kind.__name__:
            reader.fail(f"must be a record {kind.__name__} of {len(wanted)} fields")
        return kind(*(_read(item, hint, depth + 1) for item, (_, hint) in zip(items[1:], wanted, strict=True)))
    raise TypeError(f"records have no fields of type {kind}")


def _read_union(reader: Reader, options: tuple[Any, ...], depth: int) -> Any:
    value = reader.value
    if value is None and type(None) in options:
        return None
    if type(value) is int and int in options:
        return reader.integer()
    if isinstance(value, str) and str in options:
        return reader.text(200)
    if isinstance(value, list):
        name = value[0] if value and isinstance(value[0], str) else None
        for option in options:
            if isinstance(option, type) and is_dataclass(option) and option.__name__ == name:
                return _read(reader, option, depth)
        for option in options:
            if get_origin(option) is tuple and name is None:
                return _read(reader, option, depth)
    names = ", ".join(getattr(o, "__name__", str(o)) for o in options)
    return reader.fail(f"must be one of {names}")


def _poly(reader: Reader) -> Poly:
    terms: dict[tuple[str, ...], int] = {}
    for item in reader.items(4096):
        parts = list(item.items(MOST_DEGREE + 1))
        if not parts:
            item.fail("must be a coefficient and symbols")
        names = tuple(p.text(200) for p in parts[1:])
        c = parts[0].integer()
        if not c or names in terms or list(names) != sorted(names):
            item.fail("is not a term in canonical form")
        terms[names] = c
    return Poly(terms)


__all__ = [
    "ContainerError", "decode_judgements", "encode_judgements", "judgement_from_json", "read_judgements", "to_json", "write_judgements",
]
