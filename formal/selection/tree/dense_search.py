"""Searches problems with tens of thousands of vertices and resource rows on dense tables: presolve, bound
and local search together, then proof.

    root     ascent in slices; after each, solutions decoded from it are made to fit and improved by local search
    tree     reduced-cost fixing, reduction again, branching (`tree/best_first.py`), anew whenever a better solution
             turns up
    rest     what time is left when the root gap is too wide for a tree: ascent and local search in turn

The answer is a record tree with the bound that it establishes, whenever the run ends: by itself, or by the clock, which
Ctrl-C stops.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN
from ....proofs.selection.certificates import Record, RowConflict
from ..bound.dense_dual import Begin, DenseBounder, State
from ..bound.smoothed import smoothed_ascent
from ..model.dense import DenseProblem, dense_problem
from ..model.factored import whole
from ..model.resources import Rows
from ..presolve.presolve import presolve
from ..primal.local_search import Improver
from .best_first import Node, Tree, big_for, start
from .proof_tree import Assembler, Leaf
from .run import Run


class DenseSearch:
    """One search of the problem of `run`.  With two threads the local search of a slice runs beside its ascent, but
    where steps of work are counted; the answer does not depend on that, unless the clock ends it.
    """

    def __init__(self, run: Run) -> None:
        self.problem, self.clock, self.best, self.progress = run.problem, run.clock, run.incumbent, run.progress
        self.options, self.dense = run.options, run.options.dense
        self.gap, self.threads = run.gap, run.threads
        self.root = Node(self.problem, whole(self.problem), lambda x: x, -FORBIDDEN, 0)
        self.converged, self.slices, self.rest = False, 0, 0

    def search(self) -> tuple[Record, int] | None:
        """A record and the bound that it establishes (FORBIDDEN: infinite, -FORBIDDEN: nothing) against the cost of the
        incumbent.  None when the problem is too large for reductions; then nothing was done.
        """
        self.progress.update("reduction", None, None)
        flat = self._core()
        if self.root.tree.presolved is None:
            return None
        if flat is not None:
            self._search(flat)
        cost, tree, domains = self.best.cost, self.root.tree, self.root.domains
        _, bound = Assembler(self.problem, cost, cost).assemble(tree, domains)
        record, _ = Assembler(self.problem, cost, min(bound, cost)).assemble(tree, domains)
        return record, bound

    def first(self) -> tuple[int, ...] | None:
        """Some solution, quickly; None if none was found."""
        flat = self._core()
        if flat is not None:
            self._first(flat, once=True)
        return self.best.solution

    def _core(self) -> DenseProblem | None:
        """What presolve leaves to search; None where that is nothing, or presolve could not begin."""
        self.root.tree.presolved = presolved = presolve(self.problem, clock=self.clock, options=self.options.presolve)
        if presolved is None or presolved.problem is None:
            return None
        self.root.lift = presolved.solution_back
        flat = dense_problem(presolved.problem)
        if flat.labels == flat.vertices:
            self._tree().work(self.root)
            return None
        self.improver = Improver(flat, options=self.options.primal)
        return flat

    def _search(self, flat: DenseProblem) -> None:
        bounder, state = self._first(flat)
        while True:
            tree = self._tree()
            if self.best.cost >= FORBIDDEN and (conflict := self._conflict(flat)) is not None:
                self.root.tree.child = Leaf(RowConflict(conflict))
                return
            if self._finish(tree, bounder, state):
                return
            if self.best.cost < tree.upper:
                self._adopt(flat, state)
                continue
            if self.clock.over():
                return
            bounder, state = self._more(flat, bounder, state)

    def _conflict(self, flat: DenseProblem) -> tuple[tuple[int, int], ...] | None:
        """Multipliers that prove that nothing fits the rows."""
        if not flat.events.size:
            return None
        return Rows(flat.problem, self.options.bound).conflict(flat.domains, True, self.clock)

    def _tree(self) -> Tree:
        best = self.best
        return Tree(
            best.cost,
            best.cost - int(self.gap * abs(best.cost)) if best.cost < FORBIDDEN else FORBIDDEN,
            self.clock,
            best.offer,
            lambda bound: self.progress.update("tree", bound, self._upper()),
            self.options,
        )

    def _upper(self) -> int | None:
        return self.best.cost if self.best.cost < FORBIDDEN else None

    def _finish(self, tree: Tree, bounder: DenseBounder, state: State) -> bool:
        """One attempt at a proof from the root state; True when it needs no more."""
        root = Node(self.problem, self.root.domains, self.root.lift, -FORBIDDEN, 0)
        root.tree.presolved = self.root.tree.presolved
        tree.finish(root, bounder, state)
        if not root.done:
            return False
        self.root = root
        if tree.better:
            return False
        labels = sum(d.size for d in root.children[0].domains) if root.children else 0
        if labels > self.dense.tree_labels and not (
            self.converged and self.best.cost - root.bound <= self.dense.close * abs(self.best.cost)
        ):
            return False
        return tree.close_all(root) or tree.bytes > self.dense.held

    def _adopt(self, flat: DenseProblem, state: State) -> None:
        """Let the local search go on from a solution that a tree has found."""
        presolved, solution = self.root.tree.presolved, self.best.solution
        assert presolved is not None and solution is not None
        x = presolved.project(solution)
        if x is not None and self.improver.offer(np.array(x, dtype=np.int64)):
            self.improver.deepen(state.n, self.clock, self.dense.turns)
            self._merge(flat)

    # ------------------------------------------------------------------ root

    def _first(self, flat: DenseProblem, once: bool = False) -> tuple[DenseBounder, State]:
        """Bound and first solution."""
        bounder = DenseBounder(flat, 1 << 50, self.dense)
        state = start(flat, self.dense)
        self.clock.read(bounder.entries)
        for forward in (True, False):
            state.bound = bounder.sweep(state.messages, forward) + flat.problem.constant
        self.converged = False
        guess = state.bound
        for _ in range(self.dense.first_looks):
            state = bounder.subgradient_ascent(
                state, guess + self.dense.guessed_gap * abs(guess), self.dense.root_steps, self.clock
            )
            guess = state.bound
            self._hunt(bounder.local_search_start(state), 0)
            self._merge(flat)
            if self.best.cost < FORBIDDEN or self.clock.over():
                break
        if self.best.cost < FORBIDDEN and not once:
            bounder = DenseBounder(flat, big_for(self.best.cost, flat.problem), self.dense)
            state.step = self.dense.step
            return self._more(flat, bounder, state)
        return bounder, state

    def _more(self, flat: DenseProblem, bounder: DenseBounder, state: State) -> tuple[DenseBounder, State]:
        """A slice of ascent and of local search; sets `converged` when the bound has hardly moved."""
        before, upper = state.bound, self.best.cost
        target = float(upper) if upper < FORBIDDEN else state.bound + self.dense.guessed_gap * abs(state.bound)
        if self.slices == 0:  # nothing yet that a search could begin from
            state = self._ascent(bounder, state, target)
            self._hunt(bounder.local_search_start(state), self.dense.turns)
        elif self.threads > 1 and not self.clock.counts:
            begin = bounder.local_search_start(state)
            with ThreadPoolExecutor(1) as pool:
                hunt = pool.submit(self._hunt, begin, self.dense.turns)
                state = self._ascent(bounder, state, target)
                hunt.result()
        else:
            self._hunt(bounder.local_search_start(state), self.dense.turns)
            state = self._ascent(bounder, state, target)
        self._merge(flat)
        self.progress.update("bound", None if state.bound == -np.inf else int(state.bound), self._upper())
        if upper < FORBIDDEN and state.bound > upper - 0.5:
            self.converged = True
            return bounder, state
        self.converged = self.slices > len(
            self.dense.beyond
        ) and state.bound - before <= self.dense.converged_gain * max(1.0, self.best.cost - state.bound)
        self.rest -= 1
        if self.converged and self.rest < 0:
            state = self._rounded(bounder, state)
        state.step = max(state.step, self.dense.slice_step)
        if self.best.cost < self.dense.renewed * upper:
            fresh = DenseBounder(flat, big_for(self.best.cost, flat.problem), self.dense)
            fresh.cuts, bounder = bounder.cuts, fresh
        return bounder, state

    def _ascent(self, bounder: DenseBounder, state: State, target: float) -> State:
        """The next slice: plain or smoothed."""
        turn = self.slices % (len(self.dense.beyond) + 1)
        self.slices += 1
        if turn == len(self.dense.beyond) and self.best.cost < FORBIDDEN:
            return smoothed_ascent(
                bounder,
                state,
                target,
                self.clock,
                self.dense.again if self.slices > len(self.dense.beyond) + 1 else self.dense.phases,
            )
        return bounder.subgradient_ascent(
            state,
            target,
            self.dense.slice,
            self.clock,
            self.best.cost - 0.5,
            self.dense.beyond[turn % len(self.dense.beyond)],
        )

    def _rounded(self, bounder: DenseBounder, state: State) -> State:
        """Rounds of separation and short ascents, as long as they move the bound.

        Rows are separated from smoothed shares: a plain ascent that has converged shows one of the labels between which
        the relaxed solution hesitates, and a row that it just fills.
        """
        upper, idle, first = self.best.cost, 0, state.bound
        while idle < self.dense.cut_idle and upper < FORBIDDEN and not self.clock.over():
            before = state.bound
            state = smoothed_ascent(
                bounder, state, float(upper), self.clock, self.dense.cool, self.dense.cut_cool_steps
            )
            added = bounder.tighten(state, self.dense.root_cuts, self.improver.best)
            if added:
                state.step = self.dense.cut_step
                state = bounder.subgradient_ascent(state, float(upper), self.dense.cut_steps, self.clock, upper - 0.5)
            self.progress.update("rounded rows", int(state.bound), self._upper())
            idle = idle + 1 if state.bound - before <= self.dense.cut_idle_gain * (upper - before) else 0
            if not added:
                break
        if state.bound - first <= self.dense.cut_worth * (upper - first):
            self.rest = self.dense.rest
        return state

    def _hunt(self, begin: Begin, turns: int) -> None:
        """Make the decoded positions fit, improve them, then the best ones.  May run beside an ascent: it shares
        nothing with it.
        """
        improver = self.improver
        improver.rounded = begin.rounded
        if improver.fit(begin.x, begin.n, self.clock) and turns:
            improver.search(begin.n, self.clock, turns)
        if turns:
            improver.deepen(begin.n, self.clock, turns)

    def _merge(self, flat: DenseProblem) -> None:
        """Hand what the local search has found to the answer."""
        improver = self.improver
        if improver.best is not None and improver.best_value + flat.problem.constant < self.best.cost:
            self.best.offer(self.root.lift(flat.solution(improver.best)))
            self.progress.update("local search", None, self._upper())
