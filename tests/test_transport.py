"""Patterns, staging of device memory, NCCL's call sequence, and starting early: everything a transport does, without a
GPU.

A fake device array is a NumPy array that says it is device memory (`__cuda_array_interface__`); a fake NCCL moves bytes
between the threads that play the ranks, through the pointers and counts it is given, so a wrong offset shows as a wrong
number.
"""

from __future__ import annotations

import ctypes
import threading
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shardproof.backends.execution.steps import Flight, reshard, reshard_steps
from shardproof.backends.lowering.collectives import step_partitions
from shardproof.backends.transport import Transport, TransportError
from shardproof.backends.transport.memory import OVERRIDE, Staging, cuda_aware, on_device
from shardproof.backends.transport.mpi import MpiTransport, check_counts
from shardproof.backends.transport.nccl import NcclTransport, nccl_module
from shardproof.backends.transport.patterns import PatternKind, patterns
from shardproof.backends.transport.requests import AllGather, AllReduce, Exchanged, ReduceScatter, array_of
from shardproof.backends.transport.virtual import Hub, VirtualTransport
from shardproof.models.communication.resharding import derive
from shardproof.models.communication.transfers import Exchange, Transfer, Transfers
from shardproof.models.layout.layout import Layout, axis_tables, layout_set
from shardproof.models.layout.placement import matrices, space
from shardproof.models.program.index import Affine, Axis, Combine, access

# --- patterns ---------------------------------------------------------------------------------------------------------


def transfers(*pairs: tuple[int, int, tuple[int, int]]) -> Exchange:
    return Exchange(
        0, Transfers.of(Transfer(s, t, (box,)) for s, t, box in sorted(pairs, key=lambda p: (p[1], p[0], p[2])))
    )


CASES = {
    PatternKind.BROADCAST: transfers((1, 0, (0, 2)), (1, 2, (0, 2))),
    PatternKind.SCATTER: transfers((1, 0, (0, 2)), (1, 2, (2, 4))),
    PatternKind.GATHER: transfers((0, 2, (0, 2)), (1, 2, (2, 4))),
    PatternKind.ALL_GATHER: transfers((0, 1, (0, 2)), (0, 2, (0, 2)), (1, 0, (2, 4)), (1, 2, (2, 4))),
    PatternKind.NEIGHBOURS: transfers((0, 1, (1, 2)), (1, 0, (2, 3)), (1, 2, (3, 4)), (2, 1, (4, 5))),
    PatternKind.ALL_TO_ALL: transfers(
        *((s, t, (4 * s + t, 4 * s + t + 1)) for s in range(4) for t in range(4) if s != t)
    ),
}


@pytest.mark.parametrize("kind", list(PatternKind))
def test_every_pattern_is_recognised_and_says_why(kind: PatternKind) -> None:
    (found,) = patterns(CASES[kind])
    assert found.kind is kind
    assert found.reason
    if kind in (PatternKind.BROADCAST, PatternKind.SCATTER):
        assert found.root == 1
    if kind is PatternKind.GATHER:
        assert found.root == 2


def test_a_gather_in_which_a_member_has_nothing_stays_one() -> None:
    """Uneven blocks leave ranks empty: five elements on four ranks in blocks of two."""
    layouts = [
        Layout((4,), (5,), np.array([[i] for i in boxes]))
        for boxes in (((0, 2), (2, 4), (4, 5), (5, 5)), ((0, 5),) * 4)
    ]
    (found,) = patterns(derive(*layouts).steps[0])
    assert (found.kind, found.group) == (PatternKind.ALL_GATHER, (0, 1, 2, 3))
    assert "3 of 4 members send" in found.reason


def test_many_partners_are_one_collective() -> None:
    """Beyond eight partners single messages lose; a chain of ranks keeps two partners however long it is."""
    wide = transfers(
        *((s, t, (16 * s + t, 16 * s + t + 1)) for s in range(16) for t in range(16) if s != t and (s + t) % 16)
    )
    assert [p.kind for p in patterns(wide)] == [PatternKind.ALL_TO_ALL]
    chain = transfers(*((s, t, (s, s + 1)) for s in range(64) for t in (s - 1, s + 1) if 0 <= t < 64))
    (found,) = patterns(chain)
    assert found.kind is PatternKind.NEIGHBOURS
    assert "at most 2 of 63" in found.reason


