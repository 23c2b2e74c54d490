"""Runs branch and bound over the relaxation: cases of an e-graph, best bound first, each with cuts of its
own.

A case holds the nodes that may still be chosen and the classes that are needed.  It is closed by an exact bound that
reaches the incumbent, or by a contradiction that `narrow` finds; what the search fixes or splits is kept as a tree of
records, and `Assembly` writes it down as the checker will walk it.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf

import highspy
import numpy as np

from ....models.problem.selection_problem import Ints
from ....proofs.egraphs.certificate import ABSENT
from ...selection.model.clock import Clock
from .landmarks import everything, narrow_flags, necessary, separate
from .local_search import tabu_search, without_circles
from .multipliers import Bound, Multipliers, chosen_nodes, fix_choices
from .primal import acyclic, shared_extraction, tree_extraction
from .reduced import Flags, Reduced
from .relaxation import Point, Relaxation

ROOT_ROUNDS = 200
NODE_ROUNDS = 4
STALL = 12
"""Rounds of cuts at the root that together must close `PROGRESS` of the gap, or it is branched."""

PROGRESS = 0.1
"""Part of the gap that so many rounds of cuts must close."""

FEWER = 0.8
"""A case of which less than this part stays after its bound is bounded again before it is split."""

NECESSARY_SHARE = 0.1
"""Part of the time that finding out what every extraction needs may take."""

LOCAL_ROUNDS = 2_000
LOCAL_STARTS = 20
LOCAL_SHARE = 0.05
"""Moves of a local search, how many of them at most, and the part of the time that they may take."""

ROUND, LOCAL = 20, 20
"""Steps of work per node of a round of cuts, and per round of local search."""

CANDIDATES = 8
TRIAL_ITERATIONS = 60
PROPOSAL_SHARE = 0.1
"""Part of the time left that the MIP solver gets when it is asked."""

PROPOSALS = 12
"""Times that the MIP solver is asked again because its point ran in a circle."""


@dataclass(eq=False)
class Step:
    """A record in the making: a bound (with what follows), or a split (class, parts, what follows each).  `void`: the
    checker finds a contradiction before it comes here.
    """

    bound: Bound | None = None
    owner: int = -1
    parts: tuple[tuple[int, ...], ...] = ()
    void: bool = False
    then: list[Step] = field(default_factory=list)


@dataclass(eq=False)
class Case:
    """An open case: `estimate` bounds it in units of the relaxation; `step` is the record to be filled."""

    allowed: Flags
    needed: Flags
    estimate: float
    step: Step
    basis: highspy.HighsBasis | None
    depth: int


class Search:
    """One run: the incumbent, the relaxation with all cuts so far, open cases."""

    def __init__(self, problem: Reduced, clock: Clock, gap: Fraction = Fraction(0)) -> None:
        self.problem, self.clock, self.gap = problem, clock, gap
        self.relaxation = Relaxation(problem)
        self.multipliers = Multipliers(self.relaxation)
        self.best: Ints | None = None
        self.upper: int | None = None
        self.lower = -inf
        self.root = Step()
        self._rng = np.random.default_rng(1)
        self._known: set[bytes] = set()
        self._heap: list[tuple[float, int, Case]] = []
        self._count = itertools.count()
        self.cases = 0

    def offer(self, chosen: Ints | None) -> bool:
        """Take a set of nodes as incumbent if it is an extraction and cheaper."""
        found = None if chosen is None else acyclic(self.problem, chosen)
        if found is None:
            return False
        cost = self.problem.cost(found)
        if self.upper is not None and cost >= self.upper:
            return False
        self.best, self.upper = found, cost
        return True

    def branch_and_bound(self) -> None:
        """Search until everything is closed or the time is over."""
        p = self.problem
        self._first()
        allowed, needed = everything(p)
        narrow_flags(p, allowed, needed)
        assert self.best is not None
        self.relaxation.add(necessary(p, self.best, needed, self._known, self.clock.share(NECESSARY_SHARE)))
        self._push(Case(allowed, needed, -inf, self.root, None, 0))
        while self._heap:
            estimate, _, case = heapq.heappop(self._heap)
            if self._near(estimate):
                break
            self._explore(case)

    def _push(self, case: Case) -> None:
        heapq.heappush(self._heap, (case.estimate, next(self._count), case))

    def _first(self) -> None:
        """Extractions without a relaxation."""
        cost = self.relaxation.cost
        self.offer(tree_extraction(self.problem, cost))
        if len(self.problem.nodes) < 100_000:
            self.offer(shared_extraction(self.problem, cost))
        if self.best is not None and without_circles(self.problem):
            start = self.clock.remaining_s()
            for seed in range(LOCAL_STARTS):
                self.clock.charge(LOCAL * LOCAL_ROUNDS)
                self.offer(tabu_search(self.problem, cost, self.best, LOCAL_ROUNDS, seed))
                if start - self.clock.remaining_s() > LOCAL_SHARE * start:
                    break

    def _explore(self, case: Case) -> None:
        """Bound a case, close it, or split it; without time its step stays the best bound that is known."""
        self.cases += 1
        self.clock.charge(ROUND * len(self.problem.nodes))
        top = case.depth == 0
        out_of_time = self.clock.over()
        if out_of_time and not top:
            return
        self.relaxation.restrict(case.allowed, case.needed)
        if case.basis is not None:
            self.relaxation.start_from(case.basis)
        point = self._cut(case, ROOT_ROUNDS if top else 0 if out_of_time else NODE_ROUNDS)
        if point is None:
            self._impossible(case)
            return
        bound = self._exact(point, case)
        case.step.bound = bound
        if self._closed(bound):
            return
        if top:
            self._ask(point)
            point = self._again(case) or point
            bound = self._exact(point, case)
            case.step.bound = bound
            if self._closed(bound):
                return
        assert self.upper is not None
        allowed, needed = fix_choices(bound, self.problem, self.upper, case.allowed, case.needed)
        before = int(case.allowed.sum())
        if not narrow_flags(self.problem, allowed, needed):
            case.step.then = [Step(void=True)]
            return
        if self.clock.over():
            return
        basis = self.relaxation.basis()
        if int(allowed.sum()) < FEWER * before:
            inner = Step()
            case.step.then = [inner]
            self._push(Case(allowed, needed, point.value, inner, basis, case.depth + 1))
        else:
            self._split(Case(allowed, needed, point.value, case.step, basis, case.depth), point)

    def _near(self, estimate: float) -> bool:
        """Whether the gap is small enough if no open case is below the estimate."""
        if not self.gap or self.upper is None or estimate == -inf:
            return False
        return self.upper - estimate * self.relaxation.unit <= self.gap * abs(self.upper)

    def _closed(self, bound: Bound) -> bool:
        return self.upper is not None and bound.value(self.problem.step) >= self.upper

    def _cut(self, case: Case, rounds: int) -> Point | None:
        """Solve the relaxation of a case and add cuts while they help; None if it has no solution."""
        point = self.relaxation.solve(self._part())
        values: list[float] = []
        window = STALL if case.depth == 0 else 1
        for k in range(rounds):
            if point is None or self.clock.over() or self._reached(point.value):
                break
            gap = (self.upper or 0) / self.relaxation.unit - point.value
            values.append(point.value)
            if len(values) > window and point.value - values[-1 - window] < PROGRESS * gap:
                break
            self.clock.charge(ROUND * len(self.problem.nodes))
            if case.depth == 0:
                self._round(point, k)
            new = separate(self.problem, point, case.needed, self._rng, self._known, 100 if case.depth == 0 else 12)
            if not new:
                break
            self.relaxation.add(new)
            point = self.relaxation.solve(self._part())
        if point is not None:
            self.offer(chosen_nodes(point.nodes))
            if case.depth == 0:
                self._inside(point)
            case.estimate = max(case.estimate, point.value)
        return point

    def _part(self) -> Clock:
        """For one linear program: what is left, but some time for what has begun."""
        return self.clock.beside(max(0.5, self.clock.remaining_s()))

    def _reached(self, value: float) -> bool:
        step = self.problem.step / self.relaxation.unit
        slack = 1e-6 if self.relaxation.exact else 0.0
        return self.upper is not None and value > self.upper / self.relaxation.unit - step + slack and step > slack

    def _round(self, point: Point, k: int) -> None:
        """Extractions near a fractional point."""
        cost = self.relaxation.cost
        self.offer(chosen_nodes(point.nodes))
        self.offer(tree_extraction(self.problem, cost * (1 - point.nodes) + 1e-6 * (1 - point.nodes)))
        if k % 8 == 0 and len(self.problem.nodes) < 20_000:
            self.offer(shared_extraction(self.problem, cost * (1 - 0.9 * point.nodes)))

    def _inside(self, point: Point) -> None:
        """Extractions from the nodes that a fractional point uses, as far as they reach."""
        x, cost = point.nodes, self.relaxation.cost
        outside = np.where(x < 1e-6, 1.0 + float(np.abs(cost).sum()), 0.0)
        for weight in (cost * (1 - x) + outside, cost + outside):
            self.offer(tree_extraction(self.problem, weight + 1e-6 * float(np.abs(cost).max(initial=1.0))))
            if len(self.problem.nodes) < 50_000 and self.problem.parents[1].size < 200_000:
                self.offer(shared_extraction(self.problem, np.maximum(weight, 0.0)))

    def _again(self, case: Case) -> Point | None:
        self.relaxation.restrict(case.allowed, case.needed)
        return self._cut(case, ROOT_ROUNDS)

    def _ask(self, point: Point) -> None:
        """Ask the MIP solver of HiGHS; a point in a circle breaks a cut, which is added before it is asked again."""
        for _ in range(PROPOSALS):
            left = self.clock.remaining_s()
            if left <= 0.5:
                return
            x = self.relaxation.propose(self.clock.at_most(PROPOSAL_SHARE * left), self.best)
            if x is None:
                return
            if acyclic(self.problem, chosen_nodes(x)) is not None:
                self.offer(chosen_nodes(x))
                return
            classes = np.zeros(len(self.problem.classes))
            classes[self.problem.owner[chosen_nodes(x)]] = 1
            whole = Point(0.0, np.round(x), classes, point.multipliers, point.reduced)
            _, needed = everything(self.problem)
            new = separate(self.problem, whole, needed, self._rng, self._known)
            if not new:
                return
            self.relaxation.add(new)

    def _exact(self, point: Point, case: Case) -> Bound:
        """The best exact bound that the multipliers of a point give."""
        bound = self.multipliers.exact_bound(
            self.multipliers.round_multipliers(point.multipliers), case.allowed, case.needed
        )
        if self.upper is None or self.relaxation.exact or self._closed(bound):
            return bound
        if (self.upper - bound.value(1)) / self.relaxation.unit < 1e-4 * max(1.0, abs(point.value)):
            better = self.multipliers.exact_bound(self.multipliers.basis_multipliers(), case.allowed, case.needed)
            if better.total > bound.total:
                return better
        return bound

    def _impossible(self, case: Case) -> None:
        """A case without a solution of the relaxation: multipliers of a ray exceed every bound when they are large."""
        ray = self.relaxation.ray() if self.relaxation.impossible else None
        if ray is not None and self.upper is not None:
            lowest = self.multipliers.exact_bound(
                self.multipliers.round_multipliers(np.zeros_like(ray)), case.allowed, case.needed
            ).total
            for sign in (1.0, -1.0):
                direction = sign * ray / np.abs(ray).max()
                for size in (1e2, 1e4, 1e6):
                    largest = max(1.0, float(np.abs(self.relaxation.cost).max(initial=1.0)))
                    rows = self.multipliers.round_multipliers(direction * size * largest)
                    bound = self.multipliers.exact_bound(rows, case.allowed, case.needed)
                    if self._closed(bound):
                        case.step.bound = bound
                        return
                    lowest = max(lowest, bound.total)
        rows = self.multipliers.round_multipliers(np.zeros(self.relaxation.first_cut + len(self.relaxation.cuts)))
        bound = self.multipliers.exact_bound(rows, case.allowed, case.needed)
        if case.step.bound is None or bound.total > case.step.bound.total:
            case.step.bound = bound
        if not self.clock.over() and not self._closed(case.step.bound):
            self._split_any(case)

    def _split_any(self, case: Case) -> None:
        """Split a class that is not decided, without a point to go by."""
        p = self.problem
        for c in range(len(p.classes)):
            nodes = [n for n in p.members_of(c).tolist() if case.allowed[n]]
            if nodes and (len(nodes) > 1 or not case.needed[c]):
                self._branch(case, c, nodes[0], -inf)
                return

    def _split(self, case: Case, point: Point) -> None:
        """Split the choices of one class: the candidate whose two halves are bounded best."""
        p, x, y = self.problem, point.nodes, point.classes
        room = np.minimum(y, 1 - y)
        options = [(float(room[c]) + 1e-3, int(c), -1) for c in np.flatnonzero((room > 1e-6) & ~case.needed)]
        half = np.minimum(x, 1 - x)
        options += [(float(half[n]), int(p.owner[n]), int(n)) for n in np.flatnonzero((half > 1e-6) & case.allowed)]
        options.sort(key=lambda o: -o[0])
        if not options:
            self._split_any(case)
            return
        basis = self.relaxation.basis()
        best: tuple[float, int, int] | None = None
        tried: set[tuple[int, int]] = set()
        for _, c, n in options:
            if len(tried) >= CANDIDATES or self.clock.over():
                break
            if (c, n) in tried:
                continue
            tried.add((c, n))
            gains = []
            for allowed, needed in self._halves(case, c, n):
                if not narrow_flags(p, allowed, needed):
                    gains.append(1e9)
                    continue
                self.relaxation.restrict(allowed, needed)
                self.relaxation.start_from(basis)
                trial = self.relaxation.solve(self._part(), TRIAL_ITERATIONS)
                gains.append(1e9 if trial is None else max(0.0, trial.value - point.value))
            score = max(min(gains), 1e-9) * max(max(gains), 1e-9)
            if best is None or score > best[0]:
                best = (score, c, n)
        assert best is not None
        case.basis = basis
        self._branch(case, best[1], best[2], point.value)

    def _halves(self, case: Case, c: int, n: int) -> list[tuple[Flags, Flags]]:
        """The case with class c needed and not (n < 0), or with node n chosen and not."""
        members = self.problem.members_of(c)
        out = []
        for taken in (True, False):
            allowed, needed = case.allowed.copy(), case.needed.copy()
            if taken:
                if n >= 0:
                    keep = bool(allowed[n])
                    allowed[members] = False
                    allowed[n] = keep
                needed[c] = True
            elif n >= 0:
                allowed[n] = False
            else:
                allowed[members] = False
            out.append((allowed, needed))
        return out

    def _branch(self, case: Case, c: int, n: int, estimate: float) -> None:
        nodes = [m for m in self.problem.members_of(c).tolist() if case.allowed[m]]
        absent = () if case.needed[c] else (ABSENT,)
        parts = ((n,), (*absent, *(m for m in nodes if m != n))) if n >= 0 else (tuple(nodes), absent)
        split = Step(owner=c, parts=parts)
        case.step.then = [split]
        for allowed, needed in self._halves(case, c, n):
            step = Step(void=not narrow_flags(self.problem, allowed, needed))
            split.then.append(step)
            if not step.void:
                self._push(Case(allowed, needed, max(estimate, case.estimate), step, case.basis, case.depth + 1))
