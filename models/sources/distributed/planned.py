"""Makes the two programs that `equal` compares of a model and an exported plan: one device, and a rank of its job.

The model is what NAME of a file returns, (module, example inputs); the job is the exported file's: `parallelize`,
and where the plan trains `make_optimizer` and `train_step`.  One device runs the module as it is, with the loss and the
optimizer that the file names, written here again with torch alone.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ...text import InputError

HIGHEST = (64, 16, 4, 2)
"""Below which whole numbers are drawn that are all the same: the first bound under which the model runs."""

Made = tuple[Callable[..., object], object]


@dataclass(frozen=True)
class PlannedJob:
    """`layout`: the exported file; `module` and `inputs`: one device's, never changed; `target`: of the plan's loss."""

    layout: ModuleType
    module: torch.nn.Module
    inputs: tuple[Any, ...] | dict[str, Any]
    target: torch.Tensor | None
    functions: ClassVar[tuple[str, ...]] = ("PLAN", "make_mesh", "parallelize", "make_optimizer", "train_step")
    """What such a file has."""

    @property
    def ranks(self) -> int:
        """Devices of the plan's mesh."""
        return prod(int(n) for _, n in self.layout.PLAN["mesh"])

    @property
    def stages(self) -> int:
        """Stages that the plan cuts the model into."""
        return 1

    @property
    def program(self) -> Any:
        """Loss and optimizer of the plan; None where the file has none."""
        return self.layout.PLAN.get("program")

    @property
    def trains(self) -> bool:
        """Whether the plan has a step with an optimizer."""
        return self.program is not None and bool(self.program["trained"])

    def one_device(self, step: bool) -> Made:
        """What one device calls, and with what; `step`: the plan's step of training, else a forward pass."""
        module = copy.deepcopy(self.module)
        if not step:
            return module, self._given(None)
        program = self.program
        steps = _optimizer(program["optimizer"], module)

        def train(target: Any, *inputs: Any, **named: Any) -> dict[str, object]:
            loss = _loss(program["loss"], module(*inputs, **named), target)
            loss.backward()
            steps()
            return {"loss": loss, **dict(module.named_parameters())}

        return train, self._given(self.target, True)

    def rank(self, step: bool, whole: bool = True) -> Made:
        """The same of a rank, inside its process group; `whole`: it gathers the results of a forward pass."""
        mesh = self.layout.make_mesh("cpu")
        module = self.layout.parallelize(copy.deepcopy(self.module), mesh)
        if not step and whole:
            return module, self._given(None)
        if not step:
            return lambda *inputs, **named: module.run(inputs, named), self._given(None)
        steps, train_step = self._steps(module, mesh), self.layout.train_step
        loss_of, kinds = self.layout.PLAN["program"]["loss"], inspect.Parameter
        if any(p.kind is kinds.VAR_POSITIONAL for p in inspect.signature(self.module.forward).parameters.values()):

            def loop(target: Any, *inputs: Any) -> dict[str, object]:  # `train_step` gives arguments by name
                loss = _loss(loss_of, module(*inputs), target)
                loss.backward()
                steps.step()
                return {"loss": loss, **dict(module.named_parameters())}

            return loop, self._given(self.target, True)

        def train(target: Any, *inputs: Any, **named: Any) -> dict[str, object]:
            loss = train_step(module, steps, *inputs, target=target, **named)
            return {"loss": loss, **dict(module.named_parameters())}

        return train, self._given(self.target, True)

    def _steps(self, module: torch.nn.Module, mesh: Any) -> Any:
        """The plan's optimizer.  Its weights may lie elsewhere than the module's, and be sent there before anything is
        written down, when nothing is sent: they are cut out of the whole ones.
        """
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            steps = self.layout.make_optimizer(module, mesh)
            own_shards(steps, self.module, mesh)
        return steps

    def _given(self, target: torch.Tensor | None, first: bool = False) -> object:
        if isinstance(self.inputs, Mapping):
            return {"target": target, **self.inputs} if first else dict(self.inputs)
        return (target, *self.inputs) if first else self.inputs


@contextmanager
def exchanging() -> Iterator[None]:
    """DTensors are cut anew by an all-to-all, as they are on GPUs; on a mesh of CPUs PyTorch gathers them whole."""
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.tensor import placement_types

    def exchange(local: Any, gather_dim: int, shard_dim: int, mesh: Any, mesh_dim: int) -> Any:
        parts = torch.stack(local.chunk(mesh.size(mesh_dim), shard_dim))
        taken = functional.all_to_all_single(parts, None, None, (mesh, mesh_dim))
        taken = taken.wait() if hasattr(taken, "wait") else taken
        return torch.cat(taken.unbind(0), gather_dim).contiguous()

    known = placement_types.shard_dim_alltoall
    placement_types.shard_dim_alltoall = exchange
    try:
        yield
    finally:
        placement_types.shard_dim_alltoall = known


