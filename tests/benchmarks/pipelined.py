"""Training steps of large models on pipelines under a memory limit, beside what is left when an ingredient is forbidden.

    python tests/benchmarks/pipelined.py [--only WORD] [--time-limit 600] [--processor] [--memory 80] [--pairs 4:16,8:32]
        [--machine dgx-a100] [--rows FILE]

One line per job and variant: the step found, the least that any of its pairs (stages, micro-batches) takes, the gap, how
much memory the fullest device has, and processor seconds of search and check.  Every plan that is found is checked
(`--no-check`: not).  `--processor`: the time limit counts seconds of the processor, whoever else uses the machine.
`--rows`: lines are kept there as JSON and not made again; without anything left to do the table is printed from it.

    all            stages, micro-batches, placements and schedule together, and without pipelines; nothing is recomputed
    one stage      no pipeline: micro-batches alone        one micro-batch   stages alone
    neither        the step as it is                       recomputed        all, with every block computed again
    no tensor      operators of the passes split the batch alone     no data   nothing is split along the batch
    whole states   every device of a stage has all its parameters and moments

The last three forbid choices; their plans say so in their claim, and the checker forbids them too.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from time import process_time

from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.request import pairs_of
from shardproof.formal.plans.pipelines.search import search_pairs
from shardproof.formal.plans.plan import default_space
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.machine.machine import load_machine
from shardproof.models.pipelines.division import divide
from shardproof.models.problem.claims import Verdict
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.verify.budget import CELLS
from shardproof.verify.pipelines.certificate import check_pipeline

GPT_7B: dict[str, int | str] = {"sequence": 4096, "kv_heads": 32, "hidden": 11008, "vocabulary": 32000}
LLAMA_70B: dict[str, int | str] = {
    "layers": 80, "width": 8192, "heads": 64, "kv_heads": 8, "hidden": 28672, "sequence": 4096
}  # fmt: skip

FORBIDDEN = {"no tensor": "tensor", "no data": "data", "whole states": "sharding"}

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Row:
    """A job and what is enumerated; empty: all of `--pipeline auto`."""

    name: str
    model: str
    batch: int
    sizes: dict[str, int | str]
    machine: str
    variant: str
    pairs: Pairs = ()
    recompute: str = "none"


def rows() -> list[Row]:
    jobs: list[tuple[str, str, int, dict[str, int | str], str, int]] = [
        ("BERT-Large", "bert-large", 128, {}, "4x8", 4),
        ("BERT-Large", "bert-large", 512, {}, "16x8", 4),
        ("7B", "llama", 128, GPT_7B, "4x8", 4),
        ("7B", "llama", 512, GPT_7B, "16x8", 4),
        ("70B", "llama", 512, LLAMA_70B, "32x8", 8),
    ]
    found = []
    for name, model, batch, sizes, machine, stages in jobs:
        job = name, model, batch, sizes, machine
        found += [
            Row(*job, "all"),
            Row(*job, "one stage", tuple((1, 1 << k) for k in range(7) if batch % (1 << k) == 0)),
            Row(*job, "one micro-batch", ((stages, 1),)),
            Row(*job, "neither", ((1, 1),)),
            Row(*job, "recomputed", (), "all"),
            *(Row(*job, word) for word in FORBIDDEN),
        ]
    return found


def solve(row: Row, kind: str, clock: Clock, memory: int, check: bool) -> str:
    """A line of the table."""
    begun = process_time()
    graph = build(row.model, batch=row.batch, **row.sizes)
    step = build_step(graph, "adam", recompute=row.recompute)
    machine = load_machine(f"{kind}:{row.machine}")
    division = divide(step.graph, step.passes)
    pairs = list(row.pairs) or pairs_of("auto", step, machine, division.units, memory)
    words = tuple(word for variant, word in FORBIDDEN.items() if row.variant.startswith(variant))
    found = search_pairs(
        Job(step.graph, division, machine, default_space(machine), memory, words), pairs, clock, Fraction(3, 100)
    )
    best = found.best
    bound = min(found.lower_bound, *(c.bound for c in found.cases)) if best else min(c.bound for c in found.cases)
    used = process_time() - begun
    head = f"| {row.name} | {row.batch} | {row.machine} | {row.variant} | {len(pairs)} "
    if best is None:
        least = "does not fit, proved" if bound >= 1 << 62 else f"none found; at least {bound / 1e9:.1f}"
        return f"{head}| {least} | | | | {used:.0f} | |"
    said = "not checked"
    if check:
        begun = process_time()
        results = check_pipeline(found.certificate(), "seed", 200, CELLS)
        wrong = [r.reason for r in results if r.verdict is not Verdict.PROVED]
        said = f"{f'NOT PROVED: {wrong[0][:80]}' if wrong else 'proved'}, {process_time() - begun:.0f} s"
    return (
        f"{head}| {best.step / 1e9:.1f} | {bound / 1e9:.1f} | {1 - bound / best.step:.1%} | "
        f"{len(best.stages)}:{best.case.micro}, {max(best.memory) / 2**30:.1f} GiB | {used:.0f} | {said} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name, machine and variant hold this")
    parser.add_argument("--time-limit", type=float, default=600.0)
    parser.add_argument("--processor", action="store_true", help="the limit counts seconds of the processor")
    parser.add_argument("--memory", type=int, default=80, help="GiB per device")
    parser.add_argument(
        "--machine", default="cloud-a100", help="whose constants count (dgx-a100: what bare sizes mean)"
    )
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--pairs", default="", help="instead of all that auto enumerates: stages:micro-batches, ..")
    parser.add_argument("--rows", type=Path, help="file that keeps lines, one JSON row each")
    options = parser.parse_args()
    known: dict[str, str] = {}
    if options.rows and options.rows.exists():
        known = {name: line for name, line in map(json.loads, options.rows.read_text().splitlines())}
    print("| job | batch | machine | variant | pairs | step ms | at least ms | gap | plan | processor s | checker |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in rows():
        if options.only not in f"{row.name} {row.machine} {row.variant}":
            continue
        if options.pairs and not row.pairs:
            given = [tuple(int(n) for n in pair.split(":")) for pair in options.pairs.split(",")]
            row = replace(row, pairs=tuple((a, b) for a, b in given), variant=f"{row.variant}, {options.pairs} only")
        if options.machine != "cloud-a100":
            row = replace(row, name=f"{row.name}, {options.machine}")
        name = f"{row} {options.memory}"
        if name not in known:
            clock = Clock(options.time_limit, now=process_time if options.processor else None)
            known[name] = solve(row, options.machine, clock, options.memory << 30, not options.no_check)
            if options.rows:
                with options.rows.open("a") as out:
                    out.write(json.dumps([name, known[name]]) + "\n")
        print(known[name], flush=True)


if __name__ == "__main__":
    main()
