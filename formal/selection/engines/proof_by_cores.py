"""Proves a bound by an SMT solver's unsatisfiable cores: a tree over the choices of the vertices that they name.

    x[v,a]                 exactly one per vertex, and of its domain D_v
    p_v -> k_v >= c_v(a) - min c_v  if x[v,a]                       p_e -> k_e >= T_e - min T_e at the entry of its ends
                                                                    (forbidden: not both)
    p_t -> sum amount x <= limit at step t                          constant + minima + sum k < UB,   all k >= 0

z3 is asked with all p assumed.  `unsat` comes with a core, the p that it used: a solution cheaper than UB is refuted by
these parts of the problem alone, whatever the vertices that none of them touches do.  So the choices of one vertex of
the core are told apart, and z3 is asked again in each case.  Once all vertices of the core have one choice left, the
sum of the least entries of that case is UB or more (a `Dual` with messages zero), an entry is forbidden, or a step is
too full (`RowConflict`): the checker sees that without z3, and what z3 said without cause stays `Open`.  Fine parts of
costs, which a `Dual` does not see, are added up there (`Elimination`).  `sat` names a cheaper solution.  The tree grows
with the product of the domains in a core: for small problems and conflicts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ....models.problem.selection_problem import FORBIDDEN, SelectionProblem
from ....proofs.selection.certificates import Dual, Open, Point
from ..bound.dual import score_of
from ..bound.plain import plain_dual
from ..model.factored import Domains
from ..model.infinity import INFINITY
from ..tree.proof_tree import DualNode, Leaf, ProofTree, SplitNode
from ..tree.run import Run
from .encodings import all_events, row_terms
from .proof_by_duals import exact_elimination, exact_here, offer, overfull_row

if TYPE_CHECKING:
    from z3 import BoolRef, Solver


@dataclass(frozen=True)
class EngineReply:
    """What an engine said of one case: its word, the vertices of the core, or a solution."""

    word: str
    vertices: frozenset[int] = frozenset()
    solution: tuple[int, ...] | None = None


class Cores:
    """One z3 solver with the problem; cases are asked on top of it."""

    def __init__(self, run: Run) -> None:
        import z3

        self.run, self.problem = run, run.problem
        self.z3 = z3
        self._context = z3.Context()
        self._solver: Solver = z3.Solver(ctx=self._context)
        self.x: list[dict[int, BoolRef]] = []
        self.parts: dict[str, tuple[BoolRef, tuple[int, ...]]] = {}
        """Name -> p, and the vertices of that part."""
        self._costs: list[object] = []
        self._least = self.problem.constant << self.problem.fine_bits
        self._state()

    def _state(self) -> None:
        z3, problem, context = self.z3, self.problem, self._context
        bits, fine = problem.fine_bits, problem.fine_parts()
        add = self._solver.add
        for v, vertex in enumerate(problem.vertices):
            names = {a: z3.Bool(f"x{v}_{a}", context) for a in np.flatnonzero(vertex.cost < FORBIDDEN).tolist()}
            self.x.append(names)
            add(z3.Or(*names.values(), z3.BoolVal(False, context)))
            if len(names) > 1:
                add(z3.AtMost(*names.values(), 1))
            costs = {a: (int(vertex.cost[a]) << bits) + (int(fine[v][a]) if fine else 0) for a in names}
            self._part(f"v{v}", (v,), [((names[a],), cost) for a, cost in costs.items()], [])
        for k, e in enumerate(problem.edges):
            table, entries, holes = problem.tables[e.table], [], []
            digits = fine[len(problem.vertices) + e.table] if fine else np.zeros_like(table)
            for a, one in self.x[e.u].items():
                r = a if e.rows is None else int(e.rows[a])
                for b, other in self.x[e.v].items():
                    c = b if e.cols is None else int(e.cols[b])
                    if table[r, c] >= FORBIDDEN:
                        holes.append((one, other))
                    else:
                        entries.append(((one, other), (int(table[r, c]) << bits) + int(digits[r, c])))
            self._part(f"e{k}", (e.u, e.v), entries, holes)
        for t in all_events(problem):
            amounts, left = row_terms(problem, t)
            terms = [
                (self.x[v][a], int(n)) for v, amount in amounts.items() for a, n in enumerate(amount) if a in self.x[v]
            ]
            p = self._name(f"t{t}", tuple(amounts))
            used = z3.Sum(
                *[z3.If(x, z3.IntVal(n, context), z3.IntVal(0, context)) for x, n in terms if n], z3.IntVal(0, context)
            )
            add(z3.Implies(p, used <= left))

    def _name(self, name: str, vertices: tuple[int, ...]) -> BoolRef:
        p = self.z3.Bool(name, self._context)
        self.parts[name] = (p, vertices)
        return p

    def _part(
        self,
        name: str,
        vertices: tuple[int, ...],
        entries: list[tuple[tuple[BoolRef, ...], int]],
        holes: list[tuple[BoolRef, BoolRef]],
    ) -> None:
        z3, add = self.z3, self._solver.add
        p, cost = self._name(name, vertices), z3.Int(f"k{name}", self._context)
        least = min((c for _, c in entries), default=0)
        self._least += least
        self._costs.append(cost)
        add(cost >= 0)
        for where, c in entries:
            if c > least:
                add(z3.Implies(z3.And(p, *where), cost >= c - least))
        for one, other in holes:
            add(z3.Implies(p, z3.Not(z3.And(one, other))))

    def ask(self, domains: Domains, below: int | None) -> EngineReply:
        """Whether a solution of `domains` costs less than `below` (in units of the problem; None: any)."""
        z3, solver, clock = self.z3, self._solver, self.run.clock
        given = clock.allowance()
        if given.seconds is not None:
            if given.seconds <= 0:
                return EngineReply("time is over")
            solver.set("timeout", max(1, int(given.seconds * 1000)))
        if given.resources is not None:
            solver.set("rlimit", max(1, given.resources))
        solver.push()
        for names, d in zip(self.x, domains, strict=True):
            inside = set(d.tolist())
            solver.add(*[z3.Not(x) for a, x in names.items() if a not in inside])
        if below is not None:
            solver.add(z3.Sum(*self._costs, z3.IntVal(0, self._context)) < below - self._least)
        before = _spent(solver)
        said = solver.check(*[p for p, _ in self.parts.values()])
        clock.charge(max(1, (_spent(solver) - before) // 5))
        answer = EngineReply(str(said))
        if said == z3.unsat:
            core = {str(p) for p in solver.unsat_core()}
            answer = EngineReply("unsat", frozenset(v for name in core for v in self.parts[name][1]))
        elif said == z3.sat:
            model = solver.model()
            chosen = tuple(next((a for a, x in n.items() if z3.is_true(model[x])), -1) for n in self.x)
            answer = EngineReply("sat", solution=chosen)
        solver.pop()
        return answer


def _spent(solver: Solver) -> int:
    statistics = solver.statistics()
    return int(statistics.get_key_value("rlimit count")) if "rlimit count" in statistics.keys() else 0  # noqa: SIM118


@dataclass(eq=False)
class CoreProof:
    """Builds the tree; `ask`: of an engine, a case and a cost below which there is to be a solution; `asked`: cases so
    far.
    """

    problem: SelectionProblem
    ask: Callable[[Domains, int | None], EngineReply]
    asked: int = 0
    zero: Dual = field(init=False)

    def __post_init__(self) -> None:
        self.zero = plain_dual(self.problem)[0]

    def explore(self, run: Run, domains: Domains, warm: Dual | None, depth: int) -> ProofTree:
        """The proof tree of `domains`; `warm` is of no use here."""
        if any(d.size == 0 for d in domains):
            return Leaf(Open())
        if all(d.size == 1 for d in domains):
            offer(run, tuple(int(d[0]) for d in domains))
            return Leaf(Point())
        conflict = overfull_row(run.problem, domains)
        if conflict is not None:
            return Leaf(conflict)
        node = DualNode(self.zero, domains, score_of(run.unit, domains, self.zero))
        lower = node.score.lower()
        if lower is None or lower >= run.enough() or run.clock.over():
            return node
        kept = node.score.fix(domains, run.incumbent.cost)
        smaller = any(a.size < b.size for a, b in zip(kept, domains, strict=True))  # least entries may be larger then
        node.child = self.explore(run, kept, None, depth) if smaller else self._below(run, kept, depth)
        return node

    def _below(self, run: Run, kept: Domains, depth: int) -> ProofTree:
        said = self._said(run, kept)
        named = [v for v in sorted(said.vertices) if kept[v].size > 1]
        if said.word != "unsat":
            return Leaf(Open())
        if not named:  # whole units are the same: their fine parts, or nothing, are the reason
            ties = exact_elimination(run, kept, run.clock)
            return Leaf(Open()) if ties is None or not exact_here(run, ties) else ties
        v = min(named, key=lambda v: (kept[v].size, v))
        node = SplitNode(v, tuple((int(a),) for a in kept[v]), [])
        for a in kept[v]:
            node.children.append(self.explore(run, (*kept[:v], np.array([a]), *kept[v + 1 :]), None, depth + 1))
        return node

    def _said(self, run: Run, kept: Domains) -> EngineReply:
        """What the engine says of `kept`, once it names nothing cheaper."""
        while True:
            x = run.incumbent.solution
            below = None if x is None else run.problem.cost_of(x)
            if below is not None and run.gap:
                below -= int(run.gap * abs(below))
            self.asked += 1
            said = self.ask(kept, below)
            run.progress.update("cores", None, run.upper())
            if said.solution is None:
                return said
            if any(a < 0 for a in said.solution) or not run.problem.is_feasible(said.solution):
                return EngineReply("a solution that is none")
            offer(run, said.solution)
            if run.incumbent.solution == x or run.incumbent.cost >= INFINITY:
                return EngineReply("a solution that is not cheaper")
