"""Searches over placements for a step whose communication runs beside its computation.

Numbers that no schedule is below, of every placement: C, all operators (but copies to hosts and back); M, all
reshardings; and for a chain of operators P, these with the reshardings between them and all operators that come behind
its end.  For weights of them the least weighted sum is found and proved.  The next weights are those whose bound would
be best if the solutions that are known were all there are (Kelley's method); every solution that comes up is scheduled
and gives the chain that says most about it.  Then placements are looked for whose reshardings hide better
(`exposed`); the shortest schedule is the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain as chained
from itertools import combinations, pairwise
from math import gcd

from ....models.communication.choices import Choices
from ....models.cost.selection import Planning, build
from ....models.problem.claims import Status
from ....models.problem.selection_problem import ProblemError, SelectionProblem
from ....proofs.overlap.certificate import OverlapCertificate
from ....proofs.schedules.certificate import ScheduleCertificate
from ....proofs.selection.certificates import SelectionCertificate
from ...selection.answer import Answer
from ...selection.model.clock import Clock, Overdue
from ...selection.relax_resources import may_fit
from .exposed import less_exposed
from .memory import kept_past, rows_of_every_order
from .planned import Planned, schedule_if_fits, solve_weighted
from .weights import Chain, Rows, Weights, chain_of, sums_of, weighted_problem

WHOLE = 8
"""Sum of the weights that are tried."""

MOST_CHAINS = 4

ROUNDS = 12
SOLVE_SHARE, SCHEDULE_SHARE = 0.3, 0.1
"""Of the time that is left: for one solution at most, for one schedule."""

NO_LIMIT = 1 << 50
LIMITS = (Fraction(3, 4), Fraction(1, 2))
"""Of the bytes that the first solution holds."""

BINDING = Fraction(9, 10)
"""Of a memory limit: a plan of placements alone that holds more is taken to be one that the limit has changed."""


@dataclass(frozen=True, eq=False)
class Overlapped:
    """The best plan, and the best bound with what proves it."""

    planning: Planning
    best: Planned
    chains: tuple[tuple[str, ...], ...]
    weights: Weights
    lower_bound: int
    least: SelectionCertificate

    def certificate(self) -> OverlapCertificate:
        """What is claimed."""
        best, planning = self.best, self.planning
        f = best.found
        schedule = ScheduleCertificate(best.problem, f.starts, f.makespan, f.lower_bound, f.bound, "overlap")
        return OverlapCertificate(
            planning.graph,
            planning.machine,
            planning.space.name,
            planning.choices(best.x),
            best.quantum,
            schedule,
            tuple(chain for chain, w in zip(self.chains, self.weights[2:], strict=True) if w),
            (*self.weights[:2], *(w for w in self.weights[2:] if w)),
            best.makespan,
            min(self.lower_bound, best.makespan),
            self.least,
            planning.problem.limit,
        )


@dataclass(frozen=True, eq=False)
class NothingFits:
    """No placement fits the limit in any order; `least` proves it of `rows`, the problem with the rows of every
    order.
    """

    planning: Planning
    rows: SelectionProblem
    least: SelectionCertificate

    def certificate(self) -> OverlapCertificate:
        """What is claimed."""
        p, nothing = self.planning, Choices((), ())
        return OverlapCertificate(
            p.graph, p.machine, p.space.name, nothing, 1, None, (), (1, 1), 0, 0, self.least, p.problem.limit
        )


def every_order(planning: Planning) -> SelectionProblem:
    """The problem with rows that every schedule obeys, whatever its order."""
    return replace(planning.problem, usages=(*rows_of_every_order(planning), *kept_past(planning))).check()


def unfit(planning: Planning, clock: Clock, thoroughly: bool) -> NothingFits | None:
    """The proof that nothing fits the limit in any order, if it is found.  `thoroughly`: also where the smallest
    choices of every row alone would fit.
    """
    if planning.problem.limit is None:
        return None
    rows = every_order(planning)
    if not thoroughly and may_fit(rows):
        return None
    answer = solve_weighted(rows, clock, Fraction(0), planning, [])
    if answer.status is not Status.INFEASIBLE or answer.certificate is None:
        return None
    return NothingFits(planning, rows, answer.certificate)


def search_overlap(
    planning: Planning,
    clock: Clock,
    gap: Fraction,
    tell: Callable[[str], None] | None = None,
    alone: Answer | None = None,
) -> Overlapped | NothingFits | None:
    """The best plan within the time, or the proof that nothing fits; None if neither was found.  `alone`: what is known
    of the same problem with operators and reshardings one after another: its schedule is the first.
    """
    known = alone is not None and alone.solution is not None
    if not known and (nothing := unfit(planning, clock, thoroughly=False)) is not None:
        return nothing
    found = _Found(planning, gap, tell)
    with suppress(Overdue):
        found.weigh(clock, alone)
    if found.best is None:
        return unfit(planning, clock, thoroughly=True)
    if found.bound is None:
        return None
    with suppress(Overdue):
        found.hide(clock)
    chains, (bound, weights, least) = found.chains, found.bound
    weights = (*weights, *(0 for _ in range(len(chains) + 2 - len(weights))))
    return Overlapped(planning, found.best, tuple(c.operators for c in chains), weights, bound, least)


class _Found:
    """What is known of a problem: the best plan, and the best bound with its weights and proof."""

    def __init__(self, planning: Planning, gap: Fraction, tell: Callable[[str], None] | None) -> None:
        self.planning, self.gap, self.tell = planning, gap, tell
        self.limited = planning.problem.limit is not None
        self.best: Planned | None = None
        self.bound: tuple[int, Weights, SelectionCertificate] | None = None
        self.binding = False
        """Whether the limit is known to bind."""
        self.known: list[tuple[int, ...]] = []
        self.chains: list[Chain] = []

    def say(self) -> None:
        """What is known, for people who wait."""
        if self.tell is not None and self.best is not None and self.bound is not None:
            scale = self.planning.problem.scale / 1e3
            self.tell(f"at least {self.bound[0] / scale:.4g} ms, found {self.best.makespan / scale:.4g} ms")

    def enough(self) -> bool:
        """Whether the bound is near enough."""
        best, bound = self.best, self.bound
        return best is not None and bound is not None and bound[0] >= best.makespan * (1 - self.gap)

    def offer(self, made: Planned | None) -> None:
        """Keep a plan that is better."""
        if made is not None and (self.best is None or made.makespan < self.best.makespan):
            self.best = made

    def weigh(self, clock: Clock, alone: Answer | None = None) -> None:
        """Least weighted sums, each with the schedules of its solutions, until the bound is near enough."""
        tried: set[Weights] = set()
        weights: Weights | None = (1, 1)
        if alone is not None and alone.solution is not None:
            tried |= self.take([alone.solution], tried, clock)
            peak, limit = None if self.best is None else self.best.peak, self.planning.problem.limit
            self.binding = peak is not None and limit is not None and peak > BINDING * limit
            if not self.limited and self.proves(alone, (1, 1), weighted_problem(self.planning, (), (1, 1))):
                tried.add(self.with_all_chains((1, 1)))
                weights = self.following(tried)
        for _ in range(ROUNDS):
            if weights is None or clock.over() or self.enough():
                break
            weights = self.with_all_chains(weights)
            tried.add(weights)
            try:
                found = self.solutions(weights, clock)
            except ProblemError:
                break
            if found is None:
                break
            tried |= self.take(found, tried, clock)
            self.say()
            weights = self.following(tried)

    def with_all_chains(self, weights: Weights) -> Weights:
        """Weights of all chains that are known; nothing of those that came since."""
        return (*weights, *(0 for _ in range(2 + len(self.chains) - len(weights))))

    def following(self, tried: set[Weights]) -> Weights | None:
        """The next weights to try."""
        return _next(
            [sums_of(self.planning, self.chains, x) for x in self.known], {self.with_all_chains(w) for w in tried}
        )

    def solutions(self, weights: Weights, clock: Clock) -> list[tuple[int, ...]] | None:
        """Solutions of least weighted sum, with the bounds that they come with; None where nothing is found.

        Without rows of memory first.  Where what comes out fits in no order that is tried, the limit binds: then, and
        from then on, under the rows that no order escapes, which prove more, and under those of the program's order.
        """
        found: list[tuple[int, ...]] = []
        kinds: tuple[Rows, ...] = ("",) if not self.binding else ("every", "program")
        if self.binding and self.best is None:
            kinds = ("program", "every")
        while kinds and not clock.over():
            rows, *rest = kinds
            part = weighted_problem(self.planning, self.chains, weights, rows)
            answer = solve_weighted(part, clock.share(SOLVE_SHARE), self.gap / 4, self.planning, self.known)
            kinds = tuple(rest)
            if rows != "program":
                self.proves(answer, weights, part)
            if answer.solution is None:
                continue
            found.append(answer.solution)
            fits = not self.limited or schedule_if_fits(self.planning, answer.solution, Clock(0.0)) is not None
            if rows == "every" and fits:
                break
            if rows == "" and not fits:
                self.binding = True
                kinds = ("program", "every")
        return found or None

    def proves(self, answer: Answer, weights: Weights, problem: SelectionProblem) -> bool:
        """Keep the bound of an answer, if it is better; whether there is one of this problem."""
        proof, least = answer.certificate, answer.lower_bound
        if proof is None or least is None or proof.problem_sha256 != problem.sha256():
            return False
        value = -(-least // sum(weights))
        if self.bound is None or value > self.bound[0]:
            self.bound = value, weights, proof
        return True

    def take(self, found: list[tuple[int, ...]], tried: set[Weights], clock: Clock) -> set[Weights]:
        """Schedule new solutions, and keep the chain that says most about each; the weights that were tried, of all
        chains.
        """
        for x in found:
            if x in self.known:
                continue
            self.known.append(x)
            seconds = max(min(1.0, clock.remaining_s()), min(60.0, clock.remaining_s() * SCHEDULE_SHARE))
            self.offer(schedule_if_fits(self.planning, x, clock.at_most(seconds)))
            chain = chain_of(self.planning, x)
            if len(self.chains) < MOST_CHAINS and chain.operators and chain not in self.chains:
                self.chains.append(chain)
        if self.bound is not None:
            self.bound = self.bound[0], self.with_all_chains(self.bound[1]), self.bound[2]
        return {self.with_all_chains(w) for w in tried}

    def hide(self, clock: Clock) -> None:
        """Plans whose reshardings hide better, beside those that are known."""
        if self.best is None:
            return
        free = less_exposed(self.planning, clock, self.gap / 4)
        within = _within(self.planning, self.best.x, clock, self.gap / 4)
        for made in free if self.limited else chained(free, within):
            self.offer(made)
            self.say()
            if self.enough():
                break


def _within(planning: Planning, x: tuple[int, ...], clock: Clock, gap: Fraction) -> Iterator[Planned]:
    """What is found under memory limits below what a solution holds, scheduled without them: a limit keeps tensors
    split, which moves more beside operators and less on the way.
    """
    if clock.over():
        return
    counted = build(planning.graph, planning.machine, planning.space, NO_LIMIT)
    held = schedule_if_fits(counted, x, Clock(0.0))
    peak = None if held is None else held.peak
    if not peak:
        return
    for share in LIMITS:
        part = replace(counted, problem=replace(counted.problem, limit=int(peak * share)))
        for found in less_exposed(part, clock, gap):
            made = schedule_if_fits(planning, found.x, clock.at_most(min(60.0, clock.remaining_s() * SCHEDULE_SHARE)))
            if made is not None:
                yield made


def _next(known: list[tuple[int, ...]], tried: set[Weights]) -> Weights | None:
    """The weights, not tried yet, with the largest least sum of what is known."""
    found: dict[Weights, Fraction] = {}
    n = len(known[0])
    for bars in combinations(range(WHOLE + n - 1), n - 1):
        parts = [b - a - 1 for a, b in pairwise((-1, *bars, WHOLE + n - 1))]
        shared = gcd(*parts)
        weights = tuple(w // shared for w in parts)
        if weights not in tried and weights not in found:
            found[weights] = min(Fraction(sum(w * v for w, v in zip(parts, row, strict=True)), WHOLE) for row in known)
    return max(found, key=lambda w: found[w]) if found else None
