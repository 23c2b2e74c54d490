"""Transports: how the ranks of a program talk.

One object per rank.  Groups are ascending tuples of ranks; every member of a group makes the same calls in the same order.
Arrays are flat or (members, n), C order.  `virtual` runs all ranks in one process and counts; `mpi` uses mpi4py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ...models.index import Combine
from ..kernels import Array
from .patterns import Pattern


class TransportError(RuntimeError):
    """A collective that cannot be carried out: too large, or a partner that failed or never came."""


class Transport(Protocol):
    """What one rank can ask for."""

    @property
    def rank(self) -> int:
        """Number of this rank."""

    def account(self, label: str) -> None:
        """Book what follows under `label`."""

    def reduce_scatter(self, group: tuple[int, ...], parts: Array, combine: Combine) -> Array:
        """`parts`: (members, n).  Member k gets the combination of everyone's row k: (n,)."""

    def all_gather(self, group: tuple[int, ...], array: Array) -> Array:
        """`array`: (n,).  Everyone gets everyone's array: (members, n)."""

    def all_reduce(self, group: tuple[int, ...], array: Array, combine: Combine) -> Array:
        """`array`: (n,), n a multiple of the number of members.  Everyone gets the combination."""

    def reduce(self, group: tuple[int, ...], root: int, array: Array, combine: Combine) -> Array | None:
        """The rank `root` gets the combination of everyone's array, the others None."""

    def exchange(self, pattern: Pattern, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array) -> dict[int, Array]:
        """Send `outgoing[target]`, receive `incoming[source]` elements of the type of `like`; flat arrays."""


__all__ = ["Pattern", "Transport", "TransportError"]
