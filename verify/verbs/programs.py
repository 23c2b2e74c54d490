"""What `check` says of files that hold programs on a machine: plans, joint or not, pipelined, overlapped, with views;
what each says of itself beside what all say (`subject.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from ...models.joint.egraph import claim_flags
from ...models.machine.machine import Machine
from ...models.problem.claims import Verdict
from ...models.program.graph import Graph
from ...models.text import bytes_text, seconds_text
from ...proofs.container.archive import Member
from ...proofs.container.kinds import JOB, PORTFOLIO, SIZES
from ...proofs.joint.file import Jointly
from ...proofs.overlap.certificate import OverlapCertificate
from ...proofs.pipelines.certificate import PipelineCertificate
from ...proofs.plan.bundle import Plan
from ...proofs.portfolio.file import Portfolio
from ...proofs.publishing.placed import asked_of, parts_among
from ...proofs.views.certificate import SubmeshCertificate
from ..pipelines.bound import PICO
from ..portfolio.certificate import assumed_program
from ..portfolio.sizes import CheckedSizes
from ..verdict import CheckResult
from .kinds import Kind, Tied
from .others import (
    tell_certificate,
    tell_equality,
    tell_extraction,
    tell_library,
    tell_placements,
    tell_reduction,
    tell_schedule,
)
from .request import Request, claim_line
from .subject import Subject, content_as


class _Program(Protocol):
    """A certificate about one graph on one machine."""

    @property
    def graph(self) -> Graph: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def space(self) -> str: ...


C = TypeVar("C", bound=_Program)


@dataclass(frozen=True)
class Words(Generic[C]):
    """How one kind of plan is told.  `cost`: what its costs are called, in units of 1/`scale` s (0: of the problem);
    `extra`: a line of its own, then lines behind the claims.
    """

    holds: type[C]
    title: str
    cost: str
    scale: int
    memory: Callable[[C], int | None]
    extra: Callable[[C], list[str]]
    document: Callable[[C], dict[str, object]]

    def tell(self, path: str, members: Mapping[str, Member], request: Request, kind: Kind) -> Subject:
        """Check it; `ContainerError` for what is malformed."""
        found = kind.judge(members, request.effort, request.about)
        c = content_as(found, self.holds)
        scale = self.scale or found.scale or 1
        own, *rest = self.extra(c)
        return Subject(
            self.title,
            found.identity,
            (*request.own.results(c.graph, c.machine), *found.results),
            lambda r: _claim(r, self.cost, scale),
            c.graph,
            c.space,
            self.memory(c),
            (c.machine,),
            own=(own,),
            rest=tuple(rest),
            rounding=found.rounding,
            document=self.document(c),
        )


def _claim(r: CheckResult, cost: str, scale: int) -> str:
    line = f"  {r.kind:12} {r.verdict.value}"
    if r.kind in ("Optimal", "WithinGap") and r.cost is not None and r.lower_bound is not None:
        gap = 1 - r.lower_bound / r.cost if r.cost else 0.0
        time, bound = seconds_text(r.cost, scale), seconds_text(r.lower_bound, scale)
        line += f"; {cost} {time}; lower bound {bound} (gap {gap:.2%}); space {r.space}"
    if r.coverage is not None:
        line += f"; {r.coverage.words}"
    return line if r.verdict is Verdict.PROVED else f"{line}: {r.reason}"


def tell_plan(path: str, members: Mapping[str, Member], request: Request, kind: Kind) -> Subject:
    """A plan, joint or not."""
    found = kind.judge(members, request.effort, request.about)
    plan, joint = content_as(found, Plan), content_as(found, Plan).joint
    if found.planning is None:
        raise TypeError("a checked plan comes with its problem")
    problem = found.planning.problem
    of = () if joint is None else claim_flags(joint.egraph, joint.derivation.rounds, joint.derivation.rules_name)
    return Subject(
        "plan",
        found.identity,
        (*request.own.results(plan.user_graph, plan.machine), *found.results),
        lambda r: claim_line(r, found.scale, problem.unit_name == "s"),
        plan.graph,
        plan.space,
        plan.memory_limit,
        (plan.machine,),
        asked=() if joint is None else (_asked_line(joint),),
        stated=(*problem.assumptions, *of) if joint is None else of,
        rounding=found.rounding,
        versions=plan.versions,
        document={} if joint is None else {"asked": _asked(joint)},
    )


def _asked(joint: Jointly) -> dict[str, object]:
    """The user's graph, which the program of a joint plan is equal to, and the e-graph that it was chosen from."""
    base = joint.egraph.base
    return {"name": base.name, "sha256": base.sha256(), "operators": len(base.operators), "graphs": joint.egraph.sha256}


