"""One MPI rank of a job: `mpiexec -n N python -m mpi4py -m shardproof.backends.execution.rank
FOLDER`.

`-m mpi4py` matters: it turns an exception on one rank into MPI_Abort, else the others would wait for ever.

With CuPy, rank r of a computer takes its GPU r modulo their number; where all ranks have a GPU each, and NCCL, they
talk through it, else through MPI.
"""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from ..kernels import Array
from ..lowering.collectives import partitions
from ..lowering.program import Program
from ..trace import write_spans
from ..transport import Transport
from ..transport.mpi import MpiTransport, check_counts, check_ranks
from ..transport.nccl import MpiBootstrap, NcclTransport, nccl_module
from . import progress
from .interpreter import RankError, Watching, recorder_for, run_rank
from .job import Job, read_job, write_error
from .run import assemble

if TYPE_CHECKING:
    from mpi4py import MPI


def main(folder: Path) -> None:
    """Run this process' rank.  Raises `RankError`, after leaving word in the folder."""
    progress.guard(folder)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, place = world.Get_rank(), "start"
    try:
        job = read_job(folder)
        devices = prod(job.hierarchy)
        check_ranks(world, devices)
        table = progress.enter(folder, rank)
        program = job.program()
        xp, transport = _machine(world, job.options.backend)
        if isinstance(transport, NcclTransport):
            transport.prepare(devices, partitions(program))
        if rank == 0:
            (folder / "transport.txt").write_text(transport.name)
        world.Barrier()
        watching = Watching(recorder_for(xp, rank) if job.options.trace else None, table)
        blocks = run_rank(
            program, rank, transport, lambda tensor, box: xp.asarray(job.source(tensor, box)), xp, watching
        )
        if watching.recorder is not None:
            write_spans(folder / f"trace/{rank}.json", watching.recorder.spans)
        place = "collecting the outputs"
        _collect(
            program,
            job,
            {name: block if isinstance(block, np.ndarray) else block.get() for name, block in blocks.items()},
        )
        world.Barrier()
        table[rank, 1] = progress.DONE
    except RankError as e:
        write_error(folder, e)
        raise
    except Exception as e:
        error = RankError(rank, place, f"{type(e).__name__}: {e}")
        write_error(folder, error)
        raise error from e


def _machine(world: MPI.Intracomm, backend: str) -> tuple[ModuleType, Transport]:
    """Array library and transport of this rank."""
    if backend != "cupy":
        return np, MpiTransport(world)
    import cupy
    from mpi4py import MPI

    here = world.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks of this computer
    gpus = int(cupy.cuda.runtime.getDeviceCount())
    cupy.cuda.Device(here.Get_rank() % gpus).use()
    nccl = nccl_module() if here.Get_size() <= gpus else None
    everywhere = all(world.allgather(nccl is not None))  # a rank without it cannot be reached by the others' NCCL
    if nccl is None or not everywhere:
        return cupy, MpiTransport(world, cupy)
    return cupy, NcclTransport(world.Get_rank(), MpiBootstrap(world), cupy, nccl)


def _collect(program: Program, job: Job, blocks: dict[str, Array]) -> None:
    """Send every output to rank 0 (program boundary: not priced), which puts it together and writes it."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    written = dict(program.outputs)
    for n, name in enumerate(program.graph.results):
        shape = program.graph.tensor(name).shape
        if name not in written:
            if world.Get_rank() == 0:
                np.save(
                    job.folder / f"outputs/{n}.npy", job.source(name, tuple((0, x) for x in shape)), allow_pickle=False
                )
            continue
        own = np.ascontiguousarray(blocks[name])
        sizes = [prod(hi - lo for lo, hi in box) for box in written[name]]
        if world.Get_rank() != 0:
            world.Gatherv(own, None, 0)
            continue
        check_counts(sizes)
        everything = np.empty(sum(sizes), dtype=own.dtype)
        world.Gatherv(own, [everything, sizes], 0)
        parts, start = [], 0
        for size, box in zip(sizes, written[name], strict=True):
            parts.append(everything[start : start + size].reshape([hi - lo for lo, hi in box]))
            start += size
        np.save(job.folder / f"outputs/{n}.npy", assemble(np, name, shape, written[name], parts), allow_pickle=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
