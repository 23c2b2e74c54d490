"""`audit --joint`: a pair of program and strategy against all equal programs."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from shardproof.__main__ import run
from shardproof.formal.explain.audit import Outcome
from shardproof.formal.plans.strategy import Strategy
from shardproof.formal.rewriting.joint.audit import audit_jointly, not_derived
from shardproof.formal.rewriting.joint.job import JointJob
from shardproof.formal.rewriting.joint.saturate import saturate
from shardproof.formal.rewriting.joint.solve import plan_jointly
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from tests.joint_cases import CASES

MACHINE, WHERE = "cloud-a100:2x2", space("complete")
FREE = Strategy((), "anything")


def best_program(graph: Graph) -> tuple[Graph, Fraction]:
    found = plan_jointly(graph, load_machine(MACHINE), WHERE, clock=Clock())
    assert found.answer.solution is not None and found.answer.cost is not None
    return found.planning.plan(found.answer.solution)[0], Fraction(found.answer.cost, found.planning.problem.scale)


def test_pairs() -> None:
    graph, machine = CASES["two layers"](), load_machine(MACHINE)
    program, cost = best_program(graph)
    assert program.operators != graph.operators
    good = audit_jointly(program, FREE, JointJob(graph, machine, WHERE, clock=Clock()))
    assert (good.outcome, good.unequal, good.costs[0]) == (Outcome.OPTIMAL, "", cost)
    plain = audit_jointly(graph, FREE, JointJob(graph, machine, WHERE, clock=Clock()))
    assert plain.outcome is Outcome.REFUTED and plain.unequal == ""
    assert plain.costs[0] is not None and plain.costs[0] > cost == plain.costs[1]
    loose = audit_jointly(graph, FREE, JointJob(graph, machine, WHERE, clock=Clock(), gap=Fraction(9, 10)))
    assert loose.outcome is Outcome.WITHIN_GAP


def test_a_program_that_is_not_derived_is_not_optimal() -> None:
    graph, machine = CASES["two layers"](), load_machine(MACHINE)
    program, _ = best_program(graph)
    egraph, _ = saturate(graph)
    renamed = replace(program, operators=tuple(replace(o, name=f"my {o.name}") for o in program.operators))
    assert not_derived(egraph, renamed) == ""
    other = replace(
        program,
        operators=tuple(
            replace(o, attributes=tuple((k, ("tanh",) if k == "epilogue" else v) for k, v in o.attributes))
            for o in program.operators
        ),
    )
    report = audit_jointly(other, FREE, JointJob(graph, machine, WHERE, clock=Clock()))
    assert "no rule gives its operator" in report.unequal and report.outcome is Outcome.UNDECIDED
    assert "outputs" in not_derived(egraph, replace(program, outputs=()))
    assert not_derived(egraph, replace(program, tensors=tuple(replace(t, dtype="float64") for t in program.tensors)))
    assert "absent" in not_derived(egraph, replace(program, operators=program.operators[1:]))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graph = CASES["one layer"]()
    program, _ = best_program(graph)
    Path("model.json").write_text(graph.to_json())
    Path("other.json").write_text(program.to_json())
    Path("s.json").write_text("{}")
    audit = ["audit", "model.json", "--strategy", "s.json", "--machine", MACHINE]
    assert run([*audit, "--joint", "--rewritten", "other.json", "-o", "best.spz"]) == 0
    assert "optimal (proved)" in capsys.readouterr().out and run(["check", "best.spz"]) == 0
    capsys.readouterr()
    assert run([*audit, "--joint"]) == 10
    out = capsys.readouterr().out
    assert "refuted" in out and "fuse-epilogue" in out
    assert run([*audit, "--joint", "--rewritten", "other.json", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["outcome"] == "optimal" and said["derived"] and said["strategy_cost"] == said["best_cost"]
    assert run([*audit, "--rewritten", "other.json"]) == 2
    assert run([*audit, "--joint", "--space", "complete,dtensor"]) == 2
