"""This module lays a PyTorch module out over a mesh as a plan says, with DTensor; it is copied into exported files.

Every parameter becomes a DTensor in the layout that the plan keeps it in.  A module that has parameters gets hooks: its
first input is brought into the layout that the plan reads, its parameters into the one that the operators take, its
result into the one in which it rests.  `redistribute` changes where elements lie and never a value, and its gradient is
the way back, so that any placement gives the numbers of one process; the plan decides what is moved.  A linear layer is
taken apart: where the plan leaves its product partial, the sum is made before the bias is added, not after.

Nothing here is imported from shardproof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication

if TYPE_CHECKING:
    Plan = Mapping[str, Any]  # what the exported file holds: see `dtensor.document`


def plan_mesh(plan: Plan, device_type: str) -> DeviceMesh:
    """The mesh of the plan over all ranks; rank r is device r of the plan."""
    names, sizes = zip(*plan["mesh"], strict=True)
    return init_device_mesh(device_type, sizes, mesh_dim_names=names)


def plan_module(plan: Plan, module: nn.Module, mesh: DeviceMesh, whole: bool = True) -> nn.Module:
    """`module`, its parameters distributed, with the plan's redistributions as hooks.

    `whole`: inputs are whole tensors, equal on all ranks, and so are results; otherwise both are DTensors.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    missing = [name for name in plan["parameters"] if name not in named]
    if missing:
        raise ValueError(f"the module has no parameter {missing[0]!r}, which the plan places; is it another model?")
    for name, parameter in named.items():
        split = plan["parameters"].get(name)
        if split is not None and tuple(split["shape"]) != tuple(parameter.shape):
            raise ValueError(f"parameter {name!r} has shape {tuple(parameter.shape)}, in the plan {split['shape']}")
    _distribute(plan, module, mesh)
    for name, layouts in plan["modules"].items():
        _hook(module.get_submodule(name), layouts, mesh)
    module.register_forward_pre_hook(_Enter(mesh, whole), with_kwargs=True, prepend=True)
    if whole:
        module.register_forward_hook(_whole_results)
    return _Planned(module)


def _distribute(plan: Plan, module: nn.Module, mesh: DeviceMesh) -> None:
    """Parameters and buffers become DTensors, tied ones stay one."""
    made: dict[int, nn.Parameter] = {}
    everywhere = [Replicate()] * mesh.ndim
    for path, part in module.named_modules(remove_duplicate=False):
        for key, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            if isinstance(parameter, DTensor):
                continue
            split = plan["parameters"].get(f"{path}.{key}" if path else key)
            if id(parameter) not in made:
                placements = everywhere if split is None else placed(split["splits"], [], None, mesh)
                spread = distribute_tensor(parameter.detach(), mesh, placements, src_data_rank=None)
                made[id(parameter)] = nn.Parameter(spread, requires_grad=parameter.requires_grad)
            part.register_parameter(key, made[id(parameter)])
        for key, buffer in part.named_buffers(recurse=False):
            if not isinstance(buffer, DTensor):
                part._buffers[key] = DTensor.from_local(buffer, mesh, everywhere, run_check=False)


class _Planned(nn.Module):  # type: ignore[misc]
    """The module, called where plain tensors that its code makes count as equal on all ranks."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: object, **named: object) -> object:
        with implicit_replication():
            return self.module(*inputs, **named)


class _Enter:
    """Whole tensors become DTensors that every rank holds."""

    def __init__(self, mesh: DeviceMesh, whole: bool) -> None:
        self.mesh, self.whole = mesh, whole

    def __call__(
        self, module: nn.Module, inputs: tuple[object, ...], named: dict[str, object]
    ) -> tuple[object, object]:
        def spread(value: object) -> object:
            if self.whole and isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
                return DTensor.from_local(value, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
            return value

        return _each(spread, inputs), _each(spread, named)


def _whole_results(module: nn.Module, inputs: object, result: object) -> object:
    return _each(lambda value: value.full_tensor() if isinstance(value, DTensor) else value, result)


def _each(change: Callable[[object], object], value: object) -> Any:
    """`change` on every tensor of tuples, lists and dictionaries."""
    from torch.utils._pytree import tree_map

    return tree_map(change, value)


def _hook(part: nn.Module, layouts: Mapping[str, Any], mesh: DeviceMesh) -> None:
    if type(part) is nn.Linear:
        part.forward = _linear(part, layouts, mesh)
        return
    if isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        part.forward = _convolution(part, layouts, mesh)
        return
    reads = layouts["reads"]

    def enter(module: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...]:
        ready = [to(x, held, mesh) for x, held in zip(inputs, reads, strict=False)]
        return (*ready, *inputs[len(ready) :])

    def leave(module: nn.Module, inputs: object, result: object) -> object:
        return to(result, layouts["result"], mesh)

    part.register_forward_pre_hook(enter)
    part.register_forward_hook(leave)


def _linear(part: nn.Linear, layouts: Mapping[str, Any], mesh: DeviceMesh) -> Callable[[torch.Tensor], torch.Tensor]:
    own = dict(layouts["parameters"])

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = to(x, layouts["reads"][0] if layouts["reads"] else None, mesh)
        y = nn.functional.linear(x, to(part.weight, own.get("weight"), mesh))
        if part.bias is not None:
            y = to(y, layouts["product"], mesh)
            y = y + to(part.bias, own.get("bias"), mesh)
        return to(y, layouts["result"], mesh)

    return forward


def _convolution(part: Any, layouts: Mapping[str, Any], mesh: DeviceMesh) -> Callable[[torch.Tensor], torch.Tensor]:
    """DTensor's convolutions are right where the batch alone is split, evenly: anything else is gathered."""

    def forward(x: Any) -> Any:
        held = layouts["reads"][0] if layouts["reads"] else None
        whole = [Replicate()] * mesh.ndim
        if isinstance(x, DTensor):
            splits = None if held is None else unfolded(held["splits"], held["digits"], tuple(x.shape), mesh)
            parts = 1
            for name, size in zip(mesh.mesh_dim_names or (), mesh.shape, strict=True):
                parts *= size if splits is not None and name in splits[0] else 1
            even = splits is not None and x.shape[0] % parts == 0
            batch = [splits[0], *([] for _ in x.shape[1:])] if splits is not None and even else [[] for _ in x.shape]
            x = x.redistribute(mesh, placed(batch, [], None, mesh))
        bias = None if part.bias is None else part.bias.redistribute(mesh, whole)
        return to(part._conv_forward(x, part.weight.redistribute(mesh, whole), bias), layouts["result"], mesh)

    return forward


