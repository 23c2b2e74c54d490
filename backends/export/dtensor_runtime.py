"""Lays a PyTorch module out over a mesh as a plan says, with DTensor; it is copied into exported files.

Every parameter becomes a DTensor in the layout that the plan keeps it in.  A module that has parameters gets hooks: its
first input is brought into the layout that the plan reads, its parameters into the one that the operators take, its
result into the one in which it rests.  `redistribute` changes where elements lie and never a value, and its gradient is
the way back, so that any placement gives the numbers of one process; the plan decides what is moved.  A linear layer is
taken apart: where the plan leaves its product partial, the sum is made before the bias is added, not after.

The plan's `program` says in which types modules compute and which of them run again in the backward pass
(`dtensor_program`); a file of layouts alone has none.

Nothing here is imported from shardproof.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication

from .dtensor_functions import PLACE, Functions, refresh_weights
from .dtensor_program import Program, check_parameters, recompute

if TYPE_CHECKING:
    Plan = Mapping[str, Any]  # what the exported file holds: see `dtensor.document`


def plan_mesh(plan: Plan, device_type: str) -> DeviceMesh:
    """The mesh of the plan over all ranks; rank r is device r of the plan."""
    names, sizes = zip(*plan["mesh"], strict=True)
    return init_device_mesh(device_type, sizes, mesh_dim_names=names)


def plan_module(
    plan: Plan, module: nn.Module, mesh: DeviceMesh, whole: bool = True, summed: bool = True
) -> PlannedModule:
    """`module`, its parameters distributed, with the plan's reshardings as hooks.

    `whole`: inputs are whole tensors, equal on all ranks, and so are results; otherwise both are DTensors.  `summed`:
    gradients are brought into the parameters' layouts as soon as they are there; otherwise the caller does it.
    """
    named = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers())
    missing = [name for name in plan["parameters"] if name not in named and name not in buffers]
    if missing:
        raise ValueError(f"the module has no parameter {missing[0]!r}, which the plan places; is it another model?")
    for name, parameter in named.items():
        split = plan["parameters"].get(name)
        if split is not None and tuple(split["shape"]) != tuple(parameter.shape):
            raise ValueError(f"parameter {name!r} has shape {tuple(parameter.shape)}, in the plan {split['shape']}")
    program = None
    if plan.get("program") is not None:
        check_parameters(plan["program"], module)
        program = Program(plan["program"])
    functions = Functions(mesh, program)
    _distribute(plan, module, mesh)
    for name, layouts in plan["modules"].items():
        _hook(name, module.get_submodule(name), layouts, functions)
    for name in () if program is None else program.plan["recompute"]:
        recompute(_submodule(module, name), lambda: _again(functions))
    counted = False
    for name, parameter in module.named_parameters():
        kept = plan["state"].get(name)
        if parameter.requires_grad and not _known(module, parameter, plan):
            parameter.register_post_accumulate_grad_hook(_Unplanned(name))
        if program is not None and parameter.requires_grad and not counted and name in program.plan["trained"]:
            parameter.register_post_accumulate_grad_hook(_Counted(program))
            counted = True
        once = program is not None and program.once
        if (
            summed
            and not once
            and (kept is None or placements_of(kept["splits"], [], None, mesh) == list(parameter.placements))
        ):
            parameter.register_post_accumulate_grad_hook(_Summed(name, functions))
    return PlannedModule(module, functions, whole)


def _submodule(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError:
        raise ValueError(
            f"the module has no part {name!r}, which the plan computes again; is it another model?"
        ) from None


@contextlib.contextmanager
def _again(functions: Functions) -> Iterator[None]:
    """Around a forward that runs again in the backward pass."""
    with implicit_replication(), functions:
        yield
    functions.now.clear()
    functions.stale.clear()


class _Counted:
    """Counts backward passes: a trained parameter gets its gradient once in each."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __call__(self, parameter: nn.Parameter) -> None:
        self.program.passes += 1


def _known(module: nn.Module, parameter: nn.Parameter, plan: Plan) -> bool:
    """Whether the plan knows a parameter by one of its names; those that no layout says stay whole on every rank."""
    names = {*plan["parameters"], *plan["whole"]}
    return any(p is parameter and name in names for name, p in module.named_parameters(remove_duplicate=False))


