"""Error bars of the built-in machines of real systems, from the public rows that their constants were fitted to.

python tests/benchmarks/machine_bars.py DATA [--write]

measured form       the factor within which nine of ten rows of its operation (element type) lie
link, launch, memory bandwidth, peak without a form
                    as `machine calibrate --from` finds it on the same rows, where there are some
nominal or assumed  ports between nodes: public steps (vtrain, several nodes) reach 37 to 85 % of the nominal rate:
                    within a factor of two; start-ups between nodes and constants taken over from another machine:
                    likewise; peaks and memory rates of a data sheet that no form covers: within a half
"""

from __future__ import annotations

import argparse
import sys
from fractions import Fraction
from math import ceil
from pathlib import Path

from machine_forms import HOME, MACHINES
from measured.collectives import nccl_rows
from measured.rows import number, read, whole

from shardproof.formal.calibration.files.fitting import calibrate_files
from shardproof.formal.calibration.files.observation import Collective, Observation, Product
from shardproof.models.cost.matmul_times import STEP
from shardproof.models.machine.machine import BUILTIN, Machine, load_machine
from shardproof.models.machine.measured import COLLECTIVES, SPLITS, CollectiveForm, ProductForm
from shardproof.models.machine.quantities import bar_text

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
    known = MACHINES.get(machine.name)
    if known is None:
        return out
    taken = machine.name not in ("dgx-a100", "dgx-h100", "dgx-a100-40")
    for operation, form in zip(COLLECTIVES, machine.levels[-1].collectives, strict=False):
        rows = [(r.group.ranks, r.size, r.seconds) for k, r in nccl_rows(folder) if (k.machine, k.software) == known.nccl and k.operation == operation]  # fmt: skip
        off = [factor(collective(form, operation, n, size), t) for n, size, t in rows]
        out[f"level.{inner}.{operation}"] = nine_of_ten(off) * (2 if taken else 1)
    gpu = known.gemm
    for form in machine.device.products:
        measured = gpu or "h100_sxm"
        home = load_machine(HOME[measured])  # its memory, not that of the machine that takes the form over
        off = [factor(product(form, m, n, k, home), t) for m, n, k, t in products(folder, measured)]
        out[f"{device}.product.{form.dtype}"] = nine_of_ten(off) * (2 if taken else 1)
    if machine.name in ("dgx-a100", "dgx-h100") and gpu is not None:
        seen = [Observation(Product(m, n, k, "bfloat16"), t, "gemm") for m, n, k, t in products(folder, gpu)]
        found = dict(calibrate_files(machine, seen, (), (), "gemm").machine.bars)
        out |= {f"{device}.{key}": found[f"{device}.{key}"] for key in ("bandwidth", "launch")}
        rows_ = [Observation(Collective(k.operation, r.group.ranks, 1, r.size), r.seconds, "nccl") for k, r in nccl_rows(folder) if (k.machine, k.software) == known.nccl]  # fmt: skip
        found = dict(calibrate_files(machine, rows_, (), (), "nccl").machine.bars)
        out |= {f"level.{inner}.{key}": found[f"level.{inner}.{key}"] for key in ("bandwidth", "latency")}
    return out


def products(folder: Path, gpu: str) -> list[tuple[int, int, int, float]]:
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
        lines = "\n".join(f'"{path}" = "{bar_text(bar)}"' for path, bar in found.items())
        sys.stdout.write(f"{name}\n{lines}\n")
        if options.write:
            file = BUILTIN / f"{name}.toml"
            text = file.read_text().partition("\n# Error bars")[0].rstrip("\n")
            file.write_text(
                f"{text}\n\n# Error bars: tests/benchmarks/machine_bars.py says what each rests on.\n[bars]\n{lines}\n"
            )


if __name__ == "__main__":
    main()
