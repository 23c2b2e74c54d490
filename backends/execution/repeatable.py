"""Any plan, run again and again: what one rank does in step n, over virtual or MPI transports.

Repeatable    a plan as its ranks run it: plain, rewritten or with submeshes (`Placed`), on two streams (`Streamed`),
              in stages (`Staged`)
RankStep      (n, what is read, what stays) -> this rank's blocks of the results; the transports stay as they are
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from ...models.program.graph import Graph
from ...proofs.overlap.certificate import OverlapCertificate
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.publishing.placed import placed_plan
from ..kernels import Array, widen
from ..lowering.numbered import at_step, program_at
from ..lowering.program import Program
from ..lowering.stages import StagedProgram, staged_program
from ..lowering.streams import StreamsProgram, streams_program
from ..transport.mpi import MpiTransport
from ..transport.virtual import Hub, VirtualTransport
from .held import RankBlocks, next_blocks
from .interpreter import Source, Watching, run_rank
from .job import Options, build_program, machine_text
from .libraries import library_of
from .pipeline import ONCE, Letters, Results, Seat, run_view, whole_results
from .pipeline_rank import MpiPointToPoint
from .progress import Table
from .run import assemble
from .streams import Signals, run_streams

if TYPE_CHECKING:
    from mpi4py import MPI

    from ...proofs.publishing.publisher import AnyPlan

Made = TypeVar("Made")
RankStep = Callable[[int, Source, RankBlocks], Results]
Told = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class Together:
    """Virtual ranks: a step of each, and what wakes those that wait when one has failed."""

    steps: tuple[RankStep, ...]
    abort: Callable[[], None]


class Repeatable(Protocol):
    """A plan as its ranks run it."""

    @property
    def graph(self) -> Graph:
        """What is executed."""

    @property
    def ranks(self) -> int:
        """How many there are."""

    def virtual(self, timeout_s: float) -> Together:
        """Ranks as threads of this process; `timeout_s`: how long one waits for another."""

    def over_mpi(self, world: MPI.Intracomm, table: Table) -> tuple[RankStep, str]:
        """This process' rank, and what carries its messages; `table`: where it says which instruction it is at."""

    def whole(self, names: Collection[str], arrays: Mapping[str, Array], found: Sequence[Results]) -> dict[str, Array]:
        """Results of these names from the blocks of all ranks; `arrays`: those that are inputs."""


@dataclass(frozen=True, eq=False)
class Placed:
    """One program per rank."""

    program: Program

    @property
    def graph(self) -> Graph:
        """See `Repeatable`."""
        return self.program.graph

    @property
    def ranks(self) -> int:
        """See `Repeatable`."""
        return len(self.program.ranks)

    def virtual(self, timeout_s: float) -> Together:
        """See `Repeatable`."""
        hub, at = Hub(timeout_s), _remembered(lambda n: program_at(self.program, n))
        transports = [VirtualTransport(hub, r, self.program.hierarchy, np) for r in range(self.ranks)]

        def of(rank: int) -> RankStep:
            return lambda n, source, held: self._step(at(n), rank, transports[rank], source, held, Watching())

        return Together(tuple(of(r) for r in range(self.ranks)), hub.abort)

    def over_mpi(self, world: MPI.Intracomm, table: Table) -> tuple[RankStep, str]:
        """See `Repeatable`."""
        rank, transport = world.Get_rank(), MpiTransport(world)

        def step(n: int, source: Source, held: RankBlocks) -> Results:
            program = program_at(self.program, n)
            return self._step(program, rank, transport, source, held, Watching(progress=table))

        return step, transport.name

    def _step(
        self,
        program: Program,
        rank: int,
        transport: VirtualTransport | MpiTransport,
        source: Source,
        held: RankBlocks,
        watching: Watching,
    ) -> Results:
        blocks = run_rank(program, rank, transport, source, np, watching)
        held.renew(next_blocks(program, rank, blocks, source))
        return {(name, ONCE): block for name, block in blocks.items()}

    def whole(self, names: Collection[str], arrays: Mapping[str, Array], found: Sequence[Results]) -> dict[str, Array]:
        """See `Repeatable`."""
        return _whole(self.program, names, arrays, found)


