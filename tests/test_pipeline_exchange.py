"""What stages send each other once a step: tied embeddings, clipping by the norm of all gradients, scaled losses.

Counted by builder and checker alike to the picosecond and the byte, executed equal to one process, and refused where a
condition of the checker does not hold.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from budgets import work

from shardproof.__main__ import run
from shardproof.backends.execution.launch import mpi_available
from shardproof.backends.execution.pipeline import run_pipeline
from shardproof.backends.execution.pipeline_rank import run_pipeline_job
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.lowering.stages import staged_program
from shardproof.formal.plans.pipelines.bounded import NO_STEP
from shardproof.formal.plans.pipelines.case import Case, orders
from shardproof.formal.plans.pipelines.exchange_costs import exchange_costs, last_ends
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.outcome import SearchOutcome
from shardproof.formal.plans.pipelines.scheduled import schedule_stages
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.pipelines.exchange import exchange
from shardproof.models.pipelines.micro import micro_batch
from shardproof.models.pipelines.views import send_across
from shardproof.models.problem.claims import Verdict
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import TrainingStep, build_step
from shardproof.models.sources.zoo import build
from shardproof.models.sources.zoo.gpt import gpt
from shardproof.proofs.pipelines.certificate import Overlap, PipelineCertificate
from shardproof.verify.budget import CELLS
from shardproof.verify.pipelines.bound import differ, send_over
from shardproof.verify.pipelines.certificate import check_pipeline

JOBS = {
    "tied": ("sgd", "", 2, 4, 1, False),
    "tied, four stages in two nodes": ("sgd", "", 4, 2, 1, False),
    "clipped": ("adam:clip=1", "", 2, 4, 1, False),
    "scaled": ("sgd", "fp16-mixed", 2, 4, 1, False),
    "scaled and clipped": ("adam:clip=1", "fp16-mixed", 2, 2, 1, False),
    "two chunks": ("adam:clip=1", "", 2, 4, 2, False),
    "overlapped": ("adam:clip=1", "", 2, 4, 1, True),
}

DEAR = ("two chunks",)
"""What is searched for, as several chunks are no case by themselves."""


def step_of(optimizer: str, precision: str = "", tables: int = 1) -> TrainingStep:
    graph = gpt(batch=8, depth=1, sequence=4, width=8, heads=2, vocabulary=16, tables=tables)
    return build_step(graph, optimizer, precision=precision or None)


@cache
def found(job: str, memory: int | None = None) -> SearchOutcome:
    optimizer, precision, stages, micro, chunks, overlap = JOBS[job]
    step, machine = step_of(optimizer, precision), load_machine("cloud-a100:2x2")
    asked = Job(step.graph, divide(step.graph, step.passes), machine, space("complete"), memory, (), overlap)
    if chunks > 1:
        return search_pairs(asked, [], work(1.0), Fraction(1, 2), None, [(stages, micro, chunks)])
    case = Case(asked, stages, micro)
    case.update_bound(NO_STEP)  # by least work: what is planned is of interest here, not how good it is
    case.coarse = case.bound
    starts = tuple(s * asked.division.units // stages for s in range(stages))
    ways = (case.plan(starts, work(5.0), order) for order in orders(case))
    placed = next(found for found in ways if found is not None)
    return SearchOutcome(asked, schedule_stages(case, placed, 0.0, work(1.0)), [case], case.bound)


def reasons(c: PipelineCertificate) -> str:
    return " ".join(r.reason for r in check_pipeline(c, "seed", 50, CELLS) if r.verdict is not Verdict.PROVED)


@pytest.mark.parametrize("job", [pytest.param(x, marks=[pytest.mark.slow] if x in DEAR else []) for x in JOBS])
def test_what_is_planned_is_proved_and_equal_to_one_process(job: str) -> None:
    c = found(job).certificate()
    assert reasons(c) == ""
    assert exchange(c.graph, c.division, tuple(s.end for s in c.stages)).messages
    inputs = random_inputs(c.graph, 5)
    if "loss_scale" in inputs:
        inputs |= {"loss_scale": np.float64(1024.0), "loss_scale.steps": np.float64(0.0)}
    ran, expected = run_pipeline(staged_program(c), inputs, trace=True), run_graph(c.graph, inputs)
    assert set(ran.outputs) == set(expected)
    near = 1e-3 if JOBS[job][1] else 1e-9  # sums of micro-batches are rounded to 16 bits, each and together
    for name, value in expected.items():
        np.testing.assert_allclose(ran.outputs[name], value, rtol=near, atol=near / 100, err_msg=name)
    assert ran.traffic and all(t.fits for t in ran.traffic)
    assert all(sent == priced for _, sent, priced in ran.sent)


@pytest.mark.mpi
def test_mpi_ranks_send_once_a_step_what_virtual_ranks_do() -> None:
    if not mpi_available():
        pytest.skip("no mpiexec")
    c = found("clipped").certificate()
    inputs = random_inputs(c.graph, 5)
    ran, _, _ = run_pipeline_job(c, inputs, False, False)
    for name, value in run_graph(c.graph, inputs).items():
        np.testing.assert_allclose(ran[name], value, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize(
    "job", ["tied", *(pytest.param(x, marks=pytest.mark.slow) for x in ("two chunks", "overlapped"))]
)
def test_steps_are_counted_to_the_picosecond_and_memory_to_the_byte(job: str) -> None:
    """The claim that is one less is refuted, and so is the limit that is one byte below what the plan holds."""
    best = found(job).best
    assert best is not None
    need = max(best.memory)
    roomy = found(job, 2 * need)
    assert roomy.best is not None
    c, held = roomy.certificate(), max(roomy.best.memory)
    assert reasons(c) == ""
    assert "the claim says" in reasons(replace(c, step=c.step - 1))
    assert reasons(replace(c, memory=held)) == ""
    assert "the limit is" in reasons(replace(c, memory=held - 1))


def test_messages_are_waited_for() -> None:
    """Rounds of two views by hand: the embedding's gradient comes, its update, the table goes back."""
    made = found("tied").best
    assert made is not None
    once = exchange_costs(made.case, made.stages)
    assert once.exchange.rounds == 3
    assert [(x.sender, x.receiver, x.depth) for x, _ in once.blocks] == [(1, 0, 0), (0, 1, 1)]
    gradient, table = (
        -(-(10**12) * send_across(made.case.job.machine, 2, size * 2, 0, 1) // 1) for _, size in once.blocks
    )
    (first, tied, none), (other, *rest) = once.updates
    assert tied > 0 and none == 0 and not any(rest)
    for early, late in ((0, 10**9), (10**9, 0)):
        updated = max(early + first, late + other + gradient) + tied
        assert last_ends(made.case, once, [early, late], 2) == [updated, max(late + other, updated + table)]


def test_parts_of_the_machine_are_as_far_apart_for_both() -> None:
    machine = load_machine("cloud-a100:4x8")
    for views in (2, 4, 8, 16):
        for one in range(views):
            for other in range(views):
                if one != other:
                    level = differ(machine, views, one, other)
                    expected = send_over(machine, views, 9 * 10**6, level)
                    assert send_across(machine, views, 9 * 10**6, one, other) == expected


def moved_unit(graph: Graph, units: tuple[int, ...], name: str, to: int) -> tuple[int, ...]:
    return tuple(to if op.name == name else u for op, u in zip(graph.operators, units, strict=True))


def test_updates_are_where_what_they_are_about_is() -> None:
    """A file that lets another stage update would enumerate other plans than it says."""
    c = found("clipped").certificate()
    last = c.division.units - 1
    for name in ("embedding.table.next", "norm:all", "norm:factor", "clipped:embedding.table"):
        assert name in {op.name for op in c.graph.operators}
        wrong = replace(c, division=replace(c.division, unit=moved_unit(c.graph, c.division.unit, name, last)))
        assert f"operator '{name}' of unit {last} updates what unit 0 has" in reasons(wrong)


def test_layouts_are_equal_where_a_tensor_goes() -> None:
    """The table lies on the last stage as on the first, or a send would be a resharding that nobody counts."""
    c = found("tied").certificate()
    first, second = c.stages
    theirs = dict(second.choices.copies)["embedding.table"]
    planning = found("tied").cases[0].pieces.planning
    v = planning.copies["embedding.table"]
    others = [planning.decisions[v].placement(k) for k in range(len(planning.decisions[v].placements))]
    tried = 0
    for other in others:
        if other != theirs:
            copies = tuple((t, other if t == "embedding.table" else p) for t, p in second.choices.copies)
            wrong = replace(second, choices=replace(second.choices, copies=copies))
            tried += "has another layout on stage 0 than on stage 1" in reasons(replace(c, stages=(first, wrong)))
    assert tried == len(others) - 1 > 0


def test_updates_that_wait_have_no_order() -> None:
    c = found("overlapped").certificate()
    assert c.overlap is not None
    once = exchange(c.graph, c.division, tuple(s.end for s in c.stages))
    assert all(c.overlap.of(s, "U") == () for s in range(2))
    many = sum(1 for i, p in enumerate(c.division.phase) if p == "U" and i in once.depth)
    orders = (*c.overlap.orders, tuple(range(many)))
    rows = tuple((f, b, len(orders) - 1) for f, b, _ in c.overlap.stages)
    assert "have no order of their own" in reasons(replace(c, overlap=Overlap(orders, rows)))


def test_a_weight_of_several_stages_reaches_no_file_that_would_not_add_its_gradients(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(str(tmp_path))
    sizes = "gpt-3-175b:batch=4,depth=2,width=16,heads=2,sequence=8,vocabulary=32"
    ask = ["--train", "sgd", "--machine", "cloud-a100:2x1", "--pipeline", "2:2", "--work-limit", "100k", "-o", "p.spz"]
    assert run(["plan", sizes, *ask]) in (0, 5)
    assert run(["check", "p.spz", "--model", sizes, "--train", "sgd"]) == 0
    assert run(["run", "p.spz", "-n", "2", "--virtual"]) == 0
    capsys.readouterr()
    assert run(["export", "p.spz", "--to", "dtensor", "--layouts-only", "-o", "p.py"]) != 0
    assert "'embedding.table' is a parameter of several stages" in capsys.readouterr().err
    assert run(["export", "p.spz", "--to", "actions", "-o", "p.csv"]) == 0
    assert "shared weights (embedding.table of several stages" in capsys.readouterr().out


def read_ahead() -> TrainingStep:
    """The update of the second weight reads the next value of the first, which lies in the stage before."""
    g = Builder("ahead")
    x, small = g.input("x", (8, 6)), g.parameter("small", (6,))
    wide = g.parameter("wide", (6, 6))
    g.map("a", "multiply", x, small, text="b d, d -> b d")
    g.contract("z", "b d, d e -> b e", "a", wide)
    g.map("top", "negate", "z")
    g.map("grad", "negate", "top")
    g.contract("back", "b e, d e -> b d", "grad", wide)
    g.contract("grad.wide", "b d, b e -> d e", "a", "grad")
    g.contract("grad.small", "b d, b d -> d", "back", x)
    g.map("small.next", "sgd_update", small, "grad.small")
    g.map("scaled", "multiply", "grad.wide", "small.next", text="d e, d -> d e")
    g.map("wide.next", "sgd_update", wide, "scaled")
    graph = replace(g.build("back"), state=(("small", "small.next"), ("wide", "wide.next"))).check()
    phases = ("F", 0), ("F", 1), ("F", 2), ("B", 2), ("B", 1), ("B", 1), ("B", 0), ("U", -1), ("U", -1), ("U", -1)
    return TrainingStep(graph, "", (), (), (), phases)


def test_a_next_value_that_another_stage_reads_lies_as_its_parameter_does() -> None:
    """Its copy is the parameter's: the other stage has it too, in one layout, and pays for what it reads of it."""
    step = read_ahead()
    cut = divide(step.graph, step.passes)
    assert cut.units == 2
    (sent,) = exchange(step.graph, cut, (1, 2)).messages
    assert (sent.tensor, sent.sender, sent.receiver, sent.reader) == ("small.next", 0, 1, None)
    job = Job(step.graph, cut, load_machine("cloud-a100:2x2"), space("complete"), None)
    c = search_pairs(job, [(2, 2)], work(1.0), Fraction(1, 2)).certificate()
    assert reasons(c) == "" and all("small" in dict(stage.choices.copies) for stage in c.stages)
    first, second = c.stages
    placement = dict(second.choices.copies)["small"]
    planning = build_problem(micro_batch(step.graph, 2), load_machine("cloud-a100:1x2"), space("complete"), None)
    decision = planning.decisions[planning.copies["small"]]
    others = [decision.placement(k) for k in range(len(decision.placements))]
    for other in (p for p in others if p != placement):
        copies = tuple((t, other if t == "small" else p) for t, p in second.choices.copies)
        wrong = replace(second, choices=replace(second.choices, copies=copies))
        assert "'small.next' has another layout" in reasons(replace(c, stages=(first, wrong)))
    inputs = random_inputs(c.graph, 5)
    ran, expected = run_pipeline(staged_program(c), inputs), run_graph(c.graph, inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(ran.outputs[name], value, rtol=1e-9, atol=1e-11, err_msg=name)


def test_other_models_are_cut_as_before() -> None:
    """No letter where no weight is shared and nothing is clipped."""
    for step in (step_of("adam", tables=2), build_step(build("bert-tiny"), "adam")):
        cut = divide(step.graph, step.passes)
        assert cut.units > 4
        once = exchange(step.graph, cut, tuple(range(1, cut.units + 1)))
        assert once.messages == () and once.rounds == 1
