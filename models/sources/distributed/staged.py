"""Makes the job that an exported file of stages runs, for `equal`: a rank's stage under the plan's schedule of
micro-batches, its loss and the step of its optimizer.

Ranks of the last stage return the mean of the losses of the micro-batches, every rank the weights of its stage.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ...text import InputError
from .planned import Made, PlannedJob, own_shards, planned_job


class StagedJob(PlannedJob):
    """`layout`: an exported file of stages."""

    functions = ("PLAN", "make_ranks", "make_stage", "make_optimizer", "make_schedule")

    @property
    def ranks(self) -> int:
        """Devices of all stages."""
        return self.stages * int(self.layout.PLAN["devices"])

    @property
    def stages(self) -> int:
        """Stages of the plan."""
        return len(self.layout.PLAN["stages"])

    @property
    def program(self) -> Mapping[str, Any]:
        """Loss and optimizer, of the weights of all stages."""
        plan = self.layout.PLAN
        optimizers = [stage.get("optimizer") for stage in plan["stages"]]
        return {"trained": True, "loss": plan.get("loss"), "optimizer": optimizers[0]}

    def one_device(self, step: bool) -> Made:
        """What one device calls, and with what.  Raises `InputError` for anything but a step that the file does."""
        if not step:
            raise InputError("--grad: a file of stages takes a whole step and compares its weights; leave --grad out")
        return super().one_device(step)

    def rank(self, step: bool, whole: bool = True) -> Made:
        """The same of a rank, inside its process group."""
        plan, module = self.layout.PLAN, copy.deepcopy(self.module)
        if isinstance(self.inputs, Mapping):
            raise InputError("stages take inputs by their places: return (module, (input, ..))")
        ranks = self.layout.make_ranks("cpu")
        example = tuple(x[: len(x) // plan["micro_batches"]] if isinstance(x, torch.Tensor) else x for x in self.inputs)
        stage = self.layout.make_stage(module, ranks, example)
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            steps = self.layout.make_optimizer(stage)
            own_shards(steps, self.module, ranks.own)
        schedule = self.layout.make_schedule(stage, lambda result, target: _loss_of(plan["loss"], result, target))
        first, last = ranks.number == 0, ranks.number + 1 == len(plan["stages"])

        def train(target: Any, *inputs: Any) -> dict[str, object]:
            losses: list[torch.Tensor] = []
            schedule.step(*(inputs if first else ()), **({"target": target, "losses": losses} if last else {}))
            steps.step()
            mean = {"loss": torch.stack(losses).mean()} if last else {}
            return {**mean, **dict(stage.submod.named_parameters())}

        return train, self._given(self.target, True)


def exported_job(model: Callable[[], object], layout: ModuleType, place: str) -> PlannedJob:
    """The job of an exported file, with stages or without.  Raises `InputError` as `planned_job` does, and for files of
    stages that leave loss or optimizer to the job.
    """
    plan = getattr(layout, "PLAN", {})
    if "stages" not in plan:
        return planned_job(model, layout, place)
    loss = plan.get("loss")
    if any("optimizer" not in s for s in plan["stages"]):
        raise InputError(f"{place}: holds layouts alone; write it without --layouts-only")
    if loss is None or loss["kind"] == "returned":
        raise InputError(
            f"{place}: the loss of the plan is what the model returns, whose labels every stage would have to carry:"
            " plan with --loss cross-entropy or squared-error of a model that returns its output"
        )
    return planned_job(model, layout, place, StagedJob)


def _loss_of(loss: Mapping[str, Any], result: Any, target: Any) -> torch.Tensor:
    """The plan's loss of a micro-batch.  `ValueError` where the last stage gives no tensor alone."""
    if not isinstance(result, torch.Tensor):
        raise ValueError("the last stage gives several results; the plan's loss is of one")
    match loss["kind"]:
        case "squared-error":
            return nn.functional.mse_loss(result, target)
        case "cross-entropy":
            return nn.functional.cross_entropy(result.movedim(-1, 1), target)
        case _:
            return nn.functional.nll_loss(result.movedim(-1, 1), target)
