"""Pipelined steps executed: virtual and MPI ranks in the planned order against one process, and bytes against prices."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from budgets import work

from shardproof.__main__ import run
from shardproof.backends.execution.interpreter import RankError
from shardproof.backends.execution.launch import mpi_available
from shardproof.backends.execution.pipeline import run_pipeline
from shardproof.backends.execution.pipeline_rank import run_pipeline_job
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.lowering.stages import staged_program
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.proofs.pipelines.certificate import PipelineCertificate

MACHINES = {
    "2x2": ("cloud-a100:2x2", 2, 4, 1),
    "4x1": ("cloud-a100:4x1", 4, 2, 1),
    "2x2 interleaved": ("cloud-a100:2x2", 2, 4, 2),
    "2x1 in four chunks": ("cloud-a100:2x1", 2, 4, 4),
}


@cache
def plan_of(machine: str, optimizer: str = "adam") -> PipelineCertificate:
    text, stages, micro, chunks = MACHINES[machine]
    step = build_step(build("mlp-8192", batch=8, width=16, layers=5 if chunks < 4 else 9), optimizer)
    job = Job(step.graph, divide(step.graph, step.passes), load_machine(text), space("complete"), None)
    if chunks > 1:
        return search_pairs(job, [], work(30.0), Fraction(1, 2), None, [(stages, micro, chunks)]).certificate()
    return search_pairs(job, [(stages, micro)], work(30.0), Fraction(1, 2)).certificate()


@pytest.mark.parametrize("machine", MACHINES)
def test_virtual_ranks_do_what_one_process_does(machine: str) -> None:
    c = plan_of(machine)
    inputs = random_inputs(c.graph, 3)
    found, expected = run_pipeline(staged_program(c), inputs, trace=True), run_graph(c.graph, inputs)
    assert set(found.outputs) == set(expected) and len(expected) > 10  # the loss, weights, both moments
    for name, value in expected.items():
        np.testing.assert_allclose(found.outputs[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    assert found.traffic and all(t.fits for t in found.traffic)
    assert len(found.sent) == 2 * (len(c.stages) - 1)
    assert all(sent == priced == c.graph.tensor(t).elements for t, sent, priced in found.sent)
    assert c.views * c.chunks == len(c.stages)
    for view in range(c.views):  # in the planned order
        rank = view * c.machine.devices // c.views
        ran = [x.name for x in found.spans if x.rank == rank and " of stage " in x.name and x.name[0] in "FB"]
        assert ran == [f"{phase}{i} of stage {s}" for s, phase, i in staged_program(c).order[view]]


def test_any_order_of_micro_batches_gives_the_same() -> None:
    """Micro-batches renamed stage by stage: letters find their readers."""
    c = plan_of("2x2")
    program = staged_program(c)
    names = [1, 0, 3, 2]
    other = replace(program, order=(program.order[0], tuple((s, p, names[i]) for s, p, i in program.order[1])))
    if c.schedule.makespan:  # stage 1 waits for what comes late; nothing else changes
        inputs = random_inputs(c.graph, 4)
        expected = run_graph(c.graph, inputs)
        order0 = tuple((0, "F", i) for i in range(4)) + tuple((0, "B", i) for i in range(4))
        found = run_pipeline(replace(other, order=(order0, other.order[1])), inputs, 20.0)
        assert all(np.allclose(found.outputs[n], v, rtol=1e-10, atol=1e-12) for n, v in expected.items())


def test_a_micro_batch_that_is_left_out_is_seen() -> None:
    c = plan_of("4x1", "sgd")
    program = staged_program(c)
    inputs = random_inputs(c.graph, 5)
    last = replace(program.stages[-1], summed=())  # gradients of the last stage are not added up
    with pytest.raises(RankError):
        run_pipeline(replace(program, stages=(*program.stages[:-1], last)), inputs, 5.0)
    expected = run_graph(c.graph, inputs)
    half = {n: (v / 2 if n == "x" else v) for n, v in inputs.items()}
    found = run_pipeline(program, half, 20.0)
    assert not all(np.allclose(found.outputs[n], v) for n, v in expected.items())


def test_a_rank_that_fails_is_named_and_nobody_waits() -> None:
    c = plan_of("2x2")
    program = staged_program(c)
    orders = (program.order[0], program.order[1][:-1])  # the last gradient never comes
    with pytest.raises(RankError, match=r"rank [01], receiving .* of micro-batch"):
        run_pipeline(replace(program, order=orders), random_inputs(c.graph, 6), 2.0)


def test_element_types_of_the_graph_are_kept() -> None:
    step = build_step(build("mlp-8192", batch=8, width=16, layers=4, dtype="bfloat16"), "sgd")
    job = Job(step.graph, divide(step.graph, step.passes), load_machine("cloud-a100:2x1"), space("complete"), None)
    c = search_pairs(job, [(2, 2)], work(30.0), Fraction(1, 2)).certificate()
    inputs = random_inputs(c.graph, 3, None)
    found, expected = run_pipeline(staged_program(c, True), inputs), run_graph(c.graph, inputs, stored=True)
    for name, value in expected.items():
        np.testing.assert_allclose(found.outputs[name], value, rtol=0.05, atol=0.02, err_msg=name)


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
@pytest.mark.parametrize("machine", ["2x2", "2x2 interleaved"])
def test_mpi_ranks_do_what_one_process_does(machine: str) -> None:
    c = plan_of(machine)
    inputs = random_inputs(c.graph, 3)
    outputs, spans, transport = run_pipeline_job(c, inputs, False, True, 60.0)
    expected = run_graph(c.graph, inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    assert "mpi" in transport and {s.rank for s in spans} == {0, 1, 2, 3}


def test_the_command_line_runs_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shardproof.proofs.pipelines.file import write_pipeline

    monkeypatch.chdir(tmp_path)
    write_pipeline(tmp_path / "p.spz", plan_of("2x2 interleaved"))
    assert run(["run", "p.spz", "-n", "4", "--virtual", "--json", "--trace", "t.json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] and found["bytes_counted_equal_priced"] and (found["stages"], found["chunks"]) == (2, 2)
    names = {e["name"] for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"]}
    assert {"planned F0 of stage 3", "F0 of stage 3"} <= names
    assert run(["explain", "p.spz", "--svg", "p.svg"]) == 0
    assert "2 stages of 2 chunks" in capsys.readouterr().out and (tmp_path / "p.svg").read_text().startswith("<svg")


def test_the_command_line_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shardproof.proofs.pipelines.file import write_pipeline

    monkeypatch.chdir(tmp_path)
    write_pipeline(tmp_path / "p.spz", plan_of("2x2"))
    line = ["run", "p.spz", "-n", "4", "--virtual"]
    assert run([*line, "--json", "--trace", "t.json", "-o", "o.npz"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] and found["bytes_counted_equal_priced"] and found["micro_batches"] == 4
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {e["name"] for e in events}
    assert {"planned F0 of stage 0", "F0 of stage 0"} <= names
    assert run(line) == 0
    assert "2 of 2 tensors sent between them" in capsys.readouterr().out
    assert run(["run", "p.spz", "-n", "2", "--virtual"]) == 3
    assert "for 4 devices" in capsys.readouterr().err
    assert run([*line, "--backend", "cupy"]) == 3
    assert "on processors and without kernels of your own" in capsys.readouterr().err
    wrong = replace(plan_of("2x2"), step=1)
    write_pipeline(tmp_path / "q.spz", wrong)
    assert run(["run", "q.spz", "-n", "4", "--virtual"]) == 10
