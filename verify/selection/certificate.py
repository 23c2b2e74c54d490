"""Checks claims about selection problems.  Standard library and numpy only; it searches nothing and
believes
nothing.

Mathematics (records and the numbers B that they establish: `proofs/selection/certificates.py`).  For the record tree
with root record R

    every feasible x costs at least min(B(R, all choices), UB),      UB = recomputed cost of the claimed solution, or
    infinity

B is computed here bottom-up from the problem's own numbers; a certificate contributes only messages, multipliers,
splits and an order.

    Optimal(x, c)         x feasible, cost(x) = c, B >= c
    WithinGap(x, c, l)    x feasible, cost(x) = c >= l, B >= l
    LowerBound(l)         B >= l                                                      (UB infinite)
    Infeasible            B infinite                                                  (UB infinite); the steps and
                          vertices that the proof rests on are named, and none that it does not meet; `least_limit` is
                          the peak of the witness, above the limit

Verdicts.  Refuted: the certificate states something false (another problem, wrong cost, infeasible solution, a message
above its sum, a split that does not cover, a number out of range, a solution in it that contradicts the claim).
Undecided: all it states is true, but the bound is weaker than the claim; the bound is reported.  Proved otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import assert_never

import numpy as np

from ...models.problem.claims import Infeasible, LowerBound, Optimal, Verdict, WithinGap
from ...models.problem.selection_problem import FORBIDDEN, Ints, SelectionProblem
from ...proofs.container.effort import OBJECT, PART
from ...proofs.selection.certificates import (
    Dual,
    Elimination,
    Open,
    Point,
    Record,
    Reduced,
    RowConflict,
    SelectionCertificate,
    Split,
)
from ..budget import Budget
from ..verdict import CheckResult
from .dual import dual_bound
from .elimination import elimination_bound
from .excess import left_within
from .fine import fine_bound
from .ground import (
    INFINITE,
    Bound,
    Domains,
    Facts,
    Ground,
    Refuted,
    check_multipliers,
    evaluate,
    live_multipliers,
    number_count,
    peak_usage,
    weighted_usage,
)
from .presolve import replay


def check_selection(
    problem: SelectionProblem,
    certificate: SelectionCertificate,
    identity: str | None = None,
    budget: Budget | None = None,
) -> CheckResult:
    """Verdict on the claim of `certificate` about `problem`.

    Raises `ProblemError` if the problem itself is not well formed, `ContainerError` if the certificate takes more than
    its `Budget`, or than is left of `budget`, that of the whole check.

    `identity`: `problem.sha256()` of a problem that the caller has checked already; both are done here without it.

    >>> from ...models.problem.selection_problem import Vertex
    >>> p = SelectionProblem("one", (Vertex("a", np.array([7, 4])),), (), ())
    >>> proof = Elimination((0,), ((),), (np.array(4),))
    >>> check_selection(p, SelectionCertificate(p.sha256(), Optimal((1,), 4), proof)).verdict
    <Verdict.PROVED: 'proved'>
    """
    if identity is None:
        identity = problem.check().sha256()
    claim = certificate.claim
    kind = type(claim).__name__

    def result(verdict: Verdict, cost: int | None, bound: Bound, reason: str = "") -> CheckResult:
        return CheckResult(
            kind, verdict, cost, bound if isinstance(bound, int) else None, problem.space, problem.assumptions, reason
        )

    facts = Facts(size=len(problem.vertices))
    try:
        if certificate.problem_sha256 != identity:
            raise Refuted("problem", "the certificate is about another problem (hash differs)")
        part = Budget.of(number_count(problem) + numbers(certificate.proof), budget)
        ground = Ground(problem, fine_bits=problem.fine_bits, budget=part)
        cost, needed, bound = _cost_and_bounds(ground, certificate, facts)
    except Refuted as refuted:
        return result(Verdict.REFUTED, None, -INFINITE, str(refuted))
    if bound < needed:
        shown = "no bound" if bound == -INFINITE else f"only the bound {bound}"
        more = "" if needed == INFINITE else f", the claim needs {needed}"
        return result(Verdict.UNDECIDED, cost, bound, f"the proof shows {shown}{more}")
    if isinstance(claim, Infeasible):
        strange = _listed(set(claim.steps) - facts.met_steps, set(claim.vertices) - facts.met_vertices)
        if strange:
            reason = f"claim: names {strange}, where the proof finds no conflict"
            return result(Verdict.REFUTED, None, -INFINITE, reason)
        unnamed = _listed(facts.steps - set(claim.steps), facts.vertices - set(claim.vertices))
        if unnamed:
            reason = f"infeasible, but the proof also uses {unnamed}, not named in the claim"
            return result(Verdict.UNDECIDED, None, bound, reason)
    if isinstance(claim, LowerBound) and bound == INFINITE:
        bound = needed  # nothing is feasible, so the claimed bound holds
    return result(Verdict.PROVED, cost, bound)


def _cost_and_bounds(
    ground: Ground, certificate: SelectionCertificate, facts: Facts
) -> tuple[int | None, Bound, Bound]:
    """(recomputed cost of the claimed solution, bound that the claim needs, bound that the proof gives)."""
    claim, problem, proof = certificate.claim, ground.problem, certificate.proof
    cost: int | None = None
    needed: Bound = INFINITE
    match claim:
        case Optimal() | WithinGap():
            cost = _primal(problem, claim.solution, claim.cost)
            needed = claim.cost if isinstance(claim, Optimal) else _exact(claim.lower_bound, "lower bound")
            if needed > cost:
                raise Refuted("claim", f"lower bound {needed} is above the cost {cost} of its own solution")
            bound = min(tree_bound(ground, proof, cost, facts), cost)
        case LowerBound():
            needed = _exact(claim.lower_bound, "lower bound")
            bound = tree_bound(ground, proof, INFINITE, facts)
        case Infeasible():
            _witness(problem, claim)
            bound = tree_bound(ground, proof, INFINITE, facts)
        case _:
            assert_never(claim)
    if facts.cheapest is not None and facts.cheapest[0] < needed:
        held, where = facts.cheapest
        raise Refuted("claim", f"the proof itself holds a feasible solution of cost {held}: {where}")
    return cost, needed, bound


def numbers(root: Record) -> int:
    """Numbers that the arrays of a proof hold, each array once."""
    sizes: dict[int, int] = {}
    todo = [root]
    while todo:
        record = todo.pop()
        match record:
            case Dual():
                arrays = [*record.to_u, *record.to_v, *(row.reference for row in record.rounded)]
                todo += [] if record.then is None else [record.then]
            case Elimination():
                arrays = list(record.messages)
                todo += [] if record.then is None else [record.then]
            case Split():
                arrays = []
                todo += record.children
            case Reduced():
                arrays = [record.log, *record.steps]
                todo.append(record.then)
            case RowConflict() | Point() | Open():
                arrays = []
            case _:
                assert_never(record)
        sizes.update((id(a), a.size) for a in arrays)
    return sum(sizes.values())


def _listed(steps: set[int], vertices: set[int]) -> str:
    return ", ".join([*(f"step {t}" for t in sorted(steps)[:5]), *(f"vertex {v}" for v in sorted(vertices)[:5])])


def _exact(value: int, what: str) -> int:
    if type(value) is not int:
        raise Refuted("claim", f"{what} {value!r} is not an integer")
    return value


def _primal(problem: SelectionProblem, solution: tuple[int, ...], claimed: int) -> int:
    """Cost of the claimed solution: total, inside the domains, feasible, and as claimed."""
    cost, wrong = evaluate(problem, solution, problem.limit)
    if wrong:
        raise Refuted("solution", wrong)
    if _exact(claimed, "cost") != cost:
        raise Refuted("claim", f"cost {claimed} is not the cost {cost} of the solution")
    return cost


def _witness(problem: SelectionProblem, claim: Infeasible) -> None:
    """The part of an Infeasible claim that does not need the proof."""
    for values, what, size in ((claim.steps, "steps", None), (claim.vertices, "vertices", len(problem.vertices))):
        if any(type(x) is not int for x in values) or any(a >= b for a, b in pairwise(values)):
            raise Refuted("claim", f"{what} are not ascending integers")
        if size is not None and any(not 0 <= x < size for x in values):
            raise Refuted("claim", f"{what} name a vertex that does not exist")
    if (claim.witness is None) != (claim.least_limit is None):
        raise Refuted("claim", "least limit and witness must come together")
    if claim.witness is None or claim.least_limit is None:
        return
    _exact(claim.least_limit, "least limit")
    if problem.limit is None:
        raise Refuted("claim", "names a least limit, but the problem has no limit")
    wrong = evaluate(problem, claim.witness, None)[1]
    if wrong:
        raise Refuted("witness", wrong)
    peak, step = peak_usage(problem, claim.witness)
    if peak != claim.least_limit:
        raise Refuted("claim", f"least limit {claim.least_limit} is not the usage {peak} of its witness at step {step}")
    if peak <= problem.limit:
        raise Refuted("claim", "its own witness is feasible")


@dataclass(eq=False)
class _Frame:
    """An inner record that waits for its children: B so far, how a child's B joins it, children to come, domains to put
    back at the end.

    `inner`: the problem that the children speak about, when it is another one; `outer`: problem and domains to go back
    to after it.
    """

    value: Bound
    join: Callable[[Bound, Bound], Bound]
    branches: Iterator[tuple[dict[int, Ints], Record]]
    saved: dict[int, Ints]
    inner: Ground | None = None
    outer: tuple[Ground, Domains] | None = None


def tree_bound(ground: Ground, root: Record, ub: Bound, facts: Facts) -> Bound:
    """B(root, all choices), depth first without recursion; `Refuted` if a record states something false."""
    domains = list(ground.full)
    stack: list[_Frame] = []
    record, saved, number = root, dict[int, Ints](), 0
    while True:
        stack.append(_open(ground, record, domains, ub, facts, f"record {number} ({type(record).__name__})", saved))
        branch = None
        while branch is None:
            branch = next(stack[-1].branches, None)
            if branch is None:
                done = stack.pop()
                if done.outer is not None:
                    ground, domains = done.outer
                for v, domain in done.saved.items():
                    domains[v] = domain
                if not stack:
                    return done.value
                stack[-1].value = stack[-1].join(stack[-1].value, done.value)
        changes, record = branch
        frame = stack[-1]
        if frame.inner is not None:
            frame.outer = ground, domains
            ground, domains = frame.inner, list(frame.inner.full)
        saved = {v: domains[v] for v in changes}
        for v, domain in changes.items():
            domains[v] = domain
        number += 1


def _open(
    ground: Ground, record: Record, domains: Domains, ub: Bound, facts: Facts, place: str, saved: dict[int, Ints]
) -> _Frame:
    """The record evaluated as far as it can be without its children."""

    def leaf(value: Bound) -> _Frame:
        return _Frame(value, max, iter(()), saved)

    ground.budget.charge(PART * (1 if isinstance(record, Split | Open) else 1 + ground.parts), place)
    if ground.steps is None and not isinstance(record, Split | RowConflict | Open):
        facts.looks_at_all()
    match record:
        case Dual():
            coarse, fixed = dual_bound(ground, record, domains, ground.coarse(ub), place)
            if fixed is None or record.then is None:
                return leaf(ground.exact(coarse))
            return _narrowed(ground.exact(coarse), fixed, domains, record.then, saved)
        case Split():
            parts = _covering_parts(ground, record, domains, place)
            if ground.steps is None:
                facts.met_vertices.add(record.vertex)
            return _Frame(
                INFINITE, min, (({record.vertex: p}, c) for p, c in zip(parts, record.children, strict=True)), saved
            )
        case Elimination():
            if record.fine:
                return leaf(fine_bound(ground, record, domains, place))
            coarse, steps = elimination_bound(ground, record, domains, place)
            if record.then is None or ground.exact(coarse) >= ub:
                return leaf(ground.exact(coarse))
            left = (
                domains
                if ub == INFINITE
                else left_within(ground, steps, domains, int(ground.coarse(ub)) - 1 - int(coarse), place)
            )
            return _narrowed(ground.exact(coarse), left, domains, record.then, saved)
        case RowConflict():
            _check_conflict(ground, record, domains, facts, place)
            return leaf(INFINITE)
        case Point():
            return leaf(_point_cost(ground, domains, facts, place))
        case Open():
            return leaf(-INFINITE)
        case Reduced():
            inner = replay(ground, record, domains, facts, place)
            if inner is None:  # a vertex lost all its choices: nothing in D is feasible
                return leaf(INFINITE)
            return _Frame(-INFINITE, max, iter((({}, record.then),)), saved, inner)
        case _:
            assert_never(record)


def _narrowed(value: Bound, left: Domains, domains: Domains, then: Record, saved: dict[int, Ints]) -> _Frame:
    """The record `then` on what is `left` of the domains."""
    if any(domain.size == 0 for domain in left):  # a vertex lost all its choices: nothing in D costs less than UB
        return _Frame(INFINITE, max, iter(()), saved)
    smaller = {v: new for v, (new, old) in enumerate(zip(left, domains, strict=True)) if new.size < old.size}
    return _Frame(value, max, iter(((smaller, then),)), saved)


def _covering_parts(ground: Ground, record: Split, domains: Domains, place: str) -> list[Ints]:
    """The parts as sorted arrays, non-empty and in range, whose union contains the vertex's domain."""
    v = record.vertex
    if type(v) is not int or not 0 <= v < len(domains):
        raise Refuted(place, f"vertex {v!r} does not exist")
    if len(record.parts) != len(record.children):
        raise Refuted(place, f"has {len(record.parts)} parts and {len(record.children)} children")
    size = ground.full[v].size
    ground.budget.charge(OBJECT * (domains[v].size + sum(map(len, record.parts))), place)
    for part in record.parts:
        if not part or any(type(a) is not int or not 0 <= a < size for a in part):
            raise Refuted(place, f"a part of {ground.name(v)} is empty or holds a choice outside 0..{size - 1}")
    missing = set(domains[v].tolist()).difference(*record.parts)
    if missing:
        raise Refuted(place, f"choices {sorted(missing)[:5]} of {ground.name(v)} are in no part")
    return [np.array(sorted(set(part)), dtype=np.int64) for part in record.parts]


