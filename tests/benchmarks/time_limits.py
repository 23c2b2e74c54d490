"""Do time limits hold, and when is there a first answer?  Twenty-nine cases on machines of two to four levels, seconds
from the start of the process to its end.

    python tests/benchmarks/time_limits.py [--limit S] [--load N] [--only WORD,WORD..] [--list] [--check]
    [--data FOLDER] [--store FILE.json] [--render FILE.md]

Every case is the command that a user types, in a process of its own, with `--time-limit S` (default 60): a table takes
at most as many times 1.1 S + 10 s where all limits hold (S = 20: 29 times 32 s).  --check: answers that a command left
unchecked are checked by the command that it names, which takes minutes for large ones and does not count.  --load: so
many other processes compute all the while; --only: cases whose name has one of the words.
`allowed` is 1.1 S + 10 s, `over` what comes after S; seconds in which kernels were compiled, once in a new environment,
are said in brackets and count as little here as for the limit.  processor: of the process and its children; first: seconds of
the processor until a first plan was announced, else those until the search had ended ("-": no answer); load: of the
machine, at the beginning and the end.  Phases are those of `--json`; gap: (cost - bound) / cost as the checker certified them.
Rows already in the store are not run again.  Not a test.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shardproof.models.text import seconds_text

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
RESULTS = Path(__file__).parent / "results" / "time-limits.md"

MACHINES = {
    "three": (("nodes", 2, "9 GB/s", "10 us"), ("boards", 2, "100 GB/s", "6 us"), ("gpus", 4, "270 GB/s", "5 us")),
    "pods": (("pods", 2, "4.5 GB/s", "20 us"), ("nodes", 4, "9 GB/s", "10 us"), ("gpus", 8, "270 GB/s", "5 us")),
    "four": (
        ("pods", 2, "4.5 GB/s", "20 us"),
        ("nodes", 2, "9 GB/s", "10 us"),
        ("boards", 2, "100 GB/s", "6 us"),
        ("gpus", 4, "270 GB/s", "5 us"),
    ),
}
"""Machines that are not built in: name -> levels (name, size, bandwidth, latency), with the devices of `cloud-a100`."""

DEVICE = """
[[device_class]]
name = "a100"
memory = "80 GiB"
bandwidth = "1.4 TB/s"
[device_class.peaks]
bfloat16 = "150 Tflop/s"
float32 = "19.5 Tflop/s"
int32 = "19.5 Tflop/s"
int64 = "4.875 Tflop/s"
bool = "19.5 Tflop/s"

