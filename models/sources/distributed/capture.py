"""Runs a PyTorch program once, on one device or as one rank of many, and writes it down for `shardproof equal`.

Ranks run one after another in this process, under a process group of the right size that sends nothing (PyTorch's
`fake` backend): shapes are those of the job, values after the first collective are made of the rank's own.  On one
thread: sums are added up in the same order on every machine, and threads that wait for small tensors cost most of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from ...equality.captured import Captured, Stated, Unreadable, runs_of
from ...equality.program import RankProgram
from .choices import keeping_choices
from .collectives import noting_factors
from .needed import without_waste
from .past import HostReads, SetUp, forget_ranks, scattering_own, seeing_freed
from .pipelining import voting_alone
from .recorder import Recorder
from .shared import give
from .storage import numbers_of
from .waits import seeing_futures

__all__ = ["Captured", "Unreadable", "capture"]


def capture(make: Callable[..., object], rank: int | None, ranks: int, gradients: bool) -> Captured:
    """Run `make()`, or `make(rank, ranks)` as one rank, and what it returns: what is called, and its inputs.

    `gradients`: those of all inputs and parameters that require them (of all floating-point inputs where none does) are
    outputs too, of the one number that comes out, or of all outputs times cotangents that are further inputs.  Raises
    `Unreadable`, naming operator and line.
    """
    with _one_thread(), _group(rank, ranks), keeping_choices(), noting_factors(), seeing_futures(), voting_alone():
        try:
            with SetUp(), scattering_own():
                called, inputs = _made(make() if rank is None else make(rank, ranks))
            return _run(called, inputs, gradients)
        except Unreadable:
            raise
        except Exception as error:
            raise Unreadable(
                f"{'SINGLE' if rank is None else f'rank {rank}'}: {type(error).__name__}: {error}"
            ) from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch runs on one thread."""
    many = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(many)


@contextmanager
def _group(rank: int | None, ranks: int) -> Iterator[None]:
    """A process group of so many ranks, of which this process is one."""
    if rank is None:
        yield
        return
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise Unreadable("a process group is there already: SINGLE and DISTRIBUTED must not make the default one")
    forget_ranks()
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _made(found: object) -> tuple[Callable[..., object], object]:
    if not isinstance(found, tuple | list) or len(found) != 2 or not callable(found[0]):
        raise Unreadable("must return what is called and its inputs: (callable, inputs)")
    return found[0], found[1]


def _run(called: Callable[..., object], inputs: object, gradients: bool) -> Captured:
    recorder, wanted = Recorder(), dict[str, torch.Tensor]()
    stated, placed = dict[str, Stated](), dict[str, Stated]()
    held = _reachable(called)
    for name, tensor in held.items():
        stated |= _stated(name, tensor)
    kept = give(recorder, {name: _local(tensor) for name, tensor in held.items()})
    wanted |= {name: held[name] for name in kept if held[name].requires_grad and held[name].is_leaf}
    args, kwargs = _arguments(inputs)
    new = dict[int | str, Any]()
    asked = any(isinstance(t, torch.Tensor) and t.requires_grad for t in tree_leaves((args, kwargs)))
    anyway = gradients and not wanted and not asked
    for name, key, value in [(f"input {i}", i, v) for i, v in enumerate(args)] + [(k, k, v) for k, v in kwargs.items()]:
        new[key] = _input(recorder, name, value, anyway, wanted)
        for inner, tensor in _named(value, name):
            stated |= _stated(inner, tensor)
    before = {name: (tensor.grad, _copied(tensor.grad)) for name, tensor in wanted.items()}
    for tensor in wanted.values() if gradients else ():
        tensor.grad = None
    with recorder, HostReads(recorder), seeing_freed(recorder), sdpa_kernel(SDPBackend.MATH):
        out = called(*(new[i] for i in range(len(args))), **{k: new[k] for k in kwargs})
        outputs = dict(_named(out, "output"))
        if not outputs:
            raise Unreadable("returns no tensor")
        whole = {name: _reduced(t) for name, t in outputs.items()}
        results = {name: _local(t) for name, t in whole.items()}
        numbers = {name: recorder.number(t) for name, t in results.items()}
        if gradients:
            for name, grad in _gradients(recorder, outputs, wanted).items():
                placed |= _stated(name, grad)
                results[name] = _local(grad)
                numbers[name] = recorder.number(results[name])
    for name, tensor in whole.items():
        placed |= _stated(name, tensor)
    program = without_waste(
        RankProgram(tuple(recorder.sources), tuple(recorder.steps), tuple(numbers.items()), tuple(recorder.tensors))
    )
    arrays = {s.number: _array(recorder.arrays[s.number]) for s in program.sources}
    received = {number: _array(tensor) for number, tensor in recorder.received.items()}
    given = tuple(_array(t).copy() for t in results.values())
    _put_back(recorder, {name: _local(held[name]) for name in kept}, before, wanted)
    events = tuple(recorder.waits.events)
    return Captured(program, arrays, received, given, recorder.waits.race, events, stated, placed)


