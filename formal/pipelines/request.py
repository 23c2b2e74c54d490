"""This module carries out requests for pipelined training steps: what the command line and the Python way in ask
alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ...models.layout.placement import Space
from ...models.machine.machine import Machine
from ...models.pipelines.division import divide, tied
from ...models.pipelines.micro import batch_of
from ...models.pipelines.views import view
from ...models.sources.training import TrainingStep
from ...models.text import InputError
from ..planning.plan import default_space
from ..planning.time_limit import TimeLimit
from ..selection.model.clock import Clock
from .job import Job
from .recompute import Tried, planned_recomputed
from .search import Searched, planned

AUTO: Final = "auto"
MOST_STAGES: Final = 16
MOST_MICRO_BATCHES: Final = 256
"""What `auto` enumerates: equal views, and powers of two that divide the batch, up to these."""

CHECK_SHARE: Final = 0.25
"""Of the time limit, kept for the checker."""


def pairs_of(text: str, step: TrainingStep, machine: Machine, units: int) -> list[tuple[int, int]]:
    """(stages, micro-batches) that are enumerated: without pipelines, then all of `auto`; or the one pair P:M."""
    match = re.fullmatch(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3})", text)
    if match is not None:
        return [(int(match[1]), int(match[2]))]
    if text != AUTO:
        raise InputError(f"--pipeline {text[:40]!r}: write auto, or STAGES:MICRO-BATCHES such as 4:16")
    batch = batch_of(step.graph)
    micro = [m for m in (1 << k for k in range(MOST_MICRO_BATCHES.bit_length())) if batch % m == 0]
    stages = [p for p in range(2, MOST_STAGES + 1) if p <= units and view(machine, p) is not None]
    return [(1, 1), *((p, m) for p in stages for m in micro)]


@dataclass(frozen=True)
class PipelineRequest:
    """What is asked.  `make`: the step with these blocks recomputed (a `recompute` text, as `build_step` takes it);
    `recompute`: such a text, or "auto" for the best number of `blocks` from the first stage on; `stages`: auto or P:M;
    `without`: placements that are forbidden, in order of `FORBIDDEN_WORDS`.
    """

    make: Callable[[str], TrainingStep | None]
    machine: Machine
    stages: str = AUTO
    recompute: str = "none"
    blocks: tuple[str, ...] = ()
    space: Space | None = None
    memory: int | None = None
    gap: Fraction = Fraction(0)
    without: tuple[str, ...] = ()


def uncut(step: TrainingStep) -> str:
    """Why a step has no cuts, and what to change: known are weights shared by distant layers."""
    weight = tied(step.graph, step.passes)
    joins = (
        f"the parameter {weight}, would lie in several stages: give each of them a parameter of its own (an output "
        f"layer that is not tied to the embedding; the zoo's GPTs: tables=2)"
        if weight
        else "clipping by the norm of all gradients and scaled losses join all stages"
    )
    return (
        f"--pipeline: {step.graph.name} cannot be cut into stages: nowhere does one tensor alone go on and one "
        f"gradient come back; {joins}"
    )


def carry_out_pipelined(
    request: PipelineRequest, limit: TimeLimit, tell: Callable[[str], None] | None = None
) -> tuple[Searched, tuple[Tried, ...]]:
    """The best pipelined step that was found, and the numbers of recomputed blocks that were tried where that was left
    open.  Raises `InputError` where there is no step, or none that can be cut.
    """
    automatic = request.recompute == AUTO
    step = request.make("none" if automatic else request.recompute)
    if step is None:
        raise InputError("--pipeline cuts training steps: give --train sgd or --train adam too")
    division = divide(step.graph, step.passes)
    pairs = pairs_of(request.stages, step, request.machine, division.units)
    if division.units == 1:
        raise InputError(uncut(step))

    def plan(which: str, within: Clock) -> Searched:
        made = request.make(which) or step
        cut = divide(made.graph, made.passes)
        where = request.space or default_space(request.machine)
        job = Job(made.graph, cut, request.machine, where, request.memory, request.without)
        fits = [(p, m) for p, m in pairs if p <= cut.units]
        return planned(job, fits, within, request.gap, tell or (lambda words: None))

    within = limit.clock.share(1 - CHECK_SHARE)
    with limit.phase("search"):
        if automatic:
            return planned_recomputed(request.blocks, plan, within, request.gap)
        return plan(request.recompute, within), ()