[sources]
"device_class.a100.memory" = "as cloud-a100"
"device_class.a100.bandwidth" = "as cloud-a100"
"device_class.a100.peaks" = "as cloud-a100"
"""

DATA_PARALLEL = {"*": {}}
"""Everything replicated: an `audit` finds something better."""


@dataclass(frozen=True)
class Case:
    """The `line` of a command; MACHINE:NAME stands for a file of `MACHINES`, DATA/.. for a file of --data, STRATEGY for
    a strategy file.
    """

    name: str
    line: str

    @property
    def words(self) -> tuple[str, ...]:
        """The line, word by word."""
        return tuple(self.line.split())


def _plan(name: str, line: str) -> Case:
    return Case(name, f"plan {line} -o OUT")


ADAM_8 = "--batch 64 --precision bf16-master --train adam"
ALL = "--views --joint --overlap --pipeline auto"

CASES = (
    _plan("BERT-Large, Adam, 4 GiB, 4x8", "bert-large --train adam --memory 4GiB --machine cloud-a100:4x8"),
    _plan("BERT-Large, Adam, 1.1 GiB, 4x8", "bert-large --train adam --memory 1.1GiB --machine cloud-a100:4x8"),
    _plan(
        "BERT-Large, batch 64, Adam, 3.5 GiB, 4x8",
        "bert-large --batch 64 --train adam --memory 3.5GiB --machine cloud-a100:4x8",
    ),
    _plan("BERT-Large, Adam, 3 GiB, 2x2x2x4", "bert-large --train adam --memory 3GiB --machine MACHINE:four"),
    _plan(
        "BERT-Large, batch 64, Adam, 4 GiB, recompute auto, 4x8",
        "bert-large --batch 64 --train adam --memory 4GiB --recompute auto --machine cloud-a100:4x8",
    ),
    _plan("Llama, Adam, 4x8", "llama --train adam --machine cloud-a100:4x8"),
    _plan("Llama, 2x4x8", "llama --machine MACHINE:pods"),
    _plan("MoE, Adam, 4x8", "moe --train adam --machine cloud-a100:4x8"),
    _plan("DLRM, SGD, 4x8", "dlrm --train sgd --machine cloud-a100:4x8"),
    _plan("ResNet-101, SGD, 2x4x8", "resnet101 --train sgd --machine MACHINE:pods"),
    _plan(
        "ResNet-101, SGD, uneven, 2x8",
        "resnet101 --train sgd --space two-per-level,uneven --machine cloud-a100:2x8",
    ),
    _plan("Transformer, Adam, 16x8", "transformer --train adam --machine cloud-a100:16x8"),
    _plan("Inception-v3, SGD, 2x4x8", "inception-v3 --train sgd --machine MACHINE:pods"),
    _plan("ViT, Adam, 2x2x4", "vit --train adam --machine MACHINE:three"),
    _plan("ViT, Adam, ILP, 2x2x4", "vit --train adam --engine ilp --machine MACHINE:three"),
    _plan("RNNLM, SGD, 4x8", "rnnlm --train sgd --machine cloud-a100:4x8"),
    Case("solve PaSE transformer, p = 16", "solve DATA/pase/transformer-p16.json.gz -o OUT"),
    Case("solve PaSE ResNet-101, p = 16, SMT", "solve DATA/pase/resnet101-p16.json.gz --engine smt -o OUT"),
    Case("solve contest S", "solve DATA/iopddl/asplos-2025-iopddl-S.json.gz -o OUT"),
    Case(
        "audit Transformer, everything replicated, 2x4x8",
        "audit transformer --machine MACHINE:pods --strategy STRATEGY -o OUT",
    ),
    Case(
        "audit BERT-Large, everything replicated, 4x8",
        "audit bert-large --machine cloud-a100:4x8 --strategy STRATEGY -o OUT",
    ),
    _plan("Llama-3 8B, Adam, 80 GiB, defaults, 8x8", f"llama-3-8b {ADAM_8} --memory 80GiB --machine dgx-h100:8x8"),
    _plan(
        "Llama-3 70B, Adam, recompute, 80 GiB, defaults, 8x8",
        f"llama-3-70b {ADAM_8} --recompute all --memory 80GiB --machine dgx-h100:8x8",
    ),
    _plan("BERT-Large, Adam, pipeline auto, 4x8", f"bert-large {ADAM_8} --pipeline auto --machine cloud-a100:4x8"),
    _plan("BERT-Large, Adam, overlap, 4x8", "bert-large --train adam --overlap --machine cloud-a100:4x8"),
    _plan("BERT-Large, joint, 4x8", "bert-large --joint --machine cloud-a100:4x8"),
    _plan("BERT-Large, Adam, all freedoms, 4x8", f"bert-large --train adam {ALL} --machine cloud-a100:4x8"),
    _plan("BERT-Tiny, Adam, all freedoms, 2x4", f"bert-tiny --train adam {ALL} --machine cloud-a100:2x4"),
    Case(
        "schedule 16 x 32, memory 16",
        "schedule --stages 16 --micro-batches 32 --times 2,3,2 --send 1 --memory 16 -o OUT",
    ),
)

COLUMNS = (
    "case",
    "space",
    "tables s",
    "search s",
    "check s",
    "first s",
    "processor s",
    "wall s",
    "load",
    "over s",
    "allowed s",
    "held",
    "cost",
    "gap",
    "status",
    "exit",
    "answer",
)


def machine_text(name: str) -> str:
    """A machine file."""
    levels = "".join(
        f'\n[[level]]\nname = "{n}"\nsize = {size}\nbandwidth = "{b}"\nlatency = "{t}"\n'
        for n, size, b, t in MACHINES[name]
    )
    sources = "".join(
        f'"level.{n}.{what}" = "made up for this table"\n'
        for n, *_ in MACHINES[name]
        for what in ("bandwidth", "latency")
    )
    return f'name = "{name}"\n{levels}{DEVICE}{sources}'


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Other processes that compute all the while."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for child in busy:
            child.kill()
            child.wait()


def measured(case: Case, limit: float, data: Path, folder: Path, check: bool) -> dict[str, object]:
    """One row."""
    out = folder / "out.spz"
    out.unlink(missing_ok=True)
    (folder / "strategy.json").write_text(json.dumps(DATA_PARALLEL))
    words = []
    for word in case.words:
        if word.startswith("MACHINE:"):
            path = folder / f"{word.removeprefix('MACHINE:')}.toml"
            path.write_text(machine_text(path.stem))
            word = str(path)
        words.append(
            word.replace("DATA/", f"{data}/")
            .replace("OUT", str(out))
            .replace("STRATEGY", str(folder / "strategy.json"))
        )
    before_load = os.getloadavg()[0]
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-m", "shardproof", *words, "--time-limit", str(limit), "--json"],
        capture_output=True,
        text=True,
        timeout=10 * limit + 600,
        check=False,
    )
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        said = json.loads(ended.stdout)
    except json.JSONDecodeError:
        said = {"error": (ended.stderr or ended.stdout)[-300:]}
    checked = "-"
    if out.exists() and not check and not said.get("checked", False):
        checked = "unchecked"
    elif out.exists() and (not check or words[0] == "audit"):  # an audit is about a problem that is in no file
        checked = "proved"
    elif out.exists():
        command = shlex.split(str(said.get("check_with", f"shardproof check {out}")))
        code = subprocess.run([sys.executable, "-m", *command], capture_output=True, check=False).returncode
        checked = "proved" if code == 0 else f"exit {code}"
    return {
        "case": case.name,
        "limit": limit,
        "wall": wall,
        "load": [round(x, 1) for x in (before_load, os.getloadavg()[0])],
        "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "exit": ended.returncode,
        "said": said,
        "file": checked,
        "notes": ended.stderr.strip()[-1200:],
    }


def row(found: dict[str, object]) -> tuple[object, ...]:
    """The cells of a row."""
    said, limit, wall = found["said"], float(str(found["limit"])), float(str(found["wall"]))
    assert isinstance(said, dict)
    phases = said.get("phases", {})
    cost, lower, scale = (
        said.get("cost", said.get("strategy_cost", said.get("makespan_units"))),
        said.get("lower_bound"),
        said.get("scale") or 1,
    )
    gap = "-" if cost is None or lower is None else f"{max(0, cost - lower) / max(1, abs(cost)):.4%}"
    shown = "-" if cost is None else seconds_text(cost, scale) if scale >= 10**9 else str(cost)
    answer = (
        "no"
        if cost is None and said.get("status") != "infeasible"
        else "yes"
        if found["file"] in ("proved", "-") and said.get("checked", True)
        else "yes, proved by its command"
        if found["file"] == "proved"
        else f"yes, {found['file']}"
    )
    allowed = 1.1 * limit + 10
    compiling = phases.get("compiling", 0.0)
    wall -= compiling
    seconds = [f"{phases.get(name, 0.0):.1f}" for name in ("tables", "search", "check")]
    return (
        found["case"],
        said.get("space", "as given"),
        *seconds,
        first(found, said, answer),
        f"{float(str(found['processor'])):.1f}",
        f"{wall:.1f}" + (f" (+ {compiling:.0f})" if compiling >= 0.5 else ""),
        " to ".join(map(str, found.get("load", ["-"]))),  # type: ignore[call-overload]
        f"{max(0.0, wall - limit):.1f}",
        f"{allowed:.0f}",
        "yes" if wall <= allowed else "NO",
        shown,
        gap,
        said.get("status", said.get("outcome", "-")),
        found["exit"],
        answer,
    )


def first(found: dict[str, object], said: dict[str, object], answer: str) -> str:
    """Seconds of the processor until there was an answer."""
    told = re.search(r"first plan after (\d+) s of the processor", str(found["notes"]))
    if told is not None:
        return told[1]
    whole, phases = said.get("processor_seconds"), said.get("phases")
    if answer == "no" or not isinstance(whole, float) or not isinstance(phases, dict):
        return "-"
    return f"{max(0.0, whole - phases.get('check', 0.0) - phases.get('remarks', 0.0)):.0f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--store", type=Path, default=Path("/tmp/shardproof-time-limits.json"))
    parser.add_argument("--render", type=Path, default=RESULTS)
    asked = parser.parse_args()
    wanted = [case for case in CASES if any(word in case.name for word in asked.only.split(","))]
    if asked.list:
        print(*(f"{case.name}: shardproof {case.line}" for case in wanted), sep="\n")
        return
    store: dict[str, dict[str, object]] = json.loads(asked.store.read_text()) if asked.store.exists() else {}
    with tempfile.TemporaryDirectory() as folder, load(asked.load):
        for case in wanted:
            key = f"{case.name} | {asked.limit:g} s | load {asked.load}"
            if key not in store:
                store[key] = measured(case, asked.limit, asked.data, Path(folder), asked.check)
                asked.store.write_text(json.dumps(store, indent=1))
                print(*row(store[key]), sep=" | ", flush=True)
    if not asked.only:
        asked.render.write_text(page(store))


def page(store: dict[str, dict[str, object]]) -> str:
    """All tables of the store."""
    kinds = sorted({key.split(" | ", 1)[1] for key in store})
    lines = [
        "# Time limits",
        "",
        (
            f"`python tests/benchmarks/time_limits.py`, `--load 3`; {os.cpu_count()} cores.  Wall seconds from the start "
            f"of the process to its end; allowed: 1.1 S + 10 s; load: of the machine, at the start and at the end.  "
            f"Unchecked: written with exit 5 and the command that checks it.  No answer: exit 5 and what to change."
        ),
    ]
    for kind in kinds:
        rows = [[str(c) for c in row(found)] for key, found in store.items() if key.endswith(f" | {kind}")]
        lines += [
            "",
            f"## Limit {kind.replace(' | load 0', ', quiet').replace(' | load ', ', busy processes beside it: ')}",
            "",
            markdown(COLUMNS, rows),
        ]
    return "\n".join(lines) + "\n"


def markdown(head: tuple[str, ...], rows: list[list[str]]) -> str:
    """A table."""
    return "\n".join(
        ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(r) + " |" for r in rows)]
    )


if __name__ == "__main__":
    main()
