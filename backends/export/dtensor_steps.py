"""Trains a planned module: the plan's optimizer, loss and micro-batches; it is copied into exported files.

    step        for each of the plan's micro-batches: forward, the plan's loss, backward; gradients add up
                loss = sum over micro-batches of w_i loss_i / sum of w_i,   w_i = labels that count, or 1
    optimizer   gradients are brought to where the moments lie, clipped to the plan's norm, and stepped

A mean over labels that count (`ignore_index`) is that of the whole batch, however they are spread over micro-batches.
Gradients are brought together in every micro-batch, or once a step, as planned.

Nothing here is imported from shardproof.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import implicit_replication

from .dtensor_losses import cross_entropy
from .dtensor_program import micro_parts, returned_loss
from .dtensor_runtime import PlannedModule, placements_of

if TYPE_CHECKING:
    Plan = Mapping[str, Any]  # what the exported file holds: see `dtensor.document`


def plan_optimizer(
    plan: Plan, module: nn.Module, mesh: DeviceMesh, kind: type[torch.optim.Optimizer] | None, **options: Any
) -> PlannedOptimizer:
    """The plan's optimizer, its state in the plan's layouts.  `kind`: the class, None for the plan's in torch.optim;
    `options` take the place of the plan's numbers.  Raises ValueError for a class of another rule than the plan's.
    """
    planned = None if plan.get("program") is None else plan["program"]["optimizer"]
    own, groups, clip = chosen_optimizer(planned, kind)
    return PlannedOptimizer(plan, module, mesh, own, groups, options, clip)


Groups = list[tuple[dict[str, Any], frozenset[str] | None]]


def chosen_optimizer(
    planned: Mapping[str, Any] | None, kind: type[torch.optim.Optimizer] | None
) -> tuple[type[torch.optim.Optimizer], Groups, float | None]:
    """Class, numbers of the weights that have them (None: of all), and the norm that gradients are clipped to."""
    if planned is None:
        if kind is None:
            raise ValueError(
                "the file holds no optimizer; give a class: make_optimizer(model, mesh, torch.optim.AdamW)"
            )
        return kind, [({}, None)], None
    own = getattr(torch.optim, planned["kind"])
    if kind is not None and not issubclass(kind, own):
        raise ValueError(
            f"the plan's optimizer is {planned['kind']}, not {kind.__name__}: leave the class out, plan with the "
            "--train that runs, or export with --layouts-only"
        )
    return kind or own, [(dict(g["numbers"]), frozenset(g["weights"])) for g in planned["groups"]], planned["clip"]


class PlannedOptimizer:
    """Steps an optimizer on the layouts in which the plan keeps its moments.

    Where they are those of the parameter, the optimizer holds the parameter itself.  Where the plan cuts the moments
    finer (ZeRO), it holds a shard: gradients are brought to the shards (a reduce-scatter where they are partial), and
    the new values back to the parameter (an all-gather).  `groups`: numbers, and names of the weights that have them
    (None: all).  `clip`: largest norm of all gradients.
    """

    def __init__(
        self,
        plan: Plan,
        module: nn.Module,
        mesh: DeviceMesh,
        kind: type[torch.optim.Optimizer],
        groups: Sequence[tuple[dict[str, Any], frozenset[str] | None]],
        options: Mapping[str, Any],
        clip: float | None = None,
    ) -> None:
        self.shards: list[tuple[str, nn.Parameter, nn.Parameter]] = []
        self.functions = module.functions if isinstance(module, PlannedModule) else None
        self.program = None if self.functions is None else self.functions.program
        self.mesh, self.clip = mesh, clip
        names: dict[int, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        held: list[dict[str, Any]] = [{**numbers, **options, "params": []} for numbers, _ in groups]
        for name, parameter in module.named_parameters():
            own = next((g for g, (_, w) in enumerate(groups) if w is None or w & {*names[id(parameter)]}), None)
            if own is not None and parameter.requires_grad:
                held[own]["params"].append(self._held(plan, name, parameter))
        self.optimizer = kind([g for g in held if g["params"]])

    def _held(self, plan: Plan, name: str, parameter: nn.Parameter) -> nn.Parameter:
        kept = plan["state"].get(name)
        target = None if kept is None else tuple(placements_of(kept["splits"], [], None, self.mesh))
        if target is None or not isinstance(parameter, DTensor) or target == tuple(parameter.placements):
            return parameter
        shard = nn.Parameter(parameter.detach().redistribute(self.mesh, target), requires_grad=parameter.requires_grad)
        self.shards.append((name, parameter, shard))
        return shard

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.optimizer.zero_grad()
        for _, parameter, _ in self.shards:
            parameter.grad = None
        if self.program is not None:
            self.program.passes = 0

    def collect(self) -> None:
        """Bring gradients to where moments lie, those that are there already are added to; `step` does it."""
        for name, parameter, shard in self.shards:
            if isinstance(parameter.grad, DTensor) and isinstance(shard, DTensor):
                self._here(f"gradient of {name}")
                own = parameter.grad.redistribute(shard.device_mesh, shard.placements)
                shard.grad = own if shard.grad is None else shard.grad + own
                parameter.grad = None
        for parameter in self._parameters():
            grad = parameter.grad
            if isinstance(grad, DTensor) and tuple(grad.placements) != tuple(parameter.placements):
                self._here("gradients of a step")
                parameter.grad = grad.redistribute(parameter.device_mesh, parameter.placements)
        self._here("")

    def _here(self, place: str) -> None:
        if self.functions is not None:
            self.functions.here = place

    def _parameters(self) -> Iterator[nn.Parameter]:
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def step(self) -> None:
        """One step.  Raises RuntimeError where the passes before it are not those of the plan."""
        if self.program is not None:
            self.program.steps()
        self.collect()
        if self.clip is not None:
            self._clip(self.clip)
        self.optimizer.step()
        with torch.no_grad():
            for _, parameter, shard in self.shards:
                if isinstance(parameter, DTensor) and isinstance(shard, DTensor):
                    parameter.copy_(shard.redistribute(parameter.device_mesh, parameter.placements))

    def _clip(self, most: float) -> None:
        """As `torch.nn.utils.clip_grad_norm_`: every rank adds up its parts, copies count once."""
        with torch.no_grad():
            total = None
            grads = [p.grad for p in self._parameters() if p.grad is not None]
            for grad in grads:
                part, copies = grad, self.mesh.size()
                if isinstance(grad, DTensor):
                    part = grad.to_local()
                    for p, size in zip(grad.placements, self.mesh.shape, strict=True):
                        copies = copies // size if p.is_shard() else copies
                own = part.float().square().sum() / copies
                total = own if total is None else total + own
            if total is None:
                return
            for m in range(self.mesh.ndim):
                total = all_reduce(total, "sum", self.mesh.get_group(m))
            factor = (most / (total.sqrt() + 1e-6)).clamp(max=1.0)
            for grad in grads:
                (grad.to_local() if isinstance(grad, DTensor) else grad).mul_(factor)


def plan_step(
    plan: Plan,
    module: PlannedModule,
    steps: PlannedOptimizer,
    inputs: tuple[Any, ...],
    named: Mapping[str, Any],
    target: Any,
) -> torch.Tensor:
    """One step of training as planned; the loss of the batch.  Raises ValueError where the file holds no program."""
    program = plan.get("program")
    if program is None or not program["trained"]:
        raise ValueError("the file holds layouts alone: write the step, or plan with --train and export it")
    if (program["loss"]["kind"] == "returned") != (target is None):
        wanted = (
            "what the model returns: give no target"
            if target is not None
            else f"{program['loss']['kind']}: give target="
        )
        raise ValueError(f"the plan's loss is {wanted}")
    flat = _bound(module.module, inputs, named)
    steps.zero_grad()
    total, weights, first = None, None, None
    for own, wanted in micro_parts(program, flat, target):
        value, n = _loss(program, module, own, wanted)
        if n is not None and not bool(n):
            value = value.nan_to_num(0.0) * 0.0  # no label of this micro-batch counts
        first = n if first is None else first
        w = 1.0 if n is None or first is None else n / first.clamp(min=1)
        share = 1.0 / program["micro_batches"] if program["loss"]["over"] == "mean" else 1.0
        (value * w * (share if n is None else 1.0)).backward()
        if not program["once"]:
            steps.collect()
        part = value.detach() * w * (share if n is None else 1.0)
        total = part if total is None else total + part
        weights = w if weights is None or n is None else weights + w
    if not isinstance(weights, float):
        for parameter in steps._parameters():
            if parameter.grad is not None:
                (parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad).div_(weights)
        for _, parameter, _ in steps.shards:
            if parameter.grad is not None:
                parameter.grad.to_local().div_(weights)
        total = None if total is None else total / weights
    steps.step()
    return total


def _bound(module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    given = inspect.signature(module.forward)
    found: dict[str, Any] = {}
    for name, value in given.bind(*inputs, **named).arguments.items():
        kind = given.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            raise ValueError("train_step needs a forward whose arguments have names; give them by name")
        found.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return found


def _loss(
    program: Mapping[str, Any], module: PlannedModule, given: Mapping[str, Any], target: Any
) -> tuple[torch.Tensor, Any]:
    """The plan's loss of a micro-batch, and the number of labels that it divides by, if it counts them."""
    functions, loss = module.functions, program["loss"]
    result = module.run((), given)
    if loss["kind"] == "returned":
        value = returned_loss(result)
    else:
        value = _added(loss, functions, result, target)
    counts = functions.program.counts if functions.program is not None else []
    counted = loss["over"] == "counted" and program["micro_batches"] > 1
    if counted and len(counts) != 1:
        raise RuntimeError(
            f"the plan divides the loss by the labels that count, and the model's losses counted them {len(counts)} "
            "times: call F.cross_entropy once, or plan with one micro-batch and write the step"
        )
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value, counts[0] if counted else None


def _added(loss: Mapping[str, Any], functions: Any, result: Any, target: Any) -> Any:
    from torch.utils._pytree import tree_leaves

    found = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and list(x.shape) == loss["shape"]]
    if len(found) != 1:
        raise ValueError(
            f"the plan's loss is of an output of shape {loss['shape']} ({loss['of']}), the model returns {len(found)} "
            "tensors of that shape; give the batch that was planned"
        )
    with implicit_replication(), functions:
        if loss["kind"] == "squared-error":
            return nn.functional.mse_loss(found[0], target)
        x = found[0] if isinstance(found[0], DTensor) else functions.spread(found[0])
        name = "cross_entropy" if loss["kind"] == "cross-entropy" else "nll_loss"
    functions.here = f"function {name}"
    try:
        given = cross_entropy(getattr(nn.functional, name), name, (x.movedim(-1, 1), target), {}, x.device_mesh, True)
    finally:
        functions.here = ""
    if given is None:
        raise ValueError(
            f"the plan's loss is {loss['kind']}: give one label per position, {loss['shape'][:-1]} of them"
        )
    return given[0]
