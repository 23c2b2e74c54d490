"""Engines that decide alone: their proofs are checked certificates, and no lie of theirs becomes a claim."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from budgets import work
from oracles import brute_force
from random_problems import few_costs, frustrated, graphs_of_all_kinds, rows_some_bind

from shardproof.__main__ import run
from shardproof.formal.selection.answer import Answer
from shardproof.formal.selection.bound.dual import score_of
from shardproof.formal.selection.engines import alone as deciding
from shardproof.formal.selection.engines import consult
from shardproof.formal.selection.engines.alone import REASONS
from shardproof.formal.selection.engines.consult import EngineRefused
from shardproof.formal.selection.engines.cp_sat_cores import CpSatCores
from shardproof.formal.selection.engines.encodings import Reply, cp_sat
from shardproof.formal.selection.engines.encodings.messages import Messages
from shardproof.formal.selection.engines.encodings.relaxation import Found, Relaxation
from shardproof.formal.selection.engines.proof_by_cores import Cores, EngineReply
from shardproof.formal.selection.model.clock import Clock, Overdue, Quiet
from shardproof.formal.selection.model.factored import Base, Domains, allowed_domains, whole
from shardproof.formal.selection.options import Options
from shardproof.formal.selection.options.engines import EngineOptions
from shardproof.formal.selection.primal.incumbent import Incumbent
from shardproof.formal.selection.solve import solve
from shardproof.formal.selection.tree.branch_and_bound import new_run
from shardproof.models.problem.claims import Status, Verdict
from shardproof.models.problem.selection_problem import Edge, Fine, SelectionProblem, Usage, Vertex
from shardproof.proofs.selection.certificates import Dual, RowConflict
from shardproof.verify.selection.certificate import check_selection

CP_SAT = pytest.param("cp-sat", marks=pytest.mark.skipif(not find_spec("ortools"), reason="OR-Tools"))
ENGINES = ["ilp", "smt", CP_SAT]
PROBLEMS = Path(__file__).parent / "conformance" / "problems"
TRIVIAL = "none: the answer is the engine's, the bound is trivial"


def alone(problem: SelectionProblem, engine: str, **more: object) -> Answer:
    return solve(problem, engine=engine, alone=True, **more)  # type: ignore[arg-type]


def true(problem: SelectionProblem, answer: Answer, optimum: int | None) -> None:
    """What is claimed is so, and proved."""
    assert answer.certificate is not None
    assert check_selection(problem, answer.certificate).verdict is Verdict.PROVED
    if answer.status is Status.OPTIMAL:
        assert answer.cost == optimum
    if answer.status is Status.INFEASIBLE:
        assert optimum is None
    if answer.cost is not None:
        assert optimum is not None and answer.cost >= optimum
    if answer.lower_bound is not None and optimum is not None:
        assert answer.lower_bound <= optimum


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rows", [False, True])
def test_an_engine_alone_ends_in_its_own_checked_proof(engine: str, rows: bool) -> None:
    told = set()
    for seed in range(40):
        problem = graphs_of_all_kinds(seed, rows=rows, largest=5, labels=3)
        optimum, _ = brute_force(problem)
        answer = alone(problem, engine)
        assert answer.status is (Status.INFEASIBLE if optimum is None else Status.OPTIMAL), seed
        assert answer.cost == optimum, seed
        true(problem, answer, optimum)
        assert answer.alone is not None and (optimum is None or answer.alone.cost == optimum)
        told.add(answer.alone.proof)
    assert REASONS[engine] in told and TRIVIAL not in told


@pytest.mark.parametrize("engine", ["ilp", "smt"])
@pytest.mark.parametrize("make", [frustrated, few_costs, rows_some_bind])
def test_what_the_relaxation_leaves_open_is_branched_on(
    make: Callable[[int], SelectionProblem], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "smt":  # its search for the answer does not end where rows bind: the proof finds it
        monkeypatch.setattr(deciding, "reply_of", lambda _, problem, *__: ANSWERS["nothing"](problem))
    for seed in range(2):
        problem = make(seed)
        native, answer = solve(problem), alone(problem, engine)
        assert answer.status is Status.OPTIMAL and answer.cost == native.cost
        true(problem, answer, native.cost)


@pytest.mark.parametrize("engine", ENGINES)
def test_fine_parts_of_costs_are_proved_too(engine: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        vertices = tuple(Vertex(f"v{i}", rng.integers(0, 3, 3)) for i in range(4))
        tables = tuple(rng.integers(0, 3, (3, 3)) for _ in range(4))
        digits = rng.integers(0, 1 << 8, 4 * 3 + 4 * 9).astype(np.uint8)
        edges = tuple(Edge(i, (i + 1) % 4, i) for i in range(4))
        problem = SelectionProblem("fine", vertices, tables, edges, fine=Fine(8, digits)).check()
        optimum = min(problem.cost_of(x) for x in np.ndindex(3, 3, 3, 3))
        answer = alone(problem, engine)
        true(problem, answer, optimum)
        assert answer.status is Status.OPTIMAL


@pytest.mark.skipif(not find_spec("ortools"), reason="OR-Tools")
@pytest.mark.parametrize("rows", [False, True])
def test_costs_of_several_digits_are_exact_for_cp_sat(rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little room for a sum, costs take several digits with carries: the cheapest stays the cheapest,
    and what is cheaper by one is told from what is not.
    """
    monkeypatch.setattr(cp_sat, "BITS", 9)
    several = 0
    for seed in range(50):
        problem = graphs_of_all_kinds(seed, rows=rows, largest=5, labels=3)
        optimum, _ = brute_force(problem)
        reply = cp_sat.solve_cp_sat(problem)
        assert reply.final and (reply.solution is None) == (optimum is None), seed
        if optimum is None or reply.solution is None:
            continue
        assert problem.cost_of(reply.solution) == optimum, seed
        several += len(cp_sat.start(problem, (), True).digits) > 1
        cores = CpSatCores(new_run(problem, Incumbent(problem), Clock(), Options(), Fraction(0), Quiet(), 1))
        assert cores.ask(whole(problem), optimum).word == "unsat", seed
        named = cores.ask(whole(problem), optimum + 1)
        assert named.word == "sat" and named.solution is not None and problem.cost_of(named.solution) == optimum, seed
    assert several > 3