# --- device memory and MPI --------------------------------------------------------------------------------------------


class Device(np.ndarray):
    """Memory that pretends to be a GPU's; `get` copies to the host, as CuPy's does."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.ctypes.data, False), "shape": self.shape, "typestr": self.dtype.str, "version": 3}

    def get(self) -> np.ndarray:
        return np.array(self, subok=False)


class Opaque:
    """Device memory of some other library: an interface, no way to copy."""

    dtype, shape, size = np.dtype(np.float64), (3,), 3

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (0xDEAD, False), "shape": (3,), "typestr": "<f8", "version": 3}


class Comm:
    """A communicator of one rank that refuses device memory as a real one crashes on it."""

    def __init__(self, kinds: str | None = "mpi,system") -> None:
        self.kinds, self.calls = kinds, []

    def Get_size(self) -> int:
        return 1

    def Get_rank(self) -> int:
        return 0

    def Get_info(self) -> dict[str, str]:
        return SimpleNamespace(Get=lambda key: self.kinds if key == "mpi_memory_alloc_kinds" else None)

    def __getattr__(self, name: str):
        def call(*arguments: object) -> None:
            for a in arguments:
                for b in a if isinstance(a, list) else [a]:
                    assert not on_device(b), f"{name} was given device memory"
            self.calls.append(name)
            send, receive = (a[0] if isinstance(a, list) else a for a in arguments[:2])
            if isinstance(receive, np.ndarray):
                receive.reshape(-1)[...] = np.asarray(send).reshape(-1)[: receive.size]

        return call


def device(*values: float) -> Device:
    return np.array(values).view(Device)


def test_device_arrays_are_staged_for_an_mpi_that_cannot_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OVERRIDE, raising=False)
    comm = Comm()
    transport = MpiTransport(comm)
    out = transport.all_reduce((0,), device(1, 2, 3), Combine.SUM)
    assert not on_device(out)
    assert out.tolist() == [1, 2, 3]
    assert transport.all_gather((0,), device(4, 5)).tolist() == [[4, 5]]
    assert transport.reduce_scatter((0,), device(6, 7).reshape(1, 2), Combine.MAX).tolist() == [6, 7]
    assert comm.calls == ["Allreduce", "Allgather", "Reduce_scatter_block"]


def test_device_memory_that_cannot_be_copied_is_refused_before_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OVERRIDE, raising=False)
    comm = Comm()
    with pytest.raises(TransportError, match="device memory cannot go to an MPI without CUDA support"):
        MpiTransport(comm).all_reduce((0,), Opaque(), Combine.SUM)  # type: ignore[arg-type]
    assert comm.calls == []


def test_an_aware_mpi_gets_the_pointers_after_a_synchronisation() -> None:
    waited: list[str] = []
    xp = SimpleNamespace(
        cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(synchronize=lambda: waited.append("yes"))),
        ascontiguousarray=lambda a: np.ascontiguousarray(a).view(Device),
        empty=lambda shape, dtype: np.empty(shape, dtype).view(Device),
    )
    staging = Staging(xp, True)  # type: ignore[arg-type]
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3)).view(Device)
    lent = staging.lend(array)
    assert on_device(lent) and lent.flags.c_contiguous and waited == ["yes"]
    np.testing.assert_array_equal(np.asarray(lent), np.arange(6.0).reshape(2, 3))
    landed = staging.landing((2, 3), array)
    assert on_device(landed) and landed.flags.c_contiguous  # Fortran order must not be passed on
    assert staging.bring(landed, array) is landed


def test_host_arrays_are_made_dense() -> None:
    staging = Staging(np, False)
    assert staging.lend(np.arange(6.0).reshape(2, 3).T).flags.c_contiguous
    assert staging.landing((3, 2), np.asfortranarray(np.ones((3, 2)))).flags.c_contiguous


@pytest.mark.parametrize(
    ("said", "kinds", "expected"),
    [
        ("1", "mpi,system", True),
        ("0", "mpi,system,cuda", False),
        (None, "mpi,system", False),
        (None, "system,mpi,cuda:device", True),
        (None, "mpi,system,cudalike", False),
        (None, None, False),
    ],
)
def test_awareness_needs_a_positive_answer(
    said: str | None, kinds: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OVERRIDE, raising=False)
    if said is not None:
        monkeypatch.setenv(OVERRIDE, said)
    assert cuda_aware(Comm(kinds)) is expected


class Long:
    """An array of 2^31 elements without its memory."""

    dtype, shape, size = np.dtype(np.float64), (1 << 31,), 1 << 31


def test_what_mpi_cannot_count_is_refused_before_mpi() -> None:
    comm = Comm()
    transport = MpiTransport(comm)
    with pytest.raises(TransportError, match="2147483648 elements in one MPI buffer"):
        transport.all_gather((0,), Long())  # type: ignore[arg-type]
    with pytest.raises(TransportError, match="2147483648 elements"):
        transport.reduce_scatter((0,), Long(), Combine.SUM)  # type: ignore[arg-type]
    with pytest.raises(TransportError, match="2147483648 elements"):
        transport.reduce((0,), 0, Long(), Combine.SUM)  # type: ignore[arg-type]
    with pytest.raises(TransportError, match="use more ranks or smaller tensors"):
        transport.exchange(patterns(CASES[PatternKind.ALL_TO_ALL])[0], {1: Long(), 2: Long()}, {}, np.zeros(0))  # type: ignore[dict-item]
    assert comm.calls == []
    with pytest.raises(TransportError):
        check_counts([5, 5], limit=10)


def test_a_large_all_reduce_is_split() -> None:
    comm = Comm()
    transport = MpiTransport(comm, limit=5)
    assert transport.all_reduce((0,), np.arange(10.0), Combine.SUM).tolist() == list(range(10))
    assert comm.calls == ["Allreduce"] * 3
    assert transport.all_reduce((0,), np.zeros(0), Combine.SUM).size == 0
    assert comm.calls == ["Allreduce"] * 4  # also an empty part: the others wait for it


# --- NCCL -------------------------------------------------------------------------------------------------------------


class FakeNccl:
    """`cupy.cuda.nccl` for threads: every call meets its group, then copies through the pointers it was given."""

    NCCL_FLOAT64, NCCL_FLOAT32, NCCL_INT64, NCCL_UINT8, NCCL_SUM, NCCL_MAX, NCCL_MIN = 8, 7, 4, 1, 0, 2, 3

    def __init__(self) -> None:
        self.hub, self.lock, self.ids, self.version = Hub(10), threading.Lock(), 0, 22700
        self.splits: dict[int, list[int]] = {}
        self.local = threading.local()
        self.shared: dict[tuple[int, ...], Any] = {}
        self.ready = threading.Condition()

    def get_unique_id(self) -> tuple[int, ...]:
        with self.lock:
            self.ids += 1
            return (self.ids,)

    def groupStart(self) -> None:
        self.local.queue = []

    def groupEnd(self) -> None:
        queue, self.local.queue = self.local.queue, None
        comm = self.local.comm
        everyone = comm.meet([(peer, data) for kind, peer, data, _ in queue if kind == "send"])
        for kind, peer, _, view in queue:
            if kind == "recv":
                found = [data for target, data in everyone[peer] if target == comm.rank]
                assert len(found) == 1 and found[0].size == view.size
                view[...] = found[0]

    def get_version(self) -> int:
        return self.version

    def NcclCommunicator(self, size: int, identifier: tuple[int, ...], rank: int) -> FakeCommunicator:
        self.local.comm = comm = FakeCommunicator(self, size, identifier, rank)
        return comm

    def share(self, group: tuple[int, ...], identifier: Any) -> Any:
        """Bootstrap: the first member's identifier."""
        with self.ready:
            if identifier is not None:
                self.shared[group] = identifier
                self.ready.notify_all()
            assert self.ready.wait_for(lambda: group in self.shared, 10)
            return self.shared[group]


