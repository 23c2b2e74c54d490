"""Cost function networks of the field's families, public and drawn: ours beside toulbar2, processor seconds of whole
processes.

    python tests/benchmarks/cost_function_networks.py [--folder FOLDER] [--limit S] [--theirs S] [--seeds N]
                                                      [--only WORD] [--ours]

writes results/cost-function-networks.md from results/cost-function-networks.json, in which the rows measured now
replace those of the same instances.  FOLDER holds public instances (default: ../shared/data/wcsp); the drawn ones are
those of `tests/network_families.py`, N seeds of each family.  Ours is `shardproof solve` with reading, search, writing
and our own check, its modules compiled to bytecode as they are where it is installed; toulbar2 is a Python that loads
it, reads and solves.  Both are processes of their own, one after another.  `--ours` leaves toulbar2's half of the rows as it is.  Not a timed test.
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
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from network_families import FAMILIES, toulbar2

PUBLIC: Final = Path(__file__).resolve().parents[3] / "shared" / "data" / "wcsp"
RESULTS: Final = Path(__file__).resolve().parent / "results"
Row = dict[str, Any]


def ours(path: Path, limit_s: float, bytecode: Path) -> Row:
    """Status, cost, bound and processor seconds of `shardproof solve`."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(bytecode)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shardproof", "solve", str(path), "--json", "--time-limit", str(limit_s)]
        before = os.times()
        ran = subprocess.run([*command, "-o", f"{folder}/c.spz"], check=False, capture_output=True, text=True, env=env)
        after = os.times()
    found = json.loads(ran.stdout)
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    said = {"status": found.get("status", "no answer"), "cost": found.get("cost"), "bound": found.get("lower_bound")}
    return {**said, "seconds": round(seconds, 2), "limit": limit_s}


def instances(folder: Path, seeds: int, made: Path) -> Iterator[tuple[str, Path]]:
    """Names and files, the drawn ones written to `made`."""
    for path in sorted(folder.glob("*.xz")):
        yield path.name.removesuffix(".xz"), path
    for family, draw in FAMILIES.items():
        for seed in range(seeds):
            text = draw(seed)
            path = made / f"{family}-{seed}.{'wcsp' if text.split()[0] not in ('MARKOV', 'BAYES') else 'uai'}"
            path.write_text(text, encoding="utf-8")
            yield f"{family} {seed}", path


def page(rows: dict[str, Row]) -> str:
    """The page from all rows."""
    times: list[float] = []
    proved = theirs_proved = both = differing = 0
    lines = []
    for name, row in rows.items():
        mine, theirs = row["ours"], row["toulbar2"]
        done = mine["status"] in ("optimal", "infeasible")
        proved, theirs_proved = proved + done, theirs_proved + theirs["proved"]
        both += done and theirs["proved"]
        differing += done and theirs["proved"] and mine["cost"] != theirs["cost"]
        factor = mine["seconds"] / max(theirs["seconds"], 0.01)
        if theirs["proved"]:
            times.append(factor if done else float("inf"))
        cells = [name, mine["status"], mine["cost"], mine["bound"], f"{mine['seconds']:.2f}", theirs["cost"]]
        cells += ["yes" if theirs["proved"] else "no", f"{theirs['seconds']:.2f}", f"{factor:.1f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    limits = " and ".join(f"{s:g}" for s in sorted({r["ours"]["limit"] for r in rows.values()}))
    others = " and ".join(f"{s:g}" for s in sorted({r["toulbar2"]["limit"] for r in rows.values()}))
    heads = ["instance", "ours", "cost", "bound", "s", "toulbar2", "proved", "s", "times"]
    head = "| " + " | ".join(heads) + " |\n|" + "---|" * len(heads)
    return f"""# Cost function networks beside toulbar2

Made by `python tests/benchmarks/cost_function_networks.py` (rows in cost-function-networks.json), 2 cores (shared
Xeon), other work beside it. Time limits: {limits} s (ours, with reading, search, writing and our own check), {others} s
(toulbar2). `s` are processor seconds of whole processes, `times` ours over theirs.

{len(rows)} instances: {proved} proved by ours, {theirs_proved} by toulbar2, {both} by both, of which {differing} with
different costs. Where toulbar2 proves, ours takes {median(times):.1f} times its processor seconds in the median, at
most 10 times in {sum(t <= 10 for t in times)} of {len(times)}.

{head}
{chr(10).join(lines)}
"""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=PUBLIC)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of ours")
    parser.add_argument("--theirs", type=int, default=60, help="seconds of toulbar2")
    parser.add_argument("--seeds", type=int, default=6, help="drawn instances of a family")
    parser.add_argument("--only", default="", help="instances with this in their name")
    parser.add_argument("--ours", action="store_true", help="toulbar2's half stays as it is")
    asked = parser.parse_args()
    kept = RESULTS / "cost-function-networks.json"
    rows: dict[str, Row] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    with tempfile.TemporaryDirectory() as made:
        bytecode = Path(made, "bytecode")
        for name, path in instances(asked.folder, asked.seeds, Path(made)):
            if asked.only not in name:
                continue
            row = rows.get(name, {})
            if "toulbar2" not in row or not asked.ours:
                cost, closed, seconds = toulbar2(path, asked.theirs)
                row["toulbar2"] = {
                    "cost": cost,
                    "proved": closed,
                    "seconds": round(seconds, 2),
                    "limit": asked.theirs,
                }
            if not bytecode.exists():  # modules, and what is compiled of kernels, are those of an installed package
                ours(path, asked.limit, bytecode)
            row["ours"] = ours(path, asked.limit, bytecode)
            rows[name] = row
            print(name, row, file=sys.stderr, flush=True)
            kept.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "cost-function-networks.md").write_text(page(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
