"""Finds extraction of least cost from an e-graph, with its certificate: reduce, search, write the proof
down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from ....models.egraphs.egraph import EGraph
from ....proofs.egraphs.certificate import (
    ABSENT,
    Cut,
    Dual,
    Extraction,
    ExtractionCertificate,
    NoExtraction,
    Record,
    Split,
)
from ...selection.model.clock import Clock
from .reduced import reduce_egraph
from .search import Search, Step


@dataclass(frozen=True, eq=False)
class Extracted:
    """What was found: the certificate, and how many cases and cuts it took."""

    certificate: ExtractionCertificate
    cases: int
    cuts: int


def extract(graph: EGraph, clock: Clock, gap: Fraction = Fraction(0)) -> Extracted:
    """The cheapest extraction that is found in time, with a proof of what none undercuts.

    The search ends when (cost - bound) / cost is at most `gap`.

    >>> g = EGraph("", ("a", "b"), ("f", "g", "x"), (0, 0, 1), ((1,), (), ()), (1, 5, 2), 1, (0,), ())
    >>> extract(g, Clock(10.0)).certificate.claim
    Extraction(chosen=(0, 2), cost=3, lower_bound=3, optimal=True)
    """
    problem = reduce_egraph(graph)
    if problem is None:
        return Extracted(ExtractionCertificate(graph.sha256(), NoExtraction()), 0, 0)
    search = Search(problem, clock, gap)
    if len(problem.roots):
        search.branch_and_bound()
    else:
        search.offer(problem.roots)
    return Extracted(certificate(search), search.cases, len(search.relaxation.cuts))


def certificate(search: Search) -> ExtractionCertificate:
    """The search's answer as a claim with its records."""
    problem = search.problem
    assert search.best is not None and search.upper is not None
    assembly = _Assembly(search)
    records = assembly.records()
    lower = min(assembly.lowest, search.upper)
    claim = Extraction(problem.complete(search.best), search.upper, lower, lower == search.upper)
    return ExtractionCertificate(
        problem.egraph.sha256(), claim, problem.dominated, tuple(assembly.cuts), tuple(records)
    )


class _Assembly:
    """Records of the tree of steps, and the bound that they show; cuts that no record uses are left out."""

    def __init__(self, search: Search) -> None:
        self._search, self._problem = search, search.problem
        self._number: dict[int, int] = {}
        self.cuts: list[Cut] = []
        self.lowest = search.upper or 0

    def records(self) -> list[Record]:
        """Preorder, without recursion."""
        out: list[Record] = []
        todo: list[tuple[Step, int | None, int, int | None]] = [(self._search.root, None, 0, None)]
        while todo:
            step, parent, slot, above = todo.pop()
            number = len(out)
            if parent is not None:
                before = out[parent]
                out[parent] = (
                    replace(before, then=number)
                    if isinstance(before, Dual)
                    else replace(before, then=(*before.then[:slot], number, *before.then[slot + 1 :]))
                )
            if step.parts:
                out.append(self._split(step))
                todo += [(s, number, k, above) for k, s in reversed(list(enumerate(step.then)))]
                continue
            if step.void:
                out.append(Dual(1, (), (), ()))
                continue
            value = None if step.bound is None else step.bound.value(self._problem.step)
            if value is not None:
                above = value if above is None else max(above, value)
            closed = above is not None and above >= self.lowest_needed
            out.append(self._dual(step))
            if step.then and not closed:
                todo.append((step.then[0], number, 0, above))
            elif above is not None:
                self.lowest = min(self.lowest, above)
        return out

    @property
    def lowest_needed(self) -> int:
        """A bound that closes a case."""
        assert self._search.upper is not None
        return self._search.upper

    def _split(self, step: Step) -> Split:
        nodes = self._problem.nodes
        parts = tuple(tuple(ABSENT if n == ABSENT else nodes[n] for n in part) for part in step.parts)
        return Split(self._problem.classes[step.owner], parts, (0,) * len(parts))

    def _dual(self, step: Step) -> Dual:
        if step.bound is None:
            return Dual(1, (), (), ())
        dual, used = self._search.multipliers.record(step.bound, None)
        for k in used:
            if k not in self._number:
                self._number[k] = len(self.cuts)
                cut = self._search.relaxation.cuts[k]
                classes = tuple(sorted(self._problem.classes[int(c)] for c in cut.inside))
                self.cuts.append(Cut(self._problem.classes[cut.top], classes))
        return replace(dual, cuts=tuple((self._number[k], m) for k, m in dual.cuts))
