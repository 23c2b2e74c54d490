"""Plans of large models on clusters under 80 GB, checked, and published practice beside them by `audit`.

    python tests/benchmarks/large_plans.py [--only WORD ..] [--again] [--results FILE.json] [--page FILE.md]

Plans: Llama-3 8B and 70B (8,192 tokens a sequence) and Mixtral 8x7B (4,096), one sequence a GPU and step, Adam, bf16 with
float32 master weights and moments (`--precision bf16-master`), with and without every block computed again in the backward
pass, on DGX nodes of eight H100, 80 GiB a GPU, one axis per level, until the gap is at most 3 %.

Audits: settings that NVIDIA (dgxc-benchmarking v25.04, Megatron-LM's golden values), MaxText and torchtitan publish with
their times, as Megatron's flags, torchtitan's or FSDP's words.  Pipelines are no placement, so that a stage is audited with
one micro-batch (then the optimizer's step, shared by all micro-batches of a step, is in it); the others are whole steps.

Every row is a process of its own, processor seconds are all that it took: tables, search, check.  Rows are kept one by
one in a JSON file, so that an interrupted run goes on where it stopped; the page is made of it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2])]

RESULTS, PAGE = HERE / "results" / "large-plans.json", HERE / "results" / "large-plans.md"
GIB: Final = 1 << 30
VERDICT: Final = (
    "| verdict: at the constants, within the bars | processor s | measured | scheme of the best plan known |"
)
Found = Mapping[str, object]


@dataclass(frozen=True)
class Row:
    """What is planned, or audited where `flags` say a strategy.  `sizes`: options of the zoo's model; `published`: what
    is known of such a run; `memory`: bytes a GPU; `seconds`: of the wall."""

    name: str
    model: str
    batch: int
    machine: str
    recompute: str
    flags: str = ""
    published: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    memory: str = "80GiB"
    space: str = "one-per-level"
    seconds: float = 1500.0
    attention: str = ""


def _plans() -> list[Row]:
    rows = []
    titan = "torchtitan, FSDP over 8, two sequences a GPU, selective recomputation: 82.4 GiB, 2.84 s (H100 of 96 GB)"
    for nodes in (1, 4, 16, 64):
        for recompute in ("none", "all"):
            said = titan if nodes == 1 else ""
            rows.append(Row("Llama-3 8B", "llama-3-8b", 8 * nodes, f"dgx-h100:{nodes}x8", recompute, published=said))
    rows.append(replace(rows[0], attention="fused"))
    seventy = "torchtitan on 32x8, FSDP 32 x TP 8, two sequences a GPU, all recomputed, float8: 71.9 GiB"
    rows.append(Row("Llama-3 70B", "llama-3-70b", 64, "dgx-h100:8x8", "all", published=seventy))
    rows.append(Row("Llama-3 70B", "llama-3-70b", 512, "dgx-h100:64x8", "all", published=seventy))
    mixtral = "Megatron-LM, TP 2 x PP 4 x EP 4, one sequence a micro-batch: 24.7 GiB on the last stage"
    rows.append(Row("Mixtral 8x7B", "mixtral-8x7b", 64, "dgx-h100:8x8", "all", published=mixtral))
    return rows


_DISTRIBUTED: Final = "--use-distributed-optimizer"
AUDITS: Final = (
    Row(
        "Llama-3.1 8B, one micro-batch",
        "llama-3-8b",
        4,
        "dgx-h100:1x8",
        "none",
        f"--context-parallel-size 2 {_DISTRIBUTED}",
        "NeMo on 8 H100: 12.27 s for 32 micro-batches: 383 ms each",
        space="two-per-level",
    ),
    Row(
        "Llama-3 8B, a step",
        "llama-3-8b",
        16,
        "dgx-h100:1x8",
        "all",
        "FULL_SHARD",
        "torchtitan on 8 H100 of 96 GB, selective recomputation, not compiled: 2.84 s, 82.4 GiB",
        memory="82.4GiB",
    ),
    Row(
        "Llama-3 70B, a step",
        "llama-3-70b",
        256,
        "dgx-h100:16x8",
        "all",
        "FULL_SHARD",
        "MaxText on 128 H100, FSDP over 128: 15.56 s",
    ),
    Row(
        "Llama-3 70B, a step, tensors over a node",
        "llama-3-70b",
        512,
        "dgx-h100:32x8",
        "all",
        "--parallelism.tensor_parallel_degree=8 --parallelism.data_parallel_shard_degree=32",
        "torchtitan on 256 H100 of 96 GB: 27.4 s, with asynchronous tensor parallelism 25.1 s; in float8 71.9 GiB",
        memory="71.9GiB",
    ),
    Row(
        "Llama-3.1 70B, one of 4 stages, one micro-batch",
        "llama-3-70b",
        4,
        "dgx-h100:4x8",
        "none",
        f"--tensor-model-parallel-size 4 --context-parallel-size 2 --sequence-parallel {_DISTRIBUTED}",
        "NeMo on 128 H100: 14.67 s for 64 micro-batches: 229 ms each, with the bubble",
        (("layers", 20),),
        space="two-per-level",
    ),
    Row(
        "Mixtral 8x7B, one of 4 stages, one micro-batch",
        "mixtral-8x7b",
        8,
        "dgx-h100:2x8",
        "none",
        f"--tensor-model-parallel-size 2 --expert-model-parallel-size 4 --sequence-parallel {_DISTRIBUTED}",
        "Megatron-LM on 64 H100: 8.96 s for 128 micro-batches and the bubble of 4 stages: 68 ms each; 24.7 GiB",
        (("layers", 8),),
        space="two-per-level",
    ),
    Row(
        "GPT-3 175B, one of 8 stages, one micro-batch",
        "gpt-3-175b",
        4,
        "dgx-h100:2x8",
        "none",
        f"--tensor-model-parallel-size 4 --sequence-parallel {_DISTRIBUTED}",
        "NeMo on 128 H100: 8.309 s for 64 micro-batches: 130 ms each, with the bubble",
        (("depth", 12), ("vocabulary", 51200)),
        space="two-per-level",
    ),
    Row(
        "GPT-3 175B, a step on 64 A100",
        "gpt-3-175b",
        64,
        "dgx-a100:8x8",
        "all",
        f"--tensor-model-parallel-size 8 --sequence-parallel {_DISTRIBUTED}",
        "Megatron-LM, TP 8 x PP 8, all recomputed: 18.13 s; with selective recomputation 13.75 s and 57.9 GiB",
        (("vocabulary", 51200),),
        memory="57.9GiB",
    ),
)


def rows() -> list[Row]:
    """All rows, those that are planned first."""
    return [*_plans(), *AUDITS]


def key(row: Row) -> str:
    """Under which a row is kept."""
    return f"{row.name} | {row.batch} | {row.machine} | {row.recompute} | {row.flags or row.attention}"


def planned(row: Row) -> dict[str, object]:
    """The checked plan of a row, in this process."""
    from shardproof import plan
    from shardproof.formal.explain.parallelism import parallelism_of, render_parallelism

    made = plan(
        row.model + "".join(f"{':' if i == 0 else ','}{k}={v}" for i, (k, v) in enumerate(row.sizes)),
        row.machine,
        batch=row.batch,
        train="adam",
        precision="bf16-master",
        recompute=row.recompute,
        memory=row.memory,
        space_name=row.space,
        attention="fused" if row.attention else None,
        gap=Fraction(3, 100),
        time_limit_s=row.seconds,
        threads=1,
    )
    planning, x, bound = made._planning, made._solution, made.lower_bound_s
    assert bound is not None
    return {
        "verdict": made.status,
        "step_ms": float(1000 * made.cost_s),
        "bound_ms": float(1000 * bound),
        "memory_gib": planning.problem.peak_of(x)[0] / GIB,
        "scheme": render_parallelism(parallelism_of(planning, x), made.state()).partition(": ")[2],
        "operators": len(made.graph.operators),
    }


def audited(row: Row) -> dict[str, object]:
    """The audit of a row, in this process."""
    from shardproof import audit
    from shardproof.formal.explain.parallelism import parallelism_of, render_parallelism
    from shardproof.formal.explain.stored_state import MOMENTS, UPDATES
    from shardproof.models.sources.training import build_step
    from shardproof.models.sources.zoo import build

    graph = build(row.model, batch=row.batch, **dict(row.sizes))
    step = build_step(graph, "adam", recompute=row.recompute, precision="bf16-master").graph
    with tempfile.TemporaryDirectory() as folder:
        flags = Path(folder) / "flags.txt"
        flags.write_text(row.flags)
        report = audit(
            step,
            row.machine,
            flags,
            memory=row.memory,
            space_name=row.space,
            gap=Fraction(3, 100),
            time_limit_s=row.seconds,
        )
    p, planning = report.problem, report.planning
    assert planning is not None
    ms = 1000 / p.scale
    held, best = report.completed.solution, report.best.solution
    later = [planning.operators[o.name] for o in step.operators if o.function in (*UPDATES, *MOMENTS)]
    costs = [planning.costs[v] for v in later]
    update = 0 if held is None else sum(int(c.compute[held[v]]) for v, c in zip(later, costs, strict=True) if c)
    return {
        "verdict": report.outcome.value,
        "nominal": report.nominal.value,
        "step_ms": None if report.completed.cost is None else report.completed.cost * ms,
        "least_ms": None if report.completed.lower_bound is None else report.completed.lower_bound * ms,
        "best_ms": None if report.best.cost is None else report.best.cost * ms,
        "bound_ms": None if report.best.lower_bound is None else report.best.lower_bound * ms,
        "update_ms": update * ms,
        "status": report.completed.status.value,
        "memory_gib": None if held is None else p.peak_of(held)[0] / GIB,
        "best_memory_gib": None if best is None else p.peak_of(best)[0] / GIB,
        "scheme": "" if best is None else render_parallelism(parallelism_of(planning, best), ()).partition(": ")[2],
        "operators": len(step.operators),
    }


def kept(path: Path) -> dict[str, Found]:
    """Rows that ran."""
    return json.loads(path.read_text()) if path.exists() else {}


def run(row: Row) -> Found:
    """A row in a process of its own, with its processor seconds; what went wrong under `error`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--row", key(row)], capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = done.stdout.strip().splitlines()
    found = json.loads(said[-1]) if said and not done.returncode else {"error": done.stderr.strip()[-400:]}
    return {**found, "processor_s": round(seconds, 1)}


