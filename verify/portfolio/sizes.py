"""Do plans of some sizes settle every size between them?  Each plan has been checked by the checker of its kind before.

    programs    the plan of size n is of G(n), the family of the programs of the first and the last size
                (`models/program/sized.py`); machine and space are one, and there is no memory limit
    growth      times grow in one way (`models/cost/sized.py`), and the step of the sizes is one of equal blocks: the
                placements are the same, in the same order, at every size
    sizes       of a plan its own placements are taken, with the gap of its own claim
    class       sizes a < b of two plans, s the placements that are taken, t(s, n) their time at a size n between:

                t(s, n) <= (1 - u) t(s, a) + u t(s, b) + e        u = (n - a) / (b - a)
                any(n)  >= (1 - v) A + v B - e                    v = (n^p - a^p) / (b^p - a^p)

                for times are convex in n, and but for a maximum of flops and bytes concave in n^p; least sums of
                concave functions are concave.  Between a and b the times of s are computed at more sizes, where the gap
                is largest, while that helps: then the first line is about neighbours
                e: numbers rounded up, one per vertex and edge, and one more for what is to cost nothing
                A, B: what no placements are below at a and b, where of each maximum one side is taken, the same at both
                ends: that which is the larger one at both, and then nothing is lost; else the one that loses less.
                With L the bound of the plan at an end, sums of such sides are at least theta L, theta the least share
                left of a time, and at least L without the largest loss of every vertex; both over choices that can be
                part of anything below L
    gap         the most of 1 - any(n) / t(s, n) over the multiples of the step: any(n) - (1 - g) t(s, n) is convex in n
                between neighbours, so its least value is found by halving

The gap that a file claims is the largest of its plans and classes, in millionths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from ...models.cost.selection import DecisionKind, Planning, build
from ...models.cost.sized import SizedJob, SizeEnd
from ...models.layout.placement import space
from ...models.problem.claims import Verdict
from ...models.problem.selection_problem import Ints
from ...models.program.graph import Graph
from ...models.program.sized import SizedGraph
from ...models.program.tensor import GraphError
from ...proofs.container.canonical import ContainerError
from ...proofs.plan.bundle import Plan
from ...proofs.portfolio.sizes import SizedPlans, SizesHead
from ..budget import Budget
from ..plan.box_tables import shape_of
from ..plan.effort import AGAIN, FILLED, charge_tables
from ..plan.entry_tables import operator_times
from ..plan.used_entries import Entries, wrong_structure, wrong_used
from ..verdict import CheckResult, worst

MOST_COSTS: Final = 64
"""Sizes of one class at which its placements are priced at most."""

EVALUATED: Final = 1 << 14
"""Cells of one halving between neighbours: four fractions, perhaps again with a larger gap."""

FREE: Final = 10**30
"""So many times faster a device is where its flops, or its bytes, are to cost nothing."""


@dataclass(frozen=True)
class SizeClass:
    """Sizes between two in steps: what the placements that are taken cost at some of them and at the `ends`, and what
    none is below at these, in units of the problem.  `slack`: numbers that were rounded up; `degree`: p of the module
    docstring.
    """

    ends: tuple[int, int]
    step: int
    costs: tuple[tuple[int, int], ...]
    bounds: tuple[int, int]
    slack: int
    degree: int

    def cost_at(self, size: int) -> Fraction:
        """What the placements cost at most."""
        (a, low), (b, high) = next(pair for pair in pairwise(self.costs) if size <= pair[1][0])
        return low + Fraction((high - low) * (size - a), b - a) + self.slack

    def bound_at(self, size: int) -> Fraction:
        """What none is below."""
        (a, b), low, high = self.ends, min(self.bounds), self.bounds[1]
        p = self.degree
        return low + Fraction((high - low) * (size**p - a**p), b**p - a**p) - self.slack

    @cached_property
    def worst(self) -> tuple[Fraction, int]:
        """The most of 1 - bound / cost over the sizes between the ends, at most 1, and where that is."""
        found = Fraction(0), self.ends[0]
        for (a, _), (b, _) in pairwise(self.costs):
            first, last = a + self.step * (a == self.ends[0]), b - self.step * (b == self.ends[1])
            if first <= last:
                found = max(found, (self.gap_at(first), first), (self.gap_at(last), last))
                while (worse := self._worst_between(first, last, found[0]))[0] > found[0]:
                    found = worse
        return min(Fraction(1), found[0]), found[1]

    @property
    def gap(self) -> Fraction:
        """How far the placements are from the best at most, as a share."""
        return self.worst[0]

    def gap_at(self, size: int) -> Fraction:
        """The same at one size."""
        cost = self.cost_at(size)
        return 1 - self.bound_at(size) / cost if cost else Fraction(0)

    def _worst_between(self, a: int, b: int, gap: Fraction) -> tuple[Fraction, int]:
        """The size where the least is left of bound - (1 - gap) cost, which is convex between two known costs."""

        def room(number: int) -> Fraction:
            size = a + number * self.step
            return self.bound_at(size) - (1 - gap) * self.cost_at(size)

        first, last = 0, (b - a) // self.step
        while first < last:
            middle = (first + last) // 2
            first, last = (first, middle) if room(middle + 1) >= room(middle) else (middle + 1, last)
        size = a + first * self.step
        return self.gap_at(size), size


def check_sizes(
    head: SizesHead, plans: Sequence[Plan], ends: Sequence[SizeEnd], inside: Sequence[CheckResult], budget: Budget
) -> tuple[CheckResult, tuple[SizeClass, ...]]:
    """What is claimed of all sizes, and the classes as far as they were found; `inside`: the claims of the plans."""
    assumed = tuple(sorted({flag for r in inside for flag in r.assumptions}))
    name = plans[0].space

    def result(verdict: Verdict, reason: str = "") -> CheckResult:
        return CheckResult("EverySize", verdict, None, None, name, assumed, reason)

    if wrong := _wrong_job(head, plans, ends):
        return result(Verdict.REFUTED, wrong), ()
    job = SizedJob(family_of(head, plans), plans[0].machine, space(name))
    if unknown := job.reason_against or _unequal(head, job, ends):
        return result(Verdict.UNDECIDED, unknown), ()
    classes = tuple(
        class_between(job, head.step, (ends[i], ends[i + 1]), ends[number], head.gap_share, budget)
        for i, number in enumerate(head.taken)
    )
    verdict = worst(r.verdict for r in inside)
    if verdict is not Verdict.PROVED:
        i = next(i for i, r in enumerate(inside) if r.verdict is verdict)
        return result(verdict, f"plan {i}: {inside[i].reason or verdict.value}"), classes
    shown = [(end.size, end.gap) for end in ends] + [(one.worst[1], one.gap) for one in classes]
    size, gap = max(shown, key=lambda pair: pair[1])
    if gap <= head.gap_share:
        return result(Verdict.PROVED), classes
    shares = f"{float(gap):.3g} is shown, not {float(head.gap_share):.3g}"
    return result(Verdict.UNDECIDED, f"{head.name} = {size}: a gap of {shares}"), classes


def _wrong_job(head: SizesHead, plans: Sequence[Plan], ends: Sequence[SizeEnd]) -> str:
    """Why the plans are not of one family on one machine; empty if they are."""
    first = plans[0]
    for i, plan in enumerate(plans):
        if plan.machine.sha256() != first.machine.sha256() or plan.space != first.space:
            return f"plan {i} is for another machine or space than plan 0"
        if plan.memory_limit is not None:
            return f"plan {i} keeps a memory limit, which is of one size"
        if ends[i].solution is None:
            return f"plan {i} has no choices"
    try:
        family = family_of(head, plans).check()
        for i, (plan, size) in enumerate(zip(plans, head.sizes, strict=True)):
            if family.at(size).to_json() != plan.graph.to_json():
                return f"plan {i} is not of the program of {head.name} = {size}"
    except GraphError as error:
        return f"plan 0: {error}"
    return ""


def family_of(head: SizesHead, plans: Sequence[Plan]) -> SizedGraph:
    """The programs of all sizes, by the first and the last plan."""
    return SizedGraph(head.name, (head.sizes[0], head.sizes[-1]), plans[0].graph, plans[-1].graph)


def _unequal(head: SizesHead, job: SizedJob, ends: Sequence[SizeEnd]) -> str:
    """Why the problems of the sizes are not known to have one list of choices and one unit; empty if they have."""
    if head.step % job.step:
        return f"in steps of {head.step} blocks are not of one length; in steps of {job.step} they are"
    first = ends[0].planning
    for i, end in enumerate(ends):
        p = end.planning
        same = len(p.decisions) == len(first.decisions) and all(
            np.array_equal(x.placements, y.placements) for x, y in zip(p.decisions, first.decisions, strict=True)
        )
        edges = [(e.u, e.v) for e in p.problem.edges] == [(e.u, e.v) for e in first.problem.edges]
        if not (same and edges):
            return f"plan {i} has other choices than plan 0"
        if p.problem.scale != first.problem.scale:
            return f"times of plan {i} are in another unit than those of plan 0"
    return ""


def class_between(
    job: SizedJob, step: int, ends: tuple[SizeEnd, SizeEnd], taken: SizeEnd, wanted: Fraction, budget: Budget
) -> SizeClass:
    """The sizes between two ends under the placements of `taken`, whose cost is computed at more sizes while the gap
    is above `wanted` and that may lower it.  ValueError if there are no placements.
    """
    low, high = ends
    if taken.solution is None:
        raise ValueError("the placements of a class are those of a plan")
    a, b = low.planning.problem, high.planning.problem
    costs = {low.size: a.cost_of(taken.solution), high.size: b.cost_of(taken.solution)}
    first, second = _kept_sides(low, high)
    bounds = _shown(low, first), _shown(high, second)
    slack = len(a.vertices) + len(a.edges) + 1
    while True:
        budget.charge(EVALUATED * len(costs) * (high.size // step).bit_length(), "sizes")
        found = SizeClass((low.size, high.size), step, tuple(sorted(costs.items())), bounds, slack, job.degree)
        gap, size = found.worst
        if gap <= wanted or size in costs or len(costs) >= MOST_COSTS:
            return found
        costs[size] = _cost_of(job, size, taken.solution, a.scale, budget)


def _cost_of(job: SizedJob, size: int, x: tuple[int, ...], scale: int, budget: Budget) -> int:
    """What placements cost at a size, every number computed from index sets."""
    graph = job.programs.at(size)
    charge_tables(graph, job.machine, job.space, budget, "sizes")
    planning = build(graph, job.machine, job.space)
    entries = Entries(planning, budget)
    wrong = wrong_structure(entries) or wrong_used(entries, x)
    if wrong or planning.problem.scale != scale:
        raise ContainerError("sizes", f"{job.programs.name} = {size}: {wrong or 'times are in another unit'}")
    return planning.problem.cost_of(x)


Sides = dict[int, Ints]
"""Vertex of an operator -> times of all choices, of one side of every maximum."""


def _both_sides(planning: Planning) -> Iterator[tuple[int, Ints, Ints]]:
    """Vertices of operators: times of all choices where bytes cost nothing, and where flops do not."""
    operators = {op.name: op for op in planning.graph.operators}
    machine, device = planning.machine, planning.machine.device
    peaks = tuple((dtype, peak * FREE) for dtype, peak in device.peaks)
    worked = replace(machine, device=replace(device, bandwidth=device.bandwidth * FREE))
    moved = replace(machine, device=replace(device, peaks=peaks))
    for v, decision in enumerate(planning.decisions):
        if decision.kind is DecisionKind.OPERATOR:
            shape = shape_of(operators[decision.name], planning.graph, decision.axes)
            times = [operator_times(shape, decision.placements, m, planning.problem.scale) for m in (worked, moved)]
            yield v, times[0], times[1]


def _kept_sides(low: SizeEnd, high: SizeEnd) -> tuple[Sides, Sides]:
    """Of every choice the side that is kept, at both ends."""
    first, second = dict[int, Ints](), dict[int, Ints]()
    both = zip(_both_sides(low.planning), _both_sides(high.planning), strict=True)
    for (v, work, moved), (_, work_too, moved_too) in both:
        # that which is larger at both ends; where they change places, that of which the other end keeps more
        by_work = work.astype(float) * work_too >= moved.astype(float) * moved_too
        always = (work >= moved) & (work_too >= moved_too)
        never = (work <= moved) & (work_too <= moved_too)
        by_work = always | (by_work & ~never)
        first[v], second[v] = np.where(by_work, work, moved), np.where(by_work, work_too, moved_too)
    return first, second


def _shown(end: SizeEnd, kept: Sides) -> int:
    """What no sum of kept sides is below."""
    if end.bound <= 0:
        return 0
    vertices = end.planning.problem.vertices
    least = {v: int(times.min()) for v, times in kept.items()}
    base, theta, lost = sum(least.values()), Fraction(1), 0
    for v, times in kept.items():
        whole = vertices[v].cost
        counts = (times < whole) & (times < end.bound - (base - least[v]))
        if counts.any():
            lost += int((whole - times)[counts].max())
            theta = min(theta, *(Fraction(int(x), int(y)) for x, y in zip(times[counts], whole[counts], strict=True)))
    return max(end.bound - lost, int(theta * end.bound), 0)


def solution_of(planning: Planning, plan: Plan) -> tuple[int, ...] | None:
    """The solution that a plan's choices are; None for a plan without."""
    return planning.solution(plan.choices) if plan.choices.operators else None


