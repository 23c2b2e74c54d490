"""Do several plans of one file belong together, is the one that is taken the least, and what do their bounds say?  Each
plan has been checked by the checker of its kind before.

    one job     all plans are for one machine, by its hash, and keep one memory limit.  The program of the first is the
                job's; another one is the same graph, or a graph that a plan of the file derived from it by rules, or
                one that takes and gives the same tensors, and then the claim assumes  same-function(name, hash)
    taken       no plan of the file takes less, in seconds, exactly
    bound       the least of the bounds that the checkers of the plans established: whatever any of the claims is about
                takes at least as long
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from ...models.machine.machine import Machine
from ...models.problem.claims import Verdict
from ...models.program.graph import Graph, Role
from ...models.program.tensor import STATED
from ..verdict import CheckResult, worst

SHOWN = 12
"""Letters of a hash in the name of an assumption."""


@dataclass(frozen=True, eq=False)
class Checked:
    """A plan that its own checker has seen.  `asked`: the program that it is about; `derived`: the one that its rules
    made of that, or the same; `memory`: bytes per device that it keeps; `scale`: units of the claim's costs in a
    second; `claim`: the result that the plan is for, `verdict` the worst of all its results.
    """

    asked: Graph
    derived: Graph
    machine: Machine
    memory: int | None
    scale: int
    claim: CheckResult
    verdict: Verdict

    @property
    def step(self) -> Fraction | None:
        """Seconds; None where there is no plan."""
        return None if self.claim.cost is None or not self.scale else Fraction(self.claim.cost, self.scale)

    @property
    def proved_seconds(self) -> Fraction:
        """Seconds that its checker established; 0 where that is nothing: what is refuted early may have no scale."""
        return Fraction(max(0, self.claim.lower_bound or 0), self.scale or 1)


def check_portfolio(plans: Sequence[Checked], chosen: int) -> CheckResult:
    """What is claimed of the plan that is taken, beside all others; costs are in the units of its claim."""
    taken = plans[chosen]
    spaces = " | ".join(dict.fromkeys(p.claim.space for p in plans))
    wrong = wrong_job(plans) or wrong_choice(plans, chosen)
    cost = taken.claim.cost
    if wrong or cost is None:
        return CheckResult("WithinGap", Verdict.REFUTED, None, None, spaces, (), wrong)
    bound = min(cost, floor(min(p.proved_seconds for p in plans) * taken.scale))
    assumed = {flag for p in plans for flag in p.claim.assumptions} | set(unproved_flags(plans))
    verdict = worst(p.verdict for p in plans)
    reason = "" if verdict is Verdict.PROVED else next(
        f"plan {i}: {p.claim.reason or p.verdict.value}" for i, p in enumerate(plans) if p.verdict is verdict
    )  # fmt: skip
    kind = "Optimal" if bound == cost else "WithinGap"
    return CheckResult(kind, verdict, cost, bound, spaces, tuple(sorted(assumed)), reason)


def wrong_job(plans: Sequence[Checked]) -> str:
    """Why the plans are not of one job; empty if they are."""
    first = plans[0]
    for i, p in enumerate(plans):
        if p.machine.sha256() != first.machine.sha256():
            return f"plan {i} is for another machine than plan 0"
        if p.memory != first.memory:
            return f"plan {i} keeps another memory limit than plan 0"
        if interface(p.asked) != interface(first.asked):
            return f"plan {i} is of a program with other inputs, parameters or outputs than that of plan 0"
    return ""


def wrong_choice(plans: Sequence[Checked], chosen: int) -> str:
    """Why the plan that is taken is not the least; empty if it is."""
    step = plans[chosen].step
    if step is None:
        return f"plan {chosen} is taken and has no choices"
    better = [i for i, p in enumerate(plans) if p.step is not None and p.step < step]
    return f"plan {chosen} is taken, and plan {better[0]} takes less" if better else ""


def unproved_flags(plans: Sequence[Checked]) -> list[str]:
    """Assumptions: programs that are said to compute what the job's does, by no rule of the file."""
    job = plans[0].asked.sha256()
    derived = {p.derived.sha256() for p in plans if p.asked.sha256() == job and p.verdict is Verdict.PROVED}
    others = {p.asked.sha256(): p.asked for p in plans}
    return [_flag(graph) for digest, graph in others.items() if digest not in {job, *derived}]


def _flag(graph: Graph) -> str:
    return f"same-function({graph.name}, {graph.sha256()[:SHOWN]})"


def assumed_program(graph: Graph, assumptions: Sequence[str]) -> bool:
    """Whether a claim with these assumptions rests on the program's computing what the job's does, unproved."""
    return _flag(graph) in assumptions


def interface(graph: Graph) -> tuple[object, ...]:
    """What a program takes and gives: names, shapes and types of inputs (but constants that it states), parameters and
    outputs, and what state it renews.
    """
    taken = {
        (t.name, t.shape, t.dtype, t.role.value)
        for t in graph.tensors
        if t.role is not Role.VALUE and not t.name.startswith(STATED)
    }
    given = tuple((graph.tensor(name).shape, graph.tensor(name).dtype) for name in graph.outputs)
    return (frozenset(taken), given, frozenset(parameter for parameter, _ in graph.state))
