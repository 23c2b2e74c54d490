"""Audits of published configurations on the machines of real systems, and who was right where both were measured.

    python tests/benchmarks/audits.py DATA [--only vtrain|mlperf] [-o PAGE.md]

vtrain    GPTs on one node of A100 40 GB; a strategy is tensor parallelism and copies, one stage.  Measured: the best
          micro-batch of every strategy.  Audited: the whole batch at once, parameters and Adam's moments in 16 bits, 60 s.
          Every two strategies of a group are compared: the interval of their difference within the machine's error bars
          decides or does not, and the measured order says whether it was right.
mlperf    Llama 3.1 405B.  All published configurations have eight stages of 16 layers, in two interleaved halves and up
          to 288 micro-batches.  No placement says that, and pipelined settings are audited without halves: so a stage is, one
          layer and both ends on an eighth of the GPUs, the whole global batch at once, AdamW, 60 s of search.  Products,
          tensor- and context-parallel moves and the one exchange of gradients of a step are counted as the published run
          has them; bubbles, moves between stages and memory are not, so that a better placement may not fit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from pathlib import Path

from measured.rows import read

from shardproof.formal.explain.audit import AuditReport, audit
from shardproof.formal.explain.bars import Box
from shardproof.formal.planning.frameworks import strategy_of_flags
from shardproof.formal.planning.report import amount
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
from shardproof.verify.plan.bars import wrong_bars

GROUPS = (
    (4, 16, 1024, 16, 16, 1024),
    (4, 8, 2048, 16, 12, 1024),
    (4, 4, 2048, 16, 12, 1024),
    (8, 16, 1024, 16, 16, 1024),
)
"""GPUs, global batch, hidden, heads, layers, sequence."""

LAYERS, LIMIT, GAP = 1, 60.0, Fraction(1, 100)
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
    bars, x = report.bars, report.held
    assert bars is not None and x is not None
    wrong = wrong_bars(planning, x, bars, report.best.lower_bound)
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
    case: str, graph: Graph, machine: Machine, flags: Flags, where: str, memory: int | None = None
) -> tuple[Row, AuditReport, Planning]:
    """One audit; seconds of processor."""
    start = time.process_time()
    planning = build(graph, machine, space(where), memory)
    report = audit(planning, strategy_of_flags(flags, graph, machine), LIMIT, GAP)
    row = said(case, report, planning, time.process_time() - start)
    sys.stderr.write(f"{row}\n")
    return row, report, planning


def vtrain(folder: Path) -> tuple[list[Row], list[str]]:
    """Audits of every strategy of the groups, and a line per pair of strategies."""
    measured: dict[tuple[int, ...], dict[tuple[int, int], float]] = {}
    for r in read(folder, "vtrain/single"):
        if r["pp"] == "1":
            key = tuple(int(r[c]) for c in ("gpus", "global_batch", "hidden", "heads", "layers", "seq"))
            way = int(r["tp"]), int(r["dp"])
            best = measured.setdefault(key, {})
            best[way] = min(best.get(way, float("inf")), float(r["iteration_ms"]))
    rows, pairs = [], []
    for key in GROUPS:
        gpus, batch, hidden, heads, layers, seq = key
        machine = load_machine(f"dgx-a100-40:1x{gpus}")
        model = gpt(batch=batch, depth=layers, sequence=seq, width=hidden, heads=heads, vocabulary=50304)
        graph = build_step(model, "adam", None).graph
        name = f"GPT {hidden} x {layers}, batch {batch}, {gpus} GPUs"
        done: dict[tuple[int, int], tuple[AuditReport, Planning]] = {}
        for tp, dp in sorted(measured[key]):
            row, report, planning = audited(f"{name}: tp {tp} dp {dp}", graph, machine, Flags("Megatron", tp=tp), "two-per-level")  # fmt: skip
            rows.append(row)
            done[tp, dp] = report, planning
        pairs += list(_pairs(name, done, measured[key]))
    return rows, pairs


def _pairs(
    name: str, done: dict[tuple[int, int], tuple[AuditReport, Planning]], times: dict[tuple[int, int], float]
) -> Iterator[str]:
    for a, b in combinations(sorted(done), 2):
        x, y, planning = done[a][0].completed.solution, done[b][0].completed.solution, done[a][1]
        if x is None or y is None:
            continue
        least, most, measure = Box(planning).difference(x, y)
        nominal = planning.problem.cost_of(y) - planning.problem.cost_of(x)
        verdict = "first" if least > 0 else "second" if most < 0 else "undecided"
        faster = "first" if times[a] < times[b] else "second"
        guess = "first" if nominal > 0 else "second"
        right = "right" if verdict == faster else "wrong" if verdict != "undecided" else f"nominal {'right' if guess == faster else 'wrong'}"  # fmt: skip
        yield (
            f"| {name} | tp {a[0]} dp {a[1]} | tp {b[0]} dp {b[1]} | {amount(least, planning.problem, True)} to "
            f"{amount(most, planning.problem, True)} | {verdict} | {times[a]:.1f} / {times[b]:.1f} | {right} | {measure} |"
        )


def mlperf(folder: Path, most: int, gpu: str | None) -> Iterator[Row]:
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
        model = llama(batch=int(r["global_batch"]), layers=LAYERS, width=16384, heads=128, kv_heads=8, hidden=53248, sequence=8192, vocabulary=128256)  # fmt: skip
        graph = build_step(model, "adamw", None, precision="bf16-master").graph
        flags = Flags("Megatron", tp=tp, cp=cp, sequence_parallel=tp > 1, zero=1)
        if devices > most:
            yield Row(case, "not tried", "", "", "", f"{devices} devices, above --most {most}", "", 0.0)
            continue
        where = "two-per-level" if devices > inner else "complete"  # three axes share the only level
        try:
            yield audited(case, graph, load_machine(spec), flags, where)[0]
        except (InputError, MachineError, ValueError) as error:
            yield Row(case, "refused", "", "", "", str(error)[:120], "", 0.0)


STANDS = (
    "A refutation stands only if the better plan is cheaper on every machine within the error bars (`machine show`); every "
    "interval was computed a second time by the checker."
)
HEAD = "| audit | verdict | at its own constants | costs | the better one | within the bars | measure | processor s |"


def page(rows: list[Row], pairs: list[str]) -> str:
    """The page."""
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
    if pairs:
        right = sum("| right |" in p for p in pairs)
        wrong = sum("| wrong |" in p for p in pairs)
        guessed = sum("| nominal right |" in p for p in pairs)
        lines += [
            "",
            "## Two strategies that were both measured",
            "",
            f"Second minus first within the bars, and measured milliseconds: {right} decided rightly, {wrong} wrongly, "
            + f"{len(pairs) - right - wrong} undecided (of which the nominal machine has {guessed} right).",
            "",
            "| group | first | second | second minus first | said to be faster | measured, ms | who was right | measure |",
            "|---|---|---|---|---|---|---|---|",
            *pairs,
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", choices=["vtrain", "mlperf"])
    parser.add_argument("--gpu", help="Only systems of this kind (mlperf).")
    parser.add_argument("--most", type=int, default=64, help="Devices of a stage that is audited.")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows, pairs = vtrain(options.data) if options.only != "mlperf" else ([], [])
    rows += list(mlperf(options.data, options.most, options.gpu)) if options.only != "vtrain" else []
    text = page(rows, pairs)
    sys.stdout.write(text)
    if options.output is not None:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
