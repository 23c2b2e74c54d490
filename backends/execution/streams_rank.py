"""Runs overlapped plans on MPI ranks: `mpiexec -n N python -m mpi4py -m
shardproof.backends.execution.streams_rank FOLDER`.

The folder is that of `container_job`, with the overlapped plan in `plan.spz`.  Both streams of a rank talk through MPI
at the same time, each over a communicator of its own.
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
from ...proofs.overlap.certificate import OverlapCertificate
from ...proofs.overlap.file import decode_overlap, write_overlap
from ..kernels import Array
from ..lowering.streams import in_order, streams_program
from ..trace import Span, write_spans
from ..transport import TransportError
from ..transport.mpi import MpiTransport, check_ranks
from . import progress
from .container_job import read_options, run_container_job
from .interpreter import RankError
from .job import write_error
from .streams import Signals, run_streams, whole

if TYPE_CHECKING:
    from mpi4py import MPI


def main(folder: Path) -> None:
    """Run this process' rank.  Raises `RankError`, after leaving word in the folder."""
    progress.guard(folder)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, place = world.Get_rank(), "start"
    try:
        data = read_options(folder)
        c = decode_overlap(read_container((folder / "plan.spz").read_bytes()))
        program = streams_program(c, int(data["scale"]), bool(data["stored"]), str(data["library"]))
        if data["starts"] is not None:
            program = in_order(program, tuple(data["starts"]))
        check_ranks(world, c.machine.devices)
        table = progress.enter(folder, rank)
        transports = two_transports(world)
        if rank == 0:
            (folder / "transport.txt").write_text(transports[0].name)
        files: dict[str, str] = dict(data["files"])

        def source(tensor: str, box: Box) -> Array:
            mapped = np.load(folder / files[tensor], mmap_mode="r", allow_pickle=False)
            return np.array(mapped[tuple(slice(lo, hi) for lo, hi in box)])

        def together() -> float:
            world.Barrier()
            now: float = world.bcast(time.perf_counter(), root=0)
            return now

        def record_task(task: int) -> None:
            table[rank, 1] = task

        signals = Signals(together, record_task)
        blocks, spans = run_streams(program, rank, transports, source, np, float(data["pace"]), signals)
        if data["trace"]:
            write_spans(folder / f"trace/{rank}.json", spans)
        place = "collecting the outputs"
        everything: list[dict[str, Array]] | None = world.gather(blocks, root=0)
        if everything is not None:
            arrays = {name: np.load(folder / file, mmap_mode="r", allow_pickle=False) for name, file in files.items()}
            for n, array in enumerate(whole(program, arrays, everything).values()):
                np.save(folder / f"outputs/{n}.npy", array, allow_pickle=False)
        world.Barrier()
        table[rank, 1] = progress.DONE
    except RankError as e:
        write_error(folder, e)
        raise
    except Exception as e:
        error = RankError(rank, place, f"{type(e).__name__}: {e}")
        write_error(folder, error)
        raise error from e


def two_transports(world: MPI.Intracomm) -> list[MpiTransport]:
    """Of operators, and of reshardings beside them.  Raises `TransportError` where one thread may talk only."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise TransportError("this MPI lets one thread talk only; run with --virtual")
    return [MpiTransport(world), MpiTransport(MPI.Intracomm(world.Dup()))]


def run_streams_job(
    c: OverlapCertificate,
    scale: int,
    inputs: Mapping[str, Array],
    stored: bool = False,
    pace: float = 0.0,
    timeout_s: float = 120.0,
    starts: tuple[int, ...] | None = None,
    library: str = "numpy",
) -> tuple[dict[str, Array], tuple[Span, ...], str]:
    """(outputs, times, transport) of an overlapped plan on one MPI rank per device.  `starts`: of every task, instead
    of the plan's own; `library`: who computes operators.

    Raises `GraphError` before anything starts, `RankError` naming rank and operator when one fails, `LaunchError`
    otherwise.
    """
    options: dict[str, object] = {"stored": stored, "library": library, "trace": True, "pace": pace, "scale": scale}
    options["starts"] = starts
    write = partial(write_overlap, certificate=c)
    return run_container_job("streams_rank", c.graph, c.machine.devices, write, inputs, options, timeout_s)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
