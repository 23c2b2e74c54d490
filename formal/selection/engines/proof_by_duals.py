"""Proves a bound by an engine's own duals: branch and bound on the linear relaxation of the whole problem.

At a node with domains D, from the messages of the node above:
  1. one point left, or a resource row whose least use is above the limit: `Point`, `RowConflict`;
  2. HiGHS solves the relaxation on D (`encodings/relaxation.py`); its duals, rounded, are the messages of a `Dual`,
     refined until they are worth what the program is, or enough;
  3. labels whose reduced cost is too large leave D, as the checker will find; half of them gone, 2. again;
  4. otherwise the vertex that the relaxation divides most evenly is split: its largest share, and the rest.
Of costs with a fine part a `Dual` sees whole units; what is left within these is added up exactly (`Elimination`).
The choices that the relaxation prefers are offered as a solution.  No messages, presolve or cutoff of ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem
from ....proofs.selection.certificates import Dual, Elimination, Open, Point, RowConflict
from ..bound.dual import Score, row_costs, score_of
from ..elimination.dense import Size, buckets, survivors
from ..model.clock import Clock
from ..model.factored import Domains
from ..model.resources import added_up
from ..tree.proof_tree import DualNode, EliminationNode, Leaf, ProofTree, SplitNode
from ..tree.run import Run
from .encodings.messages import Messages
from .encodings.relaxation import Floats, Relaxation


def overfull_row(problem: SelectionProblem, domains: Domains) -> RowConflict | None:
    """The fullest step, if the least use of `domains` alone is above the limit."""
    events = np.array(problem.events(), dtype=np.int64)
    if problem.limit is None or not events.size:
        return None
    least = added_up(events, [(u, int(u.amount[domains[u.vertex]].min())) for u in problem.usages])
    k = int(least.argmax())
    return RowConflict(((int(events[k]), 1),)) if int(least[k]) > problem.limit else None


def added_rows(
    problem: SelectionProblem, domains: Domains, multipliers: tuple[tuple[int, int], ...]
) -> RowConflict | None:
    """The rows times their multipliers, if the least use of `domains` is above the limit of their sum.

    >>> from ....models.problem.selection_problem import Usage, Vertex
    >>> costs, use = np.zeros(2, dtype=np.int64), np.array([0, 2])
    >>> p = SelectionProblem("either", (Vertex("a", costs),), (), (), (Usage(0, 0, 1, use), Usage(0, 1, 2, 2 - use)), 0)
    >>> added_rows(p, (np.arange(2),), ((0, 1), (1, 1)))
    RowConflict(multipliers=((0, 1), (1, 1)))
    """
    used, limit = row_costs(problem, domains, multipliers)
    fits = used is None or sum(int(a.min()) for a in used) <= limit
    return None if fits else RowConflict(multipliers)


def offer(run: Run, x: tuple[int, ...]) -> None:
    """Keep `x` if it fits and is cheaper, with its fine part."""
    best = run.incumbent
    before, cost = best.solution, best.cost
    if not best.offer(x) and before is not None and run.problem.is_feasible(x):
        whole = -(-run.problem.cost_of(x) >> run.problem.fine_bits)
        if whole == cost and run.problem.cost_of(x) < run.problem.cost_of(before):
            best.solution = x


def _slack(problem: SelectionProblem) -> int:
    """By how much the fine parts of a solution may exceed its whole units, in these, rounded up."""
    return 1 + len(problem.vertices) + len(problem.edges)


def exact_elimination(run: Run, domains: Domains, clock: Clock) -> EliminationNode | None:
    """What is left of costs with a fine part, added up in Python integers; None where that is too much."""
    problem, at = run.problem, run.options.elimination
    cells = sum(domains[e.u].size * domains[e.v].size for e in problem.edges)
    if problem.fine is None or any(d.size == 0 for d in domains) or cells > at.fine_work:
        return None
    bits, parts = problem.fine_bits, problem.fine_parts()

    def exact(coarse: Ints, fine: np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger]]) -> Ints:
        values = coarse.astype(object) * (1 << bits) + fine.astype(object)
        values[coarse >= FORBIDDEN] = FORBIDDEN << (bits + 20)
        return np.asarray(values, dtype=object)

    unary = [exact(v.cost[d], parts[k][d]) for k, (v, d) in enumerate(zip(problem.vertices, domains, strict=True))]
    pairs = []
    for e in problem.edges:
        rows, cols = domains[e.u], domains[e.v]
        where = np.ix_(rows if e.rows is None else e.rows[rows], cols if e.cols is None else e.cols[cols])
        table = exact(problem.tables[e.table][where], parts[len(unary) + e.table][where])
        pairs.append((e.u, e.v, table))
    found = buckets(unary, pairs, Size(at.fine_work, at.fine_work, at.fine_work), clock)
    if found is None:
        return None
    value = (problem.constant << bits) + found.value
    x = tuple(int(d[i]) for d, i in zip(domains, survivors(found, None)[1], strict=True))
    offer(run, x)
    fits = problem.is_feasible(x)
    coarse = -(-value >> bits) if fits else value >> bits
    return EliminationNode(domains, Elimination(found.order, found.scopes, (), fine=True), min(coarse, FORBIDDEN))


def exact_here(run: Run, ties: EliminationNode) -> bool:
    """True when nothing more can be said of the case: rows bind nowhere, or its least cost closes it without them."""
    return run.rows is None or ties.value >= run.enough()


@dataclass(eq=False)
class DualProof:
    """Builds the tree; `asked`: programs so far; `conflict`: rows that a ray of the last one adds up to."""

    relaxation: Relaxation | Messages
    asked: int = 0
    conflict: RowConflict | None = None

    def explore(self, run: Run, domains: Domains, warm: Dual | None, depth: int) -> ProofTree:
        """The proof tree of `domains`; `warm`: messages of an enclosing node."""
        if any(d.size == 0 for d in domains) or run.clock.over() or run.held > run.limits.held:
            return Leaf(Open())
        if all(d.size == 1 for d in domains):
            offer(run, tuple(int(d[0]) for d in domains))
            return Leaf(Point())
        conflict = overfull_row(run.problem, domains)
        if conflict is not None:
            return Leaf(conflict)
        if warm is None:
            clean = without_forbidden(run, domains, self.relaxation.nothing())
            if clean is not None:
                node, kept = clean
                node.child = self.explore(run, kept, node.record, depth)
                return node
        self.conflict = None
        record, result, x = self._bound(run, domains, warm)
        if self.conflict is not None:
            return Leaf(self.conflict)
        node = DualNode(record, domains, result)
        run.held += sum(m.nbytes for m in (*record.to_u, *record.to_v))
        lower = result.lower()
        run.progress.update("linear programs", lower if depth == 0 else None, run.upper())
        if lower is None or lower >= run.enough():
            return node
        kept = result.fix(domains, run.incumbent.cost)
        node.child = self._below(run, kept, node, x, depth)
        return node

    def _below(self, run: Run, kept: Domains, node: DualNode, x: tuple[Floats, ...] | None, depth: int) -> ProofTree:
        left, before = sum(d.size for d in kept), sum(d.size for d in node.domains)
        if any(d.size == 0 for d in kept) or run.clock.over():
            return Leaf(Open())
        if run.problem.fine is not None and run.incumbent.cost - (node.score.lower() or 0) <= _slack(run.problem):
            ties = exact_elimination(run, kept, run.clock)
            if ties is not None and exact_here(run, ties):
                return ties
        if left <= run.options.engines.alone_again * before or left == len(kept):
            return self.explore(run, kept, node.record, depth)
        shares = [np.full(d.size, 1.0 / d.size) for d in kept]
        if x is not None:
            at = self.relaxation.choices
            shares = [s[np.searchsorted(c, d)] for s, c, d in zip(x, at, kept, strict=True)]
        open_ = [v for v, d in enumerate(kept) if d.size > 1]
        v = min(open_, key=lambda v: (float(shares[v].max()), kept[v].size, v))
        order = kept[v][np.argsort(-shares[v], kind="stable")]
        parts = tuple(tuple(sorted(part.tolist())) for part in (order[:1], order[1:]))
        below = SplitNode(v, parts, [])
        for part in parts:
            chosen = np.array(part, dtype=np.int64)
            below.children.append(self.explore(run, (*kept[:v], chosen, *kept[v + 1 :]), node.record, depth + 1))
        return below

    def _bound(self, run: Run, domains: Domains, warm: Dual | None) -> tuple[Dual, Score, tuple[Floats, ...] | None]:
        """The best messages of some programs on `domains`, what they say, and the last solution of one."""
        dual = self.relaxation.nothing() if warm is None else warm
        result, x, cap = score_of(run.base, domains, dual), None, None
        for _ in range(run.options.engines.turns):
            if result.bound is None or run.is_closed(result.bound) or run.clock.over():
                break
            found = self.relaxation.solve(domains, dual, run.clock, cap)
            self.asked += 1
            if found.x is not None:
                x = found.x
                offer(run, self._rounded(domains, x))
            if found.dual is None:
                break
            better = score_of(run.base, domains, found.dual)
            if better.bound is None:
                return found.dual, better, x
            if found.value == float("inf") and run.upper() is None:  # a ray outbids no solution
                self.conflict = added_rows(run.problem, domains, found.dual.multipliers)
                break
            missing = result.bound + found.value - better.bound
            if better.bound <= result.bound:
                break
            dual, result = found.dual, better
            if missing <= run.denominator / 8:
                break
            if run.upper() is not None:
                cap = max(
                    run.denominator, run.options.engines.cap * (run.incumbent.cost * run.denominator - better.bound)
                )
        return dual, result, x

    def _rounded(self, domains: Domains, x: tuple[Floats, ...]) -> tuple[int, ...]:
        """At every vertex the choice of its domain with the largest share, the first of equals."""
        out = []
        for d, shares, choices in zip(domains, x, self.relaxation.choices, strict=True):
            inside = np.intersect1d(d, choices, assume_unique=True)
            out.append(int(inside[np.argmax(shares[np.searchsorted(choices, inside)])]) if inside.size else int(d[0]))
        return tuple(out)


def without_forbidden(run: Run, domains: Domains, zero: Dual) -> tuple[DualNode, Domains] | None:
    """A dual without messages that takes out choices that are forbidden, or nowhere allowed; None if none is."""
    if not run.holes:
        return None
    result = score_of(run.base, domains, zero)
    kept = result.fix(domains, FORBIDDEN)
    if all(a.size == b.size for a, b in zip(kept, domains, strict=True)):
        return None
    return DualNode(zero, domains, result, consistency=True), kept
