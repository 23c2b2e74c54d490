"""Limits of work: the same answer whatever the clocks of a machine say, and every verb that takes seconds takes steps."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import click
import numpy as np
import pytest
from budgets import limited
from egraph_cases import random_egraph
from random_problems import chain, grid_of_tables, grid_with_rows, repeated_blocks

from shardproof.__main__ import cli, run
from shardproof.formal.plans import first, tables
from shardproof.formal.plans.overlap.search import Overlapped, search_overlap
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.formal.plans.plan import plan_graph
from shardproof.formal.plans.submeshes.search import plan_submeshes, whole_machine
from shardproof.formal.rewriting.egraphs.solve import extract
from shardproof.formal.rewriting.joint.solve import plan_jointly
from shardproof.formal.rewriting.prove import judge
from shardproof.formal.schedules.search import search
from shardproof.formal.schedules.shop import shop
from shardproof.formal.selection.answer import Answer
from shardproof.formal.selection.model.clock import LOOK, STEPS, Clock
from shardproof.formal.selection.options import Limits
from shardproof.formal.selection.relax_resources import relax_resources
from shardproof.formal.selection.solve import solve
from shardproof.formal.verbs.search_options import start_limit
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.program.graph import Graph
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.rules.parallel import parallel_rules
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.egraphs.file import write_extraction
from shardproof.proofs.overlap.file import write_overlap
from shardproof.proofs.pipelines.file import write_pipeline
from shardproof.proofs.plan.bundle import write_plan
from shardproof.proofs.views.file import write_submesh_plan


class Ticks:
    """The clock of a machine on which every look takes so many seconds; unsteady: more or less of them."""

    def __init__(self, seconds: float, unsteady: bool = False) -> None:
        self.now, self.seconds = 0.0, seconds
        self.random = np.random.default_rng(0) if unsteady else None

    def __call__(self) -> float:
        self.now += self.seconds * (1.0 if self.random is None else float(self.random.exponential()))
        return self.now


MACHINES = {"fast": lambda: Ticks(0.0), "slow": lambda: Ticks(30.0), "unsteady": lambda: Ticks(0.5, unsteady=True)}


def said(answer: Answer) -> bytes:
    return pickle.dumps((answer.status, answer.cost, answer.lower_bound, answer.solution, answer.certificate))


def forked() -> Graph:
    g = Builder("fork", "float32")
    x = g.input("x", (4, 64))
    ends = [g.contract(n, "b k, k n -> b n", x, g.parameter(f"{n}.w", (64, 64))) for n in ("left", "right")]
    return g.build(g.map("join", "add", *ends, text="b n, b n -> b n"))


def piped(clock: Clock) -> bytes:
    step = build_step(zoo("mlp-8192", batch=64), "sgd")
    job = Job(step.graph, divide(step.graph, step.passes), load_machine("cloud-a100:2x2"), space("complete"), None)
    best = search_pairs(job, [(1, 1), (2, 2), (2, 4)], clock, Fraction(0))
    return b"none" if best.best is None else write_pipeline(None, best.certificate())


def beside(clock: Clock) -> bytes:
    graph = build_step(zoo("mlp-8192", batch=64, width=256, layers=2), "adam").graph
    found = search_overlap(
        build_problem(graph, load_machine("localhost:4"), space("complete"), 4 << 20), clock, Fraction(0)
    )
    return write_overlap(None, found.certificate()) if isinstance(found, Overlapped) else b"none"


def together(clock: Clock) -> bytes:
    found = plan_jointly(zoo("mlp-unity", batch=16), load_machine("cloud-a100:2x2"), space("complete"), clock=clock)
    return said(found.answer)


def on_views(clock: Clock) -> bytes:
    found = plan_submeshes(
        whole_machine(forked(), load_machine("cloud-a100:2x2"), space("complete")), clock=clock
    ).certificate()
    return b"none" if found is None else write_submesh_plan(None, found)


def plain(clock: Clock) -> bytes:
    graph = zoo("mlp-unity", batch=16)
    limit = limited(1)
    limit.clock = clock
    found = plan_graph(graph, load_machine("cloud-a100:2x4"), memory_limit=1 << 24, limit=limit)
    return said(found.answer) if found.plan is None else write_plan(None, found.plan)


def scheduled(clock: Clock) -> bytes:
    found = search(shop(Pipeline(((2, 3, 1),) * 4, 9, 1, 3)), clock)
    return pickle.dumps((found.starts, found.makespan, found.lower_bound))


def extracted(clock: Clock) -> bytes:
    return b"".join(write_extraction(None, extract(random_egraph(seed), clock).certificate) for seed in range(12))


def judged(clock: Clock) -> bytes:
    return pickle.dumps([judge(rule, clock.share(1 / 6)) for rule in parallel_rules()[:6]])


SMALL = Limits(joint=1000, work=1 << 16, kept=1 << 14)
TASKS: dict[str, Callable[[Clock], bytes]] = {
    "elimination": lambda clock: said(solve(chain(40, 1), clock=clock)),
    "branching": lambda clock: said(solve(grid_of_tables(5, 1, 4, 40), clock=clock, limits=SMALL)),
    "rows": lambda clock: said(solve(grid_with_rows(5, 4), clock=clock, limits=SMALL)),
    "dense rows, two threads": lambda clock: said(relax_resources(grid_with_rows(6, 5), clock=clock, threads=2)),
    "repeated blocks": lambda clock: said(solve(repeated_blocks(40, 1), clock=clock, threads=2)),
    "z3": lambda clock: said(solve(grid_with_rows(3, 3), clock=clock, engine="smt")),
    "HiGHS": lambda clock: said(solve(grid_with_rows(3, 3), clock=clock, engine="ilp")),
    "plan": plain,
    "pipeline": piped,
    "overlap": beside,
    "joint": together,
    "views": on_views,
    "schedule": scheduled,
    "extraction": extracted,
    "rules": judged,
}


def on(monkeypatch: pytest.MonkeyPatch, machine: Ticks, what: Callable[[], bytes]) -> bytes:
    with monkeypatch.context() as patch:
        for name in ("monotonic", "perf_counter", "process_time", "thread_time", "time"):
            patch.setattr(time, name, machine)
        return what()


@pytest.mark.parametrize("steps", [3_000, 200_000])
@pytest.mark.parametrize("name", TASKS)
def test_no_clock_decides_an_answer(name: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {m: on(monkeypatch, make(), lambda: TASKS[name](Clock(work=steps))) for m, make in MACHINES.items()}
    assert len(set(found.values())) == 1, {m: len(b) for m, b in found.items()}


def test_clocks_would_decide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would see: with seconds, the machines answer differently."""
    found = {on(monkeypatch, MACHINES[m](), lambda: TASKS["rows"](Clock(60.0))) for m in ("slow", "unsteady")}
    assert len(found) > 1


