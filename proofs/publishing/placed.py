"""The placements of a plan that has other parts, as a plan of placements alone: to be executed, laid out, drawn; and
what these parts are called.

Its certificate is about another problem than that of plans, so what is made here is never checked or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from ..overlap.certificate import OverlapCertificate
from ..pipelines.certificate import PipelineCertificate
from ..plan.bundle import Plan
from ..views.certificate import SubmeshCertificate

if TYPE_CHECKING:
    from ...models.program.graph import Graph
    from .publisher import AnyPlan


def placed_plan(held: Plan | OverlapCertificate | SubmeshCertificate) -> Plan:
    """Graph, machine and choices; the order of an overlapped plan is left out."""
    match held:
        case Plan():
            return held
        case OverlapCertificate():
            return Plan(held.graph, held.machine, held.space, held.memory, held.choices, (), held.least, ())
        case SubmeshCertificate():
            return Plan(held.graph, held.machine, held.space, held.memory, held.choices, (), held.least, ())


def asked_of(held: AnyPlan) -> Graph:
    """The program that a plan is about: of a joint plan the user's, which its own is equal to."""
    return held.user_graph if isinstance(held, Plan) else held.graph


def parts_among(held: AnyPlan, job: Graph) -> str:
    """`parts_of` one plan of several, with its program where that is neither the job's nor said by the parts."""
    other = not isinstance(held, Plan) and held.graph.sha256() != job.sha256()
    return f"{parts_of(held)}, of {held.graph.name}" if other else parts_of(held)


def parts_of(held: AnyPlan) -> str:
    """The parts of a plan in words."""
    match held:
        case PipelineCertificate():
            chunks = f" of {held.chunks} chunks" if held.chunks > 1 else ""
            beside = "" if held.overlap is None else ", reshardings beside operators"
            stages = f"{held.views} stage{'s' if held.views > 1 else ''}{chunks}"
            return f"{stages}, {held.micro} micro-batch{'es' if held.micro > 1 else ''}{beside}"
        case SubmeshCertificate():
            used = len({p.view for _, p in held.choices.operators} - {None})
            return f"{used} submeshes in use"
        case OverlapCertificate():
            return "reshardings beside operators"
        case Plan():
            return "operators one after another" if held.joint is None else "a rewritten program"
        case _:
            assert_never(held)