def page(found: Mapping[str, Found]) -> str:
    """Both tables; rows that did not run are named below."""
    planned_rows = [(r, found[key(r)]) for r in _plans() if key(r) in found]
    audited_rows = [(r, found[key(r)]) for r in AUDITS if key(r) in found]
    out = [
        "# Large models on clusters",
        "",
        "Made by `python tests/benchmarks/large_plans.py`; machines as built in (`machine show dgx-h100`).",
        "",
        (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2].strip(),
        "",
        "## Plans",
        "",
        "Shares are of the compute time of products and attention; state by stored bytes.",
        "",
        "| model | sequences | machine | recomputed | step | gap | memory | processor s | scheme | published |",
        "|---|---:|---|---|---:|---:|---:|---:|---|---|",
    ]
    for row, f in planned_rows:
        name = row.name + (", `--attention fused`" if row.attention else "")
        head = f"| {name} | {row.batch} | {row.machine.replace('dgx-', '')} | {row.recompute} "
        if "error" in f:
            out.append(f"{head}| {_cell(str(f['error']))} | | | {f['processor_s']} | | {row.published} |")
            continue
        step, bound = _number(f, "step_ms"), _number(f, "bound_ms")
        out.append(
            f"{head}| {_time(step)} | {100 * (1 - bound / step):.2g} % | {_number(f, 'memory_gib'):.1f} GiB "
            f"| {f['processor_s']} | {_cell(str(f['scheme']))} | {row.published} |"
        )
    out += [
        "",
        "## Published practice",
        "",
        "What a strategy leaves open (gradients, where state is stored, the optimizer) the solver completes in its favour",
        "under the limit.  Within the bars: refuted only if the better plan is better on every machine within `dgx-h100`'s error bounds.",
        "",
        f"| model | sequences | machine, limit | settings | as priced here, memory | best known, nothing less than {VERDICT}",
        "|---|---:|---|---|---:|---:|---|---:|---|---|",
    ]
    for row, f in audited_rows:
        settings = row.flags.replace("--parallelism.", "").replace("--", "")
        head = f"| {row.name} | {row.batch} | {row.machine.replace('dgx-', '')}, {row.memory} | {settings} "
        if "error" in f:
            out.append(f"{head}| {_cell(str(f['error']))} | | | {f['processor_s']} | {row.published} | |")
            continue
        own = (
            "does not fit"
            if f["step_ms"] is None
            else f"{_time(_number(f, 'step_ms'))} (update {_time(_number(f, 'update_ms'))}), {_number(f, 'memory_gib'):.1f} GiB"
        )
        best = "none" if f["best_ms"] is None else _time(_number(f, "best_ms"))
        bound = "none" if f["bound_ms"] is None else _time(_number(f, "bound_ms"))
        out.append(
            f"{head}| {own} | {best}, {bound} | {f['nominal']}, {f['verdict']} | {f['processor_s']} "
            f"| {row.published} | {_cell(str(f['scheme']))} |"
        )
    lost = [f"{r.name} ({r.machine})" for r in rows() if key(r) not in found]
    out += ["", f"Rows that were not run: {'; '.join(lost)}."] if lost else []
    return "\n".join(out) + "\n"


def _number(found: Found, name: str) -> float:
    value = found[name]
    assert isinstance(value, (int, float))
    return float(value)


def _time(ms: float) -> str:
    return f"{ms / 1000:.3f} s" if ms >= 1000 else f"{ms:.1f} ms"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", ";").split())


def main(words: Sequence[str]) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="*", default=[], help="rows whose name, batch, machine and settings hold a word"
    )
    parser.add_argument("--again", action="store_true", help="also rows that are kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if asked.row:
        (row,) = (r for r in rows() if key(r) == asked.row)
        print(json.dumps(audited(row) if row.flags else planned(row)))
        return
    for row in rows():
        found = kept(asked.results)
        if (asked.only and not any(w in key(row) for w in asked.only)) or (key(row) in found and not asked.again):
            continue
        result = run(row)
        found = {**kept(asked.results), key(row): result}
        asked.results.write_text(json.dumps(found, indent=1) + "\n")
        print(key(row), json.dumps(result), flush=True)
    asked.page.write_text(page(kept(asked.results)))


if __name__ == "__main__":
    main(sys.argv[1:])