@pytest.mark.parametrize("name", TASKS)
def test_little_work_ends_early(name: str) -> None:
    """The loops that run longest ask and charge; what no answer can do without is bounded."""
    clock = Clock(work=2_000)
    TASKS[name](clock)
    assert clock.meter.steps < 1_500_000


def test_both_limits_end_a_clock() -> None:
    now = [0.0]
    clock = Clock(10.0, work=3 * STEPS, now=lambda: now[0])
    part = clock.share(0.5)
    assert (clock.remaining_s(), part.remaining_s(), clock.counts, part.counts) == (3.0, 1.5, True, True)
    now[0] = 9.5
    assert (clock.remaining_s(), part.remaining_s()) == (0.5, 0.5)
    now[0] = 11.0
    assert part.over() and clock.over() and not clock.beside(1.0).over()
    clock = Clock(work=STEPS)
    clock.charge(STEPS - LOOK)
    assert clock.over() and clock.wall.remaining_s() == float("inf")


def test_a_question_is_work() -> None:
    clock, looks = Clock(work=100 * LOOK), 0
    while not clock.over():
        looks += 1
    assert looks == 99


def test_engines_are_given_what_is_left() -> None:
    clock = Clock(8.0, work=4 * STEPS, now=lambda: 0.0)
    clock.charge(STEPS)
    given = clock.share(0.5).allowance()
    assert (given.seconds, given.steps, given.nodes, given.resources) == (8.0, 2 * STEPS, 2000, 10 * STEPS)
    assert Clock(5.0, now=lambda: 0.0).allowance().steps is None


COUNTED = {"machine calibrate": "its seconds are those of a start of MPI, which searches nothing"}
"""Commands that take seconds and no steps, and why."""


