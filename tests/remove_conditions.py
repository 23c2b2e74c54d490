"""Removes the conditions of a checker one by one and says which no test notices.

    python tests/remove_conditions.py FOLDER -- TEST_FILE ..       such as verify/overlap -- tests/test_overlap_plans.py

A condition is an `if` whose body ends in a refusal (a text is returned, named `wrong` or `reason`, or raised), or the
part of a returned choice between texts that refuses.  Each is made one that never refuses, in a copy of the tree, and the
tests run until the first one fails.  Survivors are printed with their place; exit status 1 if there are any.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = (".git", ".venv", "__pycache__", "docs", "results", ".mypy_cache", ".ruff_cache", ".pytest_cache")
OPTIONS = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not gpu and not torch and not coq and not mpi"]


def is_text(node: ast.expr | None) -> bool:
    """A text that is not empty."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != ""
    )


def refuses(node: ast.stmt) -> bool:
    """Whether a statement says what is wrong."""
    match node:
        case ast.Raise():
            return True
        case ast.Return(value=ast.Tuple(elts=elts)):
            return any(map(is_text, elts)) or any(isinstance(e, ast.Call) for e in elts)
        case ast.Return(value=ast.Name(id="wrong" | "reason")):
            return True
        case ast.Return(value=value):
            return is_text(value)
        case ast.Assign(targets=[ast.Name(id="wrong" | "reason")], value=value):
            return is_text(value)
    return False


def conditions(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """(expression, what stands in its place) of every condition."""
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test, body=[*_, last]) if refuses(last):
                # what a name is bound to inside a condition stays bound
                yield test, f"(({ast.unparse(test)}) and False)"
            case ast.Return(value=ast.IfExp(test=test, body=body, orelse=orelse)):
                if is_text(body) != is_text(orelse):
                    yield test, str(not is_text(body))


def replaced(source: str, node: ast.expr, by: str) -> str:
    """The source with another expression in one place."""
    lines = source.encode().splitlines(keepends=True)
    ends = node.end_lineno, node.end_col_offset
    assert ends[0] is not None and ends[1] is not None
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[ends[0] - 1][ends[1] :] + b"".join(lines[ends[0] :])
    return (before + by.encode() + after).decode()


def main(words: list[str]) -> int:
    """Exit status."""
    folders, tests = words[: words.index("--")], words[words.index("--") + 1 :]
    survivors, count = list[str](), 0
    with tempfile.TemporaryDirectory() as at:
        copy = Path(at) / "shardproof"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        files = [
            f
            for folder in folders
            for f in ([copy / folder] if folder.endswith(".py") else sorted((copy / folder).glob("*.py")))
        ]
        for file in files:
            source = file.read_text()
            for node, by in conditions(ast.parse(source)):
                file.write_text(replaced(source, node, by))
                line = [sys.executable, "-m", "pytest", *OPTIONS, *tests]
                environment = {**os.environ, "PYTHONPATH": at, "PYTHONDONTWRITEBYTECODE": "1"}
                done = subprocess.run(line, cwd=copy, env=environment, capture_output=True, text=True, check=False)
                place = f"{file.relative_to(copy)}:{node.lineno}: {ast.unparse(node)[:100]}"
                count += 1
                if done.returncode == 0:
                    survivors.append(place)
                last = next((w for w in reversed(done.stdout.splitlines()) if w.startswith(("FAILED", "ERROR"))), "")
                sys.stdout.write(f"{'SURVIVES' if done.returncode == 0 else 'noticed'} {place} {last[:120]}\n")
                sys.stdout.flush()
            file.write_text(source)
    sys.stdout.write(f"{count} conditions, {len(survivors)} that no test notices\n")
    return int(bool(survivors))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
