"""Reductions against enumeration, and the replay against the reducer.

The slow test takes 100,000 instances; every rule must have fired often in each run, so that the comparison means
something.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import combinations

import independent_checker
import numpy as np
import pytest
import selection_cases as cases
import selection_reduction_cases as tiny
from budgets import some_or_all
from oracles import bound_of, everything
from random_problems import reducible
from selection_log_oracle import State, reduced

from shardproof.formal.selection.presolve.presolve import Presolved, presolve
from shardproof.models.problem.claims import Infeasible, LowerBound, Optimal, Verdict, WithinGap
from shardproof.models.problem.selection_problem import FINITE_LIMIT, FORBIDDEN, Edge, SelectionProblem, Usage, Vertex
from shardproof.proofs.selection.certificates import Dual, Open, Point, Reduced, RowConflict, Split
from shardproof.proofs.selection.file import read_certificate, write_certificate
from shardproof.proofs.selection.presolve_log import Rule
from shardproof.proofs.selection.problem_file import _encode
from shardproof.verify.selection.certificate import check_selection, tree_bound
from shardproof.verify.selection.ground import Facts, Ground, Refuted
from shardproof.verify.selection.presolve import replay
from shardproof.verify.selection.usage import Wrong, saturate


def replayed(
    problem: SelectionProblem, reduction: Presolved, domains: list[np.ndarray] | None = None
) -> SelectionProblem | None:
    ground = Ground(problem)
    made = replay(ground, reduction.proof_back(Open()), domains or list(ground.full), Facts(), "record")
    return None if made is None else made.problem


def compare(problem: SelectionProblem, fired: Counter[str]) -> None:
    """Same optimum before and after, by enumeration of both; the optimum lifts; the replay makes the same problem."""
    before = tiny.landscape(problem)
    best = int(before.min())
    reduction = presolve(problem)
    assert reduction is not None
    fired.update(Rule(entry).name.lower() for entry in reduction.log[:, 0])
    fired["entries"] += len(reduction.log)
    made = replayed(problem, reduction)
    if reduction.problem is None:
        fired["emptied"] += 1
        assert best == FORBIDDEN and made is None
        return
    assert made is not None
    after = tiny.landscape(reduction.problem)
    assert int(after.min()) == best
    assert np.array_equal(after, tiny.landscape(made))
    assert [(e.u, e.v) for e in made.edges] == [(e.u, e.v) for e in reduction.problem.edges]
    assert all(np.array_equal(a, b) for a, b in zip(made.tables, reduction.problem.tables, strict=True))
    assert all(np.array_equal(a.cost, b.cost) for a, b in zip(made.vertices, reduction.problem.vertices, strict=True))
    points = np.argwhere(after < FORBIDDEN)
    for point in points[:: max(1, len(points) // 4)]:  # not only the optimum lifts, at its own cost
        x = reduction.solution_back(tuple(point.tolist()))
        assert int(before[x]) == int(after[tuple(point)])
        assert reduction.project(x) == tuple(point.tolist())
    if best < FORBIDDEN:
        x = reduction.solution_back(tuple(int(a) for a in np.unravel_index(int(after.argmin()), after.shape)))
        assert int(before[x]) == best


def test_a_literal_reading_of_the_log_makes_the_same_problem() -> None:
    for seed in range(400):
        problem = reducible(seed, n=5, k=3)
        reduction = presolve(problem)
        assert reduction is not None
        left = reduced(problem, reduction.proof_back(Open()), [list(range(v.cost.size)) for v in problem.vertices])
        assert (left is None) == (reduction.problem is None)
        if left is not None and reduction.problem is not None:
            assert np.array_equal(tiny.landscape(left), tiny.landscape(reduction.problem))
            assert all(np.array_equal(a, b) for a, b in zip(left.tables, reduction.problem.tables, strict=True))


RULES = [
    "rows",
    "arc",
    "fix",
    "merge",
    "follow",
    "separable",
    "dominated",
    "eliminate",
    "overfull",
    "emptied",
]


@pytest.mark.parametrize(("count", "part"), some_or_all((700, 4), (2500, 1)))
def test_same_optimum_as_enumeration(count: int, part: int) -> None:
    fired = Counter[str]()
    for seed in range(count):
        compare(reducible(seed), fired)
    assert all(fired[rule] >= (5 if rule == "follow" else 20) // part for rule in RULES), fired


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_same_optimum_as_enumeration_100000(part: int) -> None:
    fired = Counter[str]()
    for seed in range(part * 10_000, (part + 1) * 10_000):
        compare(reducible(10_000_000 + seed), fired)
    assert all(fired[rule] >= (20 if rule == "follow" else 100) for rule in RULES), fired


def test_restricted_domains() -> None:
    """B(Reduced, D) with an exact record inside is the optimum over D."""
    some = 0
    for seed in range(150):
        rng = random.Random(seed)
        problem = reducible(seed, n=4, k=3)
        domains = [
            np.array(sorted(rng.sample(range(v.cost.size), rng.randint(1, v.cost.size)))) for v in problem.vertices
        ]
        best = int(tiny.landscape(problem)[np.ix_(*domains)].min())
        reduction = presolve(problem, tuple(domains))
        assert reduction is not None
        then = Open() if reduction.problem is None else cases.points(reduction.problem)
        root = reduction.proof_back(then)
        for v, d in enumerate(domains):
            root = Split(v, (tuple(d.tolist()), tuple(range(problem.vertices[v].cost.size))), (root, Open()))
        ground = Ground(problem)
        made = replay(ground, reduction.proof_back(then), domains, Facts(), "record")
        assert (made is None) == (reduction.problem is None)
        if made is not None:
            value = tree_bound(made, then, float("inf"), Facts())
            assert value == (best if best < FORBIDDEN else float("inf"))
            some += best < FORBIDDEN
        assert tree_bound(ground, root, float("inf"), Facts()) == -float("inf")  # the open part counts
        assert [d.tolist() for d in ground.full] == [d.tolist() for d in Ground(problem).full]
    assert some > 30


def nested(problem: SelectionProblem, rng: random.Random, ub: float, depth: int = 2):
    """Reduced, then fixing by a dual, then Reduced again on what is left, then points."""
    reduction = presolve(problem)
    if reduction is None or reduction.problem is None:
        return reduction.proof_back(Open())
    inner = reduction.problem
    if depth:
        dual = cases.random_dual(inner, rng, size=3)
        bound, kept = cases.reference_dual(inner, dual, cases.whole(inner), ub)
        if all(kept) and bound < ub:
            again = presolve(inner, tuple(np.array(d) for d in kept))
            then = Open() if again.problem is None else nested(again.problem, rng, ub, depth - 1)
            return reduction.proof_back(
                Dual(dual.to_u, dual.to_v, dual.denominator, dual.multipliers, again.proof_back(then))
            )
    return reduction.proof_back(cases.points(inner, conflicts=True))


@pytest.mark.parametrize(("count", "least"), some_or_all((80, 3), (250, 15)))
def test_nested_records_prove_every_claim_through_files(count: int, least: int) -> None:
    deep = 0
    for seed in range(count):
        problem = reducible(seed, n=4, k=3)
        for claim in cases.all_claims(problem):
            proof = nested(
                problem, random.Random(seed), claim.cost if isinstance(claim, Optimal | WithinGap) else float("inf")
            )
            claim = cases.named(problem, proof) if isinstance(claim, Infeasible) else claim
            deep += isinstance(proof.then, Dual)
            data = write_certificate(None, cases.certified(problem, claim, proof))
            result = check_selection(problem, read_certificate(data))
            assert result.verdict is Verdict.PROVED, (seed, result.reason)
            if isinstance(claim, Optimal):
                assert bound_of(problem, proof, everything(problem), claim.cost) >= claim.cost
        best = cases.brute(problem)
        if best is not None:
            too_much = cases.certified(problem, LowerBound(best[0] + 1), proof)
            assert check_selection(problem, too_much).verdict is not Verdict.PROVED
    assert deep > least


def test_infeasible_claims_must_name_every_vertex_and_the_steps() -> None:
    problem = SelectionProblem(
        "tight", (Vertex("a", np.array([0, 1])), Vertex("b", np.array([0, 1])), Vertex("c", np.array([0]))), (), (),
        (Usage(0, 5, 7, np.array([3, 4])), Usage(1, 6, 9, np.array([3, 4])), Usage(2, 2, 3, np.array([1]))), 5,
    )  # fmt: skip
    emptied = presolve(problem)
    assert emptied is not None and emptied.problem is None
    early = Reduced(np.array([[Rule.ROWS, 0, 0, 0], [Rule.FIX, 2, 0, 0]]), (np.array([2, 6]),), RowConflict(((1, 1),)))
    for proof in (emptied.proof_back(Open()), early):
        assert (
            check_selection(problem, cases.certified(problem, Infeasible((6,), (0, 1, 2), None, None), proof)).verdict
            is Verdict.PROVED
        )
        for steps, vertices, verdict in (
            ((5,), (0, 1, 2), Verdict.REFUTED), ((6, 7), (0, 1, 2), Verdict.REFUTED), ((), (0, 1, 2), Verdict.UNDECIDED), ((6,), (0, 1), Verdict.UNDECIDED),
        ):  # fmt: skip
            assert (
                check_selection(
                    problem, cases.certified(problem, Infeasible(steps, vertices, None, None), proof)
                ).verdict
                is verdict
            )


def test_any_accepted_log_only_lowers_the_optimum() -> None:
    """Random entries: whatever the replay accepts, the minimum must not rise; and random entries are mostly refused."""
    accepted, refused = Counter[str](), 0
    for seed in range(120):
        rng = random.Random(seed)
        problem = reducible(seed, n=5, k=3)
        ground = Ground(problem)
        best = int(tiny.landscape(problem).min())
        n, steps = len(problem.vertices), problem.events()
        log: list[tuple[int, ...]] = []
        kept: list[np.ndarray] = []
        for _ in range(60):
            rule = rng.choice(list(Rule))
            entry = (
                int(rule),
                rng.randrange(n),
                rng.randint(-1, max(n, 3)),
                rng.randint(-1, 6 if rule in (Rule.OVERFULL, Rule.CLIQUE) else 3),
            )
            if rule is Rule.IMPLIED:
                entry = (int(rule), *rng.sample(range(max(n, 3)), 3))
            new = kept
            if rule is Rule.ROWS:
                new = [*kept, np.array(sorted(rng.sample(steps, rng.randint(0, len(steps)))), dtype=np.int64)]
                entry = (int(rule), len(kept), 0, 0)
            record = Reduced(np.array([*log, entry], dtype=np.int64), tuple(new), Open())
            try:
                made = replay(ground, record, list(ground.full), Facts(), "record")
            except Refuted:
                refused += 1
                continue
            accepted[rule.name] += 1
            log.append(entry)
            kept = new
            if made is None:
                assert best == FORBIDDEN
                break
            now = int(tiny.landscape(made.problem).min())
            assert now <= best
            best = now
    assert set(accepted) == {rule.name for rule in Rule} and refused > 3 * accepted.total()


def test_usage_of_a_merged_vertex_counts() -> None:
    """The choice that is cheapest for one vertex may be the heavy one of the vertex that follows it."""
    same = np.where(np.eye(2, dtype=bool), 0, FORBIDDEN)
    problem = SelectionProblem(
        "pair", (Vertex("a", np.array([0, 9])), Vertex("b", np.array([0, 0]))), (same,), (Edge(0, 1, 0),),
        (Usage(1, 0, 1, np.array([7, 1])),), 5,
    )  # fmt: skip
    reduction = presolve(problem)
    assert reduction is not None and reduction.problem is not None
    assert reduction.problem.constant == 9 and reduction.solution_back(
        tuple(0 for _ in reduction.problem.vertices)
    ) == (1, 1)


def test_numbers_that_would_leave_the_range() -> None:
    """Folding a separable table with entries of 2**56 - 1 can make a cost of 2**57: the reducer gives up, the
    replay refuses.
    """
    big = FINITE_LIMIT // 2 - 9
    table = np.array([[-big, big], [-big, big]])
    problem = SelectionProblem(
        "big", (Vertex("a", np.array([0, 1])), Vertex("b", np.array([1, 0]))), (table,), (Edge(0, 1, 0),)
    ).check()
    log = np.array([[Rule.SEPARABLE, 0, 1, 0]])
    with pytest.raises(Refuted, match=r"2\*\*57"):
        replay(Ground(problem), Reduced(log, (), Open()), list(Ground(problem).full), Facts(), "record")
    reduction = presolve(problem)
    assert reduction is None or reduction.solution_back((0,)) == (0, 0)
    wide = SelectionProblem(
        "wide",
        problem.vertices,
        (table, np.zeros((2, 2), dtype=np.int64)),
        (Edge(0, 1, 0), Edge(0, 1, 1)),
        constant=big,
    ).check()
    with pytest.raises(Refuted, match=r"2\*\*57"):
        replay(Ground(wide), Reduced(log, (), Open()), list(Ground(wide).full), Facts(), "record")
    huge = SelectionProblem(
        "usage",
        (Vertex("a", np.array([0, 1])),) * 2,
        (),
        (),
        tuple(Usage(v, 0, 1, np.array([0, 1 << 61])) for v in range(2)),
        5,
    )
    assert presolve(huge) is None
    with pytest.raises(Refuted, match="64 bits"):
        replay(
            Ground(huge),
            Reduced(np.zeros((0, 4), dtype=np.int64), (), Open()),
            list(Ground(huge).full),
            Facts(),
            "record",
        )


def test_reduction_is_deterministic_and_reads_read_only_arrays() -> None:
    for seed in range(60):
        problem = reducible(seed)
        one, two = presolve(problem), presolve(problem)
        assert one is not None and two is not None and np.array_equal(one.log, two.log)
        for array in (*problem.tables, *(v.cost for v in problem.vertices), *(u.amount for u in problem.usages)):
            array.flags.writeable = False
        three = presolve(problem)
        assert three is not None and np.array_equal(one.log, three.log)


def test_whole_certificate_from_the_reduced_problem() -> None:
    problem = reducible(6)
    best = cases.brute(problem)
    reduction = presolve(problem)
    assert best is not None and reduction is not None and reduction.problem is not None
    inner = cases.brute(reduction.problem)
    assert inner is not None and inner[0] == best[0]
    proof = reduction.proof_back(
        cases.points(reduction.problem) if any(v.cost.size > 1 for v in reduction.problem.vertices) else Point()
    )
    result = check_selection(
        problem, cases.certified(problem, Optimal(reduction.solution_back(inner[1]), inner[0]), proof)
    )
    assert result.verdict is Verdict.PROVED


def exclusive(seed: int, n: int = 6) -> SelectionProblem:
    """Vertices with two choices, pairs of which exclude each other."""
    rng = random.Random(seed)
    edges, tables = [], []
    for u, v in combinations(range(n), 2):
        if rng.random() < 0.6:
            table = np.zeros((2, 2), dtype=np.int64)
            table[int(rng.random() < 0.8), int(rng.random() < 0.8)] = FORBIDDEN
            edges.append(Edge(u, v, len(tables)))
            tables.append(table + rng.choice([0, 0, 1]) * (table < FORBIDDEN))
    costs = [Vertex(f"v{i}", np.array([rng.randint(0, 9), rng.randint(0, 9)])) for i in range(n)]
    return SelectionProblem("exclusive", tuple(costs), tuple(tables), tuple(edges)).check()


def second_opinion(problem: SelectionProblem, record: Reduced) -> str:
    """The verdict of the independent checker on a log that proves no bound."""
    text = json.dumps(_encode(problem, lambda a: a.tolist())).encode()
    certificate = cases.certified(problem, LowerBound(0), record)
    return independent_checker.check(write_certificate(None, certificate), text)[0]


def test_cliques_keep_the_optimum_and_their_logs_say_why() -> None:
    made = refused = 0
    for seed in range(60):
        problem = exclusive(seed)
        ground = Ground(problem)
        found = presolve(problem)
        assert found is not None
        log = found.log[np.isin(found.log[:, 0], (Rule.CLIQUE, Rule.IMPLIED))]
        if not log.size:
            continue
        made += 1
        record = Reduced(log, (), Open())
        made_of = replay(ground, record, list(ground.full), Facts(), "record")
        assert made_of is not None
        want = reduced(problem, record, [[0, 1] for _ in problem.vertices])
        assert want is not None and want.sha256() == replace(made_of.problem, name="left").sha256()
        assert second_opinion(problem, record) == "undecided"
        best = int(tiny.landscape(problem).min())
        assert int(tiny.landscape(made_of.problem).min()) == best
        if found.problem is not None and best < FORBIDDEN:
            inner = int(tiny.landscape(found.problem).argmin())
            at = np.unravel_index(inner, [v.cost.size for v in found.problem.vertices])
            x = found.solution_back(tuple(map(int, at)))
            assert problem.cost_of(x) == best
            there = found.project(x)
            assert there is None or found.problem.cost_of(there) <= best
        clique = np.flatnonzero(log[:, 0] == Rule.CLIQUE)
        for k in clique.tolist():  # another choice of a member, another number, a member twice
            i, a, h = log[k, 1:].tolist()
            members = log[clique][log[clique, 3] == h, 1:3].tolist()
            flipped = log[: clique[-1] + 1].copy()
            flipped[k, 2] = 1 - a
            pairs = State(problem)
            bad = any(w != i and pairs.table[i, w][1 - a, y] < FORBIDDEN for w, y in members)
            numbered, twice = log[: k + 1].copy(), np.insert(log[: k + 1], k, log[k], axis=0)
            numbered[k, 3] += 2
            for wrong in (*([flipped] if bad else []), numbered, twice):
                with pytest.raises(Refuted):
                    replay(ground, Reduced(wrong, (), Open()), list(ground.full), Facts(), "record")
                assert second_opinion(problem, Reduced(wrong, (), Open())) == "refuted"
                refused += 1
        implied = log[log[:, 0] == Rule.IMPLIED]
        for entry in implied.tolist():  # before the vertex of the clique is there, and a second time
            for wrong in (np.array([entry]), np.array([*log.tolist(), entry])):
                with pytest.raises(Refuted):
                    replay(ground, Reduced(wrong, (), Open()), list(ground.full), Facts(), "record")
                assert second_opinion(problem, Reduced(wrong, (), Open())) == "refuted"
    assert made > 20 and refused > 200


@pytest.mark.parametrize("far", [1 << 57, -(1 << 57)])
@pytest.mark.parametrize("beside", [0, FORBIDDEN])
def test_sums_beyond_what_64_bits_hold_are_wrong_and_not_forbidden(far: int, beside: int) -> None:
    assert FORBIDDEN >> 3 == 1 << 57
    assert saturate(np.array([far - (1 if far > 0 else -1), beside])).tolist() == [far - (1 if far > 0 else -1), beside]
    with pytest.raises(Wrong, match="beyond"):
        saturate(np.array([far, beside]))
