"""The measured forms of the built-in machines, fitted anew from public rows and written into their files.

    python tests/benchmarks/machine_forms.py DATA [MACHINE ..] [--keep-products] [--write]

DATA is laid out as ../shared/data/measured; rows of attention are our own (`tests/data/measured/gpu`).  Without --write the constants and what they err are printed only.
--keep-products: those that the files of dgx-a100 and dgx-h100 have (a fit takes minutes of the processor).
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from measured.attention import PROCESSORS, WHERE, attention_rows
from measured.collectives import nccl_rows
from measured.products import DEVICES
from measured.rows import number, read, whole

from shardproof.formal.calibration.collective_times import Measured, Ratios
from shardproof.formal.calibration.machine_forms import Residual, attention_form, collective_form, product_form
from shardproof.formal.calibration.matmul_times import Product
from shardproof.models.cost.collective_times import Group, Operation
from shardproof.models.machine.machine import BUILTIN, load_machine
from shardproof.models.machine.measured import COLLECTIVES, DIRECTIONS, AttentionForm, CollectiveForm, ProductForm

NCCL = "ai-dynamo/aiconfigurator 095f58a"
VTRAIN = "VIA-Research/vTrain f8dda84, trace, A100 on NVSwitch"


@dataclass(frozen=True)
class Machine:
    """Where the rows of a machine are: GPU and NCCL folder of collectives, GPU of products; `because`: why rows of
    another machine stand in for its own; `attention`: GPU whose attention we measured.
    """

    level: str
    device: str
    nccl: tuple[str, str] | None
    gemm: str | None
    because: str = ""
    because_products: str = ""
    attention: str | None = None


MACHINES = {
    "dgx-a100": Machine("gpus", "a100", ("a100_sxm", "nccl/2.27.3"), "a100_sxm"),
    "dgx-a100-40": Machine(
        "gpus",
        "a100",
        ("a100_sxm", "nccl/2.27.3"),
        "a100_sxm",
        "",
        "products of the 80 GB board, the same processors; ",
    ),
    "dgx-h100": Machine("gpus", "h100", ("h100_sxm", "nccl/2.27.3"), "h100_sxm", attention="h100"),
    "dgx-h200": Machine(
        "gpus",
        "h200",
        ("h100_sxm", "nccl/2.27.3"),
        "h100_sxm",
        *["assumption: as dgx-h100, the same NVLink 4 and processors by data sheet, no row of an H200; "] * 2,
        attention="h200",
    ),
    "dgx-b200": Machine(
        "gpus",
        "b200",
        ("b300_sxm", "nccl/2.29.2"),
        None,
        "assumption: as a B300, the same NVLink 5 by data sheet, no row of a B200 in a node of eight; ",
    ),
}


def collectives(folder: Path, machine: Machine) -> dict[str, tuple[CollectiveForm, Residual, str]]:
    """Forms of one machine, by operation.  An element type is not told apart: plans reduce in many."""
    assert machine.nccl is not None
    gpu, library = machine.nccl
    rows: dict[str, list[Measured]] = {}
    for key, row in nccl_rows(folder):
        if (key.machine, key.software) == machine.nccl:
            rows.setdefault(str(key.operation), []).append(row)
    if gpu == "a100_sxm":  # the one table with every group size from 2 to 8
        rows["all_reduce"] = every_size(folder)
    ratios = separated(folder)
    out = {}
    for operation in COLLECTIVES:
        sizes = sorted({r.group.ranks for r in rows[operation]})
        form, residual = collective_form(rows[operation], ratios[operation])
        ranks = f"{' and '.join(map(str, sizes))} ranks" if len(sizes) < 3 else f"{sizes[0]} to {sizes[-1]} ranks"
        single = "; one group size: hop and own by the ratios of H100" if len(sizes) == 1 else ""
        library_words = library.replace("/", " ")
        where = f"{NCCL}, {gpu}, {library_words}" if len(sizes) < 3 else VTRAIN
        out[operation] = (form, residual, f"{where}, {ranks}{single}")
    return out


def every_size(folder: Path) -> list[Measured]:
    """All-reduces of nccl-tests on vTrain's A100 node."""
    out = []
    for row in read(folder, "vtrain/all_reduce"):
        seconds = (number(row, "in_place_ns") or 0.0) / 1e9
        if row["gpu"] == "A100" and seconds > 0:
            out.append(Measured(Operation.ALL_REDUCE, Group(whole(row, "ranks", 1)), whole(row, "bytes", 0), seconds))
    return out


