"""Twenty schedules executed: measured makespan beside the predicted one, and Spearman's rank correlation of the two.

    python tests/benchmarks/rank_correlation.py overlapped|pipelined [--ranks 4] [--pace 4] [--virtual] [--control]

One plan of one training step; its tasks in twenty orders, from the plan's own to random ones.  Every order is run on MPI ranks; loss, weights and moments are compared with one process each time.  A task does its work and then
sleeps until it has lasted `pace` seconds per second of a step as planned: ranks share the cores of one computer here,
so that this measures whether orders, waits and streams of the executor are those of the plan, not how fast it is.

`--control` runs all of them in one order, which an executor would do that looks at no schedule: the correlation must
be missed then.  The exit code is 1 below 0.9, or if any step differs from one process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heapify, heappop, heappush
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from shardproof.backends.execution.comparison import tolerance_of, worst
from shardproof.backends.execution.pipeline import run_pipeline
from shardproof.backends.execution.pipeline_rank import run_pipeline_job
from shardproof.backends.execution.reference import random_inputs, run_graph
from shardproof.backends.execution.streams import elapsed_seconds, run_streams_virtual
from shardproof.backends.execution.streams_rank import run_streams_job
from shardproof.backends.kernels import Array
from shardproof.backends.lowering.stages import staged_program
from shardproof.backends.lowering.streams import in_order, streams_program
from shardproof.formal.calibration.fit import spearman
from shardproof.formal.plans.overlap.planned import schedule_solution
from shardproof.formal.plans.overlap.search import search_overlap
from shardproof.formal.plans.overlap.weights import weighted_problem
from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import build as build_problem
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.problem.selection_problem import Ints
from shardproof.models.program.graph import Graph
from shardproof.models.schedules.pipeline import Pipeline
from shardproof.models.schedules.problem import ScheduleProblem
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build

BAR = 0.9
CORES = """
name = "computer"
{levels}
[[device_class]]
name = "core"
memory = "1 GiB"
bandwidth = "5 GB/s"
[device_class.peaks]
float32 = "{peak}"
float64 = "{peak}"
int64 = "1 Gflop/s"
bool = "1 Gflop/s"
[sources]
"device_class.core" = "assumption: so slow that the work of a small step weighs as much as what is moved"
{sources}
"""
LEVEL = """
[[level]]
name = "{name}"
size = {size}
bandwidth = "{bandwidth}"
latency = "{latency}"
"""


def computer(peak: str, *levels: tuple[str, int, str, str]) -> Machine:
    """A machine of made-up constants: (name, size, bandwidth, latency) of every level."""
    keys = ("name", "size", "bandwidth", "latency")
    texts = (LEVEL.format(**dict(zip(keys, level, strict=True))) for level in levels)
    sources = "\n".join(f'"level.{name}" = "assumption: as the cores"' for name, *_ in levels)
    with TemporaryDirectory() as folder:
        (file := Path(folder) / "computer.toml").write_text(
            CORES.format(levels="".join(texts), peak=peak, sources=sources)
        )
        return load_machine(str(file))


Run = Callable[[Ints], tuple[dict[str, Array], float]]
"""Starts of all tasks -> (outputs, measured seconds)."""


@dataclass(frozen=True, eq=False)
class Case:
    """`problem`: tasks and what binds them; `best`: starts of the plan; `unit`: planned seconds per unit; `run(starts)`."""

    graph: Graph
    problem: ScheduleProblem
    best: Ints
    unit: float
    run: Run


def orders(problem: ScheduleProblem, best: Ints, count: int, seed: int) -> list[Ints]:
    """Starts of `count` orders of different lengths, from that of `best` to the longest of 300 random ones: every task
    as early as the order of its stream and what it waits for let it.
    """
    random, n = np.random.default_rng(seed), len(problem.tasks)
    times = np.array([t.time for t in problem.tasks], dtype=np.int64)
    seen: dict[int, Ints] = {}
    for share in np.linspace(0.0, 1.0, 300):
        priority = (1 - share) * best / max(1, int(best.max())) + share * random.random(n)
        found = in_turn(problem, priority)
        seen.setdefault(int((found + times).max()), found)
    lengths = sorted(seen)
    wanted = np.linspace(lengths[0], lengths[-1], count)
    chosen: list[int] = []
    for length in wanted:
        chosen.append(min(set(lengths) - set(chosen), key=lambda x: (abs(x - length), x)))
    return [seen[length] for length in sorted(chosen)]


def in_turn(problem: ScheduleProblem, priority: NDArray[np.float64]) -> Ints:
    """Starts of the tasks, put into an order one by one, the smallest priority first of those that may come."""
    before: list[list[tuple[int, int]]] = [[] for _ in problem.tasks]
    behind: list[list[int]] = [[] for _ in problem.tasks]
    for p in problem.precedences:
        before[p.after].append((p.before, p.lag))
        behind[p.before].append(p.after)
    missing = [len(row) for row in before]
    heap = [(float(priority[k]), k) for k, count in enumerate(missing) if not count]
    heapify(heap)
    starts, free = np.zeros(len(problem.tasks), np.int64), [0] * len(problem.streams)
    while heap:
        _, k = heappop(heap)
        (stream,) = problem.tasks[k].streams
        reached = max((int(starts[b]) + problem.tasks[b].time + lag for b, lag in before[k]), default=0)
        starts[k] = max(free[stream], reached)
        free[stream] = int(starts[k]) + problem.tasks[k].time
        for b in behind[k]:
            missing[b] -= 1
            if not missing[b]:
                heappush(heap, (float(priority[b]), b))
    return starts


def overlapped_case(ranks: int, pace: float, virtual: bool) -> Case:
    """A step of a small BERT whose operators are split as far as they go, so that much is moved."""
    step = build_step(build("bert-tiny", batch=16), "adam")
    machine = computer("20 Gflop/s", ("ranks", ranks, "0.8 GB/s", "50 us"))
    planning = build_problem(step.graph, machine, space("complete"), None)
    found = search_overlap(planning, Clock(20.0), Fraction(1, 5))
    answer = solve(weighted_problem(planning, (), (20, 1)), clock=Clock(20.0), gap=Fraction(1, 20))
    if found is None or answer.solution is None:
        raise SystemExit("nothing was found; raise the time")
    plan = replace(found, best=schedule_solution(planning, answer.solution, Clock(5.0))).certificate()
    inputs, scale = random_inputs(step.graph, 1), planning.problem.scale
    problem = plan.schedule.subject
    assert isinstance(problem, ScheduleProblem)
    factor = pace / (plan.makespan / scale)

    def run(starts: Ints) -> tuple[dict[str, Array], float]:
        moved = tuple(starts.tolist())
        if virtual:
            ended = run_streams_virtual(in_order(streams_program(plan, scale), moved), inputs, factor, 300.0)
            assert all(t.fits for t in ended.traffic)
            return ended.outputs, elapsed_seconds(ended.spans)
        outputs, spans, _ = run_streams_job(plan, scale, inputs, False, factor, 300.0, moved)
        return outputs, elapsed_seconds(spans)

    return Case(step.graph, problem, plan.schedule.starts, plan.quantum / scale * factor, run)


def pipelined_case(ranks: int, pace: float, virtual: bool) -> Case:
    """A step of an MLP in stages of two ranks each, eight micro-batches."""
    step = build_step(build("mlp-8192", batch=32, width=64, layers=ranks + 1), "adam")
    machine = computer("5 Gflop/s", ("boards", ranks // 2, "2 GB/s", "1 us"), ("cores", 2, "4 GB/s", "1 us"))
    job = Job(step.graph, divide(step.graph, step.passes), machine, space("complete"), None)
    plan = search_pairs(job, [(ranks // 2, 8)], Clock(30.0), Fraction(1, 2)).certificate()
    pipe = plan.schedule.subject
    assert isinstance(pipe, Pipeline)
    inputs = random_inputs(step.graph, 1)
    factor = pace / (plan.schedule.makespan * plan.quantum / 1e12)

    def run(starts: Ints) -> tuple[dict[str, Array], float]:
        c = replace(plan, schedule=replace(plan.schedule, starts=starts))
        if virtual:
            ended = run_pipeline(staged_program(c), inputs, 300.0, True, factor)
            outputs, spans = ended.outputs, ended.spans
        else:
            outputs, spans, _ = run_pipeline_job(c, inputs, False, True, 300.0, factor)
        tasks = [s for s in spans if " of stage " in s.name and s.name[0] in "FB"]
        return outputs, elapsed_seconds(tasks)

    tasks = replace(pipe, memory=None).problem()
    return Case(step.graph, tasks, plan.schedule.starts.reshape(-1), plan.quantum / 1e12 * factor, run)


def main(arguments: Sequence[str] | None = None) -> int:
    """The table, and 1 if the correlation is below the bar or a number differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("kind", choices=["overlapped", "pipelined"])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--pace", type=float, default=4.0, help="seconds that the plan's own step lasts")
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    make = overlapped_case if asked.kind == "overlapped" else pipelined_case
    case = make(asked.ranks, asked.pace, asked.virtual)
    expected = run_graph(case.graph, random_inputs(case.graph, 1))
    times = np.array([t.time for t in case.problem.tasks], dtype=np.int64)
    rows: list[tuple[float, float]] = []
    largest = 0.0
    for k, starts in enumerate(chosen := orders(case.problem, case.best, asked.schedules, asked.seed)):
        outputs, seconds = case.run(chosen[0] if asked.control else starts)
        largest = max(largest, worst(outputs, expected, case.graph.results)[0])
        rows.append((float((starts + times).max()) * case.unit, seconds))
        print(f"{k + 1:3}  predicted {rows[-1][0]:8.3f} s  measured {rows[-1][1]:8.3f} s", flush=True)
    predicted, found = (np.array(column) for column in zip(*rows, strict=True))
    rank = spearman(predicted, found)
    excess = found / predicted - 1
    equal = largest <= tolerance_of(["float64"])
    print(f"{asked.kind}, {asked.ranks} {'virtual' if asked.virtual else 'MPI'} ranks, {len(rows)} orders of one plan")
    print(
        f"rank correlation {rank:.3f} (bar {BAR}); measured over predicted {excess.min():+.1%} to {excess.max():+.1%}"
    )
    print(f"largest difference from one process {largest:.2e}: {'equal' if equal else 'DIFFERENT'}")
    return 0 if rank >= BAR and equal else 1


if __name__ == "__main__":
    sys.exit(main())
