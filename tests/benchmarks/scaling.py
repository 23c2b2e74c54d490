"""How planning grows: BERT training steps with Adam over 1 to 16 times as many layers, and over 8 to 1,024 devices.

    python tests/benchmarks/scaling.py [--layers 1,2,4,8,16] [--devices 8,16,..,1024] [--limit S] [--store FILE.json]
    [--render FILE.md]

Layers: BERT-Large's width, batch 64, on 4x8.  Devices: two such layers, batch 1024, on D/8 nodes of 8.  Every row is a
process of its own: tables are built, the problem is solved under the time limit, the plan is checked by the checker.
Labels are the choices of all vertices; entries those of the distinct tables.  Seconds are processor seconds of the
process (one thread); `wall` is what passed.  Memory is the process' peak.  Rows already in the store are not computed
again.  Not a test.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from shardproof.formal.plans.report import table_text

CHILD = """
import json, resource, sys, time
from shardproof.__main__ import FrontDoor
from shardproof.formal.plans.plan import bundle, default_space
from shardproof.formal.selection.solve import solve
from shardproof.models.machine.machine import load_machine
from shardproof.models.cost.selection import build
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.proofs.plan.bundle import write_plan
layers, batch, sizes, limit = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
wall, clock = time.monotonic, time.process_time
w0, c0 = wall(), clock()
graph = build_step(zoo("bert-large", batch=batch, layers=layers), "adam").graph
machine = load_machine("cloud-a100:" + sizes)
where = default_space(machine)
c1 = clock()
planning = build(graph, machine, where)
p = planning.problem
c2, w2 = clock(), wall()
answer = solve(p, time_limit_s=limit)
c3, w3 = clock(), wall()
verdict = "none"
if answer.solution is not None:
    verdict = FrontDoor().publish(None, write_plan(None, bundle(planning, answer))).verdict.value
c4, w4 = clock(), wall()
gap = None if answer.cost is None or answer.lower_bound is None else (answer.cost - answer.lower_bound) / answer.cost
print(json.dumps({
    "layers": layers, "batch": batch, "machine": sizes, "devices": machine.devices, "space": where.name, "operators": len(graph.operators),
    "vertices": len(p.vertices), "edges": len(p.edges), "labels": sum(len(v.cost) for v in p.vertices), "tables": len(p.tables),
    "entries": sum(t.size for t in p.tables), "import_s": c1 - c0, "tables_s": c2 - c1, "solve_s": c3 - c2, "check_s": c4 - c3,
    "wall_s": w4 - w0, "solve_wall_s": w3 - w2, "status": answer.status.value, "gap": gap, "cost": answer.cost, "scale": p.scale, "checked": verdict,
    "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
}))
"""

COLUMNS = (
    "layers",
    "devices",
    "space",
    "operators",
    "vertices",
    "labels",
    "entries",
    "tables s",
    "solve s",
    "check s",
    "wall s",
    "memory MiB",
    "time ms",
    "gap",
    "checked",
)


def cells(r: Mapping[str, object]) -> list[str]:
    """One line of the table."""

    def f(key: str) -> float:
        return float(str(r[key]))

    gap = "-" if r["gap"] is None else f"{f('gap'):.4%}"
    time_ms = "-" if r["cost"] is None else f"{1e3 * f('cost') / f('scale'):.3f}"
    return [
        str(r["layers"]),
        f"{r['devices']} ({r['machine']})",
        str(r["space"]),
        *(f"{int(f(k)):,}" for k in ("operators", "vertices", "labels", "entries")),
        *(f"{f(k):.1f}" for k in ("tables_s", "solve_s", "check_s", "wall_s")),
        str(r["rss_mib"]),
        time_ms,
        gap,
        str(r["checked"]),
    ]


def page(layers: Sequence[Mapping[str, object]], devices: Sequence[Mapping[str, object]]) -> str:
    """The tables as markdown."""
    out = [
        "# How planning grows",
        "",
        (
            "`python tests/benchmarks/scaling.py`; BERT-Large's layers, training step with Adam.  Processor seconds "
            "on one thread (other work ran beside it: `wall` is longer, and the search stops after --limit seconds of "
            "it)."
        ),
        "",
    ]
    for title, rows in (("Layers: batch 64, 4x8", layers), ("Devices: 2 layers, batch 1024", devices)):
        out += [f"## {title}", "", "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        out += ["| " + " | ".join(cells(r)) + " |" for r in rows]
        out += ["", *growth(rows), ""]
    out.append(
        "The default space changes from `complete` to `two-per-level` above 64 devices: hence the step down in "
        "labels, entries and memory behind 64."
    )
    return "\n".join(out)


def growth(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Factors from row to row, so that a cliff would be seen."""

    def factors(key: str) -> str:
        values = [max(float(str(r[key])), 0.05) for r in rows]
        return ", ".join(f"{b / a:.2f}" for a, b in pairwise(values))

    return (
        [
            (
                f"Factor per doubling: labels {factors('labels')}; tables {factors('tables_s')}; solving "
                f"{factors('solve_s')}; memory {factors('rss_mib')}."
            )
        ]
        if len(rows) > 1
        else []
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="1,2,4,8,16")
    parser.add_argument("--devices", default="8,16,32,64,128,256,512,1024")
    parser.add_argument("--limit", type=float, default=200.0)
    parser.add_argument("--store", type=Path, default=Path("scaling.json"))
    parser.add_argument("--render", type=Path)
    given = parser.parse_args()
    wanted = [("layers", int(n), 64, "4x8") for n in given.layers.split(",") if n] + [
        ("devices", 2, 1024, f"{int(d) // 8}x8") for d in given.devices.split(",") if d
    ]
    stored: dict[str, dict[str, object]] = json.loads(given.store.read_text()) if given.store.exists() else {}
    for kind, layers, batch, sizes in wanted:
        key = f"{kind}:{layers}:{sizes}"
        if key not in stored:
            done = subprocess.run(
                [sys.executable, "-c", CHILD, str(layers), str(batch), sizes, str(given.limit)],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            if done.returncode:
                print(f"{key}: ended with {done.returncode}", flush=True)
                continue
            stored[key] = json.loads(done.stdout.splitlines()[-1])
            given.store.write_text(json.dumps(stored, indent=1))
        print(key, " ".join(cells(stored[key])), flush=True)
    rows = [[r for k, r in stored.items() if k.startswith(kind)] for kind in ("layers", "devices")]
    rows[0].sort(key=lambda r: int(str(r["layers"])))
    rows[1].sort(key=lambda r: int(str(r["devices"])))
    for title, part in zip(("layers", "devices"), rows, strict=True):
        print(table_text(title, list(COLUMNS), [cells(r) for r in part], width=220))
    if given.render:
        given.render.write_text(page(rows[0], rows[1]) + "\n")


if __name__ == "__main__":
    main()
