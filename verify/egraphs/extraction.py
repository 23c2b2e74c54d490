"""Checks extractions: `Optimal`, `WithinGap`, or `Infeasible` where there is none.  No search, no solver.

The chosen nodes are followed on the user's e-graph: one per needed class, none besides, no circle, and their costs are
added.  The bound is the least over the leaves of the proof, where a leaf has the largest bound of the duals above it;
all of it is computed again from the e-graph.
"""

from __future__ import annotations

from ...models.egraphs.egraph import EGraph
from ...models.problem.claims import Verdict
from ...proofs.egraphs.certificate import ABSENT, Extraction, ExtractionCertificate, NoExtraction, Split
from ..budget import Budget
from ..verdict import CheckResult
from .ground import BadProof, Case, Ground
from .rows import Rows


def check_extraction(egraph: EGraph, certificate: ExtractionCertificate, whole: Budget | None = None) -> CheckResult:
    """Verdict on the claim; `ContainerError` if the check would take more than the budget of such files."""
    claim = certificate.claim
    kind = "Infeasible" if isinstance(claim, NoExtraction) else "Optimal" if claim.optimal else "WithinGap"
    space = f"{len(egraph.roots)} roots, {len(egraph.classes)} classes, {len(egraph.nodes)} nodes"

    def result(verdict: Verdict, cost: int | None, bound: int | None, reason: str = "") -> CheckResult:
        return CheckResult(kind, verdict, cost, bound, space, egraph.assumptions, reason)

    if certificate.egraph_sha256 != egraph.sha256():
        return result(Verdict.REFUTED, None, None, "the certificate is about another e-graph")
    budget = Budget.of(
        2 * len(egraph.nodes) + len(egraph.classes) + sum(map(len, egraph.children)) + certificate.numbers, whole
    )
    try:
        if isinstance(claim, NoExtraction):
            if certificate.numbers or certificate.records or certificate.cuts:
                return result(Verdict.REFUTED, None, None, "that there is none needs no proof, and one is there")
            if _start(Ground(egraph, (), budget)) is not None:
                return result(Verdict.REFUTED, None, None, "every root can be extracted without circles")
            return result(Verdict.PROVED, None, None, "")
        if claim.lower_bound > claim.cost or claim.optimal != (claim.lower_bound == claim.cost):
            return result(Verdict.REFUTED, None, None, f"a claim {kind} with lower bound {claim.lower_bound}")
        cost = _cost(egraph, claim)
        bound = _bound(egraph, certificate, cost, budget)
    except BadProof as error:
        return result(Verdict.REFUTED, None, None, str(error))
    if bound < claim.lower_bound:
        reason = f"the proof shows a lower bound of {bound}, the claim says {claim.lower_bound}"
        return result(Verdict.UNDECIDED, cost, bound, reason)
    return result(Verdict.PROVED, cost, claim.lower_bound)


def _cost(egraph: EGraph, claim: Extraction) -> int:
    """Cost of the chosen nodes, if they are an extraction."""
    choice: dict[int, int] = {}
    for n in claim.chosen:
        if n >= len(egraph.nodes):
            raise BadProof(f"chosen node {n} does not exist")
        if egraph.owner[n] in choice:
            raise BadProof(f"class {egraph.classes[egraph.owner[n]]!r} has two chosen nodes")
        choice[egraph.owner[n]] = n
    seen, stack = set(egraph.roots), list(egraph.roots)
    waiting: dict[int, int] = {}
    while stack:
        c = stack.pop()
        if c not in choice:
            raise BadProof(f"class {egraph.classes[c]!r} is needed and has no chosen node")
        waiting[c] = len(egraph.children[choice[c]])
        new = [d for d in egraph.children[choice[c]] if d not in seen]
        seen.update(new)
        stack += new
    extra = set(choice) - seen
    if extra:
        raise BadProof(f"class {egraph.classes[min(extra)]!r} has a chosen node and is not needed")
    users: dict[int, list[int]] = {}
    for c in seen:
        for d in egraph.children[choice[c]]:
            users.setdefault(d, []).append(c)
    ready, done = [c for c in seen if waiting[c] == 0], 0
    while ready:
        done += 1
        for c in users.get(ready.pop(), ()):
            waiting[c] -= 1
            if waiting[c] == 0:
                ready.append(c)
    if done < len(seen):
        left = min(c for c in seen if waiting[c])
        raise BadProof(f"the chosen nodes run in a circle: class {egraph.classes[left]!r} needs itself")
    cost = egraph.cost_of(claim.chosen)
    if cost != claim.cost:
        raise BadProof(f"the chosen nodes cost {cost}, the claim says {claim.cost}")
    return cost


def _start(ground: Ground) -> Case | None:
    case = ground.everything()
    return case if case.narrow(ground) else None


def _bound(egraph: EGraph, certificate: ExtractionCertificate, upper: int, budget: Budget) -> int:
    """No extraction costs less than this, which is at most `upper`."""
    ground = Ground(egraph, certificate.dominated, budget)
    rows = Rows(ground, certificate.cuts, budget)
    case = _start(ground)
    if case is None or not certificate.records:
        raise BadProof("the proof is empty" if case is not None else "nothing is left of the e-graph")
    weakest = upper
    todo: list[tuple[int, Case, Part | None, int | None]] = [(0, case, None, None)]
    while todo:
        number, case, part, above = todo.pop()
        if part is not None:  # made here, not where the split is: a split of many parts would hold as many cases
            budget.charge(2 * ground.cells, f"record {number}")
            case = _restricted(ground, case, part)
            if not case.narrow(ground):
                continue
        record, place = certificate.records[number], f"record {number}"
        if isinstance(record, Split):
            _covers(ground, case, record, place)
            todo += [
                (then, case, (record.owner, chosen), above)
                for chosen, then in zip(record.parts, record.then, strict=True)
            ]
            continue
        bound = rows.case_bound(case, record, upper, place)
        above = bound if above is None else max(above, bound)
        if record.then is None:
            weakest = min(weakest, above)
        elif above < upper:
            budget.charge(2 * ground.cells, place)
            if case.narrow(ground):
                todo.append((record.then, case, None, above))
    return weakest


Part = tuple[int, tuple[int, ...]]
"""A class and those of its choices that are left."""


def _covers(ground: Ground, case: Case, record: Split, place: str) -> None:
    c = record.owner
    if not 0 <= c < ground.classes:
        raise BadProof(f"{place}: class {c} does not exist")
    covered = {choice for part in record.parts for choice in part}
    for n in ground.members[c]:
        if case.allowed[n] and n not in covered:
            raise BadProof(f"{place}: node {n} of class {c} is in no part")
    if not case.needed[c] and ABSENT not in covered:
        raise BadProof(f"{place}: no part leaves class {c} out")


def _restricted(ground: Ground, case: Case, part: Part) -> Case:
    """The case with the choices of one class narrowed to a part of them."""
    owner, chosen = part[0], set(part[1])
    new = case.copy()
    for n in ground.members[owner]:
        if n not in chosen:
            new.allowed[n] = 0
    if ABSENT not in chosen:
        new.needed[owner] = 1
    return new
