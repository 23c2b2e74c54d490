"""Forged selection certificates: every kind of record and claim, both solver engines, problems and certificates changed
and hashed again.

The truth is brute force over the numbers of the problem's JSON, with no code of the package.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import selection_cases as cases
from forgeries import Tally, change, change_array, head_of, number, put
from random_problems import reducible, shared_tables

from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.presolve.presolve import presolve
from shardproof.formal.selection.primal.incumbent import Incumbent
from shardproof.formal.selection.solve import solve
from shardproof.formal.selection.tree.branch_and_bound import new_run
from shardproof.formal.selection.tree.dense_search import DenseSearch
from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal, SelectionClaim, Verdict, WithinGap
from shardproof.models.problem.selection_problem import Fine, ProblemError, SelectionProblem, fine_type
from shardproof.proofs.container.archive import Member, read_container, write_container
from shardproof.proofs.container.canonical import ContainerError
from shardproof.proofs.selection.certificates import Dual, Open, Record, Rounded, SelectionCertificate
from shardproof.proofs.selection.file import decode_certificate, encode_certificate
from shardproof.proofs.selection.problem_file import parse_problem, problem_json
from shardproof.verify.selection.certificate import check_selection

Json = Any

ORIGINALS = 60
"""Random problems, each with several certificates."""

THROUGH_FILES = 20
"""Every so many forgeries are written as container files and read again; the others go in as members, which changes
nothing else.
"""


@dataclass(frozen=True)
class Original:
    name: str
    problem: Json
    members: dict[str, Member]


@cache
def originals() -> tuple[Original, ...]:
    out = []
    for seed in range(ORIGINALS):
        for name, problem, certificate in _certificates(seed):
            if check_selection(problem, certificate).verdict is Verdict.PROVED:
                out.append(
                    Original(f"{name} {seed}", json.loads(problem_json(problem)), encode_certificate(certificate))
                )
    return tuple(out)


def _certificates(seed: int) -> Iterator[tuple[str, SelectionProblem, SelectionCertificate]]:
    rng = random.Random(seed)
    problem = reducible(seed, n=4, k=3) if seed % 2 else shared_tables(seed, n=3, k=3)
    best = cases.brute(problem)

    def claims(proof: Record) -> list[SelectionClaim]:
        return cases.all_claims(problem, lambda _: proof)

    answer = solve(problem, threads=1)
    if answer.certificate is not None:
        yield "dive", problem, answer.certificate
    run = new_run(problem, Incumbent(problem), Clock())
    proved, found = DenseSearch(run).search(), run.incumbent
    if proved is not None and found.solution is not None and proved[1] >= found.cost:
        yield "at scale", problem, cases.certified(problem, Optimal(found.solution, found.cost), proved[0])
    for conflicts in (False, True):
        proof = cases.points(problem, conflicts=conflicts)
        for claim in claims(proof):
            yield f"points, {type(claim).__name__}", problem, cases.certified(problem, claim, proof)
    free = replace(problem, usages=(), limit=None)
    cheap = cases.brute(free)
    if cheap is not None:
        for claim in (Optimal(cheap[1], cheap[0]), WithinGap(cheap[1], cheap[0], cheap[0]), LowerBound(cheap[0])):
            yield f"elimination, {type(claim).__name__}", free, cases.certified(free, claim, cases.eliminate(free, rng))
        stored = cases.eliminate(free, rng)
        yield (
            "left out messages",
            free,
            cases.certified(free, Optimal(cheap[1], cheap[0]), replace(stored, messages=())),
        )
        slack = cases.eliminate(free, rng, slack=2)
        yield (
            "elimination with more",
            free,
            cases.certified(
                free, Optimal(cheap[1], cheap[0]), replace(slack, then=cases.eliminate(free, rng, slack=1))
            ),
        )
        fine = _fine(free, rng)
        found = solve(fine, threads=1)
        if found.certificate is not None:
            yield "fine", fine, found.certificate
    for _ in range(2):
        dual = cases.random_dual(problem, rng)
        if problem.limit is not None and rng.random() < 0.7:
            reference = np.array([rng.randrange(v.cost.size) for v in problem.vertices], dtype=np.int64)
            dual = replace(dual, rounded=(Rounded(rng.randint(0, 4), rng.randint(1, 3), rng.randint(1, 6), reference),))
        bound = check_selection(problem, cases.certified(problem, LowerBound(-(1 << 59)), dual)).lower_bound
        if bound is not None:
            yield "dual", problem, cases.certified(problem, LowerBound(bound), dual)
        if best is not None:
            proof = Dual(
                dual.to_u,
                dual.to_v,
                dual.denominator,
                dual.multipliers,
                cases.random_tree(problem, rng, best[0]),
                dual.rounded,
            )
            bound = check_selection(
                problem, cases.certified(problem, WithinGap(best[1], best[0], -(1 << 59)), proof)
            ).lower_bound
            if bound is not None:
                yield "dual with more", problem, cases.certified(problem, WithinGap(best[1], best[0], bound), proof)
    reduction = presolve(problem)
    if reduction is not None:
        proof = reduction.proof_back(
            Open() if reduction.problem is None else cases.points(reduction.problem, conflicts=True)
        )
        for claim in claims(proof):
            yield f"reduced, {type(claim).__name__}", problem, cases.certified(problem, claim, proof)
    if best is None and problem.limit is not None:
        loose = cases.brute(replace(problem, limit=None))
        if loose is not None:
            claim = replace(
                cases.named(problem, cases.points(problem)), least_limit=cases.peak(problem, loose[1]), witness=loose[1]
            )
            yield "infeasible with a witness", problem, cases.certified(problem, claim, cases.points(problem))


def _fine(problem: SelectionProblem, rng: random.Random) -> SelectionProblem:
    arrays = [*(v.cost for v in problem.vertices), *problem.tables]
    digits = [0 if c >= 1 << 60 else rng.randrange(32) for a in arrays for c in a.reshape(-1).tolist()]
    return replace(problem, fine=Fine(5, np.array(digits, dtype=fine_type(5)))).check()


def forge(seed: int) -> tuple[str, Json, dict[str, Member], str]:
    """(kind of the original, problem, members of the certificate, what was done)."""
    rng = random.Random(seed)
    original = originals()[seed % len(originals())]
    problem, members = json.loads(json.dumps(original.problem)), dict(original.members)
    head = head_of(members, "certificate.json")
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        match rng.randrange(7):
            case 0:
                done.append("problem: " + change(problem, rng, skip=frozenset({"format", "name"})))
            case 1 | 2:
                done.append(change_array(members, "certificate.i64", rng))
            case 3:
                done.append(change(head["claim"], rng))
            case 4:
                done.append(_claim(problem, head, members, rng))
            case 5:
                done.append(change(head["records"], rng))
            case _:
                other = originals()[rng.randrange(len(originals()))]
                if rng.random() < 0.5:
                    problem = json.loads(json.dumps(other.problem))
                    done.append(f"the problem of {other.name}")
                else:
                    claim = head["claim"]
                    members, head = dict(other.members), head_of(other.members, "certificate.json")
                    head["claim"] = claim if rng.random() < 0.5 else head["claim"]
                    done.append(f"the proof of {other.name}")
    put(members, "certificate.json", head)
    return original.name.rsplit(" ", 1)[0].split(",")[0], problem, members, "; ".join(done)


def _claim(problem: Json, head: Json, members: dict[str, Member], rng: random.Random) -> str:
    """A claim that looks right: another solution with its true cost, a bound a little higher, another kind."""
    try:
        x = tuple(rng.randrange(len(v["cost"])) for v in problem["vertices"])
        cost = evaluate(problem, x)[0]
    except (LookupError, TypeError, ValueError):  # the problem is malformed by now
        return "nothing"
    flat = np.concatenate(
        [np.array(members["certificate.i64"], dtype=np.int64).reshape(-1), np.array(x, dtype=np.int64)]
    )
    members["certificate.i64"] = flat
    head["shapes"].append([len(x)])
    solution, bound = len(head["shapes"]) - 1, cost + rng.choice((0, 0, -1, 1, -3))
    nothing = {"kind": "infeasible", "steps": solution, "vertices": solution, "least_limit": cost, "witness": solution}
    head["claim"] = rng.choice((
        {"kind": "optimal", "solution": solution, "cost": cost}, {"kind": "within-gap", "solution": solution, "cost": cost, "lower_bound": bound},
        {"kind": "lower-bound", "lower_bound": bound}, nothing, {**nothing, "least_limit": None, "witness": None},
        {**head["claim"], "cost": number(rng, cost)},
    ))  # fmt: skip
    return f"claim {head['claim']['kind']}"


def evaluate(p: Json, x: tuple[int, ...]) -> tuple[int, bool, int]:
    """(cost, nothing forbidden, peak usage) of one choice per vertex, from the definition of the file."""
    arrays, entries, places = [v["cost"] for v in p["vertices"]], [], []
    start = [0]
    for a in arrays:
        start.append(start[-1] + len(a))
    for t in p["tables"]:
        start.append(start[-1] + sum(map(len, t)))
    for v, a in enumerate(x):
        entries.append(p["vertices"][v]["cost"][a])
        places.append(start[v] + a)
    for e in p["edges"]:
        r = x[e["u"]] if e["rows"] is None else e["rows"][x[e["u"]]]
        c = x[e["v"]] if e["cols"] is None else e["cols"][x[e["v"]]]
        table = p["tables"][e["table"]]
        entries.append(table[r][c])
        places.append(start[len(x) + e["table"]] + r * len(table[0]) + c)
    cost = p["constant"] + sum(entries)
    if p.get("fine") is not None:
        cost = cost * 2 ** p["fine"]["bits"] + sum(p["fine"]["digits"][i] for i in places)
    starts = [u["start"] for u in p["usages"]]
    peak = max(
        (sum(u["amount"][x[u["vertex"]]] for u in p["usages"] if u["start"] <= t < u["end"]) for t in starts), default=0
    )
    return cost, all(entry < 2**60 for entry in entries), peak


def true(p: Json, claim: SelectionClaim) -> bool:
    """Is the claim true of the problem?"""
    everything = {x: evaluate(p, x) for x in product(*(range(len(v["cost"])) for v in p["vertices"]))}
    fits = {
        x: cost
        for x, (cost, allowed, peak) in everything.items()
        if allowed and (p["limit"] is None or peak <= p["limit"])
    }
    least = min(fits.values(), default=None)
    match claim:
        case Optimal():
            return fits.get(claim.solution) == claim.cost == least
        case WithinGap():
            return least is not None and fits.get(claim.solution) == claim.cost and claim.lower_bound <= least
        case LowerBound():
            return least is None or claim.lower_bound <= least
        case Infeasible():
            rows = all(any(u["start"] <= t < u["end"] for u in p["usages"]) for t in claim.steps) and (
                p["limit"] is not None or not claim.steps
            )
            named = all(0 <= v < len(p["vertices"]) for v in claim.vertices)
            if claim.witness is None or claim.least_limit is None:
                return least is None and rows and named and claim.witness is None and claim.least_limit is None
            _, allowed, peak = everything[claim.witness]
            return least is None and rows and named and allowed and peak == claim.least_limit > p["limit"]


def judge(seeds: range, tally: Tally) -> None:
    for seed in seeds:
        kind, p, members, what = forge(seed)
        accepted, is_true = False, False
        try:
            problem = parse_problem(json.dumps(p).encode())
            head = head_of(members, "certificate.json")
            put(members, "certificate.json", {**head, "problem_sha256": problem.sha256()})
            certificate = decode_certificate(
                read_container(write_container(None, members)) if seed % THROUGH_FILES == 0 else members
            )
            accepted = check_selection(problem, certificate).verdict is Verdict.PROVED
            is_true = accepted and true(p, certificate.claim)
        except (ContainerError, ProblemError):
            pass
        tally.add(f"selection: {kind}", accepted, is_true, f"seed {seed}: {what}")
