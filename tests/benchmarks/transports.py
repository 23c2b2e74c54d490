"""Shows what ways of carrying messages cost between ranks of this computer, each pair in turns within one run.

    python tests/benchmarks/transports.py [--ranks 2 4]

    merged        a Jacobi step whose halos go as one exchange per step, against one exchange per operand
    persistent    `Send_init`, `Recv_init` and `Start` to a neighbour, against `Isend` and `Irecv`
    shared        all-reduce and all-gather through `Win.Allocate_shared`, against `Allreduce` and `Allgather`

Median microseconds of the slowest rank, and processor microseconds of all ranks together, of one call; repeats go round
all ways so that a slow moment of the computer hits them alike.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shardproof.backends.execution.launch import environment

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)
REPEATS = 40

Way = tuple[str, Callable[[], object]]


def measure(world: object, ways: list[Way]) -> None:
    """Print a row per way on rank 0."""
    from mpi4py import MPI

    seconds = np.zeros((len(ways), REPEATS))
    busy = np.zeros(len(ways))
    for repeat in range(-2, REPEATS):
        for k, (_, call) in enumerate(ways):
            MPI.COMM_WORLD.Barrier()
            begun, used = time.perf_counter(), time.process_time()
            call()
            if repeat >= 0:
                busy[k] += time.process_time() - used
                seconds[k, repeat] = time.perf_counter() - begun
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, busy, MPI.SUM)
    if MPI.COMM_WORLD.rank == 0:
        for (name, _), times, used in zip(ways, seconds, busy, strict=True):
            row = f"| {MPI.COMM_WORLD.size} | {name} | {1e6 * np.median(times):.0f} | {1e6 * used / REPEATS:.0f} |"
            print(row, flush=True)


def raw_ways(size: int) -> list[Way]:
    """Collectives and neighbours on `size` bytes per rank."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    ranks, rank, n = world.size, world.rank, size // 4
    mine, total, whole = np.ones(n, np.float32), np.empty(n, np.float32), np.empty(n * ranks, np.float32)
    windows = [MPI.Win.Allocate_shared(size, 4, comm=world) for _ in range(2)]
    given, summed = ([np.frombuffer(w.Shared_query(k)[0], np.float32) for k in range(ranks)] for w in windows)
    for window in windows:
        window.Lock_all()
    parts = [slice(k * n // ranks, (k + 1) * n // ranks) for k in range(ranks)]

    def shared_reduce() -> None:
        given[rank][:] = mine
        windows[0].Sync()
        world.Barrier()
        own = summed[rank][: parts[rank].stop - parts[rank].start]
        own[:] = given[0][parts[rank]]
        for k in range(1, ranks):
            own += given[k][parts[rank]]
        windows[1].Sync()
        world.Barrier()
        for k, part in enumerate(parts):
            total[part] = summed[k][: part.stop - part.start]

    def shared_gather() -> None:
        given[rank][:] = mine
        windows[0].Sync()
        world.Barrier()
        for k in range(ranks):
            whole[k * n : (k + 1) * n] = given[k]
        world.Barrier()

    after, before = (rank + 1) % ranks, (rank - 1) % ranks

    def plain() -> None:
        for request in (world.Irecv(total, before, 1), world.Isend(mine, after, 1)):
            request.Wait()

    kept = [world.Recv_init(total, before, 2), world.Send_init(mine, after, 2)]

    def persistent() -> None:
        for request in kept:
            request.Start()
        for request in kept:
            request.Wait()

    label = f"{size >> 10} KiB"
    return [
        (f"all-reduce {label}: MPI", lambda: world.Allreduce(mine, total)),
        (f"all-reduce {label}: shared memory", shared_reduce),
        (f"all-gather {label}: MPI", lambda: world.Allgather(mine, whole)),
        (f"all-gather {label}: shared memory", shared_gather),
        (f"neighbour {label}: Isend, Irecv", plain),
        (f"neighbour {label}: persistent", persistent),
    ]


def step_ways(side: int) -> list[Way]:
    """A Jacobi step of rows on all ranks, halos merged and not."""
    from mpi4py import MPI

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from dataclasses import replace

    from array_cases import CASES

    from shardproof.backends.execution.interpreter import run_rank
    from shardproof.backends.execution.job import Options, build_program
    from shardproof.backends.execution.reference import random_inputs
    from shardproof.backends.execution.run import slices
    from shardproof.backends.transport.mpi import MpiTransport

    world = MPI.COMM_WORLD
    case = replace(CASES["jacobi rows"], sizes={"u": (side, side)})
    traced = case.traced()
    choices = case.scheduled(traced, world.size).choices
    program = build_program(traced.graph, (world.size,), choices, Options(overlap=False))
    source = slices(random_inputs(traced.graph, 0))

    class Single(MpiTransport):
        """One exchange per operand."""

        merges = False  # type: ignore[assignment]

    ways = [("merged", MpiTransport(world)), ("per operand", Single(world))]

    def step(transport: MpiTransport) -> Callable[[], object]:
        return lambda: run_rank(program, world.rank, transport, source, np)

    return [(f"Jacobi {side} x {side}: {name}", step(transport)) for name, transport in ways]


def rank() -> None:
    """One rank: all rows."""
    from mpi4py import MPI

    for side in (128, 1024):
        measure(MPI.COMM_WORLD, step_ways(side))
    for size in SIZES:
        measure(MPI.COMM_WORLD, raw_ways(size))


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", nargs="*", type=int, default=[2, 4])
    asked = parser.parse_args()
    if asked.rank:
        rank()
        return
    print("| ranks | way | median us | processor us, all ranks |\n|---|---|---|---|", flush=True)
    mpiexec = str(Path(sys.prefix) / "bin" / "mpiexec")
    for n in asked.ranks:
        command = [mpiexec, "-n", str(n), sys.executable, "-m", "mpi4py", __file__, "--rank"]
        subprocess.run(command, env=environment(n), check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