def _asked_line(joint: Jointly) -> str:
    asked = _asked(joint)
    what = f"{asked['name']}: {asked['operators']} operators, sha256 {asked['sha256']}"
    return f"chosen among the programs of an e-graph of {what}"


def _pipelined(c: PipelineCertificate) -> list[str]:
    limit = "none" if c.memory is None else f"{bytes_text(c.memory)} per device"
    pairs = ", ".join([*(f"{p}:{m}" for p, m in c.pairs), *(f"{x.stages}:{x.micro}:{x.chunks}" for x in c.interleaved)])
    chunks = f" with {c.chunks} chunks each" if c.chunks > 1 else ""
    stages = f"{c.views} stages{chunks} of {c.division.units} units, {c.micro} micro-batches; memory limit {limit}"
    return [
        stages,
        f"enumerated   stages:micro-batches{':chunks' if c.interleaved else ''} {pairs}",
        f"times of the schedule are rounded up once more, to {seconds_text(c.quantum, PICO)}",
    ]


def _pipeline_document(c: PipelineCertificate) -> dict[str, object]:
    return {
        "stages": [[s.first, s.end] for s in c.stages],
        "micro_batches": c.micro,
        "enumerated": [list(pair) for pair in c.pairs],
        **({"chunks": c.chunks} if c.chunks > 1 else {}),
        **({"interleaved": [[x.stages, x.micro, x.chunks] for x in c.interleaved]} if c.interleaved else {}),
    }


def _overlapped(c: OverlapCertificate) -> list[str]:
    limit = "none" if c.memory is None else f"{bytes_text(c.memory)} per device"
    return [f"operators on one stream of every device, reshardings beside them on another; memory limit {limit}"]


def _overlap_document(c: OverlapCertificate) -> dict[str, object]:
    return {
        "redistributions": sum(t.streams == (1,) for t in getattr(c.schedule and c.schedule.subject, "tasks", ())),
        "chains": [len(chain) for chain in c.chains],
        "weights": list(c.weights),
    }


def _viewed(c: SubmeshCertificate) -> list[str]:
    divisions = sum(len(r.divisions) for r in c.regions)
    used = sorted({p.view for _, p in c.choices.operators if p.view is not None})
    return [f"regions: {len(c.regions)}; divisions: {divisions}; submeshes in use: {len(used)}"]


def _views_document(c: SubmeshCertificate) -> dict[str, object]:
    return {
        "regions": [{"branches": len(r.branches), "divisions": len(r.divisions)} for r in c.regions],
        "on_views": sum(p.view is not None for _, p in c.choices.operators),
    }


def tell_portfolio(path: str, members: Mapping[str, Member], request: Request, kind: Kind) -> Subject:
    """Several plans of one job, and the one that is taken."""
    found = kind.judge(members, request.effort, request.about)
    chosen = content_as(found, Portfolio).chosen
    programs = [_program(judged.held) for judged in found.among]
    taken, graph = programs[chosen], asked_of(programs[0])
    scales = [judged.scale or 1 for judged in found.among]

    assumed = [assumed_program(asked_of(program), found.results[0].assumptions) for program in programs]
    unknown = [_assumed(chosen, graph)] if assumed[chosen] and request.own.graph is not None else []

    def line(r: CheckResult) -> str:
        inside, colon, _ = r.kind.partition(":")
        return _claim(r, "step", scales[int(inside)] if colon else scales[chosen])

    return Subject(
        f"best of {len(programs)} plans, plan {chosen}",
        found.identity,
        (*request.own.results(graph, taken.machine), *unknown, *found.results),
        line,
        graph,
        found.results[0].space,
        taken.memory_limit if isinstance(taken, Plan) else getattr(taken, "memory", None),
        (taken.machine,),
        own=tuple(
            f"plan {i}: {parts_among(program, graph)}{NOT_PROVED if assumed[i] else ''}"
            for i, program in enumerate(programs)
        ),
        rounding=found.rounding,
        document={"chosen": chosen, "among": [parts_among(program, graph) for program in programs]},
    )