def planned_job(
    model: Callable[[], object], layout: ModuleType, place: str, kind: type[PlannedJob] = PlannedJob, seed: int = 0
) -> PlannedJob:
    """The job of an exported file.  `model`: returns (module, example inputs).  Raises `InputError` for a file that is
    no export of a plan, and for what is no model.
    """
    missing = [n for n in kind.functions if not hasattr(layout, n)]
    if missing:
        raise InputError(f"{place}: has no {missing[0]!r}: write a file with `shardproof export PLAN --to dtensor`")
    torch.manual_seed(seed)
    made = model()
    if not isinstance(made, tuple) or len(made) < 2 or not isinstance(made[0], torch.nn.Module):
        raise InputError("the model beside a plan is a function that returns (module, example inputs)")
    module = _told_apart(made[0], seed)
    inputs = _drawn(module, made[1], seed)
    found = kind(layout, module, inputs, None)
    if not found.trains:
        return found
    return replace(found, target=_target(found.program["loss"], module, inputs, seed))


def own_shards(steps: Any, module: torch.nn.Module, mesh: Any) -> None:
    """Weights that an optimizer holds elsewhere than the module, cut out of the whole ones."""
    from torch.distributed.tensor import distribute_tensor

    whole = dict(module.named_parameters(remove_duplicate=False))
    for name, _, shard in getattr(steps, "shards", ()):
        own = distribute_tensor(whole[name].detach(), mesh, shard.placements, src_data_rank=None)
        shard.to_local().copy_(own.to_local())


def _call(module: torch.nn.Module, inputs: Any) -> Any:
    with torch.no_grad():
        copied = copy.deepcopy(module)
        return copied(**inputs) if isinstance(inputs, Mapping) else copied(*inputs)


def _told_apart(module: torch.nn.Module, seed: int) -> torch.nn.Module:
    """With ones and zeros, as norms begin with, replaced: values must tell parameters apart, and the proof is about all
    values.
    """
    generator = torch.Generator().manual_seed(seed)
    found = copy.deepcopy(module)
    with torch.no_grad():
        for tensor in (*found.parameters(), *found.buffers()):
            if tensor.is_floating_point() and tensor.numel() > 1 and bool((tensor == tensor.reshape(-1)[0]).all()):
                tensor += torch.rand(tensor.shape, generator=generator).to(tensor.dtype) / 2
    return found


def _drawn(module: torch.nn.Module, given: Any, seed: int) -> Any:
    """Inputs, drawn where all elements are the same: values must tell tensors and rows apart."""
    inputs = (
        dict(given) if isinstance(given, Mapping) else tuple(given) if isinstance(given, tuple | list) else (given,)
    )
    for bound in HIGHEST:
        generator = torch.Generator().manual_seed(seed)

        def one(x: Any, bound: int = bound, generator: torch.Generator = generator) -> Any:
            if not isinstance(x, torch.Tensor) or x.numel() < 2 or bool((x != x.reshape(-1)[0]).any()):
                return x
            if x.is_floating_point():
                return torch.randn(x.shape, generator=generator, dtype=x.dtype)
            return torch.randint(0, bound, x.shape, generator=generator).to(x.dtype) if x.dtype != torch.bool else x

        drawn = tree_map(one, inputs)
        try:
            _call(module, drawn)
        except (IndexError, RuntimeError):
            continue
        return drawn
    return inputs


def _output(loss: Mapping[str, Any], result: Any) -> torch.Tensor:
    found = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and list(x.shape) == list(loss["shape"])]
    if len(found) != 1:
        raise InputError(
            f"the plan's loss is of an output of shape {loss['shape']}; the model returns {len(found)} such"
        )
    return found[0]


def _target(loss: Mapping[str, Any], module: torch.nn.Module, inputs: Any, seed: int) -> torch.Tensor | None:
    if loss["kind"] == "returned":
        return None
    generator = torch.Generator().manual_seed(seed + 1)
    out = _output(loss, _call(module, inputs))
    if loss["kind"] == "squared-error":
        return torch.randn(out.shape, generator=generator, dtype=out.dtype)
    return torch.randint(0, out.shape[-1], out.shape[:-1], generator=generator)


def _loss(loss: Mapping[str, Any], result: Any, target: Any) -> torch.Tensor:
    """The plan's loss on one device."""
    match loss["kind"]:
        case "returned":
            found = getattr(result, "loss", result)
            return next(x for x in tree_leaves(found) if isinstance(x, torch.Tensor) and x.numel() == 1)
        case "squared-error":
            return torch.nn.functional.mse_loss(_output(loss, result), target)
        case "cross-entropy":
            return torch.nn.functional.cross_entropy(_output(loss, result).movedim(-1, 1), target)
        case _:
            return torch.nn.functional.nll_loss(_output(loss, result).movedim(-1, 1), target)


def _optimizer(planned: Mapping[str, Any], module: torch.nn.Module) -> Callable[[], object]:
    """One step of the optimizer that the file names, with its numbers."""
    named = dict(module.named_parameters())
    groups = [{"params": [named[n] for n in group["weights"]], **group["numbers"]} for group in planned["groups"]]
    steps = getattr(torch.optim, planned["kind"])(groups)
    held = [p for group in groups for p in group["params"]]

    def step() -> None:
        if planned["clip"] is not None:
            torch.nn.utils.clip_grad_norm_(held, planned["clip"])
        steps.step()

    return step
