"""`plan --pipeline`: a training step on a pipeline, for people and as data."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import click

from ...models.layout.placement import Space
from ...models.machine.machine import Machine
from ...models.pipelines.division import divide
from ...models.pipelines.micro import batch_of
from ...models.pipelines.views import view
from ...models.pipelines.work import PER_SECOND
from ...models.sources.training import TrainingStep
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.text import InputError, bytes_text, seconds_text
from ...proofs.publishing.publisher import Published, Publisher
from ..pipelines.case import Job
from ..pipelines.recompute import Tried, planned_recomputed
from ..pipelines.search import Scheduled, Searched, planned
from ..planning.plan import default_space
from ..planning.time_limit import TimeLimit
from ..selection.model.clock import Clock
from .results import outcome

AUTO = "auto"
MOST_STAGES = 16
MOST_MICRO_BATCHES = 64
"""What `auto` enumerates: equal views, and powers of two that divide the batch, up to these."""

RECOMPUTE_AUTO = "auto"

CHECK_SHARE = 0.25
"""Of the time limit, kept for the checker."""


def pairs_of(text: str, step: TrainingStep, machine: Machine, units: int) -> list[tuple[int, int]]:
    """(stages, micro-batches) that are enumerated: without pipelines, then all of `auto`; or the one pair P:M."""
    match = re.fullmatch(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3})", text)
    if match is not None:
        return [(int(match[1]), int(match[2]))]
    if text != AUTO:
        raise click.UsageError(f"--pipeline {text[:40]!r}: write auto, or STAGES:MICRO-BATCHES such as 4:16")
    batch = batch_of(step.graph)
    micro = [m for m in (1 << k for k in range(MOST_MICRO_BATCHES.bit_length())) if batch % m == 0]
    stages = [p for p in range(2, MOST_STAGES + 1) if p <= units and view(machine, p) is not None]
    return [(1, 1), *((p, m) for p in stages for m in micro)]


def plan_pipeline(
    publisher: Publisher,
    make: Callable[[str], TrainingStep | None],
    recompute: str,
    names: tuple[str, ...],
    machine: Machine,
    where: Space | None,
    memory: int | None,
    text: str,
    gap: Fraction,
    clock: TimeLimit,
    output: Path,
    as_json: bool,
) -> int:
    """Plan, check, publish and say.  `make`: the step for a `--recompute` text; `names`: blocks that may be recomputed.
    Raises `InputError` where the step cannot be cut.
    """
    step = make("none" if recompute == RECOMPUTE_AUTO else recompute)
    if step is None:
        raise click.UsageError("--pipeline cuts training steps: give --train sgd or --train adam too")
    division = divide(step.graph, step.passes)
    pairs = pairs_of(text, step, machine, division.units)
    if division.units == 1:
        raise InputError(
            f"--pipeline: {step.graph.name} cannot be cut into stages: nowhere does one tensor alone go on and one "
            f"gradient come back (clipping by the norm of all gradients and scaled losses join all stages)"
        )
    limit, tried = clock.clock.share(1 - CHECK_SHARE), tuple[Tried, ...]()
    with Watch("planning") as watch, clock.phase("search"):

        def plan(which: str, within: Clock) -> Searched:
            made = make(which) or step
            cut = divide(made.graph, made.passes)
            job = Job(made.graph, cut, machine, where or default_space(machine), memory)
            fits = [(p, m) for p, m in pairs if p <= cut.units]
            return planned(job, fits, within, gap, lambda words: watch.update(words, None, None))

        if recompute == RECOMPUTE_AUTO:
            found, tried = planned_recomputed(names, plan, limit, gap)
        else:
            found = plan(recompute, limit)
    if found.best is None:
        return _nothing(found, as_json)
    with Watch("checking") as watch, clock.phase("check"):
        published = publisher.pipeline(output, found.certificate(), watch.count)
    code, status = outcome(published, gap)
    data = _document(found, found.best, published, status)
    rows = sorted(tried, key=lambda t: t.blocks)
    if tried:
        data["attempts"] = [[t.blocks, t.of, None if t.step is None else t.step / PER_SECOND] for t in rows]
    if as_json:
        emit({**data, "plan": str(output), "seconds": round(clock.clock.seconds(), 3), "phases": clock.rounded()})
        return code
    if rows:
        say("numbers of blocks that were tried, from the first stage on; the claim is about one graph:")
    for t in rows:
        here = "does not fit, or no plan found" if t.step is None else seconds_text(t.step, PER_SECOND)
        say(f"  {t.blocks} of {t.of} blocks recomputed: {here}")
    say(*_lines(found, found.best, published))
    say(f"identity {published.identity}")
    say(f"wrote {output} ({published.size} bytes) in {clock.words()}")
    return code


def _nothing(found: Searched, as_json: bool) -> Exit:
    if as_json:
        emit({"status": "unknown", "cost": None, "lower_bound": None, "enumerated": len(found.cases)})
    else:
        say("no pipeline was found that fits; give it more time with --time-limit, or more --memory")
    return Exit.UNDECIDED


def _document(found: Searched, best: Scheduled, published: Published, status: str) -> dict[str, object]:
    scale = best.case.pieces.planning.problem.scale
    bound = found.lower_bound if published.lower_bound is None else published.lower_bound
    return {
        "status": status,
        "cost": best.step,
        "lower_bound": bound / PER_SECOND,
        "makespan": best.step / PER_SECOND,
        "gap": 1 - bound / best.step,
        "scale": PER_SECOND,
        "stages": len(best.stages),
        "micro_batches": best.case.micro,
        "units": [[s.first, s.end] for s in best.stages],
        "kept": list(best.kept),
        "peak_bytes": best.memory,
        "times": [[t / scale for t in (s.seconds.forward, s.seconds.backward, s.seconds.update)] for s in best.stages],
        "enumerated": [[c.stages, c.micro, c.bound / PER_SECOND] for c in found.cases],
        "space": found.job.where.name,
        "verdict": published.verdict.value,
        "identity": published.identity,
    }


def _lines(found: Searched, best: Scheduled, published: Published) -> list[str]:
    job, scale = found.job, best.case.pieces.planning.problem.scale
    sizes, view_of = ("x".join(map(str, m.hierarchy)) for m in (job.machine, best.case.machine))
    where = f"{len(best.stages)} stages on {view_of} each, {best.case.micro} micro-batches"
    lines = [f"{job.graph.name} on {job.machine.name} {sizes}: {where}"]
    names = ["the input", *(x for x, _ in job.division.cuts)]
    for s, kept, memory in zip(best.stages, best.kept, best.memory, strict=True):
        times = ", ".join(
            f"{word} {seconds_text(t, scale)}"
            for word, t in (
                ("forward", s.seconds.forward),
                ("backward", s.seconds.backward),
                ("update", s.seconds.update),
            )
        )
        lines.append(
            f"  from {names[s.first]}: {s.end - s.first} of {job.division.units} units; {times}; {kept} activations, "
            f"{bytes_text(memory)}"
        )
    step = seconds_text(best.step, PER_SECOND)
    if published.lower_bound is None:
        lines.append(f"step {step}; the checker says {published.verdict.value}: {published.reason}")
    else:
        gap = 1 - published.lower_bound / best.step
        bound = seconds_text(published.lower_bound, PER_SECOND)
        lines.append(
            f"step {step}, within {gap:.2%} of the least over {len(found.cases)} pairs of stages and "
            f"micro-batches (at least {bound})"
        )
    return lines
