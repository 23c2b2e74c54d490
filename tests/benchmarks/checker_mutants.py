"""Mutation score of the checkers: how many small changes of `verify/` the nearest tests notice.

    python tests/benchmarks/checker_mutants.py [--count N] [--seed N] [--limit S] [--trees FOLDER ..]
                                               [--store FILE.jsonl] [--page FILE.md]

A mutant is one change of one expression: a comparison turned or moved by one, an integer constant one larger, a `not`
taken away, `and` and `or` exchanged, a sum made a difference, a condition of a refusal made one that never refuses.  Every
mutant is the code of one function, exchanged in a process of its own that runs the test modules named beside its file in
`NEAREST` until the first test fails.  A mutant that no test notices within the time limit survives; one that runs into the limit
counts as noticed (the test would hang).  Some survivors mean the same as the original and can be noticed by nobody, so
that the score is a lower bound on what tests see.

Which mutants are drawn hangs on a hash of seed, file and the text of the line and its change, not on line numbers: two
trees (`--trees`: checkouts in folders called `shardproof`) with the same expressions get the same mutants.  An answer
in the store is taken over where neither the file nor its test modules have changed since; what some of them notice, more
of them do as well.  A tree that lacks a test module is asked without it.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

import hypothesis  # noqa: F401  # loaded once, before the tests' processes are forked
import numba  # noqa: F401
import numpy as np  # noqa: F401
import pytest

HERE = Path(__file__).resolve().parent
FORK = multiprocessing.get_context("fork")
sys.path.insert(0, str(HERE.parent))

from remove_conditions import OPTIONS, conditions, replaced

NEAREST = (
    ("verify/selection/certificate.py", ("test_verify_selection", "test_selection_refused")),
    ("verify/selection/dual.py", ("test_verify_selection", "test_selection_refused")),
    ("verify/selection/ground.py", ("test_verify_selection", "test_selection_refused")),
    (
        "verify/selection/elimination.py",
        ("test_verify_selection", "test_elimination_records", "test_selection_refused"),
    ),
    ("verify/selection/rounded.py", ("test_selection_rounded",)),
    ("verify/selection/presolve.py", ("test_selection_reductions",)),
    ("verify/selection/usage.py", ("test_selection_reductions",)),
    (
        "verify/schedules",
        ("test_schedule_checker", "test_schedule_attacked", "test_schedule_conditions", "test_schedule_refused"),
    ),
    ("verify/egraphs", ("test_extraction_attacked",)),
    ("verify/equality/forms.py", ("test_equality_forms", "test_equal_attacks")),
    ("verify/equality/conditions.py", ("test_equality_forms", "test_equal_attacks")),
    ("verify/joint/polynomials.py", ("test_joint_attacks", "test_joint_new_rules")),
    ("verify/joint/meaning.py", ("test_joint_attacks", "test_joint_new_rules")),
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
    """`node` of a file with `by` in its place, inside of `function` (its qualified name and first line); `tests`: names of
    test modules.
    """

    file: str
    function: tuple[str, int]
    node: ast.expr
    kind: str
    by: str
    tests: tuple[str, ...]
    order: str

    def text(self) -> str:
        """Place and change, on one line."""
        was = " ".join(ast.unparse(self.node).split())
        return f"{self.file}:{self.node.lineno}: {was[:90]} -> {self.by[:90]}"


Change = tuple[tuple[str, int], str, ast.expr, str]
"""(function: qualified name and first line, kind, expression, what stands in its place)."""


def changes_of(tree: ast.Module) -> Iterator[Change]:
    """Changes inside of functions and methods, whose code is what a mutant exchanges."""
    todo: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree)]
    while todo:
        prefix, parent = todo.pop()
        for node in parent.body:
            if isinstance(node, ast.ClassDef):
                todo.append((f"{prefix}{node.name}.", node))
            elif isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                for kind, expression, by in changes(node):
                    yield (prefix + node.name, first), kind, expression, by


def changes(tree: ast.FunctionDef) -> Iterator[tuple[str, ast.expr, str]]:
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
        if name in (
            "annotation",
            "returns",
            "pattern",
            "type_params",
            "decorator_list",
            "defaults",
            "kw_defaults",
        ) or isinstance(node, ast.JoinedStr):
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
            for function, kind, node, by in changes_of(ast.parse(source)):
                text = f"{seed} {file} {kind} {lines[node.lineno - 1].strip()} {ast.unparse(node)} {by}"
                seen[text] += 1
                order = hashlib.sha256(f"{text} {seen[text]}".encode()).hexdigest()
                found.append(Mutant(file, function, node, kind, by, present, order))
    return sorted(found, key=lambda m: m.order)


def is_noticed(mutant: Mutant | None, root: Path, tests: tuple[str, ...], limit: float) -> tuple[bool, str]:
    """Whether a test fails with this mutant (None: as it is), and which.  `limit`: seconds of the wall."""
    with tempfile.NamedTemporaryFile("r", suffix=".txt", encoding="utf-8") as said:
        process = FORK.Process(target=run_tests, args=(mutant, root, tests, said.name))
        process.start()
        process.join(limit)
        late = process.is_alive()
        if late:
            process.kill()
            process.join()
        failed = [line for line in said.read().splitlines() if line.startswith(("FAILED", "ERROR", "E  "))]
    return process.exitcode != 0, "time limit" if late else failed[-1][:120] if failed else ""


def run_tests(mutant: Mutant | None, root: Path, tests: tuple[str, ...], said: str) -> None:
    """In a process of its own: the tests, up to the first that fails.  Exit status 0: none did."""
    with Path(said).open("w", encoding="utf-8") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    if mutant is not None:
        exchange(mutant, root)
    os._exit(int(pytest.main([*OPTIONS, "-p", "no:xdist", *(f"tests/{t}.py" for t in tests)])))


def exchange(mutant: Mutant, root: Path) -> None:
    """Give a loaded function the code of the mutant."""
    source = (root / mutant.file).read_text(encoding="utf-8")
    todo, found = [compile(replaced(source, mutant.node, mutant.by), mutant.file, "exec")], None
    while todo:
        code = todo.pop()
        if (code.co_qualname, code.co_firstlineno) == mutant.function:
            found = code
        todo += [c for c in code.co_consts if isinstance(c, CodeType)]
    holder: object = sys.modules["shardproof." + mutant.file.removesuffix(".py").replace("/", ".")]
    for name in mutant.function[0].split("."):
        holder = inspect.getattr_static(holder, name)
        holder = getattr(holder, "fget", None) or getattr(holder, "__func__", holder)
        holder = inspect.unwrap(holder) if callable(holder) else holder
    if found is None or not isinstance(holder, FunctionType):
        raise SystemExit(f"{mutant.text()}: the function was not found")
    holder.__code__ = found


def commit_of(root: Path) -> str:
    """The commit of a tree, `+` where files differ from it."""
    git = partial(subprocess.run, cwd=root, capture_output=True, text=True, check=False)
    head, changed = git(["git", "rev-parse", "--short=10", "HEAD"]), git(["git", "status", "--porcelain"])
    return head.stdout.strip() + ("+" if changed.stdout else "")


@dataclass(frozen=True)
class Run:
    """One tree's mutants: how many there are, and for every place and kind how many were drawn and noticed."""

    commit: str
    date: str
    total: int
    places: Mapping[str, tuple[int, int]]
    kinds: Mapping[str, tuple[int, int]]
    survivors: tuple[str, ...]

    @property
    def score(self) -> tuple[int, int]:
        """Mutants noticed, of all drawn."""
        return sum(n for _, n in self.places.values()), sum(m for m, _ in self.places.values())