def charge_sides(planning: Planning, budget: Budget) -> None:
    """Charge computing the times of all choices four times again, as ends of two classes."""
    operators = {op.name: op for op in planning.graph.operators}
    for v, decision in enumerate(planning.decisions):
        if decision.kind is DecisionKind.OPERATOR:
            op = operators[decision.name]
            width = planning.machine.devices * (len(op.axes) + sum(len(a.index) for a in (*op.inputs, op.output)))
            budget.charge(4 * (AGAIN + FILLED * width * planning.problem.domain_size(v)), "sizes")


@dataclass(frozen=True, eq=False)
class CheckedSizes:
    """A file of plans for a range of sizes; `classes` as far as they were found."""

    held: SizedPlans
    programs: SizedGraph
    plans: tuple[Plan, ...]
    ends: tuple[SizeEnd, ...]
    classes: tuple[SizeClass, ...]

    @property
    def gap(self) -> Fraction | None:
        """What is shown for every size; None where nothing is."""
        return max((*(one.gap for one in self.classes), *(end.gap for end in self.ends))) if self.classes else None

    def shown_at(self, size: int) -> tuple[Fraction, Fraction]:
        """What the placements of a size cost at most, and what none is below; `classes` are there."""
        head = self.held.head
        if size in head.sizes:
            end = self.ends[head.sizes.index(size)]
            return Fraction(end.cost), Fraction(end.bound)
        one = self.classes[head.class_of(size)]
        return one.cost_at(size), one.bound_at(size)

    def program_like(self, own: Graph) -> Graph:
        """The program of the size that a reader's own has, as far as there is one."""
        size = self.programs.size_of(lambda name: own.tensor(name).shape if own.holds(name) else None)
        if size is None or not self.held.head.holds(size):
            return self.plans[0].graph
        return self.programs.at(size)
