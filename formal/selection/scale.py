"""Problems with tens of thousands of vertices and resource rows: reduce, bound and search together, then prove.

    root     ascent in slices; after each, solutions decoded from it are made to fit and improved by local search
    tree     reduced-cost fixing, reduction again, branching (`flat_tree`), anew whenever a better solution turns up
    rest     what time is left when the root gap is too wide for a tree: ascent and local search in turn

The answer is a record tree with the bound that it establishes, whenever the run ends: by itself, by the clock, or by Ctrl-C.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from ...models.problems import FORBIDDEN, SelectionProblem
from ...proofs.certificates import Open, Record
from .clock import Clock, Progress, Quiet
from .flat import Flat, flatten
from .flat_bound import Bounder, State
from .flat_primal import Improver
from .flat_tree import MOST_BYTES, Effort, Node, Tree, big_for, start
from .network import exact_cost, whole
from .reduce import reduce
from .rows import Rows

ROOT_STEPS: Final = 60
"""Ascent steps before the first solution is looked for."""

SLICE: Final = 600
"""Ascent steps between two looks for solutions."""

BEYOND: Final = (0.0, 0.05)
"""How far above the incumbent the steps of the slices aim, in turn."""

TREE_LABELS: Final = 20_000
"""A core with more labels after fixing is branched on only when the bound has converged within `CLOSE` of the incumbent."""

CLOSE: Final = 0.001


@dataclass(eq=False)
class Best:
    """The cheapest feasible solution of the original problem so far."""

    problem: SelectionProblem
    solution: tuple[int, ...] | None = None
    cost: int = FORBIDDEN

    def offer(self, x: tuple[int, ...]) -> bool:
        """Keep `x` if it is feasible and cheaper, by exact evaluation."""
        cost = exact_cost(self.problem, x)
        if cost is None or cost >= self.cost:
            return False
        self.solution, self.cost = x, cost
        return True


@dataclass(eq=False)
class Outcome:
    """`record` establishes `bound` (FORBIDDEN: infinite, -FORBIDDEN: nothing) against the cost of `best`; it uses the rows of `steps`."""

    record: Record
    bound: int
    best: Best
    steps: set[int]


class Scale:
    """One run on `problem`."""

    def __init__(self, problem: SelectionProblem, clock: Clock, *, gap: Fraction = Fraction(0), progress: Progress | None = None, seed: int = 0) -> None:
        self.problem, self.clock, self.gap, self.seed = problem, clock, gap, seed
        self.progress: Progress = progress if progress is not None else Quiet()
        self.best = Best(problem)
        self.root = Node(problem, whole(problem), lambda x: x, -FORBIDDEN, 0)
        self.root_upper = FORBIDDEN
        self.converged = False
        self.slices = 0

    def run(self) -> Outcome | None:
        """None when the problem is too large for reductions; then nothing was done."""
        try:
            self.progress.update("reduction", None, None)
            self.root.reduction = reduction = reduce(self.problem, clock=self.clock)
            if reduction is None:
                return None
            if reduction.problem is None:
                self.root.closed = self.root.done = True
            else:
                self._search(reduction.problem)
        except KeyboardInterrupt:  # what is known by now is the answer
            pass
        if self.root_upper != self.best.cost:  # what was fixed belongs to another incumbent: only the root's own bound is left
            self.root.children, self.root.emptied = [], False
        if not self.root.done:
            return Outcome(Open(), -FORBIDDEN, self.best, set())
        bound = self.root.established()
        return Outcome(self.root.record(min(bound, self.best.cost)), bound, self.best, self.root.steps())

    def first(self) -> tuple[int, ...] | None:
        """Some solution, quickly; None if none was found."""
        self.root.reduction = reduction = reduce(self.problem, clock=self.clock)
        if reduction is None or reduction.problem is None:
            return None
        self.root.lift = reduction.lift
        flat = flatten(reduction.problem)
        if flat.labels == flat.vertices:
            self._tree().work(self.root)
        else:
            self.improver = Improver(flat, self.seed)
            self._first(flat, once=True)
        return self.best.solution

    def _search(self, core: SelectionProblem) -> None:
        reduction = self.root.reduction
        assert reduction is not None
        self.root.lift = reduction.lift
        flat = flatten(core)
        if flat.labels == flat.vertices:
            self._tree().work(self.root)
            return
        self.improver = Improver(flat, self.seed)
        bounder, state = self._first(flat)
        while True:
            tree = self._tree()
            if self.best.cost >= FORBIDDEN and (conflict := self._conflict(flat)) is not None:
                self.root.conflict = conflict
                self.root.done = self.root.closed = True
                return
            if self._finish(tree, bounder, state):
                return
            if tree.better:
                continue
            if self.clock.over():
                return
            bounder, state = self._more(flat, bounder, state)

    def _conflict(self, flat: Flat) -> tuple[tuple[int, int], ...] | None:
        """Multipliers that prove that nothing fits the rows."""
        if not flat.events.size:
            return None
        return Rows(flat.problem).conflict(flat.domains, thorough=True)

    def _tree(self) -> Tree:
        best = self.best
        enough = best.cost - int(self.gap * abs(best.cost)) if best.cost < FORBIDDEN else FORBIDDEN
        return Tree(self.problem, best.cost, self.clock, best.offer, lambda bound: self.progress.update("tree", bound, self._upper()), Effort(), enough)

    def _upper(self) -> int | None:
        return self.best.cost if self.best.cost < FORBIDDEN else None

    def _finish(self, tree: Tree, bounder: Bounder, state: State) -> bool:
        """One attempt at a proof from the root state; True when it needs no more."""
        assert self.root.reduction is not None
        root = Node(self.problem, self.root.domains, self.root.lift, -FORBIDDEN, 0, reduction=self.root.reduction)
        tree.finish(root, bounder, state)
        if not root.done:
            return False
        self.root, self.root_upper = root, tree.upper
        if tree.better:
            return False
        labels = sum(d.size for d in root.children[0].domains) if root.children else 0
        if labels > TREE_LABELS and not (self.converged and self.best.cost - root.bound <= CLOSE * abs(self.best.cost)):
            return False
        return tree.run(root) or tree.bytes > MOST_BYTES

    # ------------------------------------------------------------------ root

    def _first(self, flat: Flat, once: bool = False) -> tuple[Bounder, State]:
        """Bound and first solution."""
        bounder = Bounder(flat, 1 << 50)
        state = start(flat)
        for forward in (True, False):
            state.bound = bounder.sweep(state.messages, forward) + flat.problem.constant
        self.converged = False
        guess = state.bound
        for _ in range(4):
            state = bounder.ascend(state, guess + 0.3 * abs(guess), ROOT_STEPS, self.clock)
            guess = state.bound
            self._solutions(bounder, state, 0.0)
            if self.best.cost < FORBIDDEN or self.clock.over():
                break
        if self.best.cost < FORBIDDEN and not once:
            bounder = Bounder(flat, big_for(self.best.cost, flat.problem))
            state.step = 0.3
            return self._more(flat, bounder, state)
        return bounder, state

    def _more(self, flat: Flat, bounder: Bounder, state: State) -> tuple[Bounder, State]:
        """A slice of ascent and of local search; sets `converged` when the bound has hardly moved."""
        before, upper = state.bound, self.best.cost
        target = float(upper) if upper < FORBIDDEN else state.bound + 0.3 * abs(state.bound)
        begun = self.clock.seconds()
        state = bounder.ascend(state, target, SLICE, self.clock, upper - 0.5, BEYOND[self.slices % len(BEYOND)])
        self.slices += 1
        spent = self.clock.seconds() - begun
        self.progress.update("bound", None if state.bound == -np.inf else int(state.bound), self._upper())
        if upper < FORBIDDEN and state.bound > upper - 0.5:
            self.converged = True
            return bounder, state
        self._solutions(bounder, state, max(0.3, spent / 2))
        self.converged = self.slices >= len(BEYOND) and state.bound - before <= 0.02 * max(1.0, self.best.cost - state.bound)
        state.step = max(state.step, 0.1)
        if self.best.cost < 0.9 * upper:
            bounder = Bounder(flat, big_for(self.best.cost, flat.problem))
        return bounder, state

    def _solutions(self, bounder: Bounder, state: State, seconds: float) -> None:
        """Decode, make fit, improve; then improve the best for as long."""
        flat, improver = bounder.flat, self.improver
        assert self.root.reduction is not None
        bounder.apply(state.n)
        messages = state.messages.copy()
        bounder.sweep(messages, True)
        bounder.sweep(messages, False)
        begun = self.clock.seconds()
        if improver.fit(bounder.relaxed(messages), state.n, Clock(min(self.clock.left(), max(seconds, 2.0)))) and seconds:
            improver.search(state.n, Clock(min(self.clock.left(), seconds / 2)))
        if seconds:
            improver.deepen(state.n, Clock(min(self.clock.left(), seconds - (self.clock.seconds() - begun))))
        if improver.best is not None and improver.best_value + flat.problem.constant < self.best.cost:
            self.best.offer(self.root.reduction.lift(flat.solution(improver.best)))
            self.progress.update("local search", None, self._upper())
