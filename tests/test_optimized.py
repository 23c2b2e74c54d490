"""Checkers under `python -O`, which drops every `assert`: no verdict rests on one."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import house
import pytest
from budgets import some_or_all

CODE = """
import contextlib, io, json, sys
from pathlib import Path
from shardproof.__main__ import run
assert False, "asserts are executed"
here = Path(sys.argv[1])
for entry in json.loads((here / "expected.json").read_text(encoding="utf-8"))[:: int(sys.argv[2])]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = run(["check", *(str(here / name) for name in (entry["file"], *entry["with"]))])
    print(entry["file"], entry["exit"], int(code))
"""


def relied_on(text: str) -> list[int]:
    """Lines of what `-O` changes: asserts and `__debug__`.

    >>> relied_on("x = 1\\nassert x\\nif __debug__:\\n    pass"), relied_on("assertion = 'assert'")
    ([2, 3], [])
    """
    if "assert" not in text and "__debug__" not in text:
        return []
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Name) and node.id == "__debug__")
    ]


@pytest.mark.parametrize("checker", house.CHECKERS, ids=lambda c: c.kind)
def test_no_checker_relies_on_assert(checker: house.Checker) -> None:
    base = house.closure(checker.module)
    assert {m for m in base if relied_on(house.modules()[m].read_text(encoding="utf-8"))} == set()


def test_verbs_of_the_checkers_rely_on_none_either() -> None:
    named = [m for m in house.modules() if m.startswith("verify.")]
    assert not [m for m in named if relied_on(house.modules()[m].read_text(encoding="utf-8"))]


@pytest.mark.parametrize("step", some_or_all(3, 1))
def test_the_conformance_suite_gets_its_verdicts_without_asserts(step: int) -> None:
    here = Path(__file__).parent / "conformance"
    call = [sys.executable, "-O", "-c", CODE, str(here), str(step)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert len(rows) > 50 // step and not [row for row in rows if row[1] != row[2]]
