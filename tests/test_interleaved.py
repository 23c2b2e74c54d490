"""Several chunks of the model on every view: the bound against schedules, the certificate and every way to break it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from budgets import some_or_all, work

from shardproof.__main__ import run
from shardproof.formal.plans.pipelines.chunked import kept_by_chunk, view_peaks
from shardproof.formal.plans.pipelines.interleaved import InterleavedCase
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.outcome import SearchOutcome
from shardproof.formal.plans.pipelines.request import triple_of
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.formal.plans.pipelines.weights import neighbour_cuts, weigh
from shardproof.formal.schedules.search import search
from shardproof.formal.schedules.shop import shop
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.cuts import Hops, Passes
from shardproof.models.pipelines.division import divide
from shardproof.models.pipelines.interleaved import Shape, weighted_bound
from shardproof.models.problem.claims import Verdict
from shardproof.models.schedules.actions import action_rows, compute_rows, csv_bytes
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.models.text import InputError
from shardproof.proofs.container.archive import read_container
from shardproof.proofs.pipelines.certificate import PipelineCertificate
from shardproof.proofs.pipelines.file import decode_pipeline, encode_pipeline, write_pipeline
from shardproof.proofs.schedules.certificate import ScheduleCertificate
from shardproof.verify.budget import CELLS
from shardproof.verify.pipelines.certificate import _Check, check_pipeline
from shardproof.verify.pipelines.choices import solution
from shardproof.verify.pipelines.cuts import Known
from shardproof.verify.pipelines.held import view_memory
from shardproof.verify.pipelines.interleaved import all_lines, least_mean

Table = list[list[int]]


def sums(values: list[int]) -> Table:
    n = len(values)
    return [[sum(values[i:j]) for j in range(n + 1)] for i in range(n + 1)]


class Drawn:
    """Random times of units: what is known of runs is what they take, or a part of it."""

    def __init__(self, rng: random.Random, units: int, shape: Shape, loose: bool = False) -> None:
        self.f = [rng.randint(1, 9) for _ in range(units)]
        self.b = [rng.randint(1, 12) for _ in range(units)]
        self.u = [rng.randint(0, 6) for _ in range(units)]
        a = [f + b for f, b in zip(self.f, self.b, strict=True)]
        w = [x + u for x, u in zip(a, self.u, strict=True)]
        v = [shape.micro * x + u for x, u in zip(a, self.u, strict=True)]

        def told(values: list[int]) -> Table:
            return sums([rng.randint(0, x) for x in values] if loose else values)

        f_known, b_known = told(self.f), told(self.b)
        self.tables = f_known, b_known, told(a), told(w), told(v)
        most = rng.choice([0, 2, 8])
        self.hops = Hops(*([[], *([0, *(rng.randint(0, most) for _ in range(units - 1))] for _ in range(shape.parts - 1))] for _ in "tb"))  # fmt: skip

    @property
    def passes(self) -> Passes:
        return Passes(*self.tables)

    @property
    def known(self) -> Known:
        return Known(*self.tables, self.hops.there, self.hops.back)


def step_of(drawn: Drawn, shape: Shape, cut: tuple[int, ...]) -> int:
    """The shortest step with these chunks that is found; a send takes the longer of its two ways in the schedule."""
    units = len(drawn.f)
    runs = list(zip(cut, (*cut[1:], units), strict=True))
    times = tuple((sum(drawn.f[i:j]), sum(drawn.b[i:j]), 0) for i, j in runs)
    hops = tuple(max(drawn.hops.there[c][cut[c]], drawn.hops.back[c][cut[c]]) for c in range(1, shape.parts))
    pipe = Pipeline(times, shape.micro, max(hops), None, shape.chunks, hops=hops, uneven=True).check()
    starts = search(shop(pipe), work(0.3)).starts
    table = starts.reshape(3, shape.parts, shape.micro) + np.array(times).T[:, :, None]
    updates = [sum(drawn.u[i:j]) for i, j in runs]
    return max(
        int(table[:, view :: shape.groups].max()) + sum(updates[view :: shape.groups]) for view in range(shape.groups)
    )


SHAPES = (Shape(2, 2, 2), Shape(2, 2, 5), Shape(3, 2, 3), Shape(2, 3, 4), Shape(3, 2, 7))


@pytest.mark.parametrize("rounds", some_or_all(3, 12))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_line_is_above_a_schedule(shape: Shape, rounds: int) -> None:
    """As many units as chunks, so that there is one cut: every line alone, in both programs."""
    rng = random.Random(f"lines {shape}")
    met = 0
    for k in range(rounds):
        drawn = Drawn(rng, shape.parts, shape, loose=k % 3 == 2)
        step = step_of(drawn, shape, tuple(range(shape.parts)))
        values = []
        for n in range(len(shape.counts)):
            weights = [int(n == i) for i in range(len(shape.counts))]
            values.append(least_mean(drawn.known, shape.groups, shape.chunks, shape.micro, weights))
            assert values[-1] == weighted_bound(drawn.passes, drawn.hops, shape, weights) <= step, (k, n)
        met += max(values) >= 0.85 * step
    assert met > rounds // 6, "and some are nearly reached"


def every_cut(units: int, parts: int) -> Iterator[tuple[int, ...]]:
    from itertools import combinations

    return ((0, *rest) for rest in combinations(range(1, units), parts - 1))


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_no_cut_takes_less_than_the_bound(shape: Shape) -> None:
    rng = random.Random(f"cuts {shape}")
    for k in range(4):
        drawn = Drawn(rng, shape.parts + 2, shape, loose=k % 2 == 1)
        found = weigh(drawn.passes, drawn.hops, shape)
        steps = [step_of(drawn, shape, cut) for cut in every_cut(shape.parts + 2, shape.parts)]
        assert found.bound <= min(steps)
        assert all(cut in set(every_cut(shape.parts + 2, shape.parts)) for cut in found.cuts)
        weights = [rng.randint(0, 5) for _ in range(len(shape.counts) - 1)] + [1]
        value = least_mean(drawn.known, shape.groups, shape.chunks, shape.micro, weights)
        assert value == weighted_bound(drawn.passes, drawn.hops, shape, weights) <= min(steps)


def test_lines_are_counted_alike_by_both() -> None:
    """Builder and checker count what a line says in their own ways."""
    for shape in SHAPES:
        theirs = [[[row[w] for w in "fbuvde"] for row in line] for line in all_lines(*vars_of(shape))]
        assert shape.counts[:, :, [0, 1, 2, 3, 4, 5]].astype(int).tolist() == theirs


def vars_of(shape: Shape) -> tuple[int, int, int]:
    return shape.groups, shape.chunks, shape.micro


def test_units_move_between_chunks() -> None:
    assert set(neighbour_cuts((0, 2, 3), 5)) == {(0, 1, 2), (0, 1, 3), (0, 2, 4), (0, 3, 4)}


def job(memory: int | None = None, machine: str = "cloud-a100:2x1") -> Job:
    step = build_step(build("mlp-8192", batch=512, width=64, layers=9), "adam")
    return Job(step.graph, divide(step.graph, step.passes), load_machine(machine), space("complete"), memory)


@cache
def searched(memory: int | None = None) -> SearchOutcome:
    return search_pairs(job(memory), [], work(3.0), Fraction(1, 2), None, [(2, 4, 2)])


@cache
def good(memory: int | None = None) -> PipelineCertificate:
    return searched(memory).certificate()


def judged(c: PipelineCertificate) -> tuple[Verdict, str]:
    results = check_pipeline(c, "seed", 50, CELLS)
    bad = [r for r in results if r.verdict is not Verdict.PROVED]
    return (bad[0].verdict, bad[0].reason) if bad else (Verdict.PROVED, "")


def test_a_plan_of_chunks_is_proved_and_kept() -> None:
    c = good()
    assert judged(c) == (Verdict.PROVED, "")
    assert (c.chunks, c.views, len(c.stages), c.pairs) == (2, 2, 4, ())
    again = decode_pipeline(read_container(write_pipeline(None, c)))
    assert write_pipeline(None, again) == write_pipeline(None, c)
    assert again.interleaved == c.interleaved and again.chunks == 2


def test_plans_of_one_chunk_say_nothing_of_chunks() -> None:
    """Their files are those of before."""
    plain = search_pairs(job(), [(2, 4)], work(30.0), Fraction(1, 2)).certificate()
    head = json.loads(bytes(encode_pipeline(plain)["pipeline.json"]))  # type: ignore[arg-type]
    assert not {"chunks", "interleaved"} & set(head)
    schedule = json.loads(bytes(encode_pipeline(plain)["schedule.json"]))  # type: ignore[arg-type]
    assert "uneven" not in schedule["subject"]


def test_both_count_the_same_bytes() -> None:
    """What chunks of a view hold together: builder and checker, with and without a limit that binds."""
    free = searched()
    assert free.best is not None
    tight = max(free.best.memory) * 9 // 10
    for memory in (None, tight):
        found = searched(memory)
        assert found.best is not None and (memory is None or max(found.best.memory) <= memory)
        assert memory is None or found.best.step > free.best.step
        c = found.certificate()
        check = _Check(c, "seed", 10, CELLS, None)
        units = check.problem(2, 4, tuple(s.choices for s in c.stages))
        chosen = [solution(units.planning, s.choices) for s in c.stages]
        pipe = check.pipe()
        times = np.repeat(np.array(pipe.times).T.reshape(3, 4, 1), 4, axis=2).reshape(-1)
        assert [
            view_memory(c, units, chosen, times, check.lags(), view, [[]] * len(c.stages)) for view in (0, 1)
        ] == found.best.memory
        assert judged(c) == (Verdict.PROVED, "")
        assert judged(replace(c, memory=max(found.best.memory)))[0] is Verdict.PROVED
        verdict, reason = judged(replace(c, memory=max(found.best.memory) - 1))
        assert verdict is Verdict.REFUTED and "bytes with the activations" in reason


def test_chunks_that_rest_are_counted() -> None:
    """A view's bytes are more than those of its largest chunk alone."""
    best = searched().best
    assert best is not None
    pipe = best.schedule.subject
    assert isinstance(pipe, Pipeline)
    kept = kept_by_chunk(pipe, best.schedule.starts)
    for view, most in enumerate(view_peaks(best.case, best.stages, pipe, best.schedule.starts)):
        alone = [best.case.peak(best.stages[c], kept[c]) for c in (view, view + 2)]
        assert max(alone) < most <= sum(alone)


