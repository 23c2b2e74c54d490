"""Reads from the environment which launcher started this process as one of many, and writes the command lines of those
that start ranks on other computers.

    srun                      SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
    mpirun of Open MPI        OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK
    mpiexec of MPICH, Intel   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID

The first that is complete counts: `srun` may start processes whose environment has names of the others too.  Within a
batch script of Slurm, outside `srun`, SLURM_STEP_ID is missing: there we are no rank.  What is there in half, or in
the words of PMIx alone (PMIX_RANK, which does not say of how many), is refused: each of such processes would begin a
job of its own.  Ranks that a process starts which was started by itself (`srun -n 1`) do not see these names.
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
    """Where this process is; None where it is the only one.  Raises `InputError` for numbers that are none, or that say
    one half.

    >>> place_of({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"})
    Place(rank=1, size=4, local=0, by='mpiexec')
    >>> place_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None  # a batch script
    True
    """
    alone = False
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
            alone = True
    if not alone:
        _refuse_half(environment)
    return None


def _refuse_half(environment: Mapping[str, str]) -> None:
    """Raise `InputError` where a launcher has said one half of where this process is."""
    for by, rank, size, _, needed in _NAMES:
        if not needed and (rank in environment) != (size in environment):
            there, lacking = (rank, size) if rank in environment else (size, rank)
            raise InputError(
                f"the environment has {there}={environment[there][:40]!r} of {by} and no {lacking}: set both, or "
                f"unset it"
            )
    if "PMIX_RANK" in environment:
        raise InputError(
            f"the environment has PMIX_RANK={environment['PMIX_RANK'][:40]!r} and nothing that says of how many "
            f"processes: start the ranks with srun, mpirun or mpiexec, or unset PMIX_RANK and PMIX_NAMESPACE"
        )


_OF_A_PLACE: Final = ("PMI_", "PMIX_", "OMPI_COMM_WORLD_")
_SETTINGS: Final = "PMIX_MCA_"


def without_place(environment: Mapping[str, str]) -> dict[str, str]:
    """What ranks of a job of its own are started with: where this process is says nothing of them.

    >>> without_place({"PMIX_RANK": "0", "PMIX_MCA_gds": "hash", "PATH": "/bin"})
    {'PMIX_MCA_gds': 'hash', 'PATH': '/bin'}
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_OF_A_PLACE) or name.startswith(_SETTINGS)
    }


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