def _check_conflict(ground: Ground, record: RowConflict, domains: Domains, facts: Facts, place: str) -> None:
    """sum_v min_{a in D_v, allowed} sum_t n_t u_t,v(a) > sum_t n_t L, in Python integers."""
    problem = ground.problem
    check_multipliers(problem, record.multipliers, place)
    if not record.multipliers:
        raise Refuted(place, "names no resource row")
    live = live_multipliers(problem, record.multipliers)
    total: Bound = 0
    terms: set[int] = set()
    for v, domain in enumerate(domains):
        usage, _ = weighted_usage(ground, v, domain, live)
        allowed = problem.vertices[v].cost[domain] < FORBIDDEN
        if not allowed.any():
            total = INFINITE
        elif usage is not None and int(usage[allowed].min()):
            total += int(usage[allowed].min())
            terms.add(v)
    available = sum(n for _, n in record.multipliers) * (problem.limit or 0)
    if total <= available:
        raise Refuted(place, f"rows need {total}, which is not above {available}")
    steps = [t for t, _ in record.multipliers]
    change = [0] * (len(steps) + 1)  # usages live at a step, as differences
    used: set[int] = set()
    for u in problem.usages:
        first, last = bisect_left(steps, u.start), bisect_left(steps, u.end)
        if first < last:
            used.add(u.vertex)
            change[first] += 1
            change[last] -= 1
    facts.rests_on({ground.original_step(t) for t, live in zip(steps, accumulate(change), strict=False) if live})
    if ground.steps is None:  # otherwise a `Reduced` record has named all vertices
        facts.vertices |= terms
        facts.met_vertices |= used


def _point_cost(ground: Ground, domains: Domains, facts: Facts, place: str) -> Bound:
    """Cost of the only x in D, or infinity if it is not feasible."""
    problem = ground.problem
    if any(domain.size != 1 for domain in domains):
        raise Refuted(place, "more than one choice is left")
    x = tuple(int(domain[0]) for domain in domains)
    cost, wrong = evaluate(problem, x, None)
    if wrong:
        return INFINITE
    peak, step = peak_usage(problem, x)
    if problem.limit is not None and peak > problem.limit:
        facts.met_steps.add(ground.original_step(step))
        return INFINITE
    if problem.fine is None:
        cost <<= ground.fine_bits  # of a reduced problem
    if ground.steps is None and (facts.cheapest is None or cost < facts.cheapest[0]):
        facts.cheapest = (cost, x)
    return cost
