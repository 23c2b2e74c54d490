"""Sees what a PyTorch program does past every operator: contents read on the host, memory that is given back."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...equality.captured import Unreadable
from .recorder import Recorder, shapes_only

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
        if func is torch.nn.functional.one_hot:
            return _one_hot(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`one_hot` of classes that lie in range, which PyTorch reads on the host to see; their number, where it is not
    said, hangs on them.
    """
    if num_classes <= 0 or tensor.dtype != torch.int64 or not isinstance(tensor, torch.Tensor):
        return torch.nn.functional.one_hot(tensor, num_classes)
    return tensor.unsqueeze(-1).eq(torch.arange(num_classes)).to(torch.int64)


class SetUp(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """While it is entered, before anything is written down, ranks exchange no real numbers: nothing is sent, so that
    what they would receive is not there.  Copies of the first rank's are let through, as ranks draw the same numbers.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if shapes_only(args, kwargs or {}):
            return func(*args, **(kwargs or {}))
        if any(t is not torch.Tensor and t is not torch.nn.Parameter for t in types):
            return NotImplemented
        space, _, name = func._schema.name.partition("::")
        sends = space in ("c10d", "_c10d_functional", "_c10d_functional_autograd")
        copies = name.strip("_") in ("broadcast", "barrier", "wait_tensor", "wrap_tensor_autograd")
        tensors = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)] if sends and not copies else []
        if any(t.is_floating_point() for t in tensors):
            raise Unreadable(
                f"collective {name} ({Recorder().place()}) runs before what is called is called, when nothing is sent:"
                " move it into the function that is called"
            )
        return func(*args, **(kwargs or {}))


@contextmanager
def scattering_own() -> Iterator[None]:
    """While it is entered, before anything is written down, a rank takes its part of its own tensor where DTensor would
    scatter the first rank's, as ranks draw the same numbers.
    """
    import torch.distributed as dist
    from torch.distributed.tensor import placement_types

    def scatter(output: Any, parts: Any, mesh: Any, mesh_dim: int = 0, *, group_src: int = 0) -> None:
        if not output.is_meta:
            output.copy_(parts[dist.get_rank(mesh.get_group(mesh_dim))])

    known = placement_types.mesh_scatter
    placement_types.mesh_scatter = scatter
    try:
        yield
    finally:
        placement_types.mesh_scatter = known


def forget_ranks() -> None:
    """DTensor's caches emptied: what they keep has the mesh of the rank that ran before, and its place there, which
    would be taken for the next rank's.
    """
    for name, module in sorted(sys.modules.items()):
        if not name.startswith(("torch.distributed.tensor", "torch.distributed.device_mesh")):
            continue
        held = list(vars(module).values())
        for value in [*held, *(v for c in held if isinstance(c, type) for v in vars(c).values())]:
            value = getattr(value, "__func__", value)  # a static method's
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()


@contextmanager
def seeing_freed(recorder: Recorder) -> Iterator[None]:
    """While memory that is given back, by resizing a storage past every operator (FSDP2 does), is seen."""
    before = torch.UntypedStorage.resize_

    def resize(self: torch.UntypedStorage, size: int) -> object:
        if size < self.nbytes():
            recorder.free(self)
        return before(self, size)

    torch.UntypedStorage.resize_ = resize
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = before
