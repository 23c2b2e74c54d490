"""NCCL through CuPy: collectives between GPUs, one per rank, without the host.

    reduce_scatter   ncclReduceScatter         all_gather   ncclAllGather        all_reduce   ncclAllReduce       reduce
    ncclReduce
                     unequal parts: one ncclReduce             unequal parts: one ncclBroadcast per member
    exchange         broadcast: ncclBroadcast; every other pattern: ncclSend and ncclRecv in one group, empty messages
                     left out

Everything runs on a stream of its own.  `start` makes that stream wait for what the current stream has queued so far,
`wait` makes the current stream wait for the result: kernels queued in between overlap, the host never blocks.
Communicators are made once per group: before the first step by splitting that of all ranks (`ncclCommSplit`), which
every rank takes part in; where NCCL is older than 2.18 or CuPy does not have it, and for groups that nobody named
before, when they are first used, by identifiers that travel over MPI.

Source: CuPy's `cupy.cuda.nccl.NcclCommunicator` (sendbuf, recvbuf, count, datatype, op, stream) and
`cupyx.distributed`; NCCL 2.18.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import ModuleType
from typing import Any, Protocol

from ...models.program.index import Combine
from ..kernels import Array
from . import TransportError
from .patterns import Pattern, PatternKind
from .requests import AllGather, AllReduce, Exchanged, Pending, ReduceScatter, Request, Result, array_of, parts_of

_TYPES = {
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "float16": "NCCL_FLOAT16",
    "uint16": "NCCL_BFLOAT16",  # its bits: see `kernels.half`
    "int8": "NCCL_INT8",
    "uint8": "NCCL_UINT8",
    "int32": "NCCL_INT32",
    "uint32": "NCCL_UINT32",
    "int64": "NCCL_INT64",
    "uint64": "NCCL_UINT64",
    "bool": "NCCL_UINT8",
}


_SPLITS_FROM, _NO_COLOR = 21800, -1
"""The first version of NCCL that splits; the colour of a rank that is in no new group."""


class Bootstrap(Protocol):
    """What brings a group's identifier from its first member to the others: mpi4py's world, or a test."""

    def share(self, group: tuple[int, ...], identifier: Any) -> Any:
        """Everyone gets what the first member of `group` gives."""


class MpiBootstrap:
    """Identifiers over point-to-point messages of an mpi4py communicator."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def share(self, group: tuple[int, ...], identifier: Any) -> Any:
        """See `Bootstrap`."""
        if self._comm.Get_rank() != group[0]:
            return self._comm.recv(source=group[0], tag=8)
        for member in group[1:]:
            self._comm.send(identifier, dest=member, tag=8)
        return identifier


