"""Gap against seconds for BERT-Large training steps with Adam: `python -m shardproof.tests.benchmarks.training_scale`,
or this file with the package on the path.

    training_scale.py [--seconds S] GRAPH MACHINE SPACE [MEMORY_GiB ..]

GRAPH is a graph file (`models.sources.training`, `Graph.to_json`).  Without MEMORY there is no limit; `steps` stands
for three limits between the peak of the plan found without one and what every vertex needs by itself (no plan needs
less).  One row per event in which bound or cost moved.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import replace
from pathlib import Path

from shardproof.formal.selection.answer import Answer
from shardproof.formal.selection.model.factored import whole
from shardproof.formal.selection.model.resources import Rows
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.models.program.graph import Graph

GIB = 1 << 30


class Table:
    """Prints wall and processor seconds, lower bound, cost and gap whenever one of the numbers moves."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.monotonic(), time.process_time()
        self.lower: int | None = None
        self.upper: int | None = None

    def update(self, stage: str, lower: int | None, upper: int | None) -> None:
        """One row."""
        low = self.lower if lower is None else lower if self.lower is None else max(lower, self.lower)
        if (low, upper) == (self.lower, self.upper):
            return
        self.lower, self.upper = low, upper
        gap = "" if low is None or upper is None else f"{100 * (upper - low) / upper:8.3f} %"
        print(
            f"| {time.monotonic() - self.wall:7.1f} | {time.process_time() - self.cpu:7.1f} | {stage:14} | "
            f"{low or '':>14} | {upper or '':>14} | {gap} |",
            flush=True,
        )


def run(problem: SelectionProblem, limit: int | None, seconds: float) -> Answer:
    """One run with its table."""
    limited = replace(problem, limit=None, usages=()) if limit is None else replace(problem, limit=limit)
    print(f"limit {'none' if limit is None else f'{limit / GIB:.2f} GiB'}")
    answer = solve(limited, time_limit_s=seconds, threads=2, progress=Table())
    gap = (
        "-"
        if answer.cost is None or answer.lower_bound is None
        else f"{100 * (answer.cost - answer.lower_bound) / answer.cost:.3f} %"
    )
    peak = "-" if answer.solution is None else f"{problem.peak_of(answer.solution)[0] / GIB:.2f} GiB"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{answer.status.value}: cost {answer.cost}, bound {answer.lower_bound}, gap {gap}, peak {peak}, "
        f"{answer.seconds:.1f} s, planner {memory} MiB\n",
        flush=True,
    )
    return answer


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("graph")
    parser.add_argument("machine")
    parser.add_argument("space")
    parser.add_argument("memory", nargs="*", help="GiB, or `steps`")
    asked = parser.parse_args()
    started = time.monotonic()
    problem = build(
        Graph.from_json(Path(asked.graph).read_text()), load_machine(asked.machine), space(asked.space), 80 * GIB
    ).problem
    print(
        f"{asked.graph} {asked.machine} {asked.space}: {len(problem.vertices)} vertices, {len(problem.edges)} "
        f"edges, built in {time.monotonic() - started:.1f} s"
    )
    free = run(problem, None, asked.seconds) if not asked.memory or "steps" in asked.memory else None
    for word in asked.memory:
        if word != "steps":
            run(problem, int(float(word) * GIB), asked.seconds)
        elif free is not None and free.solution is not None:
            top = problem.peak_of(free.solution)[0]
            least = int(Rows(problem).least(whole(problem)).max())  # no plan needs less
            for part in (0.75, 0.5, 0.25):
                run(problem, int(least + part * (top - least)), asked.seconds)


if __name__ == "__main__":
    main()
