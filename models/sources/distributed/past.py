"""Sees what a PyTorch program does past every operator: contents that it reads on the host, memory that it gives back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .recorder import Recorder

HOST = frozenset({"tolist", "numpy", "__array__", "__dlpack__", "__repr__", "__format__"})
"""Methods that read a tensor's contents past every operator."""


class HostReads(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """While it is entered, nothing but constants is read on the host past the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in HOST and type(args[0]) in (torch.Tensor, torch.nn.Parameter):
            self.recorder.require_constant(args[0])
        return func(*args, **(kwargs or {}))


@contextmanager
def seeing_freed(recorder: Recorder) -> Iterator[None]:
    """While memory that is given back, by resizing a storage past every operator (FSDP2 does), is seen."""
    before = torch.UntypedStorage.resize_

    def resize(self: torch.UntypedStorage, size: int) -> object:
        if size < self.nbytes():
            recorder.free(self)
        return before(self, size)

    torch.UntypedStorage.resize_ = resize  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = before  # type: ignore[method-assign]
