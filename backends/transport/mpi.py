"""MPI ranks: the same collectives through mpi4py on sub-communicators.

    reduce_scatter   Reduce_scatter_block, or Reduce_scatter for unequal parts          all_reduce   Allreduce
    all_gather       Allgather, or Allgatherv for unequal parts                         reduce       Reduce
    exchange         Bcast, Scatterv, Gatherv, Allgatherv, Alltoallv, or Isend and Irecv between neighbours, by pattern
    start            the same with an I: Iallreduce, ..; progress is made inside MPI calls, hence `poll`

MPI counts are C integers: an all-reduce or a broadcast beyond 2^31 - 1 elements is split, anything else of that size is
refused before MPI is called.  Device arrays go through `memory.Staging`.  Sub-communicators are made once per group
(`Create_group` is collective over the members only) and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...models.program.index import Combine
from ..kernels import Array, combine_arrays, is_half
from . import TransportError
from .memory import Staging, cuda_aware, on_device
from .patterns import Pattern, PatternKind
from .requests import AllGather, AllReduce, Exchanged, Pending, ReduceScatter, Request, Result, array_of, parts_of

if TYPE_CHECKING:
    from mpi4py import MPI

_LIMIT = 1 << 31
_TAG = 7


@dataclass
class _Call:
    """A collective that has been issued: what is under way (nothing if it was blocking), what MPI may not lose, and
    how it ends.
    """

    finish: Callable[[], Result]
    requests: list[MPI.Request] = field(default_factory=list)
    held: list[object] = field(default_factory=list)

    def poll(self) -> bool:
        """See `Pending`."""
        return all(request.Test() for request in self.requests)

    def wait(self) -> Result:
        """See `Pending`."""
        for request in self.requests:
            request.Wait()
        self.requests, self.held = [], []
        return self.finish()


class MpiTransport:
    """This process as one rank of `comm` (mpi4py).  `xp`: whose arrays come and go; `limit`: elements that MPI can
    count.
    """

    def __init__(self, comm: MPI.Intracomm, xp: ModuleType = np, limit: int = _LIMIT) -> None:
        self._world, self._limit = comm, limit
        self._staging = Staging(xp, cuda_aware(comm))
        self._groups: dict[tuple[int, ...], MPI.Intracomm] = {tuple(range(comm.Get_size())): comm}

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self._world.Get_rank()

    @property
    def name(self) -> str:
        """What carries the messages."""
        return self._staging.words

    @property
    def merges(self) -> bool:
        """See `Transport`."""
        return True

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

    def reduce_scatter(
        self, group: tuple[int, ...], parts: Array, combine: Combine, counts: tuple[int, ...] | None = None
    ) -> Array:
        """See `Transport`."""
        return array_of(self._issue(ReduceScatter(group, parts, combine, counts), "").wait())

    def all_gather(self, group: tuple[int, ...], array: Array, counts: tuple[int, ...] | None = None) -> Array:
        """See `Transport`."""
        return array_of(self._issue(AllGather(group, array, counts), "").wait())

    def all_reduce(self, group: tuple[int, ...], array: Array, combine: Combine) -> Array:
        """See `Transport`."""
        return array_of(self._issue(AllReduce(group, array, combine), "").wait())

    def reduce(self, group: tuple[int, ...], root: int, array: Array, combine: Combine) -> Array | None:
        """See `Transport`."""
        check_counts([int(array.size)], self._limit)
        send = self._staging.lend(array)
        receive = self._staging.landing(array.shape, array) if self.rank == root else None
        self._group(group).Reduce(send, receive, self._operation(combine, array), group.index(root))
        return None if receive is None else self._staging.bring(receive, array)

    def exchange(
        self, pattern: Pattern, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array
    ) -> dict[int, Array]:
        """See `Transport`."""
        return parts_of(self._issue(Exchanged(pattern, outgoing, incoming, like), "").wait())

    def start(self, request: Request) -> Pending:
        """See `Transport`."""
        return self._issue(request, "I")

    def _issue(self, request: Request, prefix: str) -> _Call:
        """`prefix`: I for the non-blocking form of the same call."""
        match request:
            case ReduceScatter(group=group, parts=parts, combine=combine, counts=counts):
                check_counts([int(parts.size)], self._limit)
                if counts is None:
                    return self._simple(
                        "Reduce_scatter_block", prefix, group, parts, parts.shape[1:], self._operation(combine, parts)
                    )
                mine = counts[group.index(self.rank)]
                return self._simple(
                    "Reduce_scatter", prefix, group, parts, (mine,), list(counts), self._operation(combine, parts)
                )
            case AllGather(group=group, array=array, counts=counts):
                check_counts([int(array.size)] * len(group) if counts is None else counts, self._limit)
                if counts is None:
                    return self._simple("Allgather", prefix, group, array, (len(group), *array.shape))
                send, receive = self._staging.lend(array), self._staging.landing((sum(counts),), array)
                gathering = _Call(lambda: self._staging.bring(receive, array), held=[send, receive])
                self._do(gathering, prefix, group, "Allgatherv", send, [receive, list(counts)])
                return gathering
            case AllReduce(group=group, array=array, combine=combine):
                send, receive = self._staging.lend(array), self._staging.landing(array.shape, array)
                call = _Call(lambda: self._staging.bring(receive, array), held=[send, receive])
                for part in self._pieces(array.size):
                    self._do(
                        call, prefix, group, "Allreduce", send[part], receive[part], self._operation(combine, array)
                    )
                return call
            case Exchanged():
                return self._exchanged(request, prefix)

    def _simple(
        self, name: str, prefix: str, group: tuple[int, ...], array: Array, shape: Sequence[int], *rest: object
    ) -> _Call:
        send, receive = self._staging.lend(array), self._staging.landing(shape, array)
        call = _Call(lambda: self._staging.bring(receive, array), held=[send, receive])
        self._do(call, prefix, group, name, send, receive, *rest)
        return call

    def _do(self, call: _Call, prefix: str, group: tuple[int, ...], name: str, *arguments: object) -> None:
        method = getattr(self._group(group), prefix + name.lower() if prefix else name)
        request = method(*arguments)
        if request is not None:
            call.requests.append(request)

    def _operation(self, combine: Combine, array: Array) -> MPI.Op:
        """What combines arrays like this one.

        MPI's own maximum and minimum lose a NaN or keep it, as the order of ranks has it; NumPy's hand it on, and so do
        ours.  They are functions of the host: what stays on the device is left to the library.
        """
        from mpi4py import MPI

        if is_half(array) and not (self._staging.aware and on_device(array)):
            return _rounding(combine, array.dtype.name)
        handing = array.dtype.kind == "f" and not (self._staging.aware and on_device(array))
        match combine:
            case Combine.SUM:
                return MPI.SUM
            case Combine.MAX:
                return _handing_nan_on(combine, array.dtype.name) if handing else MPI.MAX
            case Combine.MIN:
                return _handing_nan_on(combine, array.dtype.name) if handing else MPI.MIN

    def _pieces(self, size: int) -> Iterator[slice]:
        """Flat ranges that MPI can count, in order; one, possibly empty, if all fits."""
        most = self._limit - 1
        yield from (slice(start, min(size, start + most)) for start in range(0, max(size, 1), most))

    def _exchanged(self, request: Exchanged, prefix: str) -> _Call:
        pattern, outgoing, incoming, like = request.pattern, request.outgoing, request.incoming, request.like
        group = pattern.group
        root, me = group.index(pattern.root), group.index(self.rank)
        counts = [incoming.get(r, 0) for r in group]
        sizes = [int(outgoing[r].size) if r in outgoing else 0 for r in group]
        own = next(iter(outgoing.values()), None)
        if pattern.kind is PatternKind.ALL_GATHER and own is not None:
            counts[me] = int(own.size)
        if pattern.kind is not PatternKind.BROADCAST:
            check_counts(counts, self._limit)
            check_counts(sizes, self._limit)
        edges = [0, *accumulate(counts)]

        def finish() -> Result:
            arrived = self._staging.bring(received, like)
            return {r: arrived[edges[k] : edges[k + 1]] for k, r in enumerate(group) if r in incoming}

        received = self._staging.landing((edges[-1],), like)
        call = _Call(finish, held=[received])

        def lend(arrays: Sequence[Array]) -> Array:
            sent = self._staging.landing((0,), like) if not arrays else _joined([self._staging.lend(a) for a in arrays])
            call.held.append(sent)
            return sent

        match pattern.kind:
            case PatternKind.BROADCAST:
                buffer = lend([own]) if me == root and own is not None else received
                for part in self._pieces(buffer.size):
                    self._do(call, prefix, group, "Bcast", buffer[part], root)
            case PatternKind.SCATTER:
                sends = [lend([outgoing[r] for r in group if r in outgoing]), sizes] if me == root else None
                self._do(call, prefix, group, "Scatterv", sends, received, root)
            case PatternKind.GATHER:
                into = [received, counts] if me == root else None
                self._do(call, prefix, group, "Gatherv", lend(list(outgoing.values())), into, root)
            case PatternKind.ALL_GATHER:
                self._do(call, prefix, group, "Allgatherv", lend([] if own is None else [own]), [received, counts])
            case PatternKind.NEIGHBOURS:
                comm = self._group(group)
                for k, r in enumerate(group):
                    if r in incoming:
                        call.requests.append(comm.Irecv(received[edges[k] : edges[k + 1]], k, _TAG))
                for k, r in enumerate(group):
                    if r in outgoing:
                        call.requests.append(comm.Isend(lend([outgoing[r]]), k, _TAG))
            case PatternKind.ALL_TO_ALL:
                sends = [lend([outgoing[r] for r in group if r in outgoing]), sizes]
                self._do(call, prefix, group, "Alltoallv", sends, [received, counts])
        return call


def _joined(arrays: list[Array]) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    if not on_device(arrays[0]):
        return np.concatenate(arrays)
    import cupy

    joined: Array = cupy.concatenate(arrays)
    cupy.cuda.get_current_stream().synchronize()  # MPI reads it next
    return joined


def check_ranks(world: MPI.Intracomm, devices: int) -> None:
    """Raise `TransportError` if MPI started another number of ranks than the plan has devices.

    A launcher of another MPI than mpi4py's starts ranks that each think they are alone, so that is said.
    """
    from mpi4py import MPI

    ranks = world.Get_size()
    if ranks == devices:
        return
    library = MPI.Get_library_version().partition("\n")[0].partition(",")[0]
    alone = f"; if mpiexec was told {devices}, it belongs to another MPI than mpi4py, which uses {library}"
    raise TransportError(
        f"the plan has {devices} devices, MPI started {ranks} rank{'s' * (ranks != 1)}{alone if ranks == 1 else ''}"
    )


def check_counts(counts: Sequence[int], limit: int = _LIMIT) -> None:
    """Raise `TransportError` if a buffer of these parts has more than 2^31 - 1 elements.

    >>> check_counts([1 << 30, 1 << 30])
    Traceback (most recent call last):
        ...
    shardproof.backends.transport.TransportError: 2147483648 elements in one MPI buffer, the limit is 2147483647; use
    more ranks or smaller tensors
    """
    if sum(counts) >= limit:
        raise TransportError(
            f"{sum(counts)} elements in one MPI buffer, the limit is {limit - 1}; use more ranks or smaller tensors"
        )


@cache
def _rounding(combine: Combine, dtype: str) -> MPI.Op:
    """Numbers of 16 bits, combined in float32 and rounded after every step: MPI has no bfloat16."""
    from mpi4py import MPI

    def fold(source: Any, target: Any, _: MPI.Datatype) -> None:
        into: Array = np.frombuffer(target, dtype=dtype)
        into[...] = combine_arrays(np, np.frombuffer(source, dtype=dtype), into, combine)

    return MPI.Op.Create(fold, commute=True)


@cache
def _handing_nan_on(combine: Combine, dtype: str) -> MPI.Op:
    from mpi4py import MPI

    function = np.maximum if combine is Combine.MAX else np.minimum

    def fold(source: Any, target: Any, _: MPI.Datatype) -> None:
        into: Array = np.frombuffer(target, dtype=dtype)
        function(np.frombuffer(source, dtype=dtype), into, out=into)

    return MPI.Op.Create(fold, commute=True)
