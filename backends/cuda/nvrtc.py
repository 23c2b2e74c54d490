"""The compile gate: NVRTC through ctypes.  It needs the library (wheel `nvidia-cuda-nvrtc-cu12`), no
GPU and no driver.

Source: NVRTC documentation (nvrtcCreateProgram, nvrtcCompileProgram, nvrtcGetCUBIN, nvrtcGetProgramLog); 30 to 100 ms
per program.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

ARCHITECTURES: Final = ("sm_80", "sm_90")
"""What every generated kernel is compiled for."""


class NvrtcError(RuntimeError):
    """The compiler is missing, or rejected a text; the message is its log."""


@cache
def library() -> ctypes.CDLL:
    """libnvrtc of the wheel, else of the system.  Raises `NvrtcError` if there is none."""
    names = ("libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so")
    folders = [Path(p) / "nvidia/cuda_nvrtc/lib" for p in sys.path if p]
    for candidate in [*(str(folder / n) for folder in folders for n in names if (folder / n).exists()), *names]:
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise NvrtcError("libnvrtc was not found: pip install nvidia-cuda-nvrtc-cu12")


def available() -> bool:
    """Whether there is a compiler."""
    try:
        library()
    except NvrtcError:
        return False
    return True


def compile_cubin(text: str, architecture: str, options: Sequence[str] = ()) -> bytes:
    """Machine code of `text` for `architecture` (sm_80, ..).  Raises `NvrtcError` with the compiler's log."""
    nvrtc, program = library(), ctypes.c_void_p()
    code = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"generated.cu", 0, None, None)
    if code:
        raise NvrtcError(f"nvrtcCreateProgram: error {code}")
    try:
        flags = [f"--gpu-architecture={architecture}", "--std=c++17", *options]
        code = nvrtc.nvrtcCompileProgram(
            program, len(flags), (ctypes.c_char_p * len(flags))(*(f.encode() for f in flags))
        )
        if code:
            raise NvrtcError(
                _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
                .rstrip(b"\0")
                .decode(errors="replace")
            )
        return _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(size: ctypes._NamedFuncPointer, get: ctypes._NamedFuncPointer, program: ctypes.c_void_p) -> bytes:
    length = ctypes.c_size_t()
    size(program, ctypes.byref(length))
    buffer = ctypes.create_string_buffer(length.value)
    get(program, buffer)
    return buffer.raw
