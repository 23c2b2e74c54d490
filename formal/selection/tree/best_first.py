"""Searches the proof tree of a dense problem, known as best-first branch and bound: reduce, bound, fix,
reduce again, and branch, best bound first.

A node is an enclosing problem with restricted domains.  It is worked on in one go:

    reduce      -> a smaller problem with a replayable log (`Reduced`); nothing left or one point left closes it
    bound       -> ascent, integers (`Dual`); at least the incumbent closes it
    fix         -> labels that the incumbent excludes leave; if enough leave, the rest is a node again (`Dual.then`)
    branch      -> the two parts of one vertex's labels are nodes (`Split`), chosen by trial steps among vertices that
                the relaxation
                   has not decided

Fixing depends on the incumbent cost, and logs on the domains that it leaves; so a tree belongs to one incumbent cost
`upper`, and a better incumbent ends it (`Tree.close_all` says so).  Open nodes have the bound of the node above.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, SelectionProblem
from ....proofs.selection.certificates import Open, Point
from ..bound.dense_dual import DenseBounder, State, prices, quantise
from ..bound.dual import Score, gather
from ..bound.mir_cuts import Cuts, Flags
from ..bound.smoothed import smoothed_ascent
from ..bound.warm_start import carry, transfer
from ..model.clock import Clock
from ..model.dense import DenseProblem, Floats, alternating, dense_problem
from ..model.factored import Domains
from ..options import Options
from ..options.dense import DENSE, DenseOptions
from ..presolve.presolve import presolve
from ..primal.local_search import MOVE, Improver
from .proof_tree import DualNode, Leaf, ReducedNode, SplitNode

Lift = Callable[[tuple[int, ...]], tuple[int, ...]]


@dataclass(eq=False)
class Node:
    """`problem` restricted to `domains`; `lift` maps solutions of `problem` to the claim's problem; `tree`: what is
    proved here.  `closed`: nothing below `upper` is left.
    """

    problem: SelectionProblem
    domains: Domains
    lift: Lift
    bound: int
    depth: int
    warm: tuple[DenseProblem, State, Cuts] | None = None
    tree: ReducedNode = field(init=False)
    closed: bool = False
    children: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree = ReducedNode(self.domains)

    @property
    def done(self) -> bool:
        """It was worked on."""
        return self.tree.child is not None or self.closed


@dataclass(eq=False)
class Tree:
    """One attempt at a proof against incumbent cost `upper` (FORBIDDEN: none), `enough` of which is needed."""

    upper: int
    enough: int
    clock: Clock
    offer: Callable[[tuple[int, ...]], bool]
    report: Callable[[int], None]
    options: Options
    better: bool = False
    count: int = 0
    bytes: int = 0

    @property
    def dense(self) -> DenseOptions:
        """Those of this search."""
        return self.options.dense

    def close_all(self, root: Node) -> bool:
        """Work until everything is closed (True), or time is up, or a solution below `upper` was found (False; then
        `better`).
        """
        tick = count()
        heap: list[tuple[int, int, int, Node]] = [(root.bound, -root.depth, next(tick), root)]
        while heap:
            bound, _, _, node = heapq.heappop(heap)
            self.report(min(bound, self.upper))
            if bound >= self.enough:
                return True
            if self.clock.over() or self.bytes > self.dense.held:
                return False
            if not node.done:
                self.work(node)
            if self.better:
                return False
            for child in node.children:
                if not child.closed:
                    heapq.heappush(heap, (child.bound, -child.depth, next(tick), child))
        return True

    def work(self, node: Node) -> None:
        """Reduce, bound, fix; then either closed, or with children."""
        self.count += 1
        node.tree.presolved = presolved = presolve(node.problem, node.domains, self.clock, self.options.presolve)
        if presolved is None:
            return
        if presolved.problem is None:
            node.closed = True
            return
        node.lift = _chain(node.lift, presolved.solution_back)
        flat = dense_problem(presolved.problem)
        if flat.labels == flat.vertices:
            self._point(node, presolved.problem, flat)
            return
        self.bytes += 8 * (flat.cells.size + 2 * flat.spans.amount.size + 4 * int(flat.graph.message[-1]))
        state = start(flat, self.dense) if node.warm is None else transfer(*node.warm[:2], presolved, flat, self.dense)
        bounder = DenseBounder(flat, big_for(self.upper, presolved.problem), self.dense)
        if node.warm is not None:
            old, before, cuts = node.warm
            bounder.cuts, state.k = carry(old, before, cuts, presolved, flat)
        node.warm = None
        target = float(self.upper) if self.upper < FORBIDDEN else 0.0

        def ascend(state: State) -> State:
            return bounder.subgradient_ascent(
                state, target, self.dense.node_steps, self.clock, stop=self.upper - 0.5, beyond=self.dense.node_beyond
            )

        state = ascend(state)
        for _ in range(self.dense.node_rounds):
            hoped = (
                node.bound + self.dense.progress * (self.upper - node.bound)
                if self.upper < FORBIDDEN and node.bound > -FORBIDDEN
                else -np.inf
            )
            added = bounder.tighten(state, self.dense.node_cuts) if state.bound < self.upper - 0.5 else 0
            if not added and state.bound >= min(hoped, self.upper - 0.5):
                break
            if state.bound < hoped:  # not even what the node above had
                state = smoothed_ascent(bounder, state, target, self.clock, self.dense.cool, self.dense.smooth_steps)
                bounder.tighten(state, self.dense.node_cuts)
            state = ascend(state)
        self.finish(node, bounder, state)

    def _point(self, node: Node, problem: SelectionProblem, flat: DenseProblem) -> None:
        x = flat.solution(np.zeros(flat.vertices, dtype=np.int64))
        fits = problem.is_feasible(x)
        node.tree.child = Leaf(Point())
        node.bound = problem.cost_of(x) if fits else FORBIDDEN
        node.closed = node.bound >= self.upper
        if fits and self.offer(node.lift(x)) and not node.closed:
            self.better = True

    def finish(self, node: Node, bounder: DenseBounder, state: State) -> None:
        """Everything after the ascent, from its best state."""
        flat = bounder.flat
        found = quantise(flat, state, self.upper if self.upper < FORBIDDEN else abs(state.bound) + 1, bounder.cuts)
        if found is None:
            return
        node.tree.child = dual = DualNode(found[0], flat.domains, found[1])
        lower = dual.score.lower()
        assert lower is not None
        node.bound = max(node.bound, lower)
        if lower >= self.upper:
            node.closed = True
            return
        self._primal(node, bounder, state)
        if self.better:
            return
        kept = dual.score.fix(dual.domains, self.upper)
        dual.child = Leaf(Open())
        if any(d.size == 0 for d in kept):
            node.closed = True
            return
        if lower >= self.enough:
            return
        smaller = sum(d.size for d in kept)
        if smaller <= self.dense.shrink * flat.labels or all(d.size == 1 for d in kept):
            dual.child = self._below(node, flat, kept, (flat, state, bounder.cuts))
            return
        vertex, parts = self._split(bounder, state, dual.score, kept)
        dual.child = split = SplitNode(vertex, parts, [])
        for part in parts:
            domains = (*kept[:vertex], np.array(part, dtype=np.int64), *kept[vertex + 1 :])
            split.children.append(self._below(node, flat, domains, (flat, state, bounder.cuts)))

    def _below(
        self, node: Node, flat: DenseProblem, domains: Domains, warm: tuple[DenseProblem, State, Cuts]
    ) -> ReducedNode:
        """A child of `node`."""
        node.children.append(Node(flat.problem, domains, node.lift, node.bound, node.depth + 1, warm))
        return node.children[-1].tree

    def _primal(self, node: Node, bounder: DenseBounder, state: State) -> None:
        flat = bounder.flat
        improver = Improver(flat, self.count, self.options.primal)
        x, n, improver.rounded = bounder.local_search_start(state)
        if not improver.fit(x, n, self.clock, rounds=self.dense.node_fit_rounds):
            return
        improver.prices(n)
        moves = max(self.dense.node_moves, improver.pool.size // 2)
        for s in self.dense.node_savings:
            self.clock.charge(MOVE * moves * self.dense.node_move)
            improver.move_vertices(moves, self.dense.node_move, s)
        if improver.best is not None and self.offer(node.lift(flat.solution(improver.best))):
            self.better = improver.best_value + flat.problem.constant < self.upper

    def _split(
        self, bounder: DenseBounder, state: State, exact: Score, kept: Domains
    ) -> tuple[int, tuple[tuple[int, ...], ...]]:
        flat = bounder.flat
        candidates = _undecided(flat, bounder.often, exact, kept, prices(flat, state, bounder.cuts))
        tried = candidates[: self.dense.trials if flat.labels <= self.dense.trial_labels else 1]
        gap = max(1.0, self.upper - state.bound) if self.upper < FORBIDDEN else FORBIDDEN
        best: tuple[float, int, tuple[tuple[int, ...], ...]] | None = None
        for vertex, a in tried:
            parts = ((a,), tuple(int(b) for b in kept[vertex] if b != a))
            score = float(len(tried) > 1)
            for part in parts if score else ():
                reached = self._trial(flat, state, bounder.cuts, kept, vertex, part)
                score *= min(max(reached - state.bound, 1e-9 * abs(state.bound)), gap)
            if best is None or score > best[0]:
                best = (score, vertex, parts)
        if best is None:
            raise ValueError("no vertex to branch on")
        return best[1], best[2]

    def _trial(
        self, flat: DenseProblem, state: State, cuts: Cuts, kept: Domains, vertex: int, part: tuple[int, ...]
    ) -> float:
        domains = (*kept[:vertex], np.array(part, dtype=np.int64), *kept[vertex + 1 :])
        small = dense_problem(flat.problem, domains, flat.network.base)
        trial = DenseBounder(small, big_for(self.upper, flat.problem), self.dense)
        keep = _kept(flat, small)
        trial.cuts = cuts.restrict_to(keep)
        there = gather(small.network, state.dual(flat))
        begin = State(alternating(*there).astype(np.float64), state.n, state.bound, state.step, state.k)
        return trial.subgradient_ascent(
            begin, float(self.upper), self.dense.trial_steps, self.clock, stop=self.upper - 0.5
        ).bound


def _undecided(flat: DenseProblem, often: Floats, exact: Score, kept: Domains, price: Floats) -> list[tuple[int, int]]:
    """(vertex, label to try) of vertices with more than one label left, from two lists in turn.

    One goes by the spread of the memory price over the relaxed solution (what is open about the rows is open there),
    the other by how little the vertex is decided; larger degree, then smaller number first.
    """
    out = []
    spread: list[tuple[float, int, int]] = []
    for v, d in enumerate(kept):
        if d.size < 2:
            continue
        here = flat.label[v]
        place = np.searchsorted(flat.choice[here : flat.label[v + 1]], d)
        at = here + place
        share, excess = often[at], exact.reduced_costs[v][place]
        first = int(np.argmax(share)) if share.any() else int(np.argmin(excess))
        degree = int(flat.graph.near[v + 1] - flat.graph.near[v])
        sure = float(share[first]) if share.any() else 1.0
        out.append((round(sure, 2), int(np.partition(excess, 1)[1]) >> 8, -degree, v, int(d[first])))
        mean = float(share @ price[at]) / max(float(share.sum()), 1e-9)
        spread.append((-float(share @ (price[at] - mean) ** 2), v, int(d[first])))
    out.sort()
    spread.sort()
    both = [x for pair in zip(spread, out, strict=True) for x in pair]
    return list(dict.fromkeys((int(x[-2]), int(x[-1])) for x in both))


def start(flat: DenseProblem, options: DenseOptions = DENSE) -> State:
    """No messages, no multipliers."""
    return State(np.zeros(int(flat.graph.message[-1])), np.zeros(flat.events.size), step=options.step)


def big_for(upper: int, problem: SelectionProblem) -> int:
    """Where sweeps clip costs."""
    return 4 * max(upper - problem.constant, abs(upper) >> 10, 1) if upper < FORBIDDEN else 1 << 50


def _kept(old: DenseProblem, new: DenseProblem) -> Flags:
    """Which labels of `old` are left in `new`, the same problem."""
    return np.concatenate([np.isin(a, b, assume_unique=True) for a, b in zip(old.domains, new.domains, strict=True)])


def _chain(outer: Lift, inner: Lift) -> Lift:
    return lambda x: outer(inner(x))
