"""Independent pieces of work on the ranks of `mpi4py.futures`: one rank hands them out, the others work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TypeVar

from ...models.text import InputError

Item = TypeVar("Item")
Found = TypeVar("Found")


def over_ranks(work: Callable[[Item], Found], items: Sequence[Item]) -> Iterator[tuple[Item, Found]]:
    """Every item with what `work` makes of it, as they get ready.  `work` is pickled: a function of a module.

    Raises `InputError` where there are no ranks to work on.
    """
    if find_spec("mpi4py") is None:
        raise InputError("--workers mpi: mpi4py is not installed: pip install 'shardproof[mpi]'")
    from concurrent.futures import as_completed

    from mpi4py import MPI
    from mpi4py.futures import MPIPoolExecutor

    if MPI.COMM_WORLD.Get_size() < 2:
        raise InputError(
            "--workers mpi: there is one rank; it is begun as mpiexec -n 3 python -m mpi4py.futures -m shardproof sweep"
        )
    with MPIPoolExecutor() as pool:
        waiting = {pool.submit(work, item): item for item in items}
        for one in as_completed(waiting):
            yield waiting[one], one.result()
