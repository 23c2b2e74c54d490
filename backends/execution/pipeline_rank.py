"""Runs pipelined steps on MPI ranks: `mpiexec -n N python -m mpi4py -m
shardproof.backends.execution.pipeline_rank FOLDER`.

The folder is that of `container_job`, with the pipelined step in `plan.spz`.  Views are consecutive ranks with a
communicator each; what goes from stage to stage goes from rank to rank with `isend`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...models.communication.transfers import Box
from ...proofs.container.archive import read_container
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.pipelines.file import decode_pipeline, write_pipeline
from ..kernels import Array
from ..lowering.stages import StagedProgram, staged_program
from ..trace import Recorder, Span, write_spans
from ..transport.mpi import MpiTransport, check_ranks
from . import progress
from .container_job import read_options, run_container_job
from .interpreter import RankError
from .job import write_error
from .pipeline import ONCE, Results, Seat, run_view, whole_results

if TYPE_CHECKING:
    from mpi4py import MPI


class MpiPointToPoint:
    """`Post` over a communicator of all ranks."""

    def __init__(self, world: MPI.Intracomm, staged: StagedProgram) -> None:
        self._world, self._staged = world, staged
        self._under_way: list[MPI.Request] = []

    def _forward(self, tensor: str) -> bool:
        return any(stage.leaves["F"] == tensor for stage in self._staged.stages)

    def _way(self, stage: int, tensor: str, micro_batch: int) -> tuple[int, int]:
        """(stage that a letter comes from, its tag): several of a view may have letters from one rank."""
        staged = self._staged
        if micro_batch == ONCE:
            known = [x for once in staged.stages[stage].rounds for x in once.arrives if x.tensor == tensor]
            chunks = len(staged.stages) // staged.views
            return known[0].stage, 2 * chunks * staged.micro + known[0].number
        forward = self._forward(tensor)
        tag = (stage // staged.views * 2 + (0 if forward else 1)) * staged.micro + micro_batch
        return (stage - 1 if forward else stage + 1), tag

    def send(self, stage: int, rank: int, tensor: str, micro_batch: int, block: Array) -> None:
        """See `Post`."""
        self._under_way = [r for r in self._under_way if not r.Test()]
        goal = stage % self._staged.views * self._staged.devices + rank
        letter = np.asarray(block, order="C"), time.perf_counter()
        self._under_way.append(self._world.isend(letter, goal, self._way(stage, tensor, micro_batch)[1]))

    def receive(self, stage: int, rank: int, tensor: str, micro_batch: int) -> tuple[Array, float]:
        """See `Post`."""
        sender, tag = self._way(stage, tensor, micro_batch)
        source = sender % self._staged.views * self._staged.devices + rank
        letter: tuple[Array, float] = self._world.recv(source=source, tag=tag)
        return letter

    def settle(self) -> None:
        """Wait until everything has gone."""
        for r in self._under_way:
            r.Wait()


def main(folder: Path) -> None:
    """Run this process' rank.  Raises `RankError`, after leaving word in the folder."""
    progress.guard(folder)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    number, place = world.Get_rank(), "start"
    try:
        data = read_options(folder)
        held = decode_pipeline(read_container((folder / "plan.spz").read_bytes()))
        program = staged_program(held, bool(data["stored"]), str(data["library"]))
        check_ranks(world, program.views * program.devices)
        table = progress.enter(folder, number)
        view, rank = divmod(number, program.devices)
        among = MPI.Intracomm(world.Split(view, rank))
        transport, mail = MpiTransport(among), MpiPointToPoint(world, program)
        transports = dict.fromkeys(program.stages_of(view), transport)
        if number == 0:
            (folder / "transport.txt").write_text(transport.name)
        files: dict[str, str] = dict(data["files"])

        def source(tensor: str, box: Box) -> Array:
            mapped = np.load(folder / files[tensor], mmap_mode="r", allow_pickle=False)
            return np.array(mapped[tuple(slice(lo, hi) for lo, hi in box)])

        def record_task(task: int) -> None:
            table[number, 1] = task

        world.Barrier()
        recorder = Recorder(number) if data["trace"] else None
        seat = Seat(view, rank, transports, mail)
        found = run_view(program, seat, source, np, recorder, record_task, float(data["pace"]))
        mail.settle()
        if recorder is not None:
            write_spans(folder / f"trace/{number}.json", recorder.spans)
        place = "collecting the outputs"
        everything: list[Results] | None = world.gather(found, root=0)
        if everything is not None:
            arrays = {name: np.load(folder / file, mmap_mode="r", allow_pickle=False) for name, file in files.items()}
            for n, array in enumerate(whole_results(program, arrays, everything).values()):
                np.save(folder / f"outputs/{n}.npy", array, allow_pickle=False)
        world.Barrier()
        table[number, 1] = progress.DONE
    except RankError as e:
        write_error(folder, e)
        raise
    except Exception as e:
        error = RankError(number, place, f"{type(e).__name__}: {e}")
        write_error(folder, error)
        raise error from e


def run_pipeline_job(
    c: PipelineCertificate,
    inputs: Mapping[str, Array],
    stored: bool,
    trace: bool,
    timeout_s: float = 120.0,
    pace: float = 0.0,
    library: str = "numpy",
) -> tuple[dict[str, Array], tuple[Span, ...], str]:
    """(outputs, times, transport) of a pipelined step on one MPI rank per device; `library`: who computes
    operators.

    Raises `GraphError` before anything starts, `RankError` naming rank and operator when one fails, `LaunchError`
    otherwise.
    """
    options: dict[str, object] = {"stored": stored, "library": library, "trace": trace, "pace": pace}
    write = partial(write_pipeline, certificate=c)
    return run_container_job("pipeline_rank", c.graph, c.machine.devices, write, inputs, options, timeout_s)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
