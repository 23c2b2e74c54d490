"""No verdict of a test hangs on seconds: a search is given steps of work (`budgets.work`, `--work-limit`), or a reason
stands here.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from test_readme import PAGES, ROOT, commands

TESTS = ROOT / "tests"

SECONDS = {
    "budgets.py": "makes clocks of work",
    "fuzz_loaders.py": "command lines of hostile files, of which only the exit status is looked at",
    "test_bad_command_lines.py": "values that are refused",
    "test_calibrate.py": "seconds for a start of MPI",
    "test_compiling.py": "is about what a clock of the wall leaves out",
    "test_effort.py": "limits that are made, which nothing waits for",
    "test_external_engines.py": "an engine without end is ended by a clock outside of it",
    "test_given_up.py": "a limit whose process began long before, which nothing waits for",
    "test_heartbeat.py": "is about seconds of silence of a rank, which no search has",
    "test_no_seconds.py": "the examples below",
    "test_option_pairs.py": "planners only record what they are given",
    "test_schedule_engines.py": "an engine without end is ended by a clock outside of it",
    "test_time_limits.py": "is about limits of time, mostly by clocks of its own",
    "test_work_limits.py": "shows that seconds would decide, and what options mean",
}
"""Files that pass seconds to a search, and why."""


def passes_seconds(tree: ast.AST) -> list[int]:
    """Lines on which a search is given more than no seconds, and no clock of the test's own counts them."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value="--time-limit" | "--solve-limit"):
                found.append(node.lineno)
            case ast.Call(func=ast.Name(id="Clock"), args=[ast.Constant(value=int() | float() as seconds)], keywords=k):
                if seconds > 0 and not {"now", "work"} & {word.arg for word in k}:
                    found.append(node.lineno)
            case ast.keyword(
                arg="time_limit_s" | "time_limit" | "limit_s", value=ast.Constant(value=int() | float() as s)
            ):
                if s > 0:
                    found.append(node.value.lineno)
    return found


FILES = sorted(p for folder in (TESTS, TESTS / "conformance") for p in folder.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_searches_are_given_work(path: Path) -> None:
    lines = passes_seconds(ast.parse(path.read_text(encoding="utf-8")))
    if path.name not in SECONDS:
        assert not lines, f"{path.name}:{lines}: give steps of work, or add the file with a reason to SECONDS"


def test_the_list_is_no_longer_than_needed() -> None:
    assert set(SECONDS) <= {p.name for p in FILES}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_documents_give_work(page: Path) -> None:
    """Outputs of commands in fences are compared line by line."""
    assert not [c for c, _ in commands(page.read_text(encoding="utf-8")) if "--time-limit" in c]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('run(["plan", "m", "--time-limit", "20"])', 1),
        ("solve(p, time_limit_s=5)", 1),
        ("solve(p, time_limit_s=0.0)", 0),
        ("solve(p, clock=Clock(60.0))", 1),
        ("solve(p, clock=Clock(60.0, now=ticks))", 0),
        ("solve(p, clock=work(60))", 0),
        ("Clock(0)", 0),
        ("Clock()", 0),
    ],
)
def test_what_is_found(text: str, count: int) -> None:
    assert len(passes_seconds(ast.parse(text))) == count
