"""What one run of a search knows and has found: its problem and the units of its messages, its
incumbent, its clock, and how much it may still do.

A run is data.  What is done with it are functions (`tree/branch_and_bound.py` explores nodes, others look for solutions
or sweep messages), and those that need another search on another problem ask for a `part`.  The recursion is handed in
as `explorer`, so that no two modules import each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem
from ....proofs.selection.certificates import Dual
from ..bound.converge import converge
from ..bound.dual import Score, row_costs, score
from ..bound.subgradient import apply_multipliers
from ..bound.trws import Sweeper, load
from ..elimination.factored import EliminationOrder, Outcome, eliminate, elimination_order
from ..elimination.replay import spare
from ..model.clock import Clock, Progress, Quiet
from ..model.factored import Base, Domains, Network, allowed_domains, build, exact_cost, whole
from ..model.infinity import INFINITY
from ..model.local_costs import Choice
from ..model.resources import Rows
from ..model.units import binding_rows, denominator_for
from ..options import Limits, Options, options_in_use
from ..primal.incumbent import Incumbent
from ..primal.repair import repair
from .proof_tree import ProofTree

EDGE: Final = 100
"""Steps of work of an edge in a pass in Python, beside those for its entries."""

Explore = Callable[["Run", Domains, Dual | None, int], ProofTree]
"""The proof tree of a node: its domains, a dual of an enclosing node to start from, and its depth."""


@dataclass(eq=False, repr=False)
class Run:
    """One run on `problem`, which every search is given.  `gap`: share of the cost that need not be closed; `explorer`:
    branch and bound itself.

    `forced`: limits were given, which are those of the factored search; `warm`: messages to start from.
    """

    problem: SelectionProblem
    incumbent: Incumbent
    clock: Clock
    options: Options = field(default_factory=options_in_use)
    gap: Fraction = Fraction(0)
    progress: Progress = field(default_factory=Quiet)
    threads: int = 1
    forced: bool = False
    warm: Dual | None = None
    explorer: Explore = field(kw_only=True)
    nodes: int | None = None
    """How many more nodes may be explored; None: any number."""
    assembly: Clock | None = None
    """Of the eliminations once the search is over."""
    held: int = 0
    """Bytes of messages in the proof tree."""
    same: Run | None = None
    """A run on the same problem, which has its numbers."""

    @cached_property
    def unit(self) -> Base:
        """The numbers of the problem."""
        return Base(self.problem) if self.same is None else self.same.unit

    @cached_property
    def denominator(self) -> int:
        """Q: messages are in units of 1/Q."""
        return denominator_for(self.problem)

    @cached_property
    def base(self) -> Base:
        """The numbers of the problem in the units of the messages."""
        if self.same is not None:
            return self.same.base
        return self.unit if self.denominator == 1 else Base(self.problem, self.denominator)

    @cached_property
    def rows(self) -> Rows | None:
        """The resource rows that can bind; None: none can."""
        return binding_rows(self.problem, self.options.bound) if self.same is None else self.same.rows

    @cached_property
    def holes(self) -> bool:
        """Some entry is forbidden."""
        return any(int(a.max()) >= FORBIDDEN for a in (*self.unit.tables, *self.unit.unary) if a.size)

    @cached_property
    def replay(self) -> int:
        """Cells that checking further eliminations may take: a proof that nobody may check is none."""
        return spare(self.problem, self.options.elimination)

    def again(self, until: Clock) -> Run:
        """A run on the same problem, with nothing found yet; the numbers of the problem are made once."""
        incumbent = Incumbent(self.problem, self.incumbent.accepts)
        return replace(self, clock=until, incumbent=incumbent, same=self)

    def part(self, problem: SelectionProblem, until: Clock) -> Run:
        """A run on another problem with the same settings, nearer to its bound."""
        gap = self.gap / self.options.solve.inner_gap_share
        return Run(problem, Incumbent(problem), until, self.options, gap, threads=self.threads, explorer=self.explorer)

    @property
    def limits(self) -> Limits:
        """How much work may be spent."""
        return self.options.limits

    def sweeper(self, network: Network, warm: Dual | None = None) -> Sweeper:
        """Messages on `network`, those of `warm` or all zero; swept by number."""
        made = Sweeper(network, None, self.threads, self.options.bound)
        if warm is not None:
            load(made, warm)
        return made

    def charge(self, network: Network) -> None:
        """Count a pass in Python over all edges of `network`."""
        self.clock.charge(EDGE * len(network.arcs))
        self.clock.read(network.pair_cells())

    def search(self, warm: Dual | None = None) -> ProofTree:
        """Search everything, from the messages of `warm` if given."""
        return self.explore(whole(self.problem), warm, 0)

    def explore(self, domains: Domains, warm: Dual | None, depth: int) -> ProofTree:
        """The proof tree of `domains`; `warm` is a dual of an enclosing node to start from."""
        return self.explorer(self, domains, warm, depth)

    def enough(self) -> int:
        """A bound from which nothing more has to be proved."""
        cost = self.incumbent.cost
        if cost >= INFINITY:
            return INFINITY
        return cost - int(self.gap * abs(cost))

    def is_closed(self, bound: int) -> bool:
        """True when the bound (in units of 1/Q) needs no improvement."""
        need = self.enough()
        return need < INFINITY and bound > (need - 1) * self.denominator

    def upper(self) -> int | None:
        """Cost of the incumbent, None without one."""
        return None if self.incumbent.cost >= INFINITY else self.incumbent.cost

    def fits(self, order: EliminationOrder) -> bool:
        """True when elimination in this order is within the limits."""
        at = self.limits
        return order.within(at.joint, min(at.work, self.replay), at.kept)

    def proves(self, outcome: Outcome) -> bool:
        """True when checking the elimination is within what is left for that, which is then less."""
        if outcome.replay > self.replay:
            return False
        self.replay -= outcome.replay
        return True

    def eliminate(self, network: Network, joint: int, work: int) -> Outcome | None:
        """What elimination of all of `network` finds, where that is within these limits and the budget of a check."""
        self.charge(network)
        order = elimination_order(network, joint)
        if not order.within(joint, min(work, self.replay), self.limits.last_kept):
            return None
        outcome = eliminate(network, order, self.clock, self.options.elimination)
        return None if outcome is None or not self.proves(outcome) else outcome

    def multipliers(self, rows: Rows, warm: Dual | None) -> Ints:
        """Those of `warm` over the events, in units of 1/Q."""
        known = {} if warm is None else {t: n * self.denominator // warm.denominator for t, n in warm.multipliers}
        return np.array([known.get(t, 0) for t in rows.events], dtype=np.int64)

    def record(
        self, network: Network, sweeper: Sweeper, multipliers: tuple[tuple[int, int], ...]
    ) -> tuple[Dual, Score]:
        """The messages of `sweeper` with these multipliers as a record, and what it says."""
        self.charge(network)
        result = score(
            network,
            sweeper.to_u,
            sweeper.to_v,
            *row_costs(self.problem, network.domains, multipliers),
        )
        return sweeper.dual(multipliers), result

    def offer(self, network: Network, choice: Choice, polish: bool) -> bool:
        """Offer `choice`, improved first if `polish`; True when `choice` itself was feasible."""
        x = network.solution(choice)
        fits = exact_cost(self.problem, x) is not None
        if fits:
            self.incumbent.offer(x)
        if polish:
            better = repair(network, self.rows, choice, self.clock, self.options.primal)
            if better is not None:
                self.incumbent.offer(network.solution(better))
        return fits


def converge_on_whole(
    run: Run, warm: Dual | None = None, share: float | None = None, enough: int | None = None
) -> Dual:
    """Messages on the whole problem of `run`, swept from those of `warm`, at its multipliers, until the bound hardly
    moves or reaches `enough`; `share`: of the time at most.
    """
    network = build(run.base, allowed_domains(run.problem))
    sweeper = run.sweeper(network, warm)
    if enough is not None:
        enough = enough * run.denominator - network.base.constant
    multipliers: tuple[tuple[int, int], ...] = ()
    if run.rows is not None:
        prices = run.multipliers(run.rows, warm)
        multipliers = run.rows.pairs(prices)
        apply_multipliers(sweeper, run.rows, prices)
        enough = None if enough is None else enough + run.rows.limit * int(prices.sum())
    converge(sweeper, run.clock.share(run.options.tree.converge_share if share is None else share), enough)
    return sweeper.dual(multipliers)