def broken() -> Iterator[tuple[str, PipelineCertificate, str]]:
    """Mutants of a good plan: each must be refuted, and why."""
    c = good()
    pipe, x = c.schedule.subject, c.interleaved[0]
    assert isinstance(pipe, Pipeline)

    def timed(subject: Pipeline, schedule: ScheduleCertificate = c.schedule) -> PipelineCertificate:
        return replace(c, schedule=replace(schedule, subject=subject))

    table = c.schedule.starts.reshape(3, 4, 4)
    yield "bound raised", replace(c, lower_bound=c.lower_bound + c.lower_bound // 50), "the leaves give a bound of"
    yield "step shorter", replace(c, step=c.step - 1), "the step takes"
    yield "pair instead", replace(c, interleaved=(), pairs=((2, 4),)), "not among those enumerated"
    yield "other chunks", replace(c, interleaved=(replace(x, chunks=3, weights=(1,) * 32),)), "not among those"
    yield "one chunk", replace(c, chunks=1, pairs=((4, 4),)), "one chunk a stage"
    yield "three chunks", replace(c, chunks=3), "are not 3 on every submesh"
    yield "four chunks", replace(c, chunks=4, interleaved=(replace(x, stages=1, chunks=4),)), "2 chunks" if 0 else ""
    yield "twice", replace(c, interleaved=(x, x)), "more than once"
    yield "few weights", replace(c, interleaved=(replace(x, weights=x.weights[:-1]),)), "no weights of its lines"
    yield "below zero", replace(c, interleaved=(replace(x, weights=(-1, *x.weights[1:])),)), "no weights of its lines"
    yield "wave", timed(replace(pipe, wave=True, uneven=False, times=pipe.times[:2], hops=())), ""
    yield "even chunks", timed(replace(pipe, uneven=False)), "2 chunks a stage"
    yield "no sends", timed(replace(pipe, send=0, hops=())), "takes longer than the schedule says"
    yield "one send less", timed(replace(pipe, send=pipe.send, hops=(*[pipe.send] * 2, 0))), "takes longer than"
    yield "times swapped", timed(replace(pipe, times=(*pipe.times[2:], *pipe.times[:2]))), "the schedule says"
    swapped = (c.stages[1], c.stages[0], *c.stages[2:])
    yield "chunks swapped", replace(c, stages=swapped), "one after another"
    early = table.copy()
    early[1] -= 1
    yield "backward early", replace(c, schedule=replace(c.schedule, starts=early.reshape(-1))), ""
    yield "leaf moved", replace(c, leaves=tuple(replace(leaf, stages=4) for leaf in c.leaves)), "none of the pairs"


def test_mutants_are_refuted() -> None:
    names = set()
    for name, mutant, words in broken():
        verdict, reason = judged(mutant)
        assert verdict is Verdict.REFUTED and words in reason, (name, verdict, reason)
        names.add(name)
    assert len(names) == 18


@pytest.mark.parametrize("step", some_or_all(3, 1))
def test_two_chunks_of_a_view_at_once_are_seen(step: int) -> None:
    """Every task a moment earlier: what needs nothing then runs beside the task before it."""
    c, reasons = good(), list[str]()
    for t in range(0, len(c.schedule.starts) * 2 // 3, step):  # F and B
        starts = c.schedule.starts.copy()
        starts[t] -= 1
        verdict, reason = judged(replace(c, schedule=replace(c.schedule, starts=starts)))
        assert verdict is Verdict.REFUTED, t
        reasons.append(reason.split()[0])
    assert reasons.count("stream") > 3 // step and set(reasons) <= {"stream", "precedence", "task", "the"}, set(reasons)


def test_chunks_beside_a_pair_share_leaves_and_the_claim_is_of_both() -> None:
    found = search_pairs(job(), [(2, 4)], work(30.0), Fraction(0), None, [(2, 4, 2), (2, 4, 4)])
    c = found.certificate()
    assert judged(c) == (Verdict.PROVED, "")
    assert c.case_count == 3 and c.lower_bound == min(case.bound for case in found.cases)
    several = [case for case in found.cases if isinstance(case, InterleavedCase)]
    assert all(case.leaves is found.cases[0].leaves for case in several)
    without = replace(c, interleaved=c.interleaved[:1] if c.chunks == 2 else c.interleaved[1:])
    assert judged(without)[0] is Verdict.PROVED, "a claim about less"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sends", [True, False])
def test_torch_runs_the_actions_of_a_plan(sends: bool, tmp_path: Path) -> None:
    """Two ranks with two stages of torch each, in the order of the plan; sends among the actions, or put in by torch."""
    c = good()
    pipe = c.schedule.subject
    assert isinstance(pipe, Pipeline)
    rows = action_rows(pipe, c.schedule.starts) if sends else compute_rows(pipe, c.schedule.starts)
    (tmp_path / "actions.csv").write_bytes(csv_bytes(rows))
    job = Path(__file__).with_name("pipeline_job.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(job), str(tmp_path / "actions.csv"), "2", "4", str(tmp_path / "store")],
        capture_output=True,
        check=False,
        text=True,
        timeout=250,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [f["stages"] for f in found] == [[0, 2], [1, 3]]
    assert all(f["gradient"] < 1e-12 for f in found) and found[1]["loss"] < 1e-12


def test_requests() -> None:
    assert triple_of("4:16") is None and triple_of("4:16:3") == (4, 16, 3)
    with pytest.raises(InputError, match="2 to 16 chunks"):
        triple_of("4:16:1")
    with pytest.raises(InputError, match="too few for 2 times 9 chunks"):
        search_pairs(job(), [], work(1.0), Fraction(0), None, [(2, 4, 9)])


def test_the_command_line_plans_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["plan", "bert-tiny", "--batch", "8", "--train", "adam", "--machine", "dgx-a100:1x2", "--gap", "0.5"]
    assert run([*line, "--pipeline", "2:4:2", "-o", "p.spz", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["stages"], told["chunks"], told["enumerated"]) == (2, 2, [])
    assert len(told["units"]) == len(told["kept"]) == 4 and len(told["peak_bytes"]) == 2
    assert told["interleaved"][0][:3] == [2, 4, 2]
    assert run(["check", "p.spz"]) == 0
    assert "stages:micro-batches:chunks 2:4:2" in capsys.readouterr().out
    assert run([*line, "--pipeline", "2:4", "--interleave", "2", "-o", "q.spz"]) == 0
    assert "some with chunks" in capsys.readouterr().out
    assert run(["explain", "p.spz"]) == 0
    said = capsys.readouterr().out
    assert "2 stages of 2 chunks" in said and "chunk  devices" in said
    assert run([*line, "--pipeline", "2:4:2", "--interleave", "2", "-o", "r.spz"]) == 2
    assert "it says the number of chunks already" in capsys.readouterr().err
    assert run([*line, "--pipeline", "2:4:1", "-o", "r.spz"]) == 3
    assert "for one write 2:4" in capsys.readouterr().err
