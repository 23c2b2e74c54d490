"""What the front door does for a verb that reads a model: it publishes, and has the model compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from ...models.sources.building.original import Comparer
from ...proofs.publishing.publisher import Publisher

Item = TypeVar("Item")
Found = TypeVar("Found")


class Door(Publisher, Comparer, Protocol):
    """A publisher that also compares an imported graph with the program that it came from."""

    def within(self, late: Callable[[], bool], keep: bool = True) -> Door:
        """One whose checks end when `late` says so."""
        ...

    def over_ranks(self, work: Callable[[Item], Found], items: Sequence[Item]) -> Iterator[tuple[Item, Found]]:
        """Every item with what `work` makes of it on MPI ranks, as they get ready."""
        ...
