"""Costs of more than 57 bits: an int64 part and a fine part (`models.problem.selection_problem.Fine`).

The published PaSE tables need up to 77 bits.  They used to be rounded to what int64 holds, and the answer was optimal
for the rounded tables only.  Now elimination leaves a handful of choices within the fine part of the minimum, and those
are compared exactly.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import selection_cases as cases
from random_problems import shared_tables

from shardproof.formal.selection.elimination.dense import Size, eliminate_dense, plain
from shardproof.formal.selection.options.limits import Limits
from shardproof.formal.selection.solve import solve
from shardproof.models.problem.claims import LowerBound, Optimal, Status, Verdict
from shardproof.models.problem.pase import from_pase
from shardproof.models.problem.selection_problem import (
    FORBIDDEN,
    Edge,
    Fine,
    ProblemError,
    SelectionProblem,
    Vertex,
    fine_type,
)
from shardproof.proofs.selection.certificates import Elimination, Point, SelectionCertificate
from shardproof.proofs.selection.file import read_certificate, write_certificate
from shardproof.proofs.selection.load import load_selection_problem
from shardproof.proofs.selection.problem_file import decode_problem, encode_problem, parse_problem, problem_json
from shardproof.verify.selection.certificate import check_selection

PASE = Path(__file__).resolve().parents[2] / "shared" / "data" / "pase"


def fine_problem(
    seed: int, *, top: int = 3, bits: int = 5, holes: float = 0.0, factored: bool = False
) -> SelectionProblem:
    """Few coarse values, so that coarse ties are the rule and the fine part decides."""
    rng = random.Random(seed)
    n = rng.randint(1, 5)
    sizes = [rng.randint(1, 4) for _ in range(n)]
    if factored:
        base = replace(shared_tables(seed, n=4, k=3, rows=False, forbidden=holes, low=-2), constant=rng.randint(-3, 3))
    else:
        pairs = [(u, v) for u in range(n) for v in range(n) if u != v and rng.random() < 0.35]

        def entry() -> int:
            return FORBIDDEN if rng.random() < holes else rng.randint(-1, top)

        vertices = tuple(
            Vertex(f"v{i}", np.array([entry() for _ in range(k)], dtype=np.int64)) for i, k in enumerate(sizes)
        )
        tables = tuple(
            np.array([[entry() for _ in range(sizes[v])] for _ in range(sizes[u])], dtype=np.int64) for u, v in pairs
        )
        base = SelectionProblem(
            f"fine {seed}",
            vertices,
            tables,
            tuple(Edge(u, v, i) for i, (u, v) in enumerate(pairs)),
            constant=rng.randint(-3, 3),
        )
    arrays = [*(v.cost for v in base.vertices), *base.tables]
    digits = [0 if c >= FORBIDDEN else rng.randrange(1 << bits) for a in arrays for c in a.reshape(-1).tolist()]
    return replace(base, fine=Fine(bits, np.array(digits, dtype=fine_type(bits)))).check()


def best_of(problem: SelectionProblem) -> tuple[int, tuple[int, ...]] | None:
    """Least exact cost by enumeration, each entry put together here."""
    assert problem.fine is not None
    parts = problem.fine_parts()
    found = None
    for x in itertools.product(*(range(v.cost.size) for v in problem.vertices)):
        coarse = cases.entries(problem, x)
        if any(entry >= FORBIDDEN for entry in coarse):
            continue
        fine = [int(parts[v][a]) for v, a in enumerate(x)]
        for e in problem.edges:
            r = x[e.u] if e.rows is None else int(e.rows[x[e.u]])
            c = x[e.v] if e.cols is None else int(e.cols[x[e.v]])
            fine.append(int(parts[len(x) + e.table][r, c]))
        cost = sum(coarse) * 2**problem.fine.bits + sum(fine)
        terms = [problem.vertex_cost(v, a) for v, a in enumerate(x)] + [
            problem.edge_cost(e, x) for e in range(len(problem.edges))
        ]
        assert cost == problem.cost_of(x) == (problem.constant << problem.fine_bits) + sum(terms)
        if found is None or cost < found[0]:
            found = cost, x
    return found


@pytest.mark.parametrize("block", range(4))
def test_random_problems_equal_enumeration(block: int) -> None:
    several = 0
    for seed in range(150 * block, 150 * block + 150):
        problem = fine_problem(seed, bits=random.Random(seed).choice([1, 5, 20, 52]))
        assert plain(problem)
        answer, best = solve(problem), best_of(problem)
        assert best is not None and answer.status is Status.OPTIMAL and answer.cost == answer.lower_bound == best[0]
        assert answer.certificate is not None
        certificate = read_certificate(write_certificate(None, answer.certificate))
        assert check_selection(problem, certificate).verdict is Verdict.PROVED
        assert isinstance(certificate.proof, Elimination)
        several += isinstance(certificate.proof.then, Elimination)
        claim = LowerBound(best[0] + 1)
        assert check_selection(problem, replace(certificate, claim=claim)).verdict is not Verdict.PROVED
    assert several > 50  # coarse ties were decided by the fine part


def test_without_a_fine_part_the_same_elimination_serves() -> None:
    for seed in range(200):
        problem = replace(fine_problem(seed), fine=None)
        answer, best = solve(problem), cases.brute(problem)
        assert best is not None and answer.cost == best[0] and answer.certificate is not None
        assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED


@pytest.mark.parametrize("limits", [None, Limits(joint=0), Limits(joint=12)])
def test_other_ways_of_solving_stay_honest(limits: Limits | None) -> None:
    """Maps, forbidden entries and forced searches: the coarse proof counts 2**bits times, so a small gap may stay."""
    for seed in range(120):
        problem = fine_problem(seed, holes=0.1, factored=seed % 2 == 0)
        answer, best = solve(problem, limits=limits), best_of(problem)
        if best is None:
            assert answer.status is Status.INFEASIBLE
        else:
            assert answer.lower_bound is not None and answer.cost is not None
            assert answer.lower_bound <= best[0] <= answer.cost == problem.cost_of(answer.solution)
            terms = len(problem.vertices) + len(problem.edges)
            assert answer.status is Status.OPTIMAL or answer.cost - answer.lower_bound < 2 * terms << problem.fine_bits
        assert answer.certificate is not None and check_selection(problem, answer.certificate).verdict is Verdict.PROVED


def test_no_tree_of_records_proves_too_much() -> None:
    """Trees that are valid for the coarse costs, under claims near the optimum: proved ones are true."""
    proved = 0
    for seed in range(700):
        rng = random.Random(seed)
        problem = fine_problem(seed, bits=3, holes=0.1, factored=seed % 3 == 0)
        best = best_of(problem)
        if best is None:
            continue
        coarse = replace(problem, fine=None)
        proof = cases.random_tree(coarse, rng, -(-best[0] >> 3))
        if isinstance(proof, Elimination) and rng.random() < 0.7:
            points = rng.random() < 0.4
            then = Point() if points else Elimination(proof.order, proof.scopes, (), fine=True)
            proof = replace(proof, then=then)
        for claim in (
            LowerBound(best[0] - rng.randint(0, 12)),
            LowerBound(best[0] + rng.randint(1, 9)),
            Optimal(best[1], best[0]),
        ):
            verdict = check_selection(problem, SelectionCertificate(problem.sha256(), claim, proof)).verdict
            if isinstance(claim, LowerBound) and claim.lower_bound > best[0]:
                assert verdict is not Verdict.PROVED
            proved += verdict is Verdict.PROVED
    assert proved > 140


def mutants(
    problem: SelectionProblem, good: SelectionCertificate
) -> dict[str, tuple[SelectionProblem, SelectionCertificate]]:
    """Wrong by construction; every problem that changes is re-hashed."""
    proof, claim = good.proof, good.claim
    assert isinstance(proof, Elimination) and isinstance(claim, Optimal) and problem.fine is not None
    out: dict[str, tuple[SelectionProblem, SelectionCertificate]] = {}

    def add(name: str, p: SelectionProblem, c: SelectionCertificate) -> None:
        out[name] = p, replace(c, problem_sha256=p.sha256())

    add("cost below", problem, replace(good, claim=Optimal(claim.solution, claim.cost - 1)))
    for k, message in enumerate(proof.messages):
        raised = message.copy()
        raised.reshape(-1)[0] += 1
        add(
            f"message {k} raised",
            problem,
            replace(good, proof=replace(proof, messages=(*proof.messages[:k], raised, *proof.messages[k + 1 :]))),
        )
    add("no second step", problem, replace(good, proof=replace(proof, then=None)))
    add("fine with messages", problem, replace(good, proof=replace(proof, then=replace(proof, fine=True, then=None))))
    add(
        "fine with a further record",
        problem,
        replace(good, proof=replace(proof, then=Elimination(proof.order, proof.scopes, (), Point(), True))),
    )
    add(
        "fine with a vertex twice",
        problem,
        replace(
            good,
            proof=replace(proof, then=Elimination((*proof.order[:-1], proof.order[0]), proof.scopes, (), fine=True)),
        ),
    )
    add("coarse problem", replace(problem, fine=None), good)
    if all(c.cost.size > 1 for c in problem.vertices):
        add("points where choices are left", problem, replace(good, claim=LowerBound(claim.cost), proof=Point()))
    for i in np.flatnonzero(problem.fine.digits)[:3].tolist():
        digits = problem.fine.digits.copy()
        digits[i] = 0
        other = replace(problem, fine=Fine(problem.fine.bits, digits))
        if other.cost_of(claim.solution) != claim.cost:
            add(f"digit {i} of the solution cleared", other, good)
    return out


def test_mutants_are_rejected() -> None:
    seen = set()
    for seed in range(60):
        problem = fine_problem(seed)
        good = solve(problem).certificate
        best = best_of(problem)
        assert good is not None and best is not None
        if len(problem.vertices) < 2 or not isinstance(good.proof, Elimination) or good.proof.then is None:
            continue
        for name, (changed, certificate) in mutants(problem, good).items():
            key = write_certificate(None, certificate), name
            if changed is problem and key[0] == write_certificate(None, good):
                raise AssertionError(f"{name} did not change anything")
            result = check_selection(parse_problem(problem_json(changed)), read_certificate(key[0]))
            assert result.verdict is not Verdict.PROVED, (seed, name)
            seen.add((seed, name))
    assert len(seen) > 400


def test_files_keep_the_fine_part() -> None:
    problem = fine_problem(3, bits=20)
    assert problem.fine is not None and problem.fine.digits.dtype == np.uint32
    for again in (parse_problem(problem_json(problem)), decode_problem(encode_problem(problem))):
        assert again.sha256() == problem.sha256() and again.fine is not None and again.fine.digits.dtype == np.uint32
    assert replace(problem, fine=None).sha256() != problem.sha256()


@pytest.mark.parametrize(
    "change, wrong",
    [
        (lambda f: Fine(f.bits, f.digits[:-1]), "must have shape"),
        (lambda f: Fine(f.bits, f.digits.astype(np.int64)), "must have shape"),
        (lambda f: Fine(0, f.digits), "0 bits"),
        (lambda f: Fine(53, f.digits.astype(np.uint64)), "53 bits"),
        (lambda f: Fine(f.bits, np.full(f.digits.shape, 32, dtype=np.uint8)), "more than 5 bits"),
        (lambda f: Fine(f.bits, np.full(f.digits.shape, 1, dtype=np.uint8)), "0 where a choice is forbidden"),
    ],
)  # fmt: skip
def test_malformed_fine_parts_are_named(change, wrong: str) -> None:
    problem = next(
        p
        for p in (fine_problem(seed, holes=0.3) for seed in range(50))
        if any(int(t.max()) >= FORBIDDEN for t in p.tables)
    )
    with pytest.raises(ProblemError, match=wrong):
        replace(problem, fine=change(problem.fine)).check()


def test_too_large_eliminations_decline() -> None:
    problem = fine_problem(7)
    from shardproof.formal.selection.model.clock import Clock

    assert eliminate_dense(problem, Size(1, 1, 1), Clock()) is None or all(v.cost.size == 1 for v in problem.vertices)


def test_very_fine_floats_are_refused() -> None:
    with pytest.raises(ProblemError, match="too many to scale exactly"):
        from_pase({"nodes": [{"cost": [1e15, 1e-15]}], "edges": []})
    problem = from_pase({"nodes": [{"cost": [3e15, 2.0**-50]}, {"cost": [0.5, 2.0**-49]}], "edges": []})
    assert problem.fine_bits == 45 and problem.scale == 2**50 and solve(problem).cost == 3  # 2**-50 + 2**-49


@pytest.mark.skipif(not PASE.is_dir(), reason="the data set lies outside the repository")
@pytest.mark.parametrize("name", sorted(p.name.removesuffix(".json.gz") for p in PASE.glob("*.json.gz")))
def test_published_tables_exactly(name: str) -> None:
    path = PASE / f"{name}.json.gz"
    problem, data = load_selection_problem(path), json.loads(gzip.decompress(path.read_bytes()))
    answer = solve(problem)
    assert answer.status is Status.OPTIMAL and not problem.assumptions

    def value(x: tuple[int, ...]) -> Fraction:
        nodes = sum((Fraction(node["cost"][a]) for node, a in zip(data["nodes"], x, strict=True)), start=Fraction(0))
        return nodes + sum((Fraction(m[x[u]][x[v]]) for u, v, m in data["edges"]), start=Fraction(0))

    assert answer.solution is not None and answer.cost is not None and answer.certificate is not None
    assert Fraction(answer.cost, problem.scale) == value(answer.solution) == value(tuple(data["exact"]["x"]))
    assert (
        check_selection(problem, read_certificate(write_certificate(None, answer.certificate))).verdict
        is Verdict.PROVED
    )
    assert (
        check_selection(problem, replace(answer.certificate, claim=LowerBound(answer.cost + 1))).verdict
        is not Verdict.PROVED
    )