class _Unplanned:
    """A parameter that the plan does not know may stand unused in the module; with a gradient it is another model's."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, parameter: nn.Parameter) -> None:
        raise ValueError(f"parameter {self.name!r} is trained, and the plan does not know it; plan the module as it is")


class _Summed:
    """The gradient of a parameter is brought into the parameter's layout as soon as it is there, once for every
    optimizer; where the plan keeps moments finer (ZeRO), `PlannedOptimizer` brings it into theirs.
    """

    def __init__(self, name: str, functions: Functions) -> None:
        self.name, self.functions = name, functions

    def __call__(self, parameter: nn.Parameter) -> None:
        grad = parameter.grad
        if isinstance(grad, DTensor) and tuple(grad.placements) != tuple(parameter.placements):
            self.functions.here = f"gradient of {self.name}"
            try:
                parameter.grad = grad.redistribute(parameter.device_mesh, parameter.placements)
            finally:
                self.functions.here = ""


def _distribute(plan: Plan, module: nn.Module, mesh: DeviceMesh) -> None:
    """Parameters become DTensors, tied ones stay one.  Buffers stay what they are: equal on all ranks."""
    made: dict[int, nn.Parameter] = {}
    everywhere = [Replicate()] * mesh.ndim
    for path, part in module.named_modules(remove_duplicate=False):
        for key, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            if isinstance(parameter, DTensor):
                continue
            split = plan["parameters"].get(f"{path}.{key}" if path else key)
            if id(parameter) not in made:
                placements = everywhere if split is None else placements_of(split["splits"], [], None, mesh)
                spread = distribute_tensor(parameter.detach(), mesh, placements, src_data_rank=None)
                made[id(parameter)] = nn.Parameter(spread, requires_grad=parameter.requires_grad)
            part.register_parameter(key, made[id(parameter)])
        refresh_weights(part)


class PlannedModule(nn.Module):  # type: ignore[misc]
    """A module that is called as before, and runs as planned.  Parameters, buffers and modules keep their names.

    `whole`: floating-point inputs are whole tensors, equal on all ranks, and so are results; otherwise both are
    DTensors.  Tensors of numbers and truth values are equal on all ranks in any case: a planned module that reads them
    takes its part.  `functions.whole` counts the functions that ran on whole tensors (`dtensor_functions`).
    """

    def __init__(self, module: nn.Module, functions: Functions, whole: bool) -> None:
        super().__init__()
        self.module, self.functions, self.whole = module, functions, whole
        self.train(module.training)

    def forward(self, *inputs: object, **named: object) -> object:
        """What the module returns."""
        result = self.run(inputs, named)

        def leave(value: Any) -> Any:
            return value.full_tensor() if self.whole and isinstance(value, DTensor) else value

        self.functions.here = "results"
        try:
            return _each(leave, result)
        finally:
            self.functions.here = ""

    def run(self, inputs: tuple[object, ...], named: Mapping[str, object]) -> Any:
        """What the module returns, where it lies."""
        program = self.functions.program
        if program is not None:
            program.begins()
            inputs, named = self._narrowed(program, inputs, named)

        def enter(value: Any) -> Any:
            plain = isinstance(value, torch.Tensor) and not isinstance(value, DTensor)
            return self.functions.spread(value) if self.whole and plain and value.is_floating_point() else value

        with implicit_replication(), self.functions:
            result = self.module(*_each(enter, inputs), **_each(enter, dict(named)))
        result = self.functions.current(result)
        self.functions.now.clear()
        self.functions.stale.clear()
        if program is not None and self.training and torch.is_grad_enabled():
            program.ends()
        return result

    def _narrowed(
        self, program: Program, inputs: tuple[object, ...], named: Mapping[str, object]
    ) -> tuple[tuple[object, ...], Mapping[str, object]]:
        """Inputs that the plan reads in the half type only enter in it."""
        names, half = program.plan["narrowed"], program.half
        if not names or half is None:
            return inputs, named

        def cast(x: object) -> object:
            return x.to(half) if isinstance(x, torch.Tensor) and x.dtype == torch.float32 else x

        given = inspect.signature(self.module.forward).bind(*inputs, **named)
        for name in set(given.arguments) & {*names}:
            given.arguments[name] = _each(cast, given.arguments[name])
        return given.args, given.kwargs

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters by the names of the module that was planned."""
        yield from self.module.named_parameters(*args, **options)

    def named_buffers(self, *args: Any, **options: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Buffers by the names of the module that was planned."""
        yield from self.module.named_buffers(*args, **options)

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        """The state of the module that was planned: parameters are DTensors, which distributed checkpoints take."""
        found: dict[str, Any] = self.module.state_dict(*args, **options)
        return found

    def load_state_dict(self, state: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        """Take a state as `state_dict` gives it, or whole tensors, equal on all ranks."""
        own = self.module.state_dict()
        ready = {}
        for name, value in state.items():
            kept = own.get(name)
            if isinstance(kept, DTensor) and isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
                value = distribute_tensor(value, kept.device_mesh, kept.placements, src_data_rank=None)
            ready[name] = value
        return self.module.load_state_dict(ready, *args, **options)


def _each(change: Callable[[object], object], value: object) -> Any:
    """`change` on every tensor of tuples, lists and dictionaries."""
    from torch.utils._pytree import tree_map

    return tree_map(change, value)


def _hook(name: str, part: nn.Module, layouts: Mapping[str, Any], functions: Functions) -> None:
    if functions.program is not None:
        part.register_forward_hook(_Typed(name, layouts["result"], functions.program))
    if type(part) is nn.Linear:
        part.forward = _linear(part, layouts, functions)
        return
    if isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and part.padding_mode == "zeros" and part.groups == 1:
        part.forward = _convolution(part, layouts, functions)
        return
    reads = layouts["reads"]

    def enter(module: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...]:
        ready = [to(x, held, functions) for x, held in zip(inputs, reads, strict=False)]
        return (*ready, *inputs[len(ready) :])

    def leave(module: nn.Module, inputs: object, result: object) -> object:
        return to(result, layouts["result"], functions)

    part.register_forward_pre_hook(enter)
    part.register_forward_hook(leave)


class _Typed:
    """A module's result has the type that it has in the plan."""

    def __init__(self, name: str, held: Mapping[str, Any] | None, program: Program) -> None:
        self.name, self.held, self.program = name, held, program

    def __call__(self, module: nn.Module, inputs: object, result: object) -> None:
        self.program.result(self.name, result, self.held)


def _linear(
    part: nn.Linear, layouts: Mapping[str, Any], functions: Functions
) -> Callable[[torch.Tensor], torch.Tensor]:
    own = dict(layouts["parameters"])

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = to(x, layouts["reads"][0] if layouts["reads"] else None, functions)
        y = nn.functional.linear(x, to(part.weight, own.get("weight"), functions))
        if part.bias is not None:
            y = to(y, layouts["product"], functions)
            y = y + to(part.bias, own.get("bias"), functions)
        return to(y, layouts["result"], functions)

    return forward


def _convolution(part: Any, layouts: Mapping[str, Any], functions: Functions) -> Callable[[torch.Tensor], torch.Tensor]:
    """Batch and channels as planned; windows are whole (`dtensor_contractions`)."""
    read, product, result = (_whole_windows(v) for v in (layouts["reads"][0], layouts["product"], layouts["result"]))
    own = {key: _whole_windows(v) for key, v in layouts["parameters"].items()}

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = part._conv_forward(to(x, read, functions), to(part.weight, own.get("weight"), functions), None)
        if part.bias is not None:
            y = to(y, product, functions)
            y = y + to(part.bias, own.get("bias"), functions).reshape(-1, *[1] * (part.weight.ndim - 2))
        return to(y, result, functions)

    return forward


def _whole_windows(held: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A layout without cuts through the image."""
    if held is None:
        return None
    return {**held, "splits": [names if k < 2 else [] for k, names in enumerate(held["splits"])]}


def to(value: Any, held: Mapping[str, Any] | None, functions: Functions) -> Any:
    """The DTensor in the layout that the plan says; anything else, and what cannot be said of its shape, as it is.

    Whole tensors of numbers (indices) become DTensors here: taking a part of them costs nothing.
    """
    value = functions.current(value)
    if held is None or not isinstance(value, torch.Tensor):
        return value
    program = functions.program
    weight = isinstance(value, nn.Parameter) and isinstance(value, DTensor)
    if program is not None and program.half is not None and not weight:
        value = _typed(value, held, program.half)
    if not isinstance(value, DTensor):
        if value.is_floating_point() or value.dtype == torch.bool:
            return value
        value = functions.spread(value)
    mesh = functions.mesh
    splits = split_dimensions(held["splits"], held["digits"], tuple(value.shape), mesh)
    if splits is None:
        return value
    wanted = placements_of(splits, held["partial"], held["combine"], mesh)
    dtype = getattr(torch, held.get("dtype") or "float32")
    cast = program is not None and weight and program.half is not None and value.dtype != dtype
    if tuple(wanted) == tuple(value.placements) and not cast:
        return value
    functions.here = held["place"]
    try:
        if program is not None and weight and (cast or program.once):
            value = program.read(value, wanted, dtype if cast else value.dtype)
        else:
            value = value.redistribute(mesh, wanted)
    finally:
        functions.here = ""
    if value.grad_fn is not None:
        value.grad_fn.metadata[PLACE] = held["place"]
    return value


def _typed(value: torch.Tensor, held: Mapping[str, Any], half: torch.dtype) -> torch.Tensor:
    """A value in the type in which the plan has it there."""
    planned = held.get("dtype")
    if planned is None or value.dtype not in (torch.float32, half):
        return value
    dtype = getattr(torch, planned)
    return value.to(dtype) if dtype.is_floating_point and value.dtype != dtype else value


def placements_of(
    splits: list[list[str]], partial: list[str], combine: str | None, mesh: DeviceMesh
) -> list[Placement]:
    """One placement per mesh dimension."""
    out: list[Placement] = []
    for name in mesh.mesh_dim_names or ():
        at = [k for k, names in enumerate(splits) if name in names]
        out.append(Shard(at[0]) if at else Partial(combine or "sum") if name in partial else Replicate())
    return out


def split_dimensions(
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
