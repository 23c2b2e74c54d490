"""Entries of the reduction log of a `Reduced` record: `(rule, i, j, k)`, four integers each.

State: a selection problem that starts as the enclosing problem restricted to D, parallel edges added up, at most one
table T_ij per pair of vertices (transposed: T_ji).  Vertices, choices and steps keep the numbers of the enclosing
problem.  u_t,i(a): total usage of choice a of vertex i at step t.  Every entry changes the state (one that
would not is refused) and turns a state P into a state P' with  min P' <= min P  (minima over feasible solutions,
infinity when there is none), so the state at the end bounds the one at the start, whatever the entries are.

ROWS       (r, 0)        only the steps `steps[r]` of the record are kept, which the state still has: dropping a row
                         only lowers the minimum.
ARC        (i, j)        every choice a of i with T_ij(a, y) forbidden for all y leaves; j = -1: every choice of
                         forbidden own cost.
FIX        (i)           i has one choice: its row of every T_ij goes to the costs of j, its cost to the constant, its
                         usage to the base.
MERGE      (i, j)        every row y of T_ji has exactly one allowed entry g(y), so x_i = g(x_j): c_j(y) += T_ji(y,
                         g(y)) + c_i(g(y)), edges (i, l) become (j, l) with rows g(y), usage of i joins j through g.
FOLLOW     (i, j)        i has the one neighbour j, and for every y one choice g(y) that is cheapest in c_i + T_ij(., y)
                         and, at every step, uses no more than any other allowed one: as MERGE.  (g: least total usage
                         among the cheapest, then first.)
SEPARABLE  (i, j)        T_ij(a, y) = r(a) + d(y) without forbidden entries: r goes to i, d to j, with d >= 0 and min d
                         = 0 on row 0's minimum.
DOMINATED  (i, a, b)     a leaves since b stays:  c_i(a) - c_i(b) + sum_j min {T_ij(a, y) - T_ij(b, y) : T_ij(a, y)
                         allowed} >= 0  and u_t,i(b) <= u_t,i(a) at every step.  Strictly one after another: b must be
                                        there when a leaves.
ELIMINATE  (i)           i has at most two neighbours and, at every step, all its choices use the same: its minimum over
                         its choices goes to the constant, to the neighbour's costs, or to the table between the two
                         neighbours; its usage to the base.
OVERFULL   (i, a, t)     u_t,i(a) + base_t + sum_{v != i} min u_t,v > limit: a leaves.
CLIQUE     (i, a, h)     neighbouring entries of one h together name choices A_i of vertices i: any two of different
                         vertices exclude each other, T_ij(a, b) is forbidden.  A vertex h joins, the next number, which
                         uses nothing and costs nothing.  Its choice 0 is that no vertex takes a choice of its A_i, its
                         choice k that the k-th vertex named does, and no other:  T_hi(k, a) = 0 where (k is that of
                         i) = (a in A_i), else forbidden.  Every feasible x has one choice of h.
IMPLIED    (i, j, h)     h excludes a of i beside b of j: T_ih(a, y) or T_jh(b, y) is forbidden for every y.  Where that
                         is so, a forbidden T_ij(a, b) becomes 0.

`base_t`: usage at step t that does not depend on choices any more.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Rule(IntEnum):
    """First number of an entry."""

    ROWS = 1
    ARC = 2
    FIX = 3
    MERGE = 4
    FOLLOW = 5
    SEPARABLE = 6
    DOMINATED = 7
    ELIMINATE = 8
    OVERFULL = 9
    CLIQUE = 10
    IMPLIED = 11


BASELINE: Final = "base usage"
"""Name of the last vertex of a reduced problem: one choice that uses `base_t`; there when some `base_t` > 0 or no
other vertex is left.
"""

AT_MOST_ONE: Final = "at most one"
"""Name of a vertex that joins (CLIQUE)."""
