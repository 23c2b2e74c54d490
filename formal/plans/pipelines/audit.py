"""Whether a published pipelined configuration is the best that there is.

optimal    its best completion takes no longer than what no plan of the enumerated pairs goes below
refuted    a plan that takes less than any completion of it: t(plan) < bound(configuration), and certificates say the
           bound (that a stage's weights alone are more than the memory is a sum that no certificate holds: undecided)
infeasible nothing fits the memory: of one stage, a step in micro-batches keeps no less than one micro-batch does, so
           that a certificate that no placement of a micro-batch's step fits is one for the step
undecided  neither; the interval is said
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from ....models.layout.targets.degrees import Flags
from ....models.pipelines.division import divide
from ....models.pipelines.micro import batch_of
from ....models.problem.claims import Infeasible
from ....models.problem.selection_problem import SelectionProblem
from ....models.text import InputError
from ....proofs.selection.certificates import SelectionCertificate
from ...explain.audit import Outcome
from ...selection.model.clock import Clock
from ...selection.solve import solve
from ..plan import default_space
from ..time_limit import TimeLimit
from .bounded import NO_STEP
from .given import Configured, complete_configuration, micro_batches
from .job import Job
from .outcome import SearchOutcome
from .request import AUTO, PipelineRequest, pairs_of, triple_of
from .search import Tell, search_pairs

GIVEN_SHARE, SEARCH_SHARE = 0.3, 0.65
"""Of the time limit: for the configuration, for the search; the rest is the checker's."""

NOTHING_SHARE = 0.5
"""Of the time that is left, for a certificate that nothing fits."""


@dataclass(frozen=True, eq=False)
class PipelineAudit:
    """`given`: the configuration; `found`: the best plan and the bound over the enumerated pairs; `nothing`: why
    nothing fits.
    """

    given: Configured
    found: SearchOutcome
    outcome: Outcome
    gap: Fraction
    nothing: tuple[tuple[SelectionCertificate, SelectionProblem], ...] = ()

    @property
    def plan(self) -> SearchOutcome:
        """What is written: the better plan where there is one, else the configuration, with the bound of all."""
        best, own = self.found.best, self.given.best
        if own is None or (best is not None and best.step < own.step):
            return self.found
        return self.configuration

    @property
    def configuration(self) -> SearchOutcome:
        """The configuration as a plan, with the bound of all pairs."""
        own = self.given.best
        bound = self.found.lower_bound if own is None else min(self.found.lower_bound, own.step)
        return replace(self.found, best=own, lower_bound=bound)


def job_of(request: PipelineRequest) -> tuple[Job, int]:
    """What is planned, and the batch of a step.  Raises `InputError` where it is no step, or cannot be cut."""
    if request.recompute == AUTO:
        raise InputError("a configuration says itself what it recomputes: give --recompute none, all, or globs")
    step = request.make(request.recompute)
    if step is None:
        raise InputError("a pipelined configuration is one of a training step: give --train sgd or --train adam too")
    division = divide(step.graph, step.passes)
    where = request.space or default_space(request.machine)
    return Job(step.graph, division, request.machine, where, request.memory), batch_of(step.graph)


def audit_pipeline(request: PipelineRequest, flags: Flags, limit: TimeLimit, tell: Tell | None = None) -> PipelineAudit:
    """The configuration against all plans of the pairs that are asked for: its own (P:M, or nothing said), or auto's.

    Raises `InputError` for what does not fit.
    """
    if triple_of(request.stages) is not None:
        raise InputError(f"--pipeline {request.stages}: configurations are taken with one chunk a stage; write P:M")
    job, batch = job_of(request)
    step = request.make(request.recompute)
    assert step is not None
    units, memory = job.division.units, request.memory
    pairs = [] if request.stages == "" else pairs_of(request.stages, step, request.machine, units, memory)
    said = pairs[0][1] if pairs and request.stages != AUTO else None
    if said is not None and pairs[0][0] != flags.pp:
        raise InputError(f"--pipeline {request.stages}: the configuration has {flags.pp} stages")
    micro = micro_batches(flags, request.machine.devices, batch, said)
    pairs = sorted({*pairs, (flags.pp, micro)})
    with limit.phase("search"):
        given = complete_configuration(job, flags, micro, limit.clock.share(GIVEN_SHARE))
        found = search_pairs(job, pairs, limit.clock.share(SEARCH_SHARE / (1 - GIVEN_SHARE)), request.gap, tell)
        nothing = _nothing(given, found, limit.clock)
    outcome = Outcome.INFEASIBLE if nothing else _decided(given, found, request.gap)
    return PipelineAudit(given, found, outcome, request.gap, nothing)


def _nothing(
    given: Configured, found: SearchOutcome, clock: Clock
) -> tuple[tuple[SelectionCertificate, SelectionProblem], ...]:
    """Certificates that nothing fits, one per number of micro-batches; none where one is missing."""
    if given.best is not None or found.best is not None or any(c.stages > 1 for c in found.cases):
        return ()
    out = []
    for case in found.cases:
        problem = case.pieces.planning.problem
        certificate = solve(problem, clock=clock.share(NOTHING_SHARE)).certificate
        if certificate is None or not isinstance(certificate.claim, Infeasible):
            return ()
        out.append((certificate, problem))
    return tuple(out)


def _decided(given: Configured, found: SearchOutcome, gap: Fraction) -> Outcome:
    own, best = given.best, found.best
    if own is not None and own.step <= found.lower_bound:
        return Outcome.OPTIMAL
    if best is not None and best.step < given.bound < NO_STEP:
        return Outcome.REFUTED
    if own is not None and gap and own.step * (1 - gap) <= found.lower_bound:
        return Outcome.WITHIN_GAP
    return Outcome.UNDECIDED
