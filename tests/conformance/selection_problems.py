"""The problems of the conformance suite, and proofs about them that are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardproof.models.problem.claims import Optimal, SelectionClaim
from shardproof.models.problem.selection_problem import Edge, Fine, Ints, SelectionProblem, Usage, Vertex
from shardproof.proofs.container.archive import Member
from shardproof.proofs.selection.certificates import (
    Dual,
    Elimination,
    Point,
    Record,
    Rounded,
    SelectionCertificate,
    Split,
)
from shardproof.proofs.selection.file import encode_certificate
from shardproof.proofs.selection.presolve_log import Rule

F = 1 << 60


def ints(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


def table(*rows: tuple[int, ...]) -> Ints:
    return np.array(rows, dtype=np.int64)


CHAIN = SelectionProblem(
    "chain",
    (Vertex("a", ints(3, 0)), Vertex("b", ints(1, 2, 0)), Vertex("c", ints(0, 4))),
    (table((0, 5, 9), (7, 0, F)), table((6, 0), (0, 3), (1, 1))),
    (Edge(0, 1, 0), Edge(1, 2, 1)),
    constant=10,
)  # best: (1, 1, 0), 12
BEST = (1, 1, 0)

LIMITED = replace(
    CHAIN,
    name="limited",
    usages=(
        Usage(0, 0, 2, ints(2, 5), "a"),
        Usage(1, 1, 3, ints(4, 6, 3), "b"),
        Usage(2, 2, 4, ints(1, 1), "c"),
    ),
    limit=9,
)  # at step 1 a and b together: (1, 1) needs 11, (1, 2) is forbidden; best: (0, 0, 1), 18

PACK = SelectionProblem(
    "pack",
    (Vertex("p", ints(0, 3, 5)), Vertex("q", ints(0, 3, 5))),
    (),
    (),
    (Usage(0, 0, 1, ints(6, 3, 0), "p"), Usage(1, 0, 1, ints(6, 3, 0), "q")),
    limit=7,
)  # best: (0, 2), 5; 0 without the limit

TIGHT = replace(LIMITED, name="tight", limit=4)  # at step 1 at least 2 + 3

SHARED = SelectionProblem(
    "shared",
    (Vertex("a", ints(2, 1, 4)), Vertex("b", ints(0, 3, 1)), Vertex("c", ints(1, 1))),
    (table((0, 8), (8, 0)),),
    (Edge(0, 1, 0, ints(0, 0, 1), ints(0, 1, 1)), Edge(1, 2, 0, ints(0, 1, 1)), Edge(0, 2, 0, ints(0, 0, 1))),
    scale=1000,
    unit_name="s",
    space="as drawn",
    assumptions=("made-up",),
)  # best: (1, 0, 0), 2

FINE = replace(
    CHAIN,
    name="fine",
    fine=Fine(3, np.array([1, 7, 2, 3, 0, 5, 4, 1, 0, 2, 6, 3, 0, 7, 1, 4, 5, 6, 2], dtype=np.uint8)),
)  # best: (1, 1, 0), 12 * 8 + 7 + 3 + 5 + 3 + 4


def certified(problem: SelectionProblem, claim: SelectionClaim, proof: Record) -> dict[str, Member]:
    return encode_certificate(SelectionCertificate(problem.sha256(), claim, proof))


def exact(problem: SelectionProblem, scopes: tuple[tuple[int, ...], ...]) -> Elimination:
    """All vertices in order, messages left to the checker."""
    return Elimination(tuple(range(len(problem.vertices))), scopes, ())


PACKED = Optimal((0, 2), 5)
ROUNDED = Rounded(0, 1, 6, ints(2, 2))
"""C = 7, r = 1, F(6) = 5, F(3) = 2, F(7) = 5."""

ALONG = ((1,), (2,), ())
MESSAGES = Elimination((0, 1, 2), ALONG, (ints(3, 0, 12), ints(2, 4), np.array(2)))
"""min over a of c_a + T(a, b): (3 or 7, 8 or 0, 12 or forbidden); over b: (4 + 6, 2 + 0, 12 + 1), (4, 5, 13); over c: 2."""


def dual(then: Record | None = None, **more: object) -> Dual:
    """Messages that make the bound of CHAIN exact: to b from a what the elimination has, to c from b likewise."""
    return replace(
        Dual((ints(-3, 0), ints(-4, -2, -12)), (ints(3, 0, 12), ints(2, 4)), 1, (), then),
        **more,  # type: ignore[arg-type]
    )


def zeros(problem: SelectionProblem, q: int = 1, then: Record | None = None, **more: object) -> Dual:
    """A dual without messages."""
    shapes = [problem.tables[e.table].shape for e in problem.edges]
    to_u, to_v = (tuple(np.zeros(s[k], dtype=np.int64) for s in shapes) for k in (0, 1))
    return replace(Dual(to_u, to_v, q, (), then), **more)  # type: ignore[arg-type]


def leaves(domains: tuple[tuple[int, ...], ...], vertex: int = 0) -> Record:
    """Every choice of every vertex split off, down to points."""
    if vertex == len(domains):
        return Point()
    parts = tuple((a,) for a in domains[vertex])
    return Split(vertex, parts, tuple(leaves(domains, vertex + 1) for _ in parts))


EVERY = ((0, 1), (0, 1, 2), (0, 1))

ZOO = SelectionProblem(
    "zoo",
    (
        Vertex("arc", ints(5, F)),
        Vertex("merged", ints(1, 2)),
        Vertex("into", ints(0, 4)),
        Vertex("follower", ints(1, 0)),
        Vertex("leader", ints(0, 1)),
        Vertex("separable", ints(2, 0, 3)),
        Vertex("large", ints(1, 0)),
    ),
    (
        table((F, 1), (2, F)),  # merged - into: one partner each
        table((0, 9), (2, 2)),  # follower - leader
        table((1, 2, 3), (3, 4, 5)),  # leader - separable
        table((0, 1), (1, 1)),  # arc - large
    ),
    (Edge(1, 2, 0), Edge(3, 4, 1), Edge(4, 5, 2), Edge(0, 6, 3)),
    (Usage(6, 0, 1, ints(1, 9), "large"), Usage(4, 0, 2, ints(2, 2), "leader"), Usage(2, 1, 2, ints(0, 0), "into")),
    limit=8,
)
LOG = table(
    (Rule.ARC, 0, -1, 0),  # choice 1 of arc has no allowed cost
    (Rule.FIX, 0, 0, 0),
    (Rule.MERGE, 1, 2, 0),
    (Rule.FOLLOW, 3, 4, 0),
    (Rule.SEPARABLE, 4, 5, 0),
    (Rule.DOMINATED, 5, 2, 1),
    (Rule.OVERFULL, 6, 1, 0),  # 9 and 2 of leader's at step 0
    (Rule.ROWS, 0, 0, 0),
    (Rule.ELIMINATE, 4, 0, 0),
    (Rule.ELIMINATE, 5, 0, 0),
)
STEPS = (ints(0),)
LEFT = Split(0, ((0,), (1,)), (Point(), Point()))  # into, large and the baseline are left
ZOO_BEST = (0, 1, 0, 0, 0, 1, 0)
