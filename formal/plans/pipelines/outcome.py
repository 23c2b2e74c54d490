"""What a search over cases has found, and what is claimed of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....models.communication.choices import Choices
from ....models.cost.selection import DecisionKind
from ....models.pipelines.views import cut_levels
from ....proofs.pipelines.certificate import Overlap, PipelineCertificate, Stage
from .case import Case
from .interleaved import InterleavedCase
from .job import Job
from .phases import StagePlan
from .scheduled import Scheduled

Triple = tuple[int, int, int]
"""Stages, micro-batches, chunks a stage."""


@dataclass(frozen=True, eq=False)
class SearchOutcome:
    """The best plan (None: none was found), all cases with their bounds, and the least of these; `failed`: those
    in which no plan was found in all the time that it was looked for.
    """

    job: Job
    best: Scheduled | None
    cases: list[Case]
    lower_bound: int
    failed: frozenset[Triple] = frozenset()

    def certificate(self) -> PipelineCertificate:
        """What is claimed of the best plan."""
        best, job = self.best, self.job
        if best is None:
            raise ValueError("only a plan has a certificate")
        needed = [case for case in self.cases if case.coarse < self.lower_bound]
        found = [leaf for c in needed for leaf in (*c.leaves.values(), *c.passes.values(), *c.weighed_leaves)]
        distinct = {id(leaf): leaf for leaf in found}
        return PipelineCertificate(
            job.graph,
            job.machine,
            job.where.name,
            job.memory,
            job.division,
            tuple((c.stages, c.micro) for c in self.cases if not isinstance(c, InterleavedCase)),
            best.case.micro,
            tuple(Stage(s.first, s.end, _choices(best.case, s)) for s in best.stages),
            best.quantum,
            best.schedule,
            best.step,
            self.lower_bound,
            tuple(distinct.values()),
            any(len(cut_levels(job.machine, c.stages)) > 1 for c in self.cases),
            job.forbidden,
            best.case.chunks,
            tuple(c.claim(c.coarse >= self.lower_bound) for c in self.cases if isinstance(c, InterleavedCase)),
            _orders(best.stages) if job.overlap else None,
        )


def _orders(stages: Sequence[StagePlan]) -> Overlap:
    """The orders of all phases, equal ones once."""
    number: dict[tuple[int, ...], int] = {}
    rows = [tuple(number.setdefault(order, len(number)) for order in stage.orders) for stage in stages]
    return Overlap(tuple(number), tuple((f, b, u) for f, b, u in rows))


def _choices(case: Case, stage: StagePlan) -> Choices:
    decisions = case.pieces.planning.decisions
    found = [(decisions[v], decisions[v].placement(x)) for v, x in sorted(stage.choices.items())]
    return Choices(
        tuple((d.name, p) for d, p in found if d.kind is DecisionKind.OPERATOR),
        tuple((d.name, p) for d, p in found if d.kind is DecisionKind.COPY),
    )
