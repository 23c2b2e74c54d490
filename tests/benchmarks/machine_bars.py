"""Error bounds of the built-in machines of real systems, from the public rows that their constants were fitted to.

python tests/benchmarks/machine_bars.py DATA [--write]

measured products   the factor within which nine of ten rows of the element type lie
measured attention  likewise, of the rows of the direction that we measured on that GPU
measured collective the same, of rows of which start-up and hops are less than half; `fixed` and `hop`: of the others.  An
                    A100's all_reduce has two tables (aiconfigurator's and vTrain's, which differ 2.6 times below 64 KB): both
memory bandwidth    products of at most 16 rows stream their weights: of those whose bytes take ten launches or more, the
                    factor within which launch + bytes / bandwidth has nine of ten.  Twice that on a machine whose
                    bandwidth is taken from there by a data sheet.  They read; operators that write as much do not
                    show in any row
launch              the least with which nine of ten of all these products lie between the times of the fastest and the
                    slowest machine, at least what `machine calibrate --from` finds
link                as `machine calibrate --from` finds it on the same rows, where there are some
step                what the model lacks: the factor within which nine of ten ratios of two measured steps lie around the
                    ratio of their costs (`results/audits.json`, Megatron on one node of A100s); no row elsewhere
nominal or assumed  ports between nodes: public steps (vtrain, several nodes) reach 37 to 85 % of the nominal rate:
                    within a factor of two; start-ups between nodes and constants taken over from another machine:
                    likewise; peaks and memory rates of a data sheet that no form covers: within a half
"""

from __future__ import annotations

import argparse
import json
import sys
from fractions import Fraction
from itertools import combinations
from math import ceil
from pathlib import Path

from machine_forms import HOME, MACHINES, every_size
from measured.attention import attention_rows
from measured.collectives import nccl_rows
from measured.rows import number, read, whole

from shardproof.formal.calibration.attention_times import seconds
from shardproof.formal.calibration.files.fitting import calibrate_files
from shardproof.formal.calibration.files.observation import Collective, Observation, Product
from shardproof.models.cost.matmul_times import STEP
from shardproof.models.machine.machine import BUILTIN, Machine, load_machine
from shardproof.models.machine.measured import COLLECTIVES, SPLITS, CollectiveForm, ProductForm
from shardproof.models.machine.parts import STEP as LACKING
from shardproof.models.machine.quantities import error_bound_text

