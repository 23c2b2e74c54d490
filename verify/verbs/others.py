"""This module reads the kinds of files that hold no program, for `check`: placements, reduction programs, schedules,
rule libraries, and certificates together with their problems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ...models.egraphs.egraph import EGraph
from ...models.problem.selection_problem import SelectionProblem
from ...proofs.collective_programs.file import PLACEMENT, REDUCTION, decode_reduction
from ...proofs.container.archive import Member, identity
from ...proofs.container.canonical import ContainerError
from ...proofs.egraphs.file import EXTRACTION, decode_extraction
from ...proofs.schedules.certificate import ScheduleCertificate
from ...proofs.schedules.file import SCHEDULE
from ...proofs.selection.file import decode_certificate
from ..collective_programs.program import check_members, check_reduction
from ..egraphs.extraction import check_extraction
from ..rewrites.library import HEAD as RULES
from ..rewrites.library import check_members as check_library_members
from ..rewrites.library import library_result
from ..schedules.certificate import check_members as check_schedule_members
from ..selection.certificate import check_selection
from ..verdict import CheckResult
from .request import MACHINE, Request, claim_line
from .subject import Subject

NOTHING: Final = frozenset[str]()


def read_placements(path: str, members: Mapping[str, Member], request: Request) -> Subject:
    """Check a list of placements."""
    request.refuse(path, "a list of placements", NOTHING)
    return Subject("placements", identity(members), check_members(members, request.budget), claim_line)


def read_reduction(path: str, members: Mapping[str, Member], request: Request) -> Subject:
    """Check reduction programs; their cost models hold machines."""
    certificate = decode_reduction(members)
    machines = tuple({spec.machine.sha256(): spec.machine for spec in certificate.costs}.values())
    request.refuse(path, "a file of reduction programs", frozenset({MACHINE} if machines else ()))
    results = check_reduction(certificate, request.budget)
    return Subject("reduction programs", identity(members), results, claim_line, machines=machines)


def read_schedule(path: str, members: Mapping[str, Member], request: Request) -> Subject:
    """Check a schedule."""
    request.refuse(path, "a schedule", NOTHING)
    schedule, claim = check_schedule_members(members, request.budget)
    assumed = tuple(f"assumed: {a}" for a in claim.assumptions)
    return Subject("schedule", identity(members), (claim,), lambda r: _schedule_line(r, schedule), rest=assumed)


def read_library(path: str, members: Mapping[str, Member], request: Request) -> Subject:
    """Check a rule library."""
    request.refuse(path, "a rule library", NOTHING)
    library, rules = check_library_members(members, request.budget)
    narrow = tuple(f"{r.name}: {r.word} at degree 1 only" for r in rules if r.degree_one)
    return Subject(
        library.title,
        identity(members),
        (library_result(rules),),
        lambda r: f"{claim_line(r)}; {r.space}",
        rest=narrow,
    )


OTHERS: Final[Mapping[str, Callable[[str, Mapping[str, Member], Request], Subject]]] = {
    REDUCTION: read_reduction,
    PLACEMENT: read_placements,
    SCHEDULE: read_schedule,
    RULES: read_library,
}
"""Member that gives the kind away -> who reads it."""


def read_certificate(
    path: Path, held: Mapping[str, Member], problems: Mapping[str, SelectionProblem | EGraph], request: Request
) -> Subject:
    """Check a certificate about one of the problems."""
    if EXTRACTION in held:
        request.refuse(str(path), "an extraction", NOTHING)
        extraction = decode_extraction(held)
        egraph = _about(path, extraction.egraph_sha256, problems, "an extraction from the e-graph", "e-graph")
        if not isinstance(egraph, EGraph):
            raise ContainerError(str(path), "is an extraction, and the problem with its hash is no e-graph")
        result = check_extraction(egraph, extraction, request.budget)
        rest = tuple(f"assumed: {a}" for a in result.assumptions)
        return Subject("extraction", identity(held), (result,), lambda r: _extraction_line(r, egraph), rest=rest)
    request.refuse(str(path), "a certificate of a selection problem", NOTHING)
    certificate = decode_certificate(held)
    problem = _about(path, certificate.problem_sha256, problems, "a certificate of the problem", "problem")
    if isinstance(problem, EGraph):
        raise ContainerError(str(path), "is a certificate of a selection problem, and its hash is that of an e-graph")
    result = check_selection(problem, certificate, certificate.problem_sha256, request.budget)  # loaded, so checked
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
        identity(held),
        (result,),
        lambda r: claim_line(r, problem.scale, problem.unit_name == "s"),
        rest=(f"stated by the problem file, not checked: space {problem.space}, {unit}{assumed}",),
        told=told,
    )


def _about(
    path: Path, digest: str, problems: Mapping[str, SelectionProblem | EGraph], what: str, kind: str
) -> SelectionProblem | EGraph:
    if digest not in problems:
        raise ContainerError(str(path), f"is {what} with sha256 {digest[:16]}..; give that {kind}'s file too")
    return problems[digest]


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
