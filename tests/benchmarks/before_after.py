"""Two trees of this project side by side: cost, bound and processor seconds of the same problems, in interleaved pairs.

    python tests/benchmarks/before_after.py OLD [NEW] [--budget S] [--only WORD ..] [--pairs N] [--limit S]
                                            [--processor] [--data FOLDER] [--store FILE.jsonl] [--render FILE.md]

OLD and NEW (default: this tree) are checkouts in a folder called `shardproof`.  Every case runs N times in each, old and new
in turns, a process each, so that a slow moment of the computer hits both; the table has the least processor seconds (of
the search alone where the case is a problem, of the whole process where it is a command), the best cost, the best
bound.  Search ends after `--limit` seconds of the wall: where that binds (status `feasible`), seconds say nothing and
cost and bound depend on the load, which stands in the table.  Names of modules of either tree are looked up, so that a
tree from before a move can be compared.  `--processor`: the limit of a search counts seconds of the processor, so that
it ends after as much work whoever else uses the machine.

Cheap cases come first.  `--budget` ends the work after so many seconds of the wall: no pair is begun that would not
end within it, going by what the case is known to take.  Every pair is written to the store as it ends, and the same
command goes on from there: cases with fewer pairs than `--pairs` get more, of the same two commits only.  The page is
written again after every pair.  Old and new at other commits are another table: name another store.

    contest     the development instances              pase      the published tables, 20 times each
    models      BERT-Large and others, planned         scaling   layers of BERT-Large with Adam, 4x8; devices
    training    BERT-Large with Adam, memory limits    rules     judging public rules, checking libraries
    p2          placements and reduction programs
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from run import commit, machine

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA = ROOT.parent / "shared" / "data"
RULES = ROOT / "tests" / "data" / "rules"

SOLVE = """
import json, sys, time
if sys.argv[6] == "processor":
    time.monotonic = time.process_time  # before any clock of either tree is made
from importlib import import_module
def found(name, *places):
    for place in places:
        try:
            return getattr(import_module("shardproof." + place), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"{name} is in none of {places}")
solve = found("solve", "formal.selection.solve")
try:
    relaxed = found("relax_resources", "formal.selection.relax_resources")
except SystemExit:  # its name in trees from before the move
    relaxed = found("solve_slack", "formal.selection.slack")
what, limit, repeat, memory = sys.argv[1].split(), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if what[0] == "file":
    from pathlib import Path
    load = found("load_selection_problem", "proofs.selection.load", "proofs.load")
    problems = [load(Path(what[1])) for _ in range(repeat + 1)]
else:
    name, batch, options, optimizer, target, where = what[1:]
    given = dict(pair.split("=") for pair in options.split(",") if pair != "-")
    graph = found("build", "models.sources.zoo", "models.zoo")(name, batch=int(batch), **{k: int(v) for k, v in given.items()})
    if optimizer != "-":
        graph = found("build_step", "models.sources.training", "models.training")(graph, optimizer).graph
    space, load_machine = found("space", "models.layout.placement", "models.placement"), found("load_machine", "models.machine.machine", "models.machine")
    build = found("build", "models.cost.selection", "models.selection")
    try:
        machine = load_machine(target)
    except ValueError:  # its name before there was a machine file for the DGX itself
        machine = load_machine(target.replace("cloud-a100", "dgx-a100"))
    problems = [build(graph, machine, space(where), None if memory == "-" else int(memory)).problem] * (repeat + 1 if repeat > 1 else 1)
if repeat > 1:
    solve(problems.pop(), time_limit_s=limit)  # compiled loops are loaded, and caches are warm
best = None
for problem in problems:
    start = time.process_time()
    answer = relaxed(problem, clock=found("Clock", "formal.selection.model.clock", "formal.selection.clock")(limit)) if problem.limit is not None and what[0] == "model" else solve(problem, time_limit_s=limit)
    spent = time.process_time() - start
    best = spent if best is None or spent < best else best
import hashlib  # of the numbers: names of machines and of what was assumed have changed
p, seen = problems[0], hashlib.sha256(f"{problems[0].limit} {problems[0].constant}".encode())
for array in (*(v.cost for v in p.vertices), *p.tables, *(u.amount for u in p.usages)):
    seen.update(array.tobytes())
