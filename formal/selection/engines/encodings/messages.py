"""Asks z3 for messages: the proof of a bound as unknowns of linear arithmetic, solved in exact rationals.

For messages m and multipliers n that are known (integers in units of 1/Q, at first all zero), real unknowns d, k, l:

    maximise    sum_v l_v - sum_t left_t k_t
    (M1)        l_v <= theta_v(a) + sum_e d_e(index of a) + sum_t k_t amount_t,v(a)     every choice a of v
    (M2)        d_e(r) + d_e(c) <= bracket_e(r,c)                                       every allowed entry
    (M3)        n_t + k_t >= 0                                                          every resource row

theta and bracket are what the messages m leave above their least, so that all zero satisfies it.  It is the dual of the
relaxation in `relaxation.py`, one row per choice and per table entry.  z3's simplex method is exact: its model, rounded
down to integers, is the messages of a `Dual` record, and loses less than one unit of 1/Q per edge and vertex.  Without
a maximum the relaxation has no solution; the same program with costs of zero and an objective of one is a ray.

Then z3 is asked for a solution among what the messages leave tight (complementary slackness): Booleans x[v,a] with
theta at its least, exactly one per vertex, of every edge only entries whose bracket is at its least, the resource rows
as pseudo-Boolean sums.  If there is one, it costs what the bound is.
Source: Bjorner, Phan, Fleckenstein, "nuZ", TACAS 2015 (maximisation over linear arithmetic); Werner, TPAMI 2007.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .....models.problem.selection_problem import Ints, SelectionProblem
from .....proofs.selection.certificates import Dual
from ...bound.dual import gather, row_costs, spread
from ...model.clock import Clock
from ...model.factored import INFINITE, Arc, Base, Domains, Network, build
from . import all_events, row_terms
from .relaxation import MESSAGES, Found
from .smt import one_of, resource_row

if TYPE_CHECKING:
    from z3 import Optimize, Solver

SPENT: Final = 5
"""z3's units of a step of work: as for cores (`proof_by_cores.py`)."""


