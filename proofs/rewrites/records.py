"""Writes frozen dataclasses as JSON and reads them back, by their annotations; reading believes nothing.

A value of a dataclass is the list [name, field, ..]; a polynomial is the list of its terms [coefficient, symbol, ..];
tuples are lists.  Which classes may occur where is said by the annotations of the class that is read, so that a file
can only build values that type.  Source:  `proofs.rewrites.judgement`, `models.rewrites.rule`,
`proofs.rewrites.derivation` hold the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ...models.rewrites.polynomial import Poly
from ..container.canonical import ContainerError, Json, Reader

DEEPEST = 200


def encode_record(value: object) -> Json:
    """JSON of a value made of frozen dataclasses, tuples, integers, texts, None and polynomials.

    >>> from ...models.rewrites.rule import Equal
    >>> encode_record(Equal(Poly.of("x.0") * 2, Poly.of(3)))
    ['Equal', [[2, 'x.0']], [[3]]]
    """
    if isinstance(value, Poly):
        return [[c, *m] for m, c in value.key]
    if isinstance(value, Enum):
        return encode_record(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, tuple):
        return [encode_record(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, *(encode_record(getattr(value, f.name)) for f in fields(value) if f.init)]
    raise ContainerError("value to be written", f"{type(value).__name__} is no record")


def decode_record(reader: Reader, kind: Any, deep: int = 0) -> Any:
    """The value of type `kind` that the JSON describes; `ContainerError` naming the place otherwise.

    >>> from ...models.rewrites.rule import Condition, Equal
    >>> found = decode_record(Reader(["Equal", [[2, "x.0"]], [[3]]], "here"), Condition)
    >>> str(found)
    '2*x.0 = 3'
    """
    return _reader(kind)(reader, deep)


Read = Callable[[Reader, int], Any]


@cache
def _reader(kind: Any) -> Read:
    if kind is Poly:
        return _poly
    if kind is int:
        return lambda r, _: r.integer()
    if kind is str:
        return lambda r, _: r.text()
    if kind is bool:
        return _flag
    if kind in (None, NoneType):
        return _none
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return _many(arguments[0])
        return _exactly(arguments)
    if origin in (Union, UnionType):
        return _one_of(arguments)
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass({kind.__name__: kind})
    raise TypeError(f"no JSON for {kind!r}")


def _poly(r: Reader, _: int) -> Poly:
    terms: dict[tuple[str, ...], int] = {}
    for term in r.items():
        parts = list(term.items(64))
        if not parts:
            term.fail("a term needs a coefficient")
        monomial = tuple(p.text(200) for p in parts[1:])
        if monomial in terms or list(monomial) != sorted(monomial):
            term.fail("symbols of a term must be sorted, and terms distinct")
        terms[monomial] = parts[0].integer()
    return Poly(terms)


def _flag(r: Reader, _: int) -> bool:
    if type(r.value) is not bool:
        r.fail("must be true or false")
    return bool(r.value)


def _none(r: Reader, _: int) -> None:
    if r.value is not None:
        r.fail("must be null")


def _many(kind: Any) -> Read:
    def read(r: Reader, deep: int) -> tuple[Any, ...]:
        one = _reader(kind)
        return tuple(one(item, deep) for item in r.items())

    return read


def _exactly(kinds: tuple[Any, ...]) -> Read:
    def read(r: Reader, deep: int) -> tuple[Any, ...]:
        items = list(r.items())
        if len(items) != len(kinds):
            r.fail(f"must have {len(kinds)} elements, not {len(items)}")
        return tuple(_reader(k)(item, deep) for k, item in zip(kinds, items, strict=True))

    return read


def _one_of(kinds: tuple[Any, ...]) -> Read:
    classes = {k.__name__: k for k in kinds if isinstance(k, type) and is_dataclass(k)}
    plain = [k for k in kinds if not (isinstance(k, type) and is_dataclass(k))]

    def read(r: Reader, deep: int) -> Any:
        value = r.value
        for kind in plain:
            origin = get_origin(kind)
            fits = (
                (kind in (None, NoneType) and value is None)
                or (kind is int and type(value) is int)
                or (kind is str and type(value) is str)
                or (kind is bool and type(value) is bool)
                or (
                    origin is tuple
                    and type(value) is list
                    and not (value and type(value[0]) is str and value[0] in classes)
                )
            )
            if fits:
                return _reader(kind)(r, deep)
        return _dataclass(classes)(r, deep)

    return read


def _dataclass(classes: Mapping[str, type]) -> Read:
    def read(r: Reader, deep: int) -> Any:
        if deep > DEEPEST:
            r.fail(f"is nested deeper than {DEEPEST}")
        items = list(r.items(64))
        name = items[0].text(100) if items else ""
        if name not in classes:
            r.fail(f"is {name or 'empty'!r}, must be one of {', '.join(classes)}")
        kind = classes[name]
        hints = _hints(kind)
        if len(items) - 1 != len(hints):
            r.fail(f"{name} has {len(hints)} fields, not {len(items) - 1}")
        try:
            return kind(*(_reader(hint)(item, deep + 1) for hint, item in zip(hints, items[1:], strict=True)))
        except ContainerError:
            raise
        except (ValueError, TypeError) as error:
            r.fail(f"{name}: {error}")

    return read


@cache
def _hints(kind: type) -> tuple[Any, ...]:
    found = get_type_hints(kind)
    return tuple(found[f.name] for f in fields(kind) if f.init)
