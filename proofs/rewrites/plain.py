"""The rules of a library that are proved by sums and products alone, so that a plan's checker sees both sides equal
without axioms of functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Final

from ...models.rewrites.rule import Substitution
from ..container.archive import LIMITS, Limits, read_container
from .judgement import Judgement, Known, Proved
from .library import SHIPPED, decode_library

DEFAULT: Final = SHIPPED / "plans.spz"
"""The library that joint plans use where none is named."""


def plain_rules(data: bytes, limits: Limits = LIMITS) -> tuple[Substitution, ...]:
    """Of the file of a library, in its order.  Raises `ContainerError`.

    >>> [rule.name for rule in plain_rules(DEFAULT.read_bytes())][:2]
    ['common-factor[rank1]', 'common-scale[rank1]']
    """
    return tuple(_plain(decode_library(read_container(data, limits)).judgements))


def _plain(judgements: tuple[Judgement, ...]) -> Iterator[Substitution]:
    for judgement in judgements:
        if isinstance(judgement, Proved) and not _knows(judgement):
            yield judgement.rule


def _knows(judgement: Judgement) -> bool:
    """Whether a proof rests on what functions do."""
    left: list[object] = [judgement]
    while left:
        found = left.pop()
        if isinstance(found, Known):
            return True
        if isinstance(found, tuple):
            left.extend(found)
        elif is_dataclass(found) and not isinstance(found, Substitution):
            left.extend(getattr(found, f.name) for f in fields(found))
    return False
