"""Transports: how the ranks of a program talk.

One object per rank.  Groups are ascending tuples of ranks; every member of a group makes the same calls in the same
order.  Arrays are flat or (members, n), C order.  `virtual` runs all ranks in one process and counts; `mpi` uses
mpi4py; `nccl` uses CuPy.

`start` begins a request and returns; the arrays given to it belong to it until it is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ...models.program.index import Combine
from ..kernels import Array
from .patterns import Pattern
from .requests import AllGather, AllReduce, Exchanged, Pending, ReduceScatter, Request, Result


class TransportError(RuntimeError):
    """A collective that cannot be carried out: too large, or a partner that failed or never came."""


class Transport(Protocol):
    """What one rank can ask for."""

    @property
    def rank(self) -> int:
        """Number of this rank."""

    @property
    def name(self) -> str:
        """What carries the messages, in words."""

    @property
    def merges(self) -> bool:
        """Whether what several reshardings ask for at once may go as one message: not where each is counted apart."""

    def account(self, label: str) -> None:
        """Book what follows under `label`."""

    def reduce_scatter(
        self, group: tuple[int, ...], parts: Array, combine: Combine, counts: tuple[int, ...] | None = None
    ) -> Array:
        """`parts`: (members, n), or flat with counts[k] elements for member k.  Member k gets the combination of
        everyone's part k, flat.
        """

    def all_gather(self, group: tuple[int, ...], array: Array, counts: tuple[int, ...] | None = None) -> Array:
        """`array`: (n,).  Everyone gets everyone's array: (members, n), or flat if member k brings counts[k]
        elements.
        """

    def all_reduce(self, group: tuple[int, ...], array: Array, combine: Combine) -> Array:
        """`array`: (n,).  Everyone gets the combination."""

    def reduce(self, group: tuple[int, ...], root: int, array: Array, combine: Combine) -> Array | None:
        """The rank `root` gets the combination of everyone's array, the others None."""

    def exchange(
        self, pattern: Pattern, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array
    ) -> dict[int, Array]:
        """Send `outgoing[target]`, receive `incoming[source]` elements of the type of `like`; flat arrays."""

    def start(self, request: Request) -> Pending:
        """Begin a request; groups start their requests in the same order on every member, and wait in the same
        order.
        """


def carry_out(transport: Transport, request: Request) -> Result:
    """The result of a request, at once."""
    match request:
        case ReduceScatter(group=group, parts=parts, combine=combine, counts=counts):
            return transport.reduce_scatter(group, parts, combine, counts)
        case AllGather(group=group, array=array, counts=counts):
            return transport.all_gather(group, array, counts)
        case AllReduce(group=group, array=array, combine=combine):
            return transport.all_reduce(group, array, combine)
        case Exchanged():
            return transport.exchange(request.pattern, request.outgoing, request.incoming, request.like)


__all__ = ["Pattern", "Pending", "Request", "Result", "Transport", "TransportError", "carry_out"]
