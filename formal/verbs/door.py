"""What the front door does for a verb that reads a model: it publishes, and has the model compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...models.sources.building.original import Comparer
from ...proofs.publishing.publisher import Publisher


class Door(Publisher, Comparer, Protocol):
    """A publisher that also compares an imported graph with the program that it came from."""

    def within(self, late: Callable[[], bool], keep: bool = True) -> Door:
        """One whose checks end when `late` says so."""
        ...
