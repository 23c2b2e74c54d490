"""Where device memory meets MPI: nowhere else.

    both host                          MPI gets the array, C order
    device, MPI is CUDA-aware          the current stream is synchronised, MPI gets the device pointers, of what it
                                       reads and of what it writes:  a new block of CuPy's pool may be one that a kernel
                                       still in the queue reads or writes
    device, MPI is not (the default)   a pinned host copy goes to MPI, what arrives there is copied to the device

A device pointer given to an MPI that cannot follow it is a segmentation fault, not an exception, and a kernel still
running when MPI reads gives random values (mpi4py issues 36, 60, 115).  mpi4py would pass any
`__cuda_array_interface__` on, so every buffer goes through `Staging.lend`.  A wrong "aware" crashes, a wrong "not
aware" is only slow: awareness needs a positive answer, the first of

    SHARDPROOF_CUDA_AWARE=1 or 0, info key mpi_memory_alloc_kinds (MPI 4.1), MPIX_Query_cuda_support(), else no.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..kernels import Array
from . import TransportError

if TYPE_CHECKING:
    from mpi4py import MPI

OVERRIDE: Final = "SHARDPROOF_CUDA_AWARE"


def on_device(array: object) -> bool:
    """Whether the array's memory belongs to a GPU (it has CUDA's array interface)."""
    return hasattr(array, "__cuda_array_interface__")


class Staging:
    """`xp`: the library whose arrays come and go; `aware`: whether MPI may see device pointers."""

    def __init__(self, xp: ModuleType, aware: bool) -> None:
        self._xp, self.aware = xp, aware

    @property
    def words(self) -> str:
        """What carries the messages of these arrays."""
        if self._xp is np:
            return "mpi"
        return "mpi, CUDA-aware" if self.aware else "mpi, staged through the host"

    def lend(self, array: Array) -> Array:
        """What MPI may read in place of `array`: C order, host memory unless MPI is CUDA-aware.

        Raises `TransportError` for device memory that can be neither passed on nor copied.
        """
        if not on_device(array):
            return np.ascontiguousarray(array)
        get = getattr(array, "get", None)
        if self.aware:
            dense: Array = array if array.flags.c_contiguous else self._xp.ascontiguousarray(array)
            self._xp.cuda.get_current_stream().synchronize()
            return dense
        if get is None:
            raise TransportError(
                f"a {type(array).__name__} in device memory cannot go to an MPI without CUDA support, nor be "
                f"copied to the host;"
                f" give CuPy arrays, or an MPI with CUDA support ({OVERRIDE}=1 if it is not recognised)"
            )
        if self._xp is np:
            return np.ascontiguousarray(get())
        import cupyx

        host: Array = cupyx.empty_pinned(array.shape, dtype=array.dtype)
        source: Any = array if array.flags.c_contiguous else self._xp.ascontiguousarray(array)
        source.get(out=host)  # returns when the copy is complete
        return host

    def landing(self, shape: Sequence[int], like: Array) -> Array:
        """Where MPI may write what will become an array like `like`: C order, uninitialised."""
        if not on_device(like):
            return np.empty(tuple(shape), dtype=like.dtype)
        if self.aware:
            # not empty_like: an einsum result in Fortran order would pass its order on, and MPI would permute silently
            new: Array = self._xp.empty(tuple(shape), dtype=like.dtype)
            self._xp.cuda.get_current_stream().synchronize()
            return new
        if self._xp is np:
            return np.empty(tuple(shape), dtype=like.dtype)
        import cupyx

        return cupyx.empty_pinned(tuple(shape), dtype=like.dtype)  # type: ignore[no-any-return]

    def bring(self, landed: Array, like: Array) -> Array:
        """What MPI has written, as an array like `like`."""
        if not on_device(like) or on_device(landed) or self._xp is np:
            return landed
        out: Array = self._xp.empty(landed.shape, dtype=landed.dtype)
        out.set(landed)  # type: ignore[attr-defined]
        self._xp.cuda.get_current_stream().synchronize()  # the pinned buffer goes back to its pool when this returns
        return out


def cuda_aware(comm: MPI.Intracomm) -> bool:
    """Whether this MPI takes device pointers: see the module docstring."""
    said = os.environ.get(OVERRIDE, "").strip().lower()
    if said:
        return said in ("1", "true", "yes", "on")
    kinds = comm.Get_info().Get("mpi_memory_alloc_kinds")
    if kinds is not None:
        return any(kind.strip().partition(":")[0] == "cuda" for kind in kinds.split(","))
    return _queried()


def _queried() -> bool:
    """MPIX_Query_cuda_support of the MPI library that this process has loaded and initialised; False where there is
    none.
    """
    try:
        loaded = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libmpi.so" in line]
    except OSError:
        loaded = ["libmpi.so.12", "libmpi.so.40"]  # `libmpi.so` of the wheels is not a library
    for name in dict.fromkeys(loaded):
        try:
            library = ctypes.CDLL(name)
            initialised, query = library.MPI_Initialized, library.MPIX_Query_cuda_support
        except (OSError, AttributeError):
            continue
        flag = ctypes.c_int(0)
        initialised(ctypes.byref(flag))
        query.restype = ctypes.c_int
        return bool(flag.value) and bool(query())  # before MPI_Init the query ends the process
    return False
