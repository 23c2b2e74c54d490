"""Training steps with few micro-batches, with and without several chunks of the model on every stage.

    python tests/benchmarks/interleaved.py [--only WORD] [--time-limit 300] [--machine cloud-a100] [--chunks 2,4]

One line per job and number of chunks, each enumerated alone: the step found, the least that any plan with so many chunks
takes, the gap, bytes of the fullest device, processor seconds of search and check, the checker's verdict; and for
several chunks whether their plan takes less than anything with one chunk can (the bound of the first line).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from fractions import Fraction
from time import process_time

from shardproof.formal.plans.pipelines.job import Job
from shardproof.formal.plans.pipelines.outcome import SearchOutcome
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

MEMORY = 80 << 30
GAP = Fraction(1, 100)


@dataclass(frozen=True)
class Row:
    """A job with its stages and micro-batches."""

    name: str
    model: str
    batch: int
    machine: str
    stages: int
    micro: int
    sizes: dict[str, int | str] = field(default_factory=dict)


GPT_7B: dict[str, int | str] = {"sequence": 4096, "kv_heads": 32, "hidden": 11008, "vocabulary": 32000}
ROWS = (
    Row("BERT, 12 layers", "bert-large", 32, "1x4", 4, 4, {"layers": 12}),
    Row("BERT, 12 layers", "bert-large", 64, "1x4", 4, 8, {"layers": 12}),
    Row("BERT-Large", "bert-large", 64, "1x8", 4, 4),
    Row("BERT-Large", "bert-large", 64, "1x8", 4, 8),
    Row("BERT-Large", "bert-large", 128, "4x8", 4, 8),
    Row("7B", "llama", 4, "4x8", 4, 4, GPT_7B),
    Row("7B", "llama", 8, "4x8", 4, 8, GPT_7B),
    Row("7B", "llama", 16, "4x8", 4, 16, GPT_7B),
)


def line(row: Row, chunks: int, found: SearchOutcome, spent: float, alone: int | None) -> str:
    """A line of the table; `alone`: what nothing with one chunk goes below."""
    best, head = found.best, f"| {row.name} | {row.batch} | {row.machine} | {row.stages}:{row.micro} | {chunks} "
    if best is None:
        return f"{head}| none found | {found.lower_bound / 1e9:.2f} | | | {spent:.0f} | | |"
    begun = process_time()
    results = check_pipeline(found.certificate(), "seed", 200, CELLS)
    wrong = [r.reason for r in results if r.verdict is not Verdict.PROVED]
    said = f"{f'NOT PROVED: {wrong[0][:80]}' if wrong else 'proved'}, {process_time() - begun:.0f} s"
    wins = "" if alone is None or best.step >= alone else f"{1 - best.step / alone:.1%} less than any with one chunk"
    return (
        f"{head}| {best.step / 1e9:.2f} | {found.lower_bound / 1e9:.2f} | {1 - found.lower_bound / best.step:.1%} | "
        f"{max(best.memory) / 2**30:.1f} GiB | {spent:.0f} | {said} | {wins} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--time-limit", type=float, default=300.0)
    parser.add_argument("--machine", default="cloud-a100")
    parser.add_argument("--chunks", default="2,4")
    asked = parser.parse_args()
    print(
        "| job | batch | machine | stages:micro-batches | chunks | step ms | at least ms | gap | fullest | search s | check | |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for row in ROWS:
        if asked.only not in f"{row.name} {row.batch} {row.machine}":
            continue
        step = build_step(build(row.model, batch=row.batch, **row.sizes), "adam")
        machine = load_machine(f"{asked.machine}:{row.machine}")
        job = Job(step.graph, divide(step.graph, step.passes), machine, default_space(machine), MEMORY)
        alone: int | None = None
        for chunks in (1, *map(int, asked.chunks.split(","))):
            begun, clock = process_time(), Clock(asked.time_limit)
            pairs, triples = ([(row.stages, row.micro)], []) if chunks == 1 else ([], [(row.stages, row.micro, chunks)])
            found = search_pairs(job, pairs, clock, GAP, None, triples)
            print(line(row, chunks, found, process_time() - begun, alone), flush=True)
            alone = found.lower_bound if chunks == 1 else alone


if __name__ == "__main__":
    main()
