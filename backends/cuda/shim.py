"""The host shim: generated kernels, text unchanged, compiled by g++ and run block by block on the
CPU.  For their
numerics, not their speed.

A preamble defines CUDA's words; a driver loops over grid and block.  Kernels whose threads talk run as fibers
(ucontext): a meeting (`__syncthreads`, a shuffle) hands over to the next thread of the block, in ascending, descending
or shuffled order per round.  A race on shared memory therefore shows as a result that depends on the order, and a
meeting that not every thread reaches is an error.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..kernels import Array
from .kernel import Kernel, KernelTextError

PREAMBLE = r"""
#include <cmath>
#include <cstring>
#include <ucontext.h>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
struct three { unsigned x, y, z; };
three threadIdx, blockIdx, blockDim, gridDim;
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline double2 make_double2(double x, double y) { return {x, y}; }
static inline float __int_as_float(int i) { float f; std::memcpy(&f, &i, 4); return f; }
static inline double __longlong_as_double(long long i) { double f; std::memcpy(&f, &i, 8); return f; }

static ucontext_t scheduler;
static std::vector<ucontext_t> fibers;
static std::vector<char> finished;
alignas(16) static char letters[1024][16];
void meet() { unsigned me = threadIdx.x; swapcontext(&fibers[me], &scheduler); }
static inline void __syncthreads() { meet(); }
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) {
    std::memcpy(letters[threadIdx.x], &value, sizeof(T));
    meet();
    T out; std::memcpy(&out, letters[threadIdx.x ^ mask], sizeof(T));
    meet();
    return out;
}
static void (*body)(void**);
static void** arguments;
static void enter() { body(arguments); finished[threadIdx.x] = 1; }

// 0: done, 1: some threads of a block ended while others waited for them
static int block(unsigned threads, int order) {
    static std::vector<char> stacks;
    const size_t size = 1 << 16;
    stacks.resize(size * threads); fibers.resize(threads); finished.assign(threads, 0);
    for (unsigned t = 0; t < threads; ++t) {
        getcontext(&fibers[t]);
        fibers[t].uc_stack.ss_sp = &stacks[size * t]; fibers[t].uc_stack.ss_size = size; fibers[t].uc_link = &scheduler;
        makecontext(&fibers[t], enter, 0);
    }
    unsigned round = 1, state = 12345u + order;
    std::vector<unsigned> turn(threads);
    for (unsigned t = 0; t < threads; ++t) turn[t] = order == 1 ? threads - 1 - t : t;
    for (unsigned ended = 0; ended < threads; ++round) {
        if (order > 1) for (unsigned t = threads - 1; t; --t) {
            state = state * 1664525u + 1013904223u;
            std::swap(turn[t], turn[(state >> 8) % (t + 1)]);
        }
        for (unsigned t : turn) { threadIdx.x = t; swapcontext(&scheduler, &fibers[t]); ended += finished[t]; }
        if (ended && ended < threads) return 1;
    }
    return 0;
}

extern "C" int shim_run(
    void (*kernel)(void**), void** given, unsigned gx, unsigned gy, unsigned threads, int talk, int order) {
    body = kernel; arguments = given;
    gridDim = {gx, gy, 1}; blockDim = {threads, 1, 1}; threadIdx = {0, 0, 0};
    for (unsigned y = 0; y < gy; ++y) for (unsigned x = 0; x < gx; ++x) {
        blockIdx = {x, y, 0};
        if (talk) { if (block(threads, order)) return 1; }
        else for (unsigned t = 0; t < threads; ++t) { threadIdx.x = t; kernel(given); }
    }
    return 0;
}
"""


class ShimError(RuntimeError):
    """The text does not compile, or its threads do not meet."""


def available() -> bool:
    """Whether there is a g++."""
    return shutil.which("g++") is not None


class HostModule:
    """Compiled kernels.  `launch(kernel, arrays)` executes one; arrays as `Kernel.arguments`, written in place."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        parts = [PREAMBLE]
        for k in {k.name: k for k in kernels}.values():
            casts = ", ".join(f"({t}*)a[{n}]" for n, t in enumerate(k.arguments))
            parts += [k.text, f'extern "C" void call_{k.name}(void** a) {{ {k.name}({casts}); }}\n']
        with tempfile.TemporaryDirectory(prefix="shardproof-shim-") as folder:
            source, target = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
            source.write_text("".join(parts))
            done = subprocess.run(
                ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", "-w", str(source), "-o", str(target)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise ShimError(done.stderr[-2000:])
            self._library = ctypes.CDLL(str(target))

    def launch(self, kernel: Kernel, arrays: Sequence[Array], order: int = 0) -> None:
        """One launch.  `order` 0, 1: threads of a block take turns ascending, descending; more: shuffled with this
        seed.

        Raises `ShimError` if some threads of a block ended while others waited, `KernelTextError` for misaligned
        arrays.
        """
        check_arguments(kernel, [a.ctypes.data for a in arrays])
        if not all(a.flags.c_contiguous for a in arrays):
            raise KernelTextError(f"{kernel.name}: an array is not in C order")
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        entry = ctypes.cast(getattr(self._library, f"call_{kernel.name}"), ctypes.c_void_p)
        if self._library.shim_run(entry, pointers, *kernel.grid, kernel.block, int(kernel.fibers), order):
            raise ShimError(f"{kernel.name}: some threads of a block ended while others waited for them")


def check_arguments(kernel: Kernel, pointers: Sequence[int]) -> None:
    """Raise `KernelTextError` unless there is one pointer per argument, all aligned for the kernel's vectors."""
    if len(pointers) != len(kernel.arguments):
        raise KernelTextError(f"{kernel.name} takes {len(kernel.arguments)} arrays, got {len(pointers)}")
    if kernel.vector > 1 and any(p % 16 for p in pointers):
        raise KernelTextError(
            f"{kernel.name} accesses 16 bytes at a time, and an array does not start at a multiple of 16"
        )


def empty(shape: Sequence[int], dtype: str) -> Array:
    """An uninitialised array whose memory starts at a multiple of 16 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 16, dtype=np.uint8)
    start = -raw.ctypes.data % 16
    return raw[start : start + size].view(dtype).reshape(tuple(shape))
