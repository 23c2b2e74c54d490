"""One runner for every benchmark: what was run, on which machine, at which commit, under which load, with its results.

    python tests/benchmarks/run.py                      lists the benchmarks
    python tests/benchmarks/run.py NAME .. [-- WORD ..] runs them one after another, with these words each
    python tests/benchmarks/run.py --all [--keep-going] runs those that need no words

Every run is a process of its own.  A row is added to `results/runs.jsonl` (`--store`): date, commit, machine, load of the
last minute before and after, processor seconds of the process and its children, wall seconds, exit code, the lines that
it printed.  `results/runs.md` (`--page`) is made of it: one table of all runs, below it what every benchmark printed
last.  Seconds of two runs can be compared where machine and load are the same; elsewhere only their costs and bounds.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STORE, PAGE = HERE / "results" / "runs.jsonl", HERE / "results" / "runs.md"
NEED_WORDS = frozenset({"before_after", "gpu_times", "training_scale"})
"""Benchmarks that do nothing without words of their own."""
MOST_LINES = 400
"""Lines of a run that are kept, the last ones."""

Row = Mapping[str, object]


def benchmarks() -> dict[str, str]:
    """Name -> the first sentence of its module, of all scripts but this one.

    >>> "contest" in benchmarks(), "run" in benchmarks(), "pase_parity_page" in benchmarks()
    (True, False, False)
    """
    found = {}
    for path in sorted(HERE.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path != Path(__file__).resolve() and '\nif __name__ == "__main__":' in text:
            doc = ast.get_docstring(ast.parse(text)) or ""
            found[path.stem] = " ".join(doc.split("\n\n")[0].split())
    return found


def machine() -> str:
    """Processor and number of them, and the Python that runs."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = named[0] if named else name
    return f"{name}, {os.cpu_count()} CPUs, Python {platform.python_version()}"


def commit() -> str:
    """The commit of the tree, with `+` where files differ from it; `none` outside of a checkout."""
    git = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        head, changed = git(["git", "rev-parse", "--short=10", "HEAD"]), git(["git", "status", "--porcelain"])
    except OSError:
        return "none"
    return head.stdout.strip() + ("+" if changed.stdout else "") if head.returncode == 0 else "none"


def measured(name: str, words: Sequence[str]) -> Row:
    """Run a benchmark; its lines are shown as they come."""
    before, began, load = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), os.getloadavg()[0]
    date, lines = datetime.now(UTC).isoformat(timespec="minutes"), list[str]()
    paths = [str(ROOT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, str(HERE / f"{name}.py"), *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line.rstrip("\n"))
    code, after = process.wait(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "name": name,
        "words": list(words),
        "date": date,
        "commit": commit(),
        "machine": machine(),
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "wall_s": round(time.monotonic() - began, 2),
        "exit": code,
        "lines": lines[-MOST_LINES:],
    }


def page(rows: Sequence[Row]) -> str:
    """All runs as one table, then the lines that every benchmark printed last.

    >>> row = {"name": "a", "words": ["-x"], "date": "d", "commit": "c", "machine": "m", "load": [0, 1], "cpu_s": 2.0,
    ...        "wall_s": 3.0, "exit": 0, "lines": ["| 1 |"]}
    >>> page([row]).splitlines()[6]
    '| `a -x` | d | c | m | 0, 1 | 2.0 | 3.0 | 0 |'
    """
    out = [
        "# Runs of benchmarks",
        "",
        "Written by `python tests/benchmarks/run.py`; load: of the last minute, before and after.",
        "",
        "| run | date | commit | machine | load | processor s | wall s | exit |",
        "|---|---|---|---|---|---:|---:|---:|",
    ]
    for r in rows:
        words, load = r["words"], r["load"]
        assert isinstance(words, list) and isinstance(load, list)
        said = [f"`{' '.join([str(r['name']), *words])}`", r["date"], r["commit"], r["machine"]]
        out.append(
            f"| {' | '.join(map(str, [*said, ', '.join(map(str, load)), r['cpu_s'], r['wall_s'], r['exit']]))} |"
        )
    for name in dict.fromkeys(str(r["name"]) for r in rows):
        last = next(r for r in reversed(rows) if r["name"] == name)
        lines = last["lines"]
        assert isinstance(lines, list)
        out += ["", f"## {name}, {last['date']}", "", "```", *map(str, lines), "```"]
    return "\n".join(out) + "\n"


def main(words: list[str]) -> int:
    """Command line; the worst exit code of what was run."""
    cut = words.index("--") if "--" in words else len(words)
    ours, theirs = words[:cut], words[cut + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--keep-going", action="store_true", help="run the others when one fails")
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--page", type=Path, default=PAGE)
    asked, known = parser.parse_args(ours), benchmarks()
    if unknown := [n for n in asked.names if n not in known]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(known)}")
    names = asked.names or ([n for n in known if n not in NEED_WORDS] if asked.all else [])
    if not names:
        width = max(map(len, known))
        print(*(f"{name:{width}}  {known[name]}" for name in known), sep="\n")
    worst = 0
    for name in names:
        print(f"== {name} {' '.join(theirs)}".rstrip(), flush=True)
        row = measured(name, theirs)
        asked.store.parent.mkdir(parents=True, exist_ok=True)
        with asked.store.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        rows = [json.loads(line) for line in asked.store.read_text(encoding="utf-8").splitlines()]
        asked.page.write_text(page(rows), encoding="utf-8")
        worst = max(worst, abs(int(str(row["exit"]))))
        if worst and not asked.keep_going:
            break
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
