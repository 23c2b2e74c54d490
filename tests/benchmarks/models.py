"""Every model the planner is judged on, planned and checked end to end: seconds, cost, gap, file size, memory.

Run: `python tests/benchmarks/models.py [onnx|bert|layers ...]` (default: all).  Each row is a process of its own, so
that the peak memory is that row's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHILD = """
import json, resource, sys, time
from shardproof.__main__ import run
start = time.monotonic()
code = run(sys.argv[1:])
print(json.dumps({"code": int(code), "seconds": time.monotonic() - start, "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}))
"""

TABLES = """
import json, sys, time
from shardproof.models.machine.machine import load_machine
from shardproof.models.layout.placement import space
from shardproof.models.cost.selection import build
from shardproof.models.sources.zoo import build as zoo
from shardproof.models.cost import cost, structures
spent = 0.0
def timed(function):
    def call(*arguments):
        global spent
        start = time.process_time()
        result = function(*arguments)
        spent += time.process_time() - start
        return result
    return call
structures.Structures._priced = timed(structures.Structures._priced)
cost.operator_costs = timed(cost.operator_costs)
graph = zoo("bert-large", batch=int(sys.argv[1]), layers=int(sys.argv[2]))
best = whole = 1e9
for _ in range(5):
    spent, start = 0.0, time.process_time()
    planning = build(graph, load_machine(sys.argv[3]), space(sys.argv[4]))
    best, whole = min(best, spent), min(whole, time.process_time() - start)
p = planning.problem
print(json.dumps({"seconds": best, "whole": whole, "operators": len(graph.operators), "tables": len(p.tables), "entries": sum(t.size for t in p.tables)}))
"""


def child(code: str, *arguments: str) -> list[dict[str, object]]:
    done = subprocess.run([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def plan(label: str, *arguments: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "p.spz"
        said, end = child(CHILD, "plan", *arguments, "--json", "-o", str(out))
        checked, done = child(CHILD, "check", "--json", str(out))
        cost = int(str(said["cost"])) / int(str(said["scale"]))
        print(
            f"{label:<34} {said['status']:<9} {cost * 1e3:>12.6f} ms  gap {float(str(said['gap'])):.3%}  plan "
            f"{end['seconds']:6.1f} s {end['rss']:>5} MiB  "
            f"check {checked['verdict']} {done['seconds']:5.1f} s  file {out.stat().st_size / 1e6:6.2f} MB  space "
            f"{said['space']}",
            flush=True,
        )


def onnx_graphs() -> None:
    import onnx

    for file in sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx")):
        for batch in ("256", "1"):
            plan(
                f"{file.stem.removeprefix('light_')}, batch {batch}",
                str(file),
                "--batch",
                batch,
                "--machine",
                "cloud-a100:4x8",
            )


def bert() -> None:
    plan("BERT-Large, batch 8, 4x8", "bert-large", "--batch", "8", "--machine", "cloud-a100:4x8")
    plan("BERT-Large, batch 256, 32x8", "bert-large", "--batch", "256", "--machine", "cloud-a100:32x8")


def layers() -> None:
    for batch, machine, where in (("8", "cloud-a100:4x8", "complete"), ("256", "cloud-a100:32x8", "two-per-level")):
        for count in ("2", "24", "96"):
            (row,) = child(TABLES, batch, count, machine, where)
            print(
                f"BERT-Large tables, {machine}, {count:>2} layers: {float(str(row['seconds'])):.2f} CPU s (whole "
                f"problem {float(str(row['whole'])):.2f} s), {row['operators']} operators, {row['tables']} "
                f"tables, {row['entries']} entries",
                flush=True,
            )


def main() -> None:
    parts = {"onnx": onnx_graphs, "bert": bert, "layers": layers}
    start = time.monotonic()
    for name in sys.argv[1:] or parts:
        parts[name]()
    print(f"{time.monotonic() - start:.0f} s in all")


if __name__ == "__main__":
    main()
