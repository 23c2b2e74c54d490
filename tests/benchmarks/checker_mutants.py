"""Mutation score of the checkers: how many small changes of `verify/` the nearest tests notice.

    python tests/benchmarks/checker_mutants.py [--count N] [--seed N] [--limit S] [--tree FOLDER]
                                               [--store FILE.jsonl] [--page FILE.md]

A mutant is one change of one expression: a comparison turned or moved by one, an integer constant one larger, a `not`
taken away, `and` and `or` exchanged, a sum made a difference, a condition of a refusal made one that never refuses.  Every
mutant lies in a copy of the tree and runs the test modules named beside its file in `NEAREST`, in a process of its own,
until the first test fails.  A mutant that no test notices within the time limit survives; one that runs into the limit
counts as noticed (the test would hang).  Some survivors mean the same as the original and can be noticed by nobody, so
that the score is a lower bound on what tests see.

Which mutants are drawn hangs on a hash of seed, file and the text of the line and its change, not on line numbers: two
trees (`--tree`: another checkout, in a folder called `shardproof`) with the same expressions get the same mutants.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import hypothesis  # noqa: F401  # loaded once, before the tests' processes are forked
import numba  # noqa: F401
import numpy as np  # noqa: F401
import pytest

HERE = Path(__file__).resolve().parent
FORK = multiprocessing.get_context("fork")
sys.path.insert(0, str(HERE.parent))

from remove_conditions import LEFT_OUT, OPTIONS, conditions, replaced

NEAREST = (
    ("verify/selection/certificate.py", ("test_verify_selection",)),
    ("verify/selection/dual.py", ("test_verify_selection",)),
    ("verify/selection/ground.py", ("test_verify_selection",)),
    ("verify/selection/elimination.py", ("test_verify_selection", "test_elimination_records")),
    ("verify/selection/rounded.py", ("test_selection_rounded",)),
    ("verify/selection/presolve.py", ("test_selection_reductions",)),
    ("verify/selection/usage.py", ("test_selection_reductions",)),
    ("verify/schedules", ("test_schedule_checker", "test_schedule_attacked", "test_schedule_conditions")),
    ("verify/egraphs", ("test_extraction_attacked",)),
    ("verify/equality/forms.py", ("test_equality_forms", "test_equal_attacks")),
    ("verify/equality/conditions.py", ("test_equality_forms", "test_equal_attacks")),
    ("verify/joint/polynomials.py", ("test_joint_attacks",)),
    ("verify/joint/meaning.py", ("test_joint_attacks",)),
    ("verify/overlap/memory.py", ("test_overlap_memory_attacked",)),
    ("verify/views", ("test_views_attacked",)),
)
"""Files of checkers, each with the test modules that are nearest and end in seconds."""

TURNED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}


@dataclass(frozen=True)
class Mutant:
    """`node` of a file with `by` in its place; `tests`: names of test modules."""

    file: str
    node: ast.expr
    kind: str
    by: str
    tests: tuple[str, ...]
    order: str

    def text(self) -> str:
        """Place and change, on one line."""
        was = " ".join(ast.unparse(self.node).split())
        return f"{self.file}:{self.node.lineno}: {was[:90]} -> {self.by[:90]}"


def changes(tree: ast.Module) -> Iterator[tuple[str, ast.expr, str]]:
    """(kind, expression, what stands in its place), annotations and texts left alone."""
    for test, by in conditions(tree):
        yield "condition dropped", test, by
    for node in _code(tree):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in TURNED:
                yield "comparison", node, f"({ast.unparse(left)} {TURNED[type(op)]} {ast.unparse(right)})"
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                yield "constant", node, str(value + 1)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield "not", node, f"({ast.unparse(operand)})"
            case ast.BoolOp(op=ast.And(), values=values):
                yield "and, or", node, "(" + " or ".join(f"({ast.unparse(v)})" for v in values) + ")"
            case ast.BoolOp(op=ast.Or(), values=values):
                yield "and, or", node, "(" + " and ".join(f"({ast.unparse(v)})" for v in values) + ")"
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                if not any(
                    isinstance(side, ast.Constant | ast.JoinedStr | ast.List | ast.Tuple) for side in (left, right)
                ):
                    yield "sum", node, f"({ast.unparse(left)} - ({ast.unparse(right)}))"


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Expressions that run: no annotation, no part of a formatted text, no pattern."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "pattern", "type_params") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from _code(child)


def mutants(root: Path, seed: int) -> list[Mutant]:
    """All mutants of the files in `NEAREST`, in the order in which they are drawn."""
    found = []
    for place, tests in NEAREST:
        at = root / place
        present = tuple(t for t in tests if (root / "tests" / f"{t}.py").exists())
        for path in [at] if at.is_file() else sorted(at.glob("*.py")):
            source, seen = path.read_text(encoding="utf-8"), Counter[str]()
            lines, file = source.splitlines(), path.relative_to(root).as_posix()
            for kind, node, by in changes(ast.parse(source)):
                text = f"{seed} {file} {kind} {lines[node.lineno - 1].strip()} {ast.unparse(node)} {by}"
                seen[text] += 1
                order = hashlib.sha256(f"{text} {seen[text]}".encode()).hexdigest()
                found.append(Mutant(file, node, kind, by, present, order))
    return sorted(found, key=lambda m: m.order)


def is_noticed(mutant: Mutant | None, copy: Path, tests: tuple[str, ...], limit: float, tick: int) -> tuple[bool, str]:
    """Whether a test fails on the copy with this mutant (None: the copy as it is), and which.  `limit`: seconds of the
    wall; `tick`: a number of its own for every mutant.
    """
    file, source = None, ""
    if mutant is not None:
        file = copy / mutant.file
        source = file.read_text(encoding="utf-8")
        file.write_text(replaced(source, mutant.node, mutant.by), encoding="utf-8")
        os.utime(file, (tick, tick))  # bytecode is kept by seconds and length: every mutant gets a second of its own
    said = copy.parent / "said.txt"
    process = FORK.Process(target=run_tests, args=(copy, tests, said))
    process.start()
    process.join(limit)
    late = process.is_alive()
    if late:
        process.kill()
        process.join()
    if file is not None:
        file.write_text(source, encoding="utf-8")
        os.utime(file, (tick + 1, tick + 1))
    failed = (w for w in said.read_text(encoding="utf-8").splitlines() if w.startswith(("FAILED", "ERROR")))
    return process.exitcode != 0, "time limit" if late else next(failed, "")[:120]


def run_tests(copy: Path, tests: tuple[str, ...], said: Path) -> None:
    """In a process of its own: the tests of the copy, up to the first that fails.  Exit status 0: none did."""
    with said.open("w", encoding="utf-8") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    os.chdir(copy)
    sys.path.insert(0, str(copy.parent))
    os.environ["PYTHONPATH"] = str(copy.parent)
    os._exit(int(pytest.main([*OPTIONS, "-p", "no:xdist", *(f"tests/{t}.py" for t in tests)])))


def commit_of(root: Path) -> str:
    """The commit of a tree, `+` where files differ from it."""
    git = partial(subprocess.run, cwd=root, capture_output=True, text=True, check=False)
    head, changed = git(["git", "rev-parse", "--short=10", "HEAD"]), git(["git", "status", "--porcelain"])
    return head.stdout.strip() + ("+" if changed.stdout else "")


@dataclass(frozen=True)
class Run:
    """One tree's mutants: how many there are, and for every place and kind how many were drawn and noticed."""

    command: str
    commit: str
    date: str
    seconds: int
    total: int
    places: Mapping[str, tuple[int, int]]
    kinds: Mapping[str, tuple[int, int]]
    survivors: tuple[str, ...]

    @property
    def score(self) -> tuple[int, int]:
        """Mutants noticed, of all drawn."""
        return sum(n for _, n in self.places.values()), sum(m for m, _ in self.places.values())


