"""Other engines on the columns that messages leave: they decide small and large problems, the conversation is told,
lies change nothing.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from budgets import work
from oracles import brute_force
from random_problems import frustrated, graphs_of_all_kinds

from shardproof.__main__ import run
from shardproof.formal.plans.plan import plan_graph
from shardproof.formal.selection.answer import Answer
from shardproof.formal.selection.engines.consult import EngineRefused, conversation
from shardproof.formal.selection.engines.encodings import Reply, child, cp_sat, ilp, smt
from shardproof.formal.selection.options import Options
from shardproof.formal.selection.options.engines import EngineOptions
from shardproof.formal.selection.solve import solve
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Status, Verdict
from shardproof.models.problem.selection_problem import Edge, Fine, SelectionProblem, Usage, Vertex
from shardproof.models.sources.training.step import training_step
from shardproof.models.sources.zoo import build
from shardproof.verify.selection.certificate import check_selection

CP_SAT = pytest.param("cp-sat", marks=pytest.mark.skipif(not find_spec("ortools"), reason="OR-Tools"))
ENGINES = ["ilp", "smt", CP_SAT]


def checked(problem: SelectionProblem, answer: Answer) -> None:
    assert answer.certificate is not None and check_selection(problem, answer.certificate).verdict is Verdict.PROVED


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rows", [False, True])
def test_an_engine_decides_by_columns_alone(engine: str, rows: bool) -> None:
    """With no room for the whole problem: the first cutoff is 1, wider ones follow until what was left out cannot
    be cheaper.
    """
    narrow = Options(engines=EngineOptions(whole_parts=-1))
    wider = 0
    for seed in range(40):
        problem = (
            frustrated(seed)
            if seed % 4 == 0 and not rows
            else graphs_of_all_kinds(seed, rows=rows, largest=8, labels=3)
        )
        optimum, _ = brute_force(problem)
        answer = solve(problem, engine=engine, options=narrow)  # type: ignore[arg-type]
        assert answer.cost == optimum, seed
        checked(problem, answer)
        if optimum is not None:
            last = answer.asked[-1]
            assert last.decided and last.cost == optimum, (seed, last)
            assert last.cutoff is None or optimum <= last.bound + last.cutoff
            wider += len({a.cutoff for a in answer.asked}) > 1
    assert wider > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_columns_keep_every_solution_within_the_cutoff(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is replaced by one that tries everything: what it finds within the cutoff is what the whole
    problem has there.
    """
    seen: list[tuple[SelectionProblem, int]] = []

    def enumerate_all(problem: SelectionProblem, *_: object) -> Reply:
        best, x = brute_force(problem)
        seen.append((problem, 0))
        return Reply(None, "infeasible", True) if best is None else Reply(tuple(x), "enumerated", True)

    narrow = Options(engines=EngineOptions(whole_parts=-1))
    monkeypatch.setattr(ilp, "solve_ilp", enumerate_all)
    monkeypatch.setattr(smt, "solve_smt", enumerate_all)
    monkeypatch.setattr(cp_sat, "solve_cp_sat", enumerate_all)
    smaller = 0
    for seed in range(150):
        problem = frustrated(seed) if seed % 5 == 0 else graphs_of_all_kinds(seed, rows=False, largest=5, labels=4)
        optimum, _ = brute_force(problem)
        seen.clear()
        answer = solve(problem, engine=engine, options=narrow)  # type: ignore[arg-type]
        assert answer.cost == optimum
        if optimum is not None:
            assert answer.asked[-1].decided and answer.asked[-1].cost == optimum, seed
            smaller += any(
                p.tables and sum(t.size for t in p.tables) < sum(problem.tables[e.table].size for e in problem.edges)
                for p, _ in seen
            )
    assert smaller > 50


