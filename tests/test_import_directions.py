"""Who may import whom: statically, file by file, and transitively, in a fresh process.

The table is section 2 of the design.  A checker that can see a solver is no checker; a model that can see a proof is no
model.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

SOLVERS = frozenset({"z3", "pulp", "highspy", "cvxpy", "networkx", "sympy", "scipy", "ortools", "pytoulbar2"})
ENGINES = frozenset({"mpi4py", "cupy", "cupyx", "torch", "jax"})
FORBIDDEN_IN_CHECK = SOLVERS | ENGINES | {"numba", "llvmlite", "onnx", "google"}
"""Packages that must not be in sys.modules after `shardproof check`."""


@dataclass(frozen=True)
class Room:
    """`ours`: rooms it may import (beside itself); `theirs`: third-party packages; `late`: those only inside
    functions.
    """

    ours: frozenset[str]
    theirs: frozenset[str] = frozenset({"numpy"})
    late: frozenset[str] = frozenset()


ROOMS = {
    "models": Room(frozenset()),
    "proofs": Room(frozenset({"models"})),
    "formal": Room(
        frozenset({"models", "proofs"}), frozenset({"numpy", "numba", "rich"}) | SOLVERS, frozenset({"onnx"})
    ),
    "verify": Room(frozenset({"models", "proofs"})),
    "backends": Room(frozenset({"models", "proofs"}), frozenset({"numpy", "mpi4py", "cupy"}), ENGINES),
}
EXCEPTIONS = {  # files that read a foreign format with the library of that format, inside functions
    "models/sources/frameworks/places.py": frozenset({"yaml"}),
    "models/sources/onnx/importer.py": frozenset({"onnx", "google"}),
    "models/sources/onnx/original.py": frozenset({"onnx"}),
    "models/sources/onnx/repaired.py": frozenset({"onnx"}),
    "models/sources/distributed/choices.py": frozenset({"torch"}),
    "models/sources/distributed/storage.py": frozenset({"torch"}),
    "models/sources/jax/importer.py": frozenset({"jax"}),
    "models/sources/jax/original.py": frozenset({"jax"}),
    "models/sources/partitioned/capture.py": frozenset({"jax"}),
    "models/sources/partitioned/devices.py": frozenset({"jax"}),
    "models/sources/partitioned/hlo.py": frozenset({"jax"}),
    **{
        f"models/sources/torch/{f}.py": frozenset({"torch"})
        for f in (
            "attention",
            "branches",
            "importer",
            "original",
            "parts",
            "reader",
            "scans",
            "fold",
            "outputs",
            "own_gradients",
            "program",
            "shadow",
            "stopped",
            "train_step",
            "unreadable",
        )
    },
}
JOBS = {
    f"backends/export/{f}.py": frozenset({"torch"})
    for f in (
        "dtensor_contractions",
        "dtensor_functions",
        "dtensor_losses",
        "dtensor_program",
        "dtensor_steps",
        "dtensor_runtime",
        "pipelined_runtime",
        "pipelined_trace",
        "torchtitan_runtime",
        "reduce_torch_runtime",
        "traffic",
    )
} | {"backends/export/reduce_jax_runtime.py": frozenset({"jax"})}
"""Text that is copied into exported files, and what counts the traffic of a live module: loaded by `shardproof.torch`
alone, so they take their library at the top.
"""
CAPTURE = {
    f"models/sources/distributed/{f}.py": frozenset({"torch"})
    for f in (
        "apart",
        "bags",
        "capture",
        "collectives",
        "operators",
        "pairs",
        "past",
        "pipelining",
        "planned",
        "recorder",
        "shared",
        "staged",
        "waits",
        "windows",
        "writes",
    )
}
"""What runs a user's PyTorch program and writes it down: loaded by verb `equal` alone, inside a function, so that these
take PyTorch at the top.
"""
TORCH_KERNELS = {
    f"backends/torch/{f}.py": frozenset({"torch"}) for f in ("arrays", "attention", "maps", "products", "statistics")
}
"""The backend `torch`: loaded where a program names it, inside a function, so that these take PyTorch at the top."""
COMPILED = {f"backends/compiled/{f}.py": frozenset({"numba", "llvmlite"}) for f in ("kernel", "scalar")}
"""The backend `numba`, in the same way."""
COMMAND_LINE = frozenset({"click", "rich"})
"""The verbs of a room (`verbs/`) and what they share (`models/terminal/`) talk to people; nothing else does."""
FILES = sorted(f.relative_to(ROOT).as_posix() for room in ROOMS for f in (ROOT / room).rglob("*.py"))


def imports(tree: ast.AST, late: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import below `tree`, and whether it runs only inside a function (or never: for type checkers only)."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from imports(node, True)
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, late
        yield from imports(node, late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))


def violations(path: str, source: str) -> list[str]:
    """What the file at `path` (relative to the root) imports against the table."""
    folder = Path(path).parent.parts
    room, table = folder[0], ROOMS[folder[0]]
    out: list[str] = []
    for node, late in imports(ast.parse(source)):
        place = f"{path}:{node.lineno}"
        if isinstance(node, ast.ImportFrom) and node.level:
            up = node.level - 1
            if up > len(folder):
                out.append(f"{place}: reaches above the package")
                continue
            base = (*folder[: len(folder) - up], *(node.module.split(".") if node.module else ()))
            reached = [base[0]] if base else [alias.name for alias in node.names]
            out += [f"{place}: {room} imports {r}" for r in reached if r != room and r not in table.ours]
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
        for top in (name.partition(".")[0] for name in names):
            if top == "shardproof" or top in ROOMS:
                out.append(f"{place}: imports {top} absolutely; write a relative import")
            elif top in COMMAND_LINE and ("/verbs/" in path or path.startswith("models/terminal/")):
                continue
            elif top not in sys.stdlib_module_names and top not in table.theirs:
                late_ones = table.late | EXCEPTIONS.get(path, frozenset())
                if not (late and top in late_ones) and top not in (JOBS | CAPTURE | TORCH_KERNELS | COMPILED).get(
                    path, frozenset()
                ):
                    out.append(f"{place}: {room} imports {top}" + ("" if late else " at its top"))
            elif top in {"importlib", "runpy"} and room == "verify":
                out.append(f"{place}: verify imports {top}, which hides what it loads")
    return out


def test_nothing_imports_the_text_of_jobs() -> None:
    for job in JOBS:
        stem = Path(job).stem
        assert not [f for f in FILES if f != job and f"import {stem}" in (ROOT / f).read_text(encoding="utf-8")], job


@pytest.mark.parametrize("path", FILES)
def test_static(path: str) -> None:
    assert violations(path, (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("verify/x.py", "from ..formal import solve"),
        ("verify/x.py", "from .. import backends"),
        ("verify/x.py", "import z3"),
        ("verify/x.py", "def f():\n    import scipy.sparse"),
        ("verify/x.py", "import importlib"),
        ("models/x.py", "from ..proofs.container import read"),
        ("models/sources/x.py", "from ...verify import check"),
        ("models/sources/onnx/importer.py", "import onnx"),
        ("proofs/x.py", "from ..verify import check"),
        ("formal/selection/x.py", "from ...backends.kernels import execute"),
        ("formal/x.py", "import onnx"),
        ("backends/x.py", "from ..formal import solve"),
        ("backends/x.py", "import torch"),
        ("backends/x.py", "import numba"),
        ("models/x.py", "import shardproof.models.program.graph"),
        ("models/x.py", "from models.program.graph import Graph"),
        ("models/x.py", "from ...elsewhere import x"),
        ("models/x.py", "if True:\n    import numba"),
    ],
)
def test_static_check_can_say_no(path: str, source: str) -> None:
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "verify/x.py",
            "from ..models.problems import SelectionProblem\nfrom . import verdict\nimport numpy as np\nimport json",
        ),
        ("verify/x.py", "from .. import models, proofs"),
        ("formal/selection/x.py", "from ...models.graph import Graph\nfrom ..selection import y\nimport numba"),
        (
            "models/sources/onnx/importer.py",
            "def read():\n    import onnx\n    from google.protobuf.message import DecodeError",
        ),
        ("backends/x.py", "def f():\n    import torch"),
    ],
)
def test_static_check_can_say_yes(path: str, source: str) -> None:
    assert violations(path, source) == []


def loaded_after(code: str, *arguments: str, cwd: Path = ROOT.parent) -> tuple[set[str], str]:
    """sys.modules of a fresh process that ran `code`, and its stderr."""
    tail = "\nimport json as _json, sys as _sys\nprint('\\n' + _json.dumps(sorted(_sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + tail, *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1])), done.stderr


def assert_clean(modules: set[str], *rooms: str) -> None:
    tops = {m.partition(".")[0] for m in modules}
    assert tops & FORBIDDEN_IN_CHECK == set()
    assert {m for m in modules if m.startswith(tuple(f"shardproof.{room}" for room in rooms))} == set()


def import_all(room: str) -> str:
    names = [
        ".".join(("shardproof", *Path(f).with_suffix("").parts)).removesuffix(".__init__")
        for f in FILES
        if f.startswith(f"{room}/") and f not in CAPTURE
    ]
    return "import importlib\nfor n in " + repr(names) + ":\n    importlib.import_module(n)"


def test_the_rooms_below_load_no_solver_and_no_room_above() -> None:
    modules, _ = loaded_after(import_all("models"))
    assert "shardproof.models.program.graph" in modules
    assert_clean(modules, "proofs", "formal", "verify", "backends")
    modules, _ = loaded_after(import_all("proofs"))
    assert_clean(modules, "formal", "verify", "backends")


def test_verify_loads_no_solver_and_neither_formal_nor_backends() -> None:
    modules, _ = loaded_after(import_all("verify"))
    assert "shardproof.verify" in modules and "numpy" in modules
    assert_clean(modules, "formal", "backends")


def test_formal_and_backends_do_not_see_each_other_nor_verify() -> None:
    modules, _ = loaded_after(import_all("formal"))
    assert {m for m in modules if m.startswith(("shardproof.verify", "shardproof.backends"))} == set()


RUN = """
import runpy, sys
sys.argv = ["shardproof", *sys.argv[1:]]
try:
    runpy.run_module("shardproof", run_name="__main__", alter_sys=True)
except SystemExit as e:
    print("exit", e.code or 0, file=sys.stderr)
"""


def test_the_command_check_loads_no_solver(tmp_path: Path) -> None:
    """A real plan, planned by another process, then checked: solvers took part in the first and not in the second."""
    plan = tmp_path / "p.spz"
    modules, said = loaded_after(RUN, "plan", "bert-tiny", "--machine", "localhost:2", "-o", str(plan), cwd=tmp_path)
    assert "exit 0" in said and plan.exists(), said
    assert any(m.startswith("shardproof.formal") for m in modules)
    modules, said = loaded_after(RUN, "check", str(plan), cwd=tmp_path)
    assert "exit 0" in said, said
    assert any(m.startswith("shardproof.verify") for m in modules)
    assert_clean(modules, "formal", "backends")