@pytest.mark.skipif(not find_spec("ortools"), reason="OR-Tools")
def test_a_core_names_what_refutes_and_nothing_else() -> None:
    """Vertices 2 and 5 disagree in this case and cost 9; five others are free to do as they like."""
    vertices = tuple(Vertex(f"v{i}", np.zeros(2, dtype=np.int64)) for i in range(7))
    tables = np.array([[5, 9], [9, 5]]), np.zeros((2, 2), dtype=np.int64)
    problem = SelectionProblem("core", vertices, tables, (Edge(2, 5, 0), Edge(0, 1, 1), Edge(3, 4, 1))).check()
    cores = CpSatCores(new_run(problem, Incumbent(problem), Clock(), Options(), Fraction(0), Quiet(), 1))
    fixed = {2: np.array([0]), 5: np.array([1])}
    said = cores.ask(tuple(fixed.get(v, np.arange(2)) for v in range(7)), 9)
    assert said.word == "unsat" and said.vertices == {2, 5}
    assert cores.ask(whole(problem), 9).word == "sat"  # the case is left again


def test_duals_of_doubles_are_refined_to_the_last_unit() -> None:
    """Costs of 0 or 2**52 that differ by a few units, which HiGHS cannot see beside them: with one program a node,
    choices have to be told apart.
    """
    programs = {1: 0, 5: 0}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        costs = [(rng.integers(0, 2, (5,) * k) << 52) + rng.integers(0, 4, (5,) * k) for k in (1, 2) for _ in range(12)]
        edges = tuple(Edge(i, (i + 1) % 12, i) for i in range(12))
        vertices = tuple(Vertex(f"v{i}", c) for i, c in enumerate(costs[:12]))
        problem = SelectionProblem("big", vertices, tuple(costs[12:]), edges).check()
        optimum = solve(problem).cost
        for turns in programs:
            answer = alone(problem, "ilp", options=Options(engines=EngineOptions(turns=turns)))
            true(problem, answer, optimum)
            assert answer.status is Status.OPTIMAL and answer.alone is not None
            programs[turns] += answer.alone.reasons
    assert 2 * programs[5] < programs[1]


