"""The order of calls on a GPU, by stand-ins that keep a queue: what MPI is given is not in use any more, and tracing
waits once.

A fake stream holds what was queued and not waited for.  New device memory is in use from the start: a block of CuPy's
pool may be one that a queued kernel still reads or writes.  A fake MPI notes every buffer that it is given while it is
in use.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_run import choose

from shardproof.backends.cuda import group
from shardproof.backends.execution import interpreter
from shardproof.backends.execution.fused import execute_fused
from shardproof.backends.execution.interpreter import Watching, recorder_for, run_rank
from shardproof.backends.execution.job import Options, build_program
from shardproof.backends.execution.reference import random_inputs
from shardproof.backends.execution.run import copies
from shardproof.backends.lowering.program import Fused
from shardproof.backends.transport import memory, mpi
from shardproof.backends.transport.memory import OVERRIDE
from shardproof.backends.transport.patterns import Pattern, PatternKind
from shardproof.backends.transport.requests import AllGather, AllReduce, Exchanged, ReduceScatter
from shardproof.backends.transport.virtual import Hub, VirtualTransport
from shardproof.models.program.index import Combine
from shardproof.models.sources.zoo import build

GROUP = (0, 1, 2)


class Device(np.ndarray):
    """Memory that says it is a GPU's."""

    queue: set[int]

    def __array_finalize__(self, other: object) -> None:
        self.queue = getattr(other, "queue", set())

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.ctypes.data, False), "shape": self.shape, "typestr": self.dtype.str, "version": 3}

    def get(self, out: np.ndarray | None = None) -> np.ndarray:
        host = np.empty(self.shape, self.dtype) if out is None else out
        host[...] = np.asarray(self)
        return host

    def set(self, host: np.ndarray) -> None:
        self.queue.add(buffer(host))
        np.asarray(self)[...] = host


def buffer(array: np.ndarray) -> int:
    """The memory that an array is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return id(array)


class Cupy(ModuleType):
    """CuPy with one stream; everything that it makes is in use until the stream is waited for."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.queue: set[int] = set()
        self.kept: list[np.ndarray] = []
        self.waits = 0
        stream = SimpleNamespace(synchronize=self.synchronize)
        self.cuda = SimpleNamespace(get_current_stream=lambda: stream)

    def synchronize(self) -> None:
        self.waits += 1
        self.queue.clear()

    def made(self, array: np.ndarray) -> Device:
        out = array.copy().view(Device)
        self.kept.append(out)  # so that no two have the same id
        out.queue = self.queue
        self.queue.add(buffer(out))
        return out

    def empty(self, shape: tuple[int, ...], dtype: object = float) -> Device:
        return self.made(np.zeros(shape, dtype))

    def ascontiguousarray(self, array: np.ndarray) -> Device:
        return self.made(np.ascontiguousarray(array))

    def concatenate(self, arrays: list[np.ndarray]) -> Device:
        return self.made(np.concatenate([np.asarray(a) for a in arrays]))

    def result(self, *shape: int) -> Device:
        """What a kernel is still writing."""
        return self.made(np.ones(shape))


class Comm:
    """Rank `rank` of three in a CUDA-aware MPI that does nothing but look at its buffers."""

    def __init__(self, rank: int, xp: Cupy) -> None:
        self.rank, self.xp, self.races, self.calls = rank, xp, list[str](), list[str]()

    def Get_size(self) -> int:
        return 3

    def Get_rank(self) -> int:
        return self.rank

    def Get_info(self) -> object:
        return SimpleNamespace(Get=lambda key: "mpi,system")

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            self.calls.append(name)
            for a in arguments:
                for b in a if isinstance(a, list) else [a]:
                    if isinstance(b, np.ndarray) and buffer(b) in self.xp.queue:
                        self.races.append(name)
            return SimpleNamespace(Test=lambda: True, Wait=lambda: None) if name[0] == "I" else None

        return call