@pytest.mark.parametrize("engine", ENGINES)
def test_of_choices_alike_to_edges_those_that_use_less_stay(engine: str) -> None:
    """Both choices of a vertex reach the same row; the cheap ones together break the limit, so that one dear one is
    needed.
    """
    rows = np.array([0, 0], dtype=np.int64)
    vertices = tuple(Vertex(f"v{i}", np.array([1, 5 + i])) for i in range(3))
    usages = tuple(Usage(i, 0, 2, np.array([4, 1])) for i in range(3))
    edges = tuple(Edge(i, i + 1, 0, rows, rows) for i in range(2))
    problem = SelectionProblem("alike", vertices, (np.array([[7]]),), edges, usages, 9).check()
    optimum, _ = brute_force(problem)
    answer = solve(problem, engine=engine)  # type: ignore[arg-type]
    assert answer.cost == optimum == 1 + 1 + 5 + 14
    assert answer.asked[-1].decided and answer.asked[-1].cost == optimum


def test_fine_costs_are_exact_for_z3_and_cp_sat_and_said_to_be_whole_for_highs() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        vertices = tuple(Vertex(f"v{i}", rng.integers(0, 3, 3)) for i in range(4))
        tables = tuple(rng.integers(0, 3, (3, 3)) for _ in range(4))
        digits = rng.integers(0, 1 << 8, 4 * 3 + 4 * 9).astype(np.uint8)
        problem = SelectionProblem(
            "fine", vertices, tables, tuple(Edge(i, (i + 1) % 4, i) for i in range(4)), fine=Fine(8, digits)
        ).check()
        optimum = min(problem.cost_of(x) for x in np.ndindex(3, 3, 3, 3))
        by_z3 = solve(problem, engine="smt")
        assert by_z3.asked[-1].decided and by_z3.asked[-1].cost == by_z3.cost == optimum
        if find_spec("ortools"):
            by_cp_sat = solve(problem, engine="cp-sat")
            assert by_cp_sat.asked[-1].decided and by_cp_sat.asked[-1].cost == optimum
        by_highs = solve(problem, engine="ilp")
        assert by_highs.cost == optimum and "whole units of 2^8" in by_highs.asked[-1].says
        assert by_highs.asked[-1].cost is not None and by_highs.asked[-1].cost >= optimum