def test_ties_in_whole_units_are_added_up_at_once() -> None:
    """Whole units are all 0: four choices of ten vertices are a million points, and one elimination."""
    digits = np.random.default_rng(3).integers(0, 1 << 8, 10 * 4 + 16).astype(np.uint8)
    zeros = tuple(Vertex(f"v{i}", np.zeros(4, dtype=np.int64)) for i in range(10))
    edges = tuple(Edge(i, i + 1, 0) for i in range(9))
    table = np.zeros((4, 4), dtype=np.int64)
    problem = SelectionProblem("ties", zeros, (table,), edges, fine=Fine(8, digits)).check()
    answer = alone(problem, "ilp", clock=work(5))
    assert answer.status is Status.OPTIMAL and answer.alone is not None and answer.alone.reasons <= 1
    true(problem, answer, solve(problem).cost)


def test_rows_that_nothing_fits_together_are_added_up() -> None:
    """Either choice fits one of two rows: the ray of the first program is the conflict."""
    costs, use = np.zeros(2, dtype=np.int64), np.array([0, 2])
    usages = (Usage(0, 0, 1, use), Usage(0, 1, 2, 2 - use))
    problem = SelectionProblem("either", (Vertex("a", costs),), (), (), usages, 0).check()
    answer = alone(problem, "ilp")
    assert answer.status is Status.INFEASIBLE and answer.certificate is not None
    assert isinstance(answer.certificate.proof, RowConflict) and len(answer.certificate.proof.multipliers) == 2
    true(problem, answer, None)


def _some(rows: bool) -> list[tuple[SelectionProblem, int | None]]:
    """Problems that take a proof, and two without solution."""
    seeds = range(100)
    every = [graphs_of_all_kinds(s, rows=rows, largest=5, labels=3) for s in seeds]
    solved = [(p, brute_force(p)[0]) for p in every if len(p.edges) > 3]
    return [s for s in solved if s[1] is not None][:6] + [s for s in solved if s[1] is None][:2]


def dearest(problem: SelectionProblem) -> tuple[int, ...]:
    fits = [x for x in np.ndindex(*(v.cost.size for v in problem.vertices)) if problem.is_feasible(x)]
    return max(fits, key=problem.cost_of) if fits else tuple(0 for _ in problem.vertices)