class Messages:
    """z3's programs for one problem.

    >>> from .....models.problem.selection_problem import Edge, Vertex
    >>> p = SelectionProblem("two", (Vertex("a", np.array([1, 0])), Vertex("b", np.array([0, 5]))),
    ...                      (np.array([[0, 9], [9, 0]]),), (Edge(0, 1, 0),))
    >>> z3 = Messages(p, Base(p))
    >>> found = z3.solve((np.arange(2), np.arange(2)), z3.nothing(), Clock())
    >>> found.says, found.value, [int(x.argmax()) for x in found.x]
    ('sat', 1.0, [0, 0])
    """

    def __init__(self, problem: SelectionProblem, base: Base) -> None:
        self.problem, self.base = problem, base
        self.choices = [np.flatnonzero(c < INFINITE) for c in base.unary]
        degrees = np.bincount([v for e in problem.edges for v in (e.u, e.v)], minlength=1)
        self.largest = MESSAGES // (2 + int(degrees.max()))
        """Of a message."""
        amounts = max((int(u.amount.max()) for u in problem.usages), default=0)
        self.largest_multiplier = MESSAGES // max(1, amounts * len(problem.usages) * max(1, len(all_events(problem))))

    def nothing(self) -> Dual:
        """Messages that are all zero, in units of 1/Q."""
        shapes = [self.problem.tables[e.table].shape for e in self.problem.edges]
        zeros = {n: np.zeros(n, dtype=np.int64) for shape in shapes for n in shape}
        return Dual(tuple(zeros[r] for r, _ in shapes), tuple(zeros[c] for _, c in shapes), self.base.denominator)

    def solve(self, domains: Domains, dual: Dual, clock: Clock, cap: int | None = None) -> Found:
        """The best messages on `domains`, from those of `dual` on; numbers are exact, so that `cap` is of no use."""
        shifted = _Shifted.of(self.base, domains, dual)
        if shifted is None:
            return Found("a vertex or an edge has only forbidden entries", None, float("inf"), None)
        said, value, model = self._maximum(shifted, clock, None)
        if said != "sat" or model is None:
            return Found(said, None, 0.0, None)
        if value is None:
            _, _, ray = self._maximum(shifted.without_costs(), clock, 1)
            return Found("unbounded", None if ray is None else self._ray(shifted, dual, ray), float("inf"), None)
        found = self._added(shifted, dual, model, Fraction(1))
        tight = _Shifted.of(self.base, domains, found)
        return Found(said, found, float(value), None if tight is None else self._point(tight, clock))

    def _maximum(
        self, shifted: _Shifted, clock: Clock, most: int | None
    ) -> tuple[str, Fraction | None, dict[str, Fraction] | None]:
        """z3's word, the maximum (None: there is none) and the unknowns; `most`: of the objective."""
        import z3

        optimize = z3.Optimize(ctx=z3.Context())
        if not _limited(optimize, clock):
            return "time is over", None, None
        optimize.from_string("\n".join(shifted.program(most)))
        handle = optimize.maximize(z3.Real("goal", optimize.ctx))
        said = optimize.check()
        clock.charge(_steps(optimize))
        if said != z3.sat:
            return f"{said} ({optimize.reason_unknown()})" if said == z3.unknown else str(said), None, None
        value, model = handle.value(), optimize.model()
        unknowns = {d.name(): model[d].as_fraction() for d in model}
        whole = Fraction(value.as_long()) if z3.is_int_value(value) else None
        return "sat", value.as_fraction() if z3.is_rational_value(value) else whole, unknowns

    def _added(self, shifted: _Shifted, dual: Dual, model: dict[str, Fraction], times: Fraction) -> Dual:
        """`dual` and the unknowns `times` as many, rounded down and within range."""

        def whole(name: str, largest: int) -> int:
            return max(-largest, min(largest, (model.get(name, Fraction(0)) * times).__floor__()))

        ends: tuple[list[Ints], list[Ints]] = ([], [])
        for e in range(len(shifted.network.arcs)):
            for side, (word, known) in enumerate((("u", shifted.to_u[e]), ("w", shifted.to_v[e]))):
                more = np.array([whole(f"{word}{e}_{r}", self.largest) for r in range(known.size)], dtype=np.int64)
                ends[side].append(np.clip(known + more, -self.largest, self.largest))
        n = dict(dual.multipliers)
        for t, _, _ in shifted.rows:
            # to the nearest: a multiplier is as often too small as too large
            near = n.get(t, 0) + round(model.get(f"k{t}", Fraction(0)) * times)
            n[t] = max(0, min(near, self.largest_multiplier))
        pairs = tuple((t, k) for t, k in sorted(n.items()) if k > 0)
        return Dual(*spread(shifted.network, *ends), dual.denominator, pairs)

    def _ray(self, shifted: _Shifted, dual: Dual, ray: dict[str, Fraction]) -> Dual | None:
        """`dual` and as much of a ray as integers of messages allow."""
        room = {"u": self.largest, "w": self.largest, "k": self.largest_multiplier}
        used = max((abs(x) / room[name[0]] for name, x in ray.items() if name[0] in room), default=Fraction(0))
        return self._added(shifted, dual, ray, 1 / (2 * used)) if used else None

    def _point(self, tight: _Shifted, clock: Clock) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float64]], ...]:
        """Shares of the choices that the messages leave tight, twice as much for those of a solution among them."""
        import z3

        names = tight.tight_choices(len(self.problem.edges))
        chosen: set[str] = set()
        solver = z3.Solver(ctx=z3.Context())
        text = tight.solution_among(names, len(self.problem.edges)) if _limited(solver, clock) else None
        if text is not None:
            for t in all_events(self.problem):
                resource_row(self.problem, t, names, text)
            solver.from_string("\n".join(text))
            if solver.check() == z3.sat:
                model = solver.model()
                chosen = {d.name() for d in model if z3.is_true(model[d])}
            clock.charge(_steps(solver))
        out = []
        for v, allowed in enumerate(self.choices):
            shares = np.zeros(allowed.size)
            for a, name in names[v].items():
                shares[np.searchsorted(allowed, a)] = 2.0 if name in chosen else 1.0
            out.append(shares / max(1.0, shares.sum()))
        return tuple(out)