def run_of(root: Path, drawn: list[Mutant], noticed: list[bool], total: int) -> Run:
    """The counts of a tree."""
    pairs = list(zip(drawn, noticed, strict=True))

    def counts(of: Callable[[Mutant], bool]) -> tuple[int, int]:
        here = [n for m, n in pairs if of(m)]
        return len(here), sum(here)

    return Run(
        commit_of(root),
        f"{datetime.now(UTC):%Y-%m-%d}",
        total,
        {place: counts(lambda m, p=place: m.file == p or m.file.startswith(p + "/")) for place, _ in NEAREST},
        {kind: counts(lambda m, k=kind: m.kind == k) for kind in sorted({m.kind for m in drawn})},
        tuple(sorted(m.text() for m, n in pairs if not n)),
    )


def page(command: str, runs: list[Run]) -> str:
    """A column for every run, and the survivors of the last one."""
    last = runs[-1]
    out = ["# Mutation score of the checkers", "", f"`{command}`, {last.date}.", ""]
    out += [
        "Small changes of `verify/`, each tried with the nearest fast test modules alone (`NEAREST` in the script), not"
    ]
    out += ["with the whole suite. A survivor is one that these do not notice; it may mean the same as the original."]
    out += ["The same seed draws the same mutants in two trees, where their expressions are the same.", ""]
    out += ["| commit | mutants | drawn | noticed | score |", "|---|---:|---:|---:|---:|"]
    for r in runs:
        noticed, drawn = r.score
        out.append(f"| {r.commit} | {r.total:,} | {drawn} | {noticed} | {100 * noticed / drawn:.1f} % |")
    head = "".join(f" {r.commit} |" for r in runs)
    out += ["", f"| checker | tests |{head}", "|---|---|" + "---:|" * len(runs)]
    for place, tests in NEAREST:
        cells = "".join(f" {n} of {m} |" for r in runs for m, n in [r.places.get(place, (0, 0))])
        out.append(f"| `{place}` | {', '.join(tests)} |{cells}")
    out += ["", f"| change |{head}", "|---|" + "---:|" * len(runs)]
    for kind in sorted({k for r in runs for k in r.kinds}):
        out.append(f"| {kind} |" + "".join(f" {n} of {m} |" for r in runs for m, n in [r.kinds.get(kind, (0, 0))]))
    return "\n".join([*out, "", f"## Survivors of {last.commit}", "", "```text", *last.survivors, "```", ""])


