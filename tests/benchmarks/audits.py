"""Audits of published configurations on the machines of real systems, and who was right where both were measured.

    python tests/benchmarks/audits.py DATA [--only vtrain|mlperf] [--fresh] [--limit 60] [-o PAGE.md]

vtrain    GPTs on one node of A100 40 GB; a strategy is tensor parallelism and copies, one stage.  Measured: the best
          micro-batch of every strategy.  Audited: the whole batch at once, parameters and Adam's moments in 16 bits, 60 s.
          Every two strategies of a group are compared: the interval of their difference within the machine's error bounds
          decides or does not, and the measured order says whether it was right.  Twice: within the bars of constants alone,
          and with the bar of `step`, what the model lacks (`machine_bars.py`; found on these pairs, and said below
          for every group as found on the others).
mlperf    Llama 3.1 405B.  All published configurations have eight stages of 16 layers, in two interleaved halves and up
          to 288 micro-batches.  No placement says that, and pipelined settings are audited without halves: so a stage is, one
          layer and both ends on an eighth of the GPUs, the whole global batch at once, AdamW, 60 s of search.  Products,
          tensor- and context-parallel moves and the one exchange of gradients of a step are counted as the published run
          has them; bubbles, moves between stages and memory are not, so that a better placement may not fit.  Whole
          steps with stages and micro-batches, every system: `mlperf_audits.py`.

Groups are kept in `results/audits.json` as they end; the same command goes on from there, `--fresh` makes them anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import combinations
from pathlib import Path

from measured.rows import read

from shardproof.formal.explain.audit import AuditReport, audit
from shardproof.formal.explain.error_bounds import Box
from shardproof.formal.plans.frameworks import strategy_of_flags
from shardproof.formal.plans.report import amount
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.machine.parts import MachineError
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo.decoder import llama
from shardproof.models.sources.zoo.gpt import gpt
from shardproof.models.text import InputError
from shardproof.verify.plan.error_bounds import wrong_error_bounds

GROUPS = (
    (4, 16, 1024, 16, 16, 1024),
    (4, 8, 2048, 16, 12, 1024),
    (4, 4, 2048, 16, 12, 1024),
    (8, 16, 1024, 16, 16, 1024),
)
"""GPUs, global batch, hidden, heads, layers, sequence."""

STORE = Path(__file__).resolve().parent / "results" / "audits.json"
LAYERS, GAP = 1, Fraction(1, 100)
KINDS = {"H100": "dgx-h100", "H200": "dgx-h200", "GB200": "gb200-nvl72"}


@dataclass(frozen=True)
class Row:
    """One audit: what is said of it, in a line of the page."""

    case: str
    verdict: str
    nominal: str
    cost: str
    best: str
    within: str
    measure: str
    seconds: float


def said(case: str, report: AuditReport, planning: Planning, seconds: float) -> Row:
    """A row; what it says within the bars is checked first."""
    bars, x = report.bars, report.solution
    assert bars is not None and x is not None
    wrong = wrong_error_bounds(planning, x, bars, report.best.lower_bound)
    if wrong:
        raise SystemExit(f"{case}: {wrong}")
    problem = planning.problem
    against = bars.against[0] if bars.against else None
    within = (
        " to ".join(amount(c, problem) for c in bars.cost)
        if against is None
        else f"{amount(against.least, problem, True)} to {amount(against.most, problem, True)} dearer than the better one"
    )
    return Row(
        case,
        report.outcome.value,
        report.nominal.value,
        amount(report.completed.cost, problem),
        amount(report.best.cost, problem),
        within,
        "" if against is None else against.measure,
        seconds,
    )


def audited(
    case: str, graph: Graph, machine: Machine, flags: Flags, where: str, limit: float
) -> tuple[Row, AuditReport, Planning]:
    """One audit; seconds of processor."""
    start = time.process_time()
    planning = build(graph, machine, space(where))
    report = audit(planning, strategy_of_flags(flags, graph, machine), limit, GAP)
    row = said(case, report, planning, time.process_time() - start)
    sys.stderr.write(f"{row}\n")
    return row, report, planning


def vtrain(folder: Path, store: dict[str, dict[str, list[dict[str, object]]]], limit: float) -> None:
    """Audits of every strategy of the groups that are not in the store, and every pair of strategies."""
    measured: dict[tuple[int, ...], dict[tuple[int, int], float]] = {}
    for r in read(folder, "vtrain/single"):
        if r["pp"] == "1":
            key = tuple(int(r[c]) for c in ("gpus", "global_batch", "hidden", "heads", "layers", "seq"))
            way = int(r["tp"]), int(r["dp"])
            best = measured.setdefault(key, {})
            best[way] = min(best.get(way, float("inf")), float(r["iteration_ms"]))
    for key in GROUPS:
        gpus, batch, hidden, heads, layers, seq = key
        machine = load_machine(f"dgx-a100-40:1x{gpus}")
        model = gpt(batch=batch, depth=layers, sequence=seq, width=hidden, heads=heads, vocabulary=50304)
        graph = build_step(model, "adam", None).graph
        name = f"GPT {hidden} x {layers}, batch {batch}, {gpus} GPUs"
        if name in store["pairs"]:
            continue
        rows: list[dict[str, object]] = []
        done: dict[tuple[int, int], tuple[AuditReport, Planning]] = {}
        for tp, dp in sorted(measured[key]):
            row, report, planning = audited(f"{name}: tp {tp} dp {dp}", graph, machine, Flags("Megatron", tp=tp), "two-per-level", limit)  # fmt: skip
            rows.append(asdict(row))
            done[tp, dp] = report, planning
        store["rows"][name] = rows
        store["groups"][name] = [
            {
                "strategy": f"tp {tp} dp {dp}",
                "cost": (r.completed.cost or 0) / p.problem.scale,
                "ms": measured[key][tp, dp],
            }
            for (tp, dp), (r, p) in done.items()
        ]
        store["pairs"][name] = list(_pairs(done, measured[key]))
        STORE.write_text(json.dumps(store, indent=1) + "\n")


def _pairs(
    done: dict[tuple[int, int], tuple[AuditReport, Planning]], times: dict[tuple[int, int], float]
) -> Iterator[dict[str, object]]:
    for a, b in combinations(sorted(done), 2):
        x, y, planning = done[a][0].completed.solution, done[b][0].completed.solution, done[a][1]
        if x is None or y is None:
            continue
        box, problem = Box(planning), planning.problem
        whole = box.difference(x, y)
        box.lacking = Fraction(1)
        least, most, _ = box.difference(x, y)
        yield {
            "first": f"tp {a[0]} dp {a[1]}",
            "second": f"tp {b[0]} dp {b[1]}",
            "alone": [least / problem.scale, most / problem.scale],
            "whole": [whole[0] / problem.scale, whole[1] / problem.scale],
            "costs": [problem.cost_of(z) / problem.scale for z in (x, y)],
            "ms": [times[a], times[b]],
            "measure": whole[2],
        }


def _said(interval: list[float], ms: list[float]) -> str:
    if interval[0] <= 0 <= interval[1]:
        return "undecided"
    return "right" if (interval[0] > 0) == (ms[0] < ms[1]) else "wrong"


def found_elsewhere(groups: dict[str, list[dict[str, float]]], name: str) -> float:
    """The bar of `step` from the pairs of all other groups."""
    off = sorted(
        max(r := a["ms"] * b["cost"] / (b["ms"] * a["cost"]), 1 / r) - 1
        for other, rows in groups.items()
        if other != name
        for a, b in combinations(rows, 2)
    )
    return off[int(0.9 * (len(off) - 1))]


def pair_lines(store: dict[str, dict[str, list[dict[str, object]]]]) -> list[str]:
    """The table of pairs, and how many were right."""
    lines, counts = [], {key: dict.fromkeys(("right", "wrong", "undecided"), 0) for key in ("alone", "whole", "held")}
    for name, pairs in store["pairs"].items():
        held = 1 + found_elsewhere(store["groups"], name)  # type: ignore[arg-type]
        for p in pairs:
            (x, y), alone = p["costs"], p["alone"]  # type: ignore[misc]
            interval = [min(alone[0], y / held - x), max(alone[1], y * held - x)]  # type: ignore[index]
            kinds = {
                "alone": _said(alone, p["ms"]),  # type: ignore[arg-type]
                "whole": _said(p["whole"], p["ms"]),  # type: ignore[arg-type]
                "held": _said(interval, p["ms"]),  # type: ignore[arg-type]
            }
            for key, kind in kinds.items():
                counts[key][kind] += 1
            low, high = p["alone"]  # type: ignore[misc]
            least, most = p["whole"]  # type: ignore[misc]
            first, second = p["ms"]  # type: ignore[misc]
            lines.append(
                f"| {name} | {p['first']} | {p['second']} | {1e3 * x:.1f} / {1e3 * y:.1f} | {1e3 * low:+.2f} to {1e3 * high:+.2f} | "
                f"{kinds['alone']} | {1e3 * least:+.2f} to {1e3 * most:+.2f} | {kinds['whole']} | {first:.1f} / {second:.1f} | {p['measure']} |"
            )
    words = "; ".join(
        f"{label}: {c['right']} right, {c['wrong']} wrong, {c['undecided']} undecided"
        for label, c in (
            ("within the bars of constants alone", counts["alone"]),
            ("with the bar of `step`", counts["whole"]),
            ("with that bar as the other groups give it", counts["held"]),
        )
    )
    return [
        "",
        "## Two strategies that were both measured",
        "",
        f"Second minus first, milliseconds.  {words[0].upper()}{words[1:]}.",
        "",
        "| group | first | second | costs | by constants | | with what is lacking | | measured, ms | measure |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *lines,
    ]


def mlperf(folder: Path, most: int, gpu: str | None, known: set[str], limit: float) -> Iterator[Row]:
    """One stage of every system, on at most so many devices."""
    seen: set[str] = set()
    for r in read(folder, "mlperf_405b/steps"):
        if r["system"] in seen or gpu not in (None, r["gpu"]):
            continue
        seen.add(r["system"])
        gpus, tp, cp, dp, pp = (int(r[c]) for c in ("gpus", "tp", "cp", "dp", "pp"))
        devices, inner = gpus // pp, 8 if r["gpu"] != "GB200" else min(64, gpus // pp)
        spec = f"{KINDS[r['gpu']]}:{devices // inner}x{inner}"
        case = f"405B on {gpus} {r['gpu']} ({r['system'].split('_')[0]}): a stage on {spec}, tp {tp} cp {cp} dp {dp}"
        if case in known:
            continue
        model = llama(batch=int(r["global_batch"]), layers=LAYERS, width=16384, heads=128, kv_heads=8, hidden=53248, sequence=8192, vocabulary=128256)  # fmt: skip
        graph = build_step(model, "adamw", None, precision="bf16-master").graph
        flags = Flags("Megatron", tp=tp, cp=cp, sequence_parallel=tp > 1, zero=1)
        if devices > most:
            yield Row(
                case,
                "not tried",
                "",
                "",
                "",
                f"{devices} devices, above --most {most}: only the whole step, mlperf-audits.md",
                "",
                0.0,
            )
            continue
        where = "two-per-level" if devices > inner else "complete"  # three axes share the only level
        try:
            yield audited(case, graph, load_machine(spec), flags, where, limit)[0]
        except (InputError, MachineError, ValueError) as error:
            yield Row(case, "refused", "", "", "", str(error)[:120], "", 0.0)


STANDS = (
    "A refutation stands only if the better plan is cheaper on every machine within the error bounds (`machine show`); every "
    "interval was computed a second time by the checker."
)
HEAD = "| audit | verdict | at its own constants | costs | the better one | within the bars | measure | processor s |"


LACKING = """What the bars of constants do not cover are terms that the model lacks.  Small layers (hidden 1,024) wait for launches from Python in the law of
[real steps](real-steps.md) (3.3 ms a layer and micro-batch); at hidden 2,048 tensor parallelism over four has meetings of 0.14 ms and more each there, and the machine file's
start-up; the strategies measured cut the batch into two micro-batches, the audited ones do not.  So the machine file has a bar of `step`: nine of ten ratios of two measured steps lie
within it around the ratio of their costs, and a difference counts only if it is decided within both.

