"""Rows measured on our own GPUs beside what the built-in machines say: nothing is fitted on them but attention's form.

    python tests/benchmarks/gpu_predicted.py [--gpu h100|h200] [--steps] [--page]

Rows: tests/data/measured/gpu (`gpu_times.py`).  --steps plans the whole training steps (needs torch, two minutes of the
processor); --page writes results/gpu.md from what was predicted, steps from results/gpu-steps.json where they were not asked for.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import mean, median

import numpy as np

from shardproof.models.cost.products import product_times, result_times
from shardproof.models.machine.machine import load_machine
from shardproof.models.machine.parts import DeviceClass

HERE = Path(__file__).parent
ROWS = HERE.parent / "data/measured/gpu"
MACHINES = {"h100": "dgx-h100", "h200": "dgx-h200"}
UNIT = Fraction(1, 10**12)


@dataclass(frozen=True)
class Told:
    """One row: what it is, microseconds told and measured."""

    family: str
    kind: str
    row: str
    told: float
    measured: float

    @property
    def error(self) -> float:
        """Told over measured, less one."""
        return self.told / self.measured - 1


def rows(gpu: str, family: str) -> Iterator[dict[str, str]]:
    """The measured rows of one family."""
    with (ROWS / f"{gpu}-{family}.csv").open(newline="") as file:
        yield from csv.DictReader(file)


def attention(gpu: str, device: DeviceClass, table: str = "attention") -> Iterator[Told]:
    """The machine's form beside every kernel; it was fitted on cuDNN's rows of `attention` and `drawn`, on none of `held`."""
    for row in rows(gpu, table):
        batch, heads, positions, width = (int(row[c]) for c in ("batch", "heads", "sequence", "width"))
        causal = row["causal"] == "1"
        pairs = batch * heads * (positions * (positions + 1) // 2 if causal else positions**2)
        at = f"{batch} x {heads} heads ({row['kv_heads']}) x {positions} x {width}{', causal' if causal else ''}"
        for direction, operations in (("forward", 4 * width), ("backward", 10 * width)):
            form = device.attention("bfloat16", direction)
            if form is None:
                continue
            seconds = form.seconds(pairs, batch * heads * positions, positions, operations, causal)
            measured = float(row[f"{direction}_us"])
            yield Told(table.replace("-", " "), f"{row['kernel']}, {direction}", at, float(seconds) * 1e6, measured)


def drawn(gpu: str, device: DeviceClass) -> Iterator[Told]:
    """Drawn shapes; those of `held` were measured when everything was fitted."""
    for table in ("drawn", "held"):
        if (ROWS / f"{gpu}-{table}-attention.csv").exists():
            yield from attention(gpu, device, f"{table}-attention")
            yield from products(gpu, device, f"{table}-products")


def products(gpu: str, device: DeviceClass, table_name: str = "products") -> Iterator[Told]:
    """bf16 and fp16 by the machine's tiles; float32 and float64 by its peaks.  tf32 and fp8 are types that no tensor of
    a plan has.
    """
    for row in rows(gpu, table_name):
        b, m, n, k = (int(row[c]) for c in "bmnk")
        dtype = row["dtype"]
        if dtype not in ("bfloat16", "float16", "float32", "float64"):
            continue
        width = {"float32": 4, "float64": 8}.get(dtype, 2)
        moved = width * b * (m * k + k * n + m * n)
        table = device.product(dtype)
        if table is None:
            seconds = device.launch + max(2 * b * m * n * k / device.peak(dtype), moved / device.bandwidth)
            told = float(seconds) * 1e6
        else:
            sizes = np.array([[b, m, n, k]])
            computes = product_times(table, sizes, np.zeros(1, dtype=np.int64), device.peak(dtype), UNIT)
            waits = result_times(table, sizes, np.array([moved]), device.bandwidth, UNIT)
            told = max(int(computes[0]), int(waits[0])) / 1e6
        kind = f"{dtype}, several at once" if b > 1 else f"{dtype}, {row['form']}"
        yield Told(table_name.replace("-", " "), kind, f"{b} x {m} x {n} x {k}", told, float(row["us"]))


def memory(gpu: str, device: DeviceClass) -> Iterator[Told]:
    """Launch and bytes over bandwidth."""
    for row in rows(gpu, "memory"):
        seconds = device.launch + int(row["bytes"]) / device.bandwidth
        at = f"{row['dtype']} {row['rows']} x {row['columns']}"
        yield Told("memory", row["operation"], at, float(seconds) * 1e6, float(row["us"]))


def convolutions(gpu: str, device: DeviceClass) -> Iterator[Told]:
    """The roofline: peak of dense products, or bytes."""
    for row in rows(gpu, "convolutions"):
        batch, size, a, b, window, stride = (
            int(row[c]) for c in ("batch", "size", "inputs", "outputs", "window", "stride")
        )
        after = size // stride
        work = 2 * batch * after**2 * a * b * window**2
        moved = 2 * (batch * (a * size**2 + b * after**2) + a * b * window**2)
        seconds = device.launch + max(work / device.peak("bfloat16"), moved / device.bandwidth)
        for kind in ("forward", "input", "weight"):
            at = f"{batch} x {a} x {size}^2, {b} of {window}^2 / {stride}"
            yield Told("convolutions", kind, at, float(seconds) * 1e6, float(row[f"{kind}_us"]))


FAMILIES = {
    "products": products,
    "attention": attention,
    "drawn": drawn,
    "memory": memory,
    "convolutions": convolutions,
}


PROGRAMS = "tests/benchmarks/gpu/cases.py"
OPTIONS = ["--train", "adam:bits=16"]
"""Of `plan`, besides machine and output; the page names them."""


def planned(gpu: str, name: str) -> dict[str, float]:
    """Milliseconds and bytes of a whole step, by its plan on one device of the built-in machine, with default options."""
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [
                sys.executable,
                "-m",
                "shardproof",
                "plan",
                f"{HERE.parents[1] / PROGRAMS}:{name}",
                "--machine",
                f"{MACHINES[gpu]}:1x1",
            ]
            + [*OPTIONS, "--json", "-o", f"{folder}/p.spz"],
            capture_output=True,
            text=True,
            check=True,
        )
    said = json.loads(ran.stdout)
    (memory,) = (r for r in said["remarks"] if r["kind"] == "memory")
    return {"ms": said["cost"] / said["scale"] * 1e3, "bytes": memory["peak_bytes"]}


def steps(gpu: str) -> list[dict[str, object]]:
    """Every eager step of the table, with what its plan says."""
    found: list[dict[str, object]] = []
    for row in rows(gpu, "steps"):
        if row["mode"] != "eager":
            continue
        name = f"{row['model'].replace('-', '_')}_{row['batch']}_{row['sequence']}"
        told = planned(gpu, name)
        found.append(
            {
                "gpu": gpu, "case": name, "ms": round(told["ms"], 3), "measured_ms": float(row["ms"]),
                "bytes": told["bytes"], "measured_bytes": int(row["peak_bytes"]),
            }
        )  # fmt: skip
        print(json.dumps(found[-1]), flush=True)
    return found


def table(told: list[Told]) -> list[str]:
    """A line for each kind: rows, mean and median error, sign, the worst row."""
    out = ["| family | kind | rows | mean error | median | on average | worst |", "|---|---|---:|---:|---:|---:|---|"]
    for family, kind in dict.fromkeys((t.family, t.kind) for t in told):
        here = [t for t in told if (t.family, t.kind) == (family, kind)]
        off = [abs(t.error) for t in here]
        worst = max(here, key=lambda t: abs(t.error))
        out.append(
            f"| {family} | {kind} | {len(here)} | {mean(off):.1%} | {median(off):.1%} | {mean(t.error for t in here):+.1%} | "
            f"{worst.error:+.0%} at {worst.row} ({worst.measured:.1f} us) |"
        )
    return out


def main(arguments: list[str]) -> int:
    """Predict, print, and perhaps write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", choices=sorted(MACHINES))
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args(arguments)
    kept = HERE / "results/gpu-steps.json"
    known: dict[str, list[dict[str, object]]] = json.loads(kept.read_text()) if kept.exists() else {}
    lines = ["# Our own GPUs", "", *INTRODUCTION.splitlines()]
    for gpu in [asked.gpu] if asked.gpu else sorted(MACHINES):
        machine = json.loads((ROWS / f"{gpu}.json").read_text())
        device = load_machine(f"{MACHINES[gpu]}:1x1").device
        told = [t for family in FAMILIES.values() for t in family(gpu, device)]
        lines += [
            "",
            f"## {machine['gpu']}",
            "",
            f"PyTorch {machine['torch']}, cuDNN {machine['cudnn']}; machine `{MACHINES[gpu]}`.",
            "",
        ]
        lines += table(told)
        if asked.steps:
            known[gpu] = steps(gpu)
            kept.write_text(json.dumps(known, indent=1) + "\n")
        if gpu in known:
            lines += [
                "",
                "| training step, bf16, Adam | told ms | measured ms | | told GiB | measured GiB | |",
                "|---|---:|---:|---:|---:|---:|---:|",
            ]
            for s in known[gpu]:
                ms, seen, held, peak = (float(str(s[k])) for k in ("ms", "measured_ms", "bytes", "measured_bytes"))
                lines.append(
                    f"| {s['case']} | {ms:.1f} | {seen:.1f} | {ms / seen - 1:+.0%} | {held / 2**30:.2f} | {peak / 2**30:.2f} | {held / peak - 1:+.0%} |"
                )
            off = [abs(float(str(s["ms"])) / float(str(s["measured_ms"])) - 1) for s in known[gpu]]
            lines += ["", f"Mean error of a step {mean(off):.1%}, worst {max(off):.0%}.", "", "Told by:", ""]
            lines += [
                f"    shardproof plan {PROGRAMS}:CASE --machine {MACHINES[gpu]}:1x1 {' '.join(OPTIONS)} -o plan.spz"
            ]
    print("\n".join(lines))
    if asked.page:
        (HERE / "results/gpu.md").write_text("\n".join(lines) + "\n")
    return 0


INTRODUCTION = """`python tests/benchmarks/gpu_predicted.py --steps --page`: rows that `tests/benchmarks/gpu_times.py` measured on one GPU each
(medians; CUDA graphs, so that Python's launches are not in them; steps with them, eagerly), beside what the built-in machines say."""

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
