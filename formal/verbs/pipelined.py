"""`plan --pipeline` and `explain` of its plans: training steps on pipelines."""

from __future__ import annotations

from pathlib import Path

from ...models.machine.error_bounds import scaled_words
from ...models.pipelines.work import PER_SECOND
from ...models.sources.frameworks.settings import Settings
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.text import bytes_text, seconds_text
from ...proofs.pipelines.file import write_pipeline
from ...proofs.publishing.publisher import Published, Publisher
from ..plans.pipelines.audit import audit_pipeline
from ..plans.pipelines.bounded import NO_STEP
from ..plans.pipelines.case import Case
from ..plans.pipelines.outcome import SearchOutcome
from ..plans.pipelines.recompute import CandidateOutcome
from ..plans.pipelines.request import PipelineRequest, carry_out_pipelined
from ..plans.pipelines.scheduled import Scheduled
from ..plans.time_limit import TimeLimit
from .results import outcome, spent

MOST_NAMED = 4
"""Pairs that stay open and are named."""


def plan_pipeline(
    publisher: Publisher,
    request: PipelineRequest,
    clock: TimeLimit,
    output: Path,
    as_json: bool,
    settings: Settings | None = None,
) -> int:
    """Plan, check, publish and say.  `settings`: a configuration that is taken instead of the best plan.  Raises
    `InputError` where the step cannot be cut.
    """
    tried: tuple[CandidateOutcome, ...] = ()
    with Watch("planning") as watch:
        if settings is not None:
            flags = settings.flags
            found = audit_pipeline(request, flags, clock, lambda words: watch.update(words, None, None)).configuration
        else:
            found, tried = carry_out_pipelined(request, clock, lambda words: watch.update(words, None, None))
    if found.best is None:
        return _nothing(found, as_json)
    with Watch("checking") as watch, clock.phase("check"):
        published = publisher.publish(output, write_pipeline(None, found.certificate()), notify=watch.count)
    code, status = outcome(published, request.gap)
    data = _document(found, found.best, published, status)
    rows = sorted(tried, key=lambda t: t.blocks)
    if settings is not None:
        data["settings"] = settings.to_json()
    if tried:
        data["attempts"] = [[t.blocks, t.of, None if t.step is None else t.step / PER_SECOND] for t in rows]
    if as_json:
        emit(
            {
                **data,
                **spent(clock, output),
            }
        )
        return code
    if rows:
        say("numbers of blocks that were tried, from the first stage on; the claim is about one graph:")
    for t in rows:
        here = "does not fit, or no plan found" if t.step is None else seconds_text(t.step, PER_SECOND)
        say(f"  {t.blocks} of {t.of} blocks with activation checkpointing: {here}")
    say(*_lines(found, found.best, published))
    if settings is not None:
        say(settings.line())
    if bars := scaled_words(request.machine):
        say(bars)
    say(f"identity {published.identity}")
    say(f"wrote {output} ({published.size} bytes) in {clock.words()}", *published.advice)
    return code


def _nothing(found: SearchOutcome, as_json: bool) -> Exit:
    if as_json:
        emit({"status": "unknown", "cost": None, "lower_bound": None, "enumerated": len(found.cases)})
    else:
        say("no pipeline was found that fits; give it more time with --time-limit, or more --memory")
    return Exit.UNDECIDED


