"""The seven models of Unity's evaluation (OSDI 2022, table 1) on Summit with 6 to 192 GPUs: four ways to plan a training
step.

    python tests/benchmarks/seven_models.py [--only WORD] [--gpus 6,192] [--seconds 60] [--again] [--page]

runs the rows that are not there yet (--again: also those of other code than this), and writes the page from all rows
(--page; --gpus "" runs nothing before).  All 42 rows take about half an hour of the processor.

    data parallel    the batch over all GPUs in every operator of the forward pass, parameters whole everywhere
    expert           BERT-Large: Megatron, heads and feed-forward width over the sockets of a node, the batch over the rest;
                     DLRM, XDL: tables as the solver likes, dense layers data parallel; CANDLE-Uno: towers as the solver
                     likes, but not their batch, the layers behind them data parallel; others: none in the paper
    placement        the graph as it is, all placements
    algebra first    the best program on one GPU, then its best placement (TASO, then FlexFlow)
    joint            program and placement together

What a strategy leaves open (gradients, updates, copies) is completed by the solver, in its favour.  Times are those of
our cost model of Summit; search times are seconds of the processor.  Rows are appended one by one to
`results/seven-models.jsonl`, so the script can be stopped and started again; the last row of a model and its GPUs counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardproof.formal.plans.plan import default_space
from shardproof.formal.plans.simple import named_plans
from shardproof.formal.plans.strategy import Rule, Strategy, apply
from shardproof.formal.rewriting.joint.growth import safe
from shardproof.formal.rewriting.joint.rules.worth import worth
from shardproof.formal.rewriting.joint.saturate import SEARCHED
from shardproof.formal.rewriting.joint.solve import joint_plan, plan_jointly
from shardproof.formal.selection.answer import Answer
from shardproof.formal.selection.model.clock import Clock
from shardproof.formal.selection.model.restrict import restrict
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import Planning, build
from shardproof.models.joint.problem import JointPlanning, JointSubject, build_joint
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.program.graph import Graph, Role
from shardproof.models.sources import zoo
from shardproof.models.sources.training import build_step
from shardproof.proofs.plan.bundle import write_plan
from shardproof.verify.joint.plan import check_any_plan

RESULTS = Path(__file__).resolve().parent / "results"
ROWS, PAGE = RESULTS / "seven-models.jsonl", RESULTS / "seven-models.md"
GPUS = (6, 12, 24, 48, 96, 192)
LIMIT_S, MOST_GAP = 60.0, 0.02
Sizes = dict[str, int]
Row = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """`batch`: examples per GPU.  `free`: whether a forward operator is left open by the expert; None: no expert.
    `paper`: speedup over the best other system in figure 14, in words of section 6.2.
    """

    name: str
    batch: int
    optimizer: str
    sizes: Sizes
    paper: str
    free: Callable[[str], bool] | None = None


def _tables(name: str) -> bool:
    return name.startswith("table")


def _towers(name: str) -> bool:
    return name.startswith(("cell.", "drug"))


MODELS = (
    Model("mlp-8192", 256, "sgd", {"layers": 16}, "2.0"),
    Model("dlrm", 1024, "sgd", {}, "up to 3.6", _tables),
    Model("xdl", 1024, "sgd", {}, "1.9", _tables),
    Model("candle-uno", 256, "sgd", {}, "up to 1.6", _towers),
    Model("bert-large", 4, "adam", {}, "1.0 (Megatron)", lambda name: False),
    Model("resnext50", 64, "sgd", {}, "1.0"),
    Model("inception-v3", 64, "sgd", {}, "1.3"),
)


def clock(seconds: float) -> Clock:
    """A limit in seconds of the processor: the machine of these runs is shared."""
    return Clock(seconds, now=time.process_time)


def main() -> None:
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--only", default="")
    words.add_argument("--gpus", default=",".join(map(str, GPUS)))
    words.add_argument("--seconds", type=float, default=60.0)
    words.add_argument("--page", action="store_true")
    words.add_argument("--rows", type=Path, default=ROWS)
    words.add_argument("--check", action="store_true", help="check every joint plan too")
    words.add_argument("--shrink", action="store_true", help="small sizes, for tests")
    words.add_argument("--again", action="store_true", help="rows of other code are run again")
    asked = words.parse_args()
    code = code_of()
    there = {(r["model"], r["gpus"]) for r in rows(asked.rows) if not asked.again or r.get("code") == code}
    for gpus in sorted(map(int, filter(None, asked.gpus.split(","))), reverse=True):
        for model in MODELS:
            if asked.only in model.name and (model.name, gpus) not in there:
                row = measured(model, gpus, asked.seconds, SMALL if asked.shrink else {}, asked.check) | {"code": code}
                with asked.rows.open("a") as f:
                    f.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    if asked.page:
        PAGE.write_text(page(list(rows(asked.rows))))


def code_of() -> str:
    """Which code a row is of: a hash of what plans."""
    home = Path(__file__).resolve().parents[2]
    files = sorted(p for room in ("models", "proofs", "verify", "formal") for p in (home / room).rglob("*.py"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()[:12]


def rows(path: Path) -> Iterator[Row]:
    """What was measured last of every model and number of GPUs."""
    if path.exists():
        yield from {(r["model"], r["gpus"]): r for r in map(json.loads, path.read_text().splitlines())}.values()


SMALL: dict[str, Sizes] = {
    "mlp-8192": {"layers": 2},
    "candle-uno": {"tower": 1, "layers": 1},
    "bert-large": {"layers": 1},
    "dlrm": {"tables": 2},
}


def measured(model: Model, gpus: int, seconds: float, smaller: dict[str, Sizes], check: bool = False) -> Row:
    """One row: milliseconds and processor seconds of every way."""
    forward = zoo.build(model.name, batch=model.batch * gpus, **(model.sizes | smaller.get(model.name, {})))
    graph = build_step(forward, model.optimizer).graph
    machine = load_machine(f"summit:{gpus // 6}x2x3")
    where = default_space(machine)
    row: Row = {"model": model.name, "gpus": gpus, "space": where.name, "operators": len(graph.operators)}

    began = time.process_time()
    planning = build(graph, machine, where)
    whole = solve(planning.problem, clock=clock(seconds))
    row |= _named("placement", planning, whole, began)
    for name, domains in (
        ("data parallel", data_parallel(forward, planning, lambda name: False)),
        ("expert", expert(model, forward, planning)),
    ):
        if domains is not None:
            began = time.process_time()
            row |= _named(name, planning, solve(restrict(planning.problem, domains).inner, clock=clock(seconds)), began)

    began = time.process_time()
    program = best_alone(graph, machine, seconds)
    apart = planning if program is None else build(program, machine, where)
    row |= _named("algebra first", apart, solve(apart.problem, clock=clock(seconds)), began)

    began = time.process_time()
    joint = plan_jointly(graph, machine, where, clock=clock(seconds))
    row |= _named("joint", joint.planning, joint.answer, began)
    row["rules"] = len(joint.planning.egraph.operators) - len(graph.operators)
    if joint.answer.solution is not None:
        program_, _ = joint.planning.plan(joint.answer.solution)
        own = {op.name for op in graph.operators}
        row["rewritten"] = sum(op.name not in own for op in program_.operators)
    plan = joint_plan(joint) if check else None
    if plan is not None:
        began = time.process_time()
        row["check"] = check_any_plan(write_plan(None, plan)).verdict.value
        row["check s"] = round(time.process_time() - began, 1)
    return row


def _named(name: str, planning: Planning | JointPlanning, answer: Answer, began: float) -> Row:
    return milliseconds(name, planning, answer) | {f"{name} s": round(time.process_time() - began, 1)}


def milliseconds(name: str, planning: Planning | JointPlanning, answer: Answer) -> Row:
    """Cost of an answer and its gap, None where there is none."""
    gap = None if answer.cost is None or answer.lower_bound is None else float(answer.gap())
    cost = None if answer.cost is None else round(answer.cost / planning.problem.scale * 1e3, 6)
    return {name: cost, f"{name} gap": gap}


def data_parallel(forward: Graph, planning: Planning, free: Callable[[str], bool]) -> dict[int, tuple[int, ...]] | None:
    """The batch split in all forward operators that are not free, their parameters whole on every device."""
    found = dict(named_plans(planning)).get("the batch split over all devices")
    if found is None:
        return None
    fixed = {planning.operators[op.name] for op in forward.operators if not free(op.name)}
    held = {a.tensor for op in forward.operators if not free(op.name) for a in op.inputs}
    for t in forward.tensors:
        if t.role is Role.PARAMETER and t.name in held and t.name in planning.copies:
            fixed.add(planning.copies[t.name])
    return {v: (found[v],) for v in fixed}


def expert(model: Model, forward: Graph, planning: Planning) -> dict[int, tuple[int, ...]] | None:
    """Choices that the expert's strategy leaves."""
    if model.free is None:
        return None
    if model.name == "bert-large":
        return apply(megatron(forward, planning.machine), planning)
    domains = data_parallel(forward, planning, model.free)
    if domains is not None and model.name == "candle-uno":
        for op in forward.operators:
            if model.free(op.name):
                v = planning.operators[op.name]
                d = planning.decisions[v]
                degrees = d.placements.prod(axis=2)[:, d.axes.index("b")]
                domains[v] = tuple(int(k) for k in (degrees == 1).nonzero()[0])
    return domains


