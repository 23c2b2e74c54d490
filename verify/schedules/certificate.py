"""Checks schedules: `Optimal`, or `WithinGap` where the bound is below the makespan.  No search, no
solver.

The schedule is tested against the plain problem (precedences, streams, memory), its end against the stated makespan;
the argument of the bound is replayed on the network, which for a pipeline is the ordered one.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...models.problem.claims import Verdict
from ...models.schedules.pipeline import Pipeline
from ...proofs.container.archive import Member
from ...proofs.container.effort import OBJECT
from ...proofs.schedules.certificate import ScheduleCertificate
from ...proofs.schedules.file import decode_schedule
from ..budget import Budget
from ..verdict import CheckResult
from .bounds import BadBound, lower_bound
from .network import fault, network
from .pipeline import pipeline_network

SYNCHRONOUS = "synchronous weights: every micro-batch of a step sees the same"
SENDS = "a send delays, and waits for no other send"


def check_members(
    members: Mapping[str, Member], budget: Budget | None = None
) -> tuple[ScheduleCertificate, CheckResult]:
    """The certificate of a container, and its verdict; `ContainerError` if it is none."""
    certificate = decode_schedule(members)
    return certificate, check_schedule(certificate, budget)


def check_schedule(certificate: ScheduleCertificate, whole: Budget | None = None) -> CheckResult:
    """Verdict on the schedule and its bound.  `whole`: what is left of the check that it is a part of."""
    subject = certificate.subject
    budget = Budget.of(len(certificate.starts) + certificate.rows, whole)
    budget.charge(OBJECT * 16 * len(certificate.starts), "the schedule")
    kind = "Optimal" if certificate.lower_bound == certificate.makespan else "WithinGap"
    assumptions: tuple[str, ...] = ()
    if isinstance(subject, Pipeline):
        plain, memory = pipeline_network(subject, False)
        net, _ = pipeline_network(subject, True)
        limit = "unlimited memory" if subject.memory is None else f"{subject.memory} activations"
        space = f"{subject.stages} stages, {subject.micro_batches} micro-batches, {limit}"
        if subject.chunks > 1:
            space += f", {subject.chunks} chunks a stage{' back and forth' if subject.wave else ''}"
        sends = subject.parts > 1 and (subject.send > 0 or any(subject.hops))
        assumptions = (SYNCHRONOUS, *([SENDS] if sends else []))
    else:
        plain, memory = network(subject)
        net, space = plain, subject.name

    def refutation(reason: str) -> CheckResult:
        return CheckResult(kind, Verdict.REFUTED, None, None, space, assumptions, reason)

    broken = fault(plain, memory, certificate.starts)
    if broken:
        return refutation(broken)
    end = int((certificate.starts + plain.times).max())
    if end != certificate.makespan:
        return refutation(f"the schedule ends at {end}, the claim says {certificate.makespan}")
    try:
        bound = lower_bound(net, memory, certificate.bound, budget)
    except BadBound as error:
        return refutation(f"the lower bound does not hold: {error}")
    if bound < certificate.lower_bound:
        return refutation(f"the argument gives a lower bound of {bound}, the claim says {certificate.lower_bound}")
    if bound > end:
        return refutation(f"the argument gives a lower bound of {bound} for a schedule that ends at {end}")
    return CheckResult(kind, Verdict.PROVED, end, certificate.lower_bound, space, assumptions)
