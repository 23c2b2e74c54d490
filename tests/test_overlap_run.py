"""Overlapped plans executed: virtual and MPI ranks, two streams each, against one process, prices and the plan's order."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from benchmarks.rank_correlation import in_turn, orders
from budgets import work

from shardproof.__main__ import run
from shardproof.backends.execution.interpreter import RankError
from shardproof.backends.execution.launch import mpi_available
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.streams import elapsed_seconds, run_streams_virtual
from shardproof.backends.execution.streams_rank import run_streams_job
from shardproof.backends.lowering.streams import COMPUTE, LINKS, StreamsProgram, in_order, streams_program
from shardproof.backends.trace import Span
from shardproof.formal.plans.overlap.search import search_overlap
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.schedules.problem import ScheduleProblem
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError
from shardproof.proofs.overlap.certificate import OverlapCertificate
from shardproof.proofs.overlap.file import write_overlap


@cache
def plan() -> tuple[OverlapCertificate, int]:
    """A training step with softmax, norms and embeddings on four devices of this computer, and units per second."""
    step = build_step(build("bert-tiny", batch=16, layers=1), "adam")
    planning = build_problem(step.graph, load_machine("localhost:4"), space("complete"), None)
    found = search_overlap(planning, work(20.0), Fraction(1, 5))
    assert found is not None
    return found.certificate(), planning.problem.scale


def problem() -> ScheduleProblem:
    subject = plan()[0].schedule.subject
    assert isinstance(subject, ScheduleProblem)
    return subject


def ran(spans: tuple[Span, ...], rank: int, kind: str) -> list[str]:
    return [s.name for s in sorted(spans, key=lambda s: s.start_s) if s.rank == rank and s.kind == kind]


def names(program: StreamsProgram, stream: int) -> list[str]:
    return [program.tasks[k].name for k in program.order[stream]]


def test_virtual_ranks_do_what_one_process_does_in_the_planned_order() -> None:
    c, scale = plan()
    program = streams_program(c, scale)
    assert len(program.order[LINKS]) > 10 and len(program.order[COMPUTE]) == len(c.graph.operators)
    starts = c.schedule.starts
    for stream in (COMPUTE, LINKS):
        order = program.order[stream]
        assert all(starts[a] <= starts[b] for a, b in itertools.pairwise(order))
    inputs = random_inputs(c.graph, 3)
    found, expected = run_streams_virtual(program, inputs), run_graph(c.graph, inputs)
    assert set(found.outputs) == set(expected) and len(expected) > 10  # the loss, weights, both moments
    for name, value in expected.items():
        np.testing.assert_allclose(found.outputs[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    assert len(found.traffic) > 100 and all(t.fits for t in found.traffic)
    for rank in range(4):
        assert ran(found.spans, rank, "compute") == names(program, COMPUTE)
        assert ran(found.spans, rank, "communication") == names(program, LINKS)


def test_every_instruction_runs_once_and_nothing_is_kept_that_nobody_reads() -> None:
    c, scale = plan()
    program = streams_program(c, scale)
    positions = [*program.first, *(p for t in program.tasks for p in t.positions)]
    assert len(positions) == len(set(positions))
    assert {type(i).__name__ for p, i in enumerate(program.program.ranks[0]) if p not in positions} == {"Free"}
    freed = {i.slot for i in program.program.ranks[0] if type(i).__name__ == "Free"}
    assert freed <= {*program.readers} | {t for t, _ in program.program.outputs}


def test_any_order_gives_the_same_numbers() -> None:
    c, scale = plan()
    inputs = random_inputs(c.graph, 4)
    expected = run_graph(c.graph, inputs)
    for starts in orders(problem(), c.schedule.starts, 3, 7)[1:]:
        program = in_order(streams_program(c, scale), tuple(starts.tolist()))
        assert program.order != streams_program(c, scale).order
        found = run_streams_virtual(program, inputs)
        assert all(np.allclose(found.outputs[n], v, rtol=1e-10, atol=1e-12) for n, v in expected.items())


def test_a_pace_makes_the_measured_step_as_long_as_the_planned_one() -> None:
    """No task is shorter than its planned time, whatever the computer does; nor is the step."""
    c, scale = plan()
    program = streams_program(c, scale)
    inputs = random_inputs(c.graph, 5)
    pace = 1.5 / program.makespan
    seconds = elapsed_seconds(run_streams_virtual(program, inputs, pace).spans)
    assert seconds >= 1.5


def test_an_order_against_the_precedences_is_refused() -> None:
    c, scale = plan()
    program = streams_program(c, scale)
    late = next(k for k, t in enumerate(program.tasks) if t.waits)
    first = program.tasks[late].waits[0]
    circle = replace(program.tasks[first], waits=(late,))
    tasks = tuple(circle if k == first else t for k, t in enumerate(program.tasks))
    with pytest.raises(InputError, match="in a circle"):
        in_order(replace(program, tasks=tasks), tuple(t.start for t in tasks))


def test_a_redistribution_that_is_left_out_stops_the_run_and_names_who_misses_it() -> None:
    c, scale = plan()
    program = streams_program(c, scale)
    gone = program.order[LINKS][0]
    tasks = tuple(replace(t, positions=()) if k == gone else t for k, t in enumerate(program.tasks))
    with pytest.raises(RankError, match=r"rank [0-3], .*KeyError"):
        run_streams_virtual(replace(program, tasks=tasks), random_inputs(c.graph, 6), 0.0, 20.0)


def test_a_schedule_of_other_movements_is_refused() -> None:
    c, scale = plan()
    subject = problem()
    k = next(k for k, t in enumerate(subject.tasks) if t.streams == (LINKS,))
    tasks = (*subject.tasks[:k], replace(subject.tasks[k], name="nothing to nobody"), *subject.tasks[k + 1 :])
    wrong = replace(c, schedule=replace(c.schedule, subject=replace(subject, tasks=tasks)))
    with pytest.raises(InputError, match="moves what the plan does not move"):
        streams_program(wrong, scale)


def test_orders_of_the_benchmark_obey_the_problem() -> None:
    c, _ = plan()
    subject = problem()
    times = np.array([t.time for t in subject.tasks])
    found = orders(subject, c.schedule.starts, 20, 0)
    lengths = [int((s + times).max()) for s in found]
    assert lengths == sorted(set(lengths)) and lengths[-1] > 1.1 * lengths[0]
    for starts in (*found, in_turn(subject, -c.schedule.starts.astype(float))):
        assert all(starts[p.after] >= starts[p.before] + times[p.before] for p in subject.precedences)
        for stream in (COMPUTE, LINKS):
            row = sorted(k for k, t in enumerate(subject.tasks) if t.streams == (stream,) and t.time)
            row.sort(key=lambda k: starts[k])
            assert all(starts[a] + times[a] <= starts[b] for a, b in itertools.pairwise(row))


@pytest.mark.mpi
@pytest.mark.skipif(not mpi_available(), reason="mpi4py or mpiexec is not installed")
def test_mpi_ranks_do_what_one_process_does() -> None:
    c, scale = plan()
    inputs = random_inputs(c.graph, 3)
    outputs, spans, transport = run_streams_job(c, scale, inputs)
    for name, value in run_graph(c.graph, inputs).items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    program = streams_program(c, scale)
    assert "mpi" in transport and {s.rank for s in spans} == {0, 1, 2, 3}
    for rank in range(4):
        assert ran(spans, rank, "communication") == names(program, LINKS)


def test_the_command_line_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    c, _ = plan()
    write_overlap(tmp_path / "o.spz", c)
    line = ["run", "o.spz", "-n", "4", "--virtual"]
    assert run([*line, "--json", "--trace", "t.json", "-o", "o.npz", "--pace", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] and found["bytes_counted_equal_priced"] and found["redistributions"] > 10
    assert found["step_seconds"]["measured"] > 5 * found["step_seconds"]["planned"] > 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    lines = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert lines[:2] == ["rank 0: operators", "rank 0: reshardings"] and lines[-1] == "reshardings as planned"
    assert sum(str(e["name"]).startswith("planned ") for e in events) == len(problem().tasks)
    assert run(["run", "o.spz", "-n", "2", "--virtual"]) == 3
    assert "for 4 devices" in capsys.readouterr().err
