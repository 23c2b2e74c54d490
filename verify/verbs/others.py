"""What `check` says of files that hold no program: placements, reduction programs, schedules, rule libraries, and
certificates together with their problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from ...models.egraphs.egraph import EGraph
from ...models.problem.selection_problem import SelectionProblem
from ...proofs.collective_programs.file import decode_reduction
from ...proofs.container.archive import Member
from ...proofs.egraphs.certificate import ExtractionCertificate
from ...proofs.schedules.certificate import ScheduleCertificate
from ...proofs.selection.certificates import SelectionCertificate
from ..rewrites.library import CheckedLibrary
from ..verdict import CheckResult
from .kinds import Kind
from .request import MACHINE, Request, claim_line
from .subject import Subject, content_as

NOTHING: Final = frozenset[str]()
ABOUT = TypeVar("ABOUT")


def tell_placements(path: str, members: Mapping[str, Member], request: Request, kind: Kind) -> Subject:
    """A list of placements."""
    request.refuse(path, "a list of placements", NOTHING)
    found = kind.judge(members, request.effort, request.about)
    return Subject("placements", found.identity, found.results, claim_line)


def tell_reduction(path: str, members: Mapping[str, Member], request: Request, kind: Kind) -> Subject:
    """Reduction programs; their cost models hold machines."""
    specs = decode_reduction(members).costs
    machines = tuple({spec.machine.sha256(): spec.machine for spec in specs}.values())
    request.refuse(path, "a file of reduction programs", frozenset({MACHINE} if machines else ()))
    found = kind.judge(members, request.effort, request.about)
    return Subject("reduction programs", found.identity, found.results, claim_line, machines=machines)


def tell_schedule(path: str, members: Mapping[str, Member], request: Request, kind: Kind) -> Subject:
    """A schedule."""
    request.refuse(path, "a schedule", NOTHING)
    found = kind.judge(members, request.effort, request.about)
    schedule = content_as(found, ScheduleCertificate)
    assumed = tuple(f"assumed: {a}" for a in found.main.assumptions)
    return Subject("schedule", found.identity, found.results, lambda r: _schedule_line(r, schedule), rest=assumed)


def tell_equality(path: str, members: Mapping[str, Member], request: Request, kind: Kind) -> Subject:
    """Two programs that are equal."""
    request.refuse(path, "a proof that two programs are equal", NOTHING)
    found = kind.judge(members, request.effort, request.about)
    assumed = tuple(f"assumed: {a}" for a in found.main.assumptions)
    return Subject("equality", found.identity, found.results, claim_line, rest=assumed)


def tell_library(path: str, members: Mapping[str, Member], request: Request, kind: Kind) -> Subject:
    """A rule library."""
    request.refuse(path, "a rule library", NOTHING)
    found = kind.judge(members, request.effort, request.about)
    checked = content_as(found, CheckedLibrary)
    narrow = tuple(f"{r.name}: {r.word} at degree 1 only" for r in checked.rules if r.degree_one)
    return Subject(
        checked.library.title, found.identity, found.results, lambda r: f"{claim_line(r)}; {r.space}", rest=narrow
    )


def tell_extraction(path: str, members: Mapping[str, Member], request: Request, kind: Kind) -> Subject:
    """An extraction from one of the e-graphs that were given."""
    request.refuse(path, "an extraction", NOTHING)
    found = kind.judge(members, request.effort, request.about)
    egraph = _about(request, content_as(found, ExtractionCertificate).egraph_sha256, EGraph)
    rest = tuple(f"assumed: {a}" for a in found.main.assumptions)
    return Subject("extraction", found.identity, found.results, lambda r: _extraction_line(r, egraph), rest=rest)


def tell_certificate(path: str, members: Mapping[str, Member], request: Request, kind: Kind) -> Subject:
    """A certificate about one of the problems that were given."""
    request.refuse(path, "a certificate of a selection problem", NOTHING)
    found = kind.judge(members, request.effort, request.about)
    problem = _about(request, content_as(found, SelectionCertificate).problem_sha256, SelectionProblem)
    assumed = f", assumptions {', '.join(problem.assumptions)}" if problem.assumptions else ""
    unit = f"unit 1/{problem.scale} {problem.unit_name}"
    told: dict[str, object] = {
        "problem": problem.name,
        "space": problem.space,
        "unit": problem.unit_name,
        "assumptions": list(problem.assumptions),
    }
    return Subject(
        "certificate",
        found.identity,
        found.results,
        lambda r: claim_line(r, problem.scale, problem.unit_name == "s"),
        rest=(f"stated by the problem file, not checked: space {problem.space}, {unit}{assumed}",),
        told=told,
    )


def _about(request: Request, digest: str, wanted: type[ABOUT]) -> ABOUT:
    problem = request.about[digest]
    if not isinstance(problem, wanted):  # the checker has looked
        raise TypeError(f"{type(problem).__name__} is no {wanted.__name__}")
    return problem


def _extraction_line(result: CheckResult, egraph: EGraph) -> str:
    """Costs as the decimal numbers that the e-graph's are."""
    parts = [f"  {result.kind:<12} {result.verdict.value}"]
    if result.cost is not None:
        parts.append(f"cost {egraph.decimal(result.cost)}")
    if result.lower_bound is not None and result.lower_bound != result.cost:
        parts.append(f"lower bound {egraph.decimal(result.lower_bound)}")
    return "; ".join(part for part in (*parts, result.space, result.reason) if part)


def _schedule_line(result: CheckResult, schedule: ScheduleCertificate) -> str:
    """A makespan in the unit of its problem, exactly."""
    parts = [f"  {result.kind:<12} {result.verdict.value}"]
    if result.cost is not None:
        parts.append(f"makespan {schedule.text(result.cost)}")
    if result.lower_bound is not None and result.lower_bound != result.cost:
        parts.append(f"lower bound {schedule.text(result.lower_bound)}")
    return "; ".join(part for part in (*parts, result.space, result.reason) if part)
