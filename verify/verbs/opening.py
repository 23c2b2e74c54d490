"""Opens files for verbs that use them: read, judged, and refused with the reason where a claim is refuted.

What is said of a file is the checker's: the weakest of its claims decides (`publication`).  What belongs to plans alone
is loaded with the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor
from pathlib import Path
from typing import TYPE_CHECKING, assert_never, cast

from ...models.problem.claims import Infeasible, LowerBound, Optimal, Verdict, WithinGap
from ...models.text import InputError
from ...proofs.container.archive import LIMITS, read_container, read_file
from ...proofs.container.canonical import ContainerError
from ...proofs.container.kinds import SIZES, require_kind, require_plan
from ...proofs.publishing.publisher import Among, Opened, Published, RefutedPlan
from ...proofs.selection.certificates import SelectionCertificate
from .kinds import Effort, Judged, Tied, require_known

if TYPE_CHECKING:
    from ...models.cost.selection import Planning
    from ...proofs.collective_programs.certificate import ReductionCertificate
    from ...proofs.plan.error_bounds import ErrorBounds
    from ...proofs.portfolio.sizes import Pick
    from ...proofs.publishing.publisher import AnyPlan
    from ..portfolio.sizes import CheckedSizes


def open_plan(path: Path) -> Opened:
    """Read and check a plan of whatever kind: nothing is done with one that is refuted."""
    try:
        return read_plan(read_file(path, LIMITS.file), path)
    except ContainerError as error:
        raise ContainerError(f"{path}, {error.place}", error.message) from None


def read_plan(data: bytes, path: Path | None = None) -> Opened:
    """The same of the bytes of a plan; `path`: where they stand."""
    members, effort = read_container(data), Effort()
    require_plan(members)
    judged = require_known(members, "plan").judge(members, effort, {})
    if (bad := judged.first_refuted) is not None:
        where = "" if path is None else f"{path}: "
        raise RefutedPlan(f"{where}{bad.kind} is refuted: {bad.reason}")
    return open_judged(judged, effort, path, data)


def open_sized(path: Path, pick: Pick) -> Opened:
    """The plan for one size of a file of plans for a range of them: the placements of its class.  Its cost and bound
    are what is shown of the size.  Raises `InputError` for a size that the file says nothing of.
    """
    try:
        data, effort = read_file(path, LIMITS.file), Effort()
        members = read_container(data)
        require_kind(members, SIZES)
        judged = require_known(members, "plans").judge(members, effort, {})
    except ContainerError as error:
        raise ContainerError(f"{path}, {error.place}", error.message) from None
    if (bad := judged.first_refuted) is not None:
        raise RefutedPlan(f"{path}: {bad.kind} is refuted: {bad.reason}")
    checked = cast("CheckedSizes", judged.held)
    head, said = checked.held.head, publication(judged, effort, path, len(data))
    size = pick(head, checked.programs)
    if not checked.classes:
        raise InputError(f"{path}: {said.reason}")
    if not head.holds(size):
        raise InputError(f"{path}: is for {head.words}, and not for {head.name} = {size}")
    plan, (cost, bound) = checked.plans[head.plan_for(size)], checked.shown_at(size)
    shown = replace(said, cost=floor(cost), lower_bound=max(0, ceil(bound)))
    return Opened(replace(plan, graph=checked.programs.at(size).check(), bars=None), shown, judged.scale, data)


def open_programs(path: Path) -> tuple[ReductionCertificate, Published]:
    """Read and check reduction programs."""
    try:
        data, effort = read_file(path, LIMITS.file), Effort()
        members = read_container(data)
        require_kind(members, "reduction.json")
        judged = require_known(members, "reduction").judge(members, effort, {})
    except ContainerError as error:
        raise ContainerError(f"{path}, {error.place}", error.message) from None
    if (bad := judged.first_refuted) is not None:
        raise RefutedPlan(f"{path}: {bad.kind} is refuted: {bad.reason}")
    return cast("ReductionCertificate", judged.held), publication(judged, effort, path, len(data))


def judge_error_bounds(planning: Planning, x: tuple[int, ...], bars: ErrorBounds, bound: int | None) -> Published:
    """What the checker says of the machines within a machine's error bounds."""
    from ..plan.error_bounds import wrong_error_bounds

    wrong = wrong_error_bounds(planning, x, bars, bound)
    verdict = Verdict.REFUTED if wrong else Verdict.PROVED
    return Published(verdict, "Bars", planning.problem.cost_of(x), None, wrong, "", None, 0)


def publication(judged: Judged[object], effort: Effort, path: Path | None, size: int) -> Published:
    """What was found, for whoever made or reads the file: the weakest of its claims decides."""
    main = judged.main
    said = judged.results if isinstance(judged.held, Tied) else (main,)
    weakest = next((r for r in (main, *judged.results) if r.verdict is not Verdict.PROVED), main)
    return Published(
        weakest.verdict,
        main.kind,
        main.cost,
        main.lower_bound,
        weakest.reason,
        judged.identity,
        path,
        size,
        tuple(dict.fromkeys(a for r in said for a in r.assumptions)),
        effort.budget.needs_large,
        among=tuple(among(judged)),
    )


def among(judged: Judged[object]) -> Iterator[Among]:
    """The plans of a portfolio."""
    if not judged.among:
        return
    from ...proofs.publishing.placed import asked_of, parts_among

    job = asked_of(cast("AnyPlan", judged.among[0].held))
    for one in judged.among:
        cost, bound = one.main.cost, Fraction(max(0, one.main.lower_bound or 0), one.scale)
        step = None if cost is None else Fraction(cost, one.scale)
        parts = parts_among(cast("AnyPlan", one.held), job)
        yield Among(parts, step, bound, one is judged.chosen_plan)


def open_judged(judged: Judged[object], effort: Effort, path: Path | None, data: bytes) -> Opened:
    """A plan with what was found; of several the one that is taken, with what is claimed beside all of them."""
    from ...proofs.plan.bundle import Plan
    from ...proofs.publishing.placed import asked_of

    said = publication(judged, effort, path, len(data))
    job = asked_of(cast("AnyPlan", judged.among[0].held)) if judged.among else None
    held = cast("AnyPlan", judged.chosen_plan.held)
    if isinstance(held, Plan) and said.verdict is Verdict.UNDECIDED:
        held = replace(held, certificate=with_shown_bound(held.certificate, said.lower_bound))
    return Opened(held, said, judged.scale, data, judged.planning, job)


def with_shown_bound(certificate: SelectionCertificate, bound: int | None) -> SelectionCertificate:
    """The certificate of a plan without what it claims and does not show, so that no verb says it: with the `bound`
    that it shows, which is 0 at least, as times are.
    """
    claim, least = certificate.claim, max(0, bound or 0)
    match claim:
        case Optimal() | WithinGap():
            return replace(certificate, claim=WithinGap(claim.solution, claim.cost, min(least, claim.cost)))
        case LowerBound() | Infeasible():
            return replace(certificate, claim=LowerBound(least))
        case _:
            assert_never(claim)
