"""Proof trees while they grow, and their assembly into records once the incumbent is final.

A fix record removes more labels when the incumbent gets better, and an `Elimination` below it is shaped by the labels
that are left.  So the search keeps drafts, and `assemble` walks them once at the end against the final incumbent cost:
domains are derived again exactly as a checker derives them, eliminations are run again where their domains have
changed, and branches that the final incumbent closes are cut off.  It returns the number B that the record establishes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, assert_never

import numpy as np

from ...models.problem.selection_problem import FORBIDDEN, SelectionProblem
from ...proofs.selection.certificates import Dual, Elimination, Open, Point, Record, RowConflict, Split
from .bounds import Score, fix_labels, gather, row_costs, score
from .network import Base, Domains, build, exact_cost

NOTHING: Final = -(1 << 62)
"""Stands for minus infinity as a bound."""
INFINITY: Final = FORBIDDEN
"""Stands for plus infinity as a bound: every finite cost is smaller."""


@dataclass(eq=False)
class DualDraft:
    """`record.then` is None here; `score` was computed on `domains`.  `consistency`: no messages, only forbidden
    choices removed.
    """

    record: Dual
    domains: Domains
    score: Score
    child: Draft | None = None
    consistency: bool = False


@dataclass(eq=False)
class SplitDraft:
    """Children in the order of `parts`."""

    vertex: int
    parts: tuple[tuple[int, ...], ...]
    children: list[Draft]


@dataclass(eq=False)
class EliminationDraft:
    """Eliminate here; `record` and `value` hold for `domains`."""

    domains: Domains
    record: Elimination
    value: int


@dataclass(eq=False)
class LeafDraft:
    """A record without parts of its own."""

    record: Point | Open | RowConflict


Draft = DualDraft | SplitDraft | EliminationDraft | LeafDraft

Eliminator = Callable[[Domains, Elimination], tuple[Elimination, int] | None]
"""Eliminates on smaller domains; None when that is not possible any more (time)."""


@dataclass(frozen=True, eq=False)
class Assembler:
    """`upper`: final incumbent cost, INFINITY without one.  `enough`: a bound that needs no further proof."""

    problem: SelectionProblem
    base: Base
    upper: int
    enough: int
    eliminator: Eliminator

    def assemble(self, draft: Draft, domains: Domains) -> tuple[Record, int]:
        """The record and its bound B on `domains`."""
        if any(d.size == 0 for d in domains):
            return Open(), INFINITY
        match draft:
            case DualDraft():
                return self._dual(draft, domains)
            case SplitDraft():
                return self._split(draft, domains)
            case EliminationDraft():
                if _same(domains, draft.domains):
                    return draft.record, draft.value
                again = self.eliminator(domains, draft.record)
                return (Open(), NOTHING) if again is None else again
            case LeafDraft():
                return draft.record, self._leaf(draft.record, domains)
            case _:
                assert_never(draft)

    def _split(self, draft: SplitDraft, domains: Domains) -> tuple[Record, int]:
        v = draft.vertex
        parts: list[tuple[int, ...]] = []
        children: list[Record] = []
        worst = INFINITY
        for part, child in zip(draft.parts, draft.children, strict=True):
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

    def _dual(self, draft: DualDraft, domains: Domains) -> tuple[Record, int]:
        base = (
            self.base
            if draft.record.denominator == self.base.denominator
            else Base(self.problem, draft.record.denominator)
        )
        if _same(domains, draft.domains):
            result = draft.score
        else:
            network = build(base, domains)
            added, term = row_costs(network, draft.record.multipliers)
            result = score(network, *gather(network, draft.record), added, term)
        lower = result.lower()
        bound = INFINITY if lower is None else lower
        if bound >= self.enough or draft.child is None:
            return draft.record, bound
        kept = result.survivors(domains, self.upper)
        record, inner = self.assemble(draft.child, kept)
        if isinstance(record, Open) and all(d.size for d in kept):
            return draft.record, bound
        return replace(draft.record, then=record), max(bound, inner)

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
                added, term = row_costs(build(self.base, domains), record.multipliers)
                least = 0 if added is None else sum(int(a.min()) for a in added)
                return INFINITY if least > term else NOTHING
            case _:
                assert_never(record)


def _same(a: Domains, b: Domains) -> bool:
    return all(x is y or np.array_equal(x, y) for x, y in zip(a, b, strict=True))


__all__ = ["Assembler", "Draft", "DualDraft", "EliminationDraft", "LeafDraft", "SplitDraft", "fix_labels"]
