"""Cost function networks of the field's families, public and drawn: ours beside toulbar2, processor seconds of whole
processes.

    python tests/benchmarks/cost_function_networks.py [FOLDER] [--limit SECONDS] [--theirs SECONDS] [--seeds N]
                                                      [-o PAGE]

FOLDER holds public instances (`../shared/data/wcsp`); the drawn ones are those of `tests/network_families.py`, N seeds
of each family.  Ours is `shardproof solve` with reading, search, writing and our own check; toulbar2 is a Python that
loads it, reads and solves.  Both are processes of their own, one after another.  Not a timed test.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from network_families import FAMILIES, toulbar2

from shardproof.formal.plans.report import table_text


def ours(path: Path, limit_s: float) -> tuple[str, int | None, int | None, float]:
    """(status, cost, lower bound, processor seconds) of `shardproof solve`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shardproof", "solve", str(path), "--json", "--time-limit", str(limit_s)]
        before = os.times()
        ran = subprocess.run([*command, "-o", f"{folder}/c.spz"], check=False, capture_output=True, text=True)
        after = os.times()
    found = json.loads(ran.stdout)
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return found["status"], found.get("cost"), found.get("lower_bound"), seconds


def instances(folder: Path | None, seeds: int, made: Path) -> Iterator[tuple[str, Path]]:
    """Names and files, the drawn ones written to `made`."""
    for path in sorted(folder.glob("*.xz")) if folder is not None else ():
        yield path.name.removesuffix(".xz"), path
    for family, draw in FAMILIES.items():
        for seed in range(seeds):
            text = draw(seed)
            path = made / f"{family}-{seed}.{'wcsp' if text.split()[0] not in ('MARKOV', 'BAYES') else 'uai'}"
            path.write_text(text, encoding="utf-8")
            yield f"{family} {seed}", path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of ours")
    parser.add_argument("--theirs", type=int, default=60, help="seconds of toulbar2")
    parser.add_argument("--seeds", type=int, default=6, help="drawn instances of a family")
    parser.add_argument("-o", "--out", type=Path, help="the page")
    asked = parser.parse_args()
    rows: list[list[str]] = []
    times: list[float] = []
    proved = theirs_proved = both = differing = 0
    with tempfile.TemporaryDirectory() as made:
        ours(next(path for _, path in instances(None, 1, Path(made))), 5.0)  # compiles what a new environment has not
        for name, path in instances(asked.folder, asked.seeds, Path(made)):
            status, cost, bound, seconds = ours(path, asked.limit)
            other, closed, other_s = toulbar2(path, asked.theirs)
            mine = status in ("optimal", "infeasible")
            proved, theirs_proved, both = proved + mine, theirs_proved + closed, both + (mine and closed)
            differing += mine and closed and cost != other
            if closed:
                times.append(seconds / other_s if mine else float("inf"))
            row = [name, status, str(cost), str(bound), f"{seconds:.2f}", str(other), "yes" if closed else "no"]
            rows.append([*row, f"{other_s:.2f}", f"{seconds / other_s:.1f}"])
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    heads = ["instance", "ours", "cost", "bound", "s", "toulbar2", "proved", "s ", "times"]
    summary = (
        f"{len(rows)} instances: {proved} proved by ours, {theirs_proved} by toulbar2, {both} by both, of which "
        f"{differing} with different costs. Processor seconds of ours over those of toulbar2, where that proves: median "
        f"{median(times):.1f}, in {sum(t <= 10 for t in times)} of {len(times)} at most 10."
    )
    text = f"{summary}\n\n{table_text('', heads, rows, right=(2, 3, 4, 5, 7, 8))}\n"
    print(text)
    if asked.out is not None:
        command = " ".join(a for a in ["tests/benchmarks/cost_function_networks.py", *sys.argv[1:]])
        asked.out.write_text(
            f"# Cost function networks beside toulbar2\n\nMade by `python {command}`, limits of {asked.limit:g} s (ours, "
            f"tables, search and check) and {asked.theirs} s (toulbar2).\n\n{summary}\n\n```\n{table_text('', heads, rows, right=(2, 3, 4, 5, 7, 8))}\n```\n",
            encoding="utf-8",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
