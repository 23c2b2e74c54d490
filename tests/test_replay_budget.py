"""What a search proves can be checked: eliminations are counted as the checker counts them, and end where its budget
does.
"""

from __future__ import annotations

import pytest
from random_problems import reducible, shared_tables

from shardproof.formal.selection.elimination import dense, replay
from shardproof.formal.selection.elimination.dense import Size, eliminate_dense, plain
from shardproof.formal.selection.elimination.factored import eliminate, elimination_order
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.factored import Base, build, whole
from shardproof.formal.selection.options import Limits
from shardproof.formal.selection.options.elimination import EliminationOptions
from shardproof.formal.selection.primal.incumbent import Incumbent
from shardproof.formal.selection.solve import solve
from shardproof.formal.selection.tree.branch_and_bound import new_run
from shardproof.models.problem.claims import Verdict
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.proofs.container import effort
from shardproof.proofs.selection.certificates import Elimination
from shardproof.verify import budget
from shardproof.verify.budget import Budget
from shardproof.verify.selection.certificate import check_selection
from shardproof.verify.selection.elimination import elimination_bound
from shardproof.verify.selection.ground import Ground


def _spent(problem: SelectionProblem, record: Elimination) -> int:
    """Cells that the checker takes for the record."""
    ground = Ground(problem, budget=Budget())
    before = ground.budget.work
    elimination_bound(ground, record, whole(problem), "record")
    return before - ground.budget.work


@pytest.mark.parametrize("stored", [1_000_000, 0])
def test_the_search_counts_what_the_checker_counts(stored: int) -> None:
    """Never less, and on most problems hardly more."""
    options = EliminationOptions(stored=stored)
    close = 0
    for seed in range(200):
        problem = reducible(seed, n=8, k=5) if seed % 2 else shared_tables(seed, rows=False)
        network = build(Base(problem), whole(problem))
        outcome = eliminate(network, elimination_order(network), Clock(), options)
        assert outcome is not None
        spent = _spent(problem, outcome.record)
        assert spent <= outcome.replay
        fixed = 0 if stored else effort.ELIMINATED * len(problem.vertices)  # however small their tables are
        close += outcome.replay - fixed <= 2 * (spent - fixed) + 10
        if plain(problem) and problem.fine is None:
            found = dense.buckets(
                [v.cost for v in problem.vertices],
                [(e.u, e.v, problem.tables[e.table]) for e in problem.edges],
                Size(1 << 20, 1 << 30, 1 << 20),
                Clock(),
            )
            solved = eliminate_dense(problem, Size(1 << 20, 1 << 30, 1 << 20), Clock(), options)
            assert found is not None and solved is not None
            assert _spent(problem, solved.record) <= dense.replay(found, found.kept <= stored)
    assert close > 150


@pytest.mark.parametrize(
    "work", [0, 60_000, 1 << 31, *(pytest.param(k, marks=pytest.mark.slow) for k in (20_000, 200_000))]
)
def test_whatever_the_budget_is_the_proof_fits_it(work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget that runs out, nodes are searched on or left open; before, the proof was refused at the end."""
    for module in (effort, replay, budget):
        monkeypatch.setattr(module, "WORK", work)
    monkeypatch.setattr(replay, "WORK_PER_NUMBER", 0)  # the checker keeps its own: room for messages
    proved = eliminated = 0
    for seed in range(60):
        problem = reducible(seed, n=10, k=5)
        answer = solve(problem, threads=1, limits=Limits(root_sweeps=3, node_sweeps=2))
        if answer.certificate is not None:
            verdict = check_selection(problem, answer.certificate).verdict
            assert verdict is Verdict.PROVED, (seed, verdict)
            proved += 1
            eliminated += "Elimination(" in repr(answer.certificate.proof)
    assert proved > 40
    assert (eliminated > 0) == (work > 0), eliminated


def test_eliminations_of_a_tree_share_one_budget() -> None:
    problem = reducible(3, n=8, k=5)
    run = new_run(problem, Incumbent(problem), Clock())
    network = build(Base(problem), whole(problem))
    outcome = eliminate(network, elimination_order(network), Clock())
    assert outcome is not None and outcome.replay > 0
    run.replay = 2 * outcome.replay + 1
    assert [run.proves(outcome) for _ in range(4)] == [True, True, False, False]
