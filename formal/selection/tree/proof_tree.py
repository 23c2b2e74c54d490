"""Proof trees while they grow, and their assembly into records once the incumbent is final.

A fix record removes more labels when the incumbent gets better, and an `Elimination` below it is shaped by the labels
that are left.  So the search keeps nodes, and `assemble` walks them once at the end against the final incumbent cost:
domains are derived again exactly as a checker derives them, eliminations are run again where their domains have
changed, and branches that the final incumbent closes are cut off.  It returns the number B that the record establishes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from ....models.problem.selection_problem import SelectionProblem
from ....proofs.selection.certificates import Dual, Elimination, Open, Point, Record, RowConflict, Split
from ..bound.dual import Score, row_costs, score_of
from ..model.factored import Base, Domains, exact_cost, whole
from ..model.infinity import INFINITY, NOTHING
from ..presolve.presolve import Presolved


@dataclass(eq=False)
class DualNode:
    """`record.then` is None here; `score` was computed on `domains`.  `consistency`: no messages, only forbidden
    choices removed.
    """

    record: Dual
    domains: Domains
    score: Score
    child: ProofTree | None = None
    consistency: bool = False


@dataclass(eq=False)
class SplitNode:
    """Children in the order of `parts`."""

    vertex: int
    parts: tuple[tuple[int, ...], ...]
    children: list[ProofTree]


@dataclass(eq=False)
class EliminationNode:
    """Eliminate here; `record` and `value` hold for `domains`."""

    domains: Domains
    record: Elimination
    value: int


@dataclass(eq=False)
class Leaf:
    """A record without parts of its own."""

    record: Point | Open | RowConflict


@dataclass(eq=False)
class ReducedNode:
    """`domains` presolved; `child` is about the reduced problem.  None: not known yet, or nothing is left there."""

    domains: Domains
    presolved: Presolved | None = None
    child: ProofTree | None = None


ProofTree = DualNode | SplitNode | EliminationNode | ReducedNode | Leaf

Eliminator = Callable[[Domains, Elimination], tuple[Elimination, int] | None]
"""Eliminates on smaller domains; None when that is not possible any more (time)."""


@dataclass(frozen=True, eq=False)
class Assembler:
    """`upper`: final incumbent cost, INFINITY without one.  `enough`: a bound that needs no further proof.  `base`: the
    numbers of the problem in units of most records, if somebody has them.
    """

    problem: SelectionProblem
    upper: int
    enough: int
    base: Base | None = None
    eliminator: Eliminator = lambda domains, before: None

    def assemble(self, node: ProofTree, domains: Domains) -> tuple[Record, int]:
        """The record and its bound B on `domains`."""
        if any(d.size == 0 for d in domains):
            return Open(), INFINITY
        match node:
            case DualNode():
                return self._dual(node, domains)
            case SplitNode():
                return self._split(node, domains)
            case EliminationNode():
                if _same(domains, node.domains):
                    return node.record, node.value
                again = self.eliminator(domains, node.record)
                return (Open(), NOTHING) if again is None else again
            case ReducedNode():
                return self._reduced(node, domains)
            case Leaf():
                return node.record, self._leaf(node.record, domains)
            case _:
                assert_never(node)

    def _split(self, node: SplitNode, domains: Domains) -> tuple[Record, int]:
        v = node.vertex
        parts: list[tuple[int, ...]] = []
        children: list[Record] = []
        worst = INFINITY
        for part, child in zip(node.parts, node.children, strict=True):
            kept = np.intersect1d(domains[v], np.array(part, dtype=np.int64), assume_unique=True)
            if kept.size == 0:  # fixed since: the other parts still cover what is left
                continue
            record, bound = self.assemble(child, (*domains[:v], kept, *domains[v + 1 :]))
            parts.append(tuple(kept.tolist()))
            children.append(record)
            worst = min(worst, bound)
        if all(isinstance(c, Open) for c in children):
            return Open(), NOTHING
        if len(children) == 1:
            return children[0], worst
        return Split(v, tuple(parts), tuple(children)), worst

    def _dual(self, node: DualNode, domains: Domains) -> tuple[Record, int]:
        if _same(domains, node.domains):
            result = node.score
        else:
            q, base = node.record.denominator, self.base
            if base is None or base.denominator != q:
                base = Base(self.problem, q)
            result = score_of(base, domains, node.record)
        lower = result.lower()
        bound = INFINITY if lower is None else lower
        if bound >= self.enough or node.child is None:
            return node.record, bound
        kept = result.fix(domains, self.upper)
        record, inner = self.assemble(node.child, kept)
        if isinstance(record, Open) and all(d.size for d in kept):
            return node.record, bound
        return replace(node.record, then=record), max(bound, inner)

    def _reduced(self, node: ReducedNode, domains: Domains) -> tuple[Record, int]:
        """A log belongs to the domains that it was made for."""
        if node.presolved is None or not _same(domains, node.domains):
            return Open(), NOTHING
        record: Record
        inner, record, bound = node.presolved.problem, Open(), INFINITY
        if inner is not None:
            if node.child is None:
                return Open(), NOTHING
            record, bound = replace(self, problem=inner, base=None).assemble(node.child, whole(inner))
        return node.presolved.proof_back(record), bound

    def _leaf(self, record: Point | Open | RowConflict, domains: Domains) -> int:
        match record:
            case Open():
                return NOTHING
            case Point():
                if any(d.size != 1 for d in domains):
                    return NOTHING
                x = tuple(int(d[0]) for d in domains)
                cost = exact_cost(self.problem, x)
                return INFINITY if cost is None else cost
            case RowConflict():
                added, term = row_costs(self.problem, domains, record.multipliers)
                least = 0 if added is None else sum(int(a.min()) for a in added)
                return INFINITY if least > term else NOTHING
            case _:
                assert_never(record)


def _same(a: Domains, b: Domains) -> bool:
    return all(x is y or np.array_equal(x, y) for x, y in zip(a, b, strict=True))