def _document(found: SearchOutcome, best: Scheduled, published: Published, status: str) -> dict[str, object]:
    scale = best.case.pieces.planning.problem.scale
    bound = found.lower_bound if published.lower_bound is None else published.lower_bound
    bounds = [(c, c.bound / PER_SECOND if c.bound < NO_STEP else None) for c in found.cases if c.chunks > 1]
    several = [[c.stages, c.micro, c.chunks, bound] for c, bound in bounds]
    return {
        "status": status,
        "cost": best.step,
        "lower_bound": bound if published.checked else None,
        "makespan": best.step / PER_SECOND,
        "gap": 1 - bound / best.step if published.checked else None,
        "scale": PER_SECOND,
        "stages": best.case.stages,
        "micro_batches": best.case.micro,
        **({"chunks": best.case.chunks} if best.case.chunks > 1 else {}),
        "units": [[s.first, s.end] for s in best.stages],
        "kept": list(best.kept),
        "peak_bytes": best.memory,
        "times": [[t / scale for t in (s.seconds.forward, s.seconds.backward, s.seconds.update)] for s in best.stages],
        **({"hidden": _hidden(best)} if found.job.overlap else {}),
        "enumerated": [[c.stages, c.micro, c.bound / PER_SECOND] for c in found.cases if c.chunks == 1],
        **({"interleaved": several} if several else {}),
        "space": found.job.where.name,
        "verdict": published.verdict.value,
        "identity": published.identity,
        **published.to_json(),
    }


def _hidden(best: Scheduled) -> list[list[float]]:
    """Seconds of every forward, backward and of the updates of a stage that run beside others."""
    pieces, out = best.case.pieces, []
    for s in best.stages:
        whole, scale = pieces.seconds(s.first, s.end, s.choices), pieces.planning.problem.scale
        pairs = zip(*((x.forward, x.backward, x.update) for x in (whole, s.seconds)), strict=True)
        out.append([(one_by_one - beside) / scale for one_by_one, beside in pairs])
    return out


def _lines(found: SearchOutcome, best: Scheduled, published: Published) -> list[str]:
    job, scale = found.job, best.case.pieces.planning.problem.scale
    sizes, view_of = ("x".join(map(str, m.hierarchy)) for m in (job.machine, best.case.machine))
    chunks = f" of {best.case.chunks} chunks" if best.case.chunks > 1 else ""
    where = f"{best.case.stages} stages{chunks} on {view_of} each, {best.case.micro} micro-batches"
    lines = [f"{job.graph.name} on {job.machine.name} {sizes}: {where}"]
    names = ["the input", *(x for x, _ in job.division.cuts)]
    held = [bytes_text(memory) for memory in best.memory]
    for k, (s, kept) in enumerate(zip(best.stages, best.kept, strict=True)):
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
            f"{held[k] if best.case.chunks == 1 else f'on stage {k % best.case.stages}'}"
        )
    if best.case.chunks > 1:
        lines.append(f"  stages hold {', '.join(held)}")
    step = seconds_text(best.step, PER_SECOND)
    interleaved = any(c.chunks > 1 for c in found.cases)
    if published.lower_bound is None:
        lines.append(f"step {step}; the checker says {published.verdict.value}: {published.reason}")
    else:
        gap = 1 - published.lower_bound / best.step
        bound = seconds_text(published.lower_bound, PER_SECOND)
        lines.append(
            f"step {step}, within {gap:.2%} of the least over {len(found.cases)} pairs of stages and "
            f"micro-batches{', some with chunks' if interleaved else ''} (at least {bound})"
        )
    return [*lines, *_excluded(found, best)]


def _pair(case: Case) -> str:
    """As `--pipeline` takes it."""
    return f"{case.stages}:{case.micro}" + (f":{case.chunks}" if case.chunks > 1 else "")


def _excluded(found: SearchOutcome, best: Scheduled) -> list[str]:
    """What became of the pairs beside the chosen one."""
    others = [c for c in found.cases if c is not best.case]
    work = sum(c.coarse >= best.step for c in others)
    leaves = sum(c.bound >= best.step > c.coarse for c in others)
    left = sorted((c for c in others if c.bound < best.step), key=lambda c: c.bound)
    if not others:
        return []
    words = f"no better, proved: {work} pairs by least work, {leaves} by the leaves of their units; {len(left)} open"
    near = [f"{_pair(c)} at least {seconds_text(c.bound, PER_SECOND)}" for c in left[:MOST_NAMED]]
    return [f"{words} ({', '.join(near)}{', ..' if len(left) > MOST_NAMED else ''})" if left else words]
