"""Which lines of the rooms run under tests: a page with the figures, and the lines of checkers that never run.

    python tests/benchmarks/line_coverage.py [--tests NAME ..] [--page FILE.md]

The tests run in one process under `coverage` (`make coverage` installs it); a command that a test starts as a process of
its own is not followed, so that what only such commands run counts as not run.  Without `--tests`: the nearest tests of
the checkers (`NEAREST`), fast and on one core.  Lines are statements, as `coverage` counts them.  Most lines of a checker
that matter are refusals: those that no test runs stand at the end of the page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from run import commit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROOMS = ("verify", "proofs", "models", "formal", "backends")
NEAREST = (
    "test_verify_selection",
    "test_elimination_records",
    "test_selection_rounded",
    "test_selection_reductions",
    "test_schedule_checker",
    "test_schedule_attacked",
    "test_schedule_conditions",
    "test_extraction_attacked",
    "test_equality_forms",
    "test_equal_attacks",
    "test_joint_attacks",
    "test_joint_conditions",
    "test_views_attacked",
    "test_overlap_memory_attacked",
    "test_container",
    "test_verify_communication",
    "test_verify_substitution",
    "test_rule_conditions",
    "test_verify_reduction",
    "test_verify_plan",
    "test_specified_attacks",
)
"""Tests of checkers that end in seconds each."""
MARKS = "not slow and not gpu and not torch and not coq and not mpi"


@dataclass(frozen=True)
class Lines:
    """Statements of a file: how many, and those that did not run."""

    statements: int
    missing: tuple[int, ...]

    @property
    def share(self) -> float:
        """Percent of the statements that ran."""
        return 100 * (1 - len(self.missing) / self.statements) if self.statements else 100.0


def measured(tests: Sequence[str]) -> dict[str, Lines]:
    """File -> its lines, of all files of the rooms.  Raises `CalledProcessError` if a test fails."""
    with tempfile.TemporaryDirectory() as folder:
        data, report = Path(folder, "data"), Path(folder, "report.json")
        environment = {**os.environ, "COVERAGE_FILE": str(data)}
        options = ["--source", ",".join(str(ROOT / room) for room in ROOMS)]
        files = [f"tests/{name}.py" for name in tests]
        coverage = [sys.executable, "-m", "coverage"]
        pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", MARKS, *files]
        subprocess.run([*coverage, "run", *options, *pytest], cwd=ROOT, env=environment, check=True)
        subprocess.run([*coverage, "json", "-q", "-o", str(report)], cwd=ROOT, env=environment, check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["files"]
    return {
        Path(name).as_posix(): Lines(row["summary"]["num_statements"], tuple(row["missing_lines"]))
        for name, row in found.items()
    }


def together(files: Mapping[str, Lines], under: str) -> Lines:
    """All files of a folder as one; its missing lines are only counted."""
    rows = [lines for name, lines in files.items() if name.startswith(under + "/")]
    return Lines(sum(r.statements for r in rows), tuple(n for r in rows for n in r.missing))


def ranges(numbers: Sequence[int]) -> str:
    """Numbers with runs of neighbours joined.

    >>> ranges([3, 4, 5, 9])
    '3-5, 9'
    """
    runs = [[n for _, n in run] for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def page(command: str, tests: Sequence[str], files: Mapping[str, Lines]) -> str:
    """Rooms, folders of `verify/`, and its lines that never ran."""
    out = ["# Lines that run under tests", "", f"`{command}`, commit {commit()}, {datetime.now(UTC):%Y-%m-%d}.", ""]
    out += [f"Under {len(tests)} test modules alone, in one process, without slow ones: {', '.join(tests)}."]
    out += ["Not the whole suite: other rooms are covered only as far as these tests pass through them.", ""]
    out += ["| room | files | statements | run | |", "|---|---:|---:|---:|---:|"]
    for room in ROOMS:
        found = together(files, room)
        count = sum(name.startswith(room + "/") for name in files)
        ran = found.statements - len(found.missing)
        out.append(f"| `{room}/` | {count:,} | {found.statements:,} | {ran:,} | {found.share:.1f} % |")
    out += ["", "| folder of `verify/` | statements | run | |", "|---|---:|---:|---:|"]
    for folder in sorted({Path(name).parent.as_posix() for name in files if name.startswith("verify/")}):
        mine = {n: lines for n, lines in files.items() if Path(n).parent.as_posix() == folder}
        found = together(mine, folder)
        out.append(
            f"| `{folder}/` | {found.statements:,} | {found.statements - len(found.missing):,} | {found.share:.1f} % |"
        )
    out += ["", "## Lines of checkers that none of these tests runs", "", "| file | run | lines |", "|---|---:|---|"]
    for name, lines in sorted(files.items()):
        if name.startswith("verify/") and lines.missing:
            out.append(f"| `{name}` | {lines.share:.0f} % | {ranges(lines.missing)} |")
    return "\n".join([*out, ""])


def main(words: list[str]) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--tests", nargs="+", default=list(NEAREST))
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args(words)
    command = "python tests/benchmarks/line_coverage.py" + "".join(f" {w}" for w in words)
    text = page(command, asked.tests, measured(asked.tests))
    if asked.page:
        asked.page.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
