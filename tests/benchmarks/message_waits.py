"""What it costs that a waiting rank sleeps between polls (`backends.execution.launch.CROWDED`), and what it costs that
it does not.

    python tests/benchmarks/message_waits.py [--ranks 2 4 8] [--others N]

Milliseconds of an all-gather (`Allgatherv`, what an exchange uses) and an all-reduce of 64 KiB and 1 MiB per rank:
median of 20 on the slowest rank, with sleeping (MPICH's heavy yield, one poll) and without; beside nothing, and beside
N other busy processes (default: 2).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from shardproof.backends.execution.launch import CROWDED, cores, environment

SIZES = (1 << 16, 1 << 20)
REPEATS = 20


def rank() -> None:
    """One rank."""
    from time import perf_counter

    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    found = []
    for size in SIZES:
        mine = np.ones(size // 4, dtype=np.float32)
        whole, total = np.empty(mine.size * world.size, dtype=np.float32), np.empty_like(mine)
        for call in (
            lambda a=mine, b=whole: world.Allgatherv(a, [b, [a.size] * world.size]),
            lambda a=mine, b=total: world.Allreduce(a, b),
        ):
            seconds = np.empty(REPEATS)
            for k in range(REPEATS):
                world.Barrier()
                start = perf_counter()
                call()
                seconds[k] = perf_counter() - start
            world.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
            found.append(1000 * float(np.median(seconds)))
    if world.rank == 0:
        print(" ".join(f"{ms:16.3f}" for ms in found))


def times(ranks: int, sleeping: bool) -> str:
    """The figures of one job."""
    settings = {k: v for k, v in environment(ranks).items() if k not in CROWDED} | (CROWDED if sleeping else {})
    mpiexec = Path(sys.prefix) / "bin" / "mpiexec"
    command = [str(mpiexec), "-n", str(ranks), sys.executable, "-m", "mpi4py", __file__, "--rank"]
    return subprocess.run(
        command, env=settings, check=True, capture_output=True, text=True, timeout=120
    ).stdout.rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", nargs="*", type=int, default=[2, 4, 8])
    parser.add_argument("--others", type=int, default=2)
    given = parser.parse_args()
    if given.rank:
        rank()
        return
    print(
        f"{cores()} cores\n{'ranks':>5} {'others':>6} {'waiting':>8}  "
        + " ".join(f"{f'{c} {s >> 10} KiB':>16}" for s in SIZES for c in ("all-gather", "all-reduce"))
    )
    for others in sorted({0, given.others}):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
        try:
            for ranks in given.ranks:
                for sleeping in (True, False):
                    print(
                        f"{ranks:>5} {others:>6} {'sleeps' if sleeping else 'polls':>8}  {times(ranks, sleeping)}",
                        flush=True,
                    )
        finally:
            for process in busy:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
