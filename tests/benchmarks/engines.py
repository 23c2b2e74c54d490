"""What do other engines decide?  PaSE's tables and planned models by `--engine ilp` and `smt`, beside the native
search.

    python tests/benchmarks/engines.py [--limit S] [--only WORD] [--data FOLDER]

Each row is one `solve` in this process: decisions, choices, pairs of choices; how many columns and parts the engine was
asked about last, its seconds, whether it decided by its own word, whether its cost is that of the proved optimum; and
the seconds of everything.  Not a test.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from shardproof.formal.plans.plan import default_space
from shardproof.formal.selection.engines.consult import EngineRefused
from shardproof.formal.selection.solve import Engine, solve
from shardproof.models.cost.selection import build as tables
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.models.sources.training.step import training_step
from shardproof.models.sources.zoo import build
from shardproof.proofs.selection.load import load_selection_problem

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

MODELS = (
    ("bert-large", 8, None, "cloud-a100:4x8", None),
    ("transformer", 64, None, "cloud-a100:4x8", None),
    ("mlp-unity", 256, "adam", "cloud-a100:1x8", 2_241_334),
    ("bert-tiny", 8, "adam", "localhost:4", 1_726_241),
    ("bert-large", 64, "adam", "cloud-a100:4x8", None),
)
"""Model, batch, optimizer, machine, memory limit in bytes."""

ENGINES: tuple[Engine, ...] = ("native", "ilp", "smt")


def problems(data: Path) -> Iterator[tuple[str, SelectionProblem]]:
    """PaSE's published tables, then models."""
    for path in sorted((data / "pase").glob("*.json.gz")):
        yield path.name.removesuffix(".json.gz"), load_selection_problem(path)
    for model, batch, optimizer, machine, limit in MODELS:
        graph, target = build(model, batch=batch), load_machine(machine)
        graph = graph if optimizer is None else training_step(graph, optimizer)
        kept = "" if limit is None else f", {limit / 2**20:.2f} MiB"
        yield (
            f"{model} {batch}{'' if optimizer is None else ' ' + optimizer} on {machine}{kept}",
            tables(graph, target, default_space(target), limit).problem,
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--data", type=Path, default=DATA)
    asked = parser.parse_args()
    print(
        "problem | decisions | choices | pairs | engine | columns | parts | rows | engine s | decided | cost is "
        "the optimum | status | all s"
    )
    for name, problem in problems(asked.data):
        if asked.only not in name:
            continue
        pairs = sum(problem.domain_size(e.u) * problem.domain_size(e.v) for e in problem.edges)
        size = (len(problem.vertices), sum(v.cost.size for v in problem.vertices), pairs)
        for engine in ENGINES:
            try:
                answer = solve(problem, time_limit_s=asked.limit, engine=engine, threads=2)
            except EngineRefused as refused:
                print(name, *size, engine, refused, sep=" | ", flush=True)
                continue
            last = answer.asked[-1] if answer.asked else None
            cells = (
                ("-",) * 6
                if last is None
                else (
                    last.columns,
                    last.parts,
                    last.rows,
                    f"{sum(a.seconds for a in answer.asked):.1f}",
                    "yes" if last.decided else last.says,
                    "yes" if last.cost is not None and last.cost == answer.lower_bound else "no",
                )
            )
            print(name, *size, engine, *cells, answer.status.value, f"{answer.seconds:.1f}", sep=" | ", flush=True)


if __name__ == "__main__":
    main()
