"""What do other engines decide?  PaSE's tables, planned models and problems with rows by HiGHS, z3 and CP-SAT.

    python tests/benchmarks/engines.py [--part messages|alone] [--limit S] [--only WORD] [--engine E] [--data FOLDER]

writes results/engines.md from results/engines.json, in which the rows measured now replace those of the same problem
and engine; without options everything is measured again.

    messages    `solve --engine E`: columns that native messages leave open are asked about, the proof is native
    alone       `solve --engine E --alone`: the whole problem, and the certificate is made of the engine's own proof

Each row is one command line in a process of its own, and `check` of what it wrote in another; the cheapest cost is
that of a native proof.  Not a test.
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
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from random_problems import rows_some_bind

from shardproof.formal.plans.plan import default_space
from shardproof.models.cost.selection import build as tables
from shardproof.models.machine.machine import load_machine
from shardproof.models.problem.selection_problem import SelectionProblem
from shardproof.models.sources.training.step import training_step
from shardproof.models.sources.zoo import build
from shardproof.proofs.selection.load import load_selection_problem
from shardproof.proofs.selection.problem_file import problem_json

DATA: Final = Path(__file__).resolve().parents[3] / "shared" / "data"
RESULTS: Final = Path(__file__).resolve().parent / "results"

PLANNED: Final = (
    ("bert-large", 8, None, "cloud-a100:4x8", None),
    ("transformer", 64, None, "cloud-a100:4x8", None),
    ("mlp-unity", 256, "adam", "cloud-a100:1x8", 2_241_334),
    ("bert-tiny", 8, "adam", "localhost:4", 1_726_241),
    ("bert-large", 64, "adam", "cloud-a100:4x8", None),
)
"""Model, batch, optimizer, machine, memory limit in bytes: with messages of ours."""

WHOLE: Final = (
    ("bert-tiny", 8, None, "cloud-a100:2x4", None),
    ("bert-tiny", 8, "adam", "cloud-a100:2x4", None),
    ("bert-tiny", 8, "adam", "localhost:4", 1_726_241),
    ("mlp-unity", 256, "adam", "cloud-a100:1x8", 2_241_334),
)
"""The same for engines alone."""

SEEDS: Final = range(5)
"""Of `rows_some_bind`: 14 decisions, rows that bind."""

ENGINES: Final = ("ilp", "smt", "cp-sat")
HEADS: Final = {
    "alone": "Alone: the engine gets the whole problem, and the certificate is made of its own proof",
    "messages": "With messages: the engine gets what native messages leave open, the proof is native",
}
Row = dict[str, Any]


def planned(models: tuple[tuple[str, int, str | None, str, int | None], ...]) -> Iterator[tuple[str, SelectionProblem]]:
    """Names and problems."""
    for model, batch, optimizer, machine, limit in models:
        graph, target = build(model, batch=batch), load_machine(machine)
        graph = graph if optimizer is None else training_step(graph, optimizer)
        kept = "" if limit is None else f", {limit / 2**20:.2f} MiB"
        name = f"{model} {batch}{'' if optimizer is None else ' ' + optimizer} on {machine}{kept}"
        yield name, tables(graph, target, default_space(target), limit).problem


def problems(part: str, data: Path) -> Iterator[tuple[str, SelectionProblem]]:
    """PaSE's published tables, models, and problems with rows."""
    for path in sorted((data / "pase").glob("*.json.gz"), key=lambda p: (len(p.name), p.name)):
        yield path.name.removesuffix(".json.gz"), load_selection_problem(path)
    yield from planned(PLANNED if part == "messages" else WHOLE)
    if part == "alone":
        for seed in SEEDS:
            yield f"rows_some_bind({seed})", rows_some_bind(seed)


def spoken(words: list[str]) -> tuple[Row, float]:
    """What a command printed, and the processor seconds of its process."""
    before = os.times()
    ran = subprocess.run([sys.executable, "-m", "shardproof", *words, "--json"], check=False, capture_output=True)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return json.loads(ran.stdout), seconds


def measure(part: str, file: Path, problem: SelectionProblem, engine: str, limit_s: float) -> Row:
    """One command line, and its check."""
    out = file.with_suffix(".spz")
    out.unlink(missing_ok=True)
    words = ["solve", str(file), "--engine", engine, "--time-limit", str(limit_s), "-o", str(out)]
    found, seconds = spoken([*words, "--alone"] if part == "alone" else words)
    row: Row = {
        "decisions": len(problem.vertices),
        "choices": sum(v.cost.size for v in problem.vertices),
        "limit": limit_s,
        "seconds": round(seconds, 1),
        "status": found.get("status", found.get("error")),
        "cost": found.get("cost"),
        "bound": found.get("lower_bound"),
        "told": found.get("engine"),
        "checked": "-",
    }
    if out.exists():
        row["checked"] = spoken(["check", str(out), str(file)])[0]["verdict"]
    return row