class FakeCommunicator:
    def __init__(self, nccl: FakeNccl, size: int, identifier: tuple[int, ...], rank: int) -> None:
        self.nccl, self.size, self.identifier, self.rank, self.turn = nccl, size, identifier, rank, 0

    def meet(self, payload: Any) -> list[Any]:
        self.turn += 1
        key, members = (-self.identifier[0], self.turn), tuple(range(self.size))
        self.nccl.hub.post(self.rank, (key[0], *members), self.turn, payload)
        slots = self.nccl.hub._slots[(key[0], *members), self.turn]
        with self.nccl.hub._changed:
            assert self.nccl.hub._changed.wait_for(lambda: len(slots) == self.size or self.nccl.hub.failed, 10)
            self.nccl.hub._changed.notify_all()
        return [slots[r] for r in members]

    def commSplit(self, color: int, key: int) -> FakeCommunicator | None:
        self.nccl.splits.setdefault(self.rank, []).append(color)
        everyone = self.meet((color, key))
        members = [k for c, k in sorted(everyone) if c == color]
        identifier = (10_000 * self.turn + color,)
        return None if color < 0 else FakeCommunicator(self.nccl, len(members), identifier, members.index(key))

    @staticmethod
    def memory(pointer: int, count: int, kind: int) -> np.ndarray:
        dtype = {8: np.float64, 7: np.float32, 4: np.int64, 1: np.uint8}[kind]
        raw = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(pointer)
        return np.frombuffer(raw, dtype=dtype)

    def combine(self, pointer: int, count: int, kind: int, op: int) -> np.ndarray:
        parts = self.meet(self.memory(pointer, count, kind).copy())
        return {0: np.sum, 2: np.max, 3: np.min}[op](np.stack(parts), axis=0)

    def allReduce(self, send: int, receive: int, count: int, kind: int, op: int, stream: int) -> None:
        self.memory(receive, count, kind)[...] = self.combine(send, count, kind, op)

    def reduce(self, send: int, receive: int, count: int, kind: int, op: int, root: int, stream: int) -> None:
        total = self.combine(send, count, kind, op)
        if self.rank == root:
            self.memory(receive, count, kind)[...] = total

    def reduceScatter(self, send: int, receive: int, count: int, kind: int, op: int, stream: int) -> None:
        total = self.combine(send, count * self.size, kind, op)
        self.memory(receive, count, kind)[...] = total[self.rank * count : (self.rank + 1) * count]

    def allGather(self, send: int, receive: int, count: int, kind: int, stream: int) -> None:
        self.memory(receive, count * self.size, kind)[...] = np.concatenate(
            self.meet(self.memory(send, count, kind).copy())
        )

    def broadcast(self, send: int, receive: int, count: int, kind: int, root: int, stream: int) -> None:
        self.memory(receive, count, kind)[...] = self.meet(self.memory(send, count, kind).copy())[root]

    def send(self, pointer: int, count: int, kind: int, peer: int, stream: int) -> None:
        self.nccl.local.comm = self
        self.nccl.local.queue.append(("send", peer, self.memory(pointer, count, kind).copy(), None))

    def recv(self, pointer: int, count: int, kind: int, peer: int, stream: int) -> None:
        self.nccl.local.comm = self
        self.nccl.local.queue.append(("recv", peer, None, self.memory(pointer, count, kind)))