def requests(xp: Cupy, rank: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every request, with arrays that are dense and others that are not."""
    whole, rows = xp.result(6), xp.result(3, 4)
    yield "reduce-scatter", lambda: ReduceScatter(GROUP, rows, Combine.SUM)
    yield "reduce-scatter in unequal parts", lambda: ReduceScatter(GROUP, whole, Combine.SUM, (1, 2, 3))
    yield "all-gather", lambda: AllGather(GROUP, whole)
    yield "all-gather of a slice", lambda: AllGather(GROUP, whole[::2])
    yield "all-gather of unequal parts", lambda: AllGather(GROUP, whole[: rank + 1], (1, 2, 3))
    yield "all-reduce", lambda: AllReduce(GROUP, whole, Combine.SUM)
    for kind in PatternKind:
        pattern = Pattern(kind, GROUP, 1, ())
        others = [r for r in GROUP if r != rank]
        sends = (
            others
            if kind in (PatternKind.ALL_TO_ALL, PatternKind.NEIGHBOURS, PatternKind.ALL_GATHER)
            else others
            if rank == 1 and kind is not PatternKind.GATHER
            else []
        )
        if kind is PatternKind.GATHER and rank != 1:
            sends = [1]
        comes = [
            r
            for r in others
            if kind in (PatternKind.ALL_TO_ALL, PatternKind.NEIGHBOURS, PatternKind.ALL_GATHER)
            or (r == 1) == (kind is not PatternKind.GATHER)
            and (rank == 1) == (kind is PatternKind.GATHER)
        ]
        outgoing = {r: whole if kind in (PatternKind.BROADCAST, PatternKind.ALL_GATHER) else whole[:2] for r in sends}
        yield (
            kind.value,
            lambda pattern=pattern, outgoing=outgoing, comes=comes: Exchanged(
                pattern,
                outgoing,
                {r: 6 if pattern.kind in (PatternKind.BROADCAST, PatternKind.ALL_GATHER) else 2 for r in comes},
                whole,
            ),
        )


def races(made: Callable[[Comm, Cupy], Any], rank: int, aware: bool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a rank hands to MPI while it is in use, and pinned memory that it gives back while a copy reads it."""
    found: list[str] = []
    for number in range(sum(1 for _ in requests(Cupy(), rank))):
        for blocking in (True, False):
            xp = Cupy()
            monkeypatch.setitem(sys.modules, "cupy", xp)
            pinned: list[np.ndarray] = []

            def empty_pinned(shape: tuple[int, ...], dtype: object, pinned: list[np.ndarray] = pinned) -> np.ndarray:
                pinned.append(np.empty(shape, dtype))
                return pinned[-1]

            monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace(empty_pinned=empty_pinned))
            monkeypatch.setenv(OVERRIDE, "1" if aware else "0")
            comm = Comm(rank, xp)
            transport = made(comm, xp)
            name, request = list(requests(xp, rank))[number]
            call = transport._issue(request(), "" if blocking else "I")
            xp.queue.add(-1)  # work beside it
            call.wait()
            assert comm.calls, name
            found += [f"{name}: {c}" for c in comm.races]
            found += [f"{name}: pinned" for p in pinned if buffer(p) in xp.queue]
    xp = Cupy()
    monkeypatch.setitem(sys.modules, "cupy", xp)
    comm = Comm(rank, xp)
    made(comm, xp).reduce(GROUP, 1, xp.result(6), Combine.SUM)
    return found + [f"reduce: {c}" for c in comm.races]


def mutant(module: ModuleType, number: int, folder: Path) -> ModuleType:
    """The module with its synchronisation `number` left out."""
    parts = Path(str(module.__file__)).read_text().split(".synchronize()")
    file = folder / "mutant.py"
    file.write_text(
        ".synchronize()".join(parts[: number + 1]) + ".synchronize" + ".synchronize()".join(parts[number + 1 :])
    )
    spec = importlib.util.spec_from_file_location(module.__name__, file)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    before = sys.modules[module.__name__]
    sys.modules[module.__name__] = made  # dataclasses look their module up
    try:
        spec.loader.exec_module(made)
    finally:
        sys.modules[module.__name__] = before
    return made


