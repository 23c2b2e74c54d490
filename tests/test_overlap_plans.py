"""`plan --overlap`: tasks of builder and checker, bounds against every placement and schedule, and ways to break it."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from budgets import some_or_all, work
from test_pipelines import numbers

from shardproof.__main__ import run
from shardproof.formal.plans.overlap.search import Overlapped, search_overlap
from shardproof.formal.plans.overlap.tasks import tasks_of, times_of
from shardproof.formal.plans.overlap.weights import chain_of, sums_of, weighted_problem
from shardproof.models.cost.selection import Planning
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.problem.selection_problem import FORBIDDEN
from shardproof.models.program.graph import Graph
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.schedules.problem import ScheduleProblem
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.proofs.container.archive import read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.overlap.certificate import OverlapCertificate
from shardproof.proofs.overlap.file import encode_overlap, write_overlap
from shardproof.verify.budget import CELLS
from shardproof.verify.overlap.certificate import (
    check_members,
    check_overlap,
    counted_chain,
    expected_tasks,
    wrong_tasks,
)
from shardproof.verify.plan.used_entries import Entries


def planning_of(graph: Graph, machine: str) -> Planning:
    return build_problem(graph, load_machine(machine), space("complete"), None)


@cache
def training() -> Planning:
    return planning_of(build_step(build("mlp-8192", batch=64, width=2048, layers=3), "adam").graph, "cloud-a100:2x2")


@cache
def found() -> Overlapped:
    plan = search_overlap(training(), work(60.0), Fraction(1, 100))
    assert plan is not None
    return plan


def reasons(c: OverlapCertificate) -> str:
    return " ".join(r.reason for r in check_overlap(c, "seed", 100, CELLS) if r.verdict is not Verdict.PROVED)


def test_builder_and_checker_have_the_same_tasks_and_chains() -> None:
    rng = random.Random(3)
    for planning in (training(), planning_of(build_step(build("bert-tiny", batch=8), "sgd").graph, "cloud-a100:1x2")):
        entries = Entries(planning)
        for _ in range(5):
            x = tuple(rng.randrange(planning.problem.domain_size(v)) for v in range(len(planning.decisions)))
            quantum = rng.randint(1, 1000)
            built = tasks_of(planning, x, quantum)
            tasks, after, _ = expected_tasks(entries, x, quantum)
            assert [(t.name, t.time, t.streams) for t in built.tasks] == tasks
            assert {(p.before, p.after, p.lag) for p in built.precedences} == after
            chain = chain_of(planning, x)
            assert len(chain.operators) > 3
            assert counted_chain(entries, chain.operators) == (set(chain.late), set(chain.edges))


def least_makespan(problem: ScheduleProblem) -> int:
    """Over all orders of the tasks on both streams, each task as early as it may."""
    before: dict[int, list[int]] = {}
    for p in problem.precedences:
        before.setdefault(p.after, []).append(p.before)
    rows = [[k for k, t in enumerate(problem.tasks) if t.streams == (s,)] for s in (0, 1)]
    best = 1 << 62

    def grow(done: dict[int, int], free: tuple[int, int]) -> None:
        nonlocal best
        if max(free) >= best:
            return
        if len(done) == len(problem.tasks):
            best = max(free)
        for s in (0, 1):
            for k in rows[s]:
                if k not in done and all(b in done for b in before.get(k, [])):
                    end = max([free[s], *(done[b] for b in before.get(k, []))]) + problem.tasks[k].time
                    grow({**done, k: end}, (end, free[1]) if s == 0 else (free[0], end))

    grow({}, (0, 0))
    return best


def test_no_placement_and_no_order_is_below_the_bound() -> None:
    """Two products with a branch, on two devices: every placement with every order of its tasks."""
    g = Builder("small")
    g.input("x", (4, 512))
    g.parameter("w", (512, 512))
    g.parameter("v", (512, 512))
    g.contract("a", "b i, i j -> b j", "x", "w")
    g.contract("c", "b i, i j -> b j", "a", "v")
    g.reduce("d", "b j -> b", "a")
    planning = planning_of(g.build("c", "d"), "cloud-a100:1x2")
    plan = search_overlap(planning, work(30.0), Fraction(0))
    assert plan is not None and reasons(plan.certificate()) == ""
    problem, best = planning.problem, 1 << 62
    for x in itertools.product(*(range(problem.domain_size(v)) for v in range(len(problem.vertices)))):
        operators, edges = times_of(planning, x)
        if max(sum(operators), sum(edges)) < best:
            best = min(best, least_makespan(tasks_of(planning, x, 1)))
    assert plan.lower_bound <= best <= plan.best.makespan
    assert plan.lower_bound >= 0.7 * best


def test_every_sum_is_below_every_schedule_and_is_the_cost_of_its_problem() -> None:
    planning, rng = training(), random.Random(5)
    chains = [chain_of(planning, found().best.x)]
    for _ in range(2):
        x = tuple(rng.randrange(planning.problem.domain_size(v)) for v in range(len(planning.decisions)))
        values = sums_of(planning, chains, x)
        whole = sum(values[:2])
        assert max(values) <= whole  # one task after another
        for weights in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (2, 3, 4)):
            cost = weighted_problem(planning, chains, weights).cost_of(x)
            assert cost == sum(w * v for w, v in zip(weights, values, strict=True))
    assert max(sums_of(planning, chains, found().best.x)) <= found().best.makespan


def test_a_plan_is_shorter_than_one_after_another_and_comes_back_from_its_file() -> None:
    c = found().certificate()
    operators, edges = times_of(training(), found().best.x)
    assert found().best.makespan < sum(operators) + sum(edges)
    members = read_container(write_overlap(None, c))
    again, results = check_members(members, 100, CELLS)
    assert all(r.verdict is Verdict.PROVED for r in results), [r.reason for r in results]
    assert write_overlap(None, again) == write_overlap(None, c)
    assert "no-overlap" not in results[0].assumptions


def problem_of(c: OverlapCertificate) -> ScheduleProblem:
    assert isinstance(c.schedule.subject, ScheduleProblem)
    return c.schedule.subject


def other(c: OverlapCertificate, **changes: object) -> OverlapCertificate:
    return replace(c, schedule=replace(c.schedule, subject=replace(problem_of(c), **changes)))  # type: ignore[arg-type]


def earlier(c: OverlapCertificate) -> OverlapCertificate:
    starts = np.array(c.schedule.starts)
    starts[int(starts.argmax())] -= 1
    return replace(c, schedule=replace(c.schedule, starts=starts))


MUTANTS: tuple[tuple[str, Callable[[OverlapCertificate], OverlapCertificate]], ...] = (
    ("the claim says", lambda c: replace(c, makespan=c.makespan - 1)),
    ("gives a bound of", lambda c: replace(c, lower_bound=c.lower_bound + 1)),
    ("gives a bound of", lambda c: replace(c, lower_bound=c.makespan + 1)),
    ("weights", lambda c: replace(c, weights=tuple(w + 1 for w in c.weights))),
    ("chain", lambda c: replace(c, chains=((c.graph.operators[-1].name, c.graph.operators[0].name), *c.chains[1:]))),
    ("an operator twice", lambda c: replace(c, chains=((c.graph.operators[0].name,) * 2, *c.chains[1:]))),
    ("waits for other tasks", lambda c: other(c, precedences=problem_of(c).precedences[:-1])),
    ("its schedule", lambda c: other(c, tasks=problem_of(c).tasks[:-1])),
    ("says otherwise", lambda c: other(c, tasks=(*problem_of(c).tasks[:-1], replace(problem_of(c).tasks[-1], time=0)))),
    ("other streams", lambda c: other(c, streams=problem_of(c).streams[::-1])),
    ("", earlier),
    ("says otherwise", lambda c: replace(c, quantum=c.quantum * 2)),
    ("decided", lambda c: replace(c, choices=replace(c.choices, copies=c.choices.copies[1:]))),
    ("decided", lambda c: replace(c, choices=replace(c.choices, copies=(*c.choices.copies, c.choices.copies[0])))),
    ("hash differs", lambda c: replace(c, chains=((), *c.chains[1:]))),
    ("hash differs", lambda c: replace(c, space=f"{c.space},dtensor")),
)


def test_a_vocabulary_says_every_placement() -> None:
    """Within what DTensor says; a placement that it does not say is refuted, however long the schedule takes it for."""
    sizes = {"heads": 4, "kv_heads": 2, "hidden": 64, "vocabulary": 64, "sequence": 8}
    graph = build_step(build("llama", batch=4, layers=1, width=32, **sizes), "sgd").graph
    planning = build_problem(graph, load_machine("cloud-a100:1x4"), space("complete,dtensor"), None)
    plan = search_overlap(planning, work(1.0), Fraction(1, 2))
    assert isinstance(plan, Overlapped)
    c = plan.certificate()
    assert reasons(c) == ""
    assert "said-by-dtensor" in check_overlap(c, "seed", 100, CELLS)[0].assumptions
    for k, (name, _) in enumerate(c.choices.operators):
        v = planning.operators[name]
        unsaid = np.flatnonzero(planning.problem.vertices[v].cost >= FORBIDDEN)
        if len(unsaid):
            other = (name, planning.decisions[v].placement(int(unsaid[0])))
            rows = (*c.choices.operators[:k], other, *c.choices.operators[k + 1 :])
            wrong = replace(c, choices=replace(c.choices, operators=rows))
            assert f"the placement of {name!r} is none that 'complete,dtensor' has" in reasons(wrong)
            return
    pytest.fail("everything is said")


@pytest.mark.parametrize(("words", "mutant"), MUTANTS, ids=range(len(MUTANTS)))
def test_a_mutant_is_not_proved(words: str, mutant: Callable[[OverlapCertificate], OverlapCertificate]) -> None:
    good = found().certificate()
    try:
        said = reasons(mutant(good))
    except ContainerError as error:
        said = str(error)
    assert said and words in said


def test_the_command_line_says_and_writes_it(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(str(tmp_path))
    line = ["plan", "mlp-unity", "--train", "sgd", "--machine", "cloud-a100:1x2", "--overlap", "-o", "o.spz"]
    line += ["--work-limit", "1M"]
    assert run([*line, "--json"]) in (0, 5)
    said = json.loads(capsys.readouterr().out)
    assert said["cost"] / 4 < said["lower_bound"] <= said["cost"] and said["verdict"] == "proved"
    assert said["makespan"] == said["cost"] / said["scale"]
    assert said["hidden"] + sum(e[2] for e in said["exposed"]) == pytest.approx(said["redistributions"], abs=1e-9)
    assert run(["check", "o.spz", "--model", "mlp-unity", "--train", "sgd"]) == 0
    assert "overlapped plan" in capsys.readouterr().out
    assert run([*line, "--micro-batch", "2", "--force"]) in (0, 5) and run(["check", "o.spz"]) == 0
    capsys.readouterr()
    assert run(["explain", "o.spz", "--svg", "o.svg"]) == 0 and Path("o.svg").read_text().startswith("<svg")
    assert "are hidden and" in capsys.readouterr().out


@pytest.mark.parametrize("number", some_or_all(15, 30))
def test_numbers_of_the_file_changed_at_random_are_not_proved(number: int) -> None:
    """One number of `overlap.json` or `schedule.json` at a time: what is still proved claims no more than the file."""
    members = dict(encode_overlap(found().certificate()))
    rng = random.Random(7)
    for _ in range(number):
        name = rng.choice(("overlap.json", "schedule.json"))
        data = json.loads(members[name])  # type: ignore[arg-type]
        place = rng.choice(numbers(data))
        at = data
        for key in place[:-1]:
            at = at[key]
        change = rng.choice((-1, 1, 7))
        at[place[-1]] += change
        changed = {**members, name: canonical(data)}
        try:
            c, results = check_members(read_container(write_container(None, changed)), 50, CELLS)
        except ContainerError:
            continue
        weaker = place[-1] == "lower_bound" and change < 0
        labels = name == "schedule.json" and place[-1] == "scale"  # says what a unit is called, and no more
        assert any(r.verdict is not Verdict.PROVED for r in results) or weaker or labels, (name, place, change)
        assert c.lower_bound <= found().lower_bound or any(r.verdict is not Verdict.PROVED for r in results)


@pytest.mark.parametrize("kind", ["operators", "copies"])
def test_a_placement_with_rows_of_several_lengths_is_malformed(kind: str) -> None:
    """It was an internal error: NumPy refuses the matrix, after the file had been read."""
    members = dict(encode_overlap(found().certificate()))
    data = json.loads(members["overlap.json"])  # type: ignore[arg-type]
    data[kind][0][2][0] = [1]
    with pytest.raises(ContainerError, match="rows of one length"):
        check_members(read_container(write_container(None, {**members, "overlap.json": canonical(data)})), 50, CELLS)


def test_the_schedule_of_a_pipeline_is_none_of_a_plan() -> None:
    """Its own checker would accept it; it says nothing of these operators."""
    c = found().certificate()
    pipeline = Pipeline(((1, 1, 1),) * 2, 2, 0, None)
    assert c.schedule is not None
    made = replace(c.schedule, subject=pipeline)
    assert "one of a pipeline" in wrong_tasks(Entries(training()), (), replace(c, schedule=made), made)