Stages of MLPerf's systems were audited before these bars were found (memory within 43 to 50 %, no `step`) and not again: on 512 H100, 512 H200 and 256 GB200 the published placement
was refuted, by 0.75 to 1.27 s of 9.05 s, 0.33 to 0.81 s of 7.97 s and 0.08 to 0.27 s of 2.83 s; the other six were not tried.  Whole steps: [mlperf audits](mlperf-audits.md)."""


def page(store: dict[str, dict[str, list[dict[str, object]]]]) -> str:
    """The page."""
    rows = [Row(**r) for part in store["rows"].values() for r in part]  # type: ignore[arg-type]
    count = {
        v: sum(r.verdict == v for r in rows)
        for v in ("optimal", "within-gap", "refuted", "undecided", "refused", "not tried")
    }
    verdicts = ", ".join(f"{n} {v}" for v, n in count.items() if n)
    lines = [
        "# Audits on the machines of real systems",
        "",
        "Made by `python tests/benchmarks/audits.py ../shared/data/measured -o tests/benchmarks/results/audits.md`.",
        "",
        *(line.strip() for line in (__doc__ or "").split("[-o PAGE.md]")[1].strip().splitlines()),
        "",
        f"Verdicts: {verdicts} of {len(rows)}.  {STANDS}",
        "",
        HEAD,
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {r.case} | {r.verdict} | {r.nominal} | {r.cost} | {r.best} | {r.within} | {r.measure} | {r.seconds:.0f} |"
            for r in rows
        ),
    ]
    if store["pairs"]:
        lines += [*pair_lines(store), "", LACKING]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", choices=["vtrain", "mlperf"])
    parser.add_argument("--gpu", help="Only systems of this kind (mlperf).")
    parser.add_argument("--most", type=int, default=64, help="Devices of a stage that is audited.")
    parser.add_argument("--limit", type=float, default=60.0, help="Seconds of the wall, of an audit's search.")
    parser.add_argument("--fresh", action="store_true", help="Make again what is in the store.")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    store: dict[str, dict[str, list[dict[str, object]]]] = {"rows": {}, "groups": {}, "pairs": {}}
    if STORE.is_file():
        kept = json.loads(STORE.read_text())
        store |= {"groups": kept["groups"]} if options.fresh else kept
    if options.only != "mlperf":
        vtrain(options.data, store, options.limit)
    if options.only != "vtrain":
        for row in mlperf(options.data, options.most, options.gpu, set(store["rows"]), options.limit):
            store["rows"][row.case] = [asdict(row)]
            STORE.write_text(json.dumps(store, indent=1) + "\n")
    text = page(store)
    sys.stdout.write(text)
    if options.output is not None:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
