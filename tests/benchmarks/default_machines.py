"""What bare sizes (`4x8`) mean since they are a DGX A100: plans of the zoo on it and on P2's cloud machine, and why they differ.

    python tests/benchmarks/default_machines.py [--only WORD]

old, new    cost of the best plan on `cloud-a100` and on `dgx-a100`, both proved
kept        what the old plan would cost on the new machine, more than the new one; operators that are placed differently
by itself   the same, on the old machine with one group of constants of the new one: ports between nodes, links
            inside a node with their measured collectives, devices with their measured products.  The groups that make the old
            plan worse by themselves are the reason for the change

Rows are kept in `results/default-machines.json` as they are made; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from shardproof.formal.plans.plan import plan_graph
from shardproof.models.communication.choices import Choices
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.problem.claims import Status
from shardproof.models.program.graph import Graph
from shardproof.models.sources import zoo
from shardproof.models.sources.training import build_step

RESULTS = Path(__file__).resolve().parent / "results"
STORE, PAGE = RESULTS / "default-machines.json", RESULTS / "default-machines.md"
OLD, NEW = "cloud-a100", "dgx-a100"
CASES: tuple[tuple[str, int, str, str, str], ...] = (
    ("mlp-unity", 64, "adam", "4x8", "complete"),
    ("alexnet", 256, "", "4x8", "complete"),
    ("transformer-layer", 8, "adam", "4x8", "complete"),
    ("dlrm", 2048, "sgd", "4x8", "two-per-level"),
    ("bert-large", 8, "", "4x8", "complete"),
    ("bert-large", 256, "", "32x8", "two-per-level"),
    ("vit", 256, "", "4x8", "two-per-level"),
    ("llama", 32, "adamw", "4x8", "one-per-level"),
    ("moe", 64, "sgd", "4x8", "one-per-level"),
)
"""Model, batch, optimizer, sizes, space."""


def groups(old: Machine, new: Machine) -> dict[str, Machine]:
    """The old machine with one group of the new one's constants."""
    (outer, inner), (ports, links) = old.levels, new.levels
    return {
        "ports": replace(old, levels=(ports, inner)),
        "links": replace(old, levels=(outer, links)),
        "devices": replace(old, device=new.device),
    }


def row(model: str, batch: int, optimizer: str, sizes: str, where: str) -> dict[str, object]:
    """One line of the page."""
    graph = zoo.build(model, batch=batch)
    graph = build_step(graph, optimizer).graph if optimizer else graph
    old, new = load_machine(f"{OLD}:{sizes}"), load_machine(f"{NEW}:{sizes}")
    before, took = solved(graph, old, where)
    after, takes = solved(graph, new, where)
    planning = build(graph, new, space(where))
    kept = cost(planning, before)
    placed = [dict(choices.operators) for choices in (before, after)]
    alone = {}
    for name, machine in groups(old, new).items():
        mixed = build(graph, machine, space(where))
        alone[name] = cost(mixed, before) / solved(graph, machine, where)[1] - 1
    return {
        "model": model + (f" + {optimizer}" if optimizer else ""),
        "batch": batch,
        "machine": sizes,
        "space": where,
        "old_s": took,
        "new_s": takes,
        "kept": kept / takes - 1,
        "operators": len(graph.operators),
        "moved": sum(placed[0][name] != placed[1][name] for name in placed[0]),
        "alone": alone,
    }


def solved(graph: Graph, machine: Machine, where: str) -> tuple[Choices, float]:
    """The best plan and its seconds; SystemExit where no optimum is proved."""
    found = plan_graph(graph, machine, space(where), time_limit_s=600)
    if found.plan is None or found.answer.status is not Status.OPTIMAL:
        raise SystemExit(f"{graph.name} on {machine.name}: not proved")
    return found.plan.choices, cost(found.planning, found.plan.choices)


def cost(planning: Planning, choices: Choices) -> float:
    """Seconds."""
    return planning.problem.cost_of(planning.solution(choices)) / planning.problem.scale


def page(rows: list[dict[str, object]]) -> str:
    """The page."""
    lines = [
        "# Bare sizes are a DGX A100",
        "",
        "Made by `python tests/benchmarks/default_machines.py`.",
        "",
        *(line.strip() for line in (__doc__ or "").split("[--only WORD]")[1].strip().splitlines()),
        "",
        "| model | batch | machine, space | old | new | the old plan on the new machine | placed differently | by itself: ports, links, devices |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        alone = r["alone"]
        assert isinstance(alone, dict)
        lines.append(
            f"| {r['model']} | {r['batch']} | {r['machine']}, {r['space']} | {1e3 * float(str(r['old_s'])):.4g} ms | "
            f"{1e3 * float(str(r['new_s'])):.4g} ms | +{100 * float(str(r['kept'])):.2f} % | {r['moved']} of {r['operators']} | "
            + ", ".join(f"+{100 * v:.2f} %" for v in alone.values())
            + " |"
        )
    return "\n".join([*lines, "", REASONS, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="Only models whose name holds this.")
    options = parser.parse_args()
    rows: list[dict[str, object]] = json.loads(STORE.read_text()) if STORE.is_file() else []
    for case in CASES:
        name = case[0] + (f" + {case[2]}" if case[2] else "")
        if options.only not in name or any((r["model"], r["batch"]) == (name, case[1]) for r in rows):
            continue
        rows.append(row(*case))
        STORE.write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(page(rows))
        print(rows[-1], flush=True)
    PAGE.write_text(page(rows))


REASONS = """Why plans change:

* **Ports between nodes** have 200 GB/s instead of 9 (eight ports of a DGX instead of one card of a cloud node).  Gradients and
  activations that crossed nodes at any price now may: where weights are large, more is split over nodes and less twice inside them.
* **Links inside a node** are measured collectives with a start-up of 10 to 30 us each, where two constants had 5 us a phase.  Small
  operators are kept where their operands are instead of being split further: fewer, larger movements.
* **Devices** have measured tiles of products, 246 Tflop/s where they were assumed to reach 150, and a launch of 3.2 us an operator.  That
  changes costs more than placements: it is the same for most ways to split an operator evenly.

A file of a plan holds its machine, so plans of before are checked as they were; `cloud-a100:4x8` names the old one."""

if __name__ == "__main__":
    main()
