"""Carries out requests for plans: what the command line and the Python way in ask of the planner.

model, as it is                                   plan_job
training step: forward, backward, optimizer       build_step, then plan_job
.. whose blocks are recomputed, as many as pay    plan_recomputed: a plan per candidate
.. cut into micro-batches, as many as pay         plan_micro: likewise
.. or not, with schedules that the user brings    plan_strategy: they are carried to the rest, nothing is searched
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from ...models.cost.selection import Notify
from ...models.layout.placement import Space, space
from ...models.machine.machine import Machine
from ...models.program.graph import Graph
from ...models.sources.precision import mixed_precision, parse_precision
from ...models.sources.training import TrainingStep, build_step
from ...models.sources.training.accumulation import accumulate, parts_of
from ...models.sources.training.recompute import blocks
from ...models.text import InputError
from ...proofs.joint.books import Rewrites
from ..selection.model.clock import Progress
from ..selection.question import Engine
from .given import given_schedules, plan_strategy
from .micro import MicroAttempt, plan_micro
from .options import PlanOptions
from .plan import PlacementJob, Planned, fitting_space, plan_job
from .recompute import Attempt, plan_with_checkpointing
from .schedules import Propagated
from .strategy import Strategy
from .time_limit import TimeLimit

AS_EVER: Final = Rewrites()
"""The rules that are built in, and no library."""

TENSORS: Final = "tensors"
"""What `recompute` says where every tensor is kept or computed again by itself: a search over programs."""


@dataclass(frozen=True)
class PlanRequest:
    """What is asked.  `graph`: the model, or with `train` (settings of an optimizer) what a step trains by `loss`.
    `recompute`: blocks computed again in the backward pass: none, all, globs, or auto; or tensors.
    `space`: None for the default.
    `memory`: bytes per device.  `strategy`: schedules, or a file of them.  `gap`: (cost - bound) / cost that is enough.
    `precision`: what is computed in 16 bits (`models.sources.precision`), None for the graph's own types.
    `micro_batch`: into how many equal parts a step's batch is cut, N or N:once (gradients are brought together once per
    step), or auto.
    `vocabulary`: the framework that must be able to say every placement, or None.  `rewrites`: what a joint search may
    use.
    """

    graph: Graph
    machine: Machine
    train: str | None = None
    loss: str | None = None
    recompute: str = "none"
    space: Space | None = None
    memory: int | None = None
    strategy: Path | Strategy | None = None
    engine: Engine = "native"
    gap: Fraction = Fraction(0)
    threads: int = 2
    precision: str | None = None
    micro_batch: str = "1"
    vocabulary: str | None = None
    rewrites: Rewrites = AS_EVER

    @classmethod
    def of(
        cls, options: PlanOptions, graph: Graph, machine: Machine, memory: int | None, strategy: Path | Strategy | None
    ) -> PlanRequest:
        """What a user asks of a graph, with the built-in gap and rewrites.  Raises `SpaceError` for an odd space."""
        where = None if options.space_name is None else space(options.space_name)
        return cls(
            graph,
            machine,
            options.train,
            options.loss,
            options.recompute,
            where,
            memory,
            strategy,
            options.engine,
            threads=options.threads,
            precision=options.precision,
            micro_batch=str(options.micro_batch),
            vocabulary=options.vocabulary,
        )


@dataclass(frozen=True, eq=False)
class PlanOutcome:
    """What was found: the plan of `graph`; the training `step` that it is, what was recomputed on the way (`attempts`),
    which schedules were `given` and which `counts` of micro-batches were tried, where the request asks for them.
    """

    graph: Graph
    planned: Planned
    step: TrainingStep | None = None
    attempts: tuple[Attempt, ...] = ()
    given: Propagated | None = None
    counts: tuple[MicroAttempt, ...] = ()


def carry_out(
    request: PlanRequest, limit: TimeLimit, progress: Progress | None = None, notify: Notify | None = None
) -> PlanOutcome:
    """The plan that is asked for, found within `limit`; what does not go together was refused
    (`formal.verbs.combinations`).  Raises the errors of the planners.
    """
    automatic = request.recompute == "auto"
    counted = request.micro_batch == "auto"

    def step(which: str) -> TrainingStep:
        whole = build_step(
            request.graph, request.train or "", request.loss, recompute=which, precision=request.precision
        )
        return whole if counted else split_batch(whole, request)

    def job(graph: Graph, seconds: float | None = None) -> PlacementJob:
        return PlacementJob(
            graph,
            request.machine,
            asked_space(request, graph),
            request.memory,
            engine=request.engine,
            time_limit_s=seconds,
            gap=request.gap,
            threads=request.threads,
            progress=progress,
            notify=notify,
            limit=limit,
        )

    def planner(graph: Graph, seconds: float | None = None) -> Planned:
        return plan_job(job(graph, seconds))

    if automatic:
        room = None if request.memory is None else request.memory * request.machine.devices
        chosen = plan_with_checkpointing(tuple(blocks(request.graph)), step, planner, None, limit.clock, room)
        return PlanOutcome(chosen.step.graph, chosen.planned, chosen.step, chosen.attempts)
    if counted:
        found = plan_micro(step(request.recompute), planner, limit.clock, request.machine.devices)
        return PlanOutcome(found.step.graph, found.planned, found.step, counts=found.attempts)
    graph, trained = program_of(request)
    if request.strategy is None:
        return PlanOutcome(graph, planner(graph), trained)
    strategy = request.strategy if isinstance(request.strategy, Strategy) else given_schedules(request.strategy)
    planned, given = plan_strategy(strategy, job(graph))
    return PlanOutcome(graph, planned, trained, given=given)


def program_of(request: PlanRequest) -> tuple[Graph, TrainingStep | None]:
    """The program that is asked about: a training step, or the model.  With `TENSORS` nothing is computed again yet."""
    if request.train is None:
        return _forward(request), None
    which = "none" if request.recompute == TENSORS else request.recompute
    trained = build_step(request.graph, request.train, request.loss, recompute=which, precision=request.precision)
    trained = split_batch(trained, request)
    return trained.graph, trained


def split_batch(step: TrainingStep, request: PlanRequest) -> TrainingStep:
    """The step in the micro-batches that are asked for."""
    count, once = count_of(request.micro_batch)
    if count == 1:
        return step
    parts = parts_of(step.graph, count, request.machine.devices) if once else 1
    return accumulate(step, count, parts)


def count_of(text: str) -> tuple[int, bool]:
    """A number of micro-batches, and whether gradients are brought together once.  Raises `InputError` for what is
    neither.

    >>> count_of("4"), count_of("8:once")
    ((4, False), (8, True))
    """
    number, colon, how = text.partition(":")
    if not (number.isascii() and number.isdigit() and 0 < len(number) < 10 and int(number) > 0) or (
        colon and how != "once"
    ):
        raise InputError(
            f"micro-batch {text[:40]!r}: give the number of equal parts of the batch, N or N:once, or 'auto'"
        )
    return int(number), bool(colon)


def _forward(request: PlanRequest) -> Graph:
    return (
        request.graph
        if request.precision is None
        else mixed_precision(request.graph, parse_precision(request.precision))
    )


def asked_space(request: PlanRequest, graph: Graph) -> Space | None:
    """The space asked for, or the one that fits the size of the program, as far as the vocabulary says it."""
    if request.vocabulary is None:
        return request.space
    return space(f"{(request.space or fitting_space(graph, request.machine)).name},{request.vocabulary}")