@dataclass
class Answers:
    """Answers by what they are about: `change`, a digest of a mutant and of its file; `tests`, a digest of each test
    module that was asked.  `store`: JSON lines, to which answers are added.
    """

    store: Path
    known: dict[str, list[tuple[dict[str, str], bool]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.store.exists():
            for row in map(json.loads, self.store.read_text(encoding="utf-8").splitlines()):
                self.known.setdefault(row["change"], []).append((row["tests"], row["noticed"]))

    def of(self, mutant: Mutant, root: Path) -> bool | None:
        """Whether a mutant is noticed: if some of its tests notice it all do; if they do not, only the same may say so."""
        change, tests = digests(mutant, root)
        for asked, noticed in self.known.get(change, ()):
            if asked == tests or (noticed and asked.items() <= tests.items()):
                return noticed
        return None

    def add(self, mutant: Mutant, root: Path, noticed: bool) -> None:
        """Keep an answer."""
        change, tests = digests(mutant, root)
        self.known.setdefault(change, []).append((tests, noticed))
        row = {"change": change, "tests": tests, "noticed": noticed, "text": mutant.text()}
        with self.store.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")


def digests(mutant: Mutant, root: Path) -> tuple[str, dict[str, str]]:
    """(of the change and its file, of every test module)."""
    source = (root / mutant.file).read_bytes()
    tests = {t: hashlib.sha256((root / "tests" / f"{t}.py").read_bytes()).hexdigest() for t in mutant.tests}
    return hashlib.sha256(mutant.order.encode() + source).hexdigest(), tests


def main(words: list[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds of the wall of a mutant's tests")
    parser.add_argument("--trees", type=Path, nargs="+", default=[HERE.parents[1]])
    parser.add_argument("--store", type=Path, help="JSON lines, one for each answer; known ones are not asked again")
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args(words)
    runs = []
    with tempfile.TemporaryDirectory() as at:
        store = asked.store or Path(at, "store.jsonl")
        for root in (tree.resolve() for tree in asked.trees):
            every = mutants(root, asked.seed)
            drawn = every[: asked.count]
            process = FORK.Process(target=judge, args=(drawn, root, asked.limit, store))  # one for each tree's modules
            process.start()
            process.join()
            if process.exitcode:
                return 1
            known = Answers(store)
            runs.append(run_of(root, drawn, [bool(known.of(m, root)) for m in drawn], len(every)))
    command = "python tests/benchmarks/checker_mutants.py" + "".join(f" {w}" for w in words)
    text = page(command, runs)
    if asked.page:
        asked.page.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


def judge(drawn: list[Mutant], root: Path, limit: float, store: Path) -> None:
    """Add an answer to the store for every mutant that has none.  The tests are loaded once, and run in forks."""
    known, right = Answers(store), set[tuple[str, ...]]()
    os.chdir(root)
    sys.path.insert(0, str(root.parent))
    os.environ["PYTHONPATH"] = str(root.parent)
    every = sorted({f"tests/{t}.py" for m in drawn for t in m.tests})
    pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:xdist", *every])
    for mutant in drawn:
        if known.of(mutant, root) is not None:
            continue
        if mutant.tests not in right and (wrong := is_noticed(None, root, mutant.tests, 10 * limit))[0]:
            raise SystemExit(f"{', '.join(mutant.tests)} fail on the tree as it is: {wrong[1]}")
        right.add(mutant.tests)
        noticed, why = is_noticed(mutant, root, mutant.tests, limit)
        known.add(mutant, root, noticed)
        sys.stdout.write(f"{'noticed ' if noticed else 'SURVIVES'} {mutant.text()} {why}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
