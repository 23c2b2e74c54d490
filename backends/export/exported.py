"""This module holds what an exporter returns: the text of a file, and what the plan says that the target cannot."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ...models.communication.shardings import NotASharding


@dataclass(frozen=True)
class Exported:
    """`mesh`: names and sizes; `said`: layouts that the target expresses, `refused`: those that it does not."""

    text: str
    mesh: tuple[tuple[str, int], ...]
    said: int
    refused: tuple[NotASharding, ...]


def in_docstring(name: str) -> str:
    """A name of a plan as text inside a docstring: names come from files, and a file must not write code.

    >>> in_docstring("llama"), len(in_docstring(3 * chr(34)))  # every quote gets its backslash
    ('llama', 6)
    """
    return json.dumps(name)[1:-1]
