"""Reads from the environment which launcher started this process as one of many, and writes the command lines of those
that start ranks on other computers.

    srun                      SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
    mpirun of Open MPI        OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK
    mpiexec of MPICH, Intel   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID

The first that is complete counts: `srun` may start processes whose environment has names of the others too.  Within a
batch script of Slurm, outside `srun`, SLURM_STEP_ID is missing: there we are no rank.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...models.text import InputError


@dataclass(frozen=True)
class Place:
    """This process among those that a launcher started: `local`: its number on its node, None where nobody says;
    `by`: the launcher, in words.
    """

    rank: int
    size: int
    local: int | None
    by: str


_NAMES: Final = (
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_ID"),
    ("mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", ""),
    ("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", ""),
)


def place_of(environment: Mapping[str, str]) -> Place | None:
    """Where this process is; None where it is the only one.  Raises `InputError` for numbers that are none.

    >>> place_of({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"})
    Place(rank=1, size=4, local=0, by='mpiexec')
    >>> place_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None  # a batch script
    True
    """
    for by, rank, size, local, needed in _NAMES:
        if rank in environment and size in environment and (not needed or needed in environment):
            numbers = {name: environment[name] for name in (rank, size, local) if name in environment}
            wrong = next((name for name, text in numbers.items() if not (text.isascii() and text.isdecimal())), None)
            if wrong is not None or not int(numbers[rank]) < int(numbers[size]):
                raise InputError(
                    f"the environment says that {by} started this process, and {wrong or rank}="
                    f"{numbers[wrong or rank][:40]!r} is no number of one of {numbers[size][:40]} processes; unset it"
                )
            if int(numbers[size]) > 1:
                return Place(
                    int(numbers[rank]), int(numbers[size]), int(numbers[local]) if local in numbers else None, by
                )
    return None


def start_line(mpiexec: str, ranks: int, hostfile: str, passed: Sequence[str]) -> list[str]:
    """The command line of a launcher up to the program; `passed`: names of variables that every rank needs, which MPICH
    passes on by itself and Open MPI does not.  Raises `InputError` for a launcher that is neither.
    """
    asked = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=60, check=False)
    said = asked.stdout + asked.stderr
    if "HYDRA" in said:
        return [mpiexec, "-f", hostfile, "-n", str(ranks)]
    if "Open MPI" in said or "OpenRTE" in said or "PRRTE" in said:
        names = [word for name in passed for word in ("-x", name)]
        return [mpiexec, "--hostfile", hostfile, *names, "-n", str(ranks)]
    first = next(iter(said.strip().splitlines()), "nothing")[:80]
    raise InputError(
        f"{mpiexec}: says {first!r} of its version; --hostfile is for those of MPICH and Open MPI: start the ranks "
        f"yourself, as `srun -n {ranks} shardproof run ..`"
    )
