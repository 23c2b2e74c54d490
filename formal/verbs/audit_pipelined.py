"""`audit --train` of a pipelined configuration, and `plan --pipeline --strategy`: for people and as
data.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...models.layout.targets.degrees import Flags
from ...models.pipelines.work import PER_SECOND
from ...models.problem.claims import Infeasible, Verdict
from ...models.sources.frameworks.settings import Settings
from ...models.terminal.console import Exit, Watch, emit, say
from ...models.text import bytes_text, seconds_text
from ...proofs.pipelines.file import write_pipeline
from ...proofs.publishing.publisher import Published, Publisher
from ...proofs.selection.file import write_certificate
from ..explain.audit import Outcome
from ..explain.request import is_proved
from ..plans.fitting import KEEPS
from ..plans.pipelines.audit import PipelineAudit, audit_pipeline
from ..plans.pipelines.bounded import NO_STEP
from ..plans.pipelines.composed import Composed
from ..plans.pipelines.configuration import configuration
from ..plans.pipelines.request import PipelineRequest
from ..plans.time_limit import TimeLimit
from .conflict import conflict, conflict_lines


def audit_pipelined(
    publisher: Publisher,
    request: PipelineRequest,
    settings: Settings,
    clock: TimeLimit,
    output: Path | None,
    as_json: bool,
) -> int:
    """Audit a configuration; publish the better plan, or the configuration where there is none, and say what it is."""
    with Watch("auditing") as watch:
        report = audit_pipeline(request, settings.flags, clock, lambda words: watch.update(words, None, None))
    if report.nothing:
        return _nothing_fits(publisher, request, report, settings, clock, output, as_json)
    plan, published = report.plan, None
    with Watch("checking") as watch, clock.phase("check"):
        if plan.best is not None:
            published = publisher.publish(output, write_pipeline(None, plan.certificate()), notify=watch.count)
        checked = published is not None and published.verdict is Verdict.PROVED and is_confirmed(publisher, report)
    code = Exit(report.outcome.exit_code) if checked else Exit.UNDECIDED
    report = report if checked else replace(report, outcome=Outcome.UNDECIDED)
    if as_json:
        found = {**_document(report, published, checked), **price_configuration(request, report, settings)}
        spent = {"seconds": round(clock.elapsed_s, 3), "processor_seconds": round(clock.processor_s, 3)}
        emit({**found, "settings": settings.to_json(), **spent})
        return code
    if plan.best is not None and not checked:
        say("not confirmed by the checker; the search says:")
    say(*_lines(report), *priced_lines(request, report, settings), settings.line())
    if published is not None and not published.checked:
        say(published.reason, *published.advice)
    elif plan.best is not None and not checked:
        say("the checker did not confirm it: undecided")
    elif output is not None and published is not None:
        say(
            f"identity {published.identity}",
            f"wrote {output} ({published.size} bytes) in {clock.words()}",
            *published.advice,
        )
    return code


def _nothing_fits(
    publisher: Publisher,
    request: PipelineRequest,
    report: PipelineAudit,
    settings: Settings,
    clock: TimeLimit,
    output: Path | None,
    as_json: bool,
) -> int:
    """Say that nothing fits, and what fills the memory; the first certificate is written."""
    with Watch("checking"), clock.phase("check"):
        published = [
            publisher.publish(output if k == 0 else None, write_certificate(None, certificate), problem)
            for k, (certificate, problem) in enumerate(report.nothing)
        ]
    checked = all(p.verdict is Verdict.PROVED for p in published)
    code = Exit(report.outcome.exit_code) if checked else Exit.UNDECIDED
    certificate, problem = report.nothing[0]
    claim = certificate.claim
    assert isinstance(claim, Infeasible) and problem.limit is not None
    assumed = [KEEPS] if report.given.case.micro > 1 or len(report.nothing) > 1 else []
    if as_json:
        none: dict[str, object] = {
            "lower_bound": None,
            "strategy_lower_bound": None,
            "conflict": conflict(problem, claim),
        }
        none |= price_configuration(request, report, settings)
        found = {**_document(report, None, checked), **none, "assumptions": [*problem.assumptions, *assumed]}
        spent = {"seconds": round(clock.elapsed_s, 3), "processor_seconds": round(clock.processor_s, 3)}
        emit({**found, "settings": settings.to_json(), **spent})
        return code
    steps = [op.name for op in report.given.case.graph.operators]
    say(
        words(report.given.flags, report.given.case.micro),
        f"infeasible (proved): nothing fits {bytes_text(problem.limit)} on a device, whatever the strategy"
        if checked
        else "undecided: the checker did not confirm that nothing fits",
        *(f"  {line}" for line in conflict_lines(problem, claim, steps)),
        *(f"  assumed: {a}" for a in assumed),
        settings.line(),
    )
    return code


def price_configuration(request: PipelineRequest, report: PipelineAudit, settings: Settings) -> dict[str, object]:
    """`configuration`: seconds, bytes and utilisation of the step as these settings run it; None with `not_priced`, the
    reason, where it has none.
    """
    found = _estimate(request, report, settings)
    if isinstance(found, str):
        return {"configuration": None, "not_priced": found}
    return {"configuration": found.to_json()}


def priced_lines(request: PipelineRequest, report: PipelineAudit, settings: Settings) -> list[str]:
    """The same for people."""
    found = _estimate(request, report, settings)
    if isinstance(found, str):
        return [f"the configuration as it runs is not priced: {found}"]
    peak = f"{float(found.peak) / 1e12:g} Tflop/s"
    memory, share = bytes_text(found.memory_bytes), f"{float(found.mfu):.1%} of {peak} a device"
    return [f"as these settings run it: about {float(found.seconds):.4g} s, {memory} on the fullest device, {share}"]


def _estimate(request: PipelineRequest, report: PipelineAudit, settings: Settings) -> Composed | str:
    step = request.make(request.recompute)
    assert step is not None  # it was audited
    return configuration(step, request.machine, settings, report.given.case.micro)


def is_confirmed(publisher: Publisher, report: PipelineAudit) -> bool:
    """Whether the checker accepts every leaf that the configuration's bound rests on; and the configuration itself,
    where it is near enough to a bound and a better plan is what is written.
    """
    if report.outcome is Outcome.WITHIN_GAP and report.plan is report.found:
        data = write_pipeline(None, report.configuration.certificate())
        return publisher.publish(None, data).verdict is Verdict.PROVED
    if report.outcome is not Outcome.REFUTED:
        return True
    return all(is_proved(publisher, leaf.certificate, problem) for leaf, problem in report.given.proofs)


def words(flags: Flags, micro: int) -> str:
    """A configuration in one line.

    >>> words(Flags("Megatron", tp=4, pp=2, sequence_parallel=True), 8)
    'Megatron: 2 stages, 8 micro-batches, tensor 4 with split sequences, context 1'
    """
    split = " with split sequences" if flags.sequence_parallel else ""
    sharded = f", state sharded as ZeRO-{flags.zero}" if flags.zero else ""
    experts = f", experts {flags.ep}" if flags.ep > 1 else ""
    ways = f"tensor {flags.tp}{split}, context {flags.cp}{experts}{sharded}"
    return f"{flags.source}: {flags.pp} stages, {micro} micro-batches, {ways}"


def _lines(report: PipelineAudit) -> list[str]:
    given, found = report.given, report.found
    own, best = given.best, found.best
    lines = [words(given.flags, given.case.micro)]
    if own is None and given.bound < NO_STEP:
        lines.append("  no completion of it was found that fits")
    elif own is not None:
        memory = bytes_text(max(own.memory))
        lines.append(
            f"  best completion {seconds_text(own.step, PER_SECOND)} under 1F1B, {memory} on the fullest device"
        )
    if given.bound < NO_STEP:
        lines.append(f"  no completion takes less than {seconds_text(given.bound, PER_SECOND)}")
    else:
        lines.append("  no completion fits: weights and optimizer state of a stage alone are more than the memory")
    pairs = ", ".join(f"{c.stages}:{c.micro}" for c in found.cases[:4]) + (", .." if len(found.cases) > 4 else "")
    if best is not None:
        cuts = ", ".join(str(s.end - s.first) for s in best.stages)
        lines.append(
            f"best plan found {seconds_text(best.step, PER_SECOND)}: {best.case.stages} stages of {cuts} units, "
            f"{best.case.micro} micro-batches"
        )
    if found.lower_bound < NO_STEP:
        lines.append(
            f"no plan with {pairs} (stages:micro-batches) takes less than {seconds_text(found.lower_bound, PER_SECOND)}"
        )
    else:
        lines.append(
            f"no plan with {pairs} (stages:micro-batches) fits: weights and optimizer state alone are too much"
        )
    match report.outcome:
        case Outcome.OPTIMAL:
            lines.append("optimal: proved")
        case Outcome.WITHIN_GAP:
            lines.append(f"optimal up to {float(report.gap):.2%}: proved")
        case Outcome.REFUTED:
            assert best is not None
            less = 1 - best.step / given.bound
            lines.append(f"refuted: the plan takes {less:.1%} less than any completion of it")
        case _:
            if own is None and best is None:
                lines.append("undecided: nothing was found that fits, and it is not proved that nothing does")
            elif given.bound >= NO_STEP:
                lines.append("undecided: the plan fits and no completion does, which no certificate holds")
            else:
                lines.append(_undecided(report))
    return lines


def _undecided(report: PipelineAudit) -> str:
    """What is not known of the settings, and what may tell."""
    best, own = report.found.best, report.given.best
    if best is None or own is None:
        return "undecided: no plan was found to compare with; more time (--time-limit) may find one"
    mine, other = own.step, best.step
    if other < mine:
        return (
            f"undecided: the best plan found takes {float(1 - other / mine):.1%} less than your settings as completed, "
            "but is not proved below every way to complete them; more time (--time-limit) may prove it"
        )
    return (
        "undecided: no plan was found that is faster than your settings, and it is not proved that there is none; "
        "more time (--time-limit) may tell"
    )


def _document(report: PipelineAudit, published: Published | None, checked: bool) -> dict[str, object]:
    given, found = report.given, report.found
    return {
        "outcome": report.outcome.value if checked else Outcome.UNDECIDED.value,
        "stages": given.flags.pp,
        "micro_batches": given.case.micro,
        "scale": PER_SECOND,
        "strategy_cost": None if given.best is None else given.best.step,
        "strategy_lower_bound": given.bound if given.bound < NO_STEP else None,
        "strategy_peak_bytes": None if given.best is None else max(given.best.memory),
        "best_cost": None if found.best is None else found.best.step,
        "best_stages": None if found.best is None else [[s.first, s.end] for s in found.best.stages],
        "best_micro_batches": None if found.best is None else found.best.case.micro,
        "lower_bound": found.lower_bound if found.lower_bound < NO_STEP else None,
        "enumerated": [[c.stages, c.micro] for c in found.cases],
        "identity": None if published is None else published.identity,
        **({} if published is None else published.to_json()),
        "checked": checked,
    }
