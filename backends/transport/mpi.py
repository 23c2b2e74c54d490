"""MPI ranks: the same collectives through mpi4py on sub-communicators.

    reduce_scatter   Reduce_scatter_block          all_gather   Allgather          all_reduce   Allreduce          reduce   Reduce
    exchange         Bcast, Scatterv, Allgatherv or Alltoallv, by pattern

Buffers are C-contiguous host arrays; MPI counts are C integers, so counts and displacements are checked against 2^31.
Sub-communicators are made once per group (`Create_group` is collective over the members only) and kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from ...models.index import Combine
from ..kernels import Array
from . import TransportError
from .patterns import Pattern, PatternKind

if TYPE_CHECKING:
    from mpi4py import MPI

_LIMIT = 1 << 31


class MpiTransport:
    """This process as one rank of `comm` (mpi4py)."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._world = comm
        self._groups: dict[tuple[int, ...], MPI.Intracomm] = {tuple(range(comm.Get_size())): comm}

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self._world.Get_rank()

    def account(self, label: str) -> None:
        """MPI's own traffic depends on its algorithms: nothing is booked."""

    def _group(self, members: tuple[int, ...]) -> MPI.Intracomm:
        if members not in self._groups:
            world = self._world.Get_group()
            chosen = world.Incl(list(members))
            self._groups[members] = self._world.Create_group(chosen)
            chosen.Free()
            world.Free()
        return self._groups[members]

    def reduce_scatter(self, group: tuple[int, ...], parts: Array, combine: Combine) -> Array:
        """See `Transport`."""
        send = _buffer(parts)
        receive = np.empty(parts.shape[1:], dtype=parts.dtype)
        self._group(group).Reduce_scatter_block(send, receive, _operation(combine))
        return receive

    def all_gather(self, group: tuple[int, ...], array: Array) -> Array:
        """See `Transport`."""
        send = _buffer(array)
        check_counts([array.size] * len(group))
        receive = np.empty((len(group), *array.shape), dtype=array.dtype)
        self._group(group).Allgather(send, receive)
        return receive

    def all_reduce(self, group: tuple[int, ...], array: Array, combine: Combine) -> Array:
        """See `Transport`."""
        send = _buffer(array)
        receive = np.empty(array.shape, dtype=array.dtype)
        self._group(group).Allreduce(send, receive, _operation(combine))
        return receive

    def reduce(self, group: tuple[int, ...], root: int, array: Array, combine: Combine) -> Array | None:
        """See `Transport`."""
        send = _buffer(array)
        receive = np.empty(array.shape, dtype=array.dtype) if self.rank == root else None
        self._group(group).Reduce(send, receive, _operation(combine), group.index(root))
        return receive

    def exchange(self, pattern: Pattern, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array) -> dict[int, Array]:
        """See `Transport`."""
        comm, group = self._group(pattern.group), pattern.group
        root, me = group.index(pattern.root), group.index(self.rank)
        empty = np.empty(0, dtype=like.dtype)
        receive_counts = [incoming.get(r, 0) for r in group]
        check_counts(receive_counts)
        received: Array = np.empty(sum(receive_counts), dtype=like.dtype)
        sends = [outgoing.get(r, empty) for r in group]
        check_counts([int(s.size) for s in sends])
        match pattern.kind:
            case PatternKind.BROADCAST:
                buffer = _buffer(next(iter(outgoing.values()))) if me == root else received
                comm.Bcast(buffer, root)
            case PatternKind.SCATTER:
                comm.Scatterv([np.concatenate(sends), [int(s.size) for s in sends]] if me == root else None, received, root)
            case PatternKind.ALL_GATHER:
                own = _buffer(next(iter(outgoing.values())))
                counts = [int(own.size) if k == me else n for k, n in enumerate(receive_counts)]
                check_counts(counts)
                everything = np.empty(sum(counts), dtype=like.dtype)
                comm.Allgatherv(own, [everything, counts])
                start = sum(counts[:me])
                received = np.concatenate([everything[:start], everything[start + own.size :]])
            case PatternKind.ALL_TO_ALL:
                comm.Alltoallv([np.concatenate(sends), [int(s.size) for s in sends]], [received, receive_counts])
        edges = [0, *accumulate(receive_counts)]
        return {r: received[edges[k] : edges[k + 1]] for k, r in enumerate(group) if r in incoming}


def check_counts(counts: Sequence[int]) -> None:
    """Raise `TransportError` if a buffer of these parts has more than 2^31 - 1 elements.

    >>> check_counts([1 << 30, 1 << 30])
    Traceback (most recent call last):
        ...
    shardproof.backends.transport.TransportError: 2147483648 elements in one MPI buffer, the limit is 2147483647; use more ranks or smaller tensors
    """
    if sum(counts) >= _LIMIT:
        raise TransportError(f"{sum(counts)} elements in one MPI buffer, the limit is {_LIMIT - 1}; use more ranks or smaller tensors")


def _buffer(array: Array) -> Array:
    check_counts([int(array.size)])
    return np.ascontiguousarray(array)


def _operation(combine: Combine) -> MPI.Op:
    from mpi4py import MPI

    match combine:
        case Combine.SUM:
            return MPI.SUM
        case Combine.MAX:
            return MPI.MAX
        case Combine.MIN:
            return MPI.MIN
