"""Audits of MLPerf's published Llama 3.1 405B configurations, whole: eight stages, micro-batches, AdamW, every system.

    python tests/benchmarks/mlperf_audits.py DATA [--only WORD] [--layers 1] [--limit 60]

machine    the system's own, written with a level for each degree: tensor parallel ranks beside each other, pairs of those for
           context, then copies.  The link of a level in between is that of the devices behind it together (the
           network of a node or a rack is flat).  So `one-per-level` holds the configuration, and its tables are small
model      405B's width; `--layers` a stage instead of 16, with the embedding in the first and the output in the last.  With
           one layer the two weigh 16 times as much as in the published model, which favours plans that give these
           stages less: a refutation is one of this model's configuration, not yet of the published run
schedule   1F1B without interleaving.  The published runs interleave 8 chunks a stage, which no audit of ours has: their
           bubbles are (pp - 1) / 8 of a micro-batch instead of pp - 1.  Both sides of an audit run without
verdict    optimal: within the gap of what no plan of 8 stages and these micro-batches goes below.  refuted: such a plan
           takes less than any completion of the configuration.  undecided: neither, the interval is said.  At the
           constants of the machine as they stand; its error bounds are in the column `bars`

Systems are kept in `results/mlperf-audits.json` as they end; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from measured.rows import Cells, read

from shardproof.formal.explain.audit import Outcome
from shardproof.formal.plans.pipelines.audit import audit_pipeline
from shardproof.formal.plans.pipelines.request import PipelineRequest
from shardproof.formal.plans.time_limit import TimeLimit
from shardproof.formal.selection.model.clock import Clock
from shardproof.models.layout.placement import space
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.error_bounds import widest
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.problem.claims import Verdict
from shardproof.models.sources.training import TrainingStep, build_step
from shardproof.models.sources.zoo.decoder import llama
from shardproof.models.text import InputError
from shardproof.verify.selection.certificate import check_selection

RESULTS = Path(__file__).resolve().parent / "results"
STORE, PAGE = RESULTS / "mlperf-audits.json", RESULTS / "mlperf-audits.md"
KINDS = {"H100": "dgx-h100", "H200": "dgx-h200", "GB200": "gb200-nvl72"}
GAP = Fraction(1, 100)


def machine(gpu: str, tp: int, cp: int, copies: int) -> Machine:
    """A level for each degree, so many copies in all; `gpu`: H100, H200 or GB200.

    >>> machine("H100", 8, 2, 64).hierarchy, machine("H200", 4, 2, 64).hierarchy, machine("GB200", 4, 2, 64).hierarchy
    ((64, 2, 8), (64, 2, 4), (8, 8, 2, 4))
    """
    base = load_machine(KINDS[gpu])
    port, link = base.levels[0], base.levels[-1]
    room = 64 if gpu == "GB200" else 8  # devices of a rack or node that are used
    inner = replace(link, size=tp)
    if tp * cp <= room:
        pairs = replace(link, name="pairs", size=cp, bandwidth=tp * link.bandwidth, collectives=())
    else:
        pairs = replace(port, name="pairs", size=cp)
    levels = [pairs, inner]
    near = min(copies, room // (tp * cp))
    if near > 1:
        levels.insert(0, replace(link, name="copies", size=near, bandwidth=tp * cp * link.bandwidth, collectives=()))
    nodes = max(1, tp * cp // room)  # of a copy
    far = replace(port, size=copies // max(1, near), bandwidth=nodes * port.bandwidth)
    levels = [far, *levels] if far.size > 1 else levels
    known = {path.split(".")[1] for path, _ in base.sources if path.startswith("level.")}
    more = {"pairs": link if tp * cp <= room else port, "copies": link}
    sources = list(base.sources)
    for level in levels:
        if level.name not in known:
            words = f"as {more[level.name].name}: the network is flat, a level of its own for one degree"
            sources += [(f"level.{level.name}.{key}", words) for key in ("bandwidth", "latency")]
    return replace(base, name=f"{base.name}-split", levels=tuple(levels), sources=tuple(sorted(sources)), bars=())


def audited(r: Cells, layers: int, limit: float) -> dict[str, object]:
    """One system; seconds of processor."""
    start = time.process_time()
    gpus, tp, cp, dp, pp, micro = (int(r[c]) for c in ("gpus", "tp", "cp", "dp", "pp", "micro_batches"))
    made = machine(r["gpu"], tp, cp, gpus // (tp * cp))
    out: dict[str, object] = {"gpus": gpus, "gpu": r["gpu"], "tp": tp, "cp": cp, "dp": dp, "pp": pp, "vp": int(r["vp"])}
    out |= {
        "system": r["system"].split("_")[0],
        "micro": micro,
        "machine": "x".join(map(str, made.hierarchy)),
        "layers": layers * pp,
    }
    out |= {"published_s": float(r["median_s"]), "bars": float(widest(load_machine(KINDS[r["gpu"]])))}

    def step(recompute: str) -> TrainingStep:
        model = llama(batch=int(r["global_batch"]), layers=layers * pp, width=16384, heads=128, kv_heads=8, hidden=53248, sequence=8192, vocabulary=128256)  # fmt: skip
        return build_step(model, "adamw", None, recompute=recompute, precision="bf16-master")

    flags = Flags("Megatron", tp=tp, cp=cp, pp=pp, sequence_parallel=tp > 1, zero=1, micro_batch=1)
    request = PipelineRequest(step, made, f"{pp}:{micro}", "none", (), space("one-per-level"), None, GAP)
    try:
        found = audit_pipeline(request, flags, TimeLimit(Clock(limit, now=time.process_time)))
    except InputError as error:
        return out | {"verdict": "refused", "why": str(error)[:200], "seconds": time.process_time() - start}
    best, own = found.found.best, found.given.best
    checked = found.outcome is not Outcome.REFUTED or all(
        check_selection(problem, leaf.certificate).verdict is Verdict.PROVED for leaf, problem in found.given.proofs
    )
    return out | {
        "verdict": found.outcome.value if checked else "not proved",
        "given_s": None if own is None else own.step / 1e12,
        "given_bound_s": found.given.bound / 1e12,
        "best_s": None if best is None else best.step / 1e12,
        "bound_s": found.found.lower_bound / 1e12,
        "seconds": time.process_time() - start,
    }


def stored() -> dict[str, dict[str, object]]:
    """What was made before, perhaps by another process."""
    found: dict[str, dict[str, object]] = json.loads(STORE.read_text()) if STORE.is_file() else {}
    return found


def page(rows: dict[str, dict[str, object]]) -> str:
    """The page."""
    count = {
        v: sum(r["verdict"] == v for r in rows.values()) for v in sorted({str(r["verdict"]) for r in rows.values()})
    }
    lines = [
        "# MLPerf's Llama 3.1 405B configurations audited",
        "",
        "Made by `python tests/benchmarks/mlperf_audits.py ../shared/data/measured`.",
        "",
        *(line.strip() for line in (__doc__ or "").split("[--limit 60]")[1].strip().splitlines()),
        "",
        f"{len(rows)} systems: {', '.join(f'{n} {v}' for v, n in count.items())}.",
        "",
        "| system | configuration | machine | layers | verdict | the configuration, s | no completion below | best found | no plan below | bars | published step of 126 layers | processor s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, r in sorted(rows.items()):
        about = f"tp {r['tp']} cp {r['cp']} dp {r['dp']} pp {r['pp']} (vp {r['vp']}), {r['micro']} micro-batches"
        times = [amount(r.get(key)) for key in ("given_s", "given_bound_s", "best_s", "bound_s")]
        lines.append(
            f"| {name} | {about} | {r['machine']} | {r['layers']} | {r['verdict']}{': ' + str(r['why']) if 'why' in r else ''} | "
            f"{' | '.join(times)} | {100 * float(str(r['bars'])):.0f} % | {float(str(r['published_s'])):.2f} | {float(str(r['seconds'])):.0f} |"
        )
    return "\n".join([*lines, ""])


def amount(seconds: object) -> str:
    """Four digits; empty for None."""
    return f"{seconds:.4g}" if isinstance(seconds, float) else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--layers", type=int, default=1, help="Of a stage.")
    parser.add_argument("--limit", type=float, default=60.0, help="Seconds of the processor, of a system's search.")
    options = parser.parse_args()
    seen: set[str] = set()
    for r in read(options.data, "mlperf_405b/steps"):
        name = f"{r['system'].split('_')[0]} {r['gpu']} {r['gpus']}"
        if r["system"] in seen or options.only not in name:
            continue
        seen.add(r["system"])
        if name in stored():
            continue
        found = audited(r, options.layers, options.limit)
        sys.stderr.write(f"{found}\n")
        STORE.write_text(json.dumps(stored() | {name: found}, indent=1) + "\n")
        PAGE.write_text(page(stored()))
    PAGE.write_text(page(stored()))


if __name__ == "__main__":
    main()
