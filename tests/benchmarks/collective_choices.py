"""Shows what a training step gains when its reductions choose their collective programs (P2, MLSys 2022): data
parallelism and the planner's own placements, on the two systems of P2.

    steps     of all batch over all devices (`--strategy`), and of the placements that are proved best in the limit
    columns   level by level (hierarchical), one collective each (library), the cheapest of each (synthesised)
"""

from __future__ import annotations

import argparse
import json
import time
from fractions import Fraction

from shardproof.formal.explain.reductions import program_rows
from shardproof.formal.plans.given import plan_strategy
from shardproof.formal.plans.plan import PlacementJob, Planned, plan_graph
from shardproof.formal.plans.strategy import parse_strategy
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Collectives, Machine, load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.models.text import bytes_text
from shardproof.verify.plan.plan import check_plan

SYSTEMS = ("p2-a100:2x16", "p2-a100:4x16", "p2-v100:2x8", "p2-v100:4x8")
SEARCHED = ("p2-a100:2x16", "p2-v100:2x8")
"""Where the planner looks for better placements, too: each system at its smaller size."""
MODELS = (("resnet101", 512), ("bert-large", 512))


def data_parallel(graph: Graph, machine: Machine, seconds: float) -> Planned:
    """The batch over all devices, everything else as it follows."""
    split = {level.name: level.size for level in machine.levels}
    strategy = parse_strategy(json.dumps({"*": {"b": split}}))
    job = PlacementJob(graph, machine, space("one-per-level"), time_limit_s=seconds, gap=Fraction(99, 100))
    found = plan_strategy(strategy, job)
    return found[0]


def planned(graph: Graph, machine: Machine, seconds: float) -> Planned:
    """The placements of the search."""
    return plan_graph(graph, machine, space("one-per-level"), time_limit_s=seconds)


def row(found: Planned) -> tuple[int, str]:
    """Cost in picoseconds, and the programs taken; the plan is checked."""
    assert found.plan is not None and found.answer.solution is not None
    checked = check_plan(found.plan)
    assert checked.verdict.value == "proved", checked.results
    problem = found.planning.problem
    programs = [
        f"{r.count} of {bytes_text(r.least)} to {bytes_text(r.most)}: {r.program}"
        for r in program_rows(found.planning, found.answer.solution)
    ]
    return problem.cost_of(found.answer.solution) * 10**12 // problem.scale, "; ".join(programs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", nargs="*", default=SYSTEMS)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    begun = time.process_time()
    print("| step | system | placements | hierarchical | library | synthesised | gain over the better one |")
    print("|---|---|---|---|---|---|---|")
    notes = []
    for name, batch in MODELS:
        graph = build_step(build(name, batch=batch), "sgd").graph
        for system in asked.systems:
            ways = {"data parallel": data_parallel} | ({"searched": planned} if system in SEARCHED else {})
            for words, how in ways.items():
                costs, programs = {}, ""
                for collectives in Collectives:
                    machine = load_machine(system).with_collectives(collectives)
                    costs[collectives], programs = row(how(graph, machine, asked.seconds))
                least = min(costs[Collectives.HIERARCHICAL], costs[Collectives.LIBRARY])
                assert costs[Collectives.SYNTHESISED] <= least or words == "searched"
                cells = " | ".join(f"{costs[c] / 1e9:.2f} ms" for c in Collectives)
                gain = 1 - costs[Collectives.SYNTHESISED] / least
                print(f"| {name}, batch {batch} | {system} | {words} | {cells} | {gain:.1%} |", flush=True)
                notes.append(f"* {name} on {system}, {words}: {programs}")
    print("\nPrograms that synthesised takes:\n")
    print("\n".join(notes))
    print(f"\n{time.process_time() - begun:.0f} s of the processor, every plan checked.")


if __name__ == "__main__":
    main()