def tell_sizes(path: str, members: Mapping[str, Member], request: Request, kind: Kind) -> Subject:
    """Plans for a range of sizes; the reader's model is that of its own size."""
    found = kind.judge(members, request.effort, request.about)
    held = content_as(found, CheckedSizes)
    head, first, own = held.held.head, held.plans[0], request.own.graph
    meant = first.graph if own is None else held.program_like(own)
    scale = found.scale or 1
    return Subject(
        f"plans for {head.words}",
        found.identity,
        (*request.own.results(meant, first.machine), *found.results),
        lambda r: claim_line(r, scale),
        first.graph,
        first.space,
        None,
        (first.machine,),
        own=tuple(_class_line(held, i) for i in range(len(held.classes))),
        rounding=found.rounding[:1],
        versions=first.versions,
        document={
            "sizes": {"name": head.name, "sizes": list(head.sizes), "step": head.step, "taken": list(head.taken)},
            "gap": None if held.gap is None else float(held.gap),
            "gaps": [float(one.gap) for one in held.classes],
        },
    )


def _class_line(held: CheckedSizes, i: int) -> str:
    head, (a, b), gap = held.held.head, held.classes[i].ends, held.classes[i].gap
    return f"between {head.name} = {a} and {b}: placements of plan {head.taken[i]}, within {float(gap):.4%} of the best"


def tell_job(path: str, members: Mapping[str, Member], request: Request, kind: Kind) -> Subject:
    """A plan and the job that runs it: optimal, equal, bytes."""
    found = kind.judge(members, request.effort, request.about)
    held = content_as(found, Tied)
    planned, equal, digest = held.plan, held.proof, held.job.digest
    plan, (optimal, same, moved) = content_as(planned, Plan), found.results
    if planned.planning is None:
        raise TypeError("a checked plan comes with its problem")
    timed = planned.planning.problem.unit_name == "s"

    def line(r: CheckResult) -> str:
        if r is optimal:
            return claim_line(r, planned.scale, timed)
        words = [f"  {r.kind:<12} {r.verdict.value}", r.space, r.reason]
        return "; ".join(word for word in words if word)

    return Subject(
        "plan with its job",
        found.identity,
        (*request.own.results(plan.user_graph, plan.machine), optimal, same, moved),
        line,
        plan.graph,
        plan.space,
        plan.memory_limit,
        (plan.machine,),
        own=(f"plan {planned.identity}", f"job {digest}, proof {equal.identity}"),
        stated=planned.planning.problem.assumptions,
        rounding=found.rounding,
        versions=plan.versions,
        document={"plan": planned.identity, "equality": equal.identity, "job": digest},
    )


NOT_PROVED: Final = ", which is assumed and not proved to compute what the program of plan 0 does"


def _assumed(chosen: int, job: Graph) -> CheckResult:
    """The user's model is that of plan 0; whether the plan that is taken computes it nobody has proved."""
    reason = f"plan {chosen} is of another program than {job.name}{NOT_PROVED}"
    return CheckResult("Model", Verdict.UNDECIDED, None, None, "", (), reason)


AnyProgram = Plan | PipelineCertificate | OverlapCertificate | SubmeshCertificate


def _program(found: object) -> AnyProgram:
    if not isinstance(found, AnyProgram):
        raise TypeError(f"{type(found).__name__} is no plan")
    return found


Teller = Callable[[str, Mapping[str, Member], Request, Kind], Subject]

TELL: Final[Mapping[str, Teller]] = {
    "plan.json": tell_plan,
    "library.json": tell_library,
    "reduction.json": tell_reduction,
    "placement.json": tell_placements,
    "pipeline.json": Words(
        PipelineCertificate,
        "pipelined training step",
        "step",
        PICO,
        lambda c: c.memory,
        _pipelined,
        _pipeline_document,
    ).tell,
    "overlap.json": Words(
        OverlapCertificate, "overlapped plan", "time", 0, lambda c: c.memory, _overlapped, _overlap_document
    ).tell,
    "views.json": Words(
        SubmeshCertificate, "plan with submeshes", "cost", 0, lambda c: c.memory, _viewed, _views_document
    ).tell,
    PORTFOLIO: tell_portfolio,
    SIZES: tell_sizes,
    "schedule.json": tell_schedule,
    JOB: tell_job,
    "equality.json": tell_equality,
    "extraction.json": tell_extraction,
    "certificate.json": tell_certificate,
}
"""Member that gives a kind away (`verify.verbs.kinds`) -> who tells what was found."""
