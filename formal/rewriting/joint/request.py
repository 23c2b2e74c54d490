"""Carries out requests for joint plans: what the command line and the Python way in ask alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....models.cost.selection import Notify
from ....models.program.graph import Graph
from ....models.sources.training import TrainingStep
from ....proofs.joint.books import Rewrites
from ....proofs.plan.bundle import Plan
from ...plans.plan import fitting_space
from ...plans.request import TENSORS, PlanRequest, program_of
from ...plans.time_limit import TimeLimit
from ...selection.model.clock import Clock, Progress
from .job import Again, Joint, JointJob, has_hosts
from .rules.library import rules_of
from .saturate import SEARCHED, Rule
from .solve import joint_plan, plan_job_jointly

RULES_SHARE = 0.4
"""Share of the search for programs that compute nothing again, where tensors may be; the others begin with its plan."""
KEPT_SHARE = 0.4
"""Share of what is left for programs that take nothing to hosts, where they may; the others begin with its plan."""
SEARCH_SHARE = 0.7
"""Share of the time limit for tables and search: the check builds the tables of all programs again."""


@dataclass(frozen=True, eq=False)
class JointOutcome:
    """`graph`: what was asked about, the training `step` or the model; `plan`: None where none was found."""

    graph: Graph
    step: TrainingStep | None
    found: Joint
    plan: Plan | None


def rules_for(rewrites: Rewrites) -> Mapping[str, Rule]:
    """The rules that are built in, and those of libraries."""
    if rewrites.none:
        return {}
    return {**SEARCHED, **{f"library {b.identity[:12]}": rules_of(b) for b in rewrites.books}}


def carry_out_jointly(
    request: PlanRequest,
    limit: TimeLimit,
    progress: Progress | None = None,
    notify: Notify | None = None,
    of: TrainingStep | None = None,
) -> JointOutcome:
    """The best plan of all equal programs that was found within `limit`.  `of`: the training step whose program a
    request without `train` is about, if it is one's.
    """
    graph, step = program_of(request)
    known = step or of
    where = request.space or fitting_space(graph, request.machine)
    begun = limit.elapsed_s
    rules = rules_for(request.rewrites)

    def search(clock: Clock, again: Again | None) -> Joint:
        job = JointJob(
            graph,
            request.machine,
            where,
            clock=clock,
            gap=request.gap,
            threads=request.threads,
            engine=request.engine,
            progress=progress,
            notify=notify,
            memory_limit=request.memory,
            rules=rules,
            rounds=request.rewrites.rounds,
            most=request.rewrites.nodes,
            rewriting_s=request.rewrites.seconds,
            again=again,
        )
        return plan_job_jointly(job)

    with limit.phase("search"):
        clock = limit.clock.at_most(None if limit.limit_s is None else SEARCH_SHARE * limit.limit_s)
        if request.recompute != TENSORS or known is None:
            found = search(clock, None)
        else:
            first = search(clock.share(RULES_SHARE), None) if rules else None
            if has_hosts(request.machine):
                first = search(clock.share(KEPT_SHARE), Again(known, first))
            found = search(clock, Again(known, first, has_hosts(request.machine)))
    limit.note_check(limit.elapsed_s - begun)  # most of it tables, which the check makes again
    return JointOutcome(graph, step, found, joint_plan(found))
