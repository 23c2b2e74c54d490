"""Model FLOP utilisation of plans beside published figures, at the published model, batch, sequence and machine.

    python tests/benchmarks/flop_utilisation.py [CASE ..]      plan, and keep what was found
    python tests/benchmarks/flop_utilisation.py --page         write results/flop-utilisation.md

A plan is of one micro-batch; forward and backward count as often as the step has micro-batches, the update once, and so
do movements into it (gradients are added up where they lie).

    utilisation  = 3 x forward work of products and attention / (seconds x devices x nominal dense peak)
    in a row     seconds of the plan: operators and movements one after another (flag no-overlap)
    hidden       the larger of all operators and all movements: what overlap can give at most

The published step is right of both by the same work, so utilisations differ as the seconds do.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from shardproof.formal.explain.cost_table import cost_table
from shardproof.formal.explain.terms import PlanTerms
from shardproof.formal.plans.plan import plan_graph
from shardproof.formal.plans.time_limit import TimeLimit
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.program.operators import NodeKind
from shardproof.models.sources.building.attention import with_fused_gradients
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.models.text import InputError

RESULTS = Path(__file__).parent / "results"
FOUND = RESULTS / "flop-utilisation.json"
PAGE = RESULTS / "flop-utilisation.md"

WORKING = (NodeKind.CONTRACT, NodeKind.GROUPED, NodeKind.ATTENTION)
PRODUCT_FLOPS = 2


@dataclass(frozen=True)
class Case:
    """`batch`: of one of `count` micro-batches.  `published`: seconds of a step (`rate`: flop/s of a device, from which
    they follow by our count of the work); `peak`: nominal dense flop/s; `missing`: what the plan leaves out, in words.
    """

    model: str
    batch: int
    count: int
    machine: str
    precision: str
    optimizer: str
    recompute: str
    published: float
    peak: float
    source: str
    strategy: str
    missing: str
    options: Mapping[str, object] = field(default_factory=dict)
    memory: int = 80 << 30
    rate: float = 0.0


H100, A100 = 989e12, 312e12
DGXC = "NVIDIA/dgxc-benchmarking v25.04 (../shared/data/measured/dgxc)"
CASES: dict[str, Case] = {
    "llama-3-8b": Case(
        "llama-3-8b",
        4,
        32,
        "dgx-h100:1x8",
        "bf16-mixed",
        "adamw:rate=3e-4",
        "none",
        12.27,
        H100,
        f"{DGXC}: 8b, bf16, 8 GPUs, 128 sequences of 8,192",
        "CP 2 x DP 4, distributed optimizer",
        "Missing: overlap. The plan brings weights and gradients together in every micro-batch; the published step keeps weights whole and hides the rest.",
    ),
    "llama-3-70b": Case(
        "llama-3-70b",
        128,
        2,
        "dgx-h100:16x8",
        "bf16-mixed",
        "adamw:rate=1.5e-4",
        "all",
        15.563,
        H100,
        f"{DGXC}: MaxText 70b, bf16, 128 GPUs, 256 sequences of 8,192",
        "FSDP 128",
        "Missing: overlap, which MaxText has by its compiler; and two micro-batches instead of one, since a limit of 80 GiB that counts every received operand leaves no room for two sequences a device.",
    ),
    "gpt-3-175b": Case(
        "gpt-3-175b",
        64,
        4,
        "dgx-h100:16x8",
        "bf16-mixed",
        "adamw:rate=6e-5",
        "none",
        8.309,
        H100,
        f"{DGXC}: 175b, bf16, 128 GPUs, 256 sequences of 2,048",
        "TP 4 x PP 8 (VP 6) x DP 4",
        "Missing: pipeline stages. This plan has none, so the weights of every layer cross the ports of every node in every micro-batch; stages would leave them where they are (`plan --pipeline`).",
    ),
    "mixtral-8x7b": Case(
        "mixtral-8x7b",
        64,
        4,
        "dgx-h100:8x8",
        "bf16-mixed",
        "adamw:rate=1e-4",
        "none",
        0.0,
        H100,
        "NVIDIA/Megatron-LM 022bcb5, megatron/core/transformer/moe/README.md: 468 Tflop/s a GPU, 64 GPUs, 256 x 4,096",
        "EP 8 x PP 4 (VP 8), distributed optimizer",
        "Missing: overlap, and on the other side the bubble of four stages and uneven experts, which the published step pays.",
        rate=468e12,
    ),
    "resnet-50": Case(
        "resnet101",
        2048,
        1,
        "dgx-a100:1x8",
        "bf16-master",
        "sgd",
        "none",
        2048 / 16621,
        A100,
        "NVIDIA/DeepLearningExamples 291f0d0, PyTorch ResNet50 v1.5: 16,621 images/s, AMP, 8 x A100 80 GB, 256 a GPU",
        "DP 8",
        "Missing: fused kernels. Batch norm, ReLU and addition are operators of their own here and pass over memory each; the model pads images to 114 x 114 behind the stem (112 in the published one, 3.6 % less work); convolutions are priced by the roofline.",
        {"blocks": "3-4-6-3"},
    ),
}
"""What is compared."""


def forward_work(graph: Graph) -> int:
    """Operations of products, experts and attention of a model without its step; those of an even group once."""
    return sum(graph.work(op) for op in graph.operators if op.kind in WORKING)


def run(name: str, case: Case, seconds: float) -> dict[str, object]:
    """Plan one case; raises `InputError` where nothing was found."""
    began = time.process_time()
    # what was published runs all gradients of an attention as one kernel, which is what the machines' forms measure
    model = with_fused_gradients(zoo(case.model, batch=case.batch, **case.options))
    step = build_step(model, case.optimizer, None, recompute=case.recompute, precision=case.precision)
    limit = TimeLimit(Clock(seconds))
    found = plan_graph(
        step.graph,
        load_machine(case.machine),
        space("one-per-level"),
        case.memory,
        gap=Fraction(3, 100),
        time_limit_s=seconds,
        limit=limit,
    )
    if found.plan is None or found.answer.solution is None:
        raise InputError(f"{name}: no plan ({found.answer.status.value})")
    planning, x = found.planning, found.answer.solution
    phase = {op.name: p for op, (p, _) in zip(step.graph.operators, step.passes, strict=True)}
    times = {"operators": {"FB": 0, "U": 0}, "movements": {"FB": 0, "U": 0}}
    formulas: dict[str, int] = {}
    for row in cost_table(planning, x):
        part = "U" if phase[row.operator] == "U" else "FB"
        times["operators"][part] += row.time
        key = f"{row.function}: {row.formula}"
        formulas[key] = formulas.get(key, 0) + row.time
    terms = PlanTerms(planning)
    updated = {tensor for _, tensor in step.graph.state}
    for e, route in enumerate(planning.routes):
        reader = planning.decisions[route.target].name
        late = phase.get(reader) == "U" or route.tensor in updated
        parts = terms.edge_parts(e, x)
        times["movements"]["U" if late else "FB"] += parts.summing + parts.moving
    scale = planning.problem.scale
    bound, cost = found.answer.lower_bound or 0, found.answer.cost or 1
    ranked = sorted(formulas.items(), key=lambda item: -item[1])
    return {
        "case": name,
        "operators": len(step.graph.operators),
        "seconds": {k: {p: v / scale for p, v in t.items()} for k, t in times.items()},
        "forward_work": forward_work(model),
        "gap": (cost - bound) / cost,
        "assumptions": sorted(planning.problem.assumptions),
        "formulas": {k: v / scale for k, v in ranked[:8]},
        "processor_seconds": round(time.process_time() - began, 1),
        "recompute": case.recompute,
        "machine_sha256": planning.machine.sha256(),
    }


def main(arguments: list[str]) -> int:
    """Plan the cases, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="CASE")
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args(arguments)
    known = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    if options.page:
        from flop_utilisation_page import page

        PAGE.write_text(page(known), encoding="utf-8")
        return 0
    for name in options.cases or CASES:
        found = run(name, CASES[name], options.seconds)
        known = (json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}) | {name: found}
        FOUND.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(json.dumps(known[name]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
