"""Planning and checking on up to 4,096 devices: two layers of Llama-3 405B (hidden 16384, feed-forward 53248, 128
heads, 8192 tokens), batch 512.

    python tests/benchmarks/large_machines.py [--devices 512,1024,2048,4096] [--train adam] [--limit S]

D/8 nodes of 8.  Every row is two processes of their own: one builds the tables and searches under a limit, the other
checks the plan's bytes.  Seconds are processor seconds; memory is the process' peak.  Not a test.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

PLAN = """
import json, resource, sys, time
from shardproof.formal.plans.plan import plan_graph
from shardproof.models.machine.machine import load_machine
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build
from shardproof.proofs.plan.bundle import write_plan
sizes, train, limit, path = sys.argv[1:5]
graph = build("llama", layers=2, batch=512, sequence=8192, width=16384, heads=128, kv_heads=8, hidden=53248)
if train:
    graph = build_step(graph, train).graph
start = time.process_time()
planned = plan_graph(graph, load_machine("cloud-a100:" + sizes), time_limit_s=float(limit))
seconds = time.process_time() - start
data = write_plan(None, planned.plan)
open(path, "wb").write(data)
p = planned.planning.problem
print(json.dumps({"operators": len(graph.operators), "space": p.space, "entries": sum(t.size for t in p.tables), "plan_s": round(seconds, 1), "status": planned.answer.status.value,
                  "bytes": len(data), "plan_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}))
"""

CHECK = """
import json, resource, sys, time
from pathlib import Path
from shardproof.verify.plan.plan import check_plan
start = time.process_time()
verdict = check_plan(Path(sys.argv[1])).verdict.value
print(json.dumps({"check_s": round(time.process_time() - start, 1), "verdict": verdict, "check_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}))
"""


def row(devices: int, train: str, limit: float) -> dict[str, object]:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.spz"
        found: dict[str, object] = {"devices": devices}
        for code, arguments in ((PLAN, (f"{devices // 8}x8", train, str(limit), str(path))), (CHECK, (str(path),))):
            done = subprocess.run(
                [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, check=True
            )
            found.update(json.loads(done.stdout.splitlines()[-1]))
            print(json.dumps(found), flush=True)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="512,1024,2048,4096")
    parser.add_argument("--train", default="", choices=["", "sgd", "adam"])
    parser.add_argument("--limit", type=float, default=200.0)
    given = parser.parse_args()
    for devices in given.devices.split(","):
        row(int(devices), given.train, given.limit)


if __name__ == "__main__":
    main()