def to(value: Any, held: Mapping[str, Any] | None, mesh: DeviceMesh) -> Any:
    """The DTensor in the layout that the plan says; anything else, and what cannot be said of its shape, as it is."""
    if held is None or not isinstance(value, DTensor):
        return value
    splits = unfolded(held["splits"], held["digits"], tuple(value.shape), mesh)
    return value if splits is None else value.redistribute(mesh, placed(splits, held["partial"], held["combine"], mesh))


def placed(splits: list[list[str]], partial: list[str], combine: str | None, mesh: DeviceMesh) -> list[Placement]:
    """One placement per mesh dimension."""
    out: list[Placement] = []
    for name in mesh.mesh_dim_names or ():
        at = [k for k, names in enumerate(splits) if name in names]
        out.append(Shard(at[0]) if at else Partial(combine or "sum") if name in partial else Replicate())
    return out


def unfolded(
    splits: list[list[str]], digits: list[int], shape: tuple[int, ...], mesh: DeviceMesh
) -> list[list[str]] | None:
    """Cuts of the dimensions of `shape`, of which `digits` are parts in row-major order, or None if it has none.

    A later digit of a dimension may be cut only where every digit before it is cut into single positions.
    """
    out: list[list[str]] = []
    size = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))
    groups = _groups(digits, shape)
    if groups is None:
        return None
    for group in groups:
        names: list[str] = []
        whole = True
        for i in group:
            parts = 1
            for name in splits[i]:
                parts *= size[name]
            if splits[i] and not (whole and digits[i] % parts == 0):
                return None
            names += splits[i]
            whole = whole and parts == digits[i]
        out.append(names)
    return out


def _groups(digits: list[int], shape: tuple[int, ...]) -> list[list[int]] | None:
    """Positions of the digits that make up every dimension of `shape`."""
    out: list[list[int]] = []
    i = 0
    for n in shape:
        group, size = [], 1
        while i < len(digits) and (size < n or digits[i] == 1):
            group.append(i)
            size *= digits[i]
            i += 1
        if size != n:
            return None
        out.append(group)
    return out if i == len(digits) else None


def plan_optimizer(
    plan: Plan, module: nn.Module, mesh: DeviceMesh, kind: type[torch.optim.Optimizer], **options: Any
) -> PlannedOptimizer:
    """An optimizer of `kind` that keeps its state in the plan's layouts."""
    return PlannedOptimizer(plan, module, mesh, kind, options)


class PlannedOptimizer:
    """Steps an optimizer on the layouts in which the plan keeps its moments.

    Where they are those of the parameter, the optimizer holds the parameter itself.  Where the plan cuts the moments
    finer (ZeRO), it holds a shard: gradients are brought to the shards (a reduce-scatter where they are partial), and
    the new values back to the parameter (an all-gather).
    """

    def __init__(
        self,
        plan: Plan,
        module: nn.Module,
        mesh: DeviceMesh,
        kind: type[torch.optim.Optimizer],
        options: Mapping[str, Any],
    ) -> None:
        self.shards: list[tuple[nn.Parameter, nn.Parameter]] = []
        held = []
        for name, parameter in _named(module):
            kept = plan["state"].get(name)
            target = None if kept is None else tuple(placed(kept["splits"], [], None, mesh))
            if target is None or not isinstance(parameter, DTensor) or target == tuple(parameter.placements):
                held.append(parameter)
                continue
            shard = nn.Parameter(parameter.detach().redistribute(mesh, target), requires_grad=parameter.requires_grad)
            self.shards.append((parameter, shard))
            held.append(shard)
        self.optimizer = kind([p for p in held if p.requires_grad], **options)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.optimizer.zero_grad()
        for parameter, _ in self.shards:
            parameter.grad = None

    def step(self) -> None:
        """One step."""
        for parameter, shard in self.shards:
            if isinstance(parameter.grad, DTensor) and isinstance(shard, DTensor):
                shard.grad = parameter.grad.redistribute(shard.device_mesh, shard.placements)
        self.optimizer.step()
        with torch.no_grad():
            for parameter, shard in self.shards:
                if isinstance(parameter, DTensor) and isinstance(shard, DTensor):
                    parameter.copy_(shard.redistribute(parameter.device_mesh, parameter.placements))


def _named(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters by the names of the module that was planned."""
    inner = module.module if isinstance(module, _Planned) else module
    yield from inner.named_parameters()