def megatron(forward: Graph, machine: Machine) -> Strategy:
    """Heads and feed-forward width over the sockets; the batch over nodes and the GPUs of a socket."""
    nodes, sockets, gpus = machine.levels
    out = []
    for op in forward.operators:
        inner = next((a.name for a in op.axes if a.name in ("h", "f")), None)
        if op.name.startswith("embedding.") or not any(a.name == "b" for a in op.axes):
            continue
        batch = ("b", ((nodes.name, nodes.size), (gpus.name, gpus.size)))
        out.append(Rule(op.name, (batch, *(() if inner is None else ((inner, ((sockets.name, sockets.size),)),)))))
    return Strategy(tuple(out), "megatron")


def best_alone(graph: Graph, machine: Machine, seconds: float) -> Graph | None:
    """The best program on one GPU, as the rules make it."""
    one = load_machine("summit:1x1x1")
    egraph, derivation = safe(graph, SEARCHED, pays=worth(one))
    joint = build_joint(JointSubject(egraph, derivation.rounds, one, space("complete"), level=2))
    answer = solve(joint.problem, clock=clock(seconds))
    return None if answer.solution is None else joint.plan(answer.solution)[0]


WAYS = ("data parallel", "expert", "placement", "algebra first")


def dearer(row: Row) -> list[str]:
    """Ways that cost less than the joint plan: there must be none."""
    joint = row["joint"]
    return [way for way in WAYS if joint is None or (row.get(way) is not None and row[way] < joint)]