def separated(folder: Path) -> dict[str, Ratios]:
    """Ratios of the H100 rows, which have two group sizes."""
    rows: dict[str, list[Measured]] = {}
    for key, row in nccl_rows(folder):
        if (key.machine, key.software) == ("h100_sxm", "nccl/2.27.3"):
            rows.setdefault(str(key.operation), []).append(row)
    out = {}
    for operation, mine in rows.items():
        form, _ = collective_form(mine, Ratios(0.3, 0.5))
        out[operation] = Ratios(_over(form.hop, form.fixed), _over(form.own, form.wire))
    return out


def _over(a: Fraction, b: Fraction) -> float:
    return float(a / b) if b else 0.0


HOME = {"a100_sxm": "dgx-a100", "h100_sxm": "dgx-h100"}
"""Machine in whose file the products of a GPU are written first."""


def kept(gpu: str) -> tuple[ProductForm, str]:
    """The form that is in the file of the GPU's own machine, and what it errs."""
    known = load_machine(HOME[gpu])
    form = known.device.product("bfloat16")
    if form is None:
        raise SystemExit(f"{HOME[gpu]} has no products yet; fit them without --keep-products")
    source = dict(known.sources)[f"device_class.{known.device.name}.product.bfloat16.launch"]
    return form, source[source.index(f"{gpu}, ") + len(gpu) + 2 :]


def products(folder: Path, gpu: str) -> tuple[ProductForm, Fraction, Residual]:
    """The form of bf16 products."""
    rows = []
    for row in read(folder, "gemm/sample"):
        seconds = (number(row, "ms") or 0.0) / 1e3
        if (row["gpu"], row["dtype"]) == (gpu, "bfloat16") and seconds > 0:
            rows.append(Product(*(whole(row, c, 1) for c in "mnk"), seconds))
    return product_form("bfloat16", rows, DEVICES[gpu, "bfloat16"])


def amount(seconds: Fraction) -> str:
    """A time in the unit in which it reads best."""
    for unit, factor in (("us", 10**6), ("ns", 10**9), ("ps", 10**12), ("ps", 10**12)):
        if seconds * factor >= 1:
            return f"{float(seconds * factor):.4g} {unit}"
    return f"{float(seconds):.3e} s" if seconds else "0 s"


def level_text(forms: dict[str, tuple[CollectiveForm, Residual, str]]) -> str:
    """Tables of a level in TOML."""
    out = []
    for operation, (form, _, _) in forms.items():
        out += [f"[level.{operation}]", *(f'{key} = "{amount(value)}"' for key, value in form.constants())]
    return "\n".join(out) + "\n"


def product_text(form: ProductForm, dtype: str) -> str:
    """The table of a device class in TOML."""
    out = ["[[device_class.product]]", f'dtype = "{dtype}"', f"processors = {form.processors}"]
    for key, value in form.constants():
        out.append(f'{key} = "{float(value):.4g}"' if key == "odd" else f'{key} = "{amount(value)}"')
    out.append("[device_class.product.tiles]")
    out += [f'{a}x{b} = "{amount(time)}"' for a, b, time in form.tiles]
    return "\n".join(out) + "\n"


def attention_tables(machine: Machine) -> tuple[str, list[str]]:
    """Tables of a device class in TOML, and their sources."""
    if machine.attention is None:
        return "", []
    gpu, table, sources = machine.attention, "", []
    for dtype in ("bfloat16", "float16"):
        for direction in DIRECTIONS:
            rows = attention_rows(gpu, direction)
            form, residual = attention_form(dtype, direction, rows, PROCESSORS[gpu])
            table += attention_text(form)
            rate = "" if dtype == "bfloat16" else " (float16 runs at the same rate)"
            words = (
                f"calibrated: fitted to bf16 rows{rate} of cuDNN's kernels, what PyTorch's scaled_dot_product_attention "
                f"takes there by default, {direction} alone, measured by us (tests/benchmarks/gpu_times.py) on {WHERE[gpu]}, "
                f"{residual.words()} by sequence"
            )
            sources.append(f'"device_class.{machine.device}.attention.{dtype}.{direction}" = "{words}"')
    return table, sources


