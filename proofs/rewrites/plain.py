"""The rules of a library that are proved by sums and products alone, so that a plan's checker sees both sides equal
without axioms of functions; from left to right and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Final

from ...models.rewrites.rule import Substitution
from ..container.archive import LIMITS, Limits, read_container
from .judgement import Judgement, Known, Proved
from .library import SHIPPED, decode_library

BACKWARDS: Final = "backwards"
"""What stands behind the name of a rule in a step that reads it from right to left."""
DEFAULT: Final = SHIPPED / "plans.spz"
DEFAULTS: Final = (DEFAULT, SHIPPED / "networks.spz", SHIPPED / "layers.spz")
"""The libraries that joint plans use where none is named: rules for every rank written by hand, generated ones of what
networks are made of, and generated ones of biases, gains and norms that fire on models.
"""


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


def backwards(rule: Substitution) -> Substitution:
    """The rule read from right to left: where both sides have types and its preconditions hold, they are equal.

    >>> from ...models.rewrites.rule import Pattern, node
    >>> twice = (node("transpose", -1, perm=(1, 0)), node("transpose", 0, perm=(1, 0)))
    >>> backwards(Substitution("twice", (Pattern("x", 2),), twice, (), ((1, -1),))).outputs
    ((-1, 1),)
    """
    return replace(
        rule,
        name=f"{rule.name} {BACKWARDS}",
        left=rule.right,
        right=rule.left,
        outputs=tuple((b, a) for a, b in rule.outputs),
    )
