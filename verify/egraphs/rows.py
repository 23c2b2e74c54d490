"""Recomputes the bound of multipliers: rows of an e-graph added to its costs.

With multipliers a of child rows, b of parent rows and g of cuts, all >= 0, and denominator Q,

    theta(n) =  Q cost(n) + sum over children d of n of (a(c, d) - b(d))            c is the class of n
                - sum over child rows (e, c) of a(e, c) + b(c)
                - sum over cuts with n in D(S) of g + sum over cuts with top c of g

is Q times what choosing n costs beyond rows that every extraction fulfils.  So Q times the cost of every extraction of
the case is at least

    LB = sum over classes c of m_c,      m_c = min of theta over allowed nodes of c, and of 0 if c is not needed

and, as all costs are multiples of their greatest common divisor g, b = g ceil(LB / (g Q)) bounds its cost.  With node
n chosen it is at least (LB - m_c + theta(n)) / Q, without class c at least (LB - m_c) / Q: what is more than UB - g
leaves, where UB is the cost of the solution.
"""

from __future__ import annotations

from ...proofs.container.effort import OBJECT
from ...proofs.egraphs.certificate import Cut, Dual
from ..budget import Budget
from .ground import BadProof, Case, Ground


class Rows:
    """The rows of an e-graph; D(S) of every cut is computed once, when a record first uses it."""

    def __init__(self, ground: Ground, cuts: tuple[Cut, ...], budget: Budget) -> None:
        self._ground, self._cuts, self._budget = ground, cuts, budget
        self._landmarks: dict[int, list[int]] = {}

    def case_bound(self, case: Case, dual: Dual, upper: int, place: str) -> int:
        """The bound b, after what costs `upper` or more has left `case`.

        Only a bound below `upper` narrows the case.  Of a needed class without a node, which no extraction of the case
        has (`Case.narrow` says so), any bound holds.
        """
        ground, q = self._ground, dual.denominator
        theta = self._theta(dual, place)
        least: list[int] = []
        total = 0
        for c, members in enumerate(ground.members):
            best = min((theta[n] for n in members if case.allowed[n]), default=0)
            least.append(best if case.needed[c] or best < 0 else 0)
            total += least[c]
        step = ground.step
        bound = -(-total // (q * step)) * step
        if bound < upper:
            slack = q * (upper - step) - total
            for c, members in enumerate(ground.members):
                for n in members:
                    if theta[n] - least[c] > slack:
                        case.allowed[n] = 0
                if -least[c] > slack:
                    case.needed[c] = 1
        return bound

    def _theta(self, dual: Dual, place: str) -> list[int]:
        ground, q = self._ground, dual.denominator
        if q < 1:
            raise BadProof(f"{place}: the denominator must be at least 1")
        self._budget.charge(2 * ground.cells, place)
        theta = [q * cost for cost in ground.cost]
        work = 0
        for c, d, m in dual.children:
            self._known(c, place)
            self._known(d, place)
            _not_negative(m, place)
            users = ground.with_child.get((c, d), ())
            work += len(users) + len(ground.members[d])
            for n in users:
                theta[n] += m
            for n in ground.members[d]:
                theta[n] -= m
        for d, m in dual.parents:
            self._known(d, place)
            _not_negative(m, place)
            if d in ground.is_root:
                raise BadProof(f"{place}: class {d} is a root, needed without a parent")
            work += len(ground.parents[d]) + len(ground.members[d])
            for n in ground.parents[d]:
                theta[n] -= m
            for n in ground.members[d]:
                theta[n] += m
        for k, m in dual.cuts:
            _not_negative(m, place)
            if not 0 <= k < len(self._cuts):
                raise BadProof(f"{place}: there is no cut {k}")
            landmark = self._landmark(k)
            top = ground.members[self._cuts[k].top]
            work += len(landmark) + len(top)
            for n in landmark:
                theta[n] -= m
            for n in top:
                theta[n] += m
        self._budget.charge(OBJECT * work, place)
        return theta

    def _landmark(self, k: int) -> list[int]:
        if k not in self._landmarks:
            cut, place = self._cuts[k], f"cut {k}"
            for c in cut.classes:
                self._known(c, place)
            if any(a >= b for a, b in zip(cut.classes, cut.classes[1:], strict=False)) or cut.top not in cut.classes:
                raise BadProof(f"{place}: its classes must ascend, and its top must be one of them")
            ground = self._ground
            size = sum(1 + len(ground.children[n]) for c in cut.classes for n in ground.members[c])
            self._budget.charge(OBJECT * (size + len(cut.classes)), place)
            self._landmarks[k] = ground.landmark(cut.classes)
        return self._landmarks[k]

    def _known(self, c: int, place: str) -> None:
        if not 0 <= c < self._ground.classes or c in self._ground.free:
            raise BadProof(f"{place}: class {c} is not there, or costs nothing and has left")


def _not_negative(m: int, place: str) -> None:
    if m < 0:
        raise BadProof(f"{place}: multipliers must not be negative")
