"""A sweep of forty plans on one worker, on two of which one is killed on the way, and on two ranks of MPI with the same.

    python tests/benchmarks/sweep_workers.py [--mpiexec PROGRAM]       writes results/sweep-workers.md

Every run is the command line `sweep`; the process of the fifth plan that begins is killed with SIGKILL as soon as it is
seen.  All rows have to be there with the costs of the undisturbed run.  Not a timed test.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

RESULTS: Final = Path(__file__).resolve().parent / "results" / "sweep-workers.md"

SWEEP: Final = """
[every]
train = "adam"
time-limit = 300

[each]
model = ["mlp-8192:layers=2,width=64", "mlp-8192:layers=4,width=64"]
machine = ["localhost:2", "localhost:4"]
batch = [8, 16, 24, 32, 40, 48, 56, 64, 72, 80]
"""
"""2 x 2 x 10 plans."""

DISTURBED: Final = 5
"""Which plan's process is killed, in the order in which they begin."""


def plans_below(pid: int) -> list[int]:
    """Processes of plans among the descendants of a process."""
    found, todo = [], [pid]
    while todo:
        at = todo.pop()
        for task in Path(f"/proc/{at}/task").glob("*/children"):
            try:
                children = [int(word) for word in task.read_text(encoding="ascii").split()]
            except OSError:
                continue
            todo += children
            for child in children:
                try:
                    words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"plan" in words and b"sweep" not in words:
                    found.append(child)
    return found


def swept(command: list[str], kills: bool) -> tuple[dict[str, object], float, float, int | None]:
    """What a sweep printed, its seconds, those of the processor, and which process was killed."""
    begun, before, killed = time.monotonic(), os.times(), None
    seen: set[int] = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        while kills and killed is None and child.poll() is None:
            for pid in plans_below(child.pid):
                seen.add(pid)
                if len(seen) >= DISTURBED and killed is None:
                    os.kill(pid, signal.SIGKILL)
                    killed = pid
            time.sleep(0.01)
        printed, _ = child.communicate()
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return json.loads(printed), time.monotonic() - begun, processor, killed


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpiexec", default=shutil.which("mpiexec"), help="program that starts ranks")
    asked = parser.parse_args()
    rows = []
    costs: list[object] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "sweep.toml")
        file.write_text(SWEEP, encoding="utf-8")
        for name, words, kills in (
            ("one worker", "1", False),
            ("two workers", "2", True),
            ("two MPI ranks", "mpi", True),
        ):
            out = Path(folder, name.replace(" ", "-"))
            command = ["-m", "shardproof", "sweep", str(file), "-o", str(out), "--workers", words, "--json"]
            if words == "mpi":
                if asked.mpiexec is None:
                    continue
                ranks = [asked.mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures"]
                found, seconds, processor, killed = swept([*ranks, *command], kills)
            else:
                found, seconds, processor, killed = swept([sys.executable, *command], kills)
            planned = found["rows"]
            assert isinstance(planned, list)
            mine = [r["cost"] for r in planned]
            costs = costs or mine
            again = sum(r["tries"] > 1 for r in planned)
            proved = sum(r["status"] == "optimal" for r in planned)
            same = "yes" if mine == costs else "no"
            cells = [name, "none" if killed is None else "one, SIGKILL", len(planned), proved, again, same]
            rows.append([*map(str, cells), f"{seconds:.0f}", f"{processor:.0f}"])
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    heads = [
        "workers",
        "killed",
        "rows",
        "optimal and checked",
        "begun twice",
        "costs of one worker",
        "s",
        "processor s",
    ]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, ["---"] * len(heads), *rows))
    cores, load = os.cpu_count(), os.getloadavg()[2]
    RESULTS.write_text(
        f"""# A sweep on several workers, one of which is killed

Made by `python tests/benchmarks/sweep_workers.py`: 40 plans (2 models, 2 machines, 10 batches, a training step each),
{cores} cores, other work beside it (load of {load:.1f} over the last 15 minutes). The process of the fifth plan that
begins is killed: it loses its row alone, which is begun again. `processor s` are those of all processes but ranks' own.

{table}
""",
        encoding="utf-8",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