print(json.dumps({"sha256": seen.hexdigest(), "status": answer.status.value, "cost": answer.cost, "bound": answer.lower_bound, "cpu_s": best}))
"""

COMMAND = """
import json, resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "shardproof", *sys.argv[1:]], capture_output=True, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
try:
    said = json.loads(done.stdout)
except ValueError:
    said = {}
counts = said.get("counts")
print(json.dumps({
    "status": json.dumps(counts, sort_keys=True) if counts else said.get("verdict", "exit %d" % done.returncode), "cost": said.get("cost"),
    "bound": said.get("lower_bound"), "cpu_s": used.ru_utime + used.ru_stime, "sha256": "",
}))
"""


@dataclass(frozen=True)
class Case:
    """One row.  `call`: a problem (`file PATH` or `model ..`, solved `repeat` times), or the words of a command.
    `about_s`: seconds that a pair takes on an idle core, as far as known; None: twice the limit of a search.
    """

    group: str
    name: str
    call: str | tuple[str, ...]
    repeat: int = 1
    memory: int | None = None
    about_s: float | None = None


def cases(data: Path) -> Iterator[Case]:
    """All of them; a data set that is not there is left out."""
    quick = {"B": 12.0, "G": 12.0, "A": 30.0}
    for path in sorted((data / "pase").glob("*.json.gz")):
        yield Case("pase", path.name.removesuffix(".json.gz"), f"file {path}", 20, about_s=8.0)
    for path in sorted((data / "iopddl").glob("*.json.gz")):
        name = path.name.removesuffix(".json.gz")[-1]
        yield Case("contest", name, f"file {path}", about_s=quick.get(name))
    for name, batch, target, where, about in (
        ("mlp-unity", 64, "2x4", "complete", 6.0),
        ("alexnet", 128, "4x8", "complete", 8.0),
        ("bert-large", 8, "4x8", "complete", 14.0),
        ("bert-large", 64, "32x8", "two-per-level", 45.0),
    ):
        call = f"model {name} {batch} - - cloud-a100:{target} {where}"
        yield Case("models", f"{name} batch {batch} {target}", call, about_s=about)
    for layers, about in ((1, 12.0), (2, 14.0), (4, 18.0), (8, 30.0), (16, 60.0)):
        call = f"model bert-large 64 layers={layers} adam cloud-a100:4x8 complete"
        yield Case("scaling", f"{layers} layers, 4x8", call, about_s=about)
    for devices, where, about in (
        (8, "complete", 8.0),
        (16, "complete", 12.0),
        (64, "complete", 40.0),
        (256, "two-per-level", 90.0),
    ):
        call = f"model bert-large 1024 layers=2 adam cloud-a100:{devices // 8}x8 {where}"
        yield Case("scaling", f"2 layers, {devices} devices", call, about_s=about)
    for layers, gib in ((2, 2), (4, 1), (24, 80), (24, 4), (24, 3.5)):
        call = f"model bert-large 64 layers={layers} adam cloud-a100:4x8 complete"
        named = f"BERT-Large, {layers} layers, Adam, {gib} GiB"
        yield Case("training", named, call, memory=int(gib * (1 << 30)), about_s=16.0 if layers == 2 else None)
    call = "model bert-large 8 - adam cloud-a100:4x8 complete"
    for gib in (4, 1.1):
        yield Case("training", f"BERT-Large batch 8, Adam, {gib} GiB", call, memory=int(gib * (1 << 30)))
    for name, about in (("taso-even", 60.0), ("taso-axioms", 45.0), ("flexflow-even", 70.0)):
        words = ("rules", "prove", str(RULES / f"{name}.json"), "--jobs", "1", "--json")
        yield Case("rules", f"prove {name}", words, about_s=about)
    for axes, reduce in (("16,4", "0:1GiB"), ("16,2,2", "0,2:1GiB"), ("8,8", "1:1GiB*4")):
        words = ("place", "--hierarchy", "4x16", "--axes", axes, "--reduce", reduce, "--json")
        yield Case("p2", f"place {axes} {reduce}", words, about_s=4.0)
    words = ("reduce", "--hierarchy", "2x2x6", "--axes", "12,2", "--reduce", "0", "--json")
    yield Case("p2", "reduce 2x2x6", words, about_s=4.0)


def once(tree: Path, which: str, case: Case, limit: float, processor: bool) -> Mapping[str, object]:
    """One run in one tree; an answer without numbers where it fails."""
    if isinstance(case.call, str):
        memory = "-" if case.memory is None else str(case.memory)
        words = [SOLVE, case.call, str(limit), str(case.repeat), memory, which, "processor" if processor else "wall"]
    else:
        words = [COMMAND, *case.call]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", *words],
            cwd=folder,
            env=environment(tree),
            capture_output=True,
            text=True,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1][:100]
        return {"status": f"failed: {said}", "cost": None, "bound": None, "cpu_s": None, "sha256": ""}
    answer: Mapping[str, object] = json.loads(lines[-1])
    return answer


def environment(tree: Path) -> dict[str, str]:
    """As a user has it: modules are compiled once.  Where bytecode may not be written every run would compile what it
    imports, 0.2 to 0.4 s of it, and the tree with more small files would look slower.
    """
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {
        **env,
        "PYTHONPATH": str(tree.parent),
        "PYTHONPYCACHEPREFIX": f"{tempfile.gettempdir()}/shardproof-bytecode",
    }


def least(runs: Sequence[Mapping[str, object]], key: str) -> float | None:
    """The least number of several runs; None where none has one."""
    numbers = [float(str(r[key])) for r in runs if r[key] is not None]
    return min(numbers, default=None)


def row(kept: Mapping[str, object]) -> str:
    """A line of the table."""
    old, new = kept["old"], kept["new"]
    assert isinstance(old, list) and isinstance(new, list)
    ended = [_ended(kept, which) for which in ("old", "new")]
    closed = all(ended)  # runs that the limit cut short took less
    spent = [least(runs, "cpu_s") for runs in (ended if closed else (old, new))]
    ratio = "-" if None in spent or not spent[0] else f"{float(spent[1] or 0) / spent[0]:.2f}"

    def shown(runs: Sequence[Mapping[str, object]]) -> str:
        costs, bounds = ([int(str(r[key])) for r in runs if r[key] is not None] for key in ("cost", "bound"))
        if not costs:
            return str(runs[0]["status"])
        return f"{min(costs)}" if bounds and max(bounds) >= min(costs) else f"{min(costs)} ({max(bounds, default='-')})"

    said = shown(old), shown(new)
    if len({str(r["sha256"]) for r in (*old, *new)}) > 1:
        said = said[0], f"{said[1]}, of another problem"
    cells = [kept["group"], kept["name"], said[0], "same" if said[0] == said[1] else said[1]]
    cells += ["-" if s is None else f"{s:.3g}" for s in spent] + [ratio if closed else f"{ratio} (time limit)"]
    return f"| {' | '.join(map(str, [*cells, len(new), kept['load']]))} |"


def page(rows: Sequence[Mapping[str, object]], limit: float, left: int, processor: bool = False) -> str:
    """The table as markdown; `left`: cases that were not run."""
    first = rows[0] if rows else dict.fromkeys(("old_commit", "new_commit", "machine", "date"), "")
    seconds = [[float(str(least(_ended(r, which), "cpu_s") or 0)) for which in ("old", "new")] for r in rows]
    slower = sum(new > 1.1 * old for old, new in seconds if old)
    worse = [f"{r['group']} {r['name']}" for r in rows if _worse(r)]
    return "\n".join(
        [
            "# Before and after",
            "",
            f"`python tests/benchmarks/before_after.py OLD`, old {first['old_commit']}, new {first['new_commit']};",
            f"{first['machine']}; {first['date']}; search limit {limit:g} s of the {'processor' if processor else 'wall'}.",
            "",
            "Cost, and the bound in brackets where it is below; `same`: both; least processor seconds over the pairs,",
            "old and new in turns; the load average when the row ended.",
            "",
            f"{len(rows)} cases, {left} not run; cost or bound worse: {', '.join(worse) or 'none'};",
            f"more than a tenth slower: {slower}.",
            "",
            "| group | case | old | new | old s | new s | new / old | pairs | load |",
            "|---|---|---|---|---:|---:|---:|---:|---:|",
            *map(row, rows),
            "",
        ]
    )


def _ended(kept: Mapping[str, object], which: str) -> list[Mapping[str, object]]:
    """Runs that ended by themselves; none of either where some side has none."""
    both = [kept["old"], kept["new"]]
    found = [[r for r in runs if r["status"] not in ("feasible", "unknown")] for runs in both]  # type: ignore[attr-defined]
    return found[which == "new"] if all(found) else []


def _worse(kept: Mapping[str, object]) -> bool:
    """The new cost is higher or the new bound lower, of the same problem."""
    old, new = kept["old"], kept["new"]
    assert isinstance(old, list) and isinstance(new, list)
    if old[0]["sha256"] != new[0]["sha256"]:
        return False
    costs = [least(runs, "cost") for runs in (old, new)]
    bounds = [
        max((float(str(r["bound"])) for r in runs if r["bound"] is not None), default=None) for runs in (old, new)
    ]
    dearer = costs[0] is not None and (costs[1] is None or costs[1] > costs[0])
    return dearer or (bounds[0] is not None and (bounds[1] is None or bounds[1] < bounds[0]))


def at_commit(tree: Path) -> str:
    """The commit of a tree."""
    call = ["git", "-C", str(tree), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(call, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--only", nargs="*", default=[], help="parts of `group name`")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a search")
    parser.add_argument("--processor", action="store_true", help="the limit counts seconds of the processor")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds of the wall in all")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()) / "shardproof-before-after.jsonl")
    parser.add_argument("--render", type=Path)
    asked = parser.parse_args()
    began = time.monotonic()
    commits = {
        "old_commit": at_commit(asked.old),
        "new_commit": commit() if asked.new == ROOT else at_commit(asked.new),
    }
    stored = [json.loads(line) for line in asked.store.read_text().splitlines()] if asked.store.exists() else []
    rows = {(r["group"], r["name"]): r for r in stored}  # the last one of a case holds all its pairs
    if any({k: r[k] for k in commits} != commits for r in rows.values()):
        parser.error(f"{asked.store} holds other commits than {commits}: name another --store")
    named = [c for c in cases(asked.data) if not asked.only or any(w in f"{c.group} {c.name}" for w in asked.only)]
    named.sort(key=lambda c: 2 * asked.limit + 30 if c.about_s is None else c.about_s)
    for tree in (asked.old.resolve(), asked.new.resolve()):
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(tree)], env=environment(tree), check=False)
    for pair in range(asked.pairs):  # a first pair of everything, then a second
        for case in named:
            kept = rows.get((case.group, case.name))
            if kept is not None and len(kept["new"]) > pair:
                continue
            known = None if kept is None else kept["wall_s"]
            about = known if known is not None else 2 * asked.limit + 30 if case.about_s is None else case.about_s
            if time.monotonic() - began + about > asked.budget:
                continue
            started = time.monotonic()
            runs = {"old": [], "new": []} if kept is None else {w: list(kept[w]) for w in ("old", "new")}
            for which in ("old", "new") if pair % 2 == 0 else ("new", "old"):
                runs[which].append(once(getattr(asked, which).resolve(), which, case, asked.limit, asked.processor))
            kept = {
                "group": case.group,
                "name": case.name,
                **runs,
                "load": round(os.getloadavg()[0], 1),
                "machine": machine(),
                "date": datetime.now(UTC).date().isoformat(),
                "wall_s": round(time.monotonic() - started, 1),
                **commits,
            }
            rows[case.group, case.name] = kept
            with asked.store.open("a", encoding="utf-8") as file:
                file.write(json.dumps(kept) + "\n")
            print(row(kept), flush=True)
            if asked.render is not None:
                shown = [rows[c.group, c.name] for c in cases(asked.data) if (c.group, c.name) in rows]
                asked.render.write_text(
                    page(shown, asked.limit, len(named) - len(shown), asked.processor), encoding="utf-8"
                )


if __name__ == "__main__":
    main()
