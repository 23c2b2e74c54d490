"""Certificates of extractions: chosen nodes, and a tree of dual bounds in integers that no extraction
is cheaper.

x_n is 1 for a chosen node, else 0; X_c, the sum of x_n over the nodes of class c, is 1 for a class that is needed and
0 for others.  Every extraction obeys three kinds of rows:

    child (c, d)      X_d >= sum of x_n over nodes n of c that have child d
    parent d          X_d <= sum of x_n over nodes n with child d                     d is no root
    cut (S, k)        X_k <= sum of x_n over D(S)                                     k is a class of the set S

D(S) are the nodes of classes in S that have no child in S.  A cut holds because an extraction has no circles: if k is
needed, then among the needed classes of S one has a chosen node without a child in S, else they would go round for
ever (a disjunctive landmark, in planning; a loop formula, in logic programming).

A `Dual` multiplies rows by integers >= 0 and adds them to the costs; its bound is the sum over classes of the cheapest
that is left (`verify.egraphs.rows`).  Choices that would cost as much as the solution leave, and the proof goes on
about what stays; a `Split` divides the choices of one class.

Two reductions come before everything, if no cost is negative: classes that cost nothing leave (the *free* ones: by
nodes of cost 0 whose children are free), and a node that is *dominated* leaves: another of its class that stays costs
no more and has no other children.

Source: Helmert and Domshlak, ICAPS 2009 (landmarks); Lin and Zhao, AIJ 2004 (loop formulas); Bonet and Helmert, ECAI
2010 (hitting sets of landmarks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ABSENT: Final = -1
"""In the parts of a split: the class is not needed."""


@dataclass(frozen=True)
class Cut:
    """X_top <= sum of x_n over D(`classes`); `top` is one of the classes, which ascend."""

    top: int
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Dual:
    """Multipliers m / `denominator` of rows: `children` holds (c, d, m), `parents` (d, m), `cuts` (number of a cut, m).
    `then`: number of the record about what stays, or None.
    """

    denominator: int
    children: tuple[tuple[int, int, int], ...]
    parents: tuple[tuple[int, int], ...]
    cuts: tuple[tuple[int, int], ...]
    then: int | None = None


@dataclass(frozen=True)
class Split:
    """Part k of the choices of class `owner` (nodes, `ABSENT`) is what record `then[k]` is about."""

    owner: int
    parts: tuple[tuple[int, ...], ...]
    then: tuple[int, ...]


Record = Dual | Split


@dataclass(frozen=True)
class Extraction:
    """Nodes `chosen` cost `cost`, and no extraction costs less than `lower_bound`, which is `cost` if `optimal`."""

    chosen: tuple[int, ...]
    cost: int
    lower_bound: int
    optimal: bool


@dataclass(frozen=True)
class NoExtraction:
    """There is none: some root needs itself whatever is chosen."""


@dataclass(frozen=True)
class ExtractionCertificate:
    """About the e-graph with hash `egraph_sha256`.  `dominated` holds (node that leaves, node that stays); record 0
    is the root of the proof, and records name later ones only.
    """

    egraph_sha256: str
    claim: Extraction | NoExtraction
    dominated: tuple[tuple[int, int], ...] = ()
    cuts: tuple[Cut, ...] = ()
    records: tuple[Record, ...] = ()

    @property
    def numbers(self) -> int:
        """Numbers that the proof holds."""
        out = 2 * len(self.dominated) + sum(len(c.classes) for c in self.cuts)
        for r in self.records:
            out += (
                sum(map(len, r.parts))
                if isinstance(r, Split)
                else 3 * len(r.children) + 2 * len(r.parents) + 2 * len(r.cuts)
            )
        return out