def run_of(words: list[str], root: Path, drawn: list[Mutant], noticed: list[bool], total: int) -> Run:
    """The counts of a tree."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    pairs = list(zip(drawn, noticed, strict=True))

    def counts(of: Callable[[Mutant], bool]) -> tuple[int, int]:
        here = [n for m, n in pairs if of(m)]
        return len(here), sum(here)

    return Run(
        "python tests/benchmarks/checker_mutants.py" + "".join(f" {w}" for w in words),
        commit_of(root),
        f"{datetime.now(UTC):%Y-%m-%d}",
        round(used.ru_utime + used.ru_stime),
        total,
        {place: counts(lambda m, p=place: m.file == p or m.file.startswith(p + "/")) for place, _ in NEAREST},
        {kind: counts(lambda m, k=kind: m.kind == k) for kind in sorted({m.kind for m in drawn})},
        tuple(sorted(m.text() for m, n in pairs if not n)),
    )


def page(runs: list[Run]) -> str:
    """A column for every run, and the survivors of the last one."""
    last = runs[-1]
    out = ["# Mutation score of the checkers", "", f"`{last.command}`, {last.date}.", ""]
    out += [
        "Small changes of `verify/`, each tried with the nearest fast test modules alone (`NEAREST` in the script), not"
    ]
    out += ["with the whole suite. A survivor is one that these do not notice; it may mean the same as the original."]
    out += ["The same seed draws the same mutants in two trees, where their expressions are the same.", ""]
    out += ["| commit | mutants | drawn | noticed | score | processor s |", "|---|---:|---:|---:|---:|---:|"]
    for r in runs:
        noticed, drawn = r.score
        out.append(f"| {r.commit} | {r.total:,} | {drawn} | {noticed} | {100 * noticed / drawn:.1f} % | {r.seconds} |")
    head = "".join(f" {r.commit} |" for r in runs)
    out += ["", f"| checker | tests |{head}", "|---|---|" + "---:|" * len(runs)]
    for place, tests in NEAREST:
        cells = "".join(f" {n} of {m} |" for r in runs for m, n in [r.places.get(place, (0, 0))])
        out.append(f"| `{place}` | {', '.join(tests)} |{cells}")
    out += ["", f"| change |{head}", "|---|" + "---:|" * len(runs)]
    for kind in sorted({k for r in runs for k in r.kinds}):
        out.append(f"| {kind} |" + "".join(f" {n} of {m} |" for r in runs for m, n in [r.kinds.get(kind, (0, 0))]))
    return "\n".join([*out, "", f"## Survivors of {last.commit}", "", "```text", *last.survivors, "```", ""])


def main(words: list[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of the wall of a mutant's tests")
    parser.add_argument("--tree", type=Path, default=HERE.parents[1])
    parser.add_argument("--store", type=Path, help="JSON lines, one for each run; the page has a column for each")
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args(words)
    root = asked.tree.resolve()
    every = mutants(root, asked.seed)
    drawn, noticed = every[: asked.count], list[bool]()
    with tempfile.TemporaryDirectory() as at:
        copy = Path(at) / "shardproof"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        for tests in sorted({m.tests for m in drawn}):
            wrong, why = is_noticed(None, copy, tests, 10 * asked.limit, 0)
            if wrong:
                sys.stderr.write(f"{', '.join(tests)} fail on the tree as it is: {why}\n")
                return 1
        for i, mutant in enumerate(drawn):
            seen, why = is_noticed(mutant, copy, mutant.tests, asked.limit, 2 * i + 2)
            noticed.append(seen)
            sys.stdout.write(f"{'noticed ' if seen else 'SURVIVES'} {mutant.text()} {why}\n")
            sys.stdout.flush()
    run = run_of(words, root, drawn, noticed, len(every))
    earlier = []
    if asked.store and asked.store.exists():
        earlier = [Run(**json.loads(line)) for line in asked.store.read_text(encoding="utf-8").splitlines()]
    if asked.store:
        with asked.store.open("a", encoding="utf-8") as store:
            store.write(json.dumps(asdict(run)) + "\n")
    text = page([*earlier, run])
    if asked.page:
        asked.page.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