@pytest.mark.parametrize("engine", ENGINES)
def test_no_word_of_an_engine_is_believed(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls the dearest solution the cheapest, a solvable problem unsolvable, names forbidden or impossible
    choices, or says nothing.
    """
    problem = next(
        p
        for p in (graphs_of_all_kinds(seed, rows=True, largest=5, labels=3) for seed in range(100))
        if len(p.edges) > 4 and brute_force(p)[0] is not None
    )
    optimum, _ = brute_force(problem)
    assert optimum is not None

    def dearest(part: SelectionProblem) -> tuple[int, ...]:
        every = [tuple(int(a) for a in at) for at in np.ndindex(*(v.cost.size for v in part.vertices))]
        return max((at for at in every if part.is_feasible(at)), key=part.cost_of)

    lies = {
        "dearest": lambda part: Reply(dearest(part), "Optimal Solution Found", True),
        "none": lambda part: Reply(None, "infeasible", True),
        "first": lambda part: Reply(tuple(0 for _ in part.vertices), "sat", True),
        "silent": lambda part: Reply(None, "time is over"),
    }
    for name, lie in lies.items():
        monkeypatch.setattr(ilp, "solve_ilp", lambda part, *_, lie=lie: lie(part))
        monkeypatch.setattr(smt, "solve_smt", lambda part, *_, lie=lie: lie(part))
        monkeypatch.setattr(cp_sat, "solve_cp_sat", lambda part, *_, lie=lie: lie(part))
        answer = solve(problem, engine=engine)  # type: ignore[arg-type]
        assert answer.status is Status.OPTIMAL and answer.cost == optimum, name
        checked(problem, answer)
        told = "\n".join(conversation(answer.asked, answer.cost, str))
        assert "asked at" in told
        if name == "dearest" and problem.cost_of(dearest(problem)) > optimum:
            assert "although it called its own the cheapest" in told
        if name in ("none", "silent"):
            assert "named no solution" in told


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_too_large_is_refused_with_its_size(engine: str) -> None:
    few = Options(engines=EngineOptions(ilp_parts=3, smt_parts=3, cp_sat_parts=3))
    none = Options(engines=EngineOptions(ilp_parts=3, smt_parts=3, cp_sat_parts=3, cells=0))
    problem = next(
        p
        for p in (graphs_of_all_kinds(seed, rows=False, largest=5, labels=4) for seed in range(100))
        if len(p.vertices) == 5
    )
    with pytest.raises(
        EngineRefused, match=rf"engine {engine}: .* \d+ parts, at most 3 can be asked about.*--engine native"
    ):
        solve(problem, engine=engine, options=few)  # type: ignore[arg-type]
    with pytest.raises(EngineRefused, match="more than 0 table entries"):
        solve(problem, engine=engine, options=none)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_training_step_is_decided_and_the_plan_lists_who_took_part(engine: str) -> None:
    graph = build("mlp-unity", batch=16)
    machine = load_machine("localhost:4")
    planned = plan_graph(graph, machine, engine=engine)  # type: ignore[arg-type]
    native = plan_graph(graph, machine)
    assert (
        planned.answer.asked[-1].decided and planned.answer.asked[-1].cost == planned.answer.cost == native.answer.cost
    )
    assert planned.plan is not None and native.plan is not None
    names = {n for n, _ in planned.plan.versions}
    assert {"ilp": "highspy", "smt": "z3-solver", "cp-sat": "ortools"}[engine] in names
    assert not {"highspy", "pulp", "z3-solver"} & {n for n, _ in native.plan.versions}


@pytest.mark.timeout(120)
def test_an_engine_that_keeps_no_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child sleeps; its answer is that the time is over, and the native search has the rest of it."""
    monkeypatch.setattr(child, "GRACE", 0.2)
    monkeypatch.setattr(child, "_CODE", "import time; time.sleep(600)")
    problem = frustrated(0)
    soon = Options(engines=EngineOptions(asked_share=0.1))
    answer = solve(problem, engine="ilp", time_limit_s=5, options=soon)
    assert answer.asked[-1].says == "time is over" and not answer.asked[-1].decided
    assert answer.status is Status.OPTIMAL
    checked(problem, answer)
    monkeypatch.setattr(child, "_CODE", "raise SystemExit(9)")
    assert solve(problem, engine="smt", clock=work(20)).asked[-1].says == "nothing: its process ended with 9"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_bert_large_on_thirty_two_devices_is_decided(engine: str) -> None:
    """302,018 choices and 193 million pairs: refused or skipped without messages."""
    planned = plan_graph(build("bert-large", batch=8), load_machine("cloud-a100:4x8"), engine=engine, threads=2)  # type: ignore[arg-type]
    assert planned.answer.status is Status.OPTIMAL and planned.answer.asked[-1].decided
    assert planned.answer.asked[-1].cost == planned.answer.cost == planned.answer.lower_bound


def test_the_command_line_tells(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = ["plan", "mlp-unity", "--batch", "16", "--machine", "localhost:4", "--engine", "smt", "-o", "p.spz"]
    assert run(args) == 0
    told = capsys.readouterr().out
    assert "smt was asked at" in told and "it answered 'sat, nothing cheaper'" in told
    assert run([*args, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["engine"][-1]["decided"] is True and document["engine"][-1]["cost"] == document["cost"]
    (tmp_path / "s.json").write_text('{"*": {"b": {"ranks": 4}}}')
    assert run([*args, "--strategy", "s.json"]) == 2
    assert "--strategy and --engine do not go together" in capsys.readouterr().err
    assert run([*args, "--set", "engines.smt_parts=3"]) == 3
    assert "at most 3 can be asked about" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_rows_are_stated_when_they_break(engine: str) -> None:
    """A limit of four fifths of what the cheapest plan needs: the first answer breaks it, the last one keeps it."""
    machine, graph = load_machine("localhost:4"), training_step(build("mlp-unity", batch=256), "adam")
    free = plan_graph(graph, machine, None, 1 << 40)
    assert free.answer.solution is not None
    limit = free.planning.problem.peak_of(free.answer.solution)[0] * 4 // 5
    tight = plan_graph(graph, machine, None, limit, engine=engine)  # type: ignore[arg-type]
    native = plan_graph(graph, machine, None, limit)
    assert tight.answer.cost == native.answer.cost and tight.answer.status is native.answer.status is Status.OPTIMAL
    assert any("rows more are needed" in a.says for a in tight.answer.asked)
    assert tight.answer.asked[-1].rows > 0 and tight.answer.asked[-1].cost == tight.answer.cost