def told_cells(part: str, row: Row) -> list[str]:
    """What the engine was asked and answered."""
    told = row["told"]
    if not told:
        return ["-"] * 6
    if part == "messages":
        last, seconds = told[-1], sum(t["seconds"] for t in told)
        decided = "yes" if last["decided"] else "no"
        return [*(str(last[k]) for k in ("columns", "parts", "rows")), f"{seconds:.1f}", last["says"], decided]
    asked, answered = told["asked"], told["answered"]
    return [
        str(asked["parts"]),
        str(asked["rows"]),
        answered["says"],
        f"{answered['seconds']:.1f}",
        str(told["reasons"]),
        told["proof"],
    ]


def text_of(part: str, rows: dict[str, dict[str, Row]]) -> str:
    """The table of one part."""
    told = {
        "messages": ["columns", "parts", "rows", "engine s", "it says", "decided"],
        "alone": ["parts", "rows", "it says", "engine s", "reasons", "the certificate holds"],
    }[part]
    heads = ["problem", "decisions", "choices", "engine", *told, "status", "cost", "checked", "s"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name, engines in rows.items():
        best = engines.get("native", {}).get("cost")
        for engine in ENGINES:
            row = engines.get(engine)
            if row is None:
                continue
            cost = "-" if row["cost"] is None else "the cheapest" if row["cost"] == best else "not the cheapest"
            cells = [name, row["decisions"], row["choices"], engine, *told_cells(part, row)]
            status = "too large for the encoding" if row["told"] is None else row["status"]
            lines.append("| " + " | ".join(map(str, [*cells, status, cost, row["checked"], row["seconds"]])) + " |")
    return "\n".join(lines)


def summary(part: str, rows: dict[str, dict[str, Row]]) -> str:
    """How many each engine proves."""
    said = []
    for engine in ENGINES:
        mine = [e[engine] for e in rows.values() if engine in e]
        if mine:
            proved = sum(r["status"] in ("optimal", "infeasible") and r["checked"] == "proved" for r in mine)
            own = sum(
                part == "alone"
                and r["status"] in ("optimal", "infeasible")
                and r["told"]["proof"].startswith(("HiGHS", "z3", "CP-SAT"))
                for r in mine
            )
            holds = f" ({own} certificates hold its own proof)" if part == "alone" else ""
            said.append(f"`{engine}` {proved} of {len(mine)}{holds}")
    return "Proved and checked: " + ", ".join(said) + "."


def page(rows: dict[str, dict[str, dict[str, Row]]]) -> str:
    """The page from all rows."""
    limits = sorted({r["limit"] for part in rows.values() for engines in part.values() for r in engines.values()})
    told = "\n\n".join(f"## {HEADS[p]}\n\n{summary(p, r)}\n\n{text_of(p, r)}" for p, r in rows.items())
    return f"""# Other engines

Made by `python tests/benchmarks/engines.py` (rows in engines.json), 2 cores (shared Xeon), other work beside it; time
limits of {" and ".join(f"{s:g}" for s in limits)} s. `s` are processor seconds of the whole command with its own check
of the certificate, `checked` is the verdict of `check` in a process of its own, `the cheapest` compares with the native
proof.

{told}
"""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("messages", "alone"))
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--engine", choices=("native", *ENGINES))
    parser.add_argument("--data", type=Path, default=DATA)
    asked = parser.parse_args()
    kept = RESULTS / "engines.json"
    rows = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for part in ("alone", "messages") if asked.part is None else (asked.part,):
        with tempfile.TemporaryDirectory() as folder:
            for name, problem in problems(part, asked.data):
                if asked.only not in name:
                    continue
                file = Path(folder, "problem.json")
                file.write_bytes(problem_json(problem))
                here = rows.setdefault(part, {}).setdefault(name, {})
                for engine in ("native", *(ENGINES if part == "alone" else ENGINES[:2])):
                    if asked.engine not in (None, engine):
                        continue
                    if engine == "native":
                        here[engine] = measure("messages", file, problem, engine, asked.limit)
                    else:
                        here[engine] = measure(part, file, problem, engine, asked.limit)
                    row = here[engine]
                    print(part, name, engine, row["status"], row["seconds"], file=sys.stderr, flush=True)
                    kept.write_text(json.dumps(rows, indent=1, sort_keys=False) + "\n", encoding="utf-8")
    (RESULTS / "engines.md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