class _Shifted:
    """What messages leave of costs, from the least on: `theta` per vertex and position, `brackets` per edge over kept
    rows and columns, forbidden entries as they are; `rows`: step, amounts per vertex, what is left of the limit.
    """

    def __init__(self, network: Network, dual: Dual, to_u: list[Ints], to_v: list[Ints]) -> None:
        self.network, self.to_u, self.to_v = network, to_u, to_v
        self.theta: list[Ints] = []
        self.brackets: list[Ints] = []
        self.rows = [(t, *row_terms(network.base.problem, t)) for t in all_events(network.base.problem)]
        self.known = dict(dual.multipliers)

    @staticmethod
    def of(base: Base, domains: Domains, dual: Dual) -> _Shifted | None:
        """None where a vertex or an edge has nothing that is allowed."""
        network = build(base, domains)
        made = _Shifted(network, dual, *gather(network, dual))
        added, _ = row_costs(base.problem, domains, dual.multipliers)
        theta = [c.copy() if added is None else c + added[v] for v, c in enumerate(network.unary)]
        holes = [c >= INFINITE for c in network.unary]
        for e, arc in enumerate(network.arcs):
            theta[arc.u] += made.to_u[e] if arc.rows is None else made.to_u[e][arc.rows]
            theta[arc.v] += made.to_v[e] if arc.cols is None else made.to_v[e][arc.cols]
            table = network.tables[arc.table]
            bracket = np.where(
                (table >= INFINITE) | ~_reached(arc, table), INFINITE, table - made.to_u[e][:, None] - made.to_v[e]
            )
            least = int(bracket.min(initial=INFINITE))
            if least >= INFINITE:
                return None
            made.brackets.append(np.where(bracket >= INFINITE, INFINITE, bracket - least))
        for values, hole in zip(theta, holes, strict=True):
            if hole.all():
                return None
            made.theta.append(np.where(hole, INFINITE, values - int(values[~hole].min())))
        return made

    def without_costs(self) -> _Shifted:
        """The same, all that is allowed for nothing."""
        made = _Shifted(self.network, Dual((), (), 1), self.to_u, self.to_v)
        made.theta = [np.where(t >= INFINITE, t, 0) for t in self.theta]
        made.brackets = [np.where(b >= INFINITE, b, 0) for b in self.brackets]
        return made

    def program(self, most: int | None) -> Iterator[str]:
        """(M1) to (M3) as SMT-LIB text, the objective called goal."""
        terms: list[list[list[str]]] = [[[] for _ in t] for t in self.theta]
        for e, (arc, bracket) in enumerate(zip(self.network.arcs, self.brackets, strict=True)):
            for word, v, index, size in (("u", arc.u, arc.rows, 0), ("w", arc.v, arc.cols, 1)):
                names = [f"{word}{e}_{r}" for r in range(bracket.shape[size])]
                yield from (f"(declare-const {name} Real)" for name in names)
                for i, at in enumerate(range(len(terms[v])) if index is None else index.tolist()):
                    terms[v][i].append(names[at])
            allowed = np.argwhere(bracket < INFINITE)
            for (r, c), b in zip(allowed.tolist(), bracket[bracket < INFINITE].tolist(), strict=True):
                yield f"(assert (<= (+ u{e}_{r} w{e}_{c}) {b}))"
        gains = []
        for t, amounts, left in self.rows:
            yield f"(declare-const k{t} Real)"
            yield f"(assert (>= k{t} {_number(-self.known.get(t, 0))}))"
            gains.append(f"(* {_number(-left)} k{t})")
            for v, amount in amounts.items():
                for i, n in enumerate(amount[self.network.domains[v]].tolist()):
                    if n:
                        terms[v][i].append(f"(* {n} k{t})")
        for v, (theta, some) in enumerate(zip(self.theta, terms, strict=True)):
            yield f"(declare-const l{v} Real)"
            gains.append(f"l{v}")
            for cost, more in zip(theta.tolist(), some, strict=True):
                if cost < INFINITE:
                    yield f"(assert (<= l{v} (+ {cost} 0 {' '.join(more)})))"
        yield "(declare-const goal Real)"
        yield f"(assert (= goal (+ 0 0 {' '.join(gains)})))"
        if most is not None:
            yield f"(assert (<= goal {most}))"

    def tight_choices(self, edges: int) -> list[dict[int, str]]:
        """Of every vertex the choices at the least theta, but for what rounding loses, with their Booleans."""
        return [
            {a: f"x{v}_{a}" for a in d[t <= edges].tolist()}
            for v, (d, t) in enumerate(zip(self.network.domains, self.theta, strict=True))
        ]

    def solution_among(self, names: list[dict[int, str]], edges: int) -> list[str]:
        """One of `names` per vertex, and of every edge an entry at the least bracket."""
        lines: list[str] = []
        for choices in names:
            one_of(lines, list(choices.values()))
        for arc, bracket in zip(self.network.arcs, self.brackets, strict=True):
            sides = []
            for v, index in ((arc.u, arc.rows), (arc.v, arc.cols)):
                domain = self.network.domains[v].tolist()
                at = range(len(domain)) if index is None else index.tolist()
                sides.append([(r, names[v][a]) for a, r in zip(domain, at, strict=True) if a in names[v]])
            for mine, other, cells in ((sides[0], sides[1], bracket), (sides[1], sides[0], bracket.T)):
                for r, name in mine:
                    able = [there for c, there in other if cells[r, c] <= edges]
                    if len(able) < len(other):
                        lines.append(f"(assert (or (not {name}) {' '.join(able)}))")
        return lines


def _reached(arc: Arc, table: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    out = np.ones(table.shape, dtype=bool)
    for live, axis in ((arc.live_rows, 0), (arc.live_cols, 1)):
        if live is not None:
            kept = np.zeros(table.shape[axis], dtype=bool)
            kept[live] = True
            out &= kept[:, None] if axis == 0 else kept
    return out


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"


def _limited(solver: Solver | Optimize, clock: Clock) -> bool:
    """Give a solver what the clock leaves; False where that is nothing."""
    given = clock.allowance()
    if given.seconds is not None:
        if given.seconds <= 0:
            return False
        solver.set("timeout", max(1, int(given.seconds * 1000)))
    if given.resources is not None:
        if given.resources <= 0:
            return False
        solver.set("rlimit", given.resources)
    return True


def _steps(solver: Any) -> int:
    statistics = solver.statistics()
    known = dict(zip(statistics.keys(), (statistics.get_key_value(k) for k in statistics.keys()), strict=True))  # noqa: SIM118
    return max(1, int(known.get("rlimit count", 0)) // SPENT)
