"""Native search: eliminate where the width allows, otherwise bound, fix, and branch.

At a node with domains D:
  1. one point left, or elimination of D fits the limits: solved exactly;
  2. otherwise sweeps until the gap is closed, half of the labels can be fixed, or the bound stalls;
  3. the messages are rounded, their bound and reduced costs computed in integers, and labels fixed (`Dual`);
  4. if that removed enough, the node is solved again on what survived, with the messages kept (tables are small now);
     otherwise the domain of one vertex is split and the parts are searched, most promising first (`Split`).
Resource rows add multipliers to the bound (`ascent`), a test for conflicts at every node, and repair of solutions
(`rows`); elimination ignores rows and then closes a node only if its solution fits or its value reaches the incumbent.
Time runs out: what is left is `Open`, and the enclosing dual still gives a bound.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from ...models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem
from ...proofs.selection.certificates import Dual, Elimination, Open, Point, RowConflict
from .ascent import apply, ascend, climb
from .aspire import aspire, narrow
from .bounds import Score, branching_vertex, gather, row_costs, score, spread
from .budget import Limits
from .clock import Clock, Progress, Quiet
from .draft import INFINITY, Draft, DualDraft, EliminationDraft, LeafDraft, SplitDraft
from .eliminate import WIDEST, Plan, eliminate, plan, replan
from .incumbent import Incumbent
from .messages import Sweeper, load
from .network import Base, Domains, Network, build, exact_cost, whole
from .primal import Choice, decode, descend
from .rows import Rows, repair
from .sweeps import bound_now, momentum_pays, order, sweep
from .ties import Tie, untie
from .units import binding_rows, denominator_for

CLIMB_SHARE: Final = 0.7
"""Of the time left, for multipliers at the root of a large network."""

ASSEMBLY_S: Final = 4.0
"""Seconds after the time limit for eliminations anew on what the last incumbent leaves; what takes longer stays
open.
"""

TIED_SHARE: Final = 0.05
"""The same where two plans tie: parts of the domains gain more."""

TIED_TURNS: Final = 1_000
"""If there is time for so many double sweeps: a part takes some hundred, and nothing is gained before both parts of
a domain are swept.
"""

REPAIRED: Final = 1_000
"""Vertices up to which decoded choices are repaired one by one while multipliers move."""


class Search:
    """One run.  `explore` returns the draft of a proof tree for `domains`."""

    def __init__(
        self,
        problem: SelectionProblem,
        incumbent: Incumbent,
        clock: Clock,
        *,
        limits: Limits | None = None,
        gap: Fraction = Fraction(0),
        progress: Progress | None = None,
        threads: int = 1,
    ) -> None:
        self.problem = problem
        self.incumbent = incumbent
        self.clock = clock
        self.limits = limits if limits is not None else Limits()
        self.gap = gap
        self.progress: Progress = progress if progress is not None else Quiet()
        self.threads = threads
        self.unit = Base(problem)
        self.denominator = denominator_for(problem)
        self.base = self.unit if self.denominator == 1 else Base(problem, self.denominator)
        self.rows = binding_rows(problem)
        self.tie: Tie | None = None  # plans between which prices cannot choose (`ties`)
        self.nodes: int | None = None  # how many more nodes may be explored; None: any number
        self.aspiring = False
        self.assembly: Clock | None = None  # of the eliminations once the search is over
        self.held = 0  # bytes of messages in the drafts of the tree
        self.holes = any(int(a.max()) >= FORBIDDEN for a in (*self.unit.tables, *self.unit.unary) if a.size)

    def enough(self) -> int:
        """A bound from which nothing more has to be proved."""
        cost = self.incumbent.cost
        if cost >= INFINITY:
            return INFINITY
        return cost - int(self.gap * abs(cost))

    def run(self, warm: Dual | None = None) -> Draft:
        """Search everything, from the messages of `warm` if given."""
        return self.explore(whole(self.problem), warm, 0)

    def eliminator(self, domains: Domains, before: Elimination) -> tuple[Elimination, int] | None:
        """Elimination for the assembly, in the order of `before`: it was possible on larger domains then, so it may
        take `ASSEMBLY_S` beyond the limit.
        """
        network = build(self.unit, domains)
        if self.assembly is None:
            left = self.clock.left()
            self.assembly = self.clock.beside(max(left, 0.0) + ASSEMBLY_S)
        outcome = eliminate(network, replan(network, before), self.assembly)
        return None if outcome is None else (outcome.record, outcome.value)

    def fits(self, schedule: Plan) -> bool:
        """True when elimination along `schedule` is within the limits."""
        at = self.limits
        return (
            schedule.complete
            and schedule.width <= WIDEST
            and schedule.largest <= at.joint
            and schedule.work <= at.work
            and schedule.kept <= at.kept
        )

    def explore(self, domains: Domains, warm: Dual | None, depth: int) -> Draft:
        """Draft for `domains`; `warm` is a dual of an enclosing node to start from."""
        if any(d.size == 0 for d in domains) or self.nodes == 0 or self.held > self.limits.held:
            return LeafDraft(Open())
        if self.nodes is not None:
            self.nodes -= 1
        if all(d.size == 1 for d in domains):
            self.incumbent.offer(tuple(int(d[0]) for d in domains))
            return LeafDraft(Point())
        if self.rows is not None:
            found = self.rows.conflict(domains, self.incumbent.solution is None, self.clock)
            if found is not None:
                return LeafDraft(RowConflict(found))
        network = build(self.unit, domains)
        schedule = plan(network, self.limits.joint)
        if self.fits(schedule) and (self.rows is None or depth == 0 or schedule.work <= self.limits.row_work):
            self.progress.update("elimination", None, self.upper())
            outcome = eliminate(network, schedule, self.clock)
            if outcome is not None:
                exact = outcome.choice is None or self.offer(
                    network, list(outcome.choice), polish=self.rows is not None
                )
                if self.rows is None or exact or outcome.value >= self.enough():
                    return EliminationDraft(domains, outcome.record, outcome.value)
        if self.base is not self.unit:
            network = build(self.base, domains)
        draft, below = self._bounded(network, domains, warm, depth)
        del network  # its tables would wait on the stack, one set per level, while the parts are searched
        if below is not None:
            draft.child = self._below(below, draft, warm, depth)
        return draft

    # ------------------------------------------------------------------ bound and fix

    def _bounded(
        self, network: Network, domains: Domains, warm: Dual | None, depth: int
    ) -> tuple[DualDraft, Domains | None]:
        """A dual on `domains`, and what it leaves of them; None when nothing is left to search."""
        if self.holes:
            swept = self._consistent(network, domains)
            if swept is not None:
                return swept
        sweeper = Sweeper(network, order(network), self.threads)
        if warm is not None:
            load(sweeper, warm)
        if (
            warm is None or not warm.multipliers
        ):  # otherwise sweeps at n = 0 would spoil messages that belong to multipliers
            sweep(self, sweeper, depth)
        elif depth == 0 and self.rows is not None:
            start = self.multipliers(self.rows, warm)
            apply(sweeper, self.rows, start)
            if not momentum_pays(network):  # larger ones were swept before (`blocks`)
                sweep(self, sweeper, depth, taken=self.rows.limit * int(start.sum()))
            if self.tie is None:
                narrow(self, domains, self.record(network, sweeper, self.rows.pairs(start))[1])
        multipliers: tuple[tuple[int, int], ...] = ()
        if self.rows is not None and (warm is not None or not self.closed(bound_now(sweeper))):
            multipliers = self._multiply(sweeper, self.rows, warm, depth)
        record, result = self.record(network, sweeper, multipliers)
        draft = DualDraft(record, domains, result)
        self.held += sum(m.nbytes for m in (*record.to_u, *record.to_v))
        lower = result.lower()
        self.progress.update("bound", lower if depth == 0 else None, self.upper())
        if lower is None or lower >= self.enough():
            return draft, None
        if depth == 0 and self.rows is None:
            aspire(self, domains, record, result, lower)
            if lower >= self.enough():
                return draft, None
        return draft, result.survivors(domains, self.incumbent.cost)

    def _below(self, kept: Domains, draft: DualDraft, warm: Dual | None, depth: int) -> Draft:
        """What is left after the dual of `draft`: solved again when little is, otherwise split."""
        if draft.consistency:
            return self.explore(kept, warm, depth)
        if self.clock.over():
            return LeafDraft(Open())
        lower = draft.score.lower()
        if self.tie is not None and lower is not None and depth == 0:
            parts = untie(self, self.tie, kept, draft.record, lower)
            if not isinstance(parts, LeafDraft):
                return parts
        left, before = sum(d.size for d in kept), sum(d.size for d in draft.domains)
        if left <= 0.5 * before or all(d.size < 2 for d in kept) or self._opens(before, kept):
            return self.explore(kept, draft.record, depth)
        exact = self._last_elimination(kept)
        if exact is not None:
            return exact
        if left <= 0.9 * before:
            return self.explore(kept, draft.record, depth)
        return self._branch(kept, draft.record, depth)

    def _opens(self, before: int, kept: Domains) -> bool:
        """True when fixing, from `before` labels, made elimination possible."""
        return (
            self.rows is None
            and sum(d.size for d in kept) < before
            and self.fits(plan(build(self.unit, kept), self.limits.joint))
        )

    def _last_elimination(self, kept: Domains) -> EliminationDraft | None:
        """Exact elimination within the larger limits; None if it does not fit, memory rows take part, or the time
        runs out.
        """
        if self.rows is not None or any(d.size == 0 for d in kept):
            return None
        network = build(self.unit, kept)
        schedule, at = plan(network, self.limits.last_joint), self.limits
        if (
            not schedule.complete
            or schedule.width > WIDEST
            or schedule.largest > at.last_joint
            or schedule.work > at.last_work
            or schedule.kept > at.last_kept
        ):
            return None
        self.progress.update("elimination", None, self.upper())
        outcome = eliminate(network, schedule, self.clock)
        if outcome is None:
            return None
        if outcome.choice is not None:
            self.offer(network, list(outcome.choice), polish=False)
        return EliminationDraft(kept, outcome.record, outcome.value)

    def _consistent(self, network: Network, domains: Domains) -> tuple[DualDraft, Domains] | None:
        """One round of arc consistency as a dual without messages, if it removes anything."""
        zero_u = [np.zeros(network.tables[a.table].shape[0], dtype=np.int64) for a in network.arcs]
        zero_v = [np.zeros(network.tables[a.table].shape[1], dtype=np.int64) for a in network.arcs]
        result = score(network, zero_u, zero_v, threads=self.threads)
        kept = result.survivors(domains, self.incumbent.cost)
        if all(k.size == d.size for k, d in zip(kept, domains, strict=True)):
            return None
        to_u, to_v = spread(network, zero_u, zero_v)
        return DualDraft(Dual(to_u, to_v, self.denominator), domains, result, consistency=True), kept

    def _multiply(self, sweeper: Sweeper, rows: Rows, warm: Dual | None, depth: int) -> tuple[tuple[int, int], ...]:
        """Ascent over the multipliers, in rounds with a repaired solution after each."""
        network = sweeper.network
        start = self.multipliers(rows, warm)
        rounds = 6 if depth == 0 else 1
        steps = self.limits.root_steps // rounds if depth == 0 else self.limits.node_steps
        last: int | None = None
        rho = 0.3 if warm is None or not warm.multipliers else 0.03
        for _ in range(rounds):
            cost = self.incumbent.cost
            target = None if cost >= INFINITY else cost * self.denominator - network.base.constant
            if depth == 0 and momentum_pays(network):
                began, share = self.clock.seconds(), CLIMB_SHARE if self.tie is None else TIED_SHARE
                state = climb(
                    sweeper,
                    rows,
                    start,
                    target,
                    self.clock.at_most(None if self.clock.limit_s is None else share * self.clock.left()),
                )
                if self.tie is not None and self.clock.left() * state.turns < TIED_TURNS * (
                    self.clock.seconds() - began
                ):
                    self.tie = None
            else:
                state = ascend(sweeper, rows, start, target, steps, self.clock, rho)
            start, rho = state.n, max(state.rho, 0.02)
            self.offer(network, decode(sweeper, False), polish=len(network.domains) < REPAIRED)
            if state.bound is None:
                break
            bound = state.bound + network.base.constant
            self.progress.update("multipliers", bound // self.denominator if depth == 0 else None, self.upper())
            if (
                self.tie is not None
                and depth == 0
                or self.clock.over()
                or self.closed(bound)
                or (last is not None and (bound - last) * 1_000_000 <= abs(last))
            ):
                break
            last = bound
        return rows.pairs(start)

    def multipliers(self, rows: Rows, warm: Dual | None) -> Ints:
        """Those of `warm` over the events, in units of 1/Q."""
        known = {} if warm is None else {t: n * self.denominator // warm.denominator for t, n in warm.multipliers}
        return np.array([known.get(t, 0) for t in rows.events], dtype=np.int64)

    def record(
        self, network: Network, sweeper: Sweeper, multipliers: tuple[tuple[int, int], ...]
    ) -> tuple[Dual, Score]:
        """The messages of `sweeper` with these multipliers as a record, and what it says."""
        result = score(network, sweeper.to_u, sweeper.to_v, *row_costs(network, multipliers), threads=self.threads)
        return Dual(*spread(network, sweeper.to_u, sweeper.to_v), self.denominator, multipliers), result

    def closed(self, bound: int) -> bool:
        """True when the bound (in units of 1/Q) needs no improvement."""
        need = self.enough()
        return need < INFINITY and bound > (need - 1) * self.denominator

    # ------------------------------------------------------------------ branch

    def _branch(self, domains: Domains, warm: Dual, depth: int) -> Draft:
        vertex, cuts = self._cuts(domains, warm)
        draft = SplitDraft(vertex, tuple(tuple(sorted(int(a) for a in part)) for part in cuts), [])
        for part in draft.parts:
            if self.clock.over():
                draft.children.append(LeafDraft(Open()))
                continue
            chosen = np.array(part, dtype=np.int64)
            draft.children.append(self.explore((*domains[:vertex], chosen, *domains[vertex + 1 :]), warm, depth + 1))
        return draft

    def _cuts(self, domains: Domains, warm: Dual) -> tuple[int, list[Ints]]:
        """The vertex to branch on and the parts of its domain, cheapest first."""
        network = build(self.base, domains)
        to_u, to_v = gather(network, warm)
        inner = score(network, to_u, to_v, *row_costs(network, warm.multipliers), threads=self.threads)
        vertex = branching_vertex(network, inner)
        labels = domains[vertex][np.argsort(inner.excess[vertex], kind="stable")]
        size = labels.size
        return vertex, [labels[i : i + 1] for i in range(size)] if size <= 4 else [
            labels[: size // 2],
            labels[size // 2 :],
        ]

    # ------------------------------------------------------------------ primal

    def offer(self, network: Network, choice: Choice, polish: bool) -> bool:
        """Offer `choice`, improved first if `polish`; True when `choice` itself was feasible."""
        x = tuple(int(d[i]) for d, i in zip(network.domains, choice, strict=True))
        fits = exact_cost(self.problem, x) is not None
        if fits:
            self.incumbent.offer(x)
        if polish:
            better = (
                descend(network, choice, self.clock)
                if self.rows is None
                else repair(network, self.rows, choice, self.clock)
            )
            if better is not None:
                self.incumbent.offer(tuple(int(d[i]) for d, i in zip(network.domains, better, strict=True)))
        return fits

    def upper(self) -> int | None:
        """Cost of the incumbent, None without one."""
        return None if self.incumbent.cost >= INFINITY else self.incumbent.cost
