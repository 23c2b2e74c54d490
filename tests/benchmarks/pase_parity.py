"""PaSE's five models at 4 to 64 devices: our training-step plans beside PaSE's strategies, in both cost models.

    python tests/benchmarks/pase_parity.py [--data FOLDER] [--only MODEL[:P]] [--store FILE.json] [--render FILE.md]

Ours: zoo model, batch 128 (that of PaSE's tables), `--train sgd`, machine `pase-1080ti` (p <= 8: one node, space
`complete`; above: p / 8 nodes of 8, space `two-per-level`; `16flat`: 16 devices in one node).  PaSE: the strategy of
the data set `pase` (p = 4, 8, 16; it has none for 32 and 64).  Nodes are matched to forward operators by kind and
extents.

    ours            the plan's time in our model, with its certified gap
    data parallel   batch split over all devices in every operator that has one, the rest replicated, layouts of tensors
                    left to the solver
    PaSE's in ours  every matched forward operator has PaSE's degrees (any assignment to levels), all else is completed
                    by the solver: PaSE's strategy gets the cheapest backward pass, optimizer and layouts there are
    on PaSE's tables   their optimum and data parallel; and ours: matched nodes have our degrees where their list of
                       configurations has them, the
                    rest completed

Rows already in the store are not computed again; a row takes 1 to 60 CPU seconds.  Not a test.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from shardproof.formal.selection.answer import Answer
from shardproof.formal.selection.model.restrict import restrict
from shardproof.formal.selection.solve import solve
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.models.program.graph import Graph
from shardproof.models.program.operators import NodeKind, Operator
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.selection.load import load_selection_problem

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "pase"
BATCH = 128
MODELS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "alexnet": ("alexnet", {}),
    "inception3": ("inception-v3", {}),
    "resnet101": ("resnet101", {}),
    "rnnlm": ("rnnlm", {"steps": 256}),
    "transformer": ("transformer", {}),
}
SIZES = (4, 8, 16, 32, 64)
LIMIT_S = 120.0

# the paper's Table I, seconds of search: breadth first, FlexFlow, PaSE (batch 128 for CNNs, 64 otherwise)
PUBLISHED = {
    "alexnet": {4: (0.234, 2.54, 0.226), 8: (0.260, 2.77, 0.253), 16: (0.303, 6.98, 0.295)},
    "inception3": {4: (None, 69.21, 14.398), 8: (None, 146.51, 20.018), 16: (None, 365.82, 39.791)},
    "rnnlm": {4: (0.070, 107.07, 0.057), 8: (0.084, 164.29, 0.086), 16: (0.109, 432.19, 0.069)},
    "transformer": {4: (None, None, 9.752), 8: (None, None, 28.798), 16: (None, None, 130.882)},
}


@dataclass(frozen=True)
class Match:
    """Node `node` of PaSE's graph is forward operator `operator`; `axes`: its axis -> position in the node's domain."""

    node: int
    operator: str
    axes: dict[str, int]


Node = Mapping[str, object]


def numbers(value: object) -> list[int]:
    """A list of integers of the data set."""
    if not isinstance(value, list):
        raise TypeError("a list was expected")
    return [int(x) for x in value]


def matches(nodes: Sequence[Node], graph: Graph) -> list[Match]:
    """Nodes in file order take the first operator in graph order that is free and fits.  An LSTM node has no single
    operator here.
    """
    free = [op for op in graph.operators if op.kind in (NodeKind.CONTRACT, NodeKind.GATHER)]
    out = []
    for n, node in enumerate(nodes):
        kind, dom = str(node["name"]).split(":")[1], numbers(node["dom"])
        wanted = 1
        if kind == "Einsum" and len(dom) == 6:  # q, k, v in one
            wanted = dom[0]
        for _ in range(wanted if kind in ("Conv", "FC", "Einsum") else 0):
            found = next(((op, axes) for op in free if (axes := _fits(kind, dom, op)) is not None), None)
            if found is not None:
                free.remove(found[0])
                out.append(Match(n, found[0].name, found[1]))
    return out


def _fits(kind: str, dom: Sequence[int], op: Operator) -> dict[str, int] | None:
    extent = {a.name: a.extent for a in op.axes}
    if kind == "Conv":
        names = ("b", "c", "y", "x", "ky", "kx", "o")
        if set(names) == set(extent) and [extent[a] for a in names] == list(dom):
            return {a: k for k, a in enumerate(names)}
        return None
    shift = 1 if len(dom) == 6 else 0
    outer = list(op.output.axes)
    rows = str(op.attribute("rows", "")) if op.kind is NodeKind.GATHER else ""
    inner = [rows] if rows else [a.name for a in op.reduction_axes]
    split = len(dom) - (1 if kind == "FC" or rows or len(inner) == 1 else len(inner))
    left, right = list(range(shift, split)), list(range(split, len(dom)))
    if "ky" in extent or [e for e in sorted(extent[a] for a in outer)] != sorted(dom[k] for k in left):
        return None
    if prod(extent[a] for a in inner) != prod(dom[k] for k in right):
        return None
    axes: dict[str, int] = {}
    for k in left:
        axis = next(a for a in outer if extent[a] == dom[k] and a not in axes)
        axes[axis] = k
    if len(inner) == len(right):
        for k in right:
            axes[next(a for a in inner if extent[a] == dom[k] and a not in axes)] = k
    else:
        axes[inner[0]] = right[0]  # a flattened contraction splits on its leading digit
    return axes


def with_degrees(planning: Planning, operator: str, degrees: Mapping[str, int]) -> tuple[int, ...]:
    """Choices of an operator whose axes have exactly these degrees over all levels (1 where not named)."""
    v = planning.operators[operator]
    decision = planning.decisions[v]
    total = decision.placements.prod(axis=2)
    wanted = [degrees.get(a, 1) for a in decision.axes]
    return tuple(int(i) for i in (total[:, :-1] == wanted).all(axis=1).nonzero()[0])


def completed(problem: SelectionProblem, allowed: Mapping[int, tuple[int, ...]]) -> Answer:
    """The best solution with these choices."""
    small = restrict(problem, allowed)
    return solve(small.inner, time_limit_s=LIMIT_S)


def batch_axis(dom: Sequence[int]) -> int | None:
    """Position of the batch in a node's domain."""
    return list(dom).index(BATCH) if BATCH in dom else None


