"""This module holds what an exporter returns: the text of a file, and what the plan says that the target cannot."""

from __future__ import annotations

from dataclasses import dataclass

from ...models.communication.shardings import NotASharding


@dataclass(frozen=True)
class Exported:
    """`mesh`: names and sizes; `said`: layouts that the target expresses, `refused`: those that it does not."""

    text: str
    mesh: tuple[tuple[str, int], ...]
    said: int
    refused: tuple[NotASharding, ...]
