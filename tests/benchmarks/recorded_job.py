"""A recorded pipeline job replayed, and what the best order of its operations would have saved; DualPipe's span.

    python tests/benchmarks/recorded_job.py DIR [--seconds 2]         DIR: pipeline_ST.csv.gz, dualpipe_summary.json.gz

Replay.  Operations of a rank follow each other; what starts together on a rank is one batch; batches of ranks that send
to each other, and collectives, start when the last of them is there, and then take what they took: end - latest start.

    recorded   with the gaps that the host left between two operations of a rank
    no gaps    operations alone: what the job would take if no host ever waited
    typical    durations, gaps and transfers are medians over all other steps: a prediction

Best order.  Forward and backward of every stage and micro-batch with their recorded times, sends with the least transfer
seen in the step, stages ready when their parameters are gathered, any order and any number of activations; what follows
the last backward stays.  The bound is checked by the checker of schedules.

DualPipe.  One forward and one backward chunk of four layers with experts, exchanges beside the compute stream; thirds of
the compute time are forward, gradients of inputs and of weights, in equal halves before and behind an exchange, all
exchanges take the same (assumed: the summary does not say).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from shardproof.formal.schedules.search import search
from shardproof.formal.schedules.shop import shop
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.problem.claims import Verdict
from shardproof.models.schedules.problem import Precedence, ScheduleProblem, Stream, Task
from shardproof.proofs.schedules.certificate import ScheduleCertificate
from shardproof.verify.schedules.certificate import check_schedule

SCALE = 10**7
"""Units per second: the times have seven digits."""


@dataclass
class Batch:
    """What a rank begins at one moment; `key`: what it is, in every step."""

    rank: int
    start: float
    end: float
    key: tuple[object, ...]
    groups: set[tuple[object, ...]] = field(default_factory=set)
    together: list[Batch] = field(default_factory=list)


Row = dict[str, str]


def group_of(row: Row) -> tuple[object, ...] | None:
    """What an operation waits for others in; None: it is alone."""
    op, stage, dp, number = row["op"], int(row["stage"]), row["dp_rank"], row["sequence"]
    match op:
        case "forward-send":
            return "f", dp, stage, number
        case "forward-recv":
            return "f", dp, stage - 1, number
        case "backward-send":
            return "b", dp, stage, number
        case "backward-recv":
            return "b", dp, stage + 1, number
        case "params-all-gather" | "grads-reduce-scatter":
            return op, stage, number
        case "embedding-grads-all-reduce":
            return op, dp, number
        case "optimizer-clip-main-grad":
            return op, number
        case _:
            return None


def batches(rows: Iterable[Row]) -> dict[int, list[Batch]]:
    """Per rank its batches in order, joined with those that they wait for."""
    found: dict[tuple[int, float], Batch] = {}
    members: dict[tuple[object, ...], list[Batch]] = defaultdict(list)
    for row in sorted(rows, key=lambda r: (r["rank"], float(r["start_s"]), r["op"])):
        rank, start = int(row["rank"]), float(row["start_s"])
        end = start + float(row["duration_s"])
        if (rank, start) not in found:
            found[rank, start] = Batch(rank, start, end, (rank,))
        here = found[rank, start]
        here.end = max(here.end, end)
        here.key = (*here.key, row["op"], row["sequence"])
        if (group := group_of(row)) is not None and group not in here.groups:
            here.groups.add(group)
            members[group].append(here)
    for b in found.values():  # whoever is joined, directly or through others
        todo, seen = [b], {id(b)}
        while todo:
            for group in todo.pop().groups:
                for other in members[group]:
                    if id(other) not in seen:
                        seen.add(id(other))
                        todo.append(other)
                        b.together.append(other)
        b.together.append(b)
    out: dict[int, list[Batch]] = defaultdict(list)
    for _, b in sorted(found.items()):
        out[b.rank].append(b)
    return out


Known = dict[tuple[object, ...], tuple[float, float]]
"""Batch -> (gap before it, time from the latest start of those it waits for until its end)."""


def observed(ranks: dict[int, list[Batch]]) -> Known:
    out: Known = {}
    for line in ranks.values():
        before = 0.0
        for b in line:
            out[b.key] = b.start - before, b.end - max(x.start for x in b.together)
            before = b.end
    return out


def replayed(ranks: dict[int, list[Batch]], known: Known, gaps: bool) -> float:
    """Seconds of a step."""
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    at, before = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0.0)
    moved = True
    while moved:
        moved = False
        for rank, line in ranks.items():
            while at[rank] < len(line):
                b = line[at[rank]]
                if id(b) not in starts:
                    starts[id(b)] = before[rank] + (known[b.key][0] if gaps else 0.0)
                    moved = True
                if any(id(x) not in starts for x in b.together):
                    break
                ends[id(b)] = max(starts[id(x)] for x in b.together) + known[b.key][1]
                before[rank] = ends[id(b)]
                at[rank] += 1
                moved = True
    if any(at[rank] < len(line) for rank, line in ranks.items()):
        raise SystemExit("the operations of a step wait for each other")
    return max(ends.values())


def best_order(rows: list[Row], ranks: dict[int, list[Batch]], seconds: float) -> tuple[float, float, float]:
    """(end of the last backward as recorded, in the best order found, and at least), in seconds."""
    compute = [r for r in rows if r["op"] in ("forward-compute", "backward-compute")]
    stages = 1 + max(int(r["stage"]) for r in rows)
    devices = sorted({int(r["rank"]) for r in rows})
    number = {(r["dp_rank"], int(r["stage"]), r["op"][0], int(r["micro_batch"])): k for k, r in enumerate(compute)}
    tasks = [
        Task(str(k), round(float(r["duration_s"]) * SCALE), (devices.index(int(r["rank"])),))
        for k, r in enumerate(compute)
    ]
    origin = len(tasks)
    tasks.append(Task("begin", 0, ()))
    ready = {rank: next(b.end for b in line if "params-all-gather" in b.key) for rank, line in ranks.items()}
    arcs = [Precedence(origin, k, round(ready[int(r["rank"])] * SCALE)) for k, r in enumerate(compute)]
    sends = [
        b.end - max(x.start for x in b.together)
        for line in ranks.values()
        for b in line
        if {g[0] for g in b.groups} & {"f", "b"}
    ]
    lag = max(0, int(min(sends) * SCALE))
    for (dp, s, kind, i), k in number.items():
        if kind == "f":
            arcs.append(Precedence(k, number[dp, s, "b", i], 0))
            if s + 1 < stages:
                arcs.append(Precedence(k, number[dp, s + 1, "f", i], lag))
        elif s:
            arcs.append(Precedence(k, number[dp, s - 1, "b", i], lag))
    streams = tuple(Stream(d, "compute") for d in range(len(devices)))
    problem = ScheduleProblem("recorded", streams, tuple(tasks), tuple(arcs), (), (None,) * len(devices)).check()
    found = search(shop(problem), Clock(seconds))
    certificate = ScheduleCertificate(problem, found.starts, found.makespan, found.lower_bound, found.bound, "best")
    result = check_schedule(certificate)
    if result.verdict is not Verdict.PROVED:
        raise SystemExit(f"the schedule is not proved: {result.reason}")
    recorded = max(float(r["start_s"]) + float(r["duration_s"]) for r in compute)
    return recorded, found.makespan / SCALE, found.lower_bound / SCALE


def dual_pipe(folder: Path, seconds: float) -> list[str]:
    with gzip.open(folder / "dualpipe_summary.json.gz", "rt") as file:
        told = json.load(file)
    span, busy, exchange = told["span_ms"], told["compute_busy_ms"], told["exchange_busy_ms"]
    layers, unit = int(told["moe_layers"]), 10**6
    sent = round(exchange * unit / (4 * layers))
    half = round(busy * unit / 3 / (2 * layers))
    tasks: list[Task] = []
    arcs: list[Precedence] = []

    def task(name: str, time: int, stream: int, before: int | None) -> int:
        tasks.append(Task(name, time, (stream,)))
        if before is not None:
            arcs.append(Precedence(before, len(tasks) - 1))
        return len(tasks) - 1

    forward: int | None = None
    backward: int | None = None
    for k in range(2 * layers):
        forward = task(f"forward {k}", half, 0, forward)
        forward = task(f"exchange {k}", sent, 1, forward)
        backward = task(f"exchange back {k}", sent, 1, backward)
        backward = task(f"input gradient {k}", half, 0, backward)
        task(f"weight gradient {k}", half, 0, backward)
    streams = (Stream(0, "compute"), Stream(0, "exchange"))
    problem = ScheduleProblem("dual", streams, tuple(tasks), tuple(arcs), (), (None,)).check()
    found = search(shop(problem), Clock(seconds))
    result = check_schedule(
        ScheduleCertificate(problem, found.starts, found.makespan, found.lower_bound, found.bound, "best")
    )
    if result.verdict is not Verdict.PROVED:
        raise SystemExit(result.reason)
    bound, best = max(busy, exchange), found.makespan / unit
    hidden = 1 - (best - busy) / exchange
    hides = f"{told['exchange_hidden_fraction']:.1%} of it hidden"
    return [
        f"DualPipe: span {span:.1f} ms, compute {busy:.2f} ms, exchange {exchange:.2f} ms, {hides}",
        f"  bound from the busier stream alone: {bound:.2f} ms, {1 - bound / span:.1%} below the span",
        f"  best schedule of that shape: {best:.2f} ms ({best / span - 1:+.1%} of the span), {hidden:.1%} hidden",
        f"  and no schedule of it below {found.lower_bound / unit:.2f} ms",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    with gzip.open(options.folder / "pipeline_ST.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    steps: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        steps[int(row["step"])].append(row)
    ranks = {n: batches(found) for n, found in steps.items()}
    seen = {n: observed(found) for n, found in ranks.items()}
    near = dict.fromkeys(("recorded", "no gaps", "typical"), 0)
    worst = dict.fromkeys(near, 0.0)
    saved, proved = [], []
    print("| step | measured s | recorded gaps | no gaps | typical | best order saves | at most |")
    print("|---|---|---|---|---|---|---|")
    for n, found in sorted(ranks.items()):
        measured = max(b.end for line in found.values() for b in line)
        others = [known for k, known in seen.items() if k != n]
        keys = seen[n]
        typical: Known = {}
        for key in keys:
            pairs = [known[key] for known in others if key in known] or [keys[key]]
            typical[key] = median(a for a, _ in pairs), median(b for _, b in pairs)
        values = {
            "recorded": replayed(found, keys, True),
            "no gaps": replayed(found, keys, False),
            "typical": replayed(found, typical, True),
        }
        errors = {word: value / measured - 1 for word, value in values.items()}
        for word, error in errors.items():
            near[word] += abs(error) <= 0.01
            worst[word] = max(worst[word], abs(error))
        recorded, best, least = best_order(steps[n], found, options.seconds)
        saved.append((recorded - best) / measured)
        proved.append((recorded - least) / measured)
        print(
            f"| {n} | {measured:.4f} | {errors['recorded']:+.3%} | {errors['no gaps']:+.2%} | {errors['typical']:+.2%} "
            f"| {saved[-1]:.2%} | {proved[-1]:.2%} |",
            flush=True,
        )
    for word, count in near.items():
        print(f"{word}: within 1 % in {count} of {len(ranks)} steps, worst {worst[word]:.2%}")
    print(f"best order: saves {median(saved):.2%} of a step (median), proved at most {median(proved):.2%}")
    for line in dual_pipe(options.folder, options.seconds):
        print(line)


if __name__ == "__main__":
    main()