@dataclass(frozen=True, eq=False)
class Streamed:
    """Operators and reshardings on two streams of every rank, in the planned order."""

    program: StreamsProgram

    @property
    def graph(self) -> Graph:
        """See `Repeatable`."""
        return self.program.program.graph

    @property
    def ranks(self) -> int:
        """See `Repeatable`."""
        return len(self.program.program.ranks)

    def virtual(self, timeout_s: float) -> Together:
        """See `Repeatable`."""
        hubs, hierarchy, at = [Hub(timeout_s) for _ in "01"], self.program.program.hierarchy, _remembered(self._at)

        def abort() -> None:
            for hub in hubs:
                hub.abort()

        def of(rank: int) -> RankStep:
            both = [VirtualTransport(hub, rank, hierarchy, np) for hub in hubs]
            return lambda n, source, held: self._step(at(n), rank, both, source, held, None, abort)

        return Together(tuple(of(r) for r in range(self.ranks)), abort)

    def over_mpi(self, world: MPI.Intracomm, table: Table) -> tuple[RankStep, str]:
        """See `Repeatable`.  Raises `TransportError` where MPI lets one thread talk only."""
        from .streams_rank import two_transports

        rank, both = world.Get_rank(), two_transports(world)

        def step(n: int, source: Source, held: RankBlocks) -> Results:
            return self._step(self._at(n), rank, both, source, held, _teller(table, rank), None)

        return step, both[0].name

    def _at(self, number: int) -> StreamsProgram:
        return replace(self.program, program=program_at(self.program.program, number))

    def _step(
        self,
        program: StreamsProgram,
        rank: int,
        both: Sequence[VirtualTransport] | Sequence[MpiTransport],
        source: Source,
        held: RankBlocks,
        told: Told | None,
        broken: Callable[[], None] | None,
    ) -> Results:
        blocks, _ = run_streams(program, rank, both, source, np, signals=Signals(told=told, broken=broken))
        held.renew(next_blocks(program.program, rank, blocks, source))
        return {(name, ONCE): block for name, block in blocks.items()}

    def whole(self, names: Collection[str], arrays: Mapping[str, Array], found: Sequence[Results]) -> dict[str, Array]:
        """See `Repeatable`."""
        return _whole(self.program.program, names, arrays, found)


@dataclass(frozen=True, eq=False)
class Staged:
    """Stages on equal parts of the machine, micro-batch by micro-batch."""

    program: StagedProgram

    @property
    def graph(self) -> Graph:
        """See `Repeatable`."""
        return self.program.graph

    @property
    def ranks(self) -> int:
        """See `Repeatable`."""
        return self.program.views * self.program.devices

    def virtual(self, timeout_s: float) -> Together:
        """See `Repeatable`."""
        program, at = self.program, _remembered(self._at)
        hubs, letters = [Hub(timeout_s) for _ in program.stages], Letters(timeout_s)

        def abort() -> None:
            letters.abort()
            for hub in hubs:
                hub.abort()

        def of(number: int) -> RankStep:
            view, rank = divmod(number, program.devices)
            mine = {s: VirtualTransport(hubs[s], rank, program.hierarchy, np) for s in program.stages_of(view)}
            seat = Seat(view, rank, mine, letters)
            return lambda n, source, held: run_view(at(n), seat, source, np, held=held)

        return Together(tuple(of(r) for r in range(self.ranks)), abort)

    def over_mpi(self, world: MPI.Intracomm, table: Table) -> tuple[RankStep, str]:
        """See `Repeatable`."""
        from mpi4py import MPI

        number = world.Get_rank()
        view, rank = divmod(number, self.program.devices)
        transport, mail = MpiTransport(MPI.Intracomm(world.Split(view, rank))), MpiPointToPoint(world, self.program)
        mine = dict.fromkeys(self.program.stages_of(view), transport)

        def step(n: int, source: Source, held: RankBlocks) -> Results:
            told = _teller(table, number)
            found = run_view(self._at(n), Seat(view, rank, mine, mail), source, np, told=told, held=held)
            mail.settle()
            return found

        return step, transport.name

    def _at(self, number: int) -> StagedProgram:
        stages = tuple(replace(s, program=program_at(s.program, number)) for s in self.program.stages)
        return replace(self.program, graph=at_step(self.program.graph, number), stages=stages)

    def whole(self, names: Collection[str], arrays: Mapping[str, Array], found: Sequence[Results]) -> dict[str, Array]:
        """See `Repeatable`."""
        return whole_results(self.program, arrays, found, names)


def repeatable(held: AnyPlan, scale: int, options: Options) -> Repeatable:
    """A checked plan as its ranks run it.  `scale`: units of its costs in a second; `options`: of one with placements
    alone how it is run, of all whether blocks are stored in the types of the graph.
    """
    library_of(options.library)  # loaded before the first step, which is timed
    match held:
        case PipelineCertificate():
            return Staged(staged_program(held, options.stored, options.library))
        case OverlapCertificate():
            return Streamed(streams_program(held, scale, options.stored, options.library))
        case _:
            plan = placed_plan(held)
            options = replace(options, machine=machine_text(plan.machine))
            return Placed(build_program(plan.graph, plan.machine.hierarchy, plan.choices, options))


def _whole(
    program: Program, names: Collection[str], arrays: Mapping[str, Array], found: Sequence[Results]
) -> dict[str, Array]:
    boxes, out = dict(program.outputs), {}
    for name in program.graph.results:
        if name in names and name in boxes:
            shape = program.graph.tensor(name).shape
            out[name] = assemble(np, name, shape, boxes[name], [f[name, ONCE] for f in found])
        elif name in names:
            out[name] = widen(np, np.asarray(arrays[name]))
    return out


def _teller(table: Table, rank: int) -> Told:
    def record_task(task: int) -> None:
        table[rank, 1] = task

    return record_task


def _remembered(make: Callable[[int], Made]) -> Callable[[int], Made]:
    """The program of a step, made once for all ranks."""
    kept, lock = lru_cache(maxsize=1)(make), threading.Lock()

    def look_up(number: int) -> Made:
        with lock:
            return kept(number)

    return look_up