def page(found: list[Row]) -> str:
    """The page of all rows."""
    names = [m.name for m in MODELS]
    found = sorted(found, key=lambda r: (names.index(r["model"]), r["gpus"]))
    out = [
        HEAD,
        "| model | GPUs | data parallel ms | expert | placement | algebra first | joint | gap | rewritten | s |",
    ]
    out.append("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for r in found:
        cells = [_ms(r.get(way)) for way in (*WAYS, "joint")]
        out.append(
            f"| {r['model']} | {r['gpus']} | {' | '.join(cells)} | {in_words(r['joint gap'])} | {r.get('rewritten', '')} of "
            f"{r['operators']} | {r['joint s']} |"
        )
    wrong = [f"{r['model']} on {r['gpus']}: {', '.join(dearer(r))}" for r in found if dearer(r)]
    out += ["", f"Joint plans that cost more than another way: {'; '.join(wrong) or 'none'}.", ""]
    out += [SPEEDUPS, "| model | GPUs | over data parallel and expert | over algebra first | Unity, figure 14 |"]
    out.append("|---|---:|---:|---:|---:|")
    for r in found:
        others = [r[way] for way in WAYS[:2] if r.get(way) is not None]
        paper = next(m.paper for m in MODELS if m.name == r["model"])
        best, first = (_times(v, r["joint"]) for v in (min(others, default=None), r["algebra first"]))
        out.append(f"| {r['model']} | {r['gpus']} | {best} | {first} | {paper} |")
    out += [
        "",
        TABLE_2,
        "| GPUs | Unity | here, s | tables and search of the placement alone, s |",
        "|---:|---:|---:|---:|",
    ]
    for r in found:
        if r["model"] == "resnext50":
            paper = UNITY_SEARCH.get(r["gpus"], "")
            out.append(f"| {r['gpus']} | {paper} | {r['joint s']} | {r['placement s']} |")
    return "\n".join([*out, "", *short(found), "", DIFFERENCES])


def short(found: list[Row]) -> list[str]:
    """What the page must say of its own rows."""
    late = [f"{r['model']} on {r['gpus']} ({r['joint s']} s)" for r in found if r["joint s"] > LIMIT_S]
    wide = [f"{r['model']} on {r['gpus']}" for r in found if r["joint gap"] is None or r["joint gap"] > MOST_GAP]
    run = {(r["model"], r["gpus"]) for r in found}
    missing = [f"{m.name} on {g}" for m in MODELS for g in GPUS if (m.name, g) not in run]
    checked = [r for r in found if "check" in r]
    code = code_of()
    old = sum(r.get("code") != code for r in found)
    return [
        "## What falls short",
        "",
        f"* Joint searches of more than {LIMIT_S:g} s: {'; '.join(late) or 'none'}. Gaps of more than {MOST_GAP:.0%}: {'; '.join(wide) or 'none'}.",
        f"* Not run: {', '.join(missing) or 'nothing'}. Run by other code than that of this page: {old} of {len(found)} rows.",
        f"* Checked (`--check`): {len(checked)} joint plans, of which {sum(r['check'] == 'proved' for r in checked)} are proved.",
    ]


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def in_words(value: float | None) -> str:
    """A gap."""
    return "" if value is None else "proved" if value == 0 else f"{value:.3%}"


def _times(a: float | None, b: float | None) -> str:
    return "" if a is None or b is None else f"{a / b:.3f}"


HEAD = """# The seven models of Unity's evaluation on Summit

`python tests/benchmarks/seven_models.py` (rows, one after another; stopped and started again at will), `--page` (this page).
Milliseconds of one training step by our cost model of `summit`, nodes of two sockets with three GPUs; batch per GPU, optimizers and sizes as in section 6.1 of the paper and its published programs.  `s`: processor seconds of the joint search, tables
included, limit 60.  `gap`: between the joint plan and the proved bound over all programs of the e-graph and all placements of the space (`complete` up to 64 GPUs, `two-per-level` beyond).  `rewritten`: operators of the chosen program that are not the user's.
"""

SPEEDUPS = """## Speedups

Beside what section 6.2 prints of figure 14 (throughput over the best other system; bars are not printed as numbers).  Figure 15b, joint over sequential optimisation on 96 GPUs: up to 1.4.
"""

UNITY_SEARCH = {6: "57 s", 12: "1 min 47 s", 24: "3 min 0 s", 48: "5 min 55 s"}

TABLE_2 = """## Search times beside table 2 (ResNeXt-50)

Unity's column is "All" (graphs split, cached, dynamic programming), on its own machine; without splitting it takes 4 min on 6 GPUs and more than an hour on 24.  Here nothing is split: one problem holds all programs and placements; equal structures share their tables.
Unity needs up to 10 minutes on 192 GPUs, 20 for Inception-v3.
"""

DIFFERENCES = """## What differs from the paper

* **Times are predicted**, nominal peaks and the bandwidths of `models/machine/builtin/summit.toml`; the paper measures.  A GPU that reaches a third of its peak computes three times as long, and whatever saves communication then gains less.
* **Our baselines are stronger.**  What a strategy leaves open is completed optimally: data parallel here may sum gradients in pieces and bring rows of a table together instead of its dense gradient.  "Algebra first" places with all dimensions, as in the
  paper's figure 15b, not with FlexFlow's.  So ratios are smaller than in figure 14.
* **No memory limit.**  The paper could not run DLRM and CANDLE-Uno data parallel; with the tables of the published script (8 of 1,000,000 rows of 64) DLRM fits here.
* **Expert of CANDLE-Uno**: the paper says only that communication-intensive operators are model parallel; here the towers are, in the best way without their batch.
* **Megatron** splits over the two sockets of a node: 16 heads do not divide by three.
* **Programs**: seventeen rules, of which fused products, relu's gradient, products of parts and copies read through apply here, on one GPU of `summit` siblings do not pay; Unity generates 651 substitutions.  Softmax, norms and pools are rewritten where nothing else reads what lies between, hence not in training steps.
* **Branches on parts of the machine** (Unity's machine views) are not in this space: every operator runs on all GPUs.  No pipelines (as in figure 14).
* **Search times** are seconds of one processor in Python, tables of both ends included, against Unity's seconds of the wall.
"""


if __name__ == "__main__":
    main()