def commands(group: click.Group, words: tuple[str, ...] = ()) -> list[tuple[str, click.Command]]:
    out = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            out += commands(command, (*words, name))
        else:
            out.append((" ".join((*words, name)), command))
    return out


def test_every_verb_that_takes_seconds_takes_steps() -> None:
    options = {name: {o for p in command.params for o in p.opts} for name, command in commands(cli)}
    timed = {name for name, known in options.items() if "--time-limit" in known}
    assert len(timed) > 12
    assert {name for name in timed if "--work-limit" not in options[name]} == set(COUNTED)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "", "1e3", "24 M", "9" * 20, "K"])
def test_steps_are_refused_by_name(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["plan", "bert-tiny", "--machine", "localhost:2", "--work-limit", value, "-o", str(tmp_path / "p.spz")])
    assert code == 2 and "--work-limit" in capsys.readouterr().err


def test_the_command_line_gives_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that ends the search; two threads, which share no clock."""
    asked = ["plan", "mlp-8192:layers=3", "--machine", "cloud-a100:2x4", "--train", "sgd", "--batch", "64"]
    files = {}
    for name, make in MACHINES.items():
        out = tmp_path / f"{name}.spz"
        with monkeypatch.context() as patch:
            for clock in ("monotonic", "process_time"):
                patch.setattr(time, clock, make())
            assert run([*asked, "--work-limit", "300k", "-o", str(out)]) in (0, 5)
        files[name] = out.read_bytes()
    assert len(set(files.values())) == 1


@pytest.mark.parametrize(
    ("words", "space_name", "gap", "seconds"),
    [
        ([], None, Fraction(0), 300.0),
        (["--effort", "quick"], "one-per-level", Fraction(3, 100), 60.0),
        (["--effort", "thorough"], None, Fraction(0), 3600.0),
        (["--effort", "quick", "--gap", "1%"], "one-per-level", Fraction(1, 100), 60.0),
        (["--space", "complete", "--effort", "quick"], "complete", Fraction(3, 100), 60.0),
        (["--effort", "quick", "--time-limit", "7"], "one-per-level", Fraction(3, 100), 7.0),
        (["--effort", "quick", "--work-limit", "2M"], "one-per-level", Fraction(3, 100), 2.0),
    ],
)
def test_effort_is_what_options_fall_back_to(
    words: list[str], space_name: str | None, gap: Fraction, seconds: float, tmp_path: Path
) -> None:
    command = cli.get_command(click.Context(cli), "plan")
    assert command is not None
    line = ["bert-tiny", "--machine", "localhost:2", "-o", str(tmp_path / "p.spz"), *words]
    with command.make_context("plan", line) as context:
        given = context.params
        limit = start_limit(given["time_limit"], given["work_limit"])
        assert (given["space_name"], given["gap"], limit.clock.limit_s) == (space_name, gap, seconds)
        assert (limit.limit_s is None) is ("--work-limit" in words)


def test_a_first_plan_is_there_before_larger_tables_are_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the answer is never worse: with no work left, it is the first plan, in the space that was asked about."""
    graph = build_step(zoo("bert-tiny", layers=2), "adam").graph
    machine = load_machine("cloud-a100:2x8")
    said: list[str] = []
    limit = limited(1)
    limit.announce = said.append
    begun = monkeypatch_builds(monkeypatch)
    found = plan_graph(graph, machine, limit=limit)
    assert begun[0] == "one-per-level" and "first plan after" in said[0], (begun, said)
    small = plan_graph(graph, machine, space("one-per-level"), limit=limited(100))
    ours = Fraction(found.answer.cost or 0, found.planning.problem.scale)
    theirs = Fraction(small.answer.cost or 0, small.planning.problem.scale)
    assert found.plan is not None and ours <= theirs * Fraction(102, 100), "the first search ends at a gap of 1 %"


def monkeypatch_builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The spaces whose tables are begun, in order."""
    begun: list[str] = []
    for module in (first, tables):
        real = module.build

        def noted(graph, machine, where, *rest, real=real, **more):  # type: ignore[no-untyped-def]
            begun.append(where.name)
            return real(graph, machine, where, *rest, **more)

        monkeypatch.setattr(module, "build", noted)
    return begun
