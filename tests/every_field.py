"""A value with every field changed in turn: what a comparison must notice, found by looking at the fields and not
at a list kept by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import Any

from shardproof.models.layout.submesh import Submesh
from shardproof.models.machine.machine import ReductionConstants
from shardproof.models.program.contents import Contents
from shardproof.models.program.index import Combine

INSTEAD_OF_NOTHING: dict[str, object] = {
    "combine": Combine.MAX,
    "source_shape": (7,),
    "contents": Contents("0" * 64),
    "reduction": ReductionConstants(),
    "tree_flow": Fraction(7),
    "copy": Fraction(7),
    "switch_quad": Fraction(7),
    "host": Fraction(7),
    "view": Submesh((0, 0), (1, 1)),
}
"""Field that may be None -> something else.  A new field of this kind is a KeyError here, so that it is not
forgotten.
"""

PAIR = re.compile(r"\.(terms|peaks|sources|attributes|state|bars|tiles|operators|copies)\[\d+\]$")
"""Elements of these are (name, .., value), which nothing can be left out of."""


def changed(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """(place, `value` with one thing changed there)."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.init and field.compare:
                old, inside = getattr(value, field.name), f"{place}.{field.name}"
                if old is None:
                    yield inside, replace(value, **{field.name: INSTEAD_OF_NOTHING[field.name]})
                    continue
                for at, new in changed(old, inside):
                    yield at, replace(value, **{field.name: new})
    elif isinstance(value, tuple):
        for i, part in enumerate(value):
            for at, new in changed(part, f"{place}[{i}]"):
                yield at, (*value[:i], new, *value[i + 1 :])
        if PAIR.search(place):
            return
        if value:
            yield f"{place}[-1] left out", value[:-1]
        if (
            len(value) > 1
            and value[0] != value[-1]
            and not place.endswith(
                (".peaks", ".sources", ".attributes", ".bars", ".tiles", ".products", ".attentions", ".collectives")
            )
        ):  # order is no content of these
            yield f"{place} turned round", value[::-1]
    else:
        yield place, _other(value)


def _other(value: object) -> object:
    match value:
        case Enum():
            return next(other for other in type(value) if other is not value)
        case bool():
            return not value
        case int() | float() | Fraction():
            return value + 1
        case str():
            return value + "'"
        case _:
            raise TypeError(f"{value!r} has no other value here")
