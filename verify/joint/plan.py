"""Checks joint plans, and plans of either kind.

A joint plan holds, besides the plan of one program, an e-graph with the user's graph in it and a derivation.  Claims:

    Equivalent     every operator of the e-graph computes the tensor that it writes (`verify/joint/derivation.py`), and
                   the program of the plan is one of the e-graph: it computes what the user's graph does
    Parts          the problem over all programs, built again, is the one that the certificate is about; it has their
                   choices and edges (`skeleton`) and states its assumptions; the plan is the claimed solution, and
                   costs as the plan of its program alone what the claim says
    Space          the choices of every vertex are all placements of the space
    Optimal, ..    the claim of the certificate: nothing in the e-graph under any placement of the space is cheaper
    Entries        the numbers of the problem are what index sets give (`entries`), its memory rows included (`rows`)
    Delivers, Bytes, and the entries of the program alone: as of every plan (`verify/plan/plan.py`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...models.cost.limits import Counter, TooLarge
from ...models.joint.problem import JointPlanning, JointSubject, build_joint
from ...models.layout.placement import space
from ...models.problem.claims import Optimal, Verdict, WithinGap
from ...proofs.container.archive import Member
from ...proofs.container.canonical import NO_ROOM, ContainerError
from ...proofs.joint.file import Jointly
from ...proofs.plan.bundle import Plan
from ..budget import CELLS, Budget
from ..plan.assumptions import all_assumptions
from ..plan.effort import ENTRY, charge_tables
from ..plan.plan import PlanCheck, Progress, check_plan, check_single, read_checked
from ..selection.certificate import check_selection
from ..verdict import CheckResult
from .derivation import wrong_derivation
from .entries import Numbers
from .program import wrong_choices, wrong_cost, wrong_program
from .rows import wrong_rows
from .skeleton import Programs, wrong_skeleton

PAIR = 1 << 11
"""Cells of comparing two blocks of choices: when they are built, and when they are checked."""


def check_any_plan(
    source: Path | bytes | Mapping[str, Member],
    *,
    samples: int = 1000,
    cells: int = CELLS,
    notify: Progress | None = None,
    budget: Budget | None = None,
) -> PlanCheck:
    """Check every claim of a plan file, joint or not; arguments and errors are those of `check_plan`."""
    plan, name = read_checked(source)
    budget = Budget.with_large() if budget is None else budget
    if plan.joint is None:
        return check_single(plan, name, samples, cells, notify, budget)
    try:
        return _check(plan, plan.joint, name, samples, cells, notify, budget)
    except TooLarge as error:
        raise ContainerError("plan", f"is too large to be checked: {error}") from None
    except ContainerError:
        raise
    except MemoryError:
        raise ContainerError("plan", NO_ROOM) from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ContainerError("plan", f"is malformed: {type(error).__name__}: {str(error)[:300]}") from None


def _check(
    plan: Plan, joint: Jointly, name: str, samples: int, cells: int, notify: Progress | None, budget: Budget
) -> PlanCheck:
    where = space(plan.space)
    if where.vocabulary:  # the problem below holds all placements of the space
        raise ContainerError(
            "plan", f"is joint over the space {where.name!r}: vocabularies are for plans of one program"
        )
    unequal = wrong_derivation(joint.egraph, joint.derivation, budget) or _of_the_egraph(plan, joint)
    if unequal:
        refuted = CheckResult("Equivalent", Verdict.REFUTED, None, None, plan.space, (), unequal)
        alone = check_plan(plan, samples=samples, cells=cells, notify=notify, budget=budget, alone=True)
        return PlanCheck(name, (refuted, *alone.results), plan, alone.planning)
    charge_tables(joint.egraph.union, plan.machine, where, budget, "plan")

    def room(pairs: int, entries: int) -> None:
        budget.charge(PAIR * pairs + ENTRY * entries, "plan")

    planning = build_joint(
        JointSubject(
            joint.egraph,
            joint.derivation.rounds,
            plan.machine,
            where,
            level=joint.tags,
            memory_limit=plan.memory_limit,
            library=joint.derivation.rules_name,
        ),
        notify,
        room=room,
    )
    alone = check_plan(plan, samples=samples, cells=cells, notify=notify, budget=budget, alone=True)

    def result(kind: str, wrong: str) -> CheckResult:
        verdict = Verdict.REFUTED if wrong else Verdict.PROVED
        return CheckResult(kind, verdict, None, None, plan.space, planning.problem.assumptions, wrong)

    programs = Programs(joint.egraph)
    structure = wrong_skeleton(planning, programs)
    results = [
        result("Equivalent", ""),
        result("Parts", f"problem: {structure}" if structure else _wrong_part(plan, joint, planning, alone)),
    ]
    certified = check_selection(planning.problem, plan.certificate, budget=budget)
    certified = replace(certified, kind=type(plan.certificate.claim).__name__)
    if results[-1].verdict is Verdict.PROVED:
        numbers = Numbers(planning, programs, budget)
        results.append(result("Space", numbers.wrong_choices(Counter(plan.machine.hierarchy, where))))
        wrong, coverage = numbers.wrong_edges(cells, name, notify)
        wrong = wrong or wrong_rows(planning, programs, numbers)
        results.append(certified)
        results.append(replace(result("Entries", wrong), coverage=None if wrong else coverage))
        results.extend(r for r in alone.results if r.kind in ("Delivers", "Bytes"))
        results.extend(replace(r, kind="Program") for r in alone.results if r.kind == "Entries" and r.reason)
    else:
        results.append(certified)
    return PlanCheck(name, tuple(results), plan, alone.planning, planning.problem.scale)


def _of_the_egraph(plan: Plan, joint: Jointly) -> str:
    wrong = wrong_program(plan.graph, joint.egraph)
    return f"the program of the plan is none of the e-graph: {wrong}" if wrong else ""


def _wrong_part(plan: Plan, joint: Jointly, planning: JointPlanning, alone: PlanCheck) -> str:
    """Do the parts belong together?"""
    problem, claim = planning.problem, plan.certificate.claim
    if problem.limit != plan.memory_limit:
        return "problem: its memory limit is not the plan's"
    added = len(joint.egraph.operators) - len(joint.egraph.base.operators)
    graphs = f"egraph({joint.derivation.rules_name}, rounds {joint.derivation.rounds}, {added} operators added)"
    expected = all_assumptions(joint.egraph.union, plan.machine, planning.space, plan.memory_limit)
    expected |= {f"graphs: {graphs}", "real-arithmetic"}
    expected |= set() if plan.memory_limit is None else {"rows-of-open-programs"}
    if set(problem.assumptions) != expected or len(problem.assumptions) != len(expected):
        odd = sorted(set(problem.assumptions) ^ expected)
        return f"problem: the assumption {odd[0] if odd else ''} is made and not stated, or stated and not made"
    if problem.sha256() != plan.certificate.problem_sha256:
        return (
            f"certificate: it is about the problem {plan.certificate.problem_sha256[:12]}.., but e-graph, machine and "
            f"space give {problem.sha256()[:12]}.."
        )
    if not isinstance(claim, Optimal | WithinGap):
        return f"choices: the claim {type(claim).__name__} comes with no solution"
    if wrong := next((r.reason for r in alone.results if r.kind in ("Parts", "Space") and r.reason), ""):
        return wrong
    if wrong := wrong_choices(plan.graph, plan.choices, planning, claim.solution):
        return f"choices: {wrong}"
    x, single = alone.planning.solution(plan.choices), alone.planning.problem
    if wrong := wrong_cost(single, x, problem, claim.cost):
        return f"choices: {wrong}"
    limits = () if plan.memory_limit is None else (plan.memory_limit, problem.peak_of(claim.solution)[0])
    if limits and (peak := single.peak_of(x)[0]) > min(limits):
        return f"choices: the plan of the program alone needs {peak} bytes"
    return ""