def _copied(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else _local(tensor.detach()).clone()


def _put_back(
    recorder: Recorder,
    held: Mapping[str, torch.Tensor],
    gradients: Mapping[str, tuple[torch.Tensor | None, torch.Tensor | None]],
    wanted: Mapping[str, torch.Tensor],
) -> None:
    """What the program holds as it was: another rank, in a process of its own, would begin with that too."""
    numbers = {s.name: s.number for s in recorder.sources}
    for name, tensor in held.items():
        was = recorder.arrays[numbers[name]]
        now = numbers_of(tensor.detach())
        if now.untyped_storage().nbytes() and now.shape == was.shape and not torch.equal(now, was):
            now.copy_(was)
    for name, (gradient, was_there) in gradients.items():
        wanted[name].grad = gradient
        if gradient is not None and was_there is not None:
            _local(gradient.detach()).copy_(was_there)


def _stated(name: str, tensor: torch.Tensor) -> dict[str, Stated]:
    """Where a DTensor says that this rank's part lies; nothing of other tensors, of parts of sums, and of ranks that
    have none.
    """
    placements, mesh = getattr(tensor, "placements", None), getattr(tensor, "device_mesh", None)
    if placements is None or mesh is None or any(p.is_partial() for p in placements):
        return {}
    at = mesh.get_coordinate()
    if at is None:
        return {}
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    places = [torch.arange(n) for n in tensor.shape]
    for one, size, mine in zip(placements, mesh.shape, at, strict=True):
        if isinstance(one, Replicate):
            continue
        if not isinstance(one, Shard | _StridedShard):
            raise Unreadable(f"{name}: a placement {one} is not known here")
        along = _StridedShard(0, split_factor=one.split_factor) if isinstance(one, _StridedShard) else Shard(0)
        places[one.dim] = along._split_tensor(places[one.dim], size, with_padding=False, contiguous=False)[0][mine]
    runs = tuple(runs_of(p.tolist()) for p in places)
    return {name: Stated(tuple(tensor.shape), runs, mesh.size() == dist.get_world_size())}


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor of this rank."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.wait() if hasattr(tensor, "wait") else tensor


def _reduced(tensor: torch.Tensor) -> torch.Tensor:
    """A DTensor that stands for the sum of what ranks have, as that sum: what it is, whoever reads it."""
    placements = getattr(tensor, "placements", ())
    if not any(p.is_partial() for p in placements):
        return tensor
    from torch.distributed.tensor import Replicate

    return tensor.redistribute(placements=[Replicate() if p.is_partial() else p for p in placements])


def _array(tensor: torch.Tensor) -> NDArray[np.generic]:
    tensor = numbers_of(tensor.detach())
    return np.asarray((tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy())


def _arguments(inputs: object) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return [], {str(k): v for k, v in inputs.items()}
    return (list(inputs) if isinstance(inputs, tuple | list) else [inputs]), {}


def _input(recorder: Recorder, name: str, value: Any, anyway: bool, wanted: dict[str, torch.Tensor]) -> Any:
    """An input, its tensors in place of those that are given, so that nothing of the user's is written into."""
    if isinstance(value, torch.Tensor):
        if hasattr(value, "to_local"):
            recorder.source(_local(value), name, "input")
            return value
        known = recorder.memory.find(value)
        if known is not None:  # a parameter that is passed in
            return value
        tensor = value.detach().clone()
        if value.requires_grad or (anyway and value.is_floating_point()):
            tensor.requires_grad_(True)
            wanted[name] = tensor
        recorder.source(tensor, name, "input")
        return tensor
    if isinstance(value, tuple | list):
        return type(value)(_input(recorder, f"{name}.{i}", v, anyway, wanted) for i, v in enumerate(value))
    if isinstance(value, dict):
        return {k: _input(recorder, f"{name}.{k}", v, anyway, wanted) for k, v in value.items()}
    return value


def _named(out: object, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(out, torch.Tensor):
        yield name, out
    elif isinstance(out, Mapping):
        for key, value in out.items():
            yield from _named(value, f"{name}.{key}")
    elif isinstance(out, tuple | list):
        for i, value in enumerate(out):
            yield from _named(value, f"{name}.{i}")


def _gradients(
    recorder: Recorder, outputs: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    for name, t in [*outputs.items(), *wanted.items()]:
        if t.is_complex() and t.requires_grad:
            raise Unreadable(f"--grad: {name} is complex: gradients of complex numbers are not known here")
    real = {n: t for n, t in outputs.items() if t.is_floating_point() and t.requires_grad}
    if not real:
        raise Unreadable("--grad: no output depends on anything that has a gradient")
    if len(real) == 1 and next(iter(real.values())).numel() == 1:
        next(iter(real.values())).backward()
    else:
        with torch.utils._python_dispatch._disable_current_modes():
            generator = torch.Generator().manual_seed(0)
            given = {n: torch.randn(t.shape, generator=generator).to(t.dtype) for n, t in real.items()}
            for name, tensor in given.items():
                recorder.source(tensor, f"cotangent {name}", "input")
        torch.autograd.backward(list(real.values()), [given[n] for n in real])
    found = {}
    for name, tensor in wanted.items():
        grad = tensor.grad
        found[f"grad {name}"] = torch.zeros_like(tensor) if grad is None else _reduced(grad)
    return found


def _reachable(called: Callable[..., object]) -> dict[str, torch.Tensor]:
    """Parameters, buffers and tensors that what is called holds, by name."""
    found, seen = dict[str, torch.Tensor](), set[int]()

    def look(value: object, name: str, depth: int) -> None:
        if id(value) in seen or depth > 3:
            return
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            rows = [*value.named_parameters(), *value.named_buffers()]
            for key, tensor in rows:
                found.setdefault(f"{name}.{key}" if name else key, tensor)
        elif isinstance(value, torch.Tensor):
            found.setdefault(name or "tensor", value)
        elif isinstance(value, functools.partial):
            look(value.func, name, depth)
            for i, arg in enumerate(value.args):
                look(arg, f"{name}{i}", depth + 1)
            for key, arg in value.keywords.items():
                look(arg, key, depth + 1)
        elif inspect.ismethod(value):
            look(value.__self__, name, depth)
        elif inspect.isfunction(value):
            inside = inspect.getclosurevars(value)
            for key, arg in {**inside.globals, **inside.nonlocals}.items():
                look(arg, "" if isinstance(arg, torch.nn.Module) else key, depth + 1)
            for key, parameter in inspect.signature(value).parameters.items():
                look(parameter.default, key, depth + 1)
        elif isinstance(value, Mapping):
            for key, arg in value.items():
                look(arg, f"{name}.{key}" if name else str(key), depth + 1)
        elif isinstance(value, tuple | list):
            for i, arg in enumerate(value):
                look(arg, f"{name}.{i}", depth + 1)
        elif hasattr(value, "__dict__") and not inspect.isclass(value) and not inspect.ismodule(value):
            for key, arg in vars(value).items():
                look(arg, f"{name}.{key}" if name else key, depth + 1)

    look(called, "", 0)
    return found
