"""Certificates of selection problems: a tree of integer facts.

Notation: D = product of restricted domains D_v (at the root every choice), UB = cost of the claimed solution (or
plus infinity), Q >= 1 an integer denominator, n_t >= 0 integer multipliers of the resource rows (row t: the usages
live at step t, limit L), m integer messages.  Every record establishes a number B(record, D) such that

    for every feasible x in D:   cost(x) >= min(B(record, D), UB).

Dual          for ANY integers m, n:
                theta_v(a) = Q c_v(a) + sum_t n_t u_t,v(a) + sum_{e at v} m_e,v(row_e(a))
                LB(D)      = Q constant + sum_v min_{a in D_v} theta_v(a)
                           + sum_e min_{a in D_u, b in D_v} [Q T_e(row a, col b) - m_e,u(row a) - m_e,v(col b)] - sum_t
                           n_t L
                B = ceil(LB(D) / Q).                                                      (certificates note, 2.4)
              If B < UB and `then` is given, labels are *fixed* first: a leaves D_v when
                LB(D) + [theta_v(a) - min theta_v] + sum_{e at v} [rowmin_e(row a) - min_e]  >  Q (UB - 1)
              where rowmin_e is the minimum of the bracket over the other end's domain; all labels are judged against
              the same D.  They are not stored: the checker finds them.  Then B = max(B, B(then, D')).   (2.5, fix)
              Labels with a forbidden cost, or whose row of some edge is forbidden throughout, always leave, even if UB
              is infinite (with UB infinite only those leave).
              `rounded`: further rows, each with its own n >= 0, a step t, a modulus g >= 1 and any reference choice z_v
              per vertex.  With
                u_v(a) the usage of choice a at t,  s_v = u_v(z_v),  C = L - sum_v s_v,  r = C mod g,
                F(d) = (g - r) floor(d / g) + max(0, d mod g - r)
              every feasible x has  sum_v F(u_v(x_v) - s_v) <= F(C) = (g - r) floor(C / g),  since F never decreases and
                                    F(a) + F(b) <= F(a + b)
              (mixed integer rounding).  theta_v(a) gains n F(u_v(a) - s_v), LB(D) loses n F(C).
              If fixing empties a domain, nothing in D costs less than UB: B = infinity, whatever `then` is.
Split         D_vertex is covered by `parts`; B = min over the children, each on D with D_vertex := part.  (2.5)
Elimination   vertices are eliminated in `order` (all of them, once each) from the pool of tables restricted to D;
              step k consumes every pool table that touches order[k] and puts messages[k] back, an integer array
              over the scope `scopes[k]` (ascending vertex numbers, axes = positions in the sorted D_v), with
                messages[k](s) <= sum of the consumed tables at (s, a)   for every a in D_order[k];
              FORBIDDEN is allowed only where the sum is >= FORBIDDEN for every a.  B = constant + the scalars.  (2.2)
              `messages` may be empty: the checker then takes the largest legal ones, the exact minima, itself.
              Resource rows are ignored (dropping a constraint only lowers the minimum).
              The excesses sum - message at (s, a) are >= 0 and add up to cost(x) - B.  So, if B < UB and `then` is
              given, last eliminated first, a leaves D_v when the excess is above UB - 1 - B for all s over what is left
              of the scope; then B = max(B, B(then, D')).  `fine`: the costs are taken with their fine part, in Python
              integers; no messages are stored then.
RowConflict   sum_v min_{a in D_v} sum_t n_t u_t,v(a)  >  sum_t n_t L : nothing in D is feasible, B = infinity;
              forbidden choices are left out of the minimum.  (2.6)
Point         every |D_v| = 1: B = cost of that point, infinity if it is not feasible.
Open          nothing is said: B = minus infinity (an enclosing Dual may still give a bound).
Fine parts    (`models.problem.selection_problem.Fine`, f bits)  every record above but Point and a fine Elimination
              speaks about the coarse costs, with ceil(UB / 2**f) for UB; what it establishes is 2**f times its coarse
              number, since cost(x) >= 2**f coarse(x).
Reduced       `log` turns the problem restricted to D, entry by entry, into a smaller problem P' whose minimum is not
              larger; every entry is a local fact that the checker tests on the state replayed so far (`presolve_log`
              lists the rules).  The checker builds P' itself: vertices left in ascending order, then the baseline
              vertex; choices left in ascending order; one edge (u < v) per pair, ascending, identity maps; steps
              renumbered 0, 1, ... in order.  `then` is a record about P' (its vertices, choices, edges, steps,
              constant):
                B(Reduced, D) = B(then, every choice of P')          under the same UB;
              infinity, whatever `then` is, when the log ends with an empty domain.  Sound, since for x in D feasible
              cost(x) >= min P' >= min(B(then), UB).  The claimed solution is always one of the original problem and is
              evaluated there.

A smaller message or multiplier is legal and only weakens B.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...models.problem.claims import SelectionClaim
from ...models.problem.selection_problem import Ints


@dataclass(frozen=True, eq=False)
class Rounded:
    """A rounded row: `step` t, `multiplier` n > 0, `modulus` g >= 1, `reference[v]`: choice z_v, shape (vertices,),
    int64.
    """

    step: int
    multiplier: int
    modulus: int
    reference: Ints


@dataclass(frozen=True, eq=False)
class Dual:
    """`to_u[e]`: int64, shape (number of rows of edge e's table,); `to_v[e]`: shape (number of columns,).

    Arrays may be shared between edges (repeated structure): the container stores each distinct array once.
    `multipliers`: pairs (step t, n_t), steps strictly ascending, n_t > 0.
    """

    to_u: tuple[Ints, ...]
    to_v: tuple[Ints, ...]
    denominator: int = 1
    multipliers: tuple[tuple[int, int], ...] = ()
    then: Record | None = None
    rounded: tuple[Rounded, ...] = ()


@dataclass(frozen=True)
class Split:
    """`parts[k]` are choices of `vertex` (numbers of the original problem), `children[k]` its record."""

    vertex: int
    parts: tuple[tuple[int, ...], ...]
    children: tuple[Record, ...]


@dataclass(frozen=True, eq=False)
class Elimination:
    """See the module docstring.  `messages[k]` has one axis per vertex of `scopes[k]`; `()` leaves all of them to
    the checker.
    """

    order: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    messages: tuple[Ints, ...]
    then: Record | None = None
    fine: bool = False


@dataclass(frozen=True)
class RowConflict:
    """`multipliers`: pairs (step t, n_t), steps strictly ascending, n_t > 0."""

    multipliers: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Point:
    """Every domain has one choice left."""


@dataclass(frozen=True)
class Open:
    """Search stopped here."""


@dataclass(frozen=True, eq=False)
class Reduced:
    """`log`: shape (entries, 4), see `presolve_log.Rule`; `steps[r]`: ascending steps kept by entry (ROWS, r)."""

    log: Ints
    steps: tuple[Ints, ...]
    then: Record


Record = Reduced | Dual | Split | Elimination | RowConflict | Point | Open


@dataclass(frozen=True)
class SelectionCertificate:
    """A claim about the problem whose hash is `problem_sha256`, and the record that is meant to prove it."""

    problem_sha256: str
    claim: SelectionClaim
    proof: Record
