"""Lays a live PyTorch module out as a plan says: `shardproof.torch`.

    import shardproof
    model = shardproof.torch.apply(plan, model, mesh)       # the one line that a job is longer
    steps = shardproof.torch.optimizer(plan, model, mesh)   # the plan's; numbers may be given: lr=1e-3
    loss = shardproof.torch.train_step(plan, model, steps, *inputs)
    shardproof.torch.verify(plan, model_of_the_plan, inputs).differences

What runs is what `export --to dtensor` writes, from the same text.  `plan` is a `shardproof.Plan`, or whatever has
its `bundle` and `identity`; a file becomes one by `shardproof.load`, which checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from ...models.communication.shardings import plan_shardings
from ...proofs.plan.bundle import Plan
from .dtensor import document, program_document, refusals
from .dtensor_runtime import PlannedModule, plan_mesh, plan_module
from .dtensor_steps import PlannedOptimizer, plan_optimizer, plan_step
from .exported import refuse_parts
from .read_recipe import recipe
from .rows import Traffic
from .traffic import fake_process_group, traffic

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer


class Planned(Protocol):
    """A checked plan: `shardproof.Plan`."""

    @property
    def bundle(self) -> Plan:
        """What its file holds."""
        ...

    @property
    def identity(self) -> str:
        """Hash of its content."""
        ...


def make_mesh(plan: Planned, device_type: str = "cuda") -> DeviceMesh:
    """The plan's mesh over all ranks of the job; rank r is device r of the plan.  Raises ValueError if the job has
    another number of ranks.
    """
    import torch.distributed as dist

    ranks = dist.get_world_size() if dist.is_initialized() else plan.bundle.machine.devices
    if ranks != plan.bundle.machine.devices:
        raise ValueError(
            f"the job has {ranks} ranks, the plan {plan.bundle.machine.devices} devices; plan for a machine of {ranks}"
        )
    return plan_mesh(_document(plan), device_type)


def apply(
    plan: Planned,
    module: nn.Module,
    mesh: DeviceMesh | None = None,
    whole: bool = True,
    layouts_only: bool = False,
) -> PlannedModule:
    """`module` laid out as planned, computing in the plan's types and its blocks again where the plan does; its
    parameters become DTensors in place.

    `mesh`: what `make_mesh` gives; None makes it, on the devices where the module is.  `whole`: inputs are whole
    tensors, equal on all ranks, and so are results; otherwise both are DTensors.  `layouts_only`: the job itself sees
    to what the plan says beside layouts.  Raises ValueError where the module is not the one that was planned, the mesh
    not the plan's, or a part of the plan is none that a job of PyTorch does.
    """
    data = _document(plan, layouts_only)
    if mesh is None:
        device = next((p.device.type for p in module.parameters()), "cpu")
        mesh = make_mesh(plan, device)
    given = list(zip(mesh.mesh_dim_names or (), mesh.shape, strict=False))
    if given != [(name, size) for name, size in data["mesh"]]:  # type: ignore[attr-defined]
        raise ValueError(f"the mesh is {given}, the plan's {data['mesh']}; use make_mesh(plan)")
    return plan_module(data, module, mesh, whole)


def optimizer(
    plan: Planned, module: nn.Module, mesh: DeviceMesh, kind: type[Optimizer] | None = None, **options: object
) -> PlannedOptimizer:
    """The plan's optimizer, its moments laid out as planned; `options` take the place of the plan's numbers.  `kind`:
    the class, by default the plan's.  Raises ValueError for one of another rule.
    """
    layouts_only = isinstance(module, PlannedModule) and module.functions.program is None
    return plan_optimizer(_document(plan, layouts_only), module, mesh, kind, **options)


def train_step(
    plan: Planned,
    module: PlannedModule,
    steps: PlannedOptimizer,
    *inputs: Tensor,
    target: Tensor | None = None,
    **named: object,
) -> Tensor:
    """One step as planned: micro-batches, loss, optimizer.  `inputs`, `named`: of a whole batch, equal on all ranks;
    `target`: what the plan's loss compares with, if the model does not return it.  Returned: the loss of the batch.
    """
    return plan_step(_document(plan, module.functions.program is None), module, steps, inputs, named, target)


def verify(
    plan: Planned,
    module: nn.Module,
    inputs: tuple[Tensor, ...] | Mapping[str, Tensor],
    loss: Callable[[object], Tensor] | None = None,
) -> Traffic:
    """Collectives and bytes of one pass of the job on a rank, against the plan's communication.  The ranks are
    pretended: any number, in one process, which must have no process group.  `module` is laid out in place.
    """
    from torch.optim import SGD

    with fake_process_group(plan.bundle.machine.devices):
        mesh = make_mesh(plan, "cpu")
        planned = apply(plan, module, mesh, layouts_only=bool(recipe(plan.bundle.graph).refused))
        if planned.functions.program is not None:
            planned.functions.program.raises = False  # what is sent is compared here, not what is kept
        steps = PlannedOptimizer(_document(plan, True), planned, mesh, SGD, [({}, None)], {"lr": 0.0})
        return traffic(plan.bundle, planned, inputs, loss, steps.collect)


def _document(plan: Planned, layouts_only: bool = True) -> dict[str, object]:
    b = getattr(plan, "bundle", None)
    if b is None:
        said = repr(plan)[:100] if isinstance(plan, str) else f"a {type(plan).__name__}"
        raise TypeError(f"{said} is no checked plan; shardproof.load(path) reads a file and checks it")
    found = plan_shardings(b.graph, b.machine.hierarchy, [v.name for v in b.machine.levels], b.choices)
    made = document(b.graph, b.machine.name, plan.identity, found, refusals(b.graph, found))
    how = recipe(b.graph)
    refuse_parts("dtensor", how.refused, layouts_only)
    return made if layouts_only or not how.trained else {**made, "program": program_document(b.graph, how)}
