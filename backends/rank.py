"""One MPI rank of a job: `mpiexec -n N python -m mpi4py -m shardproof.backends.rank FOLDER`.

`-m mpi4py` matters: it turns an exception on one rank into MPI_Abort, else the others would wait for ever.
"""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path

import numpy as np

from .interpreter import RankError, run_rank
from .job import Job, read_job, write_error
from .kernels import Array
from .program import Program, lower
from .run import assemble
from .transport import TransportError
from .transport.mpi import MpiTransport, check_counts


def main(folder: Path) -> None:
    """Run this process' rank.  Raises `RankError`, after leaving word in the folder."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, place = world.Get_rank(), "start"
    try:
        job = read_job(folder)
        if world.Get_size() != prod(job.hierarchy):
            raise TransportError(f"the plan has {prod(job.hierarchy)} devices, MPI started {world.Get_size()} ranks")
        program = lower(job.graph, job.hierarchy, job.choices)
        blocks = run_rank(program, rank, MpiTransport(world), job.source, np)
        place = "collecting the outputs"
        _collect(program, job, blocks)
    except RankError as e:
        write_error(folder, e)
        raise
    except Exception as e:
        error = RankError(rank, place, f"{type(e).__name__}: {e}")
        write_error(folder, error)
        raise error from e


def _collect(program: Program, job: Job, blocks: dict[str, Array]) -> None:
    """Send every output to rank 0 (program boundary: not priced), which puts it together and writes it."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    written = dict(program.outputs)
    for n, name in enumerate(program.graph.outputs):
        shape = program.graph.tensor(name).shape
        if name not in written:
            if world.Get_rank() == 0:
                np.save(job.folder / f"outputs/{n}.npy", job.source(name, tuple((0, x) for x in shape)), allow_pickle=False)
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