ANSWERS: dict[str, Callable[[SelectionProblem], Reply]] = {
    "the dearest is the cheapest": lambda p: Reply(dearest(p), "Optimal Solution Found", True),
    "a solution found in time is the cheapest": lambda p: Reply(dearest(p), "Optimal", True),
    "nothing fits": lambda p: Reply(None, "unsat", True),
    "nothing": lambda p: Reply(None, "time is over"),
    "choices that do not exist": lambda p: Reply(tuple(99 for _ in p.vertices), "Optimal Solution Found", True),
    "negative choices": lambda p: Reply(tuple(-1 for _ in p.vertices), "Optimal Solution Found", True),
    "too few choices": lambda p: Reply((0,), "Optimal Solution Found", True),
    "whatever": lambda p: Reply(tuple(0 for _ in p.vertices), "Optimal Solution Found", True),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lie", ANSWERS)
def test_a_wrong_answer_is_no_claim(engine: str, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "reply_of", lambda _, problem, *__: ANSWERS[lie](problem))
    for problem, optimum in _some(rows=True):
        answer = alone(problem, engine)
        true(problem, answer, optimum)
        assert answer.status is (Status.INFEASIBLE if optimum is None else Status.OPTIMAL)  # the proof finds it
        assert answer.alone is not None
        beaten = answer.alone.cost is not None and optimum is not None and answer.alone.cost > optimum
        told = " ".join(answer.alone.words(str, answer.cost))
        assert ("cheaper solution than it named" in told) == beaten


def _noise(lp: Relaxation, found: Found, size: float) -> Found:
    rng = np.random.default_rng(1)
    duals = rng.normal(size=lp._highs.getNumRow()) * size
    return Found(found.says, lp.add_duals(lp.nothing(), duals), found.value, found.x)


PROGRAMS: dict[str, Callable[[Relaxation, Found], Found]] = {
    "other duals": lambda lp, f: _noise(lp, f, 7.0),
    "huge duals": lambda lp, f: _noise(lp, f, 1e300),
    "no duals": lambda lp, f: Found("Optimal", None, 0.0, f.x),
    "no solution": lambda lp, f: Found("Infeasible", _noise(lp, f, 1e15).dual, float("inf"), None),
    "another value": lambda lp, f: Found(f.says, f.dual, 1e18, f.x),
    "another point": lambda lp, f: Found(f.says, f.dual, f.value, tuple(np.ones(c.size) for c in lp.choices)),
}


MESSAGES: dict[str, Callable[[Messages, Dual, Found], Found]] = {
    "messages of nobody": lambda z3, dual, f: replace(f, dual=_noisy(dual, 7)),
    "huge messages": lambda z3, dual, f: replace(f, dual=_noisy(dual, z3.largest)),
    "no messages": lambda z3, dual, f: replace(f, dual=None),
    "without a maximum": lambda z3, dual, f: Found("unbounded", _noisy(dual, 1 << 20), float("inf"), None),
    "another maximum": lambda z3, dual, f: replace(f, value=1e18),
    "another point": lambda z3, dual, f: replace(f, x=tuple(np.ones(c.size) for c in z3.choices)),
    "unsat": lambda z3, dual, f: Found("unsat", None, 0.0, None),
}


def _noisy(dual: Dual, size: int) -> Dual:
    rng = np.random.default_rng(1)
    to_u, to_v = (tuple(rng.integers(-size, size, m.size) for m in side) for side in (dual.to_u, dual.to_v))
    return Dual(to_u, to_v, dual.denominator, dual.multipliers)


@pytest.mark.parametrize("lie", MESSAGES)
def test_wrong_messages_are_a_weaker_bound(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solved = Messages.solve

    def lying(self: Messages, domains: Domains, dual: Dual, *given: Any) -> Found:
        return MESSAGES[lie](self, dual, solved(self, domains, dual, *given))

    monkeypatch.setattr(Messages, "solve", lying)
    monkeypatch.setattr(deciding, "reply_of", lambda _, problem, *__: ANSWERS["the dearest is the cheapest"](problem))
    for problem, optimum in _some(rows=True):
        true(problem, alone(problem, "smt", clock=work(5)), optimum)


@pytest.mark.parametrize("rows", [False, True])
def test_messages_of_z3_are_worth_what_the_relaxation_is(rows: bool) -> None:
    """Exact rationals say what HiGHS says to seven digits, and the solution among what is tight costs the bound."""
    closed = 0
    for seed in range(40):
        problem = graphs_of_all_kinds(seed, rows=rows, largest=5, labels=3)
        made = new_run(problem, Incumbent(problem), Clock(), Options(), Fraction(0), Quiet(), 1)
        z3, lp = Messages(problem, made.base), Relaxation(problem, made.base)
        domains = allowed_domains(problem)
        mine, its = z3.solve(domains, z3.nothing(), Clock()), lp.solve(domains, lp.nothing(), Clock())
        assert mine.value == pytest.approx(its.value, rel=1e-6, abs=1.0), seed
        if mine.says != "sat" or mine.dual is None or mine.x is None:
            continue
        bound = score_of(made.base, domains, mine.dual).lower()
        x = tuple(int(c[s.argmax()]) for c, s in zip(z3.choices, mine.x, strict=True))
        closed += problem.is_feasible(x) and problem.cost_of(x) == bound
    assert closed > 15


def test_messages_under_which_nothing_fits_are_a_ray() -> None:
    """Either choice fits one of two rows: without a maximum, the multipliers add up to a conflict."""
    costs, use = np.zeros(2, dtype=np.int64), np.array([0, 2])
    usages = (Usage(0, 0, 1, use), Usage(0, 1, 2, 2 - use))
    problem = SelectionProblem("either", (Vertex("a", costs),), (), (), usages, 0).check()
    z3 = Messages(problem, Base(problem))
    found = z3.solve(whole(problem), z3.nothing(), Clock())
    assert found.says == "unbounded" and found.dual is not None
    (_, one), (_, other) = found.dual.multipliers
    assert one > 0 and other > 0
    with pytest.MonkeyPatch.context() as patch:  # one that has not said that nothing fits
        patch.setattr(deciding, "reply_of", lambda _, problem, *__: ANSWERS["nothing"](problem))
        answer = alone(problem, "smt")
    assert answer.status is Status.INFEASIBLE
    true(problem, answer, None)


@pytest.mark.parametrize("lie", PROGRAMS)
def test_wrong_duals_are_a_weaker_bound(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solved = Relaxation.solve
    monkeypatch.setattr(Relaxation, "solve", lambda self, *given: PROGRAMS[lie](self, solved(self, *given)))
    monkeypatch.setattr(deciding, "reply_of", lambda _, problem, *__: ANSWERS["the dearest is the cheapest"](problem))
    for problem, optimum in _some(rows=True):
        true(problem, alone(problem, "ilp", clock=work(5)), optimum)


CASES: dict[str, Callable[[SelectionProblem], EngineReply]] = {
    "no core": lambda problem: EngineReply("unsat"),
    "a core of one vertex": lambda problem: EngineReply("unsat", frozenset({0})),
    "a core of everything": lambda problem: EngineReply("unsat", frozenset(range(len(problem.vertices)))),
    "a solution that is none": lambda problem: EngineReply("sat", solution=tuple(-1 for _ in problem.vertices)),
    "the dearest is cheaper": lambda problem: EngineReply("sat", solution=dearest(problem)),
    "nothing": lambda problem: EngineReply("unknown"),
}


@pytest.mark.parametrize("engine", ["smt", CP_SAT])
@pytest.mark.parametrize("lie", CASES)
def test_wrong_cores_are_a_weaker_bound(engine: str, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cores, told = (Cores, "nothing fits") if engine == "smt" else (CpSatCores, "the dearest is the cheapest")
    monkeypatch.setattr(cores, "ask", lambda self, *_: CASES[lie](self.problem))
    monkeypatch.setattr(deciding, "reply_of", lambda _, problem, *__: ANSWERS[told](problem))
    open_ = 0
    for problem, optimum in _some(rows=True):
        answer = alone(problem, engine)
        true(problem, answer, optimum)
        open_ += answer.status in (Status.FEASIBLE, Status.UNKNOWN)
    assert open_ or lie == "a core of everything"


@pytest.mark.parametrize("engine", ENGINES)
def test_without_time_the_bound_is_trivial_and_said_to_be(engine: str) -> None:
    problem = frustrated(0)
    answer = alone(problem, engine, time_limit_s=0.0)
    true(problem, answer, solve(problem).cost)
    assert answer.status in (Status.FEASIBLE, Status.UNKNOWN)
    assert answer.alone is not None and answer.alone.proof == TRIVIAL


def test_what_is_given_up_is_the_engines_answer_with_a_trivial_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> None:
        raise Overdue("the time is over by far")

    monkeypatch.setattr(Relaxation, "solve", late)
    problem = frustrated(0)
    answer = alone(problem, "ilp")
    true(problem, answer, solve(problem).cost)
    assert answer.status is Status.FEASIBLE and answer.alone is not None
    assert answer.alone.cost == answer.cost and answer.alone.proof == TRIVIAL


def test_a_gap_ends_the_proof_early() -> None:
    problem = rows_some_bind(3)
    exact, near = alone(problem, "ilp"), alone(problem, "ilp", gap=Fraction(1, 10))
    assert exact.alone is not None and near.alone is not None and near.alone.reasons < exact.alone.reasons
    true(problem, near, exact.cost)
    assert near.gap() <= Fraction(1, 10)


def test_what_is_not_for_an_engine_alone_is_refused() -> None:
    problem = graphs_of_all_kinds(7, largest=4)
    with pytest.raises(ValueError, match="choose the engine ilp, smt or cp-sat"):
        solve(problem, alone=True)
    with pytest.raises(ValueError, match="leave out known, brought and limits"):
        alone(problem, "ilp", known=[tuple(0 for _ in problem.vertices)])


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_too_large_for_an_engine_alone_is_refused(engine: str) -> None:
    few = Options(engines=EngineOptions(ilp_parts=3, smt_parts=3, cp_sat_parts=3))
    with pytest.raises(EngineRefused, match=r"at most 3 can be asked about alone; leave out --alone"):
        alone(frustrated(0), engine, options=few)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_command_line_names_engine_question_answer_and_proof(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, kept = str(PROBLEMS / "limited.json"), str(tmp_path / "c.spz")
    assert run(["solve", file, "--engine", engine, "--alone", "--json", "-o", kept]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "optimal" and told["cost"] == told["lower_bound"] == 18 and told["scale"] == 1
    assert told["engine"]["name"] == engine and told["engine"]["alone"] is True
    assert told["engine"]["asked"] == {
        "vertices": 3,
        "choices": 7,
        "parts": 19 if engine == "cp-sat" else 18,
        "rows": 3,
    }
    assert told["engine"]["answered"]["cost"] == 18
    assert told["engine"]["proof"] == REASONS[engine]
    assert run(["check", kept, file]) == 0
    assert run(["solve", str(PROBLEMS / "tight.json"), "--engine", engine, "--alone", "--json"]) == 20
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["engine"]
    assert told["name"] == engine and told["reasons"] == 0  # a row alone is too full: nobody is asked
    assert run(["solve", file, "--engine", engine, "--alone"]) == 0
    assert "decided alone" in capsys.readouterr().out


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_input_gives_equal_bytes(engine: str, tmp_path: Path) -> None:
    files = [tmp_path / "a.spz", tmp_path / "b.spz"]
    for file in files:
        assert run(["solve", str(PROBLEMS / "zoo.json"), "--engine", engine, "--alone", "-o", str(file)]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_options_that_mean_nothing_alone_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(PROBLEMS / "chain.json")
    assert run(["solve", file, "--alone"]) == 2
    assert "--alone needs --engine" in capsys.readouterr().err
    assert run(["solve", file, "--alone", "--engine", "smt", "--threads", "2"]) == 2
    assert "--alone and --threads do not go together: z3 decides with one thread" in capsys.readouterr().err
    assert run(["solve", file, "--alone", "--engine", "cp-sat", "--threads", "1"]) == 2
    assert "--alone and --threads do not go together: CP-SAT decides" in capsys.readouterr().err
    assert run(["solve", str(PROBLEMS / "egraph.json"), "--alone", "--engine", "ilp"]) == 3
    assert "do not go together" in capsys.readouterr().err


@pytest.mark.parametrize("alone", [(), ("--alone",)])
def test_an_engine_that_is_not_installed_is_refused_by_name(
    alone: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(consult, "find_spec", lambda name: None)
    assert run(["solve", str(PROBLEMS / "chain.json"), "--engine", "cp-sat", *alone]) == 3
    assert "needs the package ortools, which is not installed: pip install 'shardproof[solvers]'" in (
        capsys.readouterr().err
    )