def nccl_module() -> ModuleType | None:
    """CuPy's NCCL, or None where CuPy or the library is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy tells how to install it; whoever wants it knows
            from cupy.cuda import nccl
    except ImportError:
        return None
    return nccl if nccl.available else None


class _Call:
    """A collective on the communication stream: its event, and the arrays that it uses until then."""

    def __init__(self, stream: Any, event: Any, result: Result, held: list[Array]) -> None:
        self._stream, self._event, self._result, self._held = stream, event, result, held

    def poll(self) -> bool:
        """The device needs no help."""
        return True

    def wait(self) -> Result:
        """See `Pending`: the current stream waits, the host does not."""
        self._stream().wait_event(self._event)
        self._held = []
        return self._result


class NcclTransport:
    """This process, with its current GPU, as rank `rank`.  `xp`: cupy; `nccl`: see `nccl_module`."""

    def __init__(self, rank: int, bootstrap: Bootstrap, xp: Any, nccl: Any) -> None:
        self._rank, self._bootstrap, self._xp, self._nccl = rank, bootstrap, xp, nccl
        self._stream = xp.cuda.Stream(non_blocking=True)
        self._groups: dict[tuple[int, ...], Any] = {}

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self._rank

    @property
    def name(self) -> str:
        """What carries the messages."""
        return "nccl"

    @property
    def merges(self) -> bool:
        """See `Transport`."""
        return True

    def account(self, label: str) -> None:
        """NCCL's own traffic depends on its algorithms: nothing is booked."""

    def _group(self, members: tuple[int, ...]) -> Any:
        if members not in self._groups:
            first = self._rank == members[0]
            identifier = self._bootstrap.share(members, self._nccl.get_unique_id() if first else None)
            self._groups[members] = self._nccl.NcclCommunicator(len(members), identifier, members.index(self._rank))
        return self._groups[members]

    def prepare(self, ranks: int, partitions: Sequence[Sequence[tuple[int, ...]]]) -> None:
        """Make the communicators of groups, before the first step.  All ranks give the same partitions: disjoint groups
        of the `ranks`, one after another.
        """
        everyone = tuple(range(ranks))
        split = getattr(self._group(everyone), "commSplit", None)
        if split is None or self._nccl.get_version() < _SPLITS_FROM:
            return
        made = {everyone}
        for groups in partitions:
            new = [g for g in groups if g not in made]
            if not new:
                continue
            color = next((k for k, g in enumerate(new) if self._rank in g), _NO_COLOR)
            mine = () if color == _NO_COLOR else new[color]
            communicator = split(color, mine.index(self._rank) if mine else 0)
            if mine:
                self._groups[mine] = communicator
            made.update(new)

    def reduce_scatter(
        self, group: tuple[int, ...], parts: Array, combine: Combine, counts: tuple[int, ...] | None = None
    ) -> Array:
        """See `Transport`."""
        return array_of(self.start(ReduceScatter(group, parts, combine, counts)).wait())

    def all_gather(self, group: tuple[int, ...], array: Array, counts: tuple[int, ...] | None = None) -> Array:
        """See `Transport`."""
        return array_of(self.start(AllGather(group, array, counts)).wait())

    def all_reduce(self, group: tuple[int, ...], array: Array, combine: Combine) -> Array:
        """See `Transport`."""
        return array_of(self.start(AllReduce(group, array, combine)).wait())

    def reduce(self, group: tuple[int, ...], root: int, array: Array, combine: Combine) -> Array | None:
        """See `Transport`."""
        send, comm = self._xp.ascontiguousarray(array), self._group(group)
        receive = self._xp.empty(array.shape, dtype=array.dtype)
        self._behind()
        comm.reduce(
            _pointer(send),
            _pointer(receive),
            send.size,
            self._type(send),
            self._operation(combine),
            group.index(root),
            self._stream.ptr,
        )
        total = array_of(self._call(receive, [send, receive]).wait())
        return total if self._rank == root else None

    def exchange(
        self, pattern: Pattern, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array
    ) -> dict[int, Array]:
        """See `Transport`."""
        return parts_of(self.start(Exchanged(pattern, outgoing, incoming, like)).wait())

    def start(self, request: Request) -> Pending:
        """See `Transport`."""
        match request:
            case ReduceScatter(counts=counts) if counts is not None:
                return self._reduced_parts(request, counts)
            case AllGather(counts=counts) if counts is not None:
                return self._gathered_parts(request, counts)
            case ReduceScatter(group=group, parts=parts, combine=combine):
                send, comm = self._xp.ascontiguousarray(parts), self._group(group)
                receive = self._xp.empty(parts.shape[1:], dtype=parts.dtype)
                kind, operation = self._type(send), self._operation(combine)
                self._behind()
                comm.reduceScatter(_pointer(send), _pointer(receive), receive.size, kind, operation, self._stream.ptr)
            case AllGather(group=group, array=array):
                send, comm = self._xp.ascontiguousarray(array), self._group(group)
                receive = self._xp.empty((len(group), *array.shape), dtype=array.dtype)
                self._behind()
                comm.allGather(_pointer(send), _pointer(receive), send.size, self._type(send), self._stream.ptr)
            case AllReduce(group=group, array=array, combine=combine):
                send, comm = self._xp.ascontiguousarray(array), self._group(group)
                receive = self._xp.empty(array.shape, dtype=array.dtype)
                kind, operation = self._type(send), self._operation(combine)
                self._behind()
                comm.allReduce(_pointer(send), _pointer(receive), send.size, kind, operation, self._stream.ptr)
            case Exchanged():
                return self._exchanged(request)
        return self._call(receive, [send, receive])

    def _reduced_parts(self, request: ReduceScatter, counts: Sequence[int]) -> Pending:
        """Parts of unequal size, reduced to one rank each."""
        group, parts = request.group, request.parts
        send, comm, edges = self._xp.ascontiguousarray(parts), self._group(group), [0, *accumulate(counts)]
        receive = self._xp.empty((counts[group.index(self._rank)],), dtype=parts.dtype)
        kind, operation, stream = self._type(send), self._operation(request.combine), self._stream.ptr
        self._behind()
        for k, n in enumerate(counts):
            if n:
                into = _pointer(receive if group[k] == self._rank else send)
                comm.reduce(_pointer(send) + edges[k] * send.itemsize, into, n, kind, operation, k, stream)
        return self._call(receive, [send, receive])

    def _gathered_parts(self, request: AllGather, counts: Sequence[int]) -> Pending:
        """Parts of unequal size, broadcast from one rank each."""
        group, array = request.group, request.array
        send, comm, edges = self._xp.ascontiguousarray(array), self._group(group), [0, *accumulate(counts)]
        receive = self._xp.empty((edges[-1],), dtype=array.dtype)
        kind, stream = self._type(send), self._stream.ptr
        self._behind()
        for k, n in enumerate(counts):
            if n:
                part = _pointer(receive) + edges[k] * receive.itemsize
                comm.broadcast(_pointer(send) if group[k] == self._rank else part, part, n, kind, k, stream)
        return self._call(receive, [send, receive])

    def _exchanged(self, request: Exchanged) -> Pending:
        group, like = request.pattern.group, request.like
        comm, kind, stream = self._group(group), self._type(like), self._stream.ptr
        counts = [request.incoming.get(r, 0) for r in group]
        edges = [0, *accumulate(counts)]
        received = self._xp.empty((edges[-1],), dtype=like.dtype)
        arrived = {r: received[edges[k] : edges[k + 1]] for k, r in enumerate(group) if r in request.incoming}
        sent = {r: self._xp.ascontiguousarray(a) for r, a in request.outgoing.items()}
        self._behind()
        if request.pattern.kind is PatternKind.BROADCAST:
            buffer = next(iter(sent.values())) if self._rank == request.pattern.root else received
            comm.broadcast(
                _pointer(buffer), _pointer(buffer), buffer.size, kind, group.index(request.pattern.root), stream
            )
        else:
            self._nccl.groupStart()
            for k, r in enumerate(group):
                if r in sent and sent[r].size:
                    comm.send(_pointer(sent[r]), sent[r].size, kind, k, stream)
                if counts[k]:
                    comm.recv(_pointer(arrived[r]), counts[k], kind, k, stream)
            self._nccl.groupEnd()
        return self._call(arrived, [received, *sent.values()])

    def _behind(self) -> None:
        """The communication stream waits for what is queued on the current one."""
        self._stream.wait_event(self._xp.cuda.get_current_stream().record())

    def _call(self, result: Result, held: Sequence[Array]) -> _Call:
        return _Call(self._xp.cuda.get_current_stream, self._stream.record(), result, list(held))

    def _type(self, array: Array) -> int:
        name = _TYPES.get(str(array.dtype))
        if name is None:
            raise TransportError(f"NCCL has no element type {array.dtype}")
        return int(getattr(self._nccl, name))

    def _operation(self, combine: Combine) -> int:
        return int(
            getattr(self._nccl, {Combine.SUM: "NCCL_SUM", Combine.MAX: "NCCL_MAX", Combine.MIN: "NCCL_MIN"}[combine])
        )


def _pointer(array: Array) -> int:
    return int(array.__cuda_array_interface__["data"][0])  # type: ignore[attr-defined]