Streamed = tuple[int, int, int, float]
ASSUMED, NOMINAL = Fraction(1), Fraction(1, 2)
SYSTEMS = ("dgx-a100", "dgx-a100-40", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72", "p3-16xlarge")


def bars(machine: Machine, folder: Path) -> dict[str, Fraction]:
    """Of one machine: path or prefix -> bar."""
    inner, outer, device = machine.levels[-1].name, machine.levels[0].name, f"device_class.{machine.device.name}"
    out = {
        f"level.{outer}.bandwidth": ASSUMED,
        f"level.{outer}.latency": ASSUMED,
        f"level.{inner}.bandwidth": NOMINAL,
        f"level.{inner}.latency": ASSUMED,
        f"{device}.bandwidth": NOMINAL,
        f"{device}.launch": ASSUMED,
        f"{device}.peaks": NOMINAL,
    }
    lacking = step_bar() if machine.name.startswith("dgx-a100") else None
    if lacking is not None:
        out[LACKING] = lacking
    known = MACHINES.get(machine.name)
    if known is None:
        return out
    taken = machine.name not in ("dgx-a100", "dgx-h100", "dgx-a100-40")
    for operation, form in zip(COLLECTIVES, machine.levels[-1].collectives, strict=False):
        rows = [(r.group.ranks, r.size, r.seconds) for k, r in nccl_rows(folder) if (k.machine, k.software) == known.nccl and k.operation == operation]  # fmt: skip
        if operation == "all_reduce" and machine.name.startswith("dgx-a100"):
            rows += [(r.group.ranks, r.size, r.seconds) for r in every_size(folder)]
        small, large = [], []
        for n, size, t in rows:
            predicted = collective(form, operation, n, size)
            starting = float(form.fixed + form.hop * (n - 1)) >= predicted / 2
            (small if starting else large).append(factor(predicted, t))
        out[f"level.{inner}.{operation}"] = nine_of_ten(large) * (2 if taken else 1)
        out |= {f"level.{inner}.{operation}.{k}": nine_of_ten(small) * (2 if taken else 1) for k in ("fixed", "hop")}
    gpu = known.gemm
    for form in machine.device.products:
        measured = gpu or "h100_sxm"
        home = load_machine(HOME[measured])  # its memory, not that of the machine that takes the form over
        off = [factor(product(form, m, n, k, home), t) for m, n, k, t in products(folder, measured)]
        out[f"{device}.product.{form.dtype}"] = nine_of_ten(off) * (2 if taken else 1)
    for attended in machine.device.attentions:
        off = [
            factor(float(seconds(attended, r)), r.seconds)
            for r in attention_rows(known.attention or "", attended.direction)
        ]
        out[f"{device}.attention.{attended.dtype}.{attended.direction}"] = nine_of_ten(off)
    if gpu is not None or machine.name == "dgx-h200":
        streamed = [r for r in products(folder, gpu or "h100_sxm") if r[0] <= 16]
        home = load_machine(HOME[gpu or "h100_sxm"])
        share = bandwidth_bar(home, streamed)
        out[f"{device}.bandwidth"] = share * (1 if machine.name == home.name else 2)
    if machine.name in ("dgx-a100", "dgx-h100") and gpu is not None:
        seen = [Observation(Product(m, n, k, "bfloat16"), t, "gemm") for m, n, k, t in products(folder, gpu)]
        found = dict(calibrate_files(machine, seen, (), (), "gemm").machine.bars)
        least = found[f"{device}.launch"]
        out[f"{device}.launch"] = max(least, launch_bar(machine, streamed, out[f"{device}.bandwidth"]))
        rows_ = [Observation(Collective(k.operation, r.group.ranks, 1, r.size), r.seconds, "nccl") for k, r in nccl_rows(folder) if (k.machine, k.software) == known.nccl]  # fmt: skip
        found = dict(calibrate_files(machine, rows_, (), (), "nccl").machine.bars)
        out |= {f"level.{inner}.{key}": found[f"level.{inner}.{key}"] for key in ("bandwidth", "latency")}
    return out


def bandwidth_bar(machine: Machine, rows: list[Streamed], bandwidth: float | None = None) -> Fraction:
    """Of rows that wait for memory; see the module."""
    launch, rate = float(machine.device.launch), bandwidth or float(machine.device.bandwidth)
    off = [factor(launch + moved(r) / rate, r[3]) for r in rows if moved(r) / rate >= 10 * launch]
    return nine_of_ten(off)


def held_out(machine: Machine, rows: list[Streamed]) -> list[Fraction]:
    """The same on half of the pairs (n, k), with the bandwidth that the other half has in the median, both ways."""
    out, launch = [], float(machine.device.launch)
    for half in (0, 1):
        mine = [r for r in rows if hash((r[1], r[2])) % 2 == half]
        rates = sorted(moved(r) / (r[3] - launch) for r in rows if r not in mine and moved(r) / r[3] >= 0.5 * float(machine.device.bandwidth))  # fmt: skip
        out.append(bandwidth_bar(machine, mine, rates[len(rates) // 2]))
    return out


def launch_bar(machine: Machine, rows: list[Streamed], bar: Fraction) -> Fraction:
    """The least with which nine of ten rows are between the two ends, the bandwidth within `bar`."""
    launch, rate, b = float(machine.device.launch), float(machine.device.bandwidth), 1 + float(bar)
    for percent in range(1, 1000):
        c = 1 + percent / 100
        inside = sum(launch / c + moved(r) / (rate * b) <= r[3] <= launch * c + moved(r) * b / rate for r in rows)
        if inside >= 0.9 * len(rows):
            return Fraction(percent, 100)
    raise SystemExit(f"{machine.name}: no launch explains nine of ten products of few rows")


def step_bar() -> Fraction | None:
    """Of the pairs of steps that were measured; None without the table."""
    store = Path(__file__).resolve().parent / "results" / "audits.json"
    if not store.is_file():
        return None
    off = []
    for group in json.loads(store.read_text())["groups"].values():
        for a, b in combinations(group, 2):
            off.append(factor(a["ms"] / b["ms"], a["cost"] / b["cost"]))
    return nine_of_ten(off)


def moved(row: Streamed) -> float:
    """Bytes of a product of 16-bit operands."""
    m, n, k, _ = row
    return 2.0 * (m * k + k * n + m * n)


def products(folder: Path, gpu: str) -> list[Streamed]:
    """Rows of bf16 products."""
    rows = [r for r in read(folder, "gemm/sample") if (r["gpu"], r["dtype"]) == (gpu, "bfloat16")]
    return [(*(whole(r, c, 1) for c in "mnk"), (number(r, "ms") or 0.0) / 1e3) for r in rows]  # type: ignore[misc]


def collective(form: CollectiveForm, operation: str, g: int, size: int) -> float:
    """Seconds by the form's law (`models.machine.measured`); `size` as nccl-tests have it."""
    share = size / g
    depth = 1 if operation == "alltoall" else (g - 1).bit_length()
    wire = float(form.wire) * (g - 1) * (2 if operation == "all_reduce" else 1) + float(form.own)
    slow, quick = float(form.slow) * g * share, float(form.start) * depth + wire * share
    return float(form.fixed + form.hop * (g - 1)) + min(slow, quick)


def product(form: ProductForm, m: int, n: int, k: int, machine: Machine) -> float:
    """Seconds by the form's law, one product of 16-bit operands."""
    best = float("inf")
    slowed = 1 + (float(form.odd) if m > 128 and m % STEP else 0)
    for a, b, time in form.tiles:
        count = ceil(m / a) * ceil(n / b)
        for parts in SPLITS:
            steps, waves = ceil(k / (STEP * parts)), ceil(count * parts / form.processors)
            more = float(form.split) + float(form.sum) * 4 * a * b * count * parts if parts > 1 else 0.0
            best = min(
                best, waves * (steps * float(time) * slowed + float(form.tail)) + steps * float(form.step) + more
            )
    moved = 2 * (m * k + k * n + m * n) / float(machine.device.bandwidth)
    return float(form.launch) + max(best, moved) + float(form.result) * m * n


def factor(predicted: float, measured: float) -> float:
    """By how much the larger exceeds the smaller."""
    return max(predicted / measured, measured / predicted) - 1


def nine_of_ten(off: list[float]) -> Fraction:
    """The nine-tenths quantile, in whole percents upwards."""
    return Fraction(ceil(100 * sorted(off)[int(0.9 * (len(off) - 1))]), 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    for name in SYSTEMS:
        found = bars(load_machine(name), options.data)
        if name in HOME.values():
            gpu = next(gpu for gpu, home in HOME.items() if home == name)
            rows = [r for r in products(options.data, gpu) if r[0] <= 16]
            halves = " and ".join(map(error_bound_text, held_out(load_machine(name), rows)))
            sys.stdout.write(f"bandwidth of {name}, held out: {halves}\n")
        lines = "\n".join(f'"{path}" = "{error_bound_text(bar)}"' for path, bar in found.items())
        sys.stdout.write(f"{name}\n{lines}\n")
        if options.write:
            file = BUILTIN / f"{name}.toml"
            text = file.read_text().partition("\n# Error bounds")[0].rstrip("\n")
            file.write_text(
                f"{text}\n\n# Error bounds: tests/benchmarks/machine_bars.py says what each rests on.\n[bars]\n{lines}\n"
            )


if __name__ == "__main__":
    main()