def attention_text(form: AttentionForm) -> str:
    """The table of a device class in TOML."""
    out = ["[[device_class.attention]]", f'dtype = "{form.dtype}"', f'direction = "{form.direction}"']
    out += [f"processors = {form.processors}"]
    for key, value in form.constants():
        out.append(f'{key} = "{float(value):.4g}"' if key in ("wave", "band") else f'{key} = "{amount(value)}"')
    return "\n".join(out) + "\n"


def write(name: str, machine: Machine, level: str, table: str, sources: list[str]) -> None:
    """Put the tables and their sources into the machine's file, in place of those that are there."""
    path = BUILTIN / f"{name}.toml"
    text, bars_mark, bars = path.read_text(encoding="utf-8").partition("\n# Error bounds")
    text = re.sub(r"\[level\.(?:all_gather|reduce_scatter|all_reduce|alltoall)\]\n(?:\w+ = .*\n)+", "", text)
    text = re.sub(
        r"\[\[device_class\.product\]\]\n(?:\w+ = .*\n)+\[device_class\.product\.tiles\]\n(?:\w+ = .*\n)+", "", text
    )
    text = re.sub(r"\[\[device_class\.attention\]\]\n(?:\w+ = .*\n)+", "", text)
    text = re.sub(rf'"device_class\.{machine.device}\.attention\.[\w.]+" = "calibrated.*\n', "", text)
    text = re.sub(rf'"level\.{machine.level}\.(?:{"|".join(COLLECTIVES)})" = .*\n', "", text)
    text = re.sub(rf'"device_class\.{machine.device}\.product\.\w+" = .*\n', "", text)
    head, mark, tail = text.partition("\n[[device_class]]")
    body, sources_mark, rest = tail.partition("\n[sources]\n")
    path.write_text(
        f"{head.rstrip()}\n{level}{mark}{body.rstrip()}\n{table}{sources_mark}{rest.rstrip()}\n"
        + "\n".join(sources)
        + "\n"
        + bars_mark
        + bars,
        encoding="utf-8",
    )


def main(arguments: list[str]) -> int:
    """Fit, print, and perhaps write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("machines", nargs="*", metavar="MACHINE")
    parser.add_argument("--keep-products", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    known: dict[str, tuple[ProductForm, str]] = {}
    for name in options.machines or MACHINES:
        machine, sources = MACHINES[name], []
        forms = collectives(options.data, machine) if machine.nccl else {}
        for operation, (_, residual, where) in forms.items():
            words = f"{machine.because}calibrated: fitted to {where}, {residual.words()}"
            sources.append(f'"level.{machine.level}.{operation}" = "{words}"')
        table = ""
        if machine.gemm:
            if machine.gemm not in known and options.keep_products:
                known[machine.gemm] = kept(machine.gemm)
            elif machine.gemm not in known:
                form, bandwidth, residual = products(options.data, machine.gemm)
                print(f"{machine.gemm}: memory {float(bandwidth) / 1e12:.3f} TB/s belongs to the products")
                known[machine.gemm] = form, residual.words()
            form, errors = known[machine.gemm]
            for dtype in ("bfloat16", "float16"):
                table += product_text(form, dtype)
                rate = "" if dtype == "bfloat16" else " (float16 runs at the same rate)"
                words = f"{machine.because_products}calibrated: fitted to bf16 products{rate} of {NCCL}, gemm, {machine.gemm}, {errors}"
                sources.append(f'"device_class.{machine.device}.product.{dtype}" = "{words}"')
        attention, known_from = attention_tables(machine)
        table, sources = table + attention, sources + known_from
        print("\n".join([name, *sources]), flush=True)
        if options.write:
            write(name, machine, level_text(forms), table, sources)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
