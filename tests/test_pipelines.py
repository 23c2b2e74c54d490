"""Pipelined training steps: units, micro-batches, leaves, bounds, and the certificate with every way to break it."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from budgets import some_or_all, work

from shardproof.__main__ import run
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.outcome import SearchOutcome
from shardproof.formal.plans.pipelines.recompute import Turns, plan_with_checkpointing
from shardproof.formal.plans.pipelines.scheduled import schedule_stages
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.bound import Bounds, closure, least
from shardproof.models.pipelines.division import divide
from shardproof.models.pipelines.micro import micro_batch
from shardproof.models.pipelines.pieces import Pieces
from shardproof.models.pipelines.views import send_time, submesh_sizes
from shardproof.models.pipelines.work import amounts, unit_work
from shardproof.models.problem.claims import Verdict
from shardproof.models.sources.training import TrainingStep, build_step
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import Member, read_container, write_container
from shardproof.proofs.container.canonical import ContainerError, canonical
from shardproof.proofs.pipelines.certificate import PipelineCertificate
from shardproof.proofs.pipelines.file import decode_pipeline, encode_pipeline, write_pipeline
from shardproof.verify.budget import CELLS
from shardproof.verify.pipelines.bound import least_step, least_work, parts, send, work_of
from shardproof.verify.pipelines.certificate import check_members, check_pipeline
from shardproof.verify.pipelines.division import micro_batch_graph, wrong_division
from shardproof.verify.pipelines.leaves import Units

MODELS = ("bert-tiny", "mlp-8192", "alexnet", "dlrm", "vit")


@cache
def step_of(name: str, optimizer: str = "sgd", batch: int | None = None) -> TrainingStep:
    return build_step(build(name, batch=batch), optimizer)


@pytest.mark.parametrize("name", MODELS)
def test_units_are_what_the_checker_demands(name: str) -> None:
    step = step_of(name, "adam")
    division = divide(step.graph, step.passes)
    assert division.units > 1 and wrong_division(step.graph, division) == ""


def test_every_wrong_unit_is_named() -> None:
    """An operator in another unit, a phase changed, a cut at another tensor: refused, but for what may as well be so."""
    step = step_of("bert-tiny")
    division = divide(step.graph, step.passes)
    assert wrong_division(step.graph, replace(division, cuts=division.cuts[:-1])) != ""
    first, second, *others = division.cuts
    assert wrong_division(step.graph, replace(division, cuts=(second, first, *others))) != ""
    refused = 0
    for i, u in enumerate(division.unit):
        moved = replace(division, unit=(*division.unit[:i], (u + 1) % division.units, *division.unit[i + 1 :]))
        refused += wrong_division(step.graph, moved) != ""
        if division.phase[i] != "U":  # once per step, what every micro-batch has to do
            phase = replace(division, phase=(*division.phase[:i], "U", *division.phase[i + 1 :]))
            assert wrong_division(step.graph, phase) or micro_batch_graph(step.graph, 2, phase)[1]
    assert refused >= 0.9 * len(division.unit)


@pytest.mark.parametrize("name", MODELS)
def test_micro_batches_are_the_model_with_a_smaller_batch(name: str) -> None:
    whole = step_of(name, "sgd", 16)
    found = micro_batch(whole.graph, 4)
    other, reason = micro_batch_graph(whole.graph, 4, divide(whole.graph, whole.passes))
    small = step_of(name, "sgd", 4).graph
    assert (other, reason) == (found, "")
    assert [t.shape for t in found.tensors] == [t.shape for t in small.tensors]
    different = [a.function for a, b in zip(found.operators, small.operators, strict=True) if a.axes != b.axes]
    assert different == []
    scaled = [(a, b) for a, b in zip(found.operators, small.operators, strict=True) if a.attributes != b.attributes]
    assert scaled and all(
        float(str(dict(a.attributes)["scale"])) * 4 == pytest.approx(float(str(dict(b.attributes)["scale"])))
        for a, b in scaled
    )


def test_gradients_of_micro_batches_add_up() -> None:
    step = step_of("bert-tiny", "sgd", 8)
    names = [g for _, g in step.trained]
    inputs = random_inputs(step.graph, 3)
    whole = run_graph(step.graph, inputs, keep=names)
    small = micro_batch(step.graph, 4)
    batched = {t.name for t in step.graph.tensors if t.name in inputs and t.shape != small.tensor(t.name).shape}
    total = {name: np.zeros_like(whole[name]) for name in names}
    loss = 0.0
    for k in range(4):
        part = {n: v[2 * k : 2 * k + 2] if n in batched else v for n, v in inputs.items()}
        found = run_graph(small, part, keep=names)
        loss += float(found["loss"])
        for name in names:
            total[name] += found[name]
    assert loss == pytest.approx(float(whole["loss"]), rel=1e-12)
    for name in names:
        np.testing.assert_allclose(total[name], whole[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["resnet101", "inception-v3"])
def test_statistics_over_the_batch_are_refused_by_name(name: str) -> None:
    step = step_of(name)
    with pytest.raises(InputError, match=r"norm.*looks at the whole batch"):
        micro_batch(step.graph, 2)
    assert "looks at the whole batch" in micro_batch_graph(step.graph, 2, divide(step.graph, step.passes))[1]


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be cut into 3"):
        micro_batch(step_of("bert-tiny", "sgd", 16).graph, 3)
    step = step_of("bert-tiny", "sgd", 16)
    found, reason = micro_batch_graph(step.graph, 3, divide(step.graph, step.passes))
    assert found is step.graph and "cannot be cut into 3" in reason


@cache
def tiny() -> tuple[TrainingStep, Pieces, Units]:
    step = step_of("bert-tiny", "adam", 16)
    division = divide(step.graph, step.passes)
    planning = build_problem(micro_batch(step.graph, 4), load_machine("cloud-a100:1x2"), space("complete"), 1 << 40)
    return step, Pieces(planning, division), Units(planning, division)


def test_leaves_of_builder_and_checker_are_one_problem() -> None:
    _, pieces, units = tiny()
    n = pieces.division.units
    for i, j in itertools.combinations(range(n + 1), 2):
        for times, once in ((1, False), (1, True), (4, True)):
            built = pieces.leaf(i, j, times, int(once)).problem
            assert built.sha256() == units.leaf(i, j, times, once).sha256()


def test_stages_cost_and_need_the_same_for_builder_and_checker() -> None:
    _, pieces, units = tiny()
    rng, n = random.Random(5), pieces.division.units
    problem = pieces.planning.problem
    for i, j in itertools.combinations(range(n + 1), 2):
        x = {v: rng.randrange(problem.domain_size(v)) for v in range(len(problem.vertices))}
        found = pieces.seconds(i, j, x)
        assert (found.forward, found.backward, found.update) == units.seconds(i, j, x)
        for kept, accumulated in ((1, False), (1, True), (3, True)):
            change = np.zeros(len(problem.vertices) + 1, dtype=np.int64)
            for u in pieces.usages(i, j, kept, accumulated):
                change[u.start] += u.amount[x[u.vertex]]
                change[u.end] -= u.amount[x[u.vertex]]
            assert int(np.cumsum(change).max()) == units.peak(i, j, x, kept, 4 if accumulated else 1)


def test_a_leaf_costs_no_more_than_what_contains_it() -> None:
    """Restricted to fewer units, choices cost less or the same; side by side, at most the whole."""
    _, pieces, _ = tiny()
    rng, n = random.Random(7), pieces.division.units
    problem = pieces.planning.problem
    for _ in range(20):
        x = [rng.randrange(problem.domain_size(v)) for v in range(len(problem.vertices))]
        i, k, j = sorted(rng.sample(range(n + 1), 3))
        one, two, both = (pieces.leaf(a, b, 4, 1) for a, b in ((i, k), (k, j), (i, j)))
        costs = [p.problem.cost_of(tuple(x[v] for v in p.vertices)) for p in (one, two, both)]
        assert costs[0] + costs[1] <= costs[2]
        spent = pieces.seconds(i, j, dict(enumerate(x)))
        assert costs[2] <= 4 * (spent.forward + spent.backward) + spent.update


def test_the_program_over_cuts_equals_enumeration() -> None:
    rng = random.Random(11)
    for _ in range(200):
        n, m = rng.randint(1, 7), rng.randint(1, 6)
        runs = [
            {(i, j): rng.randint(0, 30) for i, j in itertools.combinations(range(n + 1), 2) if rng.random() < 0.5}
            for _ in range(3)
        ]
        one, updated, step = (closure(n, known) for known in runs)
        sends = [rng.randint(0, 5) for _ in range(n)]
        for p in range(1, n + 1):
            values, alone = [], []
            for cut in itertools.combinations(range(1, n), p - 1):
                bounds = (0, *cut, n)
                worst, head = step[0][bounds[1]], 0
                for s, (i, j) in enumerate(itertools.pairwise(bounds)):
                    if s:
                        worst = max(worst, head + m * one[i][j])
                    head += (updated if s == 0 else one)[i][j] + (sends[j] if j < n else 0)
                values.append(worst)
                alone.append(max(step[i][j] for i, j in itertools.pairwise(bounds)))
            value, starts = least(Bounds(one, updated, step), m, sends, p, 1 << 40)
            assert (
                value == max(min(values), min(alone)) == least_step(n, p, m, ([runs[0]], [runs[1]], [runs[2]]), sends)
            )
            assert len(starts) == p


def test_views_and_sends_are_computed_twice_alike() -> None:
    for text in ("cloud-a100:4x8", "cloud-a100:2x2", "cloud-a100:1x4", "cloud-a100:16x8"):
        machine = load_machine(text)
        for p in range(1, 130):
            assert submesh_sizes(machine, p) == parts(machine, p)
            if parts(machine, p) is not None:
                for far in (False, True):
                    assert send_time(machine, p, 12_345_678, far) == send(machine, p, 12_345_678, far)
    step, pieces, _ = tiny()
    view = load_machine("cloud-a100:1x2")
    division = pieces.division
    found = unit_work(amounts(step.graph, division), view)
    assert found == least_work(work_of(step.graph, division), view)


@cache
def small(memory: int | None = None) -> SearchOutcome:
    step = step_of("mlp-8192", "sgd", 64)
    division = divide(step.graph, step.passes)
    job = Job(step.graph, division, load_machine("cloud-a100:2x2"), space("complete"), memory)
    return search_pairs(job, [(1, 1), (2, 2), (2, 4)], work(60.0), Fraction(1, 100))


def checked(c: PipelineCertificate) -> list[str]:
    """Reasons of claims that are not proved."""
    results = check_pipeline(c, "seed", 200, CELLS)
    return [f"{r.kind}: {r.reason}" for r in results if r.verdict is not Verdict.PROVED]


def test_a_plan_is_proved_and_comes_back_from_its_file() -> None:
    found = small()
    certificate = found.certificate()
    assert found.best is not None and found.best.step >= found.lower_bound > 0.8 * found.best.step
    members = read_container(write_pipeline(None, certificate))
    again, results = check_members(members, 200, CELLS)
    assert all(r.verdict is Verdict.PROVED for r in results), [r.reason for r in results]
    assert write_pipeline(None, again) == write_pipeline(None, certificate)
    assert any(r.kind == "WithinGap" and r.cost == found.best.step for r in results)


def test_no_plan_of_a_small_job_is_below_the_bound() -> None:
    """Every cut with the best placements of its stages takes at least the bound of its case."""
    found, tried = small(), 0
    for case in found.cases:
        if case.stages == 2 and case.size:
            for cut in (3, 7, 8, 12):
                stages = case.plan((0, cut), work(30.0), (0, 1))
                assert stages is not None
                made = schedule_stages(case, stages, 0.0, work(30.0))
                assert made is not None and made.step >= case.bound
                tried += 1
    assert tried >= 4


def wrong_step(c: PipelineCertificate) -> PipelineCertificate:
    return replace(c, step=c.step - 1)


def higher_bound(c: PipelineCertificate) -> PipelineCertificate:
    return replace(c, lower_bound=c.lower_bound + 1)


def lost_leaf(c: PipelineCertificate) -> PipelineCertificate:
    return replace(c, leaves=tuple(x for x in c.leaves if x.stages == 1))


def raised_leaf(c: PipelineCertificate) -> PipelineCertificate:
    first, *others = c.leaves
    return replace(c, leaves=(replace(first, bound=first.bound * 2), *others))


def moved_leaf(c: PipelineCertificate) -> PipelineCertificate:
    first, *others = sorted(c.leaves, key=lambda leaf: leaf.first)  # the first unit is like no other
    return replace(c, leaves=(replace(first, first=first.first + 1, end=first.end + 1), *others))


def other_times(c: PipelineCertificate) -> PipelineCertificate:
    first, *others = c.leaves
    return replace(c, leaves=(replace(first, times=first.times + 1), *others))


def fewer_pairs(c: PipelineCertificate) -> PipelineCertificate:
    return replace(c, pairs=tuple(p for p in c.pairs if p != (len(c.stages), c.micro)))


def odd_pair(c: PipelineCertificate) -> PipelineCertificate:
    return replace(c, pairs=(*c.pairs, (3, 2)))


def little_memory(c: PipelineCertificate) -> PipelineCertificate:
    return replace(c, memory=1 << 20)


def other_quantum(c: PipelineCertificate) -> PipelineCertificate:
    return replace(c, quantum=c.quantum + 1)


def shifted(c: PipelineCertificate) -> PipelineCertificate:
    starts = np.array(c.schedule.starts)
    starts[0] += 1
    return replace(c, schedule=replace(c.schedule, starts=starts))


def faster_stage(c: PipelineCertificate) -> PipelineCertificate:
    pipe = c.schedule.subject
    (f, b, w), *others = pipe.times  # type: ignore[union-attr]
    return replace(c, schedule=replace(c.schedule, subject=replace(pipe, times=((f - 1, b, w), *others))))  # type: ignore[arg-type]


def no_sends(c: PipelineCertificate) -> PipelineCertificate:
    return replace(c, schedule=replace(c.schedule, subject=replace(c.schedule.subject, send=0)))  # type: ignore[arg-type]


def other_placement(c: PipelineCertificate) -> PipelineCertificate:
    stage, *others = c.stages
    (name, placement), *rest = stage.choices.operators
    matrix = ((1,) * len(placement.matrix[0]),) * (len(placement.matrix) - 1)
    worst = replace(placement, matrix=(*matrix, tuple(np.array(placement.matrix).prod(axis=0).tolist())))
    choices = replace(stage.choices, operators=((name, worst), *rest))
    return replace(c, stages=(replace(stage, choices=choices), *others))


def forgotten_operator(c: PipelineCertificate) -> PipelineCertificate:
    stage, *others = c.stages
    choices = replace(stage.choices, operators=stage.choices.operators[1:])
    return replace(c, stages=(replace(stage, choices=choices), *others))


def gap_between_stages(c: PipelineCertificate) -> PipelineCertificate:
    stage, *others = c.stages
    return replace(c, stages=(replace(stage, end=stage.end - 1), *others))


def other_machine(c: PipelineCertificate) -> PipelineCertificate:
    level, *others = c.machine.levels
    return replace(c, machine=replace(c.machine, levels=(replace(level, bandwidth=level.bandwidth / 2), *others)))


MUTANTS: tuple[Callable[[PipelineCertificate], PipelineCertificate], ...] = (
    wrong_step,
    higher_bound,
    lost_leaf,
    raised_leaf,
    moved_leaf,
    other_times,
    fewer_pairs,
    odd_pair,
    little_memory,
    other_quantum,
    shifted,
    faster_stage,
    no_sends,
    other_placement,
    forgotten_operator,
    gap_between_stages,
    other_machine,
)


@cache
def forced() -> PipelineCertificate:
    """A plan of two stages, whatever is better."""
    step = step_of("mlp-8192", "sgd", 64)
    job = Job(step.graph, divide(step.graph, step.passes), load_machine("cloud-a100:2x2"), space("complete"), None)
    return search_pairs(job, [(2, 4)], work(60.0), Fraction(1, 10)).certificate()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda f: f.__name__)
def test_a_mutant_is_not_proved(mutant: Callable[[PipelineCertificate], PipelineCertificate]) -> None:
    good = forced()
    assert checked(good) == []
    try:
        assert checked(mutant(good)) != []
    except (ContainerError, InputError) as error:
        assert str(error)


@pytest.mark.parametrize("count", some_or_all(12, 40))
def test_numbers_of_the_file_changed_at_random_are_not_proved(count: int) -> None:
    """One number of `pipeline.json` at a time; what is still proved says nothing else than the file did."""
    members = dict(encode_pipeline(forced()))
    head = json.loads(members["pipeline.json"])  # type: ignore[arg-type]
    rng = random.Random(3)
    places = [p for p in numbers(head) if p[0] not in ("memory_limit",)]
    for place in rng.sample(places, count):
        data = json.loads(members["pipeline.json"])  # type: ignore[arg-type]
        at = data
        for key in place[:-1]:
            at = at[key]  # type: ignore[index]
        at[place[-1]] += rng.choice((-1, 1, 7))  # type: ignore[index]
        changed: dict[str, Member] = {**members, "pipeline.json": canonical(data)}
        try:
            certificate = decode_pipeline(read_container(write_container(None, changed)))
            wrong = checked(certificate)
        except (ContainerError, ValueError):
            continue
        weaker = place[0] == "lower_bound" or (place[0] == "leaves" and place[-1] == 6)
        assert wrong or weaker, place


def numbers(value: object, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where numbers stand in JSON."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in numbers(v, (*place, k))]
    if isinstance(value, list):
        return [p for k, v in enumerate(value) for p in numbers(v, (*place, k))]
    return [place] if type(value) is int else []


def test_memory_is_kept_or_nothing_is_planned() -> None:
    free = small().best
    assert free is not None
    limit = int(max(free.memory) * 0.9)
    found = small(limit)
    if found.best is not None:
        assert max(found.best.memory) <= limit
        assert checked(found.certificate()) == []
    assert small(1 << 20).best is None


def test_the_command_line_says_and_writes_it(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(str(tmp_path))
    line = [
        "plan",
        "mlp-8192",
        "--train",
        "sgd",
        "--machine",
        "cloud-a100:2x2",
        "--pipeline",
        "2:4",
        "-o",
        "p.spz",
        "--json",
    ]
    assert run(line) in (0, 5)
    found = json.loads(capsys.readouterr().out)
    assert (found["stages"], found["micro_batches"]) == (2, 4)
    assert (
        found["cost"] / 4 < found["lower_bound"] <= found["cost"] == found["makespan"] * found["scale"]
        and len(found["peak_bytes"]) == 2
    )
    assert run(["check", "p.spz", "--model", "mlp-8192", "--train", "sgd"]) == 0
    said = capsys.readouterr().out
    assert "pipelined training step" in said and "enumerated" in said
    assert run(["check", "p.spz", "--model", "mlp-8192", "--train", "adam"]) == 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pipeline", "auto"], "cuts training steps"),
        (["--train", "sgd", "--pipeline", "3:2"], "no equal parts"),
        (["--train", "sgd", "--pipeline", "2:3"], "cannot be cut into 3"),
        (["--train", "sgd", "--pipeline", "2"], "STAGES:MICRO-BATCHES"),
    ],
)
def test_what_cannot_be_is_said(
    words: list[str],
    message: str,
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert run(["plan", "mlp-8192", "--machine", "cloud-a100:2x2", *words, "-o", "p.spz"]) in (2, 3)
    assert message in capsys.readouterr().err


def test_recomputed_blocks_are_searched_from_the_first_stage_on() -> None:
    """Steps of 0 .. 8 blocks as a table: the least of those that are tried, and none is tried without need."""
    names = tuple(f"layer{k}" for k in range(8))

    def search_over(
        steps: dict[int, int | None], bound: int, tight: bool = False, first: int | None = None
    ) -> tuple[int | None, list[int]]:
        def plan(which: str, _: Clock) -> SearchOutcome:
            k = 0 if which == "none" else which.count(",") + 1
            assert which == (",".join(names[:k]) or "none")
            step = steps[k]
            best = None if step is None else SimpleNamespace(step=step)
            return cast(SearchOutcome, SimpleNamespace(best=best, lower_bound=bound))

        found, tried = plan_with_checkpointing(names, plan, Clock(), Fraction(1, 100), turns=Turns(tight, first=first))
        assert [(t.of, t.step) for t in tried] == [(8, steps[t.blocks]) for t in tried]
        return (None if found.best is None else found.best.step), [t.blocks for t in tried]

    fits_from_3 = {k: 100 + k if k >= 3 else None for k in range(9)}
    assert search_over(fits_from_3, 50) == (103, [0, 8, 4, 2, 3])
    assert search_over(fits_from_3, 50, tight=True) == (103, [8, 0, 4, 2, 3])
    assert search_over(dict.fromkeys(range(9)), 50, tight=True) == (None, [8, 0])
    assert search_over(dict.fromkeys(range(9), 100), 100) == (100, [0])
    assert search_over(dict.fromkeys(range(9)), 50) == (None, [0, 8])
    slower = {k: abs(k - 2) + 100 for k in range(9)}
    assert search_over(slower, 50)[0] in (100, 101)
    assert search_over(slower, 50, first=2) == (100, [2, 0, 8, 4, 1])
    assert search_over(fits_from_3, 50, first=2)[0] == 103


@pytest.mark.slow
def test_recomputation_makes_room_for_activations(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where one activation fits without it, two with it hide more than the second forward pass takes."""
    monkeypatch.chdir(str(tmp_path))
    line = ["plan", "bert-tiny", "--train", "sgd", "--machine", "localhost:2", "--batch", "64", "--pipeline", "2:4"]
    steps = {}
    for which in ("none", "auto"):
        assert run([*line, "--memory", "6MiB", "--recompute", which, "-o", f"{which}.spz", "--json"]) in (0, 5)
        steps[which] = json.loads(capsys.readouterr().out)
    assert steps["auto"]["makespan"] < 0.9 * steps["none"]["makespan"]
    assert [a[0] for a in steps["auto"]["attempts"]] == [0, 1, 2]