class FakeStream:
    """Counts the events: the communication stream must wait for the current one before it works, and the other way
    round after.
    """

    def __init__(self, non_blocking: bool = False) -> None:
        self.ptr, self.log = 17, []

    def record(self) -> FakeStream:
        self.log.append("record")
        return self

    def wait_event(self, event: FakeStream) -> None:
        self.log.append("wait")
        assert event.log and event.log[-1] == "record"


def fake_cupy() -> Any:
    current = threading.local()

    def get_current_stream() -> FakeStream:
        if not hasattr(current, "stream"):
            current.stream = FakeStream()
        return current.stream

    names = {n: getattr(np, n) for n in ("concatenate",)}
    return SimpleNamespace(
        __name__="fake",
        **names,
        empty=lambda shape, dtype=float: np.empty(shape, dtype).view(Device),
        ascontiguousarray=lambda a: np.ascontiguousarray(a).view(Device),
        full=lambda shape, v, dtype: np.full(shape, v, dtype).view(Device),
        cuda=SimpleNamespace(Stream=FakeStream, get_current_stream=get_current_stream),
    )


def all_ranks(ranks: int, work) -> list[Any]:
    """`work(rank)` in one thread each; the first exception is raised."""
    out: list[Any] = [None] * ranks
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            out[rank] = work(rank)
        except BaseException as e:  # noqa: BLE001
            errors.append(e)

    threads = [threading.Thread(target=one, args=(r,)) for r in range(ranks)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    if errors:
        raise errors[0]
    return out


def layouts(hierarchy: tuple[int, ...], shape: tuple[int, int, int]) -> tuple[Any, Any]:
    """A tensor partial along m, and how a convolution with stride 2 reads it."""

    def tables(axes: tuple[Axis, ...]) -> Any:
        return axis_tables(
            axes,
            matrices([a.extent for a in axes], [a.splittable for a in axes], hierarchy, space("complete,uneven")),
            hierarchy,
        )

    b, c, y = shape
    written = tables((Axis("b", b), Axis("c", c), Axis("y", y), Axis("m", 12, Combine.SUM)))
    reader = tables(
        (Axis("b", b), Axis("o", 8), Axis("y", y // 2), Axis("c", c, Combine.SUM), Axis("i", 3, Combine.SUM, False))
    )
    return (
        layout_set(access("t", *"bcy"), shape, written, ("m",)),
        layout_set(access("t", "b", "c", Affine.axis("y", 2).plus("i").shift(-1)), shape, reader),
    )


def blocks(layout: Layout, whole: np.ndarray, seed: int) -> list[np.ndarray]:
    """Per rank its (partial) block, so that the sums over the open digits give `whole`."""
    ranks = int(np.prod(layout.hierarchy))
    rng = np.random.default_rng(seed)
    out = [rng.integers(-9, 9, whole.shape).astype(float) for _ in range(ranks)]
    groups: dict[tuple[int, ...], list[int]] = {}
    for r in range(ranks):
        key = r
        for d in layout.open:
            below = int(np.prod(layout.hierarchy[d.level + 1 :])) * d.stride
            key -= key // below % d.prime * below
        groups.setdefault((key,), []).append(r)
    for members in groups.values():
        out[members[-1]] = whole - sum((out[m] for m in members[:-1]), np.zeros_like(whole))
    return [x[tuple(slice(lo, hi) for lo, hi in layout.box(r))] for r, x in enumerate(out)]


@pytest.mark.parametrize("hierarchy", [(2, 2), (6,)])
def test_redistributions_over_nccl_and_virtual_ranks_at_once_and_in_flight(hierarchy: tuple[int, ...]) -> None:
    ranks, shape = int(np.prod(hierarchy)), (4, 3, 6)
    a, b = layouts(hierarchy, shape)
    rng = np.random.default_rng(2)
    plans = [derive(a.layout(int(rng.integers(len(a)))), b.layout(int(rng.integers(len(b))))) for _ in range(12)]
    whole = np.arange(float(np.prod(shape))).reshape(shape)
    parts = [blocks(p.source, whole, n) for n, p in enumerate(plans)]
    nccl, hub = FakeNccl(), Hub(10)

    def work(rank: int) -> None:
        xp = fake_cupy()
        machines: list[tuple[Any, Transport]] = [
            (xp, NcclTransport(rank, nccl, xp, nccl)),
            (np, VirtualTransport(hub, rank, hierarchy, np)),
        ]
        for module, transport in machines:
            transport.account("all")
            for plan, part in zip(plans, parts):
                wanted = whole[tuple(slice(lo, hi) for lo, hi in plan.target.box(rank))]
                given = part[rank].view(Device) if module is xp else part[rank]
                np.testing.assert_allclose(np.asarray(reshard(module, transport, plan, given)), wanted, atol=1e-12)
            given = [part[rank].view(Device) if module is xp else part[rank] for part in parts]
            flights = [Flight(transport, reshard_steps(module, rank, plan, x)) for plan, x in zip(plans, given)]
            for flight, plan in zip(flights, plans):
                flight.poll()
                wanted = whole[tuple(slice(lo, hi) for lo, hi in plan.target.box(rank))]
                np.testing.assert_allclose(np.asarray(flight.finish()), wanted, atol=1e-12)
        assert machines[0][1]._stream.log.count("wait") > 0  # type: ignore[attr-defined]

    all_ranks(ranks, work)


@pytest.mark.parametrize("version", [22700, 21700])
def test_groups_are_split_off_before_the_first_step(version: int) -> None:
    """One identifier for all groups; every rank takes part in every split, in the same order.  Older versions get an
    identifier per group.
    """
    hierarchy, shape, nccl = (2, 2), (4, 3, 6), FakeNccl()
    nccl.version = version
    a, b = layouts(hierarchy, shape)
    rng = np.random.default_rng(2)
    plans = [derive(a.layout(int(rng.integers(len(a)))), b.layout(int(rng.integers(len(b))))) for _ in range(12)]
    whole = np.arange(float(np.prod(shape))).reshape(shape)
    parts = [blocks(p.source, whole, n) for n, p in enumerate(plans)]
    wanted = tuple(dict.fromkeys(p for plan in plans for s in plan.steps for p in step_partitions(s, hierarchy)))

    def work(rank: int) -> None:
        xp = fake_cupy()
        transport = NcclTransport(rank, nccl, xp, nccl)
        transport.prepare(4, wanted)
        for plan, part in zip(plans, parts):
            mine = whole[tuple(slice(lo, hi) for lo, hi in plan.target.box(rank))]
            found = np.asarray(reshard(xp, transport, plan, part[rank].view(Device)))
            np.testing.assert_allclose(found, mine, atol=1e-12)

    all_ranks(4, work)
    if version < 21800:
        assert not nccl.splits and nccl.ids > 1
        return
    assert nccl.ids == 1 and len({len(found) for found in nccl.splits.values()}) == 1 and len(nccl.splits) == 4
    assert len(nccl.splits[0]) > 2 and any(-1 in found for found in nccl.splits.values()) == any(
        len({r for g in groups for r in g}) < 4 for groups in wanted
    )


def test_nccl_carries_out_every_request() -> None:
    nccl = FakeNccl()

    def work(rank: int) -> None:
        xp = fake_cupy()
        t = NcclTransport(rank, nccl, xp, nccl)
        mine = (np.arange(4.0) + rank).view(Device)
        assert t.all_reduce((0, 1, 2, 3), mine, Combine.MAX).tolist() == [3, 4, 5, 6]
        assert t.all_gather((0, 1, 2, 3), mine)[:, 0].tolist() == [0, 1, 2, 3]
        rows = np.tile(np.arange(4.0)[:, None], (1, 2)).view(Device)
        assert t.reduce_scatter((0, 1, 2, 3), rows, Combine.SUM).tolist() == [4 * rank] * 2
        small, counts = (np.arange(6.0) + rank).view(Device), (3, 0, 1, 2)  # unequal parts
        own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        assert (
            t.reduce_scatter((0, 1, 2, 3), small, Combine.SUM, counts).tolist() == [4.0 * k + 6 for k in range(6)][own]
        )
        assert t.all_gather((0, 1, 2, 3), np.arange(6.0)[own].view(Device), counts).tolist() == [0, 1, 2, 3, 4, 5]
        total = t.reduce((0, 1, 2, 3), 2, mine, Combine.SUM)
        assert (total is None) == (rank != 2)
        pair = (0, 1) if rank < 2 else (2, 3)
        assert t.all_reduce(pair, mine, Combine.SUM)[0] == sum(pair)
        with pytest.raises(TransportError, match="no element type complex128"):
            t.start(AllReduce(pair, np.zeros(2, dtype=complex).view(Device), Combine.SUM))

    all_ranks(4, work)
    assert nccl_module() is None or hasattr(nccl_module(), "NcclCommunicator")


# --- starting early ---------------------------------------------------------------------------------------------------


def test_virtual_ranks_start_several_requests_before_they_wait() -> None:
    hub = Hub(10)
    group = (0, 1, 2)
    (pattern,) = patterns(
        transfers(*((s, t, (3 * s + t, 3 * s + t + 1)) for s, t in product(range(3), repeat=2) if s != t))
    )

    def work(rank: int) -> None:
        t = VirtualTransport(hub, rank, (3,), np)
        t.account("first")
        one = t.start(AllReduce(group, np.full(3, float(rank)), Combine.SUM))
        t.account("second")
        two = t.start(AllGather(group, np.full(2, float(rank))))
        three = t.start(ReduceScatter(group, np.full((3, 2), float(rank)), Combine.MAX))
        four = t.start(
            Exchanged(
                pattern,
                {r: np.full(1, 10.0 * rank + r) for r in group if r != rank},
                {r: 1 for r in group if r != rank},
                np.zeros(1),
            )
        )
        assert array_of(one.wait()).tolist() == [3, 3, 3]
        assert array_of(two.wait())[:, 0].tolist() == [0, 1, 2]
        assert array_of(three.wait()).tolist() == [2, 2]
        assert {r: x.tolist() for r, x in four.wait().items()} == {r: [10.0 * r + rank] for r in group if r != rank}
        assert t.received == {"first": [4], "second": [4 + 4 + 2]}  # under the label of the start
        with pytest.raises(TypeError):
            array_of({})

    all_ranks(3, work)
