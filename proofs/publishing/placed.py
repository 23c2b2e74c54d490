"""The placements of a plan that has other parts, as a plan of placements alone: to be executed, laid out, drawn.

Its certificate is about another problem than that of plans, so what is made here is never checked or written.
"""

from __future__ import annotations

from ..overlap.certificate import OverlapCertificate
from ..plan.bundle import Plan
from ..views.certificate import ViewsCertificate


def placed_plan(held: Plan | OverlapCertificate | ViewsCertificate) -> Plan:
    """Graph, machine and choices; the order of an overlapped plan is left out."""
    match held:
        case Plan():
            return held
        case OverlapCertificate():
            return Plan(held.graph, held.machine, held.space, held.memory, held.choices, (), held.least, ())
        case ViewsCertificate():
            return Plan(held.graph, held.machine, held.space, None, held.choices, (), held.least, ())
