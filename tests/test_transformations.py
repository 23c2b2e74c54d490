"""Problems that are solved instead of others: solutions come back at their cost, messages there bound, proofs come
back as proofs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from oracles import brute_force
from random_problems import graphs_of_all_kinds
from test_seams import ladder

from shardproof.formal.selection.bound.accelerated import AcceleratedSweeper
from shardproof.formal.selection.bound.dual import gather, score, spread
from shardproof.formal.selection.bound.trws import Sweeper
from shardproof.formal.selection.decomposition.quotient import quotient
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.factored import Base, allowed_domains, build, whole
from shardproof.formal.selection.model.restrict import condition, restrict
from shardproof.formal.selection.model.transformation import Transformation
from shardproof.formal.selection.presolve.presolve import presolve
from shardproof.formal.selection.relax_resources import WithoutRows
from shardproof.formal.selection.solve import solve
from shardproof.models.problem.claims import LowerBound
from shardproof.models.problem.selection_problem import FORBIDDEN, SelectionProblem
from shardproof.proofs.selection.certificates import Dual, SelectionCertificate
from shardproof.verify.selection.certificate import check_selection
from shardproof.verify.verdict import Verdict

Make = Callable[[SelectionProblem, np.random.Generator], Transformation | None]


def halved(problem: SelectionProblem, rng: np.random.Generator) -> Transformation:
    return restrict(problem, {v: (int(rng.integers(x.cost.size)),) for v, x in enumerate(problem.vertices) if v % 2})


def around(problem: SelectionProblem, rng: np.random.Generator) -> Transformation:
    x = tuple(int(rng.integers(v.cost.size)) for v in problem.vertices)
    return condition(problem, x, set(range(0, len(problem.vertices), 2)))


MAKERS: dict[str, Make] = {
    "presolve": lambda problem, rng: presolve(problem),
    "restriction": halved,
    "conditioned": around,
    "without rows": lambda problem, rng: WithoutRows(problem),
}


def made(name: str) -> Iterator[tuple[SelectionProblem, SelectionProblem, Transformation]]:
    """Outer and inner problems with something left to decide."""
    for seed in range(30):
        problem = graphs_of_all_kinds(seed, rows=name == "without rows")
        found = MAKERS[name](problem, np.random.default_rng(seed))
        if found is not None and found.inner is not None:
            yield problem, found.inner, found


def messages(problem: SelectionProblem) -> Dual | None:
    """Swept ones; None where a vertex has no choice."""
    if not all(d.size for d in allowed_domains(problem)):
        return None
    network = build(Base(problem, 16), whole(problem))
    sweeper = Sweeper(network, list(range(len(network.domains))))
    moving = AcceleratedSweeper(sweeper)
    if moving.sweep(2, Clock()) is None:
        return None
    moving.store()
    return Dual(*spread(network, sweeper.to_u, sweeper.to_v), 16)


def bound(problem: SelectionProblem, dual: Dual) -> int | None:
    network = build(Base(problem, dual.denominator), whole(problem))
    return score(network, *gather(network, dual)).lower()


@pytest.mark.parametrize("name", MAKERS)
def test_solutions_come_back_at_their_cost(name: str) -> None:
    seen = 0
    for problem, inner, found in made(name):
        least, x = brute_force(inner)
        if least is None or least >= FORBIDDEN:
            continue
        whole_x = found.solution_back(tuple(x))
        seen += 1
        if name == "conditioned":  # what is forbidden among the others is left out
            assert problem.cost_of(whole_x) >= least
        else:
            assert problem.cost_of(whole_x) == least
    assert seen > 5


@pytest.mark.parametrize("name", MAKERS)
def test_messages_there_bound(name: str) -> None:
    """No more than the least cost there, and, where every table stays, as much as at home."""
    seen = 0
    for problem, inner, found in made(name):
        dual = messages(problem)
        if dual is None:
            continue
        there, (least, _) = bound(inner, found.messages_there(dual)), brute_force(replace(inner, usages=(), limit=None))
        seen += there is not None
        assert least is None or there is not None and there <= least
        if name in ("restriction", "without rows"):
            home = bound(problem, dual)
            assert there is None or home is not None and there >= home
    assert seen > 5


@pytest.mark.parametrize("name", MAKERS)
def test_proofs_come_back_as_proofs(name: str) -> None:
    proved = nothing = 0
    for problem, inner, found in made(name):
        answer = solve(inner)
        if answer.certificate is None or answer.cost is None:
            continue
        proof = found.proof_back(answer.certificate.proof)
        if proof is None:
            nothing += 1
            continue
        certificate = SelectionCertificate(problem.sha256(), LowerBound(answer.cost), proof)
        result = check_selection(problem, certificate)
        assert result.verdict is Verdict.PROVED, result.reason
        proved += 1
    assert (proved > 5, nothing > 5) == (name in ("presolve", "without rows"), name in ("restriction", "conditioned"))


def test_a_block_stands_for_every_repetition() -> None:
    problem = ladder(60, 0)
    found = quotient(problem)
    assert found is not None
    plan = tuple(0 for _ in found.inner.vertices)
    assert found.solution_back(plan) == (0,) * len(problem.vertices)
    dual = messages(problem)
    assert dual is not None
    there = bound(found.inner, found.messages_there(dual))
    assert there is not None and there <= found.inner.cost_of(plan)
    assert found.proof_back(dual) is None