def waits(module: ModuleType) -> int:
    return Path(str(module.__file__)).read_text().count(".synchronize()")


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("rank", GROUP)
def test_no_buffer_goes_to_mpi_while_it_is_in_use(rank: int, aware: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers to send and to receive into, every collective, blocking and not; pinned memory is given back after
    the copy that reads it.
    """
    assert races(lambda comm, xp: mpi.MpiTransport(comm, xp), rank, aware, monkeypatch) == []


@pytest.mark.parametrize(("module", "number"), [(m, n) for m in (memory, mpi) for n in range(waits(m))])
def test_every_wait_is_needed(module: ModuleType, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any one of them left out, the test above fails."""
    changed = mutant(module, number, tmp_path)
    if module is memory:
        monkeypatch.setattr(mpi, "Staging", changed.Staging)
        transport = mpi.MpiTransport
    else:
        transport = changed.MpiTransport
    found = [
        races(lambda comm, xp: transport(comm, xp), rank, aware, monkeypatch)
        for rank in GROUP
        for aware in (True, False)
    ]
    assert any(found)


def test_a_receiver_alone_waits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks that only receive: the race that was there."""
    changed = mutant(memory, 1, tmp_path)
    monkeypatch.setattr(mpi, "Staging", changed.Staging)
    found = races(lambda comm, xp: mpi.MpiTransport(comm, xp), 0, True, monkeypatch)
    assert {"broadcast: Bcast", "scatter: Scatterv", "neighbours: Irecv"} <= set(found)


# --- tracing ----------------------------------------------------------------------------------------------------------


class Events(Cupy):
    """A GPU whose clock ticks once per event; the host waits only where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.recorded = 0, 0
        outer = self

        class Event:
            def record(self, stream: object) -> None:
                outer.clock += 1
                outer.recorded += 1
                self.at = outer.clock

            def synchronize(self) -> None:
                outer.synchronize()

        self.cuda.Event = Event
        self.cuda.get_elapsed_time = lambda a, b: float(b.at - a.at)

    def __getattr__(self, name: str) -> object:
        return getattr(np, name)


def test_tracing_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of many instructions under a recorder: one wait, at the end; spans in order, as long as the events
    say.
    """
    graph = build("mlp-unity", batch=4, inputs=8, hidden=8, classes=4, dtype="float64")
    program = build_program(graph, (1,), choose(graph, (1,), {}), Options(fuse=False))
    xp = Events()
    xp.empty, xp.ascontiguousarray, xp.concatenate = np.empty, np.ascontiguousarray, np.concatenate  # type: ignore[method-assign]
    recorder = recorder_for(xp, 0)
    monkeypatch.setattr(interpreter.device, "launch", None)
    values = random_inputs(graph, 0)
    run_rank(program, 0, VirtualTransport(Hub(5), 0, (1,), np), copies(values), xp, Watching(recorder))
    assert xp.waits == 1 and len(recorder.spans) > 3
    assert all(s.seconds > 0 for s in recorder.spans)
    assert [s.start_s for s in recorder.spans] == sorted(s.start_s for s in recorder.spans)
    run_rank(program, 0, VirtualTransport(Hub(5), 0, (1,), np), copies(values), xp, Watching(recorder))
    assert xp.waits == 2 and xp.recorded == 1 + 2 * len(recorder.spans)


# --- kernel text ------------------------------------------------------------------------------------------------------


def test_the_text_of_a_kernel_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every instruction writes its texts at its first launch; other layouts of the operands are other texts; what
    has none is remembered too.
    """
    graph = build("bert-tiny", batch=1, layers=1, sequence=8)
    program = build_program(graph, (1,), choose(graph, (1,), {}), Options())
    written = 0
    real = {"chain": group.chain.generate, "rows": group.rows.generate}

    def counted(which: str) -> Callable[..., object]:
        def generate(spec: object) -> object:
            nonlocal written
            written += 1
            return real[which](spec)

        return generate

    monkeypatch.setattr(group.chain, "generate", counted("chain"))
    monkeypatch.setattr(group.rows, "generate", counted("rows"))
    launched: list[str] = []

    def launch(kernel: Any, arrays: object) -> None:
        launched.append(kernel.text)

    values = random_inputs(graph, 0)
    texts = []
    for _ in range(3):
        launched.clear()

        def fused(xp: ModuleType, graph: Any, step: Fused, slots: Any, library: Any, run: Any = None, *_: Any):
            execute_fused(xp, graph, step, slots, library, launch)
            return execute_fused(xp, graph, step, slots, library)

        monkeypatch.setattr(interpreter, "execute_fused", fused)
        run_rank(program, 0, VirtualTransport(Hub(5), 0, (1,), np), copies(values), np)
        texts.append((written, tuple(launched)))
    assert texts[0][0] > 0 and texts[0] == texts[1] == texts[2], "the same texts, written in the first round only"
    assert all(len(s.recipes) == 1 for s in program.ranks[0] if isinstance(s, Fused))