def row(model: str, p: int, data: Path, flat: bool = False) -> dict[str, object]:
    """All figures of one model at one number of devices; `flat`: in one node, which is all that PaSE's cost model
    knows.
    """
    name, options = MODELS[model]
    graph = zoo(name, batch=BATCH, **options)
    step = build_step(graph, "sgd").graph
    machine = load_machine(f"pase-1080ti:1x{p}" if p <= 8 or flat else f"pase-1080ti:{p // 8}x8")
    start = time.monotonic(), time.process_time()
    where = space("complete" if p <= 8 else "two-per-level")
    planning = build(step, machine, where)
    problem = planning.problem
    best = solve(problem, time_limit_s=LIMIT_S)
    out: dict[str, object] = {
        "model": model,
        "p": p,
        "machine": "x".join(map(str, machine.hierarchy)),
        "space": where.name,
        "operators": len(step.operators),
        "wall_s": round(time.monotonic() - start[0], 2),
        "cpu_s": round(time.process_time() - start[1], 2),
        "ours": best.cost,
        "bound": best.lower_bound,
        "scale": problem.scale,
    }
    if best.solution is None:
        return out
    parallel: dict[int, tuple[int, ...]] = {}
    for op in step.operators:
        splits = with_degrees(planning, op.name, {"b": p}) if any(a.name == "b" for a in op.axes) else ()
        parallel[planning.operators[op.name]] = splits or with_degrees(planning, op.name, {})
    out["data_parallel"] = completed(problem, parallel).cost
    chosen = {
        op.name: planning.decisions[v].placement(best.solution[v])
        for op in graph.operators
        if (v := planning.operators.get(op.name)) is not None
    }
    file = data / f"{model}-p{p}.json.gz"
    if not file.exists():
        out["strategy"] = {
            op.name: {a.name: d for a in op.axes if (d := chosen[op.name].degree(a.name)) > 1}
            for op in graph.operators
            if op.kind in (NodeKind.CONTRACT, NodeKind.GATHER) and op.name in chosen
        }
        return out
    content = json.loads(gzip.decompress(file.read_bytes()))
    nodes, x = content["nodes"], content["exact"]["x"]
    theirs = load_selection_problem(file)
    paired = matches(nodes, graph)
    allowed: dict[int, tuple[int, ...]] = {}
    mirrored: dict[int, tuple[int, ...]] = {}
    outside, compared = [], []
    for m in paired:
        node = nodes[m.node]
        config = node["configs"][x[m.node]]
        degrees = {a: config[k] for a, k in m.axes.items()}
        ours = {a: chosen[m.operator].degree(a) for a in m.axes}
        compared.append([m.operator, node["name"], degrees, ours])
        choices = with_degrees(planning, m.operator, degrees)
        if choices and prod(config) == prod(degrees.values()):
            allowed[planning.operators[m.operator]] = choices
        else:
            outside.append(m.operator)
        wanted = [1] * len(config)
        for a, k in m.axes.items():
            wanted[k] = ours[a]
        whole = prod(ours.values()) == prod(chosen[m.operator].degree(a.name) for a in graph.operator(m.operator).axes)
        if whole and wanted in node["configs"]:
            mirrored[m.node] = (node["configs"].index(wanted),)
    out["theirs_in_ours"] = completed(problem, allowed).cost
    out["matched"], out["outside"], out["nodes"] = len(paired), outside, len(nodes)
    out["compared"] = compared
    out["contractions"] = sum(str(n["name"]).split(":")[1] in ("Conv", "FC", "Einsum", "LSTM") for n in nodes)
    replicated = {
        v: (config.index([p if k == at else 1 for k in range(len(n["dom"]))]),)
        for v, n in enumerate(nodes)
        if (at := batch_axis(n["dom"])) is not None
        for config in [n["configs"]]
        if [p if k == at else 1 for k in range(len(n["dom"]))] in config
    }
    start_s = time.process_time()
    out["their_optimum"] = solve(theirs).cost
    out["their_solve_s"] = round(time.process_time() - start_s, 4)
    out["their_scale"] = theirs.scale
    out["their_data_parallel"] = completed(theirs, replicated).cost if len(replicated) == len(nodes) else None
    out["ours_in_theirs"] = completed(theirs, mirrored).cost
    out["mirrored"] = len(mirrored)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", default="", help="MODEL, MODEL:P or MODEL:16flat")
    parser.add_argument("--store", type=Path, default=Path("pase_parity.json"))
    parser.add_argument("--render", type=Path, help="write the table here (markdown)")
    chosen = parser.parse_args()
    rows: dict[str, dict[str, object]] = json.loads(chosen.store.read_text()) if chosen.store.exists() else {}
    model, _, size = chosen.only.partition(":")
    for name in MODELS:
        for p, flat in (*((p, False) for p in SIZES), (16, True)):
            key = f"{name}:{p}{'flat' if flat else ''}"
            if key in rows or (model and name != model) or (size and key != f"{name}:{size}"):
                continue
            rows[key] = row(name, p, chosen.data, flat)
            stored = json.loads(chosen.store.read_text()) if chosen.store.exists() else {}
            rows = {**stored, **rows}
            chosen.store.write_text(json.dumps(rows, indent=1))
            print(key, {k: v for k, v in rows[key].items() if k not in ("compared", "strategy")}, flush=True)
    if chosen.render:
        from pase_parity_page import page

        chosen.render.write_text(page(rows, chosen.data) + "\n")


if __name__ == "__main__":
    main()
